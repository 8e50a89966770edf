"""Mutated experiment.json files: each is accepted, or refused with one sentence.

WCAPSNET_MUTATIONS is the number of files to try; the default takes a few seconds.
"""

import json
import os
import random

import pytest

from fault_trials.inputs import BASES, base, mutated, text_of, tried
from wcapsnet import memory


@pytest.mark.parametrize(("name", "share"), BASES.items())
def test_any_experiment_json_is_accepted_or_refused_but_never_a_crash(tmp_path, monkeypatch, name, share):
    monkeypatch.setattr(memory, "available", lambda device: 80e6)  # what fits is built, so keep it small
    content, accepted = base(name), 0
    path = tmp_path / "experiment.json"
    for number in range(int(share * int(os.environ.get("WCAPSNET_MUTATIONS", 300)))):
        chance = random.Random(f"{name} {number}")
        text = text_of(mutated(content, chance), chance)
        try:
            refused = tried(path, text)
        except Exception as error:
            raise AssertionError(f"mutation {number}: {text[:5000]}") from error
        accepted += refused is None
        assert refused is None or len(refused) < 1000
    assert accepted  # the test is about both
    assert tried(path, json.dumps(content)) is None
