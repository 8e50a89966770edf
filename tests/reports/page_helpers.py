"""Runs of every shape that train in a fraction of a second, and what reads a page.

Not in conftest.py: several folders of tests have one, and they all import under the same name.
"""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import torch

from twins.tiny import tiny
from wcapsnet.data import DataConfig, Dataset, Split
from wcapsnet.experiment import Experiment, TrainingConfig
from wcapsnet.reports import Facts, gather, subject_of_run
from wcapsnet.training.console import Progress
from wcapsnet.training.environment import describe_environment
from wcapsnet.training.run_folder import Run
from wcapsnet.training.trainer import Trainer

CPU = torch.device("cpu")
NASTY = ('<script>alert("1")</script>', "a & b", "'c' \"d\"")
VOID = {"meta", "img", "br", "link", "input"}


def columns_of_light(count: int, classes: int, channels: int, height: int, width: int, seed: int) -> Split:
    """Classes told apart by their brightness and by one bright column"""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(count) % classes
    images = torch.randint(0, 60, (count, channels, height, width), generator=generator)
    images += (100 * labels / classes).long().view(-1, 1, 1, 1)
    images[torch.arange(count), :, :, labels % width] += 90
    return Split(images.to(torch.uint8), labels)


def data(classes: tuple[str, ...], shape: tuple[int, int, int], train: int, validation: int, test: int) -> Dataset:
    parts = [columns_of_light(n, len(classes), *shape, seed) for seed, n in enumerate((train, validation, test))]
    return Dataset("toy", classes, *parts)


def toy(
    path: Path,
    classes: tuple[str, ...] = NASTY,
    shape: tuple[int, int, int] = (1, 8, 8),
    *,
    test: int = 60,
    epochs: int = 2,
    seed: int = 0,
    finish: bool = True,
    **model: Any,
) -> tuple[Run, Dataset]:
    """A trained run, and its data"""
    channels, height, width = shape
    dataset = data(classes, shape, max(48, 2 * len(classes)), max(30, len(classes)), test)
    experiment = Experiment(
        name="toy",
        data=DataConfig(source="toy", normalization="standardize"),
        model=tiny(classes=len(classes), channels=channels, height=height, width=width, **model),
        training=TrainingConfig(epochs=epochs, milestones=(1,), batch_size=16, lr=0.05, seed=seed),
    )
    run = Run.create(path, experiment, describe_environment(CPU, None))
    trainer = Trainer(run, dataset, CPU, Progress())
    steps = trainer.steps()
    if finish:
        for _ in steps:
            pass
        trainer.finish()
        facts_of(run, dataset)  # keeps its survey, as the report of `wcapsnet train` does
    else:
        while trainer.state.epoch < 1:
            next(steps)
        next(steps)
        trainer.pause()
        steps.close()
    return run, dataset


def facts_of(run: Run, dataset: Dataset | None, why: str = "The dataset is on holiday.") -> Facts:
    return gather(subject_of_run(run.path), dataset, why, CPU)


def with_results(facts: Facts, **results: Any) -> Facts:
    """The same run with other figures in test.json"""
    return replace(facts, subject=replace(facts.subject, results=results))


def with_survey(facts: Facts, **changes: Any) -> Facts:
    """The same run with other outputs"""
    assert facts.seen
    return replace(facts, seen=replace(facts.seen, survey=replace(facts.seen.survey, **changes)))


class Page(HTMLParser):
    """Fails where tags are not nested; collects what was met."""

    def __init__(self, text: str):
        super().__init__()
        self.open: list[str] = []
        self.met: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), (tag, names)
        self.met.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open, tag
        assert self.open.pop() == tag

    def handle_data(self, text: str) -> None:
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(text)

    def all(self, tag: str, class_: str | None = None) -> list[dict[str, str | None]]:
        return [
            a for name, a in self.met if name == tag and (class_ is None or class_ in (a.get("class") or "").split())
        ]

    @property
    def text(self) -> str:
        return re.sub(r"[ \n]+", " ", " ".join(self.words))
