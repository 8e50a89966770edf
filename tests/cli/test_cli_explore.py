"""`wcapsnet explore`: from the command to the page, and the errors when there is no page."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest
from cli_helpers import call, environment, sentence

from wcapsnet.explore import Server


@pytest.fixture
def no_serving(monkeypatch):
    """The servers that were made; each is stopped at once as if by Ctrl-C."""
    made = []

    def stop(server):
        made.append(server)
        raise KeyboardInterrupt

    monkeypatch.setattr(Server, "serve_forever", stop)
    return made


def explore(*args):
    return call("explore", *args, "--no-browser", "--port", 0)


def test_the_page_of_a_run_is_served_until_ctrl_c(run):
    command = [sys.executable, "-m", "wcapsnet", "explore", str(run), "--port", "0", "--no-browser"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(),
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a shell's background ignores Ctrl-C
    )
    try:
        line = process.stdout.readline()
        url = re.search(r"http://127\.0\.0\.1:\d+/", line)
        assert url, line + process.stderr.read()
        about = json.load(urlopen(url[0] + "api/about"))
        assert about["name"] == "fruit run"
        assert about["classes"] == ["apples", "plums"]
        assert about["test"]["images"] == json.loads((run / "test.json").read_text())["images"]
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0, err
    assert out == "Closed.\n"
    assert err == ""


def test_weights_alone_are_explored_without_test_images(run, no_serving):
    answer = explore(run / "best.safetensors")
    assert answer.code == 0
    assert "No test images" in answer.err
    assert no_serving[0].explorer.test is None


def test_images_that_are_gone_are_said_and_done_without(run, no_serving, pictures, monkeypatch, tmp_path):
    moved = tmp_path / "moved"
    pictures.rename(moved)
    try:
        answer = explore(run)
        found = explore(run, "--data-dir", moved)
    finally:
        moved.rename(pictures)
    assert answer.code == found.code == 0
    assert "No test images" in answer.err
    assert [server.explorer.test is None for server in no_serving] == [True, False]


def test_a_port_in_use_gets_one_sentence(run):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        answer = call("explore", run, "--no-browser", "--port", port)
    assert sentence(answer) == f"Port {port} is in use; choose another with --port, or use --port 0 for a free one."


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["nowhere"], "no run folder"),
        (["{run}", "--host", "a b"], "no address"),
        (["{run}", "--data-dir", "nowhere"], "nowhere"),
    ],
)
def test_bad_input_gets_one_sentence(run, args, words):
    assert words in sentence(explore(*[arg.replace("{run}", str(run)) for arg in args]))


def test_what_the_run_saw_at_its_end_is_shown_without_another_pass(run, no_serving, tmp_path):
    assert explore(run).code == 0
    whole = tmp_path / "again"
    shutil.copytree(run, whole)
    (whole / "survey.safetensors").unlink()
    assert explore(whole).code == 0
    first, second = (server.explorer.favourites for server in no_serving)
    assert first._given is not None
    assert first._given.accuracy == json.loads((run / "test.json").read_text())["accuracy"]
    assert second._given is None
