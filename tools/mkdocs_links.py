"""Hook of mkdocs: turns links that leave docs/ into paths, copies images from outside it, adds model cards to the menu.

It is also an extension of griffe, which shows the examples in docstrings as code.
"""

import posixpath
import re
from pathlib import Path

from griffe import Extension, Object
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s#:]+)\)")
CARDS = "model-cards/"


def on_config(config: MkDocsConfig) -> None:
    docs = Path(config.docs_dir)
    cards = [f"{CARDS}{card.name}" for card in sorted((docs / CARDS).glob("[!R]*.md"))]
    for entry in config.nav or []:
        if CARDS in entry.values():
            entry.update({title: [f"{CARDS}README.md", *cards] for title in entry})


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    here, root = posixpath.dirname(page.file.src_uri), Path(config.docs_dir).parent

    def rewritten(link: re.Match[str]) -> str:
        image, text, target = link.groups()
        path = posixpath.normpath(posixpath.join("docs", here, target))
        if path.startswith("docs/"):
            return f"[{text}]({target}README.md)" if target.endswith("/") else link[0]
        if not image:
            return text if path.startswith(text.strip("`/")) else f"{text} (`{path}`)"
        if files.get_file_from_path(path) is None:
            files.append(File.generated(config, path, abs_src_path=str(root / path)))
        return f"![{text}]({posixpath.relpath(path, here or '.')})"

    return LINK.sub(rewritten, markdown)


class Examples(Extension):
    def on_object(self, *, obj: Object, **_: object) -> None:
        if obj.docstring:
            obj.docstring.value = re.sub(r"(?m)^>>> (?:.+\n?)+", "```pycon\n\\g<0>\n```\n", obj.docstring.value)
