"""The frozen list of kinds agrees with the code, and its splits hold."""

from __future__ import annotations

import json
from importlib.resources import files

import pytest

from flashback_core import faults
from flashback_core.forensics.config import TaskConfig
from flashback_core.forensics.healthy import HEALTHY
from flashback_core.forensics.kinds import (
    ABILITIES,
    HARD_KINDS,
    SEED_KINDS,
    abilities,
    build_kinds,
    load_kinds,
)

KINDS = load_kinds()


def test_list_is_what_the_code_says() -> None:
    """No kind of the frozen list has changed its strengths, needs or split in the code."""
    text = files("flashback_core.forensics").joinpath("kinds.json").read_text("utf-8")
    frozen, now = json.loads(text)["kinds"], json.loads(json.dumps(build_kinds()))["kinds"]
    assert {n: now[n] for n in frozen} == frozen


def test_list_holds_every_kind_once() -> None:
    """All fault kinds and healthy kinds of the code are in it, and no name means two."""
    assert set(KINDS.entries) == {*faults.kinds(), *HEALTHY}
    assert not set(faults.kinds()) & set(HEALTHY)


def test_sets_have_their_sizes() -> None:
    """Six published kinds, 43 hard ones, at least 25 healthy ones, some placebos."""
    assert KINDS.names("seed") == tuple(sorted(SEED_KINDS))
    assert KINDS.names("hard") == tuple(sorted(HARD_KINDS))
    assert len(KINDS.names("hard")) == 43
    assert len(KINDS.names("healthy")) >= 25
    assert len(KINDS.names("reported")) >= 20
    assert len(KINDS.names("placebo")) >= 5


@pytest.mark.parametrize("chosen", ["hard", "reported", "placebo", "healthy"])
def test_a_third_is_held_out(chosen: str) -> None:
    """A third of each set is never in training or calibration."""
    names = KINDS.names(chosen)
    share = sum(KINDS[n].is_held_out for n in names) / len(names)
    assert share == pytest.approx(1 / 3, abs=0.02)
    held_out = [n for n in names if KINDS[n].is_held_out]
    assert {KINDS.split(n, seed) for n in held_out for seed in range(10)} == {"test"}


def test_seeds_are_split_by_their_last_digit() -> None:
    """Four in ten seeds train, two calibrate, four test."""
    splits = [KINDS.split("bit_flip", seed) for seed in range(20)]
    assert splits == (["train"] * 4 + ["calibration"] * 2 + ["test"] * 4) * 2


def test_needs_are_known_and_can_be_met() -> None:
    """Every need is described, and every ability is there in some task."""
    configs = [
        TaskConfig(family="gpt", micro_batches=2),
        TaskConfig(family="cnn", size="mini"),
        TaskConfig(family="moe"),
        TaskConfig(family="mlp", precision="fp16"),
    ]
    met = frozenset().union(*map(abilities, configs))
    assert {need for e in KINDS.entries.values() for need in e.needs} <= met
    assert met <= set(ABILITIES)


def test_strengths_surround_the_usual_one() -> None:
    """The usual strength lies in the range that strengths are drawn from."""
    for entry in KINDS.entries.values():
        if entry.strengths is not None:
            low, high = entry.strengths
            assert low <= entry.strength <= high


def test_unknown_kind_is_refused() -> None:
    """The message says where the list is."""
    with pytest.raises(ValueError, match=r"not in the frozen list of \d+ kinds"):
        KINDS["bit_flop"]
