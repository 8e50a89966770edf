"""What the documents name exists: links, files, functions, settings, commands."""

import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
from documents import ROOT, text

from wcapsnet.cli import app, load_commands
from wcapsnet.parts import loss_term

PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "results/README.md")
)


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings, and those of <a id="…"></a>"""
    content = page.read_text(encoding="utf-8")
    titles = re.sub(r"<[^>]+>", "", "\n".join(re.findall(r"^#+ (.*)$", content, re.M))).lower().splitlines()
    return {re.sub(r"[^\w\- ]", "", title).replace(" ", "-") for title in titles} | {
        *re.findall(r'<a id="(.+?)">', content)
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        found = (ROOT / page).parent / path if path else ROOT / page
        assert found.exists(), target
        assert not anchor or anchor in anchors(found), target


def test_every_decision_that_code_or_page_names_has_its_entry():
    entries = anchors(ROOT / "docs/decisions.md")
    code = [path.relative_to(ROOT).as_posix() for folder in ("src", "tools") for path in (ROOT / folder).rglob("*.py")]
    named = {(page, number) for page in (*PAGES, *code) for number in re.findall(r"\bD[1-9]\d?\b", text(page))}
    assert len(named) > 100
    assert [one for one in sorted(named) if one[1].lower() not in entries] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_loss_term_that_a_page_names_is_one(page):
    load_commands()
    commands = {command.name or command.callback.__name__ for command in app.registered_commands}
    for name in re.findall(r"^wcapsnet ([a-z]+)|`wcapsnet ([a-z]+)", text(page), re.M):
        assert (name[0] or name[1]) in {*commands, "classes"}  # the command that docs/extending.md adds
    if page not in ("CHANGELOG.md", "docs/extending.md"):
        assert set(re.findall(r"\bobjective\.([a-z_]+)=", text(page))) <= set(loss_term)


def test_every_file_and_name_in_the_papers_map_exists():
    rows = [line for line in text("docs/paper.md").splitlines() if line.startswith("|")]
    seen = 0
    for cell in (row.strip("| ").split("|")[-1] for row in rows):
        module = None
        for word in re.findall(r"`([^`]+)`", cell):
            if word.endswith(".py"):
                assert (ROOT / "src/wcapsnet" / word).is_file(), word
                module = import_module("wcapsnet." + word.removesuffix(".py").replace("/", "."))
            elif module and re.fullmatch(r"[\w.]+", word) and not word.endswith(".json"):
                owners = [module, *(value for value in vars(module).values() if isinstance(value, type))]
                assert any(_has(owner, word) for owner in owners), f"{word} in {module.__name__}"
                seen += 1
    assert seen > 25


def _has(owner: object, name: str) -> bool:
    first, _, rest = name.partition(".")
    if rest:
        return _has(getattr(owner, first, None), rest)
    return hasattr(owner, name) or name in getattr(owner, "__annotations__", {})  # fields without a default


def test_every_file_in_the_readmes_map_exists():
    rows = text("README.md").partition("## Map of the code")[2].partition("## ")[0]
    for row in rows.splitlines():
        first = None
        for word in re.findall(r"`([\w/.]+)`", row):
            if "/" in word or word.endswith(".py"):
                places = [ROOT / word, ROOT / "src/wcapsnet" / word]
                assert any(place.exists() for place in places), word
                first = first or word
        assert first or not row.startswith("| Where")


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    for module in ("mkdocs", "material", "mkdocstrings_handlers.python"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    pages = {
        page.relative_to(tmp_path).as_posix(): page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")
    }
    assert {"index.html", "api.html", "model-cards/index.html"} <= pages.keys()
    assert 'id="wcapsnet.api.training.train"' in pages["api.html"]
    loads = r"<(?:script|img|iframe)[^>]*\ssrc=[\"']?(?:https?:)?//|<link[^>]*\shref=[\"']?(?:https?:)?//"
    assert not [name for name, page in pages.items() if re.search(loads, page)]
