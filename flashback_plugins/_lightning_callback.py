"""The hooks of `FlashbackCallback`: a Recorder driven by Lightning's loop."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashback_core.recorder import Recorder
from flashback_core.sketch.parameters import innermost_optimizer, stepped_parameters
from flashback_core.warn import Guard, disabled
from flashback_plugins._lightning_batch import Window, batch_loss, sample_ids, unscaled
from flashback_plugins._lightning_folder import Place, is_second
from flashback_plugins._lightning_harmless import PART, harmless
from flashback_plugins._lightning_loggers import logger_sinks
from flashback_plugins._lightning_online import SURE, Action, Actions, Online
from flashback_plugins._lightning_prevent import Prevention
from flashback_plugins._lightning_ranks import Ranks, all_or_none, has_shards
from flashback_plugins._lightning_resume import ResumeWatch, check_resume, continuity
from flashback_plugins._lightning_trainer import Regime, facts, say, scale_left, schedulers, summary

if TYPE_CHECKING:
    import torch

    from flashback_core.groups import GroupRule
    from flashback_core.report.model import DetectionReport
    from flashback_core.sink import Sink

__all__ = ["CallbackHooks"]

_STATE = "flashback"


class CallbackHooks:
    """Records a sketch of every optimizer step of a fit, and reports when it ends.

    One row per optimizer step: gradients before clipping and unscaled, updates after the step. The
    report is written at the end of the fit, after an exception and after an interrupt; the
    trainer's own loggers get a few live scalars and the report. Losses and weights stay what they
    are without it.

    Args:
        dir: Run folder. None takes one beside what the trainer's logger writes; the trainer's log
            says which. A resumed fit goes on where its checkpoint was recorded.
        log_every_n_steps: Steps between live scalars; None takes the trainer's own setting.
        groups: A rule or mapping from parameters to groups, see `flashback_core.groups`.
        batch_ids: Gives the sample ids of a batch. None looks for integers under a usual key of the
            batch (``ids``, ``idx``, ``index`` …); False looks for none. Only their mean, their
            share of distinct ones and a hash are kept.
        batch_hash: Whether to fingerprint the content of batches that lie on the CPU.
        on_detect: What to do at the first finding of at least `sure` while the run goes on:
            ``"warn"`` says it, ``"checkpoint"`` keeps the state, ``"stop"`` ends the fit, a
            function is called with the finding and the trainer; or several of them in a list.
            Loggers that have alerts get one from a confidence of 0.5 on.
        sure: Confidence from which a finding is acted on and the health is 0; what is certain (NaN,
            a weight that changed from outside) has 0.99.
        prevent_nonfinite: Whether to leave out a step whose gradient holds NaN or infinity, as
            GradScaler does: weights and optimizer state stay as they are, the row says
            ``step_skipped``. Fused optimizers are told on their device; with any other this costs
            one host synchronisation per step.
        rewritten: Names of parameters that the loop itself writes to, see `fb.Recorder`.
        sinks: More places for metrics and the report, beside the trainer's loggers.

    Attributes:
        report: The report of the last fit, None before its end.
    """

    def __init__(
        self,
        dir: str | PathLike[str] | None = None,
        *,
        log_every_n_steps: int | None = None,
        groups: GroupRule | Mapping[str, str] | None = None,
        batch_ids: Callable[[Any], Any] | bool | None = None,
        batch_hash: bool = True,
        on_detect: Action | Sequence[Action] = "warn",
        sure: float = SURE,
        prevent_nonfinite: bool = False,
        rewritten: Sequence[str] = (),
        sinks: Sequence[Sink] = (),
    ) -> None:
        super().__init__()
        if log_every_n_steps is not None and log_every_n_steps < 1:
            msg = f"log_every_n_steps={log_every_n_steps}; expected 1 or more, or None"
            raise ValueError(msg)
        self.report: DetectionReport | None = None
        self._place = Place(None if dir is None else Path(dir))
        self._log_every = log_every_n_steps
        self._groups = groups
        self._guard = Guard()
        self._online = Online(Actions(on_detect), self._guard, sure)
        self._prevents = prevent_nonfinite
        self._rewritten, self._sinks = tuple(rewritten), tuple(sinks)
        ids_of = batch_ids if callable(batch_ids) else None if batch_ids is False else sample_ids
        self._new_window = functools.partial(Window, hashes=batch_hash, ids_of=ids_of)
        self._window: Any = self._new_window()
        self._recorder: Recorder | None = None
        self._handles: list[Any] = []
        self._places: dict[int, int] = {}
        self._attempted: set[int] = set()
        self._manual_loss: Any = None
        self._has_ended_row = False
        self._regime: Any = None
        self._active = self._writes = False
        self._ranks: Ranks | None = None
        self._prevention: Prevention | None = None
        self._resume: ResumeWatch | None = None
        self._paused_at: float | None = None

    @property
    def _writer(self) -> Recorder | None:
        """The recorder on rank zero, None elsewhere."""
        return self._recorder if self._writes else None

    @property
    def dir(self) -> Path | None:
        """The run folder, None before a fit when it was not given."""
        return self._place.dir

    def __getstate__(self) -> dict[str, Any]:
        """What a process started by the trainer gets: the settings, nothing that is open."""
        opened = ("_recorder", "_window", "_ranks", "_prevention", "_regime")
        return self.__dict__ | dict.fromkeys(opened) | {"_handles": []}

    # -- start -------------------------------------------------------------------------------

    @harmless
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Forget the checkpoint of an earlier fit."""
        self._place.resume = None

    @harmless
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Open the index and put hooks on the optimizers."""
        self._active = not disabled() and not is_second(self, trainer, self._place.given)
        if not self._active or self._recorder is not None:
            return
        folder = None
        if trainer.is_global_zero:
            with self._guard("the run folder", keep=True):  # other ranks wait for it
                folder = self._place.folder(trainer)
        folder = trainer.strategy.broadcast(folder)
        self._active = folder is not None
        if folder is None:
            return
        self._online.start(None if trainer.fast_dev_run else folder)
        if trainer.world_size > 1:
            self._ranks = Ranks(trainer, pl_module, self._guard)
            self._ranks.share_loss(trainer)
        self._writes = trainer.is_global_zero
        with all_or_none(trainer, self._close):  # where the model is sharded all ranks take part
            if self._writes or has_shards(trainer):
                self.report = None
                self._record(trainer, pl_module, folder)
        if self._prevents:
            self._prevention = Prevention(trainer)  # its hooks come last

    def _record(self, trainer: Any, pl_module: Any, folder: Path) -> None:
        is_dev_run = self._place.is_temporary
        sinks: tuple[Sink, ...] = ()
        if self._writes and not is_dev_run:
            sinks = (*logger_sinks(trainer.loggers, self._guard), *self._sinks)
        first = self._place.first_step(trainer)
        self._resume = ResumeWatch(self._place.resume, first)
        self._recorder = Recorder(
            folder, pl_module, trainer.optimizers,
            start_step=first, scaler=getattr(trainer.precision_plugin, "scaler", None),
            sinks=sinks, groups=self._groups, rewritten=self._rewritten,
            log_every=self._every(trainer), run=facts(trainer), write_report=not is_dev_run,
            scheduler=schedulers(trainer),
            on_row=self._see if self._writes else None,
            on_finding=self._online.found if self._writes else None,
        )  # fmt: skip
        self._place.begin(trainer, self._recorder)
        self._watch(trainer)
        if not is_dev_run:
            verb = "records" if first == 0 else f"goes on at step {first}"
            say(f"flashback {verb} in {self._recorder.dir}")
        with self._guard("the resume check"):
            check_resume(trainer, self._recorder, self._place.resume)

    def _see(self, recorder: Recorder, step: int, values: Any, exact: Mapping[str, float]) -> None:
        """Look at a row that has been written."""
        if self._ranks is not None:
            self._ranks.see_row(recorder, step, float(values[0]))
        if self._resume is not None and not self._guard.failed("the resume check"):
            with self._guard("the resume check"):
                self._resume.see(recorder, step, values, exact)

    def _watch(self, trainer: Any) -> None:
        optimizers = [innermost_optimizer(o) for o in trainer.optimizers]
        self._places = {id(o): i for i, o in enumerate(optimizers)}
        # after the recorder's own hooks, since they were registered before
        self._handles = [
            o.register_step_post_hook(functools.partial(self._stepped, i))
            for i, o in enumerate(optimizers)
        ]
        self._window = self._new_window()
        self._attempted.clear()
        self._manual_loss = None
        self._has_ended_row = False
        self._regime = Regime(trainer)

    # -- steps -------------------------------------------------------------------------------

    @harmless
    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        """Note which batch the step to come sees."""
        if self._recorder is None:
            return
        self._attempted.clear()
        self._window.evaluations = 0
        with self._guard("the fingerprint of batches"):
            if not self._guard.failed("the fingerprint of batches"):
                known = self._window.add_batch(batch, self._recorder.next_step)
                self._recorder.mark(**known)
                for event in self._window.events:
                    self._recorder.add_event(event)
        clipped = 0 if pl_module.automatic_optimization else -1
        self._recorder.mark(epoch=trainer.current_epoch, batch_index=batch_idx, clipped=clipped)
        self._regime.declare(trainer, self._recorder, batch_idx)

    @harmless
    def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Begin to count backward passes."""
        if self._recorder is not None:
            self._window.backwards = 0

    @harmless
    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        """Keep the loss of a manual backward pass, and of a closure's first evaluation."""
        if self._recorder is None:
            return
        if not pl_module.automatic_optimization:
            self._manual_loss = unscaled(trainer, loss)
        elif self._window.evaluations == 0:
            self._window.first_loss = loss.detach()

    @harmless
    def on_after_backward(self, trainer: Any, pl_module: Any) -> None:
        """Count the backward pass."""
        if self._recorder is not None:
            self._window.backwards += 1
            self._window.evaluations += 1

    @harmless
    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        """Read the gradients: unscaled, not yet clipped, complete."""
        if self._recorder is not None:
            self._read_gradients(trainer, pl_module, optimizer)
        if self._prevention is None:
            return
        if self._prevention.before_step(optimizer) and self._recorder is not None:
            self._recorder.mark(step_skipped=1)

    def _read_gradients(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
        assert self._recorder is not None  # the caller has looked
        inner = innermost_optimizer(optimizer)
        i = self._places.get(id(inner))
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if i is None or (i in self._attempted and scaler is None):
            return  # not of this fit, or a further evaluation of a closure (LBFGS)
        self._attempted.add(i)
        automatic = pl_module.automatic_optimization
        has_gradient = any(p.grad is not None for p in stepped_parameters(inner))
        self._recorder.mark(
            accum_count=self._window.backwards if automatic else -1,
            step_skipped=int(not has_gradient),
        )
        self._recorder.observe_gradients(scale=scale_left(inner, scaler), optimizer=i)

    def _stepped(self, i: int, *_: Any) -> None:
        """Torch's own hook after a step: close the row of a manual one that has its loss."""
        self._attempted.discard(i)
        if self._manual_loss is not None and self._recorder is not None:
            with self._guard(PART):
                self._end_row(self._manual_loss)

    def _end_row(self, loss: Any) -> None:
        assert self._recorder is not None  # the caller has looked
        self._manual_loss = None
        self._has_ended_row = True
        if self._ranks is not None:
            loss = self._ranks.loss_of_row(self._recorder, loss)
        self._recorder.end_step(loss=loss)
        self._place.next_step = self._recorder.next_step

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Close the row of the step that this batch ended, if it ended one."""
        self._after_batch(trainer, pl_module, outputs, batch_idx)
        # not left out when something else fails: the other ranks wait for this one
        if self._ranks is not None and trainer.global_step % self._every(trainer) == 0:
            self._ranks.meet(trainer, self._online, self._writer)

    def _every(self, trainer: Any) -> int:
        return int(self._log_every or trainer.log_every_n_steps or 50)

    @harmless
    def _after_batch(self, trainer: Any, pl_module: Any, outputs: Any, batch_idx: int) -> None:
        if self._recorder is not None:
            self._end_batch(trainer, pl_module, outputs, self._recorder)
        if self._active:
            is_turn = batch_idx % self._every(trainer) == 0
            self._online.after_batch(trainer, pl_module, self._writer, is_turn=is_turn)

    def _end_batch(self, trainer: Any, pl_module: Any, outputs: Any, recorder: Recorder) -> None:
        is_divided = pl_module.automatic_optimization
        if is_divided and self._window.evaluations > 1:  # LBFGS: the gradient is of the first one
            outputs = self._window.first_loss
        self._window.add_loss(batch_loss(trainer, outputs, is_divided=is_divided))
        if recorder.has_open_row or self._attempted:
            whole = self._window.loss
            self._end_row(whole if whole is not None else self._manual_loss)
        if self._has_ended_row:
            self._window.clear()
            self._has_ended_row = False
        self._attempted.clear()

    @harmless
    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Stop the clock."""
        self._paused_at = time.perf_counter()

    @harmless
    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """Start the clock again."""
        if self._recorder is not None and self._paused_at is not None:
            self._recorder.pause(time.perf_counter() - self._paused_at)
        self._paused_at = None

    # -- checkpoints -------------------------------------------------------------------------

    @harmless
    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep in the checkpoint where the run was recorded, and how far."""
        if self._recorder is not None:
            self._place.next_step = self._recorder.next_step
        state = self._place.state(trainer)
        if state is not None:
            checkpoint[_STATE] = state
            with self._guard("the resume check"):
                state["continuity"] = continuity(trainer)
                state["rows"] = self._resume.state() if self._resume is not None else None

    @harmless
    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Remember where the checkpoint was made."""
        problem = self._place.remember(checkpoint.get(_STATE))
        if problem is not None:
            say(f"flashback: {problem}")

    # -- the end -----------------------------------------------------------------------------

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Compare the ranks a last time; seal, detect, report."""
        if self._ranks is not None:
            self._ranks.meet(trainer, self._online, self._writer)
        self._end(trainer)

    @harmless
    def _end(self, trainer: Any) -> None:
        self._online.tell(trainer, self._writer)
        self._close()

    @harmless
    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """As `on_train_end`, if that was not reached."""
        self._close()

    @harmless
    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Seal, detect, report, after an interrupt too."""
        self._close()

    @harmless
    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Let go, whatever happened."""
        self._close()

    def _close(self) -> None:
        recorder, self._recorder = self._recorder, None
        for other in (self._ranks, self._prevention):
            if other is not None:
                other.remove()
        self._ranks = self._prevention = None
        if recorder is None:
            return
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._place.next_step = recorder.next_step
        self.report = recorder.close()
        if self._place.is_temporary and self._writes:
            self._place.remove()
        elif self.report is not None:
            say(summary(self.report, recorder.dir))
