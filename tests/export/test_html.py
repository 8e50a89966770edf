"""The parts of a static page, without a browser."""

import gzip
import hashlib
import io
import re
import tarfile

import pytest
import torch
from small import small

from wcapsnet import Classifier, InputError
from wcapsnet.data import Split
from wcapsnet.exports.html import LOCAL, SERVED, composed, html_page, sample
from wcapsnet.exports.html import onnxruntime_web as runtime_module
from wcapsnet.exports.html.bundle import bundle
from wcapsnet.exports.html.onnxruntime_web import FILES, VERSION, Runtime, onnxruntime_web

RUNTIME = Runtime(b"/*! ONNX Runtime Web v9.8.7 */ var ort;", b"loader", b"\0asm")


def test_a_module_comes_after_those_it_imports_and_returns_its_exports():
    modules = {
        "a.js": 'import { one as uno } from "./b.js";\nimport * as c from "./c.js";\nuno + c.two;',
        "b.js": 'import { two } from "./c.js";\nexport const one = two - 1;',
        "c.js": "export const two = 2;\nexport async function later() {}",
    }
    script = bundle(modules, "a.js")
    order = [script.index(f"const module_{name}_js = ") for name in "cba"]
    assert order == sorted(order)
    assert "const { one: uno } = module_b_js;" in script
    assert "const c = module_c_js;" in script
    assert "return { two, later };" in script
    assert "import" not in script
    assert "export" not in script


@pytest.mark.parametrize("text", ['import "./c.js";', "export default 1;", "export { a };", 'import d from "./c.js";'])
def test_a_form_that_cannot_be_bundled_is_refused(text):
    with pytest.raises(ValueError, match="cannot bundle"):
        bundle({"a.js": text}, "a.js")


def test_modules_that_import_each_other_are_refused():
    with pytest.raises(ValueError, match="imports itself"):
        bundle({"a.js": 'import { b } from "./b.js";', "b.js": 'import { a } from "./a.js";'}, "a.js")


def test_the_page_is_one_file_that_loads_nothing():
    classes = ["</script><b>", "ü"]
    page = composed({"about": {"classes": classes}}, {"wasm": b"\0asm" * 100}, RUNTIME)
    for outside in ('src="/', 'href="/', "http://", "{{"):
        assert outside not in page.replace("http://www.w3.org/2000/svg", "")
    assert page.count("</script><b>") == 0
    assert "default-src 'none'" in page
    assert "connect-src" not in page
    for name in ("fetch(", "XMLHttpRequest", "X-Wcapsnet-Token"):
        assert name not in page


def test_the_page_names_the_runtime_and_holds_its_licence():
    page = composed({}, {}, RUNTIME)
    assert "ONNX Runtime Web 9.8.7" in page
    assert "Permission is hereby granted, free of charge" in page
    assert "Copyright (c) Microsoft Corporation" in page


def test_the_static_page_answers_every_request_of_the_live_page():
    asked = {
        found for file in SERVED.glob("*.js") for found in re.findall(r'"/api/(\w+)"', file.read_text(encoding="utf-8"))
    } - {"about"}
    answered = (LOCAL / "local.js").read_text(encoding="utf-8").split("const answers = {")[1].split("}")[0]
    assert asked == {part.split(":")[0].strip() for part in answered.split(",")}


def test_the_sample_has_the_first_images_of_every_class_in_order():
    images = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1)
    labels = torch.tensor([0] * 10 + [1] * 7 + [2] * 3)
    part = sample(Split(images, labels), classes=3, count=12)
    assert part.images.flatten().tolist() == [0, 1, 2, 3, 4, 10, 11, 12, 13, 17, 18, 19]
    assert part.labels.tolist() == [0] * 5 + [1] * 4 + [2] * 3


def test_fewer_large_images_are_taken():
    test = Split(torch.zeros(60, 3, 256, 256, dtype=torch.uint8), torch.zeros(60, dtype=torch.long))
    assert len(sample(test, 1).labels) == 21  # 4 MB


def test_a_network_without_routing_is_refused_in_a_sentence():
    network = small("densenet-bc-100")
    config = network.config
    names = tuple(map(str, range(config.classes)))
    classifier = Classifier(network, names, (0.5,) * config.channels, (0.5,) * config.channels)
    with pytest.raises(InputError, match="no critics"):
        html_page(classifier, "net", RUNTIME)


def packed(path, names):
    with tarfile.open(path, "w:gz") as package:
        for name in names:
            member = tarfile.TarInfo(f"package/dist/{name}")
            member.size = len(name)
            package.addfile(member, io.BytesIO(name.encode()))
    return path


def test_the_runtime_is_read_from_a_package_or_its_folder(tmp_path, monkeypatch):
    expected = Runtime(*(name.encode() for name in FILES))
    archive = packed(tmp_path / "onnxruntime-web.tgz", [*FILES, "ort.js"])
    assert onnxruntime_web(archive) == expected
    with tarfile.open(archive) as package:
        package.extractall(tmp_path)
    for folder in (tmp_path, tmp_path / "package", tmp_path / "package" / "dist"):
        assert onnxruntime_web(folder) == expected
    monkeypatch.setenv("WCAPSNET_ORT_WEB", str(archive))
    assert onnxruntime_web() == expected


@pytest.mark.parametrize("kind", ["empty folder", "other package", "no package", "cut off", "nothing"])
def test_a_bad_runtime_is_refused_in_a_sentence(tmp_path, kind):
    path = tmp_path / "runtime.tgz"
    if kind == "empty folder":
        path.mkdir()
    elif kind == "other package":
        packed(path, ["index.js"])
    elif kind == "no package":
        path.write_bytes(b"no archive")
    elif kind == "cut off":
        packed(path, FILES)
        path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:700])[:-3])
    with pytest.raises(InputError, match=r"\.$") as error:
        onnxruntime_web(path)
    assert "\n" not in str(error.value)


def test_an_offline_machine_is_told_how_to_get_the_runtime(tmp_path, monkeypatch):
    from requests import ConnectionError, Session

    def offline(*_, **__):
        raise ConnectionError("no route")

    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path))
    monkeypatch.delenv("WCAPSNET_ORT_WEB", raising=False)
    monkeypatch.setattr(Session, "request", offline)
    with pytest.raises(InputError, match=f"npm pack onnxruntime-web@{VERSION}.*--runtime"):
        onnxruntime_web()


def test_a_runtime_is_downloaded_by_its_checksum_and_again_if_it_is_damaged_in_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("WCAPSNET_CACHE", str(tmp_path))
    monkeypatch.delenv("WCAPSNET_ORT_WEB", raising=False)
    monkeypatch.setattr(runtime_module, "FILES", {name: hashlib.sha256(name.encode()).hexdigest() for name in FILES})
    fetched = []

    def fetch(urls, target, *, sha256):
        assert sha256 == runtime_module.FILES[target.name]
        fetched.append(target)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(target.name)
        return target

    monkeypatch.setattr(runtime_module, "download", fetch)
    found = onnxruntime_web()
    assert len(fetched) == 3
    assert onnxruntime_web() == found
    assert len(fetched) == 3
    fetched[1].write_bytes(b"evil")
    assert onnxruntime_web() == found
    assert fetched[3:] == [fetched[1]]
