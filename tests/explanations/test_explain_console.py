"""What `explain` prints fits into 80 columns and shows every number."""

import re

import pytest
import torch
from explain_toys import split_of

from twins import tiny
from wcapsnet import Level, RoutingConfig, WCapsNet
from wcapsnet.cli import explain_console
from wcapsnet.console import out
from wcapsnet.explanations import explain_image, probe_levels, specialization, survey
from wcapsnet.explanations.lipschitz import CriticFacts, Critics, Spread
from wcapsnet.explanations.reroute import Outcome, Rerouted


@pytest.fixture
def printed(monkeypatch):
    """The text that a function prints at a width of 80 columns, or of another"""

    def call(function, *args, width=80):
        monkeypatch.setattr(out, "_width", width)
        with out.capture() as captured:
            function(*args)
        text = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())
        tables = [line for line in text.splitlines() if line[:1] in set("┏┃┡│├└╭╰")]
        assert max(map(len, tables)) <= width
        assert "…" not in text
        return text

    return call


def seen_by(levels, classes, m=60):
    torch.manual_seed(0)
    network = WCapsNet(tiny(classes=classes, levels=tuple(Level(n, 2, 3, 1) for n in levels))).eval()
    images = torch.rand(m, 2, 8, 8) * 2 - 1
    return network, survey(network, split_of(images, (torch.arange(m) % classes).tolist()), routed=True)


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("classes", [["[b]", "dog"], ["airplane", "x" * 50, "y"], list(map(str, range(100)))])
def test_a_dataset_is_shown_whole(printed, width, classes):
    _, seen = seen_by((16, 8, 1, 2), len(classes))
    found, probes = specialization(seen), probe_levels(seen, seen)
    text = printed(explain_console.dataset, found, probes, seen, classes, "test images", width=width)
    assert "60 test images" in text
    assert classes[0] in text
    assert [f"Level {level}: mean weights" in text for level in (1, 2, 3, 4)] == [True, True, False, True]
    for level, probe in zip(found.levels, probes, strict=True):
        numbers = [f"{level.effective_chosen:.2f}", f"{level.leaders:.2f}", f"{level.effective:.2f}"]
        for name in ("information", "information_chosen", "information_set"):
            numbers.append(f"{getattr(level, name).value:.3f} ({getattr(level, name).by_chance:.3f})")
        assert all(number in text for number in [*numbers, f"{probe.accuracy:.1%} ("])
    cell = f"{found.levels[1].mean[0, 5]:.3f}±{found.levels[1].margin[0, 5]:.3f}".replace("±0.", "±.")
    if len(classes) <= 3:  # intervals where there is room; else their largest
        assert (cell in text) or f"intervals up to ±{found.levels[1].margin.max():.3f}" in text
        assert (cell in text) or width == 80


def test_every_capsule_of_an_image_is_a_line(printed):
    network, _ = seen_by((16, 2), 10)
    one = explain_image(network, torch.rand(2, 8, 8))
    text = printed(explain_console.image, one, [f"a class of pictures {r}" for r in range(10)], 0, "photo.png")
    capsules = [line for line in text.splitlines() if re.match(r"│ \d\.\d+ ", line)]
    assert [line.split()[1] for line in capsules] == [*(f"1.{n}" for n in range(16)), "2.0", "2.1"]
    for level, n, line in zip([0] * 16 + [1] * 2, [*range(16), 0, 1], capsules, strict=True):
        assert f"{one.without_logits[level][n, 0]:.3f} (" in line
        assert ("◀" in line) == (n in one.winners[level])


def test_exchanged_weights_are_shown_whole(printed):
    by = {kind: [Outcome(9000, 4000, 3999)] * 5 for kind in ("mean", "other", "equal", "dropout")}
    found = Rerouted(10000, 5000, by)
    text = printed(explain_console.rerouted, found, "test images", "1,000 validation images")
    assert text.count("+0.01 ± 1.75") == 20


@pytest.mark.parametrize(("per_position", "where"), [(False, "the last"), (True, "every")])
def test_fitness_is_a_mean_over_positions_wherever_positions_have_weights(printed, per_position, where):
    network = WCapsNet(tiny(RoutingConfig(per_position=per_position))).eval()
    text = printed(explain_console.image, explain_image(network, torch.rand(2, 8, 8)), ["a", "b", "c"], 0, "photo.png")
    assert f"In {where} level, the fitness is the mean over positions" in " ".join(text.split())


def test_critics_are_shown_whole(printed):
    norms, spread = (1.0, 0.999, 1.001, 1.0), Spread(-123.4567, 123.4567)
    slopes = (99.4567, 999.4567, 999.4567, 9999.4567)
    shares = (1.0, 0.0, 0.5, 0.25)
    levels = [CriticFacts(n, 128, -9.0, norms, norms, *slopes, *shares, *[spread] * 3) for n in range(1, 5)]
    text = printed(explain_console.critics, Critics(10000, tuple(levels)), "test images")
    assert "10,000 test images" in text
    assert text.count("9999.46") == text.count("75.0%") == 4
