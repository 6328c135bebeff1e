"""What to do now: commands to copy for a finding, and where to look first."""

from __future__ import annotations

import shlex
import unicodedata
from dataclasses import dataclass

import numpy as np

from flashback_core.report.batch import Batch, batch_at
from flashback_core.report.model import DetectionReport, Finding

__all__ = ["Command", "commands", "look_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """Something to copy: why, and the text; `language` is ``sh`` or ``python``."""

    why: str
    text: str
    language: str = "sh"


_LOOK = (
    (
        ("lr",),
        "Compare the scheduler with the learning rate at that step: a scheduler stepped twice, a "
        "wrong resume and a changed configuration look like this.",
    ),
    (
        ("nonfinite", "nan", "inf", "loss_zero"),
        "Look at the part of the model that is not finite first; check the loss scale, the "
        "learning rate and the batch of that step, and go back to the step before it.",
    ),
    (
        ("outside", "weights_changed", "params_changed", "bit_flip", "state"),
        "Something other than the optimizer wrote to the weights or to the optimizer's state: look "
        "at callbacks, checkpoint loading, averaging of weights and the memory of the machine.",
    ),
    (
        ("batch", "data", "poison", "label"),
        "Look at the samples of that batch: their source, labels and order.",
    ),
    (
        ("config",),
        "Compare the configuration before and after: options of the parameter groups, train or "
        "eval mode, frozen parameters.",
    ),
    (
        ("dead", "zero", "frozen"),
        "Look for parameters that lost their gradient or left the optimizer: requires_grad, a "
        "detached tensor, an underflow of 16-bit numbers.",
    ),
    (
        ("never",),
        "Nothing was ever learnt: check the learning rate, the labels, and that the optimizer "
        "holds the parameters of this model.",
    ),
    (
        ("skip",),
        "The gradient scaler finds NaN or Inf at every step: look at the loss scale and the loss.",
    ),
    (
        ("shift", "jump", "spike", "outlier", "divergence", "consensus", "gradual"),
        "Look at the metrics that moved first: a gradient that moves before the loss points to the "
        "data or the loss, an update that moves alone to the optimizer or the learning rate.",
    ),
)
"""Words in a finding's kind, and where to look first; the first line that fits holds."""


def look_at(finding: Finding) -> str:
    """Where to look first for a finding of this kind; empty when no kind is known."""
    kind = finding.kind.lower()
    words = kind.split("_")
    for keys, sentence in _LOOK:
        if any(key in words or ("_" in key and key in kind) for key in keys):
            return sentence
    return ""


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


def shell_word(source: str) -> str:
    """`source` quoted for a shell; empty when it cannot be typed safely or is not known."""
    odd = any(unicodedata.category(c) in {"Cc", "Cf", "Cs", "Zl", "Zp"} for c in source)
    if not source or odd or len(source) > 400:
        return ""
    return shlex.quote(f"./{source}" if source.startswith("-") else source)
