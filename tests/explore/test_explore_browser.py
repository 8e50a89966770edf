"""The live page in a real browser: it is drawn on, files are dropped, sliders moved, blocks switched; its numbers are
those of Python."""

import base64
import io
import re

import numpy as np
import pytest
import torch
from explore_helpers import array, classifier_of, images_of, normalized, serving
from PIL import Image

from browsing import canvas, click, draw, opening, picture, probabilities, settled, stroke, until
from wcapsnet import Classifier
from wcapsnet.explanations import explain_image, over_image
from wcapsnet.explanations.shares import against_share
from wcapsnet.network import Level, RoutingConfig
from wcapsnet.reports.colors import shades

pytestmark = pytest.mark.browser

# Counts the questions on their way, and when the last began or ended.
WATCH = """
window.asked = { open: 0, last: 0 };
const real = window.fetch;
window.fetch = async (...question) => {
  window.asked.open += 1;
  try { return await real(...question); }
  finally { window.asked.open -= 1; window.asked.last = performance.now(); }
};
"""


@pytest.fixture(scope="module")
def classifier():
    return classifier_of(height=16, width=16, levels=(Level(3, 2, 4, 2), Level(4, 2, 4, 2), Level(2, 2, 3, 1)))


@pytest.fixture(scope="module")
def asker(classifier):
    with serving(classifier, images_of(classifier, 30), source="mnist") as asker:
        yield asker


@pytest.fixture
def visit(browser, asker):
    """Opens the page"""
    with opening(browser, WATCH, permissions=["clipboard-read", "clipboard-write"]) as open_page:

        def visit(at=None, hash="", **options):
            page = open_page((at or asker).server.url + hash, **options)
            page.wait_for_selector("body.ready")
            return page

        visit.errors = errors = open_page.errors
        yield visit
        errors[:] = [
            line for line in errors if "ERR_CONNECTION_REFUSED" not in line
        ]  # a test's own server closes first


def first_image(page):
    """The page with the first test image"""
    click(page, "#tab-test")
    return page


def pixels_seen(page):
    """uint8 (h, w, 1) or (h, w, 3): what the page shows as the network's input"""
    seen = picture(page, "seen")
    return seen[:, :, :1] if (seen == seen[:, :, :1]).all() else seen


def explained(classifier, page, **more):
    pixels = torch.from_numpy(pixels_seen(page).copy()).permute(2, 0, 1)
    return explain_image(classifier.network, normalized(classifier, pixels), without=False, **more)


def table(page, column):
    rows = page.eval_on_selector_all(
        "#table tr", f"all => all.map(r => [r.dataset.block, r.children[{column}].dataset.value])"
    )
    return {block: float(value) for block, value in rows}


def same_as_python(classifier, page, one):
    assert probabilities(page) == dict(enumerate(one.probabilities.tolist()))
    best = float(one.probabilities.max())
    assert page.inner_text("#verdict") == classifier.classes[one.predicted]
    assert f"{100 * best:.1f} %" in page.inner_text("#verdict-probability") or best > 0.9995
    weights = {f"{level + 1}.{n}": b for level in range(3) for n, b in enumerate(one.block_weights(level).tolist())}
    assert table(page, 1) == weights
    shown = page.eval_on_selector_all(
        ".flow .block:not(.off)", "all => all.map(g => [g.dataset.block, g.querySelector('.weight').textContent])"
    )
    assert dict(shown) == {block: f"{b:.3f}" for block, b in weights.items() if b > 0}
    winners = page.eval_on_selector_all(".flow .winner", "all => all.map(g => g.dataset.block)")
    on = [int((b > 0).sum()) if b.dim() == 1 else int((b.flatten(1).sum(1) > 0).sum()) for b in one.weights]
    standing = [() if len(won) == count else won for won, count in zip(one.winners, on, strict=True)]  # not if all tie
    assert winners == [f"{level + 1}.{n}" for level, won in enumerate(standing) for n in won]
    values = page.eval_on_selector_all("#sliders input", "all => all.map(i => Number(i.value))")
    assert values == pytest.approx([*one.vector.tolist(), *one.position.tolist()], abs=1e-6)


def test_a_drawing_is_answered_with_the_numbers_of_python(visit, classifier):
    page = visit()
    assert page.inner_text("#verdict-probability") == "Nothing drawn yet."
    draw(page, (0.2, 0.2), (0.8, 0.25), (0.5, 0.8))
    same_as_python(classifier, page, explained(classifier, page))
    until(page, lambda: page.text_content("#said"))  # for screen readers, when the hand rests
    said = page.text_content("#said")
    assert said == f"Prediction: {page.inner_text('#verdict')}, {page.inner_text('#verdict-probability')}"


def test_strokes_are_undone_and_cleared(visit):
    page = visit()
    draw(page, (0.2, 0.2), (0.8, 0.2))
    once = pixels_seen(page)
    draw(page, (0.5, 0.2), (0.5, 0.9))
    assert not np.array_equal(pixels_seen(page), once)
    page.keyboard.press("Control+z")
    settled(page)
    assert np.array_equal(pixels_seen(page), once)
    stroke(page, (0.5, 0.2), (0.5, 0.9))
    click(page, "#undo")
    assert np.array_equal(pixels_seen(page), once)
    click(page, "#clear")
    assert page.inner_text("#verdict") == "–"
    assert page.is_disabled("#undo")
    assert page.url.endswith("/")


def test_drawings_are_brought_to_the_middle_if_asked(visit):
    page = visit()
    draw(page, (0.05, 0.05), (0.25, 0.05), (0.25, 0.25))

    def middle():
        ink = pixels_seen(page)[:, :, 0].astype(float)
        i, j = np.mgrid[:16, :16]
        return (ink * i).sum() / ink.sum(), (ink * j).sum() / ink.sum()

    assert middle() == pytest.approx((7.5, 7.5), abs=0.15)
    page.uncheck("#center")
    settled(page)
    assert max(middle()) < 5


def test_a_finger_draws_too(visit, classifier):
    page = visit(viewport={"width": 390, "height": 844}, has_touch=True, is_mobile=True)
    box = page.locator("#easel").bounding_box()
    session = page.context.new_cdp_session(page)

    def touch(kind, *at):
        points = [{"x": box["x"] + x * box["width"], "y": box["y"] + y * box["height"]} for x, y in at]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", (0.2, 0.3))
    for step in range(1, 10):
        touch("touchMove", (0.2 + 0.06 * step, 0.3 + 0.05 * step))
    touch("touchEnd")
    settled(page)
    assert page.evaluate("scrollY") == 0  # the page did not move along
    same_as_python(classifier, page, explained(classifier, page))
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


def test_the_pixels_of_a_stroke_worked_by_hand(visit):
    # 8×8 pixels, 1024 units a side: from (256, 512) to (768, 512) is, between the middles of pixels, from x = 1.5 to
    # 5.5 at y = 3.5; a pen of 128 has a radius of half a pixel. A pixel at the distance d gets r + 1/2 − d of the ink:
    # beside the line d = 1/2 gives 1/2, beyond its ends d = √½ gives 0.293.
    page = visit()
    ink = page.evaluate(
        """async () => {
            const { rasterize } = await import("/draw.js");
            return [...rasterize([{ width: 128, points: [256, 512, 768, 512] }], 8, 8, false)];
        }"""
    )
    row = [0, 75, 128, 128, 128, 128, 75, 0]
    assert np.array(ink).reshape(8, 8).tolist() == [[0] * 8] * 3 + [row, row] + [[0] * 8] * 3


def test_heat_maps_are_laid_over_the_picture_as_python_lays_them(visit):
    maps = torch.rand(1, 3, 4, generator=torch.Generator().manual_seed(0))
    page = visit()
    found = page.evaluate(
        """async (values) => {
            const { between, neighbours } = await import("/paint.js");
            const cells = { values, height: 3, width: 4 };
            return neighbours(12, 4, 3).map((row) => neighbours(16, 4, 4).map((column) => between(cells, row, column)));
        }""",
        maps.flatten().tolist(),
    )
    torch.testing.assert_close(torch.tensor(found), over_image(maps, (12, 16), 4)[0])


def test_weights_have_the_colours_of_python(visit):
    weights = torch.linspace(0, 0.5, 200)
    page = visit()
    positions, colors = page.evaluate(
        """async (weights) => {
            const { againstShare, shade } = await import("/paint.js");
            const positions = weights.map((b) => againstShare(b, 8));
            return [positions, positions.map((at) => [...shade(at)])];
        }""",
        weights.double().tolist(),
    )
    expected = against_share(weights, 8)
    torch.testing.assert_close(torch.tensor(positions).double(), expected, atol=1e-6, rtol=0)
    torch.testing.assert_close(torch.tensor(colors) / 255, shades(expected), atol=3 / 255, rtol=0)


def marks(page, name="heat"):
    return page.eval_on_selector_all(f"#{name}-marks .tied", "all => all.map(r => r.dataset.place)")


def places(given):
    return [".".join(map(str, place)) for place in given]


def tie(page, tied):
    """The first test image, as in a network in which these vectors of the last level tie: an untrained one weights all
    alike"""

    def fulfil(route):
        answer = route.fetch()
        route.fulfill(response=answer, json=answer.json() | {"tied": tied, "place": tied[-1]})

    page.route("**/api/explain", fulfil)
    return first_image(page)


EVERY = [[n, i, j] for n in range(2) for i in range(4) for j in range(4)]


def test_every_tied_place_is_outlined_and_the_decoded_vector_has_a_dot(visit):
    tied = EVERY[3:25:2]
    page = tie(visit(), tied)
    assert marks(page) == places(tied)
    assert page.locator("#heat-marks .decoded").get_attribute("data-place") == places(tied)[-1]
    for n in range(2):  # of one block: its own
        page.locator("#heat-blocks label").nth(1 + n).click()
        assert marks(page) == places(place for place in tied if place[0] == n)
        assert page.locator("#heat-marks .decoded").count() == int(tied[-1][0] == n)


def test_what_is_outlined_stands_over_its_place(visit):
    page = tie(visit(), [[0, 0, 0], [1, 0, 0], [1, 3, 2]])
    view = page.locator("#heat").bounding_box()
    boxes = [box.bounding_box() for box in page.locator("#heat-marks .tied").all()]
    for box, (i, j) in zip(boxes, ((0, 0), (0, 0), (3, 2)), strict=True):
        middle = (box["x"] + box["width"] / 2 - view["x"], box["y"] + box["height"] / 2 - view["y"])
        expected = ((j + 0.5) / 4 * view["width"], (i + 0.5) / 4 * view["height"])
        assert middle == pytest.approx(expected, abs=2)
        assert box["width"] < view["width"] / 4
    assert boxes[1]["width"] < boxes[0]["width"]  # two vectors at one place: one inside the other


@pytest.mark.parametrize(("count", "seen"), [(1, 1), (2, 2), (16, 16), (17, 0), (32, 0)])
def test_ties_are_outlined_up_to_half_of_the_vectors(visit, count, seen):
    page = tie(visit(), EVERY[:count])
    assert len(marks(page)) == seen
    assert page.locator("#heat-marks .decoded").count() == 1
    assert (f"{count} of 32 vectors" in page.inner_text("#look-note")) == (1 < count < 32)
    assert ("All 32 vectors" in page.inner_text("#look-note")) == (count == 32)


def ends(page):
    """The numbers of the legend"""
    return [float(words.split()[-1]) for words in page.inner_text("#heat-legend").split("\n")]


def test_the_heat_map_has_a_legend_with_the_equal_share(visit, asker):
    page = visit()
    assert page.is_hidden("#heat-legend")
    click(page, "#tab-test")
    assert ends(page) == pytest.approx([1 / 32, 1 / 16, 1 / 8], rel=0.01)  # blocks added up: 4·4 places
    page.locator("#heat-blocks label").nth(1).click()
    assert ends(page) == pytest.approx([1 / 64, 1 / 32, 1 / 16], rel=0.01)  # one block of two
    assert "equal share" in page.inner_text("#heat-middle")
    page.locator(".segments label", has_text="For ").click()
    low, middle, high = page.inner_text("#heat-legend").split("\n")
    assert middle == "0"
    assert low[1:] == high[1:]
    assert low[0] + high[0] == "−+"
    page.locator(".segments label", has_text="None").click()
    assert page.is_hidden("#heat-legend")
    assert page.locator("#heat-marks > *").count() == 0


def test_equal_weights_look_equal(visit):
    """A network whose critics are constant: no ring, no outline, one colour"""
    equal = classifier_of(height=16, width=16, routing=RoutingConfig(fitness="constant"))
    flat = images_of(equal, 6)
    flat.images[:] = 90  # a picture that is not seen through the map
    with serving(equal, flat, source="mnist") as asker:
        page = first_image(visit(asker))
        assert page.locator(".flow .winner, #table .winner").count() == 0
        assert marks(page) == []
        assert page.locator("#heat-marks .decoded").count() == 1
        fills = page.eval_on_selector_all(".flow .disc", "all => all.map(d => getComputedStyle(d).backgroundColor)")
        assert len(set(fills)) == 1
        colors = picture(page, "heat").reshape(-1, 3)
        assert len(np.unique(colors, axis=0)) == 1
        gray = (shades(torch.tensor(0.0)) * 255).numpy()
        assert np.abs(colors[0] - gray).max() <= 2


def test_what_a_link_was_made_of_is_what_is_read_from_it(visit):
    page = visit()
    generator = np.random.default_rng(0)
    strokes = [
        {"width": int(generator.integers(1, 300)), "points": generator.integers(0, 1025, 2 * count).tolist()}
        for count in (1, 2, 50, 300)
    ]
    same = page.evaluate(
        """async (strokes) => {
            const { read, write } = await import("/link.js");
            const data = Uint8Array.from({ length: 3000 }, (_, at) => (at * at) % 256);
            const state = {
                id: "abc", source: { kind: "draw", center: true, strokes }, pin: { kind: "pixels", data },
                off: new Set(["1.0", "12.34"]), target: 0, vector: new Map([["0", -1.25], ["x", 1e-7]]),
                open: "2.1", heat: "none", heatBlock: "3",
            };
            const again = await read(await write(state));
            const plain = (s) => JSON.stringify({ ...s, off: [...s.off], vector: [...s.vector] });
            return [plain(again), plain(state)];
        }""",
        strokes,
    )
    assert same[0] == same[1]


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "photo.png"
    Image.fromarray(np.random.default_rng(5).integers(0, 256, (40, 30, 3), dtype=np.uint8)).save(path)
    return path


def drop(page, name, data, paste=False):
    page.evaluate(
        """([name, data, paste]) => {
            const transfer = new DataTransfer();
            transfer.items.add(new File([Uint8Array.from(atob(data), c => c.charCodeAt(0))], name));
            const options = { bubbles: true, cancelable: true };
            const events = paste ? [new ClipboardEvent("paste", { clipboardData: transfer, ...options })] :
                ["dragover", "drop"].map(kind => new DragEvent(kind, { dataTransfer: transfer, ...options }));
            for (const event of events) document.body.dispatchEvent(event);
        }""",
        [name, base64.b64encode(data).decode(), paste],
    )


@pytest.mark.parametrize("way", ["pick", "drop", "paste"])
def test_a_picture_is_picked_dropped_or_pasted(visit, classifier, photo, way):
    page = visit()
    if way == "pick":
        page.set_input_files("#file", photo)
    else:
        drop(page, "photo.png", photo.read_bytes(), paste=way == "paste")
    settled(page)
    one = explain_image(classifier.network, classifier.preprocess([photo])[0], without=False)
    same_as_python(classifier, page, one)
    assert page.is_checked("#tab-file")
    assert page.inner_text("#verdict") == classifier.predict(photo).label


def test_a_bad_picture_gets_a_sentence_and_what_was_seen_stays(visit, photo):
    page = visit()
    page.set_input_files("#file", photo)
    settled(page)
    before = probabilities(page)
    drop(page, "notes.txt", b"not a picture")
    page.wait_for_selector("#toast:not([hidden])")
    assert "not a picture in a known format" in page.inner_text("#toast")
    settled(page)
    assert probabilities(page) == before
    visit.errors[:] = [line for line in visit.errors if "status of 400" not in line]  # the browser's own remark


def test_the_test_set_is_walked_through(visit, asker, classifier):
    page = first_image(visit())
    labels = asker.explorer.test.labels.tolist()
    assert page.input_value("#test-index") == "0"
    click(page, "#next")
    assert page.input_value("#test-index") == "1"
    same_as_python(classifier, page, explained(classifier, page))
    assert np.array_equal(pixels_seen(page)[:, :, 0], asker.explorer.test.images[1, 0])
    assert classifier.classes[labels[1]] in page.inner_text("#truth")
    page.select_option("#test-class", label="two")
    settled(page)
    assert labels[int(page.input_value("#test-index"))] == 2
    assert "10 of 30 images" in page.inner_text("#test-note")
    page.locator("h1").click()
    page.keyboard.press("ArrowRight")
    settled(page)
    assert page.input_value("#test-index") == "5"
    click(page, "#previous")
    assert page.input_value("#test-index") == "2"
    page.fill("#test-index", "99")
    page.keyboard.press("Enter")
    settled(page)
    assert page.input_value("#test-index") == "29"
    click(page, "#random")
    assert labels[int(page.input_value("#test-index"))] == 2


def test_only_mistakes_are_shown_if_asked(visit, asker):
    page = visit()
    page.click("#tab-test")
    until(page, lambda: page.is_enabled("#mistakes"))
    page.check("#mistakes")
    settled(page)
    facts = asker.ask("/api/survey", {})
    labels = asker.explorer.test.labels.tolist()
    wrong = [m for m in range(30) if facts["predicted"][m] != labels[m]]
    assert f"{len(wrong)} of 30 images" in page.inner_text("#test-note")
    for _ in range(3):
        assert int(page.input_value("#test-index")) in wrong
        assert "Wrong" in page.inner_text("#truth")
        click(page, "#next")


def block(page, name):
    return page.locator(f".flow [data-block='{name}']")


def test_blocks_are_switched_by_pointer_keyboard_and_table(visit, classifier):
    page = first_image(visit())
    before = explained(classifier, page)
    block(page, "1.1").dblclick()
    settled(page)
    one = explained(classifier, page, keep=[torch.tensor([True, False, True]), None, None])
    same_as_python(classifier, page, one)
    then = f"{100 * float(before.probabilities.max()):.1f} %"
    assert "With every block on" in page.inner_text("#change")
    assert then in page.inner_text("#change")

    block(page, "2.0").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press(" ")
    settled(page)
    keep = [torch.tensor([True, False, True]), torch.tensor([True, False, True, True]), None]
    same_as_python(classifier, page, explained(classifier, page, keep=keep))

    page.click("#numbers summary")
    page.uncheck("tr[data-block='3.0'] input")
    settled(page)
    keep[2] = torch.tensor([False, True])
    same_as_python(classifier, page, explained(classifier, page, keep=keep))
    page.locator("tr[data-block='3.1'] input").click()
    assert "must stay on" in page.inner_text("#toast")
    settled(page)
    assert page.is_checked("tr[data-block='3.1'] input")

    click(page, "#all-on")
    same_as_python(classifier, page, before)
    assert page.is_hidden("#change")


def test_a_block_opens_into_its_maps_and_favourites(visit, asker):
    page = visit()
    page.click("#tab-test")
    until(page, lambda: page.is_enabled("#mistakes"))
    block(page, "2.3").focus()
    page.keyboard.press("Enter")
    settled(page)
    facts = asker.ask("/api/block", {"test": 0, "block": [1, 3]})
    assert page.inner_text("#block-title") == "Block 3 of level 2"
    weight = asker.ask("/api/explain", {"test": 0})["levels"][1]["weights"][3]
    assert f"{weight:.4f}" in page.inner_text("#block-facts")
    assert page.locator("#maps canvas").count() == facts["map"][0] + 1
    assert page.locator("#maps canvas").nth(1).evaluate("c => [c.height, c.width]") == facts["map"][1:]
    images = facts["favourites"]["images"]
    assert page.locator("#favourites button").count() == len(images)
    assert page.evaluate("[...document.querySelectorAll('#favourites img')].every(i => i.complete && i.naturalWidth)")
    without = facts["without"]
    assert f"{asker.explorer.classifier.classes[without['predicted']]}, " in page.inner_text("#block-facts")
    page.locator("#favourites button").first.click()
    settled(page)
    assert page.input_value("#test-index") == str(images[0]["index"])
    click(page, "#block-switch")
    assert "off" in block(page, "2.3").get_attribute("class").split()
    assert "switched off" in block(page, "2.3").get_attribute("aria-label")
    page.keyboard.press("Escape")
    assert page.is_hidden("#block")


def test_sliders_redraw_the_reconstruction_and_are_reset(visit, asker, classifier):
    page = first_image(visit())
    was = canvas(page, "rebuilt")
    facts = asker.ask("/api/explain", {"test": 0})
    block, row, column = facts["place"]  # counted from 0, as in Python
    assert f"block {block}, row {row}, column {column}" in page.inner_text("#vector-note")
    slider = page.locator("#sliders input").nth(1)
    slider.evaluate("(s) => { s.value = s.max; s.dispatchEvent(new Event('input')); }")
    settled(page)
    value = float(slider.evaluate("s => Number(s.value)"))
    vector = [*facts["vector"][:1], value, *facts["vector"][2:]]
    again = asker.ask("/api/decode", {"vector": vector, "position": facts["position"]})
    expected = array(again["reconstruction"], [16, 16], "u1").numpy()
    assert np.array_equal(picture(page, "rebuilt")[:, :, 0], expected)
    assert canvas(page, "rebuilt") != was
    click(page, "#reset")
    assert canvas(page, "rebuilt") == was
    assert page.is_disabled("#reset")
    slider.focus()
    page.keyboard.press("End")
    settled(page)
    assert canvas(page, "rebuilt") != was


def test_a_class_is_chosen_and_its_heat_map_shown(visit, asker):
    page = first_image(visit())
    weights = canvas(page, "heat")
    facts = asker.ask("/api/explain", {"test": 0})
    other = (facts["predicted"] + 1) % 3
    page.locator("#classes button").nth(other).click()
    page.locator(".segments label", has_text="For ").click()
    settled(page)
    told = asker.ask("/api/explain", {"test": 0, "class": other})
    assert f"{told['logit']:.2f}".replace("-", "−") in page.inner_text("#look-note")
    assert f"For {asker.explorer.classifier.classes[other]}" in page.inner_text("#look")
    whole = canvas(page, "heat")
    assert whole != weights
    page.locator("#heat-blocks label").nth(2).click()
    assert canvas(page, "heat") != whole
    click(page, "#unchoose")
    assert page.is_hidden("#unchoose")


def test_two_images_are_compared(visit, asker):
    page = first_image(visit())
    page.click("#pin")
    click(page, "#next")
    first, second = (asker.ask("/api/explain", {"test": m}) for m in (0, 1))
    names = asker.explorer.classifier.classes
    assert names[first["predicted"]] in page.inner_text("#compare-pin-text")
    assert names[second["predicted"]] in page.inner_text("#compare-now-text")
    assert canvas(page, "compare-now") == canvas(page, "heat") != canvas(page, "compare-pin")
    page.click("#numbers summary")
    pinned = page.locator("tr[data-block='1.0'] td").nth(2).inner_text()
    assert pinned == f"{first['levels'][0]['weights'][0]:.4f}"
    block(page, "1.2").dblclick()  # both are seen with the block off
    settled(page)
    off = asker.ask("/api/explain", {"test": 0, "off": [[0, 2]]})
    assert page.locator("tr[data-block='1.0'] td").nth(2).inner_text() == f"{off['levels'][0]['weights'][0]:.4f}"
    click(page, "#swap")
    assert page.input_value("#test-index") == "0"
    click(page, "#unpin")
    assert page.is_hidden("#compare")


def look_of(page):
    return {
        "numbers": probabilities(page),
        "weights": table(page, 1),
        "seen": canvas(page, "seen"),
        "rebuilt": canvas(page, "rebuilt"),
        "heat": canvas(page, "heat"),
        "open": page.inner_text("#block-title") if page.is_visible("#block") else None,
        "pinned": canvas(page, "compare-pin") if page.is_visible("#compare") else None,
        "verdict": page.inner_text("#prediction .verdict"),
        "tab": page.locator("input[name=tab]:checked").get_attribute("value"),
    }


@pytest.mark.parametrize("kind", ["drawing", "picture", "test image"])
def test_a_link_restores_the_state(visit, photo, kind):
    page = visit()
    stroke(page, (0.2, 0.2), (0.8, 0.25))
    draw(page, (0.5, 0.2), (0.45, 0.6), (0.5, 0.9))
    page.click("#pin")
    if kind == "picture":
        page.set_input_files("#file", photo)
    elif kind == "test image":
        page.click("#tab-test")
        page.click("#next")
    else:
        stroke(page, (0.1, 0.9), (0.9, 0.9))
    settled(page)
    block(page, "2.1").dblclick()
    settled(page)
    page.locator("#classes button").nth(2).click()
    page.locator(".segments label", has_text="For ").click()
    page.locator("#sliders input").nth(2).evaluate("(s) => { s.value = s.min; s.dispatchEvent(new Event('input')); }")
    settled(page)
    page.click("#share")
    page.wait_for_selector("#toast.good")
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    there = visit(hash=link.partition("/#")[2] and "#" + link.partition("#")[2])
    settled(there)
    was, now = look_of(page), look_of(there)
    assert was["open"] == "Block 1 of level 2"
    assert was["pinned"]
    assert now == was
    assert there.locator("#classes button[aria-pressed=true]").get_attribute("data-class") == "2"
    assert there.locator(".sliders .moved").count() == 1
    if kind == "drawing":
        click(there, "#undo")
        assert there.evaluate("document.getElementById('clear').disabled") is False  # the strokes came along


def test_a_link_pasted_into_the_address_is_followed(visit):
    page = visit()
    page.click("#tab-test")
    click(page, "#next")
    was = page.url
    click(page, "#next")
    page.evaluate("(hash) => { location.hash = hash; }", "#" + was.partition("#")[2])
    settled(page)
    assert page.input_value("#test-index") == "1"


@pytest.mark.parametrize(
    ("hash", "words"),
    [
        ("#nonsense", "cannot be read"),
        ("#v=1&see=dAAA", "cannot be read"),
        ("#v=1&see=p!!", "cannot be read"),
        ("#v=1&see=t99", "belongs to another network"),
        ("#v=1&see=t1&off=9.9", "belongs to another network"),
        ("#v=1&see=t1&class=7", "belongs to another network"),
        ("#v=1&see=t1&net=other", "made with another network"),
        ("#v=1&see=t1&vector=0:x", "cannot be read"),
    ],
)
def test_a_link_that_does_not_fit_gets_a_sentence(visit, hash, words):
    page = visit(hash=hash)
    page.wait_for_selector("#toast:not([hidden])")
    assert words in page.inner_text("#toast")
    page.click("#tab-draw")
    page.click("#clear") if page.is_enabled("#clear") else None
    stroke(page, (0.2, 0.2), (0.8, 0.8))  # the page goes on
    settled(page)
    assert page.inner_text("#verdict") != "–"


def test_only_the_newest_stroke_is_asked_about_while_one_is_on_its_way(visit):
    page = visit()
    waiting = []
    page.route("**/api/explain", lambda route: waiting.append(route))
    stroke(page, (0.2, 0.2), (0.8, 0.2), (0.8, 0.8), (0.2, 0.8))
    until(page, lambda: waiting)
    page.wait_for_timeout(200)
    assert len(waiting) == 1
    waiting.pop().continue_()
    until(page, lambda: waiting)
    page.wait_for_timeout(200)
    assert len(waiting) == 1
    page.unroute("**/api/explain")  # which lets it go on
    settled(page)
    assert page.inner_text("#verdict") != "–"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_follow_the_system_and_the_button(visit, scheme):
    page = visit(color_scheme=scheme)
    color = "getComputedStyle(document.documentElement).backgroundColor"
    of_system = page.evaluate(color)
    page.click("#theme")
    light = page.evaluate(color)
    page.click("#theme")
    dark = page.evaluate(color)
    assert light != dark
    assert of_system == {"light": light, "dark": dark}[scheme]
    page.reload()
    page.wait_for_selector("body.ready")
    assert page.evaluate(color) == dark


def test_everything_has_a_name_and_can_be_reached_by_keyboard(visit):
    page = visit()
    draw(page, (0.2, 0.2), (0.8, 0.25))
    nameless = page.evaluate(
        """[...document.querySelectorAll('button, input, select, [role=button], [role=img]')].filter(e =>
            e.offsetParent !== null && !(e.getAttribute('aria-label') || e.textContent.trim() || e.ariaLabel ||
            e.labels?.length && e.labels[0].textContent.trim())).map(e => e.outerHTML)"""
    )
    assert nameless == []
    reached = set()
    for _ in range(70):
        page.keyboard.press("Tab")
        reached.add(
            page.evaluate("(({ id, className, tagName }) => id || className || tagName)(document.activeElement)")
        )
    assert {"tab-draw", "undo", "clear", "pen", "center", "share", "theme", "help", "pin"} <= reached
    assert any("block" in str(name) for name in reached)


def test_a_hundred_classes_are_searched(visit, browser):
    classifier = classifier_of(classes=100, channels=3, height=10, width=14)
    with serving(classifier) as asker:
        page = visit(asker)
        data = io.BytesIO()
        Image.new("RGB", (20, 20), (200, 30, 90)).save(data, "PNG")
        drop(page, "red.png", data.getvalue())
        settled(page)
        one = explain_image(classifier.network, classifier.preprocess([data.getvalue()])[0], without=False)
        top = one.probabilities.sort(descending=True).indices[:8].tolist()
        shown = probabilities(page)
        assert list(shown) == top
        assert shown == {r: float(one.probabilities[r]) for r in top}
        page.fill("#search", "CLASS 77")
        assert probabilities(page) == {77: float(one.probabilities[77])}
        page.locator("#classes button").click()
        settled(page)
        assert "class 77" in page.inner_text("#unchoose")
        page.fill("#search", "nothing like this")
        assert page.inner_text("#classes-note") == "No class matches."
        assert page.is_hidden("#tab-draw")
        page.click("#tab-test")
        assert "not available" in page.inner_text("#panel-test")
        assert re.search("100 classes · 14×10 colour", page.inner_text("#facts"))


def naming(*names):
    """A server of a network with these classes"""
    plain = classifier_of()
    return serving(Classifier(plain.network, names, *plain.normalization).eval(), images_of(plain, 3))


@pytest.mark.parametrize("width", [1400, 390])
def test_a_long_name_of_the_answer_stays_on_its_card(visit, width):
    with naming(*(f"{letter} very long name of a class" for letter in "WMQ")) as asker:
        page = first_image(visit(asker, viewport={"width": width, "height": 844}))
        edge = "selector => document.querySelector(selector).getBoundingClientRect()"
        name, card = page.evaluate(edge, ".answer-name"), page.evaluate(edge, "#routing")
        assert card["left"] <= name["left"]
        assert name["right"] <= card["right"]
        assert len(page.locator(".answer-name").text_content()) > 5


def test_on_a_phone_the_answer_is_repeated_where_its_card_is_not_seen(visit):
    page = visit(viewport={"width": 390, "height": 600})
    draw(page, (0.2, 0.2), (0.8, 0.25))
    page.wait_for_selector("#float", state="visible")
    assert page.inner_text("#verdict") in page.inner_text("#float")
    page.locator("#verdict").scroll_into_view_if_needed()
    page.wait_for_selector("#float", state="hidden")
    page.locator("#vector").scroll_into_view_if_needed()
    page.wait_for_selector("#float", state="visible")


def test_names_of_classes_are_text_and_nothing_else(visit):
    names = ("<img src=x onerror=alert(1)>", "a&b", "'\"")
    with naming(*names) as asker:
        page = first_image(visit(asker))
        assert page.locator("#classes .label").all_inner_texts() == list(names)
        assert page.locator("main img[src=x]").count() == 0
