"""What happens while the run goes on: is it healthy, and what to do when it is not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashback_core.report.model import Finding
from flashback_core.warn import Guard
from flashback_plugins._lightning_trainer import say

if TYPE_CHECKING:
    from flashback_core.recorder import Recorder

__all__ = ["ACTIONS", "HEALTH", "SURE", "Action", "Actions", "Online"]

ACTIONS = ("warn", "checkpoint", "stop")
HEALTH = "flashback/health"
"""For other callbacks to monitor: 1.0 while nothing is wrong, 0.0 from the first bad step on."""

Action = str | Callable[[Finding, Any], object]

SURE = 0.9
"""Confidence from which on a finding is acted on."""


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
    """Takes the findings of a fit while it goes on, and acts once.

    Args:
        actions: What to do.
        guard: Warns where a function of the user's fails.
        sure: Confidence from which on a finding is acted on.

    Attributes:
        finding: The first bad step, None while nothing is wrong.
    """

    def __init__(self, actions: Actions, guard: Guard, sure: float = SURE) -> None:
        self._actions, self._guard, self._sure = actions, guard, sure
        self.start(None)

    def start(self, folder: Path | None) -> None:
        """Begin a fit.

        Args:
            folder: The run folder, on all ranks; None where nothing is to be left.
        """
        self._folder = folder
        self.finding: Finding | None = None
        self._health: float | None = None
        self._is_told = self._is_done = False

    def found(self, recorder: Recorder, finding: Finding) -> None:
        """Take a finding of the recorder's."""
        is_sure = finding.severity == "bad" and finding.confidence >= self._sure
        if is_sure and self.finding is None:
            self.finding = finding

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
