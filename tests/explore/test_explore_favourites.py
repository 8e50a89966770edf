"""The pass over the test images behind the live page: in the background, polite, and kept."""

import contextlib
import threading
import time
from concurrent.futures import CancelledError

import pytest
import torch
from explore_helpers import classifier_of, images_of, normalized, serving

from wcapsnet.data import Split
from wcapsnet.data.device_data import DeviceSplit
from wcapsnet.explanations import explain_capsule, explain_image, nearest, specialization, survey, vector_range
from wcapsnet.explore import Explorer, favourites


@pytest.fixture(scope="module")
def split(classifier):
    return images_of(classifier, 30)


@pytest.fixture(scope="module")
def seen(classifier, split):
    return survey(classifier.network, DeviceSplit(split, *classifier.normalization, torch.device("cpu")))


def finished(asker):
    assert asker.ask("/api/survey", {})["state"] in ("running", "ready")
    assert asker.explorer.favourites.wait(30)
    return asker.ask("/api/survey", {})


def test_nothing_is_looked_at_before_somebody_asks(classifier, split):
    with serving(classifier, split) as asker:
        assert asker.ask("/api/block", {"test": 0, "block": [0, 0]})["favourites"] is None
        assert asker.explorer.favourites._thread is None


def test_mistakes_accuracy_and_ranges_are_those_of_the_survey(classifier, split, seen):
    with serving(classifier, split) as asker:
        facts = finished(asker)
    assert facts["state"] == "ready"
    assert (facts["done"], facts["total"]) == (30, 30)
    assert facts["predicted"] == seen.predicted.tolist()
    assert facts["accuracy"] == seen.accuracy
    for n, said in enumerate(facts["ranges"]):
        if (seen.places[:, 0] == n).any():
            assert said["low"] == pytest.approx(vector_range(seen, n).low.tolist(), rel=1e-4, abs=1e-6)
            assert said["high"] == pytest.approx(vector_range(seen, n).high.tolist(), rel=1e-4, abs=1e-6)
        else:
            assert said is None


@pytest.mark.parametrize("block", [[0, 2], [1, 0]])
def test_a_block_shows_the_images_that_choose_it_most(classifier, split, seen, block):
    with serving(classifier, split) as asker:
        finished(asker)
        facts = asker.ask("/api/block", {"test": 0, "block": block})["favourites"]
    one = explain_capsule(seen, specialization(seen), *block, favourites.SHOWN)
    assert [image["index"] for image in facts["images"]] == one.images.tolist()
    assert [image["weight"] for image in facts["images"]] == pytest.approx(one.weights.tolist(), rel=1e-5)
    assert [image["label"] for image in facts["images"]] == split.labels[one.images].tolist()
    assert facts["wins"] == one.wins
    assert facts["equal"] == one.equal
    assert facts["classes"] == list(one.classes)


def test_near_images_are_those_of_the_survey_without_the_image_itself(classifier, split, seen):
    vector = explain_image(classifier.network, normalized(classifier, split.images[3]), without=False).vector
    with serving(classifier, split) as asker:
        finished(asker)
        facts = asker.ask("/api/near", {"vector": vector.tolist(), "test": 3})["near"]
        other = asker.ask("/api/near", {"vector": vector.tolist()})["near"]
    found = nearest(seen, vector, 7)
    assert int(found.images[0]) == 3
    assert [image["index"] for image in facts] == found.images[1:].tolist()
    assert [image["index"] for image in other] == found.images[:6].tolist()


def test_what_training_saw_is_taken_if_it_is_of_these_images(classifier, split, seen, monkeypatch):
    other = Split(split.images.flip(0), split.labels.flip(0))
    monkeypatch.setattr(favourites, "survey", pytest.fail)
    with serving(classifier, split, seen=seen) as asker:
        assert finished(asker)["predicted"] == seen.predicted.tolist()
    monkeypatch.undo()
    with serving(classifier, other, seen=seen) as asker:
        assert finished(asker)["predicted"] == seen.predicted.flip(0).tolist()


def test_it_is_kept_and_not_made_again(classifier, split, tmp_path, monkeypatch):
    with serving(classifier, split, cache=tmp_path) as asker:
        first = finished(asker)
    (kept,) = (tmp_path / "explore").iterdir()
    assert kept.suffix == ".safetensors"
    monkeypatch.setattr(favourites, "survey", lambda *_, **__: pytest.fail("it was made again"))
    with serving(classifier, split, cache=tmp_path) as asker:
        assert finished(asker) == first


def test_other_weights_or_images_have_their_own(classifier, split, tmp_path):
    other = classifier_of()
    with torch.no_grad():
        other.network.projection += 1
    fewer = split._replace(images=split.images[:9], labels=split.labels[:9])
    for network, images in ((classifier, split), (other, split), (classifier, fewer)):
        with serving(network, images, cache=tmp_path) as asker:
            finished(asker)
    assert len(list((tmp_path / "explore").iterdir())) == 3


def test_a_damaged_file_is_made_again(classifier, split, tmp_path):
    with serving(classifier, split, cache=tmp_path) as asker:
        first = finished(asker)
    (kept,) = (tmp_path / "explore").iterdir()
    kept.write_bytes(b"damaged")
    with serving(classifier, split, cache=tmp_path) as asker:
        assert finished(asker) == first
    assert kept.stat().st_size > 100


def test_a_place_that_cannot_be_written_does_not_matter(classifier, split, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with serving(classifier, split, cache=tmp_path / "file") as asker:
        assert finished(asker)["state"] == "ready"


@contextlib.contextmanager
def busy(worker):
    """While the worker has something to do; what is given ends it."""
    begun, free = threading.Event(), threading.Event()

    def job():
        begun.set()
        assert free.wait(120)

    thread = threading.Thread(target=lambda: worker.ask(job))
    thread.start()
    assert begun.wait(120)
    try:
        yield free
    finally:
        free.set()
        thread.join(120)
    assert not thread.is_alive()


def test_it_steps_aside_while_the_page_is_used(classifier, split):
    with serving(classifier, split) as asker:
        with busy(asker.explorer.worker):
            asker.ask("/api/survey", {})
            time.sleep(0.5)
            assert asker.ask("/api/survey", {})["done"] == 0
        assert finished(asker)["state"] == "ready"


def test_closing_waits_for_the_worker_and_ends_the_pass(classifier, split):
    explorer = Explorer(classifier, "toy", split)
    with busy(explorer.worker) as free:
        explorer.survey()
        threading.Timer(0.2, free.set).start()
        explorer.close()
        assert free.is_set()
    with pytest.raises(CancelledError):
        explorer.worker.ask(pytest.fail)
    assert not explorer.favourites._thread.is_alive()
    assert explorer.survey()["state"] == "running"  # it did not come to its end
