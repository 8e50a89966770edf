"""A standalone SVG file: shared by curves and weight maps."""

from __future__ import annotations

from collections.abc import Sequence


def document(width: int, height: int, parts: Sequence[str]) -> str:
    size = f'width="{width}" height="{height}" viewBox="0 0 {width} {height}"'
    inside = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<rect width="100%" height="100%" fill="#fff"/>\n'
        f'<g font-family="sans-serif" font-size="11" fill="#333">\n{inside}\n</g>\n</svg>\n'
    )
