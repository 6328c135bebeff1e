"""Steps: the open row of a run, and all that hooks and the loop tell of it."""

from __future__ import annotations

import time
from collections.abc import Mapping

import torch

from flashback_core.optimizer_hooks import OptimizerHooks
from flashback_core.row_writer import RowWriter
from flashback_core.rows import Logged, OpenRow
from flashback_core.scaler_hooks import ScalerHooks
from flashback_core.sketch.parameters import innermost_optimizer
from flashback_core.start import Parts
from flashback_core.warn import Guard
from flashback_core.watch.clip import ClipWatch
from flashback_core.watch.kept import KeptGradients

__all__ = ["Steps"]

_GIVEN_SCALARS = {"batch_id_mean", "batch_uniq_frac"}


class Steps:
    """Makes one row of each attempted step: opened by the hooks, closed by the loop or the next.

    Args:
        parts: What watches the run; hooks are put on its optimizers.
        rows: Takes the rows that are closed.
        guard: Turns failures into warnings.
        next_step: Number of the step to come.
        scaler: The loop's loss scaler, or None.
    """

    def __init__(
        self,
        parts: Parts,
        rows: RowWriter,
        guard: Guard,
        next_step: int,
        scaler: torch.amp.GradScaler | None,
    ) -> None:
        self._optimizers, self._sketchers = parts.optimizers, parts.sketchers
        self._watch, self._schedule = parts.watch, parts.schedule
        self._clip = [ClipWatch() for _ in self._optimizers]
        self._clip_coef: float | torch.Tensor | None = None
        self._kept = [KeptGradients() for _ in self._optimizers]
        self._are_kept = -1
        self._rows, self._guard = rows, guard
        self.next_step = next_step
        self.is_closed = False
        self._open: OpenRow | None = None
        self._early: Logged | None = None
        self._mode: str | None = None
        self._seen: int | None = None  # optimizer whose gradients were read for the coming step
        self._standing: dict[str, float] = {}  # exact fields of every row
        self._standing_scalars: dict[str, float] = {}
        self._watched: dict[str, float] = {}  # exact fields of the step that is being made
        self._lr = float("nan")
        self._scale = 1.0
        self._is_stepped = False  # whether the optimizer stepped inside the scaler's step
        self._has_scaler = scaler is not None and scaler.is_enabled()
        self._hooks: list[OptimizerHooks | ScalerHooks] = [
            OptimizerHooks(o, lambda i=i: self._before(i), lambda i=i: self._after(i))  # type: ignore[misc]
            for i, o in enumerate(self._optimizers)
        ]
        if scaler is not None:
            self._hooks.append(ScalerHooks(scaler, self._before_scaler, self._after_scaler))
        self._ended = time.perf_counter()

    # -- what the loop tells -----------------------------------------------------------------

    def log(self, logged: Logged) -> None:
        """Take what was logged, after the step or before it: the first call decides which."""
        if self._mode is None:
            self._mode = "before" if self._open is None else "after"
        if self._mode == "after":
            self._log_after(logged)
        else:
            self._log_before(logged)

    def end(self, logged: Logged) -> None:
        """Take what was logged of a step that has just been attempted."""
        self._mode = "after"
        self._log_after(logged)

    def _log_after(self, logged: Logged) -> None:
        row = self._open if self._open is not None else self._skipped_row()
        row.add(logged)
        self._close_row(row)

    def _log_before(self, logged: Logged) -> None:
        if self._open is not None:
            self._close_row(self._open)
        elif self._early is not None:
            row = self._skipped_row()
            row.add(self._early)
            self._close_row(row)
        self._early = logged

    def mark(self, fields: Mapping[str, float]) -> None:
        """Set fields of all rows that open from now on."""
        for name, value in fields.items():
            of = self._standing_scalars if name in _GIVEN_SCALARS else self._standing
            of[name] = value

    def observe(self, i: int, scale: float) -> None:
        """Read the gradients of optimizer `i` now, divided by `scale`."""
        self._finish_row()
        self._sketchers[i].gradients(scale)
        self._seen = i
        if not self._guard.failed("the watch on clipping"):
            with self._guard("the watch on clipping"):
                self._clip[i].observe(self._sketchers[i].parameters, scale)
        self._are_kept = self._kept[i].look()

    def pause(self, seconds: float) -> None:
        """Take `seconds` off this step's wall time."""
        self._ended += seconds

    @property
    def has_open_row(self) -> bool:
        """Whether a step was made whose row is not closed."""
        return self._open is not None

    # -- what the hooks call -----------------------------------------------------------------

    def _before(self, i: int) -> None:
        if self.is_closed or self._guard.failed("the sketch"):
            return
        with self._guard("the sketch"):
            self._finish_row()
            if self._seen != i:
                self._sketchers[i].gradients(_fused_scale(self._optimizers[i]))
                self._are_kept = self._kept[i].look()
            self._lr = float(self._optimizers[i].param_groups[0]["lr"])
        self._look(i)
        self._clip_coef = self._clipping(i)

    def _look(self, i: int) -> None:
        """Take the exact watches just before the update."""
        self._watched = {}
        if not self._guard.failed("the exact watches"):
            with self._guard("the exact watches"):
                self._watched, events = self._watch.start(i, self.next_step)
                for event in events:
                    self._rows.add_event(event)
        self._watched.update(self._scheduled(i))

    def _scheduled(self, i: int) -> dict[str, float]:
        """What the scheduler of optimizer `i` says."""
        if self._schedule and not self._guard.failed("the scheduler"):
            with self._guard("the scheduler"):
                return self._schedule.fields(i)
        return {}

    def _clipping(self, i: int) -> float | torch.Tensor | None:
        """What the loop did to the gradients since it showed them."""
        if self._seen == i and not self._guard.failed("the watch on clipping"):
            with self._guard("the watch on clipping"):
                return self._clip[i].coefficient(_fused_scale(self._optimizers[i]))
        return None

    def _after(self, i: int) -> None:
        if self.is_closed or self._guard.failed("the sketch"):
            self._sketchers[i].leave()
            return
        with self._guard("the sketch"):
            self._is_stepped = True
            self._open_row(i, found_inf=getattr(self._optimizers[i], "found_inf", None))

    def _before_scaler(self, scale: float) -> None:
        self._scale = scale
        self._is_stepped = False

    def _after_scaler(self, optimizer: torch.optim.Optimizer) -> None:
        if self.is_closed or self._is_stepped or self._guard.failed("the sketch"):
            return  # the hooks saw the step
        with self._guard("the sketch"):
            inner = innermost_optimizer(optimizer)
            i = next((k for k, o in enumerate(self._optimizers) if o is inner), None)
            if i is None:
                return
            self._before(i)
            self._open_row(i, skipped=True)

    # -- rows --------------------------------------------------------------------------------

    def _open_row(
        self, i: int, *, skipped: bool = False, found_inf: torch.Tensor | None = None
    ) -> None:
        row = OpenRow(
            sums=self._sketchers[i].updates(),
            parameters=self._sketchers[i].parameters,
            exact={
                **self._standing,
                **self._watched,
                "optimizer": i,
                "grads_kept": self._are_kept,
            },
            scalars=dict(self._standing_scalars),
            found_inf=found_inf,
            clip_coef=self._clip_coef,
        )
        self._watched = {}
        self._kept[i].end(self._sketchers[i].parameters)
        if not self._guard.failed("the exact watches"):
            with self._guard("the exact watches"):
                row.exact.update(self._watch.end(i, self.next_step))
        row.scalars["lr"] = self._lr
        if skipped:
            row.exact["step_skipped"] = 1
        if self._has_scaler:
            row.exact["loss_scale"] = self._scale
        self._time(row)
        self._open = row
        if self._early is not None:
            row.add(self._early)
            self._early = None
            self._close_row(row)

    def _skipped_row(self) -> OpenRow:
        """A step that was attempted and not applied: no hook has seen it."""
        i = self._seen or 0
        row = OpenRow(
            # where the sketch has failed no hook looks any more: that is no sign of a skipped step
            exact={
                **self._standing,
                "optimizer": i,
                "step_skipped": int(not self._guard.failed("the sketch")),
            },
            scalars=dict(self._standing_scalars),
        )
        if self._sketchers and not self._guard.failed("the sketch"):
            with self._guard("the sketch"):
                if self._seen is None:
                    self._sketchers[i].gradients()
                row.sums = self._sketchers[i].updates()
                row.parameters = self._sketchers[i].parameters
        row.scalars["lr"] = float(self._optimizers[i].param_groups[0]["lr"])
        row.exact.update(self._scheduled(i))
        self._time(row)
        return row

    def _time(self, row: OpenRow) -> None:
        """The step of `row` ends now."""
        now = time.perf_counter()
        row.scalars["step_wall_ms"] = (now - self._ended) * 1e3
        self._ended = now
        self._seen = None

    def _finish_row(self) -> None:
        """Close the row of the step before, if the loop has not logged it."""
        if self._open is not None:
            self._close_row(self._open)

    def _close_row(self, row: OpenRow) -> None:
        self._open = None
        self.next_step += 1
        self._rows.put(self.next_step - 1, row)

    def leave(self) -> None:
        """Take the hooks off; nothing is seen any more."""
        self.is_closed = True
        for hooks in self._hooks:
            hooks.remove()

    def last_rows(self) -> None:
        """Close what is open, and the row of a last step that the scaler skipped."""
        self._finish_row()
        if self._early is not None and self._mode == "before" and self._has_scaler:
            row = self._skipped_row()
            row.add(self._early)
            self._close_row(row)


def _fused_scale(optimizer: torch.optim.Optimizer) -> float:
    """Loss scale that is still on the gradients of a fused optimizer under GradScaler."""
    scale = getattr(optimizer, "grad_scale", None)
    return float(scale) if scale is not None else 1.0
