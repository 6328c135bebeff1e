"""``flashback detect --follow``: findings of a run that another process still records."""

from __future__ import annotations

import argparse
import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flashback_core.errors import SourceError
from flashback_core.index import StepSketchIndex
from flashback_core.report.text import clean
from flashback_core.sink_set import Told
from flashback_core.source import open_run

if TYPE_CHECKING:
    from flashback_core.detectors.first_bad_step import FirstBadStepDetector
    from flashback_core.report.model import Finding
    from flashback_core.table import StepTable

__all__ = ["Follower", "line", "run"]

PAUSE_SECONDS = 1.0
"""Between two looks at the index."""
BEFORE = 512
"""Rows before a resume from which the detector learns what is normal."""
_CHUNK = 1024


class Follower:
    """Reads the rows of an index as they come, and gives them to the detector's stream.

    The writer's lock is never touched, so following cannot keep a recorder from starting.

    Args:
        index: Open for reading; another process may write it.
        detector: Of version 2, which has a stream.

    Attributes:
        n_rows: Rows that were read.
        is_over: Whether the run was sealed, or its process is gone.

    Raises:
        DetectorError: If the detector has no stream.
    """

    def __init__(self, index: StepSketchIndex, detector: FirstBadStepDetector) -> None:
        self._index, self._detector = index, detector
        self._stream = detector.stream()
        self._told = Told()
        self._n_events = 0
        self._last = -1
        self._was_writing = True
        self.n_rows = 0
        self.is_over = False

    def findings(self) -> Iterator[Finding]:
        """Bad findings and changes until the run ends, each once."""
        while not self.is_over:
            yield from self.look()
            if not self.is_over:
                time.sleep(PAUSE_SECONDS)

    def look(self) -> Iterator[Finding]:
        """What the rows say that came since the last look."""
        is_writing = _is_written(self._index.path)  # before the rows are read: then none is missed
        index = self._index.refresh()
        self._take_events(index)
        first = int(index.steps.searchsorted(self._last, side="right"))
        for start in range(first, len(index), _CHUNK):
            for row in _rows(index[start : min(start + _CHUNK, len(index))]):
                yield from self._update(row)
        self.is_over = not (is_writing or self._was_writing)  # twice: a writer may just begin
        self._was_writing = is_writing
        if self.is_over:
            yield from self._new(self._stream.finish())

    def _take_events(self, index: StepSketchIndex) -> None:
        events = index.events
        for event in events[self._n_events :]:
            self._stream.add_event(event)
            if event["event"] == "resume" and event["step"] <= self._last:
                self._go_back(index, int(event["step"]))
        self._n_events = len(events)

    def _go_back(self, index: StepSketchIndex, step: int) -> None:
        """Rows from `step` on are superseded: learn anew from those before it."""
        self._stream, self._told = self._detector.stream(), Told()
        self._stream.begin((*index.names, *index.exact_names))
        for event in index.events:
            self._stream.add_event(event)
        self._stream.learn(index.between(max(step - BEFORE, 0), step - 1))
        self._last = step - 1

    def _update(self, row: dict[str, Any]) -> Iterator[Finding]:
        self._last = int(row["step"])
        self.n_rows += 1
        before = len(self._stream.findings)
        self._stream.update(row)
        yield from self._new(self._stream.findings[before:])

    def _new(self, findings: list[Finding]) -> Iterator[Finding]:
        for finding in findings:
            if finding.severity != "info" and self._told.is_new(finding):
                yield finding


def _rows(table: StepTable) -> Iterator[dict[str, Any]]:
    columns: dict[str, list[Any]] = {"step": table.steps.tolist()}
    columns |= {name: table.column(name).tolist() for name in table}
    for values in zip(*columns.values(), strict=True):
        yield dict(zip(columns, values, strict=True))


def _is_written(folder: Path) -> bool:
    """Whether the process that the index names as its writer is alive, as far as can be told."""
    try:
        owner = (folder / "lock").read_text(errors="replace").split()
    except OSError:
        return False
    if len(owner) != 4:  # process <id> on <host>; empty once it was closed
        return False
    if owner[3] != socket.gethostname() or os.name != "posix":
        return True
    return _is_alive(int(owner[1]))


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        pass
    return True


def line(finding: Finding) -> str:
    """One finding for people."""
    why = clean(finding.evidence[0], 300) if finding.evidence else ""
    sure = f"confidence {finding.confidence:.2f}"
    return f"{finding.severity:6} step {finding.step}  {finding.kind}  {sure}  {why}".rstrip()


def run(arguments: argparse.Namespace, detector: FirstBadStepDetector) -> str:
    """Run the command; returns ``bad`` if something bad was found, else ``healthy``.

    Raises:
        SourceError: If the source is no index on this machine, or another option does not fit.
    """
    index = _index(arguments)
    _say(f"following {clean(index.source, 200)}; Ctrl-C ends it")
    follower, status = Follower(index, detector), "healthy"
    try:
        for finding in follower.findings():
            status = "bad" if finding.severity == "bad" else status
            _say(line(finding))
    except KeyboardInterrupt:
        _say(f"stopped after {follower.n_rows} steps; the run itself goes on")
    else:
        _say(f"the recording has ended after {follower.n_rows} steps")
    return status


def _index(arguments: argparse.Namespace) -> StepSketchIndex:
    names = ("json", "html", "attach", "run_id")
    other = [f"--{name.replace('_', '-')}" for name in names if getattr(arguments, name)]
    if other:
        msg = f"--follow prints findings as they come and does not go with {', '.join(other)}; "
        msg += "leave that out, or make a report without --follow"
        raise SourceError(msg)
    index = open_run(arguments.source)
    if not isinstance(index, StepSketchIndex) or index.url is not None:
        msg = f"--follow reads a run folder on this machine, and {arguments.source} is none; "
        msg += "leave --follow out"
        raise SourceError(msg)
    return index


def _say(text: str) -> None:
    print(text, flush=True)
