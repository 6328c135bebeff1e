"""`report.events`: what happened to a run, in words, and where it was resumed."""

from __future__ import annotations

import numpy as np
import pytest

from flashback_core.report.chart_timeline import timeline
from flashback_core.report.events import event_words, resumed_rows, resumes, told
from flashback_core.report.spec import Lanes
from flashback_core.table import MemoryTable

SESSIONS = (
    {"event": "groups", "groups": {}},
    {"event": "session", "step": 0},
    {"event": "session", "step": 120},
    {"event": "resume", "step": 300, "after_step": 320},
    {"event": "session", "step": 300},
)


def test_every_recording_but_the_first_is_a_resume() -> None:
    """A resume without superseded rows counts; one with them is counted once, and says more."""
    assert [e["step"] for e in resumes(SESSIONS)] == [120, 300]
    assert resumes(SESSIONS)[1]["after_step"] == 320
    assert resumes(SESSIONS[:2]) == []


def test_resumes_are_on_the_timeline(make_run, make_report) -> None:
    """Both resumes are marked, and the start of the first recording is not."""
    stack = timeline(table := make_run(events=SESSIONS), make_report(table, "healthy"))
    lanes = next(c for c in stack.charts if isinstance(c, Lanes))
    marks = dict(lanes.lanes)["resumed"]
    assert [m.step for m in marks] == [120, 300]
    assert "up to step 320 were superseded" in marks[1].label


def test_rows_of_resumes() -> None:
    """The first row of each later recording, also where steps are missing."""
    table = MemoryTable(np.arange(0, 400, 10), {"loss": np.ones(40)}, events=SESSIONS)
    assert resumed_rows(table).tolist() == [12, 30]
    assert resumed_rows(MemoryTable([5], {"loss": [1.0]}, events=SESSIONS)).tolist() == []


@pytest.mark.parametrize(
    ("event", "words"),
    [
        (
            {"event": "outside", "step": 9, "what": "weights", "tensors": ["a.w"], "n_tensors": 1},
            "step 9: the weights changed outside the optimizer: a.w",
        ),
        (
            {"event": "config", "step": 9, "n_settings": 1, "changed": {"eps of group 0": [1, 2]}},
            "step 9: 1 setting changed: eps of group 0",
        ),
        (
            {"event": "resume_check", "step": 9, "differs": ["the scheduler"]},
            "step 9: the resume did not bring back: the scheduler",
        ),
        (
            {"event": "replica_divergence", "step": 9, "rank": 1, "text": "…"},
            "step 9: copies of the model on different processes differ (rank 1)",
        ),
        (
            {
                "event": "replica_divergence",
                "step": 9,
                "rank": -1,
                "text": "…",
                "kind": "state_changed",
            },
            "step 9: the part of the optimizer's state that one process holds changed outside the "
            "optimizer",
        ),
        ({"event": "note", "step": 9, "text": "hello"}, "step 9: hello"),
        ({"event": "odd", "step": "x", "a": 1}, "odd (a 1)"),
    ],
)
def test_words(event: dict[str, object], words: str) -> None:
    """Each event that flashback writes is said in plain words."""
    assert event_words(event) == words


@pytest.mark.parametrize("value", [None, 3, "x", [1], {"a": 1}, float("nan"), True])
@pytest.mark.parametrize("kind", ["outside", "config", "resume_check", "gap", "resume", "session"])
def test_odd_events_do_no_harm(kind: str, value: object) -> None:
    """Any value of any key is said or left out."""
    keys = ("step", "what", "tensors", "n_tensors", "changed", "differs", "last_step", "after_step")
    event = {"event": kind} | dict.fromkeys(keys, value)
    assert isinstance(event_words(event), str)
    assert isinstance(told([event, event]), list)
