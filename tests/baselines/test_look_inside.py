"""explain, report and explore for networks without WCapsNet's routing."""

import base64
import json
import math
import threading

import pytest
import torch
from small import batch, small

import wcapsnet
from wcapsnet import InputError
from wcapsnet.api.reporting import report_of
from wcapsnet.classifier import Classifier
from wcapsnet.data import DataConfig, Dataset, Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.explanations import Survey, survey, without_routing
from wcapsnet.explore import Explorer, Server
from wcapsnet.objective import Objective
from wcapsnet.reports import gather, subject_of_run
from wcapsnet.training.console import Progress
from wcapsnet.training.evaluate import calibration, evaluate
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Trainer

NAMES = ("capsnet", "efficient-capsnet", "sr-capsnet", "densenet-bc-100")
DECODING = NAMES[:2]
CLASSES = ("a", "b", "c")
CPU = torch.device("cpu")


def data_of(network):
    images, labels = batch(network, 24)
    split = Split((255 * images.clamp(0, 1)).byte(), labels)
    return Dataset("toy", CLASSES, split, split, split)


def trained(name, path):
    network = small(name)
    data, config = data_of(network), network.config
    settings = {"epochs": 1, "batch_size": 8, "milestones": (), **config.training}
    experiment = Experiment("toy", DataConfig(), config, Objective(config.terms), TrainingConfig(**settings))
    trainer = Trainer(Run.create(path, experiment, {}), data, CPU, Progress())
    trainer.fit()
    trainer.finish()
    return trainer.run, data


def test_the_calibration_error_worked_by_hand():
    # bins of 1/15: two answers at 0.91 and 0.92, one right; one at 0.5, right
    found = calibration(torch.tensor([0.91, 0.92, 0.5]), torch.tensor([True, False, True]))
    assert [n for n, _, _ in found.bins] == [1, 2]
    assert found.bins[1][1:] == pytest.approx((0.915, 0.5))
    assert found.error == pytest.approx((1 * 0.5 + 2 * 0.415) / 3)
    assert calibration(torch.ones(4), torch.ones(4).bool()).error == 0


@pytest.mark.parametrize("name", NAMES)
def test_a_survey_has_the_predictions_and_the_reconstruction_errors(name, tmp_path):
    network = small(name).eval()
    split = DeviceSplit(data_of(network).test, (0.0,), (1.0,), CPU)
    found, expected = survey(network, split, batch_size=5, routed=True), evaluate(network, split)
    assert torch.equal(found.predicted, expected.predicted)
    assert found.evaluation().loss == pytest.approx(expected.loss, rel=1e-4)
    assert found.weights == found.routed == ()
    assert found.squared_error.isfinite().all() if name in DECODING else found.squared_error.isnan().all()
    found.save(tmp_path / "it.safetensors", part="test")
    assert torch.equal(Survey.load(tmp_path / "it.safetensors")[0].probabilities, found.probabilities)


@pytest.mark.parametrize("name", ["capsnet", *(pytest.param(name, marks=pytest.mark.slow) for name in NAMES[1:])])
def test_a_report_shows_what_there_is_and_says_what_there_is_not(name, tmp_path):
    run, data = trained(name, tmp_path / "run")
    page = report_of(run, data, CPU).read_text()
    assert without_routing(small(name)).split(".")[0] in page
    for key in ("overview", "training", "answers", "configuration"):
        assert f'<section id="{key}"' in page
    for key in ("routing", "probes", "examples"):
        assert f'<section id="{key}"' not in page
        assert f'href="#{key}"' not in page
    assert ('<section id="reconstructions"' in page) == (name in DECODING)
    assert "Reliability diagram" in page
    facts = gather(subject_of_run(run.path), data, "", CPU)
    assert len(facts.pictures.reconstructions) == (3 if name in DECODING else 0)
    assert "error" in json.loads((run.path / "test.json").read_text())["calibration"]


@pytest.mark.slow
def test_runs_of_different_kinds_are_compared_on_one_page(tmp_path):
    runs = [trained(name, tmp_path / name)[0].path for name in ("capsnet", "densenet-bc-100")]
    page = wcapsnet.report(*runs, out=tmp_path / "both.html", quiet=True).read_text()
    assert "has not been measured yet" not in page


@pytest.mark.parametrize("name", NAMES)
def test_explanations_are_accuracy_and_calibration_and_routing_is_refused(name):
    network = small(name).eval()
    classifier = Classifier(network, CLASSES, (0.0,), (1.0,))
    inside = wcapsnet.api.DatasetExplanation(classifier, data_of(network), quiet=True)
    facts = json.loads(json.dumps(inside.summary()))
    assert facts["accuracy"] == inside.survey.accuracy
    assert sum(map(sum, facts["confusion"])) == 24
    assert sum(one["images"] for one in facts["calibration"]["bins"]) == 24
    assert (facts["reconstruction_error"] is not None) == (name in DECODING)
    for ask in (
        lambda: inside.specialization,
        lambda: inside.probes,
        lambda: inside.capsule("1.0"),
        inside.critics,
        inside.rerouted,
        inside.faithfulness,
    ):
        with pytest.raises(InputError, match="no critics"):
            ask()


def test_a_web_page_of_a_network_without_blocks_is_refused_with_what_to_do_instead(tmp_path):
    Classifier(small("capsnet"), CLASSES, (0.0,), (1.0,)).save(tmp_path / "it.safetensors")
    with pytest.raises(InputError, match=r"weights of blocks, which CapsNet does not have; export to onnx"):
        wcapsnet.export(tmp_path / "it.safetensors", to="html", out=tmp_path / "it.html")
    assert not (tmp_path / "it.html").exists()


@pytest.mark.parametrize("name", NAMES)
def test_the_live_page_has_predictions_and_reconstructions(name):
    network = small(name)
    data = data_of(network)
    explorer = Explorer(Classifier(network, CLASSES, (0.0,), (1.0,)), name, data.test)
    try:
        explorer.warm_up()
        about = explorer.about()
        assert about["levels"] == []
        assert "no critics" in about["unrouted"]
        answer = explorer.explain({"test": 4})
        assert sum(answer["probabilities"]) == pytest.approx(1, abs=1e-5)
        assert answer["label"] == 1
        if name in DECODING:
            assert len(base64.b64decode(answer["reconstruction"])) == math.prod((1, 20, 20))
        else:
            assert answer["reconstruction"] is None
        with pytest.raises(InputError, match="no critics"):
            explorer.block({"test": 4, "block": [0, 0]})
        explorer.survey()
        assert explorer.favourites.wait(20)
        assert len(explorer.survey()["predicted"]) == 24
    finally:
        explorer.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["capsnet", "densenet-bc-100"])
def test_the_live_page_works_without_blocks(name, browser):
    network = small(name)
    explorer = Explorer(Classifier(network, CLASSES, (0.0,), (1.0,)), name, data_of(network).test)
    server = Server(explorer, "127.0.0.1", 0)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    page, said = browser.new_page(), []
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        page.goto(server.url)
        page.wait_for_selector("body.ready")
        page.click("#tab-test")
        page.locator("#truth", has_text="labelled").wait_for()
        assert page.locator("#vector").is_visible() == (name in DECODING)
        assert not page.locator("#routing").is_visible()
        assert "no critics" in page.inner_text("#unrouted")
        page.locator("#classes button").first.click()
        page.locator("#test-note", has_text="correctly").wait_for()
        assert said == []
    finally:
        page.close()
        server.close()
