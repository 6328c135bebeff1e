"""What happens while the run goes on: is it healthy, and what to do when it is not."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from flashback_core.report.model import Finding, MetricScore
from flashback_core.warn import Guard
from flashback_plugins._lightning_trainer import say

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder

__all__ = ["ACTIONS", "HEALTH", "Action", "Actions", "Online", "RowJudge"]

ACTIONS = ("warn", "checkpoint", "stop")
HEALTH = "flashback/health"
"""For other callbacks to monitor: 1.0 while nothing is wrong, 0.0 from the first bad step on."""

Floats = npt.NDArray[np.float64]
Action = str | Callable[[Finding, Any], object]

_REGULAR = 4
_CERTAIN = 0.99


class RowJudge:
    """Judges each row by the signs that need no baseline: what is NaN or infinite.

    A step that GradScaler skipped is its healthy work. The rest is left to the report at the end.

    Args:
        metrics: Names of the values of a row.
    """

    def __init__(self, metrics: Sequence[str]) -> None:
        kinds = ("nonfinite", "update_nonfinite")
        places = [i for i, name in enumerate(metrics) if name.split(":")[-1] in kinds]
        self._names, self._places = [metrics[i] for i in places], places
        self._loss = list(metrics).index("loss")
        self._n_losses = 0
        self.finding: Finding | None = None

    def __call__(self, step: int, values: Floats, exact: Mapping[str, float]) -> None:
        """Look at one row; keeps the first that is bad as `finding`."""
        if self.finding is not None or exact.get("step_skipped"):
            return
        counts = values[self._places]
        metrics = [n for n, c in zip(self._names, counts, strict=True) if c > 0]
        loss = float(values[self._loss])
        if math.isfinite(loss):
            self._n_losses += 1
        elif math.isinf(loss) or self._n_losses >= _REGULAR:  # a NaN may be a loss not logged
            metrics.insert(0, "loss")
        if metrics:
            self.finding = _nonfinite(step, metrics, values, self._names, self._places)


def _nonfinite(
    step: int,
    metrics: Sequence[str],
    values: Floats,
    names: Sequence[str],
    places: Sequence[int],
) -> Finding:
    of = dict(zip(names, places, strict=True))
    said = [
        f"The loss was NaN or infinite at step {step}."
        if name == "loss"
        else f"{name} was {int(values[of[name]])} at step {step}."
        for name in metrics[:4]
    ]
    scores = tuple(MetricScore(metric=n, score=1e6, step=step) for n in metrics[:8])
    return Finding(
        step=step, interval=(step, step), kind="nonfinite", confidence=_CERTAIN, severity="bad",
        evidence=tuple(said), top_metrics=scores,
    )  # fmt: skip


class Actions:
    """What the user wants to be done at the first bad step.

    Args:
        wanted: One of `ACTIONS`, a function of the finding and the trainer, or several.

    Raises:
        ValueError: If an action is not known.
    """

    def __init__(self, wanted: Action | Sequence[Action]) -> None:
        several = isinstance(wanted, Sequence) and not isinstance(wanted, str)
        self._actions: list[Any] = list(wanted) if several else [wanted]  # type: ignore[arg-type]  # narrowed by `several`
        unknown = [a for a in self._actions if not callable(a) and a not in ACTIONS]
        if unknown:
            known = ", ".join(map(repr, ACTIONS))
            msg = f"on_detect={unknown[0]!r}; expected {known}, a function, or a list of them"
            raise ValueError(msg)

    def on_rank_zero(self, finding: Finding, trainer: Any, guard: Guard) -> None:
        """Warn and call, once."""
        for action in self._actions:
            if action == "warn":
                say(f"flashback: step {finding.step} went wrong ({finding.kind}): "
                    f"{' '.join(finding.evidence[:2])}")  # fmt: skip
            elif callable(action):
                with guard("on_detect"):
                    action(finding, trainer)

    def on_all_ranks(self, trainer: Any, folder: Path | None) -> None:
        """Save a checkpoint and stop, once."""
        if "checkpoint" in self._actions and folder is not None:
            path = folder / "checkpoints" / f"detected-after-step-{trainer.global_step - 1}.ckpt"
            trainer.save_checkpoint(str(path))
            say(f"flashback: the state behind the bad step is kept in {path}")
        if "stop" in self._actions:
            trainer.should_stop = True


class Online:
    """Judges the rows of a fit as they are written, and acts once.

    Args:
        actions: What to do.
        guard: Warns where a function of the user's fails.

    Attributes:
        finding: The first bad step, None while nothing is wrong.
    """

    def __init__(self, actions: Actions, guard: Guard) -> None:
        self._actions, self._guard = actions, guard
        self.start(None)

    def start(self, folder: Path | None) -> None:
        """Begin a fit.

        Args:
            folder: The run folder, on all ranks; None where nothing is to be left.
        """
        self._folder = folder
        self._judge: RowJudge | None = None
        self.finding: Finding | None = None
        self._health: float | None = None
        self._is_told = self._is_done = False

    def see(
        self, recorder: Recorder, step: int, values: Floats, exact: Mapping[str, float]
    ) -> None:
        """Look at a row that has been written."""
        if self._judge is None:
            self._judge = RowJudge(recorder.schema.names)
        self._judge(step, values, exact)
        self.finding = self.finding or self._judge.finding

    def after_batch(
        self, trainer: Any, pl_module: Any, recorder: Recorder | None, *, is_turn: bool
    ) -> None:
        """Tell others whether the run is healthy, and do what is wanted when it is not.

        Args:
            trainer: The trainer.
            pl_module: Its module, through which the health is logged.
            recorder: The recorder, None on other ranks.
            is_turn: Whether the health is logged again even if it is what it was.
        """
        health = 1.0 if self.finding is None else 0.0
        if is_turn or health != self._health:
            pl_module.log(HEALTH, health, on_step=True, on_epoch=False, logger=False)
        self._health = health
        self.tell(trainer, recorder)
        if self.finding is not None and trainer.world_size == 1:
            self.act_together(trainer)

    def tell(self, trainer: Any, recorder: Recorder | None) -> None:
        """Tell people of the finding, once, on rank zero."""
        if self.finding is not None and recorder is not None and not self._is_told:
            self._is_told = True
            recorder.alert(self.finding)
            self._actions.on_rank_zero(self.finding, trainer, self._guard)

    def act_together(self, trainer: Any) -> None:
        """Do what all ranks have to do at the same time, once."""
        if self._is_done:
            return
        self._is_done = True
        with self._guard("on_detect"):
            self._actions.on_all_ranks(trainer, self._folder)
