"""`report.columns`: names in a terminal are broken behind their separators only."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flashback_core.report.columns import fitting, folded, name_width
from flashback_core.report.terminal import render, render_table


@pytest.mark.parametrize("width", [3, 8, 20, 30])
def test_nothing_is_lost(width: int) -> None:
    """The lines put together are the name, and none is too wide."""
    name = "group:transformer.layer_10:upd_param_ratio"
    lines = folded(name, width).split("\n")
    assert "".join(lines) == name
    assert max(len(line) for line in lines) <= width


def test_lines_end_behind_a_separator() -> None:
    """No word is broken where it fits."""
    lines = folded("group:transformer.layer_10:upd_param_ratio", 20).split("\n")
    assert all(line[-1] in ":._" for line in lines[:-1])


def test_columns_are_given_up_before_names() -> None:
    """Where the room is short the last columns go first."""
    cells = [["score", "99.9"], ["then", "0.0123"], ["before", "0.0123"]]
    names = ["group:attn_qkv:update_norm"]
    assert [fitting(cells, names, room, 2)[0] for room in (80, 50, 45, 36, 20)] == [3, 2, 2, 1, 0]
    assert name_width(["x" * 90]) == 36


@pytest.mark.parametrize("width", [80, 100])
def test_metric_names_stay_whole(width: int, make_run, make_bad) -> None:
    """Every metric of the schema stands in one line, in `detect` and in `show`."""
    metrics = ("group:attn_qkv:upd_param_ratio", "lr", "group:mlp_out:update_nonfinite")
    table = make_run(fault_step=240)
    out = Console(file=io.StringIO(), width=width, force_terminal=False)
    render(make_bad(table, 240, metrics=metrics), out)
    render_table(table, console=out)
    text = out.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    assert all(f"{name} " in text for name in (*metrics, "group:attn_out:upd_param_ratio"))
    assert max(len(n) for n in text.splitlines() if not n.startswith("  flashback ")) <= width
