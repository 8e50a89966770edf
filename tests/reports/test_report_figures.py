"""Figures: drawn once, legible on their own, the same on a page and in a file."""

import itertools
import re
import sys
import xml.etree.ElementTree as ET

import pytest
import torch
from page_helpers import Page, facts_of, toy
from PIL import Image

from update_docs import Panel, weight_maps
from wcapsnet.errors import InputError
from wcapsnet.explanations.shares import outlined
from wcapsnet.network import RoutingConfig
from wcapsnet.parts import loss_term
from wcapsnet.reports import export, figures, run_page
from wcapsnet.reports.charts import Bar, Line, bar_chart, line_chart
from wcapsnet.reports.colors import hex_of, shades, share_map, share_over
from wcapsnet.reports.svg import Drawing, room, shortened, text, titled

SVG = "{http://www.w3.org/2000/svg}"


def metrics(*accuracies, lr=0.1):
    return [
        {"epoch": e, "lr": lr, "total": 1 / e, "train_accuracy": a, "validation_accuracy": a}
        for e, a in enumerate(accuracies, 1)
    ]


def elements(drawing, tag):
    return list(ET.fromstring(drawing.file()).iter(f"{SVG}{tag}"))


def words(drawing):
    return [one.text for one in elements(drawing, "text")]


def points(drawing):
    return [
        [tuple(map(float, point.split(","))) for point in line.get("points").split()]
        for line in elements(drawing, "polyline")
    ]


@pytest.fixture(scope="module")
def page_text(facts):
    return run_page(facts)


# ── training ──


@pytest.mark.parametrize(
    ("rates", "marked"),
    [
        ([0.1, 0.1, 0.01, 0.01], [3]),
        ([0.05, 0.1, 0.1, 0.05, 0.05], [4]),  # with warm-up
        ([0.1, 0.1, 0.01], [3]),
        ([0.1, 0.0854, 0.05, 0.0146], []),  # cosine
        ([0.1 * 0.4**e for e in range(5)], []),  # exponential
        ([0.1, 0.08, 0.064, 0.05, 0.05], []),  # exponential, with a floor
        ([0.1, 0.05], []),  # a short cosine
    ],
)
def test_only_a_rate_that_falls_in_steps_has_drops(rates, marked):
    run = [{"epoch": e, "lr": lr} for e, lr in enumerate(rates, 1)]
    assert list(figures.drops({"run": run})) == marked


def test_the_accuracy_axis_starts_below_every_point():
    run = metrics(0.08, 0.33, *[0.5] * 30)
    assert figures.lowest_accuracy({"run": run}) == 0
    assert all(len(line) == 32 for line in points(figures.accuracy({"run": run})))


# ── drawings ──


def test_a_file_has_the_drawing_of_the_page_with_its_own_light_colours():
    drawing = titled("a < b", bar_chart("Accuracy", [Bar("c & d", 0.5, "50 %")]), note="A note.")
    file = drawing.file()
    assert str(drawing.body) in re.sub(r"\n", "", file)
    assert "var(" not in file
    assert "#0b5fa5" in file
    assert "http" not in file.replace("http://www.w3.org/2000/svg", "")
    assert {"a < b", "c & d", "50 %", "A note."} <= set(words(drawing))


def test_every_class_of_a_drawing_has_a_style(facts):
    styled = set(re.findall(r"\.([a-z]\w*)", figures.Drawing(1, 1, "", text(0, 0, "", "")).file()))
    plain = {"own", "tick", "title"}  # a fill of their own, or that of all text
    for name, drawing in export.run_figures(facts):
        used = {c for one in ET.fromstring(drawing.file()).iter() for c in (one.get("class") or "").split()}
        assert used - plain <= styled, name


@pytest.mark.parametrize("most", [0, 20, 60, 1000])
def test_a_shortened_name_fits(most):
    for name in ("", "iiiiiiiiiiiiii", "mmmmmmmm", "猫犬鳥猫犬鳥", "a name of several words"):
        assert shortened(name, most) in (name, "…") or room(shortened(name, most)) <= most


@pytest.mark.parametrize("epochs", [1, 2, 40, 300])
@pytest.mark.parametrize("level", [0.0, 0.1, 0.7, 0.9968, 1.0])
def test_curves_stay_inside_their_panel(epochs, level):
    runs = {"seed 0": metrics(*[level] * epochs), "seed 1": metrics(level)}
    lines = points(figures.accuracy(runs, 640, 300))
    assert len(lines) == 4
    assert all(50 <= x <= 628 and 0 <= y <= 340 for line in lines for x, y in line)


def test_a_curve_of_hand_worked_points():
    # two epochs at 90 % and 95 %, the axis from 90 to 100 %: the first at the bottom, the second half way up
    drawing = figures.accuracy({"run": metrics(0.9, 0.95)}, 640, 300)
    ((left, low), (right, middle)), _ = points(drawing)
    assert (left, right) == (50, 640 - 12)
    assert low == drawing.numbers["bottom"]
    assert middle == pytest.approx((drawing.numbers["bottom"] + drawing.numbers["top"]) / 2, abs=0.1)


@pytest.mark.parametrize("epochs", range(1, 9))
@pytest.mark.parametrize("width", [320, 350, 1000])
def test_epochs_below_a_curve_are_whole_numbers_that_do_not_overlap(epochs, width):
    line = Line("loss", list(range(1, epochs + 1)), [1.0 / e for e in range(1, epochs + 1)], ["x"] * epochs)
    drawing = line_chart("Loss", [line], width=width)
    bottom = f"{drawing.numbers['bottom'] + 16:g}"
    below = [one for one in elements(drawing, "text") if one.get("y") == bottom]
    assert all(one.text.isdecimal() for one in below)
    places = [float(one.get("x")) for one in below]
    assert all(right - left > 26 for left, right in itertools.pairwise(places))
    assert len(elements(drawing, "circle")) == epochs, "few points are marked: a single epoch makes no line"
    assert "epoch" in words(drawing)


def test_logarithmic_axes_put_equal_factors_at_equal_distances():
    line = Line("speed", [16, 64, 256], [100, 1000, 10000], ["", "", ""])
    drawing = line_chart("Speed", [line], logarithmic=True)
    (((a, x), (b, y), (c, z)),) = points(drawing)
    assert b - a == pytest.approx(c - b, abs=0.15)
    assert x - y == pytest.approx(y - z, abs=0.15)
    assert {"100", "1,000", "10,000", "16", "64", "256"} <= set(words(drawing))


def test_every_built_in_loss_term_is_described_without_formulas():
    assert {name for name, term in loss_term.items() if term.__module__.startswith("wcapsnet.")} <= set(figures.TERMS)


def test_a_loss_term_of_ones_own_has_a_chart():
    runs = {"run": [{"epoch": 1, "lr": 0.1, "total": 1.0, "load_balance": 0.25, "seconds": 3.0}]}
    assert [title for title, *_ in figures.losses(runs)] == ["Total loss", "Learning rate", "Load balance"]


@pytest.mark.parametrize("interval", [(0.25, 0.75), (0.25, 1.0)])
def test_the_line_of_a_bar_is_its_interval(interval):
    drawn = str(bar_chart("Accuracy", [Bar("a", 0.5, "50 %", interval)]).body)
    left, right = re.search(r'd="M([\d.]+) [\d.]+H([\d.]+)v[\d.]+H[\d.]+z" class="track"', drawn).groups()
    line = re.search(r'd="M([\d.]+) [\d.]+H([\d.]+)M[^"]*" class="whisker"', drawn).groups()
    shares = [(float(x) - float(left)) / (float(right) - float(left)) for x in line]
    assert shares == pytest.approx(interval, abs=1e-3)


# ── files ──


def test_run_figures_are_complete_and_well_formed(facts):
    drawn = dict(export.run_figures(facts))
    assert set(drawn) == {
        *("accuracy", "losses", "confusion", "classes", "calibration", "routing-level-1", "routing-level-2"),
        *("probes", "mistakes", "examples", "reconstructions"),
    }
    assert {"epoch", "validation", "training", "accuracy"} <= set(words(drawn["accuracy"]))
    assert {"true class", "predicted class", "a & b"} <= set(words(drawn["confusion"]))
    vectors = facts.pictures.examples[0].explained.weights[-1].numel()
    assert f"equal share {1 / vectors:.3g}" in words(drawn["examples"])
    assert len(elements(drawn["mistakes"], "image")) == len(facts.pictures.mistakes)
    assert not any("<script" in drawing.file() for drawing in drawn.values())
    for name in ("confusion", "classes", "routing-level-1", "mistakes", "reconstructions"):
        assert any(word.startswith("<script>") for word in words(drawn[name]) if word), name


def test_nothing_is_cut_off(facts):
    for name, drawing in export.run_figures(facts):
        root = ET.fromstring(drawing.file())
        height = float(root.get("height"))
        places = [float(one.get("y")) for one in root.iter(f"{SVG}text") if not one.get("transform")]
        assert places, name
        assert all(-1 <= y <= height for y in places), name


@pytest.mark.slow
def test_figures_are_written_in_three_formats(facts, tmp_path):
    pytest.importorskip("typst")
    written = export.write_figures(export.run_figures(facts), tmp_path / "figures")
    assert len(written) == 3 * len({path.stem for path in written})
    for path in written:
        starts = {".pdf": b"%PDF", ".png": b"\x89PNG", ".svg": b"<svg"}
        assert path.read_bytes().startswith(starts[path.suffix]), path
    with Image.open(tmp_path / "figures" / "confusion.png") as image:
        assert image.width > 300


def test_without_typst_a_pdf_is_refused_in_a_sentence(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "typst", None)
    drawing = Drawing(9, 9, "", text(0, 0, "", ""))
    with pytest.raises(InputError, match=r"wcapsnet\[plots\]"):
        export.write_figure(drawing, tmp_path / "a.pdf")


def test_figures_of_several_runs_name_them_all():
    drawn = dict(export.curve_figures({"one": metrics(0.5, 0.6), "<two>": metrics(0.4, 0.7)}))
    assert {"one, validation", "<two>, training"} <= set(words(drawn["accuracy"]))
    assert {"one", "<two>", "Total loss", "Learning rate"} <= set(words(drawn["losses"]))


# ── weight maps ──


def lightness(rgb):
    """Relative luminance of colours (…, 3) in [0, 1]"""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ torch.tensor([0.2126, 0.7152, 0.0722])


def of_hex(color):
    return torch.tensor([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])


def colors_of(markup):
    """The colours of the cells of a weight map by column, from left to right; all rows are the same"""
    found = {}
    for d, fill in re.findall(r'd="([^"]*)" class="own" fill="(#\w+)"', markup):
        if "h" in d:  # not part of the colour scale
            found |= {float(x): fill for x in re.findall(r"M([\d.]+) ", d)}
    return [color for _, color in sorted(found.items())]


def test_lightness_falls_from_end_to_end():
    found = lightness(shades(torch.linspace(-1, 1, 401)))
    assert bool((found.diff() < 0).all())
    assert float(found[0]) > 0.7
    assert float(found[-1]) < 0.1


@pytest.mark.parametrize("n", [2, 8, 98])
def test_equal_weights_have_one_colour(n):
    weights = torch.full((4, 5), 1 / n) * (1 + 1e-4 * torch.rand(4, 5))
    drawn = share_map(weights, n)
    assert drawn.flatten(1).unique(dim=1).shape[1] == 1
    over = share_over(torch.rand(3, 1, 1).expand(3, 4, 5), weights, n)
    torch.testing.assert_close(over, drawn)  # over a plain picture the colours are those of the legend


def test_over_a_picture_a_heavier_place_is_never_lighter():
    weights = torch.linspace(0, 0.1, 60).view(6, 10)
    for image in (torch.zeros(1, 6, 10), torch.full((3, 6, 10), 0.8)):
        found = lightness(share_over(image, weights, 60).permute(1, 2, 0)).flatten()
        assert bool((found.diff() <= 1e-7).all())


def test_panels_of_weight_maps_share_one_scale_and_leave_out_classes_without_images():
    panels = {
        "a < b": Panel(("x", "y"), ((0.5, 0.3, 0.2), (None, None, None))),
        "c": Panel(("x", "y"), ((0.3, 0.5, 0.2), (None, None, None))),
    }
    drawing = weight_maps("t & u", panels)
    parts = str(drawing.body).split("heading")[2:]
    first, second = (colors_of(part.partition("equal share")[0]) for part in parts)
    assert second[:3] == [first[1], first[0], first[2]]
    heavy, middle, light = (float(lightness(of_hex(color))) for color in first)
    assert heavy < middle < light
    assert words(drawing).count("equal share 0.333") == 1
    assert {"t & u", "a < b", "c", "x", "y"} <= set(words(drawing))


def maps_of(page_text):
    return [markup for markup in re.findall(r"<svg.*?</svg>", page_text, re.S) if "mean weight" in markup]


def test_the_page_of_equal_weights_has_one_colour_in_every_map(tmp_path):
    equal = facts_of(*toy(tmp_path / "run", routing=RoutingConfig(fitness="constant")))
    text = run_page(equal)
    assert [set(colors_of(one)) for one in maps_of(text)] == [{hex_of(0.0)}] * 2
    page = Page(text)
    assert not page.all("path", "tied")
    assert len(page.all("circle", "decoded")) == len(equal.pictures.examples)


def test_every_map_of_the_page_has_a_legend_with_its_equal_share(facts, page_text):
    labels = [one["aria-label"] for one in Page(page_text).all("svg", "scale")]
    examples, vectors = len(facts.pictures.examples), facts.pictures.examples[0].explained.weights[-1].numel()
    shares = [*(b.shape[1] for b in facts.seen.survey.weights), vectors, *[vectors] * examples]
    found = [re.search(r"equal share ([\d.]+)", label) for label in labels]
    assert [one[1] for one in found if one] == [f"{1 / n:.3g}" for n in shares]
    assert found.count(None) == examples  # contributions, around 0


def test_outlines_of_the_page_are_the_tied_vectors(facts, page_text):
    page = Page(page_text)
    expected = sum(len(outlined(one.explained.tied)) for one in facts.pictures.examples)
    assert sum(one["d"].count("M") for one in page.all("path", "tied")) == expected
    assert len(page.all("circle", "decoded")) == len(facts.pictures.examples)
