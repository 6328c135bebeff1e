"""Recorder: the whole flow of a live run, from the optimizer's hooks to the report."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.groups import GroupRule, group_parameters
from flashback_core.index import StepSketchIndex
from flashback_core.index.remote import share
from flashback_core.no_index import NoIndex
from flashback_core.optimizer_hooks import OptimizerHooks
from flashback_core.row_writer import RowWriter
from flashback_core.rows import (
    Logged,
    OpenRow,
    batch_ids_array,
    batch_scalars,
    exact_fields,
    one_number,
)
from flashback_core.run_files import FolderFiles
from flashback_core.scaler_hooks import ScalerHooks
from flashback_core.schema import SketchSchema
from flashback_core.sink import Sink
from flashback_core.sink_set import SinkSet
from flashback_core.sketch.parameters import check_owned, innermost_optimizer, named_parameters
from flashback_core.sketch.sharded import rank, reshard
from flashback_core.sketch.sketcher import Sketcher
from flashback_core.start import open_index, run_facts
from flashback_core.warn import Guard, disabled
from flashback_core.watch.batch import BatchWatch
from flashback_core.watch.run import RunWatch

if TYPE_CHECKING:
    from flashback_core.report.model import DetectionReport, Finding

__all__ = ["Recorder"]

OnRow = Callable[["Recorder", int, npt.NDArray[np.float64], Mapping[str, float]], object]

_GIVEN_SCALARS = {"batch_id_mean", "batch_uniq_frac"}


class Recorder:
    """Records a sketch of every optimizer step, and reports when the run ends.

    Hooks on the optimizer do the work; `log` once per step adds the loss and the batch. Closing
    (the end of the ``with`` block, or `close`) seals the index, detects, writes
    ``report.{json,md,html}`` and tells the sinks. Nothing that fails in here stops the training:
    there is one warning, and what failed is left out.

    Where the model is sharded over ranks (FSDP2, DTensor), each rank makes its own recorder with
    the same arguments, and closes it at the same step; rank zero writes and reports for all.

    Args:
        dir: Run folder; the index lies in ``dir/sketch``. An existing run is continued.
        model: The module that holds all parameters of the optimizer.
        optimizer: A torch optimizer, a wrapper of one, or several.
        start_step: First step to come. Rows at or past it are superseded and kept. None goes on
            after the last row.
        scaler: The loop's `torch.amp.GradScaler`: makes skipped steps certain.
        rewind: Reserved for the delta store; only False for now.
        sinks: Where metrics, alerts and the report go, see `flashback_core.sink`.
        groups: A rule or mapping from parameters to groups, see `groups.group_parameters`.
        update_from: ``"snapshot"`` holds a copy of the weights (4 bytes a parameter) and sees what
            else changed them; ``"state"`` works updates out from Adam's moments (0 bytes).
        histogram_every: Histograms count one of so many units of entries per step, in turn; all
            else is exact at every step. 1 counts all.
        log_every: Steps between two calls of the sinks' live metrics.
        run: Facts of the run to keep with it (plain JSON values).
        write_report: Whether closing detects and writes the report.
        on_row: Called with the recorder, step, values and exact fields of each row when it has
            been written.

    Raises:
        ModelError: If the model has nothing to train, or an optimizer is not of this model.
        IndexLockedError: If another process records into `dir`.
        ValueError: If `rewind` is asked for.
    """

    def __init__(
        self,
        dir: str | Path,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        *,
        start_step: int | None = None,
        scaler: torch.amp.GradScaler | None = None,
        rewind: bool | str = False,
        sinks: Sequence[Sink] = (),
        groups: GroupRule | Mapping[str, str] | None = None,
        update_from: str = "snapshot",
        histogram_every: int = 1,
        log_every: int = 10,
        run: Mapping[str, Any] | None = None,
        write_report: bool = True,
        on_row: OnRow | None = None,
    ) -> None:
        if rewind:
            msg = f"rewind={rewind!r}: the delta store is not part of this version; use False"
            raise ValueError(msg)
        self.dir = Path(dir)
        self.report: DetectionReport | None = None
        self._guard = Guard()
        self._open: OpenRow | None = None
        self._early: Logged | None = None
        self._mode: str | None = None
        self._seen: int | None = None  # optimizer whose gradients were read for the coming step
        self._standing: dict[str, float] = {}  # exact fields of every row
        self._standing_scalars: dict[str, float] = {}
        self._watched: dict[str, float] = {}  # exact fields of the step that is being made
        self._ended = time.perf_counter()
        self._next_step = 0
        self._lr = float("nan")
        self._scale = 1.0
        self._is_stepped = False  # whether the optimizer stepped inside the scaler's step
        self._write_report = write_report
        self._url: str | None = None
        self._hooks: list[OptimizerHooks | ScalerHooks] = []
        self._closed = disabled()
        self._sinks = SinkSet((), self._guard, log_every)
        if self._closed:
            return
        self._sinks = SinkSet(sinks, self._guard, log_every)
        self._has_scaler = scaler is not None and scaler.is_enabled()
        if isinstance(model, torch.nn.Module):  # anything else is refused with the rest
            reshard(model)
        index = self._setup(model, optimizer, groups, run, (histogram_every, update_from))
        if start_step is not None:
            index.resume_at(start_step)
        self._next_step = index.last_step + 1 if start_step is None else start_step
        told = None if on_row is None else partial(on_row, self)
        self._rows = RowWriter(index, self.schema, self._sinks, self._guard, self._name_of, told)
        self._rows.add_event({"event": "groups", "groups": self._group_table})
        self._rows.add_event({"event": "session", "step": self._next_step})
        if scaler is not None:
            self._hooks.append(ScalerHooks(scaler, self._before_scaler, self._after_scaler))
        self._ended = time.perf_counter()

    def _setup(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        groups: GroupRule | Mapping[str, str] | None,
        run: Mapping[str, Any] | None,
        settings: tuple[int, str],
    ) -> StepSketchIndex | NoIndex:
        given = list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]
        self._optimizers = [innermost_optimizer(o) for o in given]
        named = named_parameters(model)
        check_owned(self._optimizers, named.tensors, type(model).__name__)
        if named.skipped:
            self._guard.warn(
                "types", f"{len(named.skipped)} parameters that are complex or integer have no "
                f"metrics: {', '.join(named.skipped[:3])} …")  # fmt: skip
        grouping = group_parameters(named.infos, groups)
        self.schema = SketchSchema(grouping.groups)
        names = {id(t): info.name for t, info in zip(named.tensors, named.infos, strict=True)}
        places = {g: i for i, g in enumerate(grouping.groups)}
        self._sketchers = [
            Sketcher(
                o,
                lambda p: places[grouping.of[names[id(p)]]],
                len(places),
                histogram_every=settings[0],
                update_from=settings[1],
            )
            for o in self._optimizers
        ]
        self._name_of: Callable[[torch.Tensor], str] = lambda p: names[id(p)]
        self._watch = RunWatch(model, self._optimizers, self._name_of)
        self._batches = BatchWatch()
        index: StepSketchIndex | NoIndex = NoIndex(self.dir / "sketch")
        if any(s.is_sharded for s in self._sketchers) and rank() > 0:
            self._write_report = False
            self._sinks = SinkSet((), self._guard, 1)
        else:
            facts = run_facts(model, self._optimizers, named, self._sketchers[0].backend)
            index = open_index(self.dir, self.schema, facts | dict(run or {}), self._guard)
        self.dir, self._url = index.path.parent, index.url
        self._group_table = grouping.table(named.infos)
        self._hooks = [
            OptimizerHooks(o, lambda i=i: self._before(i), lambda i=i: self._after(i))  # type: ignore[misc]
            for i, o in enumerate(self._optimizers)
        ]
        return index

    # -- what the loop calls -----------------------------------------------------------------

    def log(
        self,
        *,
        loss: Any = None,
        batch_ids: Any = None,
        batch: Any = None,
        **exact: float,
    ) -> None:
        """Add what only the loop knows; at most once per optimizer step.

        Called after `optimizer.step()` it closes that step's row; called before it, it belongs to
        the step to come. The first call decides which. When this returns the row has been handed to
        the operating system. A call without an optimizer step since the last one is a skipped step.

        Args:
            loss: Loss of the step.
            batch_ids: Sample ids of the batch; only their mean, their share of distinct ones and
                a hash are kept.
            batch: The batch itself, tensors in any nesting: a digest of its content is kept, and
                whether it came before; tensors on a device are left out.
            exact: Exact fields by name (``epoch=…``, ``batch_index=…``), see `schema.EXACT_FIELDS`.
        """
        if self._closed or self._guard.failed("recording"):
            return
        with self._guard("recording"):
            logged = self._logged(loss, batch_ids, exact, batch)
            if self._mode is None:
                self._mode = "before" if self._open is None else "after"
            if self._mode == "after":
                self._log_after(logged)
            else:
                self._log_before(logged)

    def _logged(
        self, loss: Any, batch_ids: Any, exact: Mapping[str, float], batch: Any = None
    ) -> Logged:
        logged = Logged()
        with self._guard("the loss that was logged", keep=True):
            logged.loss = one_number(loss)
        with self._guard("the exact fields that were logged", keep=True):
            logged.exact = exact_fields(exact)
        if batch_ids is not None or batch is not None:
            with self._guard("the batch", keep=True):
                ids = None if batch_ids is None else batch_ids_array(batch_ids)
                if ids is not None:
                    logged.scalars.update(batch_scalars(ids))
                seen = self._batches.fields(self._next_step, ids, batch)
                logged.exact = {**seen, **logged.exact}
        return logged

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

    def end_step(self, *, loss: Any = None, **exact: float) -> None:
        """Like `log`, for adapters that know that a step has just been attempted.

        It closes the open row; where no hook saw the step, that step was skipped.
        """
        if self._closed or self._guard.failed("recording"):
            return
        with self._guard("recording"):
            self._mode = "after"
            self._log_after(self._logged(loss, None, exact))

    def mark(self, **fields: float) -> None:
        """Set fields of all rows that open from now on, until they are set again.

        Args:
            fields: Exact fields by name (``epoch=…``, ``batch_index=…``, see
                `schema.EXACT_FIELDS`), and scalars that the sketch does not work out itself
                (``batch_id_mean``, ``batch_uniq_frac``).
        """
        for name, value in fields.items():
            of = self._standing_scalars if name in _GIVEN_SCALARS else self._standing
            of[name] = value

    @property
    def has_open_row(self) -> bool:
        """Whether a step was made whose row `log`, `end_step` or the next step will close."""
        return self._open is not None

    def expect(self, step: int, kind: str) -> None:
        """Declare a regime change at `step`, at or before it happens.

        Args:
            step: First step under the new regime.
            kind: ``lr_milestone``, ``data``, ``accumulation``, ``batch_size``, ``freeze``,
                ``unfreeze``, ``weight_decay`` or any other word.
        """
        if not self._closed:
            self._rows.add_event({"event": "expect", "step": int(step), "kind": str(kind)})

    def observe_gradients(self, *, scale: float = 1.0, optimizer: int = 0) -> None:
        """Read the gradients now, e.g. before your own clipping, instead of at the step.

        Args:
            scale: Loss scale that is still on the gradients; they are divided by it.
            optimizer: Index of the optimizer whose gradients they are.
        """
        if self._closed or self._guard.failed("the sketch"):
            return
        with self._guard("the sketch"):
            self._finish_row()
            self._sketchers[optimizer].gradients(scale)
            self._seen = optimizer

    def add_event(self, event: Mapping[str, Any]) -> None:
        """Keep something that happened beside the steps, e.g. ``{"event": "note", "step": 9}``."""
        if not self._closed:
            self._rows.add_event(event)

    def alert(self, finding: Finding) -> None:
        """Tell the sinks of a finding while the run goes on; each is told once."""
        self._sinks.alert(finding)

    def pause(self, seconds: float) -> None:
        """Take `seconds` (of validation, say) off this step's wall time."""
        if not self._closed:
            self._ended += seconds

    # -- what the hooks call -----------------------------------------------------------------

    def _before(self, i: int) -> None:
        if self._closed or self._guard.failed("the sketch"):
            return
        with self._guard("the sketch"):
            self._finish_row()
            if self._seen != i:
                self._sketchers[i].gradients(_fused_scale(self._optimizers[i]))
            self._lr = float(self._optimizers[i].param_groups[0]["lr"])
        self._look(i)

    def _look(self, i: int) -> None:
        """Take the exact watches just before the update."""
        self._watched = {}
        if self._guard.failed("the exact watches"):
            return
        with self._guard("the exact watches"):
            self._watched, events = self._watch.start(i, self._next_step)
            for event in events:
                self._rows.add_event(event)

    def _after(self, i: int) -> None:
        if self._closed or self._guard.failed("the sketch"):
            self._sketchers[i].leave()
            return
        with self._guard("the sketch"):
            self._is_stepped = True
            self._open_row(i, found_inf=getattr(self._optimizers[i], "found_inf", None))

    def _open_row(
        self, i: int, *, skipped: bool = False, found_inf: torch.Tensor | None = None
    ) -> None:
        row = OpenRow(
            sums=self._sketchers[i].updates(),
            parameters=self._sketchers[i].parameters,
            exact={**self._standing, **self._watched, "optimizer": i},
            scalars=dict(self._standing_scalars),
            found_inf=found_inf,
        )
        self._watched = {}
        if not self._guard.failed("the exact watches"):
            with self._guard("the exact watches"):
                row.exact.update(self._watch.end(i, self._next_step))
        row.scalars["lr"] = self._lr
        if skipped:
            row.exact["step_skipped"] = 1
        if self._has_scaler:
            row.exact["loss_scale"] = self._scale
        now = time.perf_counter()
        row.scalars["step_wall_ms"] = (now - self._ended) * 1e3
        self._ended = now
        self._seen = None
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
        now = time.perf_counter()
        row.scalars["step_wall_ms"] = (now - self._ended) * 1e3
        self._ended = now
        self._seen = None
        return row

    def _before_scaler(self, scale: float) -> None:
        self._scale = scale
        self._is_stepped = False

    def _after_scaler(self, optimizer: torch.optim.Optimizer) -> None:
        if self._closed or self._is_stepped or self._guard.failed("the sketch"):
            return  # the hooks saw the step
        with self._guard("the sketch"):
            inner = innermost_optimizer(optimizer)
            i = next((k for k, o in enumerate(self._optimizers) if o is inner), None)
            if i is None:
                return
            self._before(i)
            self._open_row(i, skipped=True)

    # -- rows --------------------------------------------------------------------------------

    def _finish_row(self) -> None:
        """Close the row of the step before, if the loop has not logged it."""
        if self._open is not None:
            self._close_row(self._open)

    def _close_row(self, row: OpenRow) -> None:
        self._open = None
        self._next_step += 1
        self._rows.put(self._next_step - 1, row)

    # -- the end -----------------------------------------------------------------------------

    @property
    def index(self) -> StepSketchIndex:
        """The index, opened for reading."""
        return StepSketchIndex(self.dir / "sketch")

    @property
    def next_step(self) -> int:
        """Step of the row to come; a row that is still open is counted."""
        return self._next_step + (self._open is not None)

    def close(self) -> DetectionReport | None:
        """Seal, detect, report. Idempotent; returns the report (None if there is none)."""
        if self._closed:
            return self.report
        self._closed = True
        for hooks in self._hooks:
            hooks.remove()
        with self._guard("recording"):
            self._last_rows()
        self._rows.close()
        if self._write_report:
            with self._guard("the report"):
                self._detect()
        self._sinks.close()
        return self.report

    def _last_rows(self) -> None:
        self._finish_row()
        if self._early is not None and self._mode == "before" and self._has_scaler:
            row = self._skipped_row()
            row.add(self._early)
            self._close_row(row)

    def _detect(self) -> None:
        from flashback_core.detection import detect

        index = self.index
        self.report = detect(index)
        paths = {}
        with self._guard("writing the report", keep=True):
            paths = self.report.write(self.dir)
        if paths:
            (self.dir / "index.parquet").unlink(missing_ok=True)  # of an earlier part of the run
        if paths and self._url is not None:
            with self._guard("uploading the report", keep=True):
                share(self._url, paths.values())
        self._sinks.report(self.report, FolderFiles(self.dir, index, paths))

    def __enter__(self) -> Self:
        """The recorder itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close, after an exception too."""
        self.close()


def _fused_scale(optimizer: torch.optim.Optimizer) -> float:
    """Loss scale that is still on the gradients of a fused optimizer under GradScaler."""
    scale = getattr(optimizer, "grad_scale", None)
    return float(scale) if scale is not None else 1.0
