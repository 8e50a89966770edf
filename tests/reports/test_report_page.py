"""The page of one run: what it says, that it stands alone, and what it says where something is missing."""

import json
import re
from dataclasses import replace

import pytest
import torch
from page_helpers import NASTY, Page, facts_of, toy, with_results, with_survey

from wcapsnet.classifier import Classifier
from wcapsnet.data import Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.explanations import explain_images, specialization, survey
from wcapsnet.formatting import percentage
from wcapsnet.network import Level, RoutingConfig
from wcapsnet.recipes import recipe
from wcapsnet.reports import gather, run_page, subject_of_run, survey_cache
from wcapsnet.reports.records import paper_figure
from wcapsnet.reports.survey_cache import SURVEY, saved_survey
from wcapsnet.training.run_folder import Run

SECTIONS = ["overview", "training", "answers", "routing", "probes", "examples", "reconstructions", "configuration"]
LARGEST = 3_000_000


def numbers(page: Page, kind: str) -> list[dict]:
    """What the script reads, of every drawing of a kind"""
    found = [json.loads(a["data-numbers"]) for a in page.all("svg") if "data-numbers" in a]
    return [one for one in found if one["kind"] == kind]


def check(text: str) -> Page:
    """One well-formed file that asks for nothing else"""
    page = Page(text)
    assert len(text.encode()) < LARGEST
    outside = [a[name] for _, a in page.met for name in ("src", "href") if name in a]
    assert all(place.startswith(("data:", "#")) for place in outside), outside
    assert not re.search(r"url\(|@import|https?://(?!www\.w3\.org/2000/svg)", text)
    assert [a["id"] for a in page.all("section")] == SECTIONS
    ids = [a["id"] for _, a in page.met if "id" in a]
    assert len(ids) == len(set(ids))
    assert {a["href"] for a in page.all("a")} <= {f"#{name}" for name in ids}
    assert all(a.get("alt") for a in page.all("img"))
    assert all(a.get("aria-label") or a.get("aria-hidden") for a in page.all("svg"))
    assert "nan" not in re.findall(r"\w+", page.text)
    return page


@pytest.fixture(scope="module")
def page(facts):
    return check(run_page(facts))


# ── what it says ──


def test_the_headline_is_the_figure_of_test_json(page, finished_run):
    results = finished_run[0].results()
    assert percentage(results["accuracy"]) in page.text
    assert f"{60 - results['errors']} images of 60 correct" in page.text
    assert f"{results['cross_entropy']:.4f}" in page.text
    assert "equal probabilities for all 3 classes would give 1.10" in page.text  # ln 3, without "none of these"


def test_accuracies_have_wilsons_intervals(facts):
    # (11 + 1.96²/2) / (12 + 1.96²) ± √(1.96² (11/12 + 1.96²/4)) / (12 + 1.96²) = .8156 ± .1695
    confusion = [[4, 0, 0], [1, 3, 0], [0, 0, 4]]
    page = Page(run_page(with_results(facts, accuracy=11 / 12, images=12, errors=1, confusion=confusion)))
    told = page.text.replace("\u202f", " ")
    assert "11 images of 12 correct; 95 % interval 64.61 % to 98.51 %" in told
    assert "4 100.00 % 51.01 % to 100.00 %" in told
    assert "4 75.00 % 30.06 % to 95.44 %" in told


def test_imbalanced_classes_have_balanced_accuracy_and_majority_beside_the_accuracy(page, facts):
    assert "majority class" not in page.text
    per_class = {name: {"images": images} for name, images in zip("abc", (10, 1, 1), strict=True)}
    results = {"accuracy": 11 / 12, "images": 12, "errors": 1, "per_class": per_class}
    results |= {"balanced_accuracy": 2 / 3, "majority": 10 / 12, "confusion": [[10, 0, 0], [1, 0, 0], [0, 0, 1]]}
    text = Page(run_page(with_results(facts, **results))).text
    assert percentage(2 / 3) in text
    assert percentage(10 / 12) in text


def test_names_of_classes_and_runs_are_text_and_never_markup(page, facts):
    text = run_page(facts)
    assert len(page.all("script")) == 1
    assert "<script>alert" not in text
    assert NASTY[0] in page.text
    assert "a <run>" in page.text
    assert any(NASTY[2] in a["alt"] for a in page.all("img"))


def test_the_curves_carry_every_value_of_every_term(page, finished_run):
    metrics = finished_run[0].metrics()
    charts = numbers(page, "lines")
    accuracy = next(line for line in charts[0]["lines"] if line["name"] == "validation")
    assert accuracy["at"] == {str(m["epoch"]): percentage(m["validation_accuracy"]) for m in metrics}
    titles = [a["aria-label"] for a in page.all("svg") if a.get("class") == "chart"]
    for term in ("Total loss", "Cross entropy", "Wasserstein loss", "Reconstruction loss", "L2", "Learning rate"):
        assert f"{term} by epoch" in titles
    assert charts[2]["lines"][0]["at"] == {str(m["epoch"]): f"{m['total']:.4g}".replace("-", "−") for m in metrics}


def test_the_confusion_matrix_carries_the_counts_of_test_json(page, finished_run):
    matrix = finished_run[0].results()["confusion"]
    (drawn,) = [one for one in numbers(page, "grid") if "taken for" in one["say"]]
    for i, row in enumerate(matrix):
        for j, count in enumerate(row):
            said = drawn["said"].get(f"{i},{j}", "0")
            assert int(said.split()[0]) == count
    assert drawn["rows"] == list(NASTY)


def test_the_routing_carries_means_and_intervals_of_explain(page, facts):
    found = specialization(facts.seen.survey)
    drawn = [one for one in numbers(page, "grid") if "mean weight" in one["say"]]
    assert len(drawn) == len(found.levels) == 2
    for grid, level in zip(drawn, found.levels, strict=True):
        for r in range(3):
            for n in range(level.capsules):
                assert grid["said"][f"{r},{n}"] == f"{level.mean[r, n]:.3f} ± {level.margin[r, n]:.3f}"
        assert str(level.information_chosen) in page.text
        assert f"{level.effective:.2f} of {level.capsules}" in page.text
        assert f"1 is {level.unit:.3f} nats" in page.text
        assert all(percentage(share, 1) in page.text for share in level.chosen_overall.tolist())
    assert f"maximum {int(facts.seen.survey.tied.max()):,})" in page.text
    assert found.trend in page.text
    assert len(facts.seen.probes) == 2
    for probe in facts.seen.probes:
        assert percentage(probe.accuracy) in page.text


@pytest.mark.parametrize("off", [1, 10])
def test_the_noise_of_a_change_from_level_to_level_is_on_the_page(facts, off):
    """Both levels choose a capsule a class, the second less surely where more than one image is put off."""
    labels = facts.seen.survey.labels % 2
    put_off = labels.clone()
    put_off[:off] = 1 - labels[:off]
    weights = tuple(torch.nn.functional.one_hot(chosen, 2).float() * 0.8 + 0.1 for chosen in (labels, put_off))
    changed = with_survey(facts, labels=labels, weights=weights, routed=())
    (step,) = specialization(changed.seen.survey).steps
    assert step.told == (off > 1)
    page = Page(run_page(changed))
    does = "falls with every level" if off > 1 else "does not change from level to level by more than the noise"
    assert page.text.count(does) == 1
    assert f"confidence interval: −{-step.change:.3f} ± {step.margin:.3f}." in page.text


@pytest.mark.parametrize(
    ("confusion", "said"),
    [
        ([[4, 0, 0], [2, 2, 0], [0, 1, 3]], True),
        ([[4, 0, 0], [1, 3, 0], [0, 1, 3]], False),
        ([[4, 0, 0], [1, 3, 0], [0, 0, 4]], True),
        ([[4, 0, 0], [0, 4, 0], [0, 0, 4]], False),
    ],
)
def test_a_mistake_is_told_as_the_most_frequent_only_if_no_other_is_as_frequent(facts, confusion, said):
    page = Page(run_page(with_results(facts, accuracy=0.5, images=12, errors=6, confusion=confusion)))
    assert (f"Most often, {NASTY[1]} is mistaken for {NASTY[0]}" in page.text) == said
    assert ("Most often" in page.text) == said


def test_collapse_is_said_on_the_page(facts):
    weights = facts.seen.survey.weights
    always = torch.zeros_like(weights[0])
    always[:, 1] = 1 + 1e-3 * torch.rand(len(always))
    page = Page(run_page(with_survey(facts, weights=(always, weights[1]))))
    assert page.text.count("Level 1 has collapsed: block 1 wins in 100.0% of 60 images.") == 2


def test_the_mistakes_are_the_surest_ones(facts):
    seen = facts.seen.survey
    wrong = seen.labels != seen.predicted
    sure = seen.probabilities.max(1).values
    shown = [one.probability for one in facts.pictures.mistakes]
    assert shown == sorted(sure[wrong].tolist(), reverse=True)[:24]
    assert not any(one.right for one in facts.pictures.mistakes)


def test_examples_show_what_explain_says_of_the_image(page, facts, finished_run):
    for one in facts.pictures.examples:
        logit = float(one.explained.logits[one.explained.predicted])
        total = float(one.explained.contributions[one.explained.predicted].sum())
        assert total == pytest.approx(logit, abs=1e-4)
        assert f"{logit:+.2f}".replace("-", "−") in page.text
        for weight in one.explained.weights[0].tolist():
            assert f"{weight:.3f}" in page.text
        assert torch.equal(one.shown.pixels, finished_run[1].test.images[one.shown.index])
        assert int(finished_run[1].test.labels[one.shown.index]) == one.shown.label


def test_the_command_that_repeats_the_run_is_there(page, finished_run):
    command = json.loads((finished_run[0].path / "environment.json").read_text())["command"]
    assert command[0] in page.text
    assert f"wcapsnet train '{finished_run[0].path}'" in page.text


# ── beside the paper ──


def test_the_papers_figure_stands_beside_its_own_experiment_only_without_a_word_of_difference():
    same = paper_figure(recipe("cifar10"))
    assert (same.accuracy, same.differences) == (0.9343, ())
    assert paper_figure(recipe("mnist-squash")).accuracy == 0.9964
    short = replace(recipe("mnist"), training=recipe("mnist").training.with_epochs(3))
    other = paper_figure(short)
    assert other.accuracy == 0.9968
    assert "training.epochs is 3, not 40" in other.differences
    assert paper_figure(recipe("demo")) is None
    assert paper_figure(recipe("fashion-mnist")) is None


# ── surveys ──


def test_a_survey_is_kept_with_the_weights_it_is_of(finished_run, tmp_path):
    run, dataset = toy(tmp_path / "own")
    subject = subject_of_run(run.path)
    assert (run.path / SURVEY).stat().st_size < 60_000
    kept = saved_survey(subject)
    assert kept.part == "test"
    assert kept.survey.routed == ()
    other, _ = toy(tmp_path / "other", seed=1)
    (run.path / "best.safetensors").write_bytes((other.path / "best.safetensors").read_bytes())
    assert saved_survey(subject) is None
    assert len(facts_of(run, dataset).seen.survey) == 60
    assert saved_survey(subject) is not None


def test_a_damaged_survey_is_made_anew(tmp_path):
    run, dataset = toy(tmp_path / "own")
    before = facts_of(run, dataset).seen
    (run.path / SURVEY).unlink()  # what was read of it may still be mapped
    (run.path / SURVEY).write_bytes(b"no survey")
    after = facts_of(run, dataset).seen
    assert torch.equal(before.survey.probabilities, after.survey.probabilities)
    assert before.probes == after.probes


@pytest.mark.parametrize(("validation", "taught"), [(60, 60), (7000, 1000)])
def test_probes_learn_from_validation_images_that_are_spread_over_all(
    finished_run, facts, monkeypatch, validation, taught
):
    run, dataset = finished_run
    labels = torch.arange(validation) * 3 // validation  # sorted by class, as folders are
    images = torch.zeros(validation, 1, 8, 8, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = torch.arange(validation) // 256, torch.arange(validation) % 256
    asked = []

    def survey(network, split, **_):
        asked.append(split)
        return replace(facts.seen.survey, routed=(torch.zeros(60, 1),))

    monkeypatch.setattr(survey_cache, "survey", survey)
    monkeypatch.setattr(survey_cache, "probe_levels", lambda fit, test: ())
    subject = replace(subject_of_run(run.path), folder=None)
    many = replace(dataset, validation=Split(images, labels))
    seen = survey_cache.look(subject, Classifier.load(run.weights()), many, torch.device("cpu"), None, None)
    _, fit = asked
    assert len(fit) == seen.taught == taught
    first = fit.images[:, 0, 0, :2].long()
    assert (256 * first[:, 0] + first[:, 1]).diff().unique().tolist() == [validation // taught]
    counts = fit.labels.bincount(minlength=3)
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize(("finish", "part", "teacher"), [(True, "test", "validation"), (False, "validation", "train")])
def test_a_report_teaches_probes_as_explain_does_and_never_by_test_images(tmp_path, monkeypatch, finish, part, teacher):
    run, dataset = toy(tmp_path / "run", finish=finish, epochs=4)
    (run.path / SURVEY).unlink(missing_ok=True)
    asked, plain = [], survey_cache.probe_levels
    monkeypatch.setattr(survey_cache, "probe_levels", lambda fit, test: asked.append((fit, test)) or plain(fit, test))
    facts = facts_of(run, dataset)
    ((fit, test),) = asked
    assert torch.equal(fit.labels, getattr(dataset, teacher).labels)
    assert torch.equal(test.labels, getattr(dataset, part).labels)
    who = {"validation": "30 validation images", "train": "48 training images"}[teacher]
    on = {"test": "60 test images", "validation": "30 validation images"}[part]
    assert f"trained on {who} and tested on {on}." in check(run_page(facts)).text


def test_too_many_images_for_probes_are_said(facts, monkeypatch):
    monkeypatch.setattr(survey_cache, "MOST_ROUTED", 50)
    assert "50 test images" in survey_cache.why_no_probes(replace(facts.seen, probes=()))


# ── any shape ──


@pytest.mark.slow
@pytest.mark.parametrize(
    ("classes", "shape", "model"),
    [
        (("no", "yes"), (3, 9, 17), {}),
        (tuple(f"class {r}" for r in range(7)), (3, 8, 8), {"levels": (Level(1, 2, 4, 2),)}),
        (("a", "b", "c"), (1, 12, 8), {"levels": (Level(5, 2, 4, 2), Level(1, 2, 4, 1), Level(6, 2, 3, 2))}),
        (("a", "b"), (1, 8, 8), {"routing": RoutingConfig(fitness="constant"), "extra_class": False}),
        (("a", "b"), (1, 8, 8), {"routing": RoutingConfig(fitness="random", weighting="normalized")}),
        (("a", "b"), (1, 8, 8), {"nonlinearity": "squash"}),
        (("a", "b"), (1, 8, 8), {"routing": RoutingConfig(per_position=True)}),
    ],
)
def test_pages_of_networks_of_every_shape(tmp_path, classes, shape, model):
    run, dataset = toy(tmp_path / "run", classes, shape, **model)
    page = check(run_page(facts_of(run, dataset)))
    assert len(page.all("article")) == len(facts_of(run, dataset).pictures.examples) > 0
    if model.get("routing") == RoutingConfig(fitness="constant"):
        assert "Level 1 does not select: all blocks have the same weight." in page.text
    per_position = model.get("routing") == RoutingConfig(per_position=True)
    assert ("The other levels weight their blocks at every position" in page.text) == per_position


@pytest.mark.slow
@pytest.mark.parametrize(("count", "most"), [(100, 1_000_000), (300, 2_500_000)])
def test_a_hundred_classes_and_more_stay_small(tmp_path, count, most):
    run, dataset = toy(tmp_path / "run", tuple(f"a class called {r}" for r in range(count)), test=3 * count)
    text = run_page(facts_of(run, dataset))
    page = check(text)
    assert len(text.encode()) < most
    (matrix,) = [one for one in numbers(page, "grid") if "taken for" in one["say"]]
    assert len(matrix["rows"]) == count
    assert "sorted by the block they favour" in page.text


@pytest.mark.slow
def test_large_pictures_are_made_small(tmp_path):
    run, dataset = toy(
        tmp_path / "run", ("a", "b"), (3, 256, 192), epochs=1, levels=(Level(2, 2, 3, 8), Level(2, 2, 3, 2))
    )
    assert len(run_page(facts_of(run, dataset)).encode()) < 1_500_000


# ── what is missing is said ──


def test_without_the_data_set_the_rest_is_shown(finished_run):
    page = check(run_page(facts_of(finished_run[0], None)))
    assert page.text.count("The pictures cannot be shown. The dataset is on holiday.") == 3
    assert page.all("article") == []
    assert "mean weight" in page.text


def test_without_survey_and_weights_the_record_is_shown(finished_run, tmp_path):
    record = tmp_path / "record"
    record.mkdir()
    for name in ("experiment.json", "metrics.jsonl", "test.json"):
        (record / name).write_bytes(finished_run[0].file(name).read_bytes())
    page = check(run_page(facts_of(Run.open(record), None)))
    assert percentage(finished_run[0].results()["accuracy"]) in page.text
    assert "no best.safetensors" in page.text
    assert [one for one in numbers(page, "grid") if "taken for" in one["say"]]


def test_an_unfinished_run_is_shown_by_its_validation_images(tmp_path):
    run, dataset = toy(tmp_path / "run", finish=False, epochs=4)
    facts = facts_of(run, replace(dataset, validation_files=tuple(f"class/{place}.png" for place in range(30))))
    assert all(one.shown.name == f"class/{one.shown.index}.png" for one in facts.pictures.examples)
    assert facts.seen.part == "validation"
    assert len(facts.seen.survey) == 30
    page = check(run_page(facts))
    assert "This run is not finished: 1 of 4 epochs are done." in page.text
    assert f"wcapsnet train --resume {run.path}" in page.text
    assert "test accuracy" not in page.text


def test_a_glance_looks_at_some_images_and_keeps_nothing(tmp_path):
    run, dataset = toy(tmp_path / "run", finish=False, epochs=4)
    facts = gather(subject_of_run(run.path), dataset, "", torch.device("cpu"), sample=10)
    assert len(facts.seen.survey) == 10
    assert not (run.path / SURVEY).exists()
    page = check(run_page(facts))
    assert "10 of its 30 validation images" in page.text
    assert (facts.seen.probes, facts.seen.taught) == ((), 2)
    assert "Probes need at least 6 training images" in page.text
    for one in facts.pictures.examples:
        assert int(dataset.validation.labels[one.shown.index]) == one.shown.label


def test_a_run_without_weights_has_a_page(tmp_path):
    young = Run.create(tmp_path / "young", recipe("demo"), {})
    page = check(run_page(facts_of(young, None)))
    assert "first epoch is not finished" in page.text
    assert "0 of 5 epochs are done" in page.text
    run, dataset = toy(tmp_path / "run", finish=False)
    run.file("best.safetensors").unlink()
    assert "no best.safetensors" in check(run_page(facts_of(run, dataset))).text


def test_classes_without_images_are_left_out(tmp_path):
    run, dataset = toy(tmp_path / "run", ("a", "b", "c", "d"))
    first = dataset.test.labels < 2
    few = replace(dataset, test=Split(dataset.test.images[first], dataset.test.labels[first]))
    (run.path / SURVEY).unlink()
    before = {name: run.results()[name] for name in ("epochs", "best_epoch", "validation_accuracy", "seconds")}
    run.file("test.json").write_text(json.dumps({**before, "images": 30, "accuracy": 0.5, "errors": 15}))
    page = check(run_page(facts_of(run, few)))
    for grid in [one for one in numbers(page, "grid") if "mean weight" in one["say"]]:
        assert grid["rows"] == ["a", "b"]


def test_a_perfect_run_has_no_mistakes_to_show(facts):
    right = torch.nn.functional.one_hot(facts.seen.survey.labels, 3).float()
    perfect = with_results(with_survey(facts, probabilities=right), images=60, accuracy=1.0, errors=0)
    page = check(run_page(replace(perfect, pictures=replace(facts.pictures, mistakes=[]))))
    assert "None: every image was classified correctly." in page.text
    assert "No image was mistaken for another class." in page.text


def test_reconstructions_are_those_of_the_network(facts, finished_run):
    run, dataset = finished_run
    classifier = Classifier.load(run.weights())
    split = DeviceSplit(dataset.test, *classifier.normalization, torch.device("cpu"))
    one = facts.pictures.reconstructions[0]
    images, _ = split.take(torch.tensor([one.shown.index]))
    expected = classifier.pixels(explain_images(classifier.network, images, without=False)[0].reconstruction)
    torch.testing.assert_close(one.reconstruction, expected)
    found = survey(classifier.network, split)
    assert one.shown.squared_error == pytest.approx(float(found.squared_error[one.shown.index]), rel=1e-5)
