import pytest
from export_helpers import classifier_of, written

from twins import quiet
from wcapsnet import WCapsNet


@pytest.fixture(scope="package")
def exported(tmp_path_factory):
    """A tiny network and its ONNX file, made once: the exporter takes seconds."""
    pytest.importorskip("onnxscript")
    classifier = classifier_of(WCapsNet(quiet(channels=3)))
    return classifier, written(classifier, tmp_path_factory.mktemp("export"))
