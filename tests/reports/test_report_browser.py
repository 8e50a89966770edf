"""The page in Chromium: what a pointer, a keyboard and a phone meet."""

import itertools
import re

import pytest
from page_helpers import facts_of, toy

from browsing import opening
from wcapsnet.explanations import specialization
from wcapsnet.formatting import percentage
from wcapsnet.reports import comparison_page, run_page

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(facts, tmp_path_factory):
    path = tmp_path_factory.mktemp("browser") / "report.html"
    path.write_text(run_page(facts), encoding="utf-8")
    return path.as_uri()


@pytest.fixture
def visit(browser):
    """Opens a page, which asks for nothing else"""
    with opening(browser, reduced_motion="reduce") as open_page:  # or it scrolls for a while

        def visit(address, width=1280, **options):
            return open_page(address, viewport={"width": width, "height": 900}, **options)

        yield visit
    assert all(url.startswith(("file:", "data:")) for url in open_page.asked)


def tip(page):
    shown = page.locator("#tip.on")
    return shown.inner_text() if shown.count() else None


def point(page, svg, x, y):
    """Move the pointer to a point of a drawing, and read what is shown there."""
    onto = "(svg, [x, y]) => { const p = new DOMPoint(x, y).matrixTransform(svg.getScreenCTM()); return [p.x, p.y]; }"
    page.mouse.move(*svg.evaluate(onto, [x, y]))
    return tip(page)


def point_at_cell(page, svg, row, column):
    d = numbers(svg)
    return point(page, svg, d["left"] + d["cell"][0] * (column + 0.5), d["top"] + d["cell"][1] * (row + 0.5))


def numbers(svg):
    """What the script reads, after the page has scrolled to the drawing: scroll events hide the tip"""
    svg.scroll_into_view_if_needed()
    svg.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return svg.evaluate("svg => JSON.parse(svg.dataset.numbers)")


def test_pointing_at_the_routing_shows_the_numbers_of_python(visit, address, facts):
    page = visit(address)
    level = specialization(facts.seen.survey).levels[0]
    svg = page.locator("#routing svg.grid").first
    for r in range(3):
        for n in range(level.capsules):
            said = f"{level.mean[r, n]:.3f} ± {level.margin[r, n]:.3f}"
            assert point_at_cell(page, svg, r, n) == f"{facts.classes[r]}, block {n}: mean weight {said}"
    page.mouse.move(2, 2)
    assert tip(page) is None


def test_pointing_at_a_curve_shows_the_epoch_and_its_values(visit, address, facts):
    page = visit(address)
    svg = page.locator("#training .broad svg")
    d = numbers(svg)
    for number, record in enumerate(facts.subject.metrics):
        assert point(page, svg, d["at"][number], (d["top"] + d["bottom"]) / 2).splitlines() == [
            f"epoch {record['epoch']}",
            f"validation: {percentage(record['validation_accuracy'])}",
            f"training: {percentage(record['train_accuracy'])}",
            *(["the learning rate drops to 0.005"] if record["epoch"] == 2 else []),
        ]


def test_pointing_at_the_confusion_matrix_shows_the_counts(visit, address, facts):
    page = visit(address)
    svg = page.locator("#answers svg.grid")
    for i, row in enumerate(facts.figures["confusion"]):
        for j, count in enumerate(row):
            said = point_at_cell(page, svg, i, j).rsplit(": ", 1)[1]
            assert said.startswith("no image" if count == 0 else f"{count} image")


def test_the_keyboard_reads_the_same_numbers(visit, address, facts):
    page = visit(address)
    svg = page.locator("#routing svg.grid").first
    level = specialization(facts.seen.survey).levels[0]
    page.keyboard.press("Tab")  # from now on the keyboard is in use
    svg.focus()
    assert f"{level.mean[0, 0]:.3f}" in tip(page)
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowDown")
    assert f"block 1: mean weight {level.mean[1, 1]:.3f}" in tip(page)
    page.keyboard.press("End")
    assert f"block {level.capsules - 1}: mean weight {level.mean[1, -1]:.3f}" in tip(page)
    page.keyboard.press("Escape")
    assert tip(page) is None


def test_tab_goes_through_the_page_in_its_order(visit, address):
    page = visit(address)
    places = []
    for _ in range(60):
        page.keyboard.press("Tab")
        where = page.evaluate(
            "() => { const e = document.activeElement; return [e.tagName.toLowerCase(), e.id, "
            "[...document.querySelectorAll('*')].indexOf(e), getComputedStyle(e).outlineStyle]; }"
        )
        if where[0] == "body":  # beyond the end
            break
        places.append(where)
    assert places[0][0] == "a"
    assert "theme" in [identity for _, identity, *_ in places]
    assert [where for where in places if where[-1] == "none"] == []
    order = [number for *_, number, _ in places]
    assert order == sorted(order)
    assert [tag for tag, *_ in places].count("svg") >= 8


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_follows_the_system_and_the_button_changes_it(visit, address, scheme):
    page = visit(address, color_scheme=scheme)

    def shade():
        return sum(map(int, re.findall(r"\d+", page.evaluate("getComputedStyle(document.body).backgroundColor"))[:3]))

    before = shade()
    assert (before > 600) == (scheme == "light")
    page.click("#theme")
    assert (shade() > 600) == (scheme == "dark")
    page.click("#theme")
    assert shade() == before


def test_paper_is_white_even_in_the_dark(visit, address):
    page = visit(address, color_scheme="dark")
    page.emulate_media(media="print", color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not page.locator("nav").is_visible()


@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_no_width_makes_the_page_scroll_sideways(visit, address, width):
    page = visit(address, width)
    for details in page.locator("details").all():
        details.evaluate("d => d.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_letters_of_drawings_can_be_read_on_a_phone(visit, address):
    page = visit(address, 390)
    sizes = page.evaluate(
        "[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length).map(t => "
        "parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getScreenCTM().a)"
    )
    assert len(sizes) > 50
    assert min(sizes) > 7.5


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_from_what_is_behind_it(visit, address, scheme):
    """WCAG's contrast of 4.5 for everything in the page's own colours"""
    page = visit(address, color_scheme=scheme)
    poor = page.evaluate(
        """() => {
        const light = (c) => c.match(/[\\d.]+/g).slice(0, 3).map((v) => v / 255)
          .map((v) => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
          .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
        const behind = (e) => {
          for (; e; e = e.parentElement) {
            const c = getComputedStyle(e).backgroundColor;
            if (!/, 0\\)$|transparent/.test(c)) return c;
          }
        };
        const written = "p, h1, h2, h3, h4, li, td, th, dt, dd, a, summary, figcaption, span, svg .tick, svg .label";
        return [...document.querySelectorAll(written)]
          .filter((e) => e.textContent.trim() && e.getClientRects().length)
          .map((e) => {
            const style = getComputedStyle(e), color = e.tagName === "text" ? style.fill : style.color;
            const [a, b] = [light(color), light(behind(e))].sort((x, y) => y - x);
            return [(a + 0.05) / (b + 0.05), e.tagName, e.className.toString(), e.textContent.slice(0, 30)];
          })
          .filter(([contrast]) => contrast < 4.5);
        }"""
    )
    assert poor == []


@pytest.mark.parametrize("letters", ["mwo", "MWO", "猫犬鳥", "xyz"])
def test_long_names_of_classes_stay_clear_of_the_title_beside_them(visit, tmp_path, letters):
    run, dataset = toy(tmp_path / "run", tuple(letter * 30 for letter in letters))
    (tmp_path / "page.html").write_text(run_page(facts_of(run, dataset)), encoding="utf-8")
    page = visit((tmp_path / "page.html").as_uri())
    apart = page.evaluate(
        """() => [...document.querySelectorAll("svg.grid")].map((svg) => {
            const title = svg.querySelector("text.title[transform]").getBoundingClientRect();
            const names = [...svg.querySelectorAll("text.label[text-anchor=end]")];
            return Math.min(...names.map((name) => name.getBoundingClientRect().left - title.right));
        })"""
    )
    assert len(apart) >= 2
    assert min(apart) >= 0, apart


def test_tables_are_sorted_by_their_heads(visit, address):
    page = visit(address)
    page.locator("#answers summary", has_text="every class").click()
    table = page.locator("#answers table.sortable")
    head = table.locator("thead button", has_text="accuracy")
    for expected in ("ascending", "descending"):
        head.click()
        assert head.locator("xpath=..").get_attribute("aria-sort") == expected
        shares = [float(text.rstrip("\u202f%")) for text in table.locator("tbody td:nth-child(3)").all_inner_texts()]
        assert shares == sorted(shares, reverse=expected == "descending")


def test_the_page_can_be_read_without_script(browser, address):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(address)
    assert page.locator("h2").count() == 8
    assert not page.locator("#theme").is_visible()
    page.locator("#routing summary").first.click()
    assert page.locator("#routing table").first.is_visible()
    context.close()


def test_headings_lead_through_the_page_without_a_gap(visit, address):
    page = visit(address)
    ranks = [int(tag[1]) for tag in page.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map(h => h.tagName)")]
    assert ranks[0] == 1
    assert ranks.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(ranks))


def test_a_comparison_stands_in_a_browser_too(visit, facts, tmp_path):
    path = tmp_path / "comparison.html"
    path.write_text(comparison_page({"one": facts, "<other>": facts}), encoding="utf-8")
    page = visit(path.as_uri(), 390)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    svg = page.locator("#training .narrow svg")
    d = numbers(svg)
    assert "<other>, validation" in point(page, svg, d["at"][0], d["top"] + 20)
