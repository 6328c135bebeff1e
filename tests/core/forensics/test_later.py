"""Kinds that were added after the list was frozen."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
CODE = """
import json, sys
import numpy as np
from flashback_core import faults
from flashback_core.forensics import kinds
from flashback_core.forensics.plans import plan, prepared
from flashback_core.forensics.scales import SCALES, run_list
from flashback_core.forensics.tasks import build

before = run_list(SCALES["large"])
assert not set(kinds.LATER) & set(kinds.load_kinds().entries)
runs = run_list(SCALES["tiny"], kinds=["added"], n_seeds=1)


def trained(kind, twin=False, n=12, at=6):
    run = plan(0, kind, preset="tiny", n_steps=n)
    config, events = prepared(run)
    task = build(config)
    for event in events:
        event.join(task)
    fault = None if twin else faults.make(kind, step=at)
    if fault is not None:
        task.attach(fault)
    return run, task


def drift(twin):
    _, task = trained("tied_weights_drift", twin)
    named = dict(task.model.named_parameters())
    head = named["lm_head.weight"]
    (other,) = (p for p in named.values() if p is not head and p.shape == head.shape)
    out = []
    for step in range(12):
        task.step(step)
        out.append(float((head - other).abs().max()))
    return out


def moves(twin):
    _, task = trained("duplicate_augment", twin)
    source, seen = task.source, []
    event = task.acts[0]
    for step in range(12):
        for act in task.acts:
            act.on_step_start(step)
        batch = source.draw(step, 8, 0)
        moved = event.batch(step, batch)
        same = [bool((a == b).all()) for a, b in zip(batch["x"], moved["x"])]
        seen.append([
            [int(i) for i in np.argwhere([[(x.roll((a, b), (0, 1)) == y).all() for b in (-1, 0, 1)]
             for a in (-1, 0, 1)])[0]] for x, y in zip(batch["x"], moved["x"])])
    return seen


print(json.dumps({
    "runs": runs, "large": before == run_list(SCALES["large"], kinds=None) or "differs",
    "drift": drift(False), "twin": drift(True), "moves": moves(False), "twin_moves": moves(True),
    "set": kinds.load_kinds()["tied_weights_drift"].set,
    "background": plan(3, "duplicate_augment", preset="tiny").healthy,
}))
"""


@pytest.fixture(scope="module")
def found() -> dict[str, object]:
    """What a process of its own says: the kinds stay in the process that loads them."""
    done = subprocess.run(
        [sys.executable, "-c", CODE], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_they_are_scored_apart(found: dict[str, object]) -> None:
    """The set `added` holds the two fault kinds; their runs do what the background does."""
    assert found["runs"] == [["tied_weights_drift", 0], ["duplicate_augment", 0]] or found[
        "runs"
    ] == [["duplicate_augment", 0], ["tied_weights_drift", 0]]
    assert (found["set"], found["background"]) == ("added", "augmented")


def test_tie_holds_until_the_fault(found: dict[str, list[float]]) -> None:
    """Embedding and head are the same bit for bit, then drift apart; in the twin they never do."""
    assert found["drift"][:6] == [0.0] * 6
    assert found["drift"][6] > 0
    assert found["drift"][11] > found["drift"][6]
    assert found["twin"] == [0.0] * 12


def test_workers_draw_alike_from_the_fault_on(found: dict[str, list[list[list[int]]]]) -> None:
    """Eight samples of four workers: the two moves of a worker are those of all."""
    for step, (moves, twin) in enumerate(zip(found["moves"], found["twin_moves"], strict=True)):
        assert (moves == moves[:2] * 4) == (step >= 6)
        assert twin != twin[:2] * 4


def test_scales_are_as_before(found: dict[str, object]) -> None:
    """No scale holds them by itself, whether they are loaded or not."""
    assert found["large"] is True
