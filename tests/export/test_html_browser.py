"""A static page in a real browser, opened from disk without a network: its answers are those of Python."""

import base64
import io
import os
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from explore_helpers import classifier_of, images_of, normalized
from PIL import Image

import wcapsnet
from browsing import draw, opening, picture, probabilities, settled
from wcapsnet.data import read_image
from wcapsnet.data.formats import read_sample
from wcapsnet.explanations import explain_image
from wcapsnet.explore import Explorer
from wcapsnet.exports.html import LOCAL, SERVED, html_page
from wcapsnet.exports.html.bundle import bundle
from wcapsnet.exports.html.onnxruntime_web import VERSION, onnxruntime_web
from wcapsnet.network import Level

pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.browser, pytest.mark.slow]

LEVELS = (Level(3, 2, 4, 2), Level(4, 2, 4, 2), Level(2, 2, 3, 1))
LIMIT = 25e6  # bytes of a page
CLOSE = 1e-4
ARRAYS = {"weights": "<f4", "contributions": "<f4", "maps": "<f4", "length": "<f4", "reconstruction": "u1"}
# Counts the network's runs in progress, and when the last began or ended.
WATCH = """
window.asked = { open: 0, last: 0 };
window.Worker = class extends Worker {
  constructor(...given) {
    super(...given);
    this.addEventListener("message", () => { window.asked.open -= 1; window.asked.last = performance.now(); });
  }
  postMessage(...given) {
    window.asked.open += 1;
    super.postMessage(...given);
  }
};
"""
# A further copy of the module that answers the page's requests, over the same files in the page
DOOR = "window.local = module_api_js;"


@pytest.fixture(scope="module")
def runtime_file(tmp_path_factory):
    """onnxruntime-web from $WCAPSNET_ORT_WEB or from npm"""
    if given := os.environ.get("WCAPSNET_ORT_WEB"):
        return Path(given)
    if not shutil.which("npm"):
        pytest.skip("onnxruntime-web is not here: set WCAPSNET_ORT_WEB, or install npm")
    folder = tmp_path_factory.mktemp("npm")
    done = subprocess.run(["npm", "pack", f"onnxruntime-web@{VERSION}"], cwd=folder, capture_output=True, timeout=300)
    found = list(folder.glob("*.tgz"))
    if done.returncode or not found:
        pytest.skip("npm cannot fetch onnxruntime-web here")
    return found[0]


@pytest.fixture(scope="module")
def open_page(browser):
    """Opens a file, offline; nothing may be requested from outside."""
    with opening(browser, WATCH, offline=True) as visit:

        def open_page(path, **options):
            page = visit(path.as_uri(), **options)
            page.wait_for_selector("body.ready", timeout=60_000)
            return page

        yield open_page
    assert all(url.startswith(("file:", "blob:", "data:")) for url in visit.asked)


def written(classifier, runtime_file, folder, test=None):
    path = folder / "page.html"
    path.write_text(html_page(classifier, "toy", onnxruntime_web(runtime_file), test, source="mnist").text, "utf-8")
    return path


@pytest.fixture(scope="module", params=["gray", "colour"])
def opened(request, runtime_file, open_page, tmp_path_factory):
    """A page of a small network, the network, and the explorer that serves the same images"""
    size = (
        {"height": 16, "width": 16, "levels": LEVELS}
        if request.param == "gray"
        else {"channels": 3, "height": 14, "width": 20, "levels": LEVELS, "classes": 15}
    )
    classifier = classifier_of(**size)
    test = images_of(classifier, 30)
    path = written(classifier, runtime_file, tmp_path_factory.mktemp("page"), test)
    explorer = Explorer(classifier, "toy", test, source="mnist")
    explorer.survey()
    assert explorer.favourites.wait(60)
    page = open_page(path)
    modules = {file.name: file.read_text(encoding="utf-8") for file in (*SERVED.glob("*.js"), *LOCAL.glob("*.js"))}
    modules["api.js"] = modules["local.js"]
    page.add_script_tag(content=f"(() => {{ {bundle(modules, 'api.js')}\n{DOOR} }})();")
    page.evaluate("local.about().then((about) => { window.about = about; })")
    yield page, classifier, explorer
    explorer.close()


def ask(page, path, body):
    return page.evaluate("([path, body]) => local.ask(path, body)", [f"/api/{path}", body])


def assert_alike(found, expected, where="answer"):
    name = where.rpartition(".")[2]
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            assert_alike(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, list):
        assert len(found) == len(expected), where
        for at, (a, b) in enumerate(zip(found, expected, strict=True)):
            assert_alike(a, b, f"{where}[{at}]")
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, abs=CLOSE, rel=CLOSE), where
    elif isinstance(expected, str) and name in ARRAYS:
        a, b = (np.frombuffer(base64.b64decode(text), ARRAYS[name]).astype(float) for text in (found, expected))
        np.testing.assert_allclose(a, b, rtol=CLOSE, atol=1 if name == "reconstruction" else CLOSE, err_msg=where)
    else:
        assert found == expected, where


def pictures(explorer):
    """Test images, and pixels of any kind"""
    yield from ({"test": index} for index in (0, 7, 29))
    shape = tuple(explorer.test.images.shape[1:])
    for seed in range(3):
        pixels = np.random.default_rng(seed).integers(0, 256, shape, np.uint8) * (seed > 0)
        yield {"pixels": base64.b64encode(np.ascontiguousarray(pixels, np.uint8).tobytes()).decode()}


@pytest.mark.parametrize("off", [[], [[0, 1]], [[0, 0], [0, 2], [1, 3], [2, 1]]])
def test_the_page_answers_as_the_server_does(opened, off):
    page, _, explorer = opened
    for given in pictures(explorer):
        for target in (None, 2):
            asked = {**given, "off": off, "class": target}
            assert_alike(ask(page, "explain", asked), explorer.explain(asked))


@pytest.mark.parametrize("block", [[0, 2], [1, 0], [2, 1]])
def test_a_block_has_the_same_maps_effect_and_favourites(opened, block):
    page, _, explorer = opened
    for given in pictures(explorer):
        for off in ([], [[2, 0], [0, 0]]):
            asked = {**given, "off": off, "class": None, "block": block}
            assert_alike(ask(page, "block", asked), explorer.block(asked))


def test_moved_vectors_nearest_images_and_the_survey_are_the_same(opened):
    page, _, explorer = opened
    for seed in range(4):
        numbers = np.random.default_rng(seed).normal(size=5).tolist()
        moved = {"vector": numbers[:3], "position": numbers[3:]}
        assert_alike(ask(page, "decode", moved), explorer.decode(moved))
        for test in (None, 3):
            near = {"vector": numbers[:3], "test": test}
            assert_alike(ask(page, "near", near), explorer.near(near))
    assert_alike(ask(page, "survey", {}), explorer.survey())
    about = page.evaluate("about")
    assert about.pop("max_pixels") > 10**6
    assert about == explorer.about()


def scene(height, width, seed=0):
    """A smooth picture in colour with an edge"""
    rows, columns = np.mgrid[0:height, 0:width].astype(float)
    waves = np.random.default_rng(seed).uniform(0.02, 0.3, (3, 2))
    image = np.stack([127 + 100 * np.sin(a * rows + b * columns) for a, b in waves], axis=2)
    image[height // 3 : height // 2, width // 4 :] = (250, 10, 90)
    return Image.fromarray(image.clip(0, 255).astype(np.uint8))


def _see_through(picture):
    picture.putalpha(Image.linear_gradient("L").resize(picture.size))
    return picture


def _turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return exif


PICTURES = {
    "wide": (lambda: scene(200, 333), "PNG", {}),
    "tall": (lambda: scene(301, 97), "PNG", {}),
    "tiny": (lambda: scene(5, 9), "PNG", {}),
    "gray": (lambda: scene(64, 48).convert("L"), "PNG", {}),
    "palette": (lambda: scene(64, 48).quantize(31), "PNG", {}),
    "transparent": (lambda: _see_through(scene(40, 60)), "PNG", {}),
    "bitmap": (lambda: scene(33, 57), "BMP", {}),
    "turned": (lambda: scene(120, 80), "JPEG", {"quality": 95, "exif": _turned()}),
    "photo": (lambda: scene(480, 640), "JPEG", {"quality": 90}),
}


@pytest.mark.parametrize("kind", PICTURES)
def test_a_file_becomes_the_pixels_that_predict_would_use(opened, kind):
    page, classifier, _ = opened
    make, form, options = PICTURES[kind]
    file = io.BytesIO()
    make().save(file, form, **options)
    config = classifier.config
    shape = {"channels": config.channels, "height": config.height, "width": config.width}
    expected = read_image(file.getvalue(), **shape).astype(int)
    take = "async (data) => (await local.ask('/api/picture', new Blob([Uint8Array.from(data)]))).pixels"
    text = page.evaluate(take, list(file.getvalue()))
    found = np.frombuffer(base64.b64decode(text), np.uint8).reshape(expected.shape).astype(int)
    # Pillow 13 filters the columns of some tall pictures first; browsers round transparency and JPEG in their own way.
    assert np.abs(found - expected).max() <= (1 if form != "JPEG" and kind != "transparent" else 3)


def test_a_file_that_is_no_picture_is_refused_in_a_sentence(opened):
    page, _, _ = opened
    said = page.evaluate("local.ask('/api/picture', new Blob(['no picture'])).catch((error) => error.message)")
    assert said.endswith(".")


def seen(page, channels):
    return torch.from_numpy(picture(page, "seen")[:, :, :channels].copy()).permute(2, 0, 1)


def assert_as_python(page, classifier, **options):
    """The shown class and probabilities are those for the pixels that the page shows."""
    pixels = seen(page, classifier.config.channels)
    one = explain_image(classifier.network, normalized(classifier, pixels), without=False, **options)
    shown = probabilities(page)
    assert len(shown) == min(len(classifier.classes), 10)
    assert shown == pytest.approx({r: float(one.probabilities[r]) for r in shown}, abs=CLOSE)
    assert page.inner_text("#verdict") == classifier.classes[one.predicted]


@pytest.fixture(scope="module")
def mnist(runtime_file, tmp_path_factory):
    """The shipped network for MNIST as a page, made by the command's function"""
    path = tmp_path_factory.mktemp("mnist") / "digits.html"
    done = wcapsnet.export("wcapsnet-mnist", "html", path, runtime=runtime_file)
    assert done.path == path
    assert done.comparison.same == done.comparison.images
    return path


def test_the_shipped_network_runs_from_disk_and_answers_like_python(mnist, open_page):
    classifier = wcapsnet.load("wcapsnet-mnist").eval()
    assert mnist.stat().st_size <= LIMIT
    page = open_page(mnist)
    draw(page, (0.3, 0.25), (0.7, 0.25), (0.45, 0.8))
    assert_as_python(page, classifier)
    page.dblclick(".flow .block[data-block='1.3']")
    settled(page)
    keep = [torch.arange(16) != 3, None, None, None]
    assert_as_python(page, classifier, keep=keep)
    page.click("#all-on")
    page.click("#tab-file")
    for digit in read_sample().test.images[:8]:
        file = io.BytesIO()
        Image.fromarray(np.asarray(digit)[0]).save(file, "PNG")
        page.set_input_files("#file", {"name": "digit.png", "mimeType": "image/png", "buffer": file.getvalue()})
        settled(page)
        assert (seen(page, 1).numpy() == np.asarray(digit)).all()
        assert_as_python(page, classifier)


def test_a_link_restores_the_drawing(mnist, open_page):
    page = open_page(mnist)
    draw(page, (0.5, 0.2), (0.5, 0.8))
    told = page.inner_text("#verdict-probability"), page.inner_text("#verdict")
    address = page.evaluate("location.href")
    assert "#" in address
    page.goto("about:blank")
    page.goto(address)
    page.wait_for_selector("body.ready", timeout=60_000)
    settled(page)
    assert (page.inner_text("#verdict-probability"), page.inner_text("#verdict")) == told


def test_a_network_without_test_images_has_a_page_too(runtime_file, open_page, tmp_path):
    classifier = classifier_of(height=9, width=11, levels=LEVELS)
    page = open_page(written(classifier, runtime_file, tmp_path))
    page.click("#tab-test")
    assert page.is_visible("#no-test")
    page.click("#tab-draw")
    draw(page, (0.2, 0.2), (0.8, 0.8))
    assert_as_python(page, classifier)
