"""The certain rules: any chunks, any prefix, any restart give the findings of the whole run."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import flashback_core as fb
from flashback_core.detectors.rules import CertainRules
from flashback_core.detectors.rules.engine import SETTLE
from flashback_core.detectors.score_stream import LEVEL
from flashback_core.errors import DetectorError
from flashback_core.report.model import Finding
from flashback_core.schema import EXACT_FIELDS
from flashback_core.table import MemoryTable, StepTable
from flashback_core.testing import healthy_run

DATA = Path(__file__).parents[2] / "data" / "forensics"
FILES = sorted(DATA.glob("steps/*.parquet"))
LOOK_AHEAD = 32
N = 600

Columns = dict[str, npt.NDArray[Any]]


def recorded(n: int) -> Columns:
    """Columns of a healthy run of our own, with every exact field known."""
    table = healthy_run(n)
    columns = {name: np.array(table.column(name)) for name in table}
    columns |= {f.column: np.full(n, f.absent, f.dtype) for f in EXACT_FIELDS}
    for name in ("no_grads", "duplicates", "lost_updates"):
        columns[f"exact:{name}"][:] = 0
    for name in ("inputs_changed", "labels_changed", "grads_kept"):
        columns[f"exact:{name}"][1:] = 0
    columns["exact:samples_known"][40:] = 32
    columns["exact:labels"][:] = 1
    columns["exact:low16"][:] = 4
    columns["exact:config_hash"][:] = np.uint64(2**63 + 5)
    columns["exact:epoch"][:] = np.arange(n) // 150
    columns["lr"] = columns["lr"].astype(np.float32)
    columns["exact:lr_scheduled"] = columns["lr"].astype(np.float64)
    columns["exact:scheduler_step"] = np.arange(n)
    columns["exact:opt_steps"] = np.arange(n) + 1
    return columns


def messy(seed: int) -> MemoryTable:
    """A run in which many things go wrong, and some are declared."""
    rng = np.random.default_rng(seed)
    columns = recorded(N)
    if seed % 3 == 0:
        del columns["exact:lr_scheduled"], columns["exact:scheduler_step"]
    if seed % 4 == 0:
        columns = {n: columns[n].astype(np.float64) for n in ("loss", "lr", "grad_norm")}
    names = [n for n in columns if not n.startswith("hist")]
    for _ in range(int(rng.integers(5, 25))):
        _spoil(columns, names[rng.integers(len(names))], rng)
    kinds = ("lr_milestone", "data", "freeze", "unfreeze")
    what = ("expect", "session", "gap", "replica_divergence", "resume_check")
    steps = np.cumsum(rng.choice([1, 1, 1, 5], N)) if seed % 5 == 0 else np.arange(N)
    events = [
        {"event": str(rng.choice(what)), "step": int(rng.integers(0, N)),
         "kind": str(rng.choice(kinds)), "differs": ["rng"]}
        for _ in range(int(rng.integers(0, 10)))
    ]  # fmt: skip
    return MemoryTable(steps, columns, events=sorted(events, key=lambda e: int(e["step"])))


def _spoil(columns: Columns, name: str, rng: np.random.Generator) -> None:
    values, start = columns[name], int(rng.integers(0, N))
    rows = slice(start, start + int(rng.choice([1, 1, 2, 3, 9, 40, 300])))
    if values.dtype.kind == "f":
        times = float(rng.choice([np.nan, np.inf, 0.0, 0.5, 4.0]))
        values[rows] = values[rows] * times if np.isfinite(times) else times
    elif name.endswith(("_step", "_steps")):
        values[start:] += int(rng.choice([-50, -1, 1, 40]))
    elif name == "exact:batch_seen":
        values[rows] = np.arange(N)[rows] - int(rng.choice([1, 30]))
    elif name == "exact:config_hash":
        values[start:] += np.uint64(1)
    else:
        values[rows] = int(rng.choice([0, 1, 2, 3]))


def said(
    table: StepTable, cuts: Sequence[int], *, restart: bool = False, all_events: bool = True
) -> tuple[list[Finding], CertainRules]:
    """Findings of `table` in chunks that end at `cuts`, and the rules."""
    rules, found, start = CertainRules(), list[Finding](), 0
    for stop in cuts:
        last = table.steps[stop - 1]
        events = [e for e in table.events if all_events or e["step"] <= last]
        found += rules.update(table[start:stop], events)
        start = stop
        if restart:
            text = json.dumps(rules.state(), allow_nan=False)
            rules = CertainRules.restore(json.loads(text))
    return found + rules.finish(), rules


def some_cuts(seed: int, n: int, n_cuts: int = 40) -> list[int]:
    """Row numbers to cut at, the last row among them."""
    rng = np.random.default_rng(seed)
    return sorted({*rng.integers(1, n, n_cuts).tolist(), n})


@pytest.mark.parametrize("seed", range(1, 13))
def test_chunks_and_restarts_change_nothing(seed: int) -> None:
    """One chunk, many chunks, restarts and events that come late by nothing: one answer."""
    table = messy(seed)
    whole, rules = said(table, [N])
    mask = rules.masked(0, N, 16)
    for cuts, options in (
        (some_cuts(seed, N), {}),
        (some_cuts(seed + 1, N), {"all_events": False}),
        (some_cuts(seed + 2, N), {"restart": True, "all_events": False}),
    ):
        found, other = said(table, cuts, **options)
        assert found == whole
        assert other.lr_jump_rows == rules.lr_jump_rows
        np.testing.assert_array_equal(other.masked(0, N, 16), mask)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_rows_one_by_one(seed: int) -> None:
    """Single rows give what one chunk gives."""
    table = messy(seed)
    assert said(table, range(1, N + 1))[0] == said(table, [N])[0]


@pytest.mark.parametrize("seed", range(1, 9))
def test_a_prefix_knows_no_later_row(seed: int) -> None:
    """What a prefix says is what the run says first, and nothing is said much later."""
    table = messy(seed)
    whole = CertainRules().update(table, table.events)
    for rows in some_cuts(seed, N, 6)[:-1]:
        part = CertainRules().update(table[:rows], table.events)
        assert part == whole[: len(part)]
        for finding in whole[len(part) :]:
            assert np.searchsorted(table.steps, finding.step) >= rows - LOOK_AHEAD


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_recorded_runs_cut_anyhow(path: Path) -> None:
    """Runs of the data set give the same findings in chunks of any size."""
    table = fb.open_run(path)
    whole, _ = said(table, [len(table)])
    for size in (3, 100):
        cuts = [*range(size, len(table), size), len(table)]
        assert said(table, cuts, restart=size == 3)[0] == whole


@pytest.mark.parametrize("n_chunks", [12, pytest.param(124, marks=pytest.mark.slow)])
def test_the_state_does_not_grow(n_chunks: int) -> None:
    """A million rows in which nothing happens leave the state as small as a thousand."""
    columns = recorded(8192)
    columns["lr"][:] = columns["exact:lr_scheduled"][:] = 1e-3
    columns["loss"] = 2 + 0.02 * np.random.default_rng(5).standard_normal(8192)
    rules, sizes = CertainRules(), []
    for i in range(n_chunks):
        columns["exact:scheduler_step"] = np.arange(8192) + 8192 * i
        columns["exact:opt_steps"] = columns["exact:scheduler_step"] + 1
        columns["exact:epoch"] = columns["exact:scheduler_step"] // 10_000
        assert rules.update(MemoryTable(columns["exact:scheduler_step"], columns), ()) == []
        sizes.append(len(json.dumps(rules.state())))
    assert rules.n_rows == 8192 * n_chunks
    assert sizes[-1] < 3 * sizes[0] < 180_000


def test_events_are_read_once() -> None:
    """A hundred thousand events that lie behind cost nothing and leave nothing in the state."""
    events = [{"event": "config", "step": 0, "changed": {}}] * 100_000
    table = healthy_run(200)
    rules = CertainRules()
    rules.update(table[:100], events)
    start = time.process_time()
    for row in range(100, 150):
        rules.update(table[row : row + 1], events)
    assert time.process_time() - start < 0.5
    assert len(json.dumps(rules.state())) < 60_000


@pytest.mark.slow
@pytest.mark.parametrize(("size", "most_us"), [(8192, 10.0), (8, 60.0)])
def test_rows_in_which_nothing_happens_are_cheap(size: int, most_us: float) -> None:
    """A row costs microseconds; the bounds leave room for a busy machine."""
    n = 16_384
    table = MemoryTable(np.arange(n), recorded(n))
    chunks = [table[start : start + size] for start in range(0, n, size)]
    times = []
    for _ in range(3):
        rules, start = CertainRules(), time.process_time()
        for chunk in chunks:
            rules.update(chunk, ())
        times.append(1e6 * (time.process_time() - start) / n)
    assert min(times) < most_us


def rows_of(columns: Columns, row: int) -> dict[str, Any]:
    """One row as the recorder has it."""
    return {name: values[row].item() for name, values in columns.items()}


URGENT = {
    "loss": np.nan, "nonfinite": 1.0, "group:head:update_nonfinite": 1.0, "lr": 2e-3,
    "exact:step_skipped": 1, "exact:outside": 1, "exact:batch_seen": 40, "exact:labels": 0,
    "exact:config_hash": 7, "exact:duplicates": 2, "exact:scheduler_step": 1,
    "exact:opt_steps": 1, "exact:lr_scheduled": 1e-9, "exact:grads_kept": 1,
    "exact:inputs_changed": 3, "exact:labels_changed": 1,
}  # fmt: skip


@pytest.mark.parametrize("name", URGENT)
def test_urgent(name: str) -> None:
    """A row is urgent where a rule would act on it, and only then."""
    columns = recorded(201)
    rules = CertainRules()
    rules.update(MemoryTable(np.arange(201), columns)[:200], ())
    row = rows_of(columns, 200)
    assert not rules.is_urgent(row)
    assert rules.is_urgent(row | {name: URGENT[name]})


def test_urgent_knows_habits() -> None:
    """What a run does by habit is not urgent: weights scaled outside, a loss that is not logged."""
    columns = recorded(60)
    columns["exact:outside"][:] = 1
    columns["loss"][:] = np.nan
    rules = CertainRules()
    assert rules.update(MemoryTable(np.arange(60), columns)[:59], ()) == []
    assert not rules.is_urgent(rows_of(columns, 59))


def test_masked_as_the_declared_events_have_it() -> None:
    """Rows after declared events, jumps of the rate and changes have no say."""
    lr = np.where(np.arange(N) < 300, 1e-3, 1e-4)
    events = [{"event": "expect", "step": 100, "kind": "data"}]
    table = MemoryTable(np.arange(N), {"lr": lr, "loss": np.ones(N)}, events=events)
    rules = CertainRules()
    rules.update(table, events)
    assert rules.lr_jump_rows == [300]
    expected = np.zeros(N, bool)
    expected[99 : 100 + LEVEL + 16 + SETTLE] = True
    expected[300 : 300 + LEVEL + 16 + SETTLE] = True  # the row before the jump was as ever
    np.testing.assert_array_equal(rules.masked(0, N, 16), expected)
    np.testing.assert_array_equal(rules.masked(250, 100, 16), expected[250:350])


@pytest.mark.parametrize("before", [1e-3, 1.1e-4])
def test_masked_after_a_declared_milestone(before: float) -> None:
    """A large declared step of the rate is learnt anew, a small one excuses three rows."""
    lr = np.where(np.arange(N) < 300, before, 1e-4)
    events = [{"event": "expect", "step": 300, "kind": "lr_milestone"}]
    rules = CertainRules()
    rules.update(MemoryTable(np.arange(N), {"lr": lr}, events=events), events)
    assert rules.lr_jump_rows == []
    assert rules.masked(0, N, 16).sum() == (82 if before == 1e-3 else 3)


def test_a_state_of_another_version() -> None:
    """A state that cannot be read says so."""
    with pytest.raises(DetectorError, match="version 9"):
        CertainRules.restore({"version": 9})
