"""An exported file answers as its network does."""

from pathlib import Path

import numpy as np
import pytest
import torch
from export_helpers import classifier_of, images_for, written
from small import small

from twins import quiet
from wcapsnet import InputError, WCapsNet
from wcapsnet.exports.check import Images, compared, reference
from wcapsnet.exports.graph import EXTRAS, DecoderGraph, Graph
from wcapsnet.exports.onnx_model import onnx_bytes
from wcapsnet.exports.runtime import OnnxNetwork
from wcapsnet.exports.torch_program import Program, save_program
from wcapsnet.parts import fitness, model, weighting

pytest.importorskip("onnxscript")


def assert_alike(found, expected):
    assert found.keys() >= expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("count", [1, 3])
def test_the_file_answers_like_the_network_for_any_batch_size(exported, count):
    classifier, path = exported
    pixels = images_for(classifier, count)
    found = OnnxNetwork(path).run(pixels)
    assert_alike(found, reference(classifier, pixels))
    levels = classifier.config.levels
    assert [found[f"weights_{level}"].shape[:2] for level in (1, 2)] == [(count, one.capsules) for one in levels]
    assert found["best_capsule"].dtype == np.int32
    assert 0 <= found["reconstruction"].min() <= found["reconstruction"].max() <= 1


def test_the_file_describes_itself(exported):
    classifier, path = exported
    network = OnnxNetwork(path)
    assert network.classes == classifier.classes
    assert network.shape == (3, 8, 8)
    facts = network.facts
    assert (facts["mean"], facts["std"], facts["input"]) == ([0.3] * 3, [0.4] * 3, "uint8")
    assert len(facts["source_checksum"]) == 64
    assert facts["outputs"] == list(network.run(images_for(classifier, 1)))


def test_the_file_needs_no_other_and_holds_no_path_of_this_machine(exported):
    import onnx

    _, path = exported
    proto = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(proto)
    assert not any(one.external_data for one in proto.graph.initializer)
    assert str(Path(__file__).parents[2]).encode() not in path.read_bytes()
    assert {one.domain for one in proto.opset_import} == {""}


@pytest.mark.slow
@pytest.mark.parametrize("name", list(fitness))
@pytest.mark.parametrize("kind", list(weighting))
def test_every_fitness_and_weighting_can_be_exported(name, kind, tmp_path):
    classifier = classifier_of(WCapsNet(quiet({"fitness": name, "weighting": kind})))
    pixels = images_for(classifier, 3)
    assert_alike(OnnxNetwork(written(classifier, tmp_path)).run(pixels), reference(classifier, pixels))


@pytest.mark.slow
@pytest.mark.parametrize("name", list(model))
def test_every_model_can_be_exported(name, tmp_path):
    classifier = classifier_of(small(name))
    pixels = images_for(classifier, 3)
    network = OnnxNetwork(written(classifier, tmp_path))
    assert_alike(network.run(pixels), reference(classifier, pixels))
    assert_alike(network.run(pixels[:1]), reference(classifier, pixels[:1]))


@pytest.mark.slow
def test_floats_from_0_to_1_give_the_same_answers(exported, tmp_path):
    classifier, _ = exported
    pixels = images_for(classifier, 3)
    network = OnnxNetwork(written(classifier, tmp_path, input="float"))
    assert network.facts["input"] == "float"
    assert_alike(network.run(pixels), reference(classifier, pixels))


@pytest.mark.slow
def test_extra_outputs_and_switches_are_those_of_the_network(exported, tmp_path):
    classifier, _ = exported
    path = written(classifier, tmp_path, extras=EXTRAS, switches=True)
    pixels = images_for(classifier, 2)
    found = OnnxNetwork(path).run(pixels)  # all blocks on
    assert_alike(found, reference(classifier, pixels))
    np.testing.assert_allclose(found["contributions"].sum((2, 3, 4)), found["logits"], atol=1e-4)
    images = (torch.from_numpy(pixels).float() / 255 - 0.3) / 0.4
    keep = [torch.tensor([True, False, True]), torch.tensor([False, True])]
    with torch.no_grad():
        output = classifier.network(images, routes=classifier.network.keeping(keep))
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    given = {"images": pixels, "keep_1": keep[0].numpy(), "keep_2": keep[1].numpy()}
    names = ["logits", "fitness_1", "capsules_2", "vector", "position"]
    expected = [output.logits, output.routings[0].fitness, output.capsules[1], output.best.vector, output.best.position]
    for name, answer, value in zip(names, session.run(names, given), expected, strict=True):
        np.testing.assert_allclose(answer, value.numpy(), rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_the_decoder_alone_decodes_any_vector(exported):
    import onnxruntime

    classifier, _ = exported
    content = onnx_bytes(DecoderGraph(classifier), {})
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    pixels = images_for(classifier, 3)
    with torch.no_grad():
        output = classifier.network((torch.from_numpy(pixels).float() / 255 - 0.3) / 0.4)
    given = {"vector": output.best.vector.numpy(), "position": output.best.position.numpy()}
    (image,) = session.run(["reconstruction"], given)
    np.testing.assert_allclose(image, reference(classifier, pixels)["reconstruction"], atol=1e-5)


@pytest.mark.slow
def test_a_torch_program_survives_the_round_trip(exported, tmp_path):
    classifier, _ = exported
    graph = Graph(classifier)
    path = tmp_path / "network.pt2"
    save_program(graph, {"input": "uint8", "outputs": graph.names}, path)
    program = Program(path)
    for count in (1, 3):
        pixels = images_for(classifier, count)
        assert_alike(program.run(pixels), reference(classifier, pixels))


# ── the check ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_file_that_answers_otherwise_is_refused(exported):
    classifier, path = exported
    images = Images(images_for(classifier, 5), "random images")
    network = OnnxNetwork(path)
    good = compared(classifier, network.run, images)
    assert good.largest < 1e-5
    assert good.same == good.images == 5

    def changed(name, change):
        def run(pixels):
            answers = network.run(pixels)
            return {**answers, name: change(answers[name])}

        return run

    for name in ("probabilities", "weights_1", "reconstruction"):
        with pytest.raises(InputError):
            compared(classifier, changed(name, lambda values: values + 0.01), images)
    for wrong in (changed("probabilities", lambda p: p * np.nan), changed("best_capsule", lambda place: place + 1)):
        with pytest.raises(InputError):
            compared(classifier, wrong, images)


def test_the_graph_refuses_what_a_network_does_not_have(exported):
    classifier, _ = exported
    with pytest.raises(InputError):
        Graph(classifier, input="double")
    with pytest.raises(InputError):
        Graph(classifier, extras=["attention"])
    with pytest.raises(InputError):
        Graph(classifier_of(small("capsnet")), switches=True)


# ── damaged files ───────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kept", [0, 1, 100, -1, -200])
def test_a_truncated_file_is_refused(exported, tmp_path, kept):
    path = tmp_path / "short.onnx"
    path.write_bytes(exported[1].read_bytes()[:kept])
    with pytest.raises(InputError):
        OnnxNetwork(path)


def test_a_flipped_bit_anywhere_is_found(exported, tmp_path):
    content = exported[1].read_bytes()
    path = tmp_path / "flipped.onnx"
    for place in np.random.default_rng(0).integers(0, len(content), 100):
        broken = bytearray(content)
        broken[place] ^= 1 << (int(place) % 8)
        path.write_bytes(broken)
        with pytest.raises(InputError):
            OnnxNetwork(path)


def test_a_file_of_another_program_is_refused(exported, tmp_path):
    import onnx

    proto = onnx.load(exported[1])
    del proto.metadata_props[:]
    onnx.save(proto, tmp_path / "foreign.onnx")
    with pytest.raises(InputError):
        OnnxNetwork(tmp_path / "foreign.onnx")
    with pytest.raises(InputError):
        OnnxNetwork(tmp_path / "missing.onnx")


# ── int8, the command ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "quantised"),
    [("wcapsnet-quick", b"_DequantizeLinear"), ("capsnet", b"primary.weight_DequantizeLinear")],
)
def test_int8_answers_nearly_as_fp32_with_quantised_layers(tmp_path, name, quantised):
    from wcapsnet.data.formats import read_sample
    from wcapsnet.exports.int8 import quantized

    classifier = classifier_of(small(name, classes=10, size=(28, 28)))
    path = written(classifier, tmp_path)
    network, sample = OnnxNetwork(path), read_sample()
    other = tmp_path / "int8.onnx"
    other.write_bytes(quantized(path.read_bytes(), sample.train.images[:64], network.facts))
    int8 = OnnxNetwork(other)
    assert int8.facts["int8"]
    assert quantised in other.read_bytes()
    one, two = (each.run(sample.test.images[:50])["probabilities"] for each in (network, int8))
    assert 0 < np.abs(one - two).max() < 0.2
    assert (one.argmax(1) == two.argmax(1)).mean() > 0.9


@pytest.mark.slow
def test_the_function_writes_and_compares_and_leaves_nothing_when_it_fails(tmp_path, monkeypatch):
    import wcapsnet
    from wcapsnet.api import exporting

    classifier = classifier_of(WCapsNet(quiet(channels=1)))
    classifier.save(tmp_path / "own.safetensors")
    done = wcapsnet.export(tmp_path / "own.safetensors", out=tmp_path / "own.onnx")
    assert done.comparison.same == done.comparison.images
    assert "random" in done.comparison.what
    (tmp_path / "own.onnx").unlink()

    def differs(*args):
        raise InputError("They differ.")

    monkeypatch.setattr(exporting, "compared", differs)
    with pytest.raises(InputError):
        wcapsnet.export(tmp_path / "own.safetensors", out=tmp_path / "own.onnx")
    assert [path.name for path in tmp_path.iterdir()] == ["own.safetensors"]
    with pytest.raises(InputError):
        wcapsnet.export(tmp_path / "own.safetensors", out=tmp_path / "own.onnx", int8=True)  # no real images
    with pytest.raises(InputError):
        wcapsnet.export(tmp_path / "own.safetensors", to="tflite")
