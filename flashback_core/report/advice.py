"""What to do now: commands to copy for a finding, and where to look first."""

from __future__ import annotations

import shlex
import unicodedata
from dataclasses import dataclass

import numpy as np

from flashback_core.report.batch import Batch, batch_at
from flashback_core.report.kinds import DIRECTIONS, finding_words, told_kind
from flashback_core.report.look import SHRANK, look_words
from flashback_core.report.model import DetectionReport, Finding

__all__ = ["Command", "commands", "look_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something to copy: why, and the text; `language` is ``sh`` or ``python``."""

    why: str
    text: str
    language: str = "sh"


def look_at(finding: Finding) -> str:
    """Where to look first for a finding of this kind; empty when no kind is known."""
    if finding.kind == "outlier" and finding_words(finding) == DIRECTIONS["outlier"][2]:
        return SHRANK
    return look_words(told_kind(finding))


def commands(report: DetectionReport, finding: Finding | None) -> tuple[Command, ...]:
    """Commands to copy for `finding`, the most useful first."""
    source = shell_word(report.source)
    if finding is None:
        return _without_finding(report, source)
    found = []
    if source:
        first, last = _steps_round(report, finding)
        found.append(
            Command(
                why="See the steps round it in the terminal",
                text=f"flashback show {source} --steps {first}:{last}",
            )
        )
        found += _numbers(finding, source, f"{first}:{last}")
        found += _go_back(report, finding, source)
        found += _compare(source)
    return (*found, *_skip_batch(report, finding))


def _steps_round(report: DetectionReport, finding: Finding) -> tuple[int, int]:
    """Steps of about 20 rows on both sides; 20 steps where the rows are not at hand."""
    if report.table is None or len(report.table) == 0:
        return max(finding.step - 20, report.first_step or 0), finding.step + 20
    steps = report.table.steps
    row = int(np.searchsorted(steps, finding.step))
    return int(steps[max(0, row - 20)]), int(steps[min(len(steps) - 1, row + 20)])


def _without_finding(report: DetectionReport, source: str) -> tuple[Command, ...]:
    if not source:
        return ()
    if report.status == "not_enough_data":
        return (
            Command(why="Look at what there is", text=f"flashback show {source}"),
            Command(why="Judge again when more is recorded", text=f"flashback detect {source}"),
        )
    return (Command(why="Look through the run", text=f"flashback show {source}"), *_compare(source))


def _compare(source: str) -> tuple[Command, ...]:
    return (
        Command(
            why="Find the step at which it parts from another run (put its path for RUN_B)",
            text=f"flashback diff {source} RUN_B",
        ),
        Command(
            why="Take the numbers into a notebook or a table",
            text=f"flashback export {source} run.parquet",
        ),
    )


def _numbers(finding: Finding, source: str, steps: str) -> tuple[Command, ...]:
    """The metrics that moved first, step by step."""
    names = [shell_word(f"--metric={m.metric}", path=False) for m in finding.top_metrics[:3]]
    chosen = " ".join(name for name in names if name)
    if not chosen:
        return ()
    return (
        Command(
            why="See the numbers that moved first, step by step",
            text=f"flashback show {source} {chosen} --steps {steps}",
        ),
    )


def _go_back(report: DetectionReport, finding: Finding, source: str) -> tuple[Command, ...]:
    """Restoring, where the run kept what that takes."""
    good = min(finding.step, finding.interval[0]) - 1
    if not report.facts.get("rewind") or good < -1:
        return ()
    return (
        Command(
            why=f"Get the weights and the optimizer of step {good:,} back, the last one before it",
            text=f"flashback restore {source} --step {good} --out restored.pt",
        ),
    )


def _skip_batch(report: DetectionReport, finding: Finding) -> tuple[Command, ...]:
    batch = batch_at(report.table, finding.step) if report.table is not None else None
    if batch is None or batch.index is None:
        return ()
    return (
        Command(
            why="Leave the batch of that step out when you train again",
            text=f"if {_condition(batch)}:\n    continue",
            language="python",
        ),
    )


def _condition(batch: Batch) -> str:
    if batch.epoch is None:
        return f"batch_index == {batch.index}"
    return f"(epoch, batch_index) == ({batch.epoch}, {batch.index})"


def shell_word(source: str, *, path: bool = True) -> str:
    """`source` quoted for a shell; empty when it cannot be typed safely or is not known.

    Args:
        source: The text.
        path: Whether it is a path, which must not look like an option.
    """
    odd = any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in source)
    if not source or odd or len(source) > 400:
        return ""
    return shlex.quote(f"./{source}" if path and source.startswith("-") else source)
