"""`report.invariants`: invariants that broke, with their values before and then."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.report.checks import broken
from flashback_core.report.events import event_words
from flashback_core.report.model import Finding, MetricScore
from flashback_core.report.window import around
from flashback_core.table import MemoryTable


def rows(report) -> list[tuple[int, str, str, str]]:
    """Step, name, value before and value then of each check."""
    window = around(report.table, report.bad)
    assert window is not None
    return [(c.step, c.name, c.before, c.at) for c in broken(window, report)]


def test_what_was_written_to_is_named(make_run, make_bad) -> None:
    """A write from outside is shown with the tensor and how many of its entries changed."""
    event = {"event": "outside", "step": 240, "what": "weights", "n_tensors": 1,
             "tensors": ["head.weight"], "entries": [1]}  # fmt: skip
    table = make_run(events=(event,))
    table.column("exact:outside")[240] = 1
    assert rows(make_bad(table, 240, kind="outlier")) == [
        (240, "exact:outside", "weights as the step before left it",
         "head.weight changed (1 of its entries)"),
    ]  # fmt: skip


def test_a_resume_is_no_write(make_run, make_bad) -> None:
    """What changed while nobody recorded is not accused of it."""
    events = ({"event": "session", "step": 0}, {"event": "session", "step": 240})
    table = make_run(events=events)
    table.column("exact:outside")[240] = 1
    table.column("group:head:sign_flip")[240] = float("nan")
    assert rows(make_bad(table, 240, kind="outlier")) == []


def test_each_setting_that_changed(make_run, make_bad) -> None:
    """Settings are listed one by one, with what they were and what they are."""
    changed = {"eps of group 0": [1e-8, 1e-3], "training of net": [True, False]}
    table = make_run(events=({"event": "config", "step": 240, "changed": changed},))
    table.column("exact:config_hash")[240:] = 0x99
    assert rows(make_bad(table, 240, kind="outlier")) == [
        (240, "eps of group 0", "1e-8", "0.001"),
        (240, "training of net", "yes", "no"),
    ]


def test_what_an_adapter_found(make_run, make_bad) -> None:
    """A resume that lost something and replicas that differ are listed wherever they lie."""
    events = (
        {"event": "resume_check", "step": 30, "differs": ["the scheduler", "the scaler"]},
        {"event": "replica_divergence", "step": 350, "rank": 1, "text": "…"},
    )
    found = rows(make_bad(make_run(events=events), 240, kind="outlier"))
    assert [(step, name) for step, name, _, _ in found] == [
        (30, "the scheduler"), (30, "the scaler"), (350, "exact:params_hash"),
    ]  # fmt: skip
    assert found[2][3] == "process 1 differs"
    assert all(event_words(e) for e in events)


def test_fields_that_findings_name(make_run, make_bad) -> None:
    """An exact field that a finding names is shown, also far from the first finding."""
    table = make_run()
    columns = {name: table.column(name) for name in table}
    columns["exact:batch_seen"] = [-1] * 390 + [12] * 10
    columns["exact:lost_updates"] = [0] * 240 + [4] * 160
    table = MemoryTable(table.steps, columns)
    score = MetricScore(metric="exact:batch_seen", score=1e6, step=390)
    later = Finding(step=390, interval=(390, 390), kind="batch_repeated", confidence=0.99,
                    severity="bad", top_metrics=(score,))  # fmt: skip
    report = make_bad(table, 240, metrics=("exact:lost_updates",), others=(later,))
    assert rows(report) == [
        (240, "exact:lost_updates", "0 tensors", "4 tensors"),
        (390, "exact:batch_seen", "a new batch", "the batch of step 12"),
    ]


def test_odd_values_do_no_harm(make_run, make_bad) -> None:
    """Events and fields of any shape give a table, not an error."""
    events = tuple(
        {"event": kind, "step": 240, "what": odd, "tensors": odd, "changed": odd, "differs": odd,
         "entries": odd, "n_tensors": odd}
        for kind in ("outside", "config", "resume_check", "replica_divergence")
        for odd in (None, 3, "x", [], {"a": 3}, {"a": [1, 2]})
    )  # fmt: skip
    report = make_bad(make_run(events=events), 240, metrics=("exact:outside", "exact:config_hash"))
    assert rows(report)


def test_a_shard_that_was_written_to(make_run, make_bad) -> None:
    """Where each process holds a part of the model, the row says whose part changed."""
    events = tuple(
        {"event": "replica_divergence", "step": 240, "kind": kind, "rank": rank, "text": "…"}
        for kind, rank in (("weights_changed", 1), ("state_changed", -1))
    )
    found = rows(make_bad(make_run(events=events), 240, kind="outlier"))
    assert [(name, at) for _, name, _, at in found] == [
        ("exact:params_hash", "changed on process 1"),
        ("exact:state_hash", "changed on one process"),
    ]


@pytest.mark.parametrize(
    ("field", "before", "now", "words"),
    [
        ("lr_scheduled", 1e-3, 1e-4, ("0.001", "0.0001")),
        ("scheduler_step", 240, 480, ("at 240", "at 480")),
        ("opt_steps", 1240, 0, ("at 1,240", "at 0")),
        ("clip_coef", 1.0, float("nan"), ("1", "not known")),
    ],
)
def test_counters_and_rates(
    make_run, make_bad, field: str, before: float, now: float, words: tuple[str, str]
) -> None:
    """The fields of schedules, counters and clipping are said in words."""
    run = make_run()
    column = np.where(np.arange(len(run)) < 240, before, now)
    table = MemoryTable(run.steps, {n: run.column(n) for n in run} | {f"exact:{field}": column})
    report = make_bad(table, 240, kind="schedule_step", metrics=(f"exact:{field}",))
    assert rows(report) == [(240, f"exact:{field}", *words)]


def test_the_step_before_of_the_same_optimizer(make_run, make_bad) -> None:
    """With two optimizers in turn, a value is compared with the same one's last."""
    run = make_run()
    turns = np.arange(len(run)) % 2
    columns = {n: run.column(n) for n in run}
    columns |= {"exact:optimizer": turns, "exact:opt_steps": np.where(turns, 900, 7)}
    report = make_bad(MemoryTable(run.steps, columns), 241, metrics=("exact:opt_steps",))
    assert rows(report) == [(241, "exact:opt_steps", "at 900", "at 900")]
