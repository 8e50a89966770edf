"""Weight maps in pictures, SVG and matplotlib: what is equal looks equal, what is heavier is never lighter."""

import re
import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
import torch
from page_helpers import Page, facts_of, toy

from wcapsnet.explanations.shares import outlined
from wcapsnet.network import RoutingConfig
from wcapsnet.reports import figures, run_page, weight_map
from wcapsnet.reports.colors import share_map, share_over
from wcapsnet.reports.shades import hex_of, shades
from wcapsnet.reports.weight_map import Panel

SVG = "{http://www.w3.org/2000/svg}"


def lightness(rgb):
    """Relative luminance of colours (…, 3) in [0, 1]"""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    return linear @ torch.tensor([0.2126, 0.7152, 0.0722])


def of_hex(color):
    return torch.tensor([int(color[k : k + 2], 16) / 255 for k in (1, 3, 5)])


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
    assert over.flatten(1).unique(dim=1).shape[1] == 1
    torch.testing.assert_close(over, drawn)  # over a plain picture the colours are those of the legend


def test_over_a_picture_a_heavier_place_is_never_lighter():
    weights = torch.linspace(0, 0.1, 60).view(6, 10)
    for image in (torch.zeros(1, 6, 10), torch.full((3, 6, 10), 0.8)):
        found = lightness(share_over(image, weights, 60).permute(1, 2, 0)).flatten()
        assert bool((found.diff() <= 1e-7).all())


def cells(panels):
    root = ET.fromstring(weight_map.svg("t", panels))
    return root, [one.get("fill") for one in root.iter(f"{SVG}rect") if one.get("class") == "cell"]


def test_a_weight_map_of_equal_weights_has_one_colour_and_one_legend():
    root, fills = cells({name: Panel(("a", "b"), ((0.125,) * 8, (0.1250001,) * 8)) for name in ("one", "two")})
    assert set(fills) == {hex_of(0.0)}
    assert len(fills) == 32
    assert [one.get("class") for one in root.iter(f"{SVG}rect")].count("scale") == 1
    assert "equal share 0.125" in [one.text for one in root.iter(f"{SVG}text")]


def test_panels_of_a_weight_map_have_one_scale():
    _, fills = cells({"a": Panel(("x",), ((0.5, 0.3, 0.2),)), "b": Panel(("x",), ((0.3, 0.5, 0.2),))})
    assert fills == [fills[0], fills[1], fills[2], fills[1], fills[0], fills[2]]
    heavy, middle, light = (float(lightness(of_hex(fill))) for fill in fills[:3])
    assert heavy < middle < light


# ── the page ──


@pytest.fixture(scope="module")
def equal(tmp_path_factory):
    """A run whose weights are all equal"""
    return facts_of(*toy(tmp_path_factory.mktemp("equal") / "run", routing=RoutingConfig(fitness="constant")))


def colors_of_grids(page):
    """Of the columns of each map of mean weights, in which all rows are the same: {x: colour}"""
    drawn, found = False, []
    for tag, attributes in page.met:
        if tag == "svg":
            drawn = "mean weight" in (attributes.get("data-numbers") or "")
            found += [{}] if drawn else []
        elif tag == "path" and drawn and attributes.get("fill"):
            found[-1] |= {float(x): attributes["fill"] for x in re.findall(r"M([\d.]+) ", attributes["d"])}
    return found


def test_the_page_of_equal_weights_has_one_colour_in_every_map(equal):
    page = Page(run_page(equal))
    assert [set(colors.values()) for colors in colors_of_grids(page)] == [{hex_of(0.0)}] * 2
    assert not page.all("rect", "tied")
    assert len(page.all("circle", "decoded")) == len(equal.pictures.examples)
    assert page.text.count("vectors have the same weight") == len(equal.pictures.examples)


def test_heavier_cells_of_the_page_are_never_lighter(facts):
    survey = facts.seen.survey
    first = torch.tensor([0.5, 0.3, 0.2]).repeat(len(survey), 1)
    changed = replace(survey, weights=(first, *survey.weights[1:]))
    page = Page(run_page(replace(facts, seen=replace(facts.seen, survey=changed))))
    found = [float(lightness(of_hex(color))) for _, color in sorted(colors_of_grids(page)[0].items())]
    assert len(found) == 3
    assert found == sorted(found)
    assert len(set(found)) == 3


def test_every_map_of_the_page_has_a_legend_with_its_equal_share(facts):
    text = run_page(facts)
    page, levels = Page(text), facts.seen.survey.weights
    labels = [one["aria-label"] for one in page.all("div", "scale")]
    vectors = facts.pictures.examples[0].explained.weights[-1].numel()
    shares = [*(b.shape[1] for b in levels), vectors, *[vectors] * len(facts.pictures.examples)]
    assert [re.search(r"equal share ([\d.]+)", label)[1] for label in labels if "equal" in label] == [
        f"{1 / n:.3g}" for n in shares
    ]
    assert sum("equal" not in label for label in labels) == len(facts.pictures.examples)  # contributions, around 0


def test_outlines_of_the_page_are_the_tied_vectors(facts):
    page = Page(run_page(facts))
    expected = sum(len(outlined(one.explained.tied)) for one in facts.pictures.examples)
    assert len(page.all("rect", "tied")) == expected
    assert len(page.all("circle", "decoded")) == len(facts.pictures.examples)


def test_figures_of_examples_have_a_colour_bar(facts):
    pytest.importorskip("matplotlib")
    drawn = dict(figures.run_figures(facts))
    labels = [label.get_text() for axes in drawn["examples"].axes for label in axes.get_yticklabels()]
    vectors = facts.pictures.examples[0].explained.weights[-1].numel()
    assert f"equal share {1 / vectors:.3g}" in labels
