"""Several runs on one page, and figures for papers."""

import json
import shutil
from dataclasses import replace

import pytest
from page_helpers import Page, facts_of, toy

from wcapsnet.formatting import percentage
from wcapsnet.network import RoutingConfig
from wcapsnet.reports import comparison_page, named
from wcapsnet.reports.compare import groups
from wcapsnet.reports.significance import Sample, compare, interval
from wcapsnet.reports.tables import verdict


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two seeds of one experiment, another experiment on the same images, one on other images, one not finished."""
    place = tmp_path_factory.mktemp("compare")
    made = [
        toy(place / "first"),
        toy(place / "second", seed=1),
        toy(place / "squashed", nonlinearity="squash"),
        toy(place / "elsewhere", ("a", "b")),
        toy(place / "begun", finish=False, epochs=3),
    ]
    return named([facts_of(run, None) for run, _ in made])


def test_runs_that_differ_in_their_seed_are_one_sample(runs):
    found, left_out = groups(runs)
    assert [group.names for group in found] == [("first", "second"), ("squashed",)]
    accuracy = {name: runs[name].subject.results["accuracy"] for name in ("first", "second", "squashed")}
    reference = Sample((accuracy["first"], accuracy["second"]), 60)
    assert found[0].sample == reference
    assert found[0].difference is None
    assert found[1].difference == compare(Sample((accuracy["squashed"],), 60), reference)
    assert left_out == [
        "elsewhere was not tested on the same images as first.",
        "begun is not finished, so it has not been tested.",
    ]


def test_random_weights_lend_their_spread_to_nobody(runs, tmp_path):
    made = toy(tmp_path / "drawn", routing=RoutingConfig(fitness="random", weighting="normalized", noise_share=0.0))
    found, _ = groups({**runs, **named([facts_of(made[0], None)])})
    assert found[2].names == ("drawn",)
    known = len(set(found[0].sample.accuracies)) > 1  # of seeds that do not happen to agree
    assert found[1].difference.test == ("t" if known else "z")
    assert found[2].difference.test == "z", "of one draw the spread is not known"


def test_the_page_says_figures_differences_and_what_differs(runs):
    page = Page(comparison_page(runs))
    found, left_out = groups(runs)
    assert verdict(found[1].difference) in page.text
    for sentence in left_out:
        assert sentence in page.text
    for name, facts in runs.items():
        assert name in page.text
        if facts.subject.results:
            accuracy, images = (facts.subject.results[key] for key in ("accuracy", "images"))
            assert f"{percentage(accuracy)} {interval(accuracy, images)}" in page.text
    assert "model.nonlinearity" in page.text
    assert "model.dense_layers" not in page.text
    assert "The routing of begun has not been measured yet" in page.text


def test_every_run_is_in_every_chart(runs):
    page = Page(comparison_page(runs))
    charts = [a["data-numbers"] for a in page.all("svg", "chart")]
    assert len(charts) == 8
    for chart in charts:
        for name in runs:
            assert f'"name":"{name}' in chart


def test_folders_of_one_name_are_told_apart_by_their_paths(tmp_path):
    run, _ = toy(tmp_path / "a" / "run")
    shutil.copytree(run.path, tmp_path / "b" / "run")
    facts = facts_of(run, None)
    other = replace(facts, subject=replace(facts.subject, source="b/run"))
    assert list(named([facts, other])) == [str(run.path), "b/run"]


def test_runs_of_one_experiment_show_its_noise_only(runs):
    page = Page(comparison_page({name: runs[name] for name in ("first", "second")}))
    assert "All tested runs repeat the same experiment" in page.text


def test_a_single_tested_run_is_held_against_nothing(runs):
    page = Page(comparison_page({name: runs[name] for name in ("first", "begun")}))
    assert "There is no other run to compare first with." in page.text
    assert "All tested runs" not in page.text


def test_a_run_has_one_colour_in_every_figure_though_another_has_no_curves(runs):
    young = replace(runs["first"], subject=replace(runs["first"].subject, metrics=[]))
    page = Page(comparison_page({"young": young, "second": runs["second"]}))
    for chart in page.all("svg", "chart"):
        lines = json.loads(chart["data-numbers"])["lines"]
        assert {(line["name"].split(",")[0], line["style"].split()[1]) for line in lines} == {("second", "c1")}
