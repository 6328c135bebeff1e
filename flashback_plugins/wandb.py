"""Weights & Biases: live scalars, histograms, alerts, the report and the index of one run.

W&B keeps one growing row for each run, and a row of ours that is committed, or that names a
``step=``, can make it drop the user's own rows. So everything here is merged into the row that the
user commits next (``commit=False``), with ``flashback/step`` in it as an axis of its own. What the
user never commits is superseded, which loses nothing: the complete sketch is in the index.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashback_core.extras import extra
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.sink import RunFiles, Sink
from flashback_core.warn import disabled
from flashback_plugins import panels
from flashback_plugins._wandb_finish import BeforeFinish

with extra("wandb"):
    import wandb

if TYPE_CHECKING:
    import torch

    from flashback_core.recorder import Recorder

__all__ = ["WandbSink", "attach"]

_STEP = f"{panels.PREFIX}step"
_MAX_SCALARS = 12


def attach(
    run: wandb.Run,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    dir: str | PathLike[str] | None = None,
    *,
    every_n_steps: int = 1,
    log_every: int = 10,
    **options: Any,
) -> Recorder:
    """Record a PyTorch loop and show it in a W&B run.

    The recorder is a context manager. Without ``with``, it closes when the run finishes
    (``run.finish()``, ``wandb.finish()``, the end of ``with wandb.init()``) and at the end of the
    script, also after an exception, so that report and alert reach W&B either way.

    Args:
        run: What ``wandb.init()`` returned.
        model: The model that is trained.
        optimizer: Its optimizer, or several.
        dir: Run folder. The default is ``runs/<run id>``, which a resumed W&B run continues.
        every_n_steps: Steps between two sketches; this version takes 1 only.
        log_every: Steps between two live rows.
        **options: Further arguments of `flashback_core.Recorder`.

    Returns:
        The recorder: ``rec.log(loss=..., batch_ids=...)`` once per step, ``rec.close()``.

    Raises:
        TypeError: If `run` is None or no W&B run.
        ValueError: If `run` has finished, or `every_n_steps` is not 1.
    """
    if every_n_steps != 1:
        msg = f"every_n_steps={every_n_steps}: every step is recorded; thin the live rows out with "
        raise ValueError(msg + "log_every")
    sink = WandbSink(run)
    from flashback_core.recorder import Recorder  # after the checks: it brings torch along

    folder = Path(dir) if dir is not None else Path("runs") / str(run.id)
    if disabled():
        return Recorder(folder, model, optimizer, **options)
    sinks = (sink, *options.pop("sinks", ()))
    recorder = Recorder(folder, model, optimizer, sinks=sinks, log_every=log_every, **options)
    if dir is None and not run.disabled:
        wandb.termlog(f"flashback records into {folder}")
    sink.before_finish(recorder.close)
    return recorder


class WandbSink(Sink):
    """Sends live metrics, alerts, the report and the index to one W&B run.

    Args:
        run: An open run in any mode; nothing is sent for a disabled one.

    Raises:
        TypeError: If `run` is None or no W&B run.
        ValueError: If `run` has finished.
    """

    def __init__(self, run: wandb.Run) -> None:
        """Take the run; nothing is sent yet."""
        self._run = _checked(run)
        self._step = 0
        self._alerted: list[Finding] = []
        self._defined: set[str] = set()
        self._guard: BeforeFinish | None = None

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Merge at most 12 scalars of one step into the user's next row."""
        live = panels.live_scalars(values, _MAX_SCALARS)
        self._merge({panels.tracker_name(name): value for name, value in live.items()}, step)

    def log_histograms(self, counts: Mapping[str, list[int]], step: int) -> None:
        """Merge histograms of 16 bins, on an axis of powers of two, into the user's next row."""
        edges = list(panels.LOG2_EDGES)
        self._merge(
            {
                panels.tracker_name(name): wandb.Histogram(np_histogram=(list(bins), edges))
                for name, bins in counts.items()
            },
            step,
        )

    def _merge(self, values: Mapping[str, Any], step: int) -> None:
        named = {f"{panels.PREFIX}{name}": value for name, value in values.items()}
        if not self._defined:
            self._run.define_metric(_STEP, hidden=True)
        # one exact definition each: a glob of ours would lose against Lightning's "*"
        for name in named.keys() - self._defined:
            self._run.define_metric(name, step_metric=_STEP)
            self._defined.add(name)
        self._step = int(step)
        # never a committed row of ours and never step=: both can make W&B drop the user's rows
        self._run.log({_STEP: self._step, **named}, commit=False)

    def alert(self, finding: Finding) -> None:
        """Raise a W&B alert, once for each event."""
        if any(panels.same_finding(finding, other) for other in self._alerted):
            return
        self._alerted.append(finding)
        self._run.alert(
            title=panels.alert_title(finding),
            text=panels.alert_text(finding),
            level=panels.alert_level(finding),
        )

    def log_report(self, report: DetectionReport, files: RunFiles) -> None:
        """Set the summary, show the report and its findings, keep index and report as artifacts.

        What moved first is a custom chart, and with the extra ``report`` a picture beside one of
        the whole run.

        The run's summary gets ``flashback/first_bad_step``, ``flashback/status`` and
        ``flashback/confidence``; the artifacts are ``flashback-index-<run id>`` and
        ``flashback-report-<run id>``.
        """
        verdict = panels.summary(report)
        self._run.summary.update({f"{panels.PREFIX}{k}": v for k, v in verdict.items()})
        if self._run.disabled:
            return
        paths = files.reports()
        self._show(report, paths)
        metadata = {**verdict, "detector": dict(report.detector)}
        self._keep("index", {"index.parquet": files.export()}, metadata)
        self._keep("report", {path.name: path for path in paths.values()}, metadata)

    def _show(self, report: DetectionReport, paths: Mapping[str, Path]) -> None:
        from flashback_plugins._wandb_charts import charts  # after the training: it draws

        shown: dict[str, Any] = {}
        if "html" in paths:
            shown["report"] = wandb.Html(paths["html"].read_text("utf-8"), inject=False)
        table = panels.findings_table(report)
        if table.rows:
            shown["findings"] = wandb.Table(columns=list(table.columns), data=table.rows)
        shown |= charts(report)
        # the row still open may hold metrics of the last live step, whose number it must keep
        self._merge(shown, self._step)

    def _keep(self, what: str, paths: Mapping[str, Path], metadata: Mapping[str, Any]) -> None:
        run_id = re.sub(r"[^A-Za-z0-9_.-]", "-", str(self._run.id))
        artifact = wandb.Artifact(
            f"flashback-{what}-{run_id}", type=f"flashback-{what}", metadata=dict(metadata)
        )
        for name, path in paths.items():
            artifact.add_file(str(path), name=name)
        step = metadata["first_bad_step"]
        alias = metadata["status"] if step is None else f"step-{step}"
        self._run.log_artifact(artifact, aliases=["latest", alias])

    def before_finish(self, close: Callable[[], object]) -> None:
        """Call `close` before the run finishes, whichever way that comes about."""
        self._guard = BeforeFinish(self._run, close)

    def close(self) -> None:
        """Let go of the run, which stays open: it is the user's."""
        if self._guard is not None:
            self._guard.cancel()


def _checked(run: wandb.Run) -> wandb.Run:
    """The run itself if metrics can be sent to it."""
    if run is None:
        msg = "run is None; expected a W&B run: start one with run = wandb.init(...) and pass it"
        raise TypeError(msg)
    # the oldest W&B that we take has no wandb.Run yet
    if not isinstance(run, getattr(wandb, "Run", None) or wandb.sdk.wandb_run.Run):
        msg = f"run is a {type(run).__name__}; expected the W&B run that wandb.init() returned"
        raise TypeError(msg)
    if getattr(run, "_is_finished", False):
        msg = f"the W&B run {run.id} has finished; attach before run.finish(), or resume it"
        raise ValueError(msg)
    return run
