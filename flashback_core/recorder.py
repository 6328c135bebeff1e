"""Recorder: the whole flow of a live run, from the optimizer's hooks to the report."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.groups import GroupRule
from flashback_core.index import StepSketchIndex
from flashback_core.index.remote import share
from flashback_core.no_index import NoIndex
from flashback_core.recorder_input import LoopInput
from flashback_core.recorder_steps import Steps
from flashback_core.row_writer import RowWriter
from flashback_core.run_files import FolderFiles
from flashback_core.sink import Sink
from flashback_core.sink_set import SinkSet
from flashback_core.sketch.sharded import rank, reshard
from flashback_core.start import Parts, open_index, watching
from flashback_core.warn import Guard, disabled

if TYPE_CHECKING:
    from flashback_core.online import Online
    from flashback_core.report.model import DetectionReport, Finding

__all__ = ["Recorder"]

OnRow = Callable[["Recorder", int, npt.NDArray[np.float64], Mapping[str, float]], object]
OnFinding = Callable[["Recorder", "Finding"], object]

_ONLINE = "the detection while the run goes on"
_LIKELY = 0.5
"""Confidence from which a finding of the run that goes on is an alert."""


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
        scheduler: The loop's learning-rate scheduler, or several: what it says of each step stands
            beside the rate that was used. Anything with ``get_last_lr`` or ``last_epoch``.
        rewind: Reserved for the delta store; only False for now.
        sinks: Where metrics, alerts and the report go, see `flashback_core.sink`.
        groups: A rule or mapping from parameters to groups, see `groups.group_parameters`.
        update_from: ``"snapshot"`` holds a copy of the weights (4 bytes a parameter) and sees what
            else changed them; ``"state"`` works updates out from Adam's moments (0 bytes).
        rewritten: Names of parameters, with ``*`` for any text, that the loop itself writes to
            between steps (a clamp, a projection, merged adapters): such writes are no finding.
            Embeddings with ``max_norm`` and schedule-free optimizers are known without.
        histogram_every: Histograms count one of so many units of entries per step, in turn; all
            else is exact at every step. 1 counts all.
        log_every: Steps between two calls of the sinks' live metrics.
        run: Facts of the run to keep with it (plain JSON values).
        write_report: Whether closing detects and writes the report.
        on_row: Called with the recorder, step, values and exact fields of each row when it has
            been written.
        online: Whether to detect while the run goes on: a finding is an alert of the sinks soon
            after its step.
        on_finding: Called with the recorder and each finding of the detection while the run goes
            on, of any severity.

    Raises:
        ModelError: If the model has nothing to train, an optimizer is not of this model,
            `scheduler` is none, or a name of `rewritten` fits no parameter.
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
        scheduler: Any = None,
        rewind: bool | str = False,
        sinks: Sequence[Sink] = (),
        groups: GroupRule | Mapping[str, str] | None = None,
        update_from: str = "snapshot",
        rewritten: Sequence[str] = (),
        histogram_every: int = 1,
        log_every: int = 10,
        run: Mapping[str, Any] | None = None,
        write_report: bool = True,
        on_row: OnRow | None = None,
        online: bool = True,
        on_finding: OnFinding | None = None,
    ) -> None:
        if rewind:
            msg = f"rewind={rewind!r}: the delta store is not part of this version; use False"
            raise ValueError(msg)
        self.dir = Path(dir)
        self.report: DetectionReport | None = None
        self._guard = Guard()
        self._write_report = write_report
        self._url: str | None = None
        self._closed = disabled()
        self._input = LoopInput(self._guard)
        self._steps: Steps | None = None  # None where recording is switched off
        self._sinks = SinkSet((), self._guard, log_every)
        if self._closed:
            return
        self._sinks = SinkSet(sinks, self._guard, log_every)
        if isinstance(model, torch.nn.Module):  # anything else is refused with the rest
            reshard(model)
        parts = watching(
            model, optimizer, groups, self._guard, scheduler, rewritten,
            histogram_every=histogram_every, update_from=update_from,
        )  # fmt: skip
        self.schema, self._sketchers = parts.schema, parts.sketchers
        index = self._open_index(parts, run or {})
        if start_step is not None:
            index.resume_at(start_step)
        first = index.last_step + 1 if start_step is None else start_step
        self._on_row, self._on_finding = on_row, on_finding
        self._online = self._online_of(index, first) if online else None
        self._rows = RowWriter(
            index,
            self.schema,
            self._sinks,
            self._guard,
            parts.name_of,
            self._written,
            self._event,
            parts.rewritten.ids,
        )
        self._rows.add_event({"event": "groups", "groups": parts.group_table})
        self._rows.add_event({"event": "session", "step": first})
        if (known := parts.rewritten.event()) is not None:
            self._rows.add_event(known | {"step": first})
        self._steps = Steps(parts, self._rows, self._guard, first, scaler)

    def _open_index(self, parts: Parts, run: Mapping[str, Any]) -> StepSketchIndex | NoIndex:
        index: StepSketchIndex | NoIndex = NoIndex(self.dir / "sketch")
        if parts.is_sharded and rank() > 0:
            self._write_report = False
            self._sinks = SinkSet((), self._guard, 1)
        else:
            index = open_index(self.dir, self.schema, parts.facts | dict(run), self._guard)
        self.dir, self._url = index.path.parent, index.url
        return index

    def _online_of(self, index: StepSketchIndex | NoIndex, first: int) -> Online | None:
        """The detector that looks at the rows as they are written; None where there are none."""
        if isinstance(index, NoIndex):
            return None
        with self._guard(_ONLINE):
            from flashback_core.online import Online

            online = Online(self.schema, self._found)
            if first > 0 and len(index) and index.schema == self.schema:
                online.catch_up(index.between(max(first - 1024, 0), first - 1))
            return online
        return None

    def _written(
        self, step: int, values: npt.NDArray[np.float64], exact: Mapping[str, float]
    ) -> None:
        """A row has been written."""
        if self._online is not None and not self._guard.failed(_ONLINE):
            with self._guard(_ONLINE):
                self._online.row(step, values, exact)
        if self._on_row is not None and not self._guard.failed("on_row"):
            with self._guard("on_row"):
                self._on_row(self, step, values, exact)

    def _event(self, event: Mapping[str, Any]) -> None:
        """An event has been kept."""
        if self._online is not None:
            self._online.event(event)

    def _found(self, finding: Finding) -> None:
        if finding.severity == "bad" and finding.confidence >= _LIKELY:
            self._sinks.alert(finding)
        if self._on_finding is not None and not self._guard.failed("on_finding"):
            with self._guard("on_finding"):
                self._on_finding(self, finding)

    @property
    def _row(self) -> Steps:
        assert self._steps is not None  # the caller has looked whether anything is recorded
        return self._steps

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
            row = self._row
            logged = self._input.read(row.next_step, loss, exact, batch_ids, batch)
            for event in logged.events:
                self._rows.add_event(event)
            row.log(logged)

    def end_step(self, *, loss: Any = None, **exact: float) -> None:
        """Like `log`, for adapters that know that a step has just been attempted.

        It closes the open row; where no hook saw the step, that step was skipped.
        """
        if self._closed or self._guard.failed("recording"):
            return
        with self._guard("recording"):
            row = self._row
            row.end(self._input.read(row.next_step, loss, exact, None, None))

    def mark(self, **fields: float) -> None:
        """Set fields of all rows that open from now on, until they are set again.

        Args:
            fields: Exact fields by name (``epoch=…``, ``batch_index=…``, see
                `schema.EXACT_FIELDS`), and scalars that the sketch does not work out itself
                (``batch_id_mean``, ``batch_uniq_frac``).
        """
        if not self._closed:
            self._row.mark(fields)

    @property
    def has_open_row(self) -> bool:
        """Whether a step was made whose row `log`, `end_step` or the next step will close."""
        return self._steps is not None and self._steps.has_open_row

    def expect(self, step: int, kind: str) -> None:
        """Declare a regime change at `step`, at or before it happens.

        Args:
            step: First step under the new regime.
            kind: ``lr_milestone``, ``data``, ``accumulation``, ``batch_size``, ``freeze``,
                ``unfreeze``, ``weight_decay``, ``weights`` (the loop writes to weights, optimizer
                state or buffers before the update of that step) or any other word.
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
            self._row.observe(optimizer, scale)

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
            self._row.pause(seconds)

    # -- the end -----------------------------------------------------------------------------

    @property
    def index(self) -> StepSketchIndex:
        """The index, opened for reading."""
        return StepSketchIndex(self.dir / "sketch")

    @property
    def next_step(self) -> int:
        """Step of the row to come; a row that is still open is counted."""
        return 0 if self._steps is None else self._steps.next_step + self._steps.has_open_row

    def close(self) -> DetectionReport | None:
        """Seal, detect, report. Idempotent; returns the report (None if there is none)."""
        if self._closed:
            return self.report
        self._closed = True
        self._row.leave()
        with self._guard("recording"):
            self._row.last_rows()
        self._rows.close()
        if self._online is not None and not self._guard.failed(_ONLINE):
            with self._guard(_ONLINE):
                self._online.close()
        if self._write_report:
            with self._guard("the report"):
                self._detect()
        self._sinks.close()
        return self.report

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
