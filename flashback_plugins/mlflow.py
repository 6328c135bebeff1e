"""MLflow: live scalars, tags, a note, the report and the index as artifacts of one run.

MLflow has no alerts on runs, so a finding becomes tags that can be searched
(``tags.`flashback.status` = 'bad'``), a section of the run's description, and a call of your own
`notify`. The files lie under ``flashback/`` among the run's artifacts.
"""

from __future__ import annotations

import atexit
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from flashback_core.errors import SourceError
from flashback_core.extras import extra
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.sink import RunFiles, Sink
from flashback_core.warn import Guard, disabled
from flashback_plugins import panels
from flashback_plugins._mlflow_files import FINDINGS, FOLDER, INDEX, lay_out
from flashback_plugins._mlflow_note import NOTE, with_section
from flashback_plugins._mlflow_outbox import Outbox

with extra("mlflow"):
    import mlflow
    from mlflow.entities import Metric, RunTag
    from mlflow.exceptions import MlflowException

    from flashback_plugins._mlflow_store import active_run_id, client

if TYPE_CHECKING:
    import torch

    from flashback_core.recorder import Recorder

__all__ = ["MlflowSink", "attach_report", "autolog", "detect_run", "record"]

Notify = Callable[[Finding], object]

_MAX_SCALARS = 8
_LOGGED_TABLES = "mlflow.loggedArtifacts"  # the JSON files that MLflow's page shows as tables
# a child of MLflow's own logger, so that it speaks when MLflow does, and where
_log = logging.getLogger("mlflow.flashback")


def record(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    dir: str | PathLike[str] | None = None,
    *,
    log_every: int = 10,
    notify: Notify | None = None,
    **options: Any,
) -> Recorder:
    """Record a PyTorch loop into the active MLflow run.

    Without an active run one is started, as ``mlflow.log_metric`` does; it stays active, and MLflow
    ends it with the script. MLflow's log says which run it is. The recorder is a context manager;
    without ``with`` it closes at the end of the script, also after an exception.

    Args:
        model: The model that is trained.
        optimizer: Its optimizer, or several.
        dir: Run folder. The default is ``runs/<run id>``, which a resumed MLflow run continues.
        log_every: Steps between two live rows.
        notify: Called once with each new finding, beside the tags; in a thread of its own.
        **options: Further arguments of `flashback_core.Recorder`.

    Returns:
        The recorder: ``rec.log(loss=..., batch_ids=...)`` once per step, ``rec.close()``.

    Raises:
        FlashbackError: If MLflow's store cannot be used; the message says what to do.
    """
    from flashback_core.recorder import Recorder

    if disabled():
        return Recorder(Path(dir or "runs"), model, optimizer, **options)
    run_id = active_run_id()
    sink = MlflowSink(client(), run_id, notify=notify)
    folder = Path(dir) if dir is not None else Path("runs") / run_id
    sinks = (sink, *options.pop("sinks", ()))
    recorder = Recorder(folder, model, optimizer, sinks=sinks, log_every=log_every, **options)
    _log.info("flashback records into %s and the MLflow run %s", folder, run_id)
    sink.at_exit(recorder.close)
    return recorder


def detect_run(
    run_id: str, tracking_uri: str | None = None, attach: bool = True
) -> DetectionReport:
    """Detect on the index that a run carries as an artifact, be the run finished or not.

    Args:
        run_id: The MLflow run.
        tracking_uri: Where it lies; the default is MLflow's own setting.
        attach: Whether to put the new report, tags and note on the run.

    Returns:
        The report.

    Raises:
        SourceError: If there is no such run, or it has no index.
        FlashbackError: If MLflow's store cannot be used.
    """
    from flashback_core.detection import detect

    sink = MlflowSink(client(tracking_uri), run_id)
    with TemporaryDirectory(prefix="flashback-") as folder:
        report: DetectionReport = detect(sink.download_index(Path(folder)))
        if attach:
            sink.attach(report, report.write(folder))
    sink.close()
    return report


def attach_report(report: DetectionReport, run_id: str, tracking_uri: str | None = None) -> None:
    """Put a report, its tags and its note on a run, be the run finished or not.

    Args:
        report: The report, from whatever source.
        run_id: The MLflow run.
        tracking_uri: Where it lies; the default is MLflow's own setting.

    Raises:
        SourceError: If there is no such run.
        FlashbackError: If MLflow's store cannot be used.
    """
    sink = MlflowSink(client(tracking_uri), run_id)
    with TemporaryDirectory(prefix="flashback-") as folder:
        sink.attach(report, report.write(folder))
    sink.close()


def autolog(disable: bool = False, silent: bool = False) -> None:
    """Watch every Lightning training from now on, in the MLflow run that is active.

    ``Trainer.fit`` of ``lightning.pytorch`` and of ``pytorch_lightning`` adds a
    `flashback_plugins.lightning.FlashbackCallback` to trainers that have none. A training outside
    of any MLflow run gets one that ends with it.

    Args:
        disable: Take everything back: ``Trainer.fit`` is the very function that it was.
        silent: Log nothing and warn of nothing.
    """
    from flashback_plugins import _mlflow_autolog

    if disable:
        _mlflow_autolog.disable()
    elif not disabled():
        _mlflow_autolog.enable(silent=silent)


class MlflowSink(Sink):
    """Sends live metrics, tags, a note, the report and the index to one MLflow run.

    Histograms have no place in MLflow and stay in the index.

    Args:
        client: A client of the run's store.
        run_id: The run; it may have ended.
        notify: Called once with each new finding, in a thread of its own.
        every_s: Seconds between two requests while the run goes on.

    Raises:
        SourceError: If there is no such run.
    """

    def __init__(
        self,
        client: mlflow.MlflowClient,
        run_id: str,
        *,
        notify: Notify | None = None,
        every_s: float = 5.0,
    ) -> None:
        """Ask for the run, so that a wrong id is told at once."""
        self._client = client
        self._run_id = run_id
        self._experiment_id = self._run().info.experiment_id
        self._notify = notify
        self._guard = Guard()
        self._alerted: list[Finding] = []
        self._outbox = Outbox(self._send, every_s=every_s)
        self._forget: Callable[[], object] = lambda: None

    def _run(self) -> mlflow.entities.Run:
        try:
            return self._client.get_run(self._run_id)
        except MlflowException as error:
            msg = (
                f"MLflow has no run {self._run_id!r} at {self._client.tracking_uri} ({error}); "
                "pass the id of a run there, or another tracking_uri"
            )
            raise SourceError(msg) from error

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process has a client and a thread of its own."""
        return _sink, (self._client.tracking_uri, self._run_id, self._notify)

    def log_metrics(self, values: Mapping[str, float], step: int) -> None:
        """Take at most 8 scalars of one step, to be sent within seconds.

        Values that are not finite have no place in MLflow's stores; ``flashback/nonfinite_values``
        counts those of a step that has any.
        """
        live = panels.live_scalars(values, _MAX_SCALARS)
        finite = {name: value for name, value in live.items() if math.isfinite(value)}
        if len(finite) < len(live):
            finite = {**finite, "nonfinite_values": len(live) - len(finite)}
        now = time.time_ns() // 1_000_000
        self._outbox.put(
            [
                Metric(f"{panels.PREFIX}{panels.tracker_name(name)}", value, now, int(step))
                for name, value in finite.items()
            ]
        )

    def _send(self, metrics: Sequence[Metric]) -> None:
        self._client.log_batch(self._run_id, metrics=metrics)

    def log_histograms(self, counts: Mapping[str, list[int]], step: int) -> None:
        """Do nothing: MLflow has no histograms, the index has them all."""

    def alert(self, finding: Finding) -> None:
        """Set tags and note, and call `notify`; once for each event, without waiting for it."""
        if any(panels.same_finding(finding, other) for other in self._alerted):
            return
        first = not any(other.severity == "bad" for other in self._alerted)
        self._alerted.append(finding)
        if finding.severity == "bad" and first:
            self._outbox.do(partial(self._mark, finding))
        if self._notify is not None:
            self._outbox.do(partial(self._call, self._notify, finding))

    def _mark(self, finding: Finding) -> None:
        verdict = {
            "status": "bad",
            "first_bad_step": finding.step,
            "confidence": finding.confidence,
            "kind": finding.kind,
        }
        self._tag(verdict, panels.alert_text(finding))

    def _call(self, notify: Notify, finding: Finding) -> None:
        with self._guard("notify", keep=True):
            notify(finding)

    def log_report(self, report: DetectionReport, files: RunFiles) -> None:
        """Set tags and note, and put report and index among the run's artifacts."""
        self.attach(report, files.reports(), files.export())

    def attach(
        self, report: DetectionReport, reports: Mapping[str, Path], index: Path | None = None
    ) -> None:
        """Do as `log_report`; without `index` the one on the run stays."""
        self._outbox.flush()
        with TemporaryDirectory(prefix="flashback-") as folder:
            lay_out(Path(folder), report, reports, index)
            self._client.log_artifacts(self._run_id, folder, FOLDER)
        text = panels.alert_text(report.bad) if report.bad else ""
        self._tag(panels.summary(report), text, page="report.html")

    def _tag(self, verdict: Mapping[str, Any], text: str, page: str | None = None) -> None:
        """Set the tags of a verdict and rewrite our section of the run's note."""
        old = self._run().data.tags
        tags = {f"flashback.{key}": value for key, value in verdict.items()}
        for name in [name for name, value in tags.items() if value is None]:
            if name in old:
                self._client.delete_tag(self._run_id, name)
            del tags[name]
        link = page and f"{self._artifacts()}/{page}"
        tags[NOTE] = with_section(old.get(NOTE, ""), verdict, text, link)
        tags[_LOGGED_TABLES] = _with_tables(old.get(_LOGGED_TABLES, "[]"))
        self._client.log_batch(self._run_id, tags=[RunTag(k, str(v)) for k, v in tags.items()])

    def _artifacts(self) -> str:
        """Address of our folder in MLflow's pages, relative to the server."""
        return f"#/experiments/{self._experiment_id}/runs/{self._run_id}/artifacts/{FOLDER}"

    def download_index(self, folder: Path) -> Path:
        """Fetch the index that the run carries into `folder`.

        Raises:
            SourceError: If it carries none.
        """
        wanted = f"{FOLDER}/{INDEX}"
        there = {file.path for file in self._client.list_artifacts(self._run_id, FOLDER)}
        if wanted not in there:
            msg = (
                f"the MLflow run {self._run_id} has no artifact {wanted}; record it with "
                "flashback_plugins.mlflow.record or with FlashbackCallback and an MLFlowLogger"
            )
            raise SourceError(msg)
        return Path(self._client.download_artifacts(self._run_id, wanted, str(folder)))

    def at_exit(self, close: Callable[[], object]) -> None:
        """Call `close` at the end of the script, before MLflow ends its active run."""
        atexit.register(close)
        self._forget = partial(atexit.unregister, close)

    def close(self) -> None:
        """Send what is waiting. The run stays as it is: it is the user's."""
        self._forget()
        self._outbox.close()


def _sink(tracking_uri: str, run_id: str, notify: Notify | None) -> MlflowSink:
    return MlflowSink(client(tracking_uri), run_id, notify=notify)


def _with_tables(logged: str) -> str:
    """The list of files that MLflow's page shows as tables, with our findings in it."""
    entry = {"path": f"{FOLDER}/{FINDINGS}", "type": "table"}
    tables = json.loads(logged)
    return json.dumps(tables if entry in tables else [*tables, entry])
