"""Outbox: sends to MLflow from a thread of its own, so that no training waits for a server."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from flashback_core.warn import Guard

if TYPE_CHECKING:
    from mlflow.entities import Metric

__all__ = ["Outbox"]


class Outbox:
    """Collects metrics and sends them together every few seconds; runs jobs in between.

    Each request costs far more than each metric in it, hence the waiting. A request that fails
    ends all sending: MLflow has tried again for minutes by then. It is warned of once, by whoever
    fills the outbox, so that the warning comes from the thread that trains.

    Args:
        send: Sends a list of metrics; called in the outbox's thread, or by `flush`.
        every_s: Seconds between two requests.
        limit: Metrics that are kept while a request is under way; the oldest go first.
        patience_s: How long `flush` waits for a request under way.
    """

    def __init__(
        self,
        send: Callable[[list[Metric]], object],
        *,
        every_s: float = 5.0,
        limit: int = 20_000,
        patience_s: float = 30.0,
    ) -> None:
        """Set up; the thread starts with the first thing to send."""
        self._send = send
        self._every_s = every_s
        self._patience_s = patience_s
        self._metrics: deque[Metric] = deque(maxlen=limit)
        self._jobs: deque[Callable[[], object]] = deque(maxlen=limit)
        self._busy = threading.Lock()
        self._wake = threading.Event()
        self._closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._guard = Guard()

    def put(self, metrics: list[Metric]) -> None:
        """Take metrics to be sent within `every_s` seconds."""
        if self._usable():
            self._metrics.extend(metrics)

    def do(self, job: Callable[[], object]) -> None:
        """Take a job to be done now, in the outbox's thread."""
        if self._usable():
            self._jobs.append(job)
            self._wake.set()

    def flush(self) -> None:
        """Send all that is here; come back when it has arrived, or has failed with a warning."""
        if self._busy.acquire(timeout=self._patience_s):
            try:
                self._deliver()
            finally:
                self._busy.release()
        else:
            self._error = TimeoutError(f"no answer in {self._patience_s:.0f} s")
        self._warn()

    def close(self) -> None:
        """Flush and end the thread. Idempotent."""
        self.flush()
        self._closed.set()
        self._wake.set()

    def _usable(self) -> bool:
        self._warn()
        if self._error is not None or self._closed.is_set():
            return False
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="flashback-mlflow", daemon=True)
            self._thread.start()
        return True

    def _work(self) -> None:
        while not self._closed.is_set():
            self._wake.wait(self._every_s)
            self._wake.clear()
            with self._busy:
                self._deliver()

    def _deliver(self) -> None:
        try:
            while self._jobs and self._error is None:
                self._jobs.popleft()()
            metrics = [self._metrics.popleft() for _ in range(len(self._metrics))]
            if metrics and self._error is None:
                self._send(metrics)
        except Exception as error:
            self._error = error

    def _warn(self) -> None:
        if self._error is not None:
            self._guard.warn(
                "mlflow",
                f"MLflow takes nothing more ({type(self._error).__name__}: {self._error}); the "
                "training and the index go on, live metrics are left out from here on",
            )
