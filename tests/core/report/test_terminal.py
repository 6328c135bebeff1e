"""`report.terminal`: the report in a terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flashback_core.report.terminal import render


def shown(report, width: int = 100) -> str:
    """What `render` prints."""
    console = Console(file=io.StringIO(), width=width, force_terminal=False)
    render(report, console)
    return console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above


def test_a_bad_run(spiked) -> None:
    """Verdict, what moved first with a sparkline, evidence, batch and commands are printed."""
    text = shown(spiked)
    for part in ("BAD", "step 240", "update_norm", "▁", "epoch 1", "flashback show runs/my-run"):
        assert part in text


def test_a_healthy_run(healthy) -> None:
    """A healthy run is said to be one, with the rate of false alarms."""
    text = shown(healthy)
    assert "HEALTHY" in text
    assert "4.2 false alarms" in text


@pytest.mark.parametrize("width", [40, 80, 200])
def test_any_width(width: int, spiked, hostile) -> None:
    """No line but a command to copy is wider than the terminal."""
    for report in (spiked, hostile):
        lines = shown(report, width).splitlines()
        assert max(len(ln) for ln in lines if not ln.startswith("  flashback ")) <= width


def test_hostile_names_send_no_codes(hostile) -> None:
    """No escape code, direction mark or markup of rich comes from a name."""
    text = shown(hostile)
    assert "\x1b" not in text
    assert "\u202e" not in text


def test_square_brackets_are_text(make_run, make_bad) -> None:
    """Evidence that looks like markup of rich is printed as it is."""
    text = shown(make_bad(make_run(), 100, evidence=("[red]x[/red] [link=file:///]y[/link]",)))
    assert "[red]x[/red]" in text
