"""HTML and SVG as nested calls. Text is escaped by construction: only values made here count as markup."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

VOID = {"meta", "img", "br", "link", "input"}
LARGEST_PICTURE = 96  # largest side in pixels: larger ones are reduced, to keep the file small


class Html(str):
    """Complete, escaped markup."""


Child: TypeAlias = "str | int | Iterable[Child] | None"


def h(name: str, /, *children: Child, **attributes: Any) -> Html:
    """`h("p", "a < b", class_="note", data_tip="…")`. None and False omit an attribute, True gives it no value."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{escape(str(value))}"')
    start = " ".join(parts)
    return Html(f"<{start}>" if name in VOID else f"<{start}>{join(children)}</{name}>")


def join(children: Child) -> Html:
    if children is None:
        return Html("")
    if isinstance(children, Html):
        return children
    if isinstance(children, (str, int)):
        return Html(escape(str(children), quote=False))
    return Html("".join(join(child) for child in children))


def data(content: Any) -> str:
    """JSON for a data- attribute that the script reads"""
    return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def table(
    head: Sequence[Child], rows: Iterable[Sequence[Child]], caption: str, sortable: bool = False, numbers_from: int = 1
) -> Html:
    """The first cell of a row is its heading; cells from `numbers_from` on are right-aligned. Scrolls if necessary."""

    def side(column: int) -> str | None:
        return "number" if column >= numbers_from else None

    heads = [
        h("th", h("button", name, type="button") if sortable else name, scope="col", class_=side(c))
        for c, name in enumerate(head)
    ]
    body = [
        h("tr", h("th", row[0], scope="row"), [h("td", cell, class_=side(c)) for c, cell in enumerate(row[1:], 1)])
        for row in rows
    ]
    made = h(
        "table",
        h("caption", caption),
        h("thead", h("tr", heads)),
        h("tbody", body),
        class_="sortable" if sortable else None,
    )
    return h("div", made, class_="scroll", tabindex=0, role="region", aria_label=caption)


def folded(title: str, *content: Child) -> Html:
    return h("details", h("summary", title), *content)


def figure(title: str, drawing: Child, caption: Child, *more: Child, class_: str | None = None) -> Html:
    """A drawing, a caption, and below it the numbers as a table."""
    return h("figure", h("h3", title), drawing, h("figcaption", caption), *more, class_=class_)


def picture(pixels: Tensor, alt: str, class_: str = "pixels", scale: int | None = None) -> Html:
    """(ch, h, w), bytes or values in [0, 1]. `scale` is the longer side on the page, in CSS pixels."""
    height, width = pixels.shape[-2:]
    shown = scale / max(height, width) if scale else 1
    return h(
        "img",
        src=data_uri(pixels),
        alt=alt,
        width=round(width * shown),
        height=round(height * shown),
        class_=class_,
        loading="lazy",
        decoding="async",
    )


def data_uri(pixels: Tensor) -> str:
    """PNG, or JPEG if that is much smaller."""
    if pixels.dtype != torch.uint8:
        pixels = (pixels.clamp(0, 1) * 255).round().to(torch.uint8)
    array = pixels.permute(1, 2, 0).numpy()
    image = Image.fromarray(np.ascontiguousarray(array[:, :, 0] if array.shape[2] == 1 else array))
    image.thumbnail((LARGEST_PICTURE, LARGEST_PICTURE), Image.Resampling.LANCZOS)
    kind, best = "png", _encoded(image, "PNG", optimize=True)
    if len(best) > 4000:
        other = _encoded(image, "JPEG", quality=88)
        if len(other) < len(best) / 2:
            kind, best = "jpeg", other
    return f"data:image/{kind};base64,{base64.b64encode(best).decode()}"


def _encoded(image: Image.Image, kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()
