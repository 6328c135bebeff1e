"""Scoring: detectors over a labelled data set, side by side on the same arrays."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from flashback_core.detectors import first_bad_step
from flashback_core.detectors.base import Detector
from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.detectors.loss_curve import LossCurveDetector
from flashback_core.errors import NoBaselineError
from flashback_core.forensics.cache import OutcomeCache, detector_keys
from flashback_core.forensics.figures import figures
from flashback_core.forensics.outcomes import RunOutcome, judge
from flashback_core.forensics.peers import peers
from flashback_core.forensics.summary import summarise
from flashback_core.forensics.tables import data_files, fingerprint, load_runs, runs_in
from flashback_core.table import StepTable
from flashback_core.version import __version__

__all__ = ["OURS", "Without", "detectors", "fitted_peers", "score", "versions"]

OURS = "flashback"
NO_LR = "flashback, lr withheld"
NO_EXACT = "flashback, 128 metrics only"
LOSS_CURVE = "loss curve"
PUBLISHED = "published, version 1"

Progress = Callable[[int, int, str], None]


@dataclass(frozen=True)
class Without:
    """A detector that is not shown some columns.

    Args:
        detector: The detector.
        hidden: Names of columns; a name that ends in ``:`` stands for all that begin with it.
        is_blind_to_events: Whether it is not shown what the recorder noted of weights, state and
            configuration either; declared events stay.
    """

    detector: Detector
    hidden: tuple[str, ...]
    is_blind_to_events: bool = False
    version: str = field(init=False, default="")

    def __post_init__(self) -> None:
        """Take over the version, which says how alarms are read."""
        object.__setattr__(self, "version", getattr(self.detector, "version", ""))

    def _seen(self, table: StepTable) -> StepTable:
        from flashback_core.table import MemoryTable

        starts = tuple(name for name in self.hidden if name.endswith(":"))
        columns = {
            name: table.column(name)
            for name in table
            if name not in self.hidden and not (starts and name.startswith(starts))
        }
        events = table.events
        if self.is_blind_to_events:
            events = tuple(e for e in events if e.get("event") in ("expect", "groups", "session"))
        return MemoryTable(table.steps, columns, events=events, source=table.source)

    def fit(self, indexes: Sequence[StepTable], first_bad_steps: Sequence[int | None]) -> Without:
        """Leave the detector as it is."""
        return self

    def predict(self, index: StepTable) -> Any:
        """The report on what is left."""
        return self.detector.predict(self._seen(index))

    def score(self, index: StepTable) -> Any:
        """The score of what is left."""
        return self.detector.score(self._seen(index))  # type: ignore[attr-defined]  # ours have it

    def __getattr__(self, name: str) -> Any:
        """The budget of the detector, where it has one."""
        if name in ("budget", "score_ratio_at"):
            return getattr(self.detector, name)
        if name == "at_budget" and hasattr(self.detector, name):
            other = getattr(self.detector, name)
            return lambda budget: replace(self, detector=other(budget))
        raise AttributeError(name)


def detectors(folder: str | Path | None = None) -> dict[str, Detector]:
    """Our detectors by name: all columns, without the learning rate, without the exact fields.

    Args:
        folder: A saved detector in place of the shipped one.
    """
    from flashback_core.detectors.published import PublishedDetector

    ours = FirstBadStepDetector() if folder is None else FirstBadStepDetector.load(folder)
    return {
        OURS: ours,
        NO_LR: Without(ours, ("lr",)),
        NO_EXACT: Without(ours, ("exact:",), is_blind_to_events=True),
        LOSS_CURVE: LossCurveDetector(),
        PUBLISHED: PublishedDetector(),
    }


def fitted_peers(folder: str | Path) -> tuple[dict[str, Detector], list[str]]:
    """The peers by name, those without a published threshold calibrated on the split ``train``.

    Returns:
        The peers, and a line on each that cannot run here.
    """
    there, missing = peers()
    notes = [f"{name}: not run, its package is not installed" for name in missing]
    runs = list(load_runs(folder, splits=["train"]))
    tables, labels = [r.table for r in runs], [r.first_bad_step for r in runs]
    found: dict[str, Detector] = {}
    for peer in there:
        try:
            found[peer.name] = peer.fit(tables, labels)
        except NoBaselineError as error:
            notes.append(f"{peer.name}: not run, {error}")
    return found, notes


def score(
    folder: str | Path,
    candidates: dict[str, Detector],
    *,
    jobs: int | None = None,
    cache: str | Path | None = None,
    progress: Progress | None = None,
    notes: Sequence[str] = (),
    command: str = "",
) -> dict[str, Any]:
    """Score detectors on all runs of a data set.

    Args:
        folder: The data set.
        candidates: Detectors by name; thresholds are as they come, nothing is fitted here.
        jobs: Processes; None is one per core.
        cache: Folder in which outcomes are kept, so that a scoring that was interrupted goes on and
            only detectors that changed are run again; None keeps none. See `OutcomeCache`.
        progress: Told: files done, files in all, the file.
        notes: Lines to keep with the result.
        command: The command line, to keep with the result.

    Returns:
        Plain data: ``data``, ``versions``, ``figures`` (see `figures`), ``detectors`` (name →
        tables, see `summary`) and ``outcomes`` (one dict per detector and run).
    """
    paths = data_files(folder, twins=True)
    outcomes: list[RunOutcome] = []
    kept = None if cache is None else OutcomeCache(cache, detector_keys(candidates))
    judged = _judged(paths, candidates, jobs or os.cpu_count() or 1, kept)
    for n, (path, found) in enumerate(judged):
        outcomes += found
        if progress is not None:
            progress(n + 1, len(paths), path.stem)
    by_name = {
        name: sorted((o for o in outcomes if o.detector == name), key=lambda o: (o.run_id, o.role))
        for name in candidates
    }
    tables = {name: summarise(found) for name, found in by_name.items()}
    main = tables.get(OURS)
    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": versions(),
        "data": _data_facts(Path(folder), by_name[next(iter(candidates))]),
        "notes": list(notes),
        "docs": {name: getattr(d, "doc", "") for name, d in candidates.items()},
        "figures": figures(main, tables.get(NO_LR), tables.get(NO_EXACT)) if main else [],
        "detectors": tables,
        "outcomes": [o.to_dict() for found in by_name.values() for o in found],
    }


def _judged(
    paths: Sequence[Path],
    candidates: dict[str, Detector],
    n_processes: int,
    cache: OutcomeCache | None,
) -> Iterator[tuple[Path, list[RunOutcome]]]:
    judge_one = partial(judge_file, candidates, cache=cache)
    if n_processes == 1 or len(paths) < 2:
        for path in paths:
            yield path, judge_one(path)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(n_processes, len(paths)), mp_context=context) as pool:
        futures = {pool.submit(judge_one, path): path for path in paths}
        for future in as_completed(futures):
            yield futures[future], future.result()


def judge_file(
    candidates: dict[str, Detector], path: Path, cache: OutcomeCache | None = None
) -> list[RunOutcome]:
    """All detectors on all runs in one file; those that the cache knows are not run again."""
    found = {} if cache is None else cache.known(path)
    missing = {name: d for name, d in candidates.items() if name not in found}
    if missing:
        runs = list(runs_in(path))
        found |= {name: [judge(name, d, run) for run in runs] for name, d in missing.items()}
        if cache is not None:
            cache.keep(path, found)
    return [outcome for name in candidates for outcome in found[name]]


def versions() -> dict[str, str]:
    """Versions of what the figures depend on."""
    found = {"flashback": f"{__version__} (detectors {_detectors_digest()})"}
    found["python"] = platform.python_version()
    for package in ("numpy", "torch", "scikit-learn", "ruptures", "river"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _detectors_digest() -> str:
    """Eight hexadecimal digits that differ when code or thresholds of a detector differ."""
    folder = Path(first_bad_step.__file__).parent
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".py", ".json"):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()[:8]


def _data_facts(folder: Path, outcomes: Sequence[RunOutcome]) -> dict[str, Any]:
    runs = [o for o in outcomes if o.role != "twin"]
    return {
        "fingerprint": fingerprint(folder),
        "n_runs": len(runs),
        "n_steps": sum(o.n_steps for o in runs),
        "n_faults": sum(o.role == "fault" for o in runs),
        "n_placebos": sum(o.role == "placebo" for o in runs),
        "n_healthy": sum(o.role == "healthy" for o in runs),
        "n_twins": len(outcomes) - len(runs),
        "n_test": sum(o.split == "test" for o in runs),
    }
