"""`report.terminal_table`: a run in a terminal."""

from __future__ import annotations

import io

import numpy as np
import pytest
from rich.console import Console

from flashback_core.errors import SchemaError
from flashback_core.report.terminal import render_groups, render_table
from flashback_core.table import MemoryTable


def console(width: int = 100) -> Console:
    """A console that keeps what is printed."""
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def printed(out: Console) -> str:
    """What `out` was given."""
    return out.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above


def test_overview(make_run) -> None:
    """The overview has the scalars, each group with a sparkline, and says what it left out."""
    out = console()
    render_table(make_run(), console=out)
    text = printed(out)
    for part in ("400 rows, steps 0 to 399", "loss", "group:attn_qkv:grad_norm", "more metrics"):
        assert part in text


def test_steps_are_printed_row_by_row(make_run) -> None:
    """A short stretch shows one row per step with exact fields in hexadecimal."""
    out = console()
    render_table(make_run(), metrics=["loss", "exact:config_hash"], steps=(100, 104), console=out)
    text = printed(out)
    assert all(f" {step}" in text for step in range(100, 105))
    assert "000000001234abcd" in text


def test_no_row_there(make_run) -> None:
    """A stretch without rows is said to be one."""
    out = console()
    render_table(make_run(), steps=(5000, 6000), console=out)
    assert "no row lies there" in printed(out)


def test_unknown_metric(make_run) -> None:
    """A misspelt metric gets the closest names."""
    with pytest.raises(SchemaError, match=r"close to it: .*grad_norm"):
        render_table(make_run(), metrics=["grad_nrm"], console=console())


def test_empty_run() -> None:
    """A run without rows is said to be one."""
    out = console()
    render_table(MemoryTable([], {"loss": []}), console=out)
    assert "No step was recorded." in printed(out)


@pytest.mark.parametrize("width", [60, 80, 200])
def test_any_width(width: int, make_run, hostile) -> None:
    """No line is wider than the terminal."""
    for table in (make_run(), hostile.table):
        out = console(width)
        render_table(table, console=out)
        assert max(len(line) for line in printed(out).splitlines()) <= width


def test_groups() -> None:
    """Each group lists its parameters with their shapes."""
    parameters = [{"name": "a.qkv.weight", "shape": [192, 64], "numel": 12_288}]
    events = ({"event": "groups", "groups": {"attn_qkv": parameters}},)
    out = console()
    render_groups(MemoryTable(np.arange(2), {"loss": [1.0, 2.0]}, events=events), out)
    assert "attn_qkv: 1 tensor, 12,288 numbers" in printed(out)
    assert "a.qkv.weight  192 × 64" in printed(out)


def test_no_groups(make_run) -> None:
    """A run that names none says who does."""
    out = console()
    render_groups(make_run(), out)
    assert "fb.Recorder" in printed(out)
