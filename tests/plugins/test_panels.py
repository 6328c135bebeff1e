"""Names, choices and tables for trackers."""

from __future__ import annotations

import re
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flashback_core.errors import SchemaError
from flashback_core.report.model import MetricScore
from flashback_core.schema import N_BINS, SketchSchema
from flashback_plugins import panels
from tests.plugins import _tracker_data as data

steady = settings(derandomize=True, database=None, deadline=None)


@pytest.mark.parametrize(
    ("metric", "path"),
    [
        ("grad_norm", "grad_norm"),
        ("group:attn_qkv:max_abs", "group/attn_qkv/max_abs"),
        ("hist_update:15", "hist_update/15"),
        ("group:layers.0:var", "group/layers.0/var"),
        ("group:router/0:var", "group/router-x2f-0/var"),
        ("group:..:var", "group/-x--x2e--x2e-/var"),
    ],
)
def test_a_colon_becomes_a_slash(metric: str, path: str) -> None:
    """Schema names become plain paths; a slash in a group's own name is no separator."""
    assert panels.tracker_name(metric) == path
    assert panels.metric_name(f"flashback/{path}") == metric


def test_all_names_of_the_schema_are_plain() -> None:
    """No name of the default schema needs an escape, and no two become one."""
    names = SketchSchema().names
    paths = {panels.tracker_name(name) for name in names}
    assert len(paths) == len(names)
    assert all(re.fullmatch(r"[a-z0-9_/]+", path) for path in paths)


@steady
@given(st.text(max_size=300) | st.text("ab-x2f:/._ 0h", max_size=300))
def test_every_name_comes_back(name: str) -> None:
    """Any text survives the way into a tracker and back."""
    path = panels.tracker_name(name)
    assert panels.metric_name(path, [name]) == name
    assert panels.metric_name(panels.PREFIX + path, [name]) == name


@steady
@given(st.lists(st.text("a-x2f:/.", max_size=12) | st.text("ab:", min_size=230), max_size=4))
def test_no_two_names_become_one(names: list[str]) -> None:
    """Different metrics have different paths."""
    assert len({panels.tracker_name(name) for name in names}) == len(set(names))


@steady
@given(st.text(max_size=300))
def test_paths_have_only_what_trackers_take(name: str) -> None:
    """At most 250 characters with the prefix, no sign outside the common set, no odd part."""
    path = panels.PREFIX + panels.tracker_name(name)
    assert len(path) <= 250
    assert re.fullmatch(r"[A-Za-z0-9_/. -]+", path)
    assert not {"", ".", ".."} & set(path.split("/"))


def test_a_shortened_name_is_looked_up() -> None:
    """A name too long for MLflow is found among the names of the run, or the error says how."""
    long = "group:" + "g" * 300 + ":var"
    path = panels.tracker_name(long)
    assert panels.metric_name(path, ["loss", long]) == long
    with pytest.raises(SchemaError, match="shortened name"):
        panels.metric_name(path, ["loss"])


def test_edges_are_those_of_the_bins() -> None:
    """17 edges, two powers of two apart; bin 15 begins at 0.5 and bin 0 ends at 2**-29."""
    assert len(panels.LOG2_EDGES) == N_BINS + 1
    assert {b - a for a, b in pairwise(panels.LOG2_EDGES)} == {2}
    assert 2.0 ** panels.LOG2_EDGES[15] == 0.5
    assert 2.0 ** panels.LOG2_EDGES[1] == 4.0 ** (1 - 16) * 2


def test_live_scalars_are_few_and_the_telling_ones() -> None:
    """Out of a whole sketch come twelve scalars, loss and norms first."""
    values = dict.fromkeys(SketchSchema().names, 1.0)
    live = list(panels.live_scalars(values))
    assert len(live) == 12
    assert live[:3] == ["loss", "grad_norm", "update_norm"]


def test_live_scalars_leave_out_bins_and_sample_ids() -> None:
    """Histogram bins, exact fields and what is known of sample ids never go live."""
    values = {"hist_grad:3": 1.0, "batch_id_mean": 7.0, "exact:rank": 0.0, "mine": 2}
    assert panels.live_scalars(values) == {"mine": 2.0}


def test_findings_are_rows() -> None:
    """One row for each finding, as long as the header, with plain values."""
    table = panels.findings_table(data.report())
    assert [row[0] for row in table.rows] == [20, data.FIRST_BAD_STEP]
    assert all(len(row) == len(table.columns) for row in table.rows)
    assert {type(value) for row in table.rows for value in row} == {int, float, str}


def test_summary_of_a_healthy_run() -> None:
    """A run without a finding has no first bad step and no confidence in one."""
    verdict = panels.summary(data.healthy())
    assert (verdict["status"], verdict["first_bad_step"]) == ("healthy", None)


@pytest.mark.parametrize(
    ("fields", "level"),
    [
        ({"confidence": 0.97}, "ERROR"),
        ({"confidence": 0.5}, "WARN"),
        ({"severity": "change", "confidence": 0.97}, "INFO"),
        ({"severity": "info"}, "INFO"),
    ],
)
def test_alert_levels(fields: dict[str, object], level: str) -> None:
    """A suspect is a warning, a bad step as good as sure an error, a change only news."""
    assert panels.alert_level(data.finding(**fields)) == level


def test_titles_are_short() -> None:
    """A title stays under W&B's 64 characters, whatever the kind is called."""
    title = panels.alert_title(data.finding(123456789, kind="k" * 80))
    assert len(title) == 63
    assert title.startswith("flashback: first bad step 123456789 (k")


def test_text_of_an_alert() -> None:
    """The text says where, how sure, why, and what moved first."""
    moved = (MetricScore(metric="loss", score=3.0, step=38),)
    lines = panels.alert_text(data.finding(evidence=("because",), top_metrics=moved)).splitlines()
    assert lines == [
        "Step 37 (between 36 and 38), update_shift, confidence 0.97.",
        "because",
        "Moved first: loss (step 38).",
    ]


@pytest.mark.parametrize(
    ("fields", "same"),
    [
        ({}, True),
        ({"step": 38, "interval": (38, 39)}, True),
        ({"step": 39, "interval": (39, 40)}, False),
        ({"kind": "nonfinite"}, False),
        ({"severity": "change"}, False),
    ],
)
def test_one_event_or_two(fields: dict[str, object], same: bool) -> None:
    """Two findings are one event if kind and severity agree and their intervals meet."""
    step = fields.pop("step", data.FIRST_BAD_STEP)
    assert panels.same_finding(data.finding(), data.finding(step, **fields)) is same
