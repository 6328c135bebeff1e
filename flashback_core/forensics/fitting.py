"""Fitting a detector on the training split, with its provenance."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from flashback_core.detectors.first_bad_step import FirstBadStepDetector
from flashback_core.errors import NoBaselineError
from flashback_core.forensics.fitting_causes import fit_causes
from flashback_core.forensics.tables import LabelledRun, fingerprint, load_runs

__all__ = ["fit", "fitted"]

PROVENANCE = "provenance.json"


def fitted(runs: Sequence[LabelledRun]) -> FirstBadStepDetector:
    """The detector fitted on labelled runs; the tail is measured on kinds that are left out."""
    tables, bad = [run.table for run in runs], [run.first_bad_step for run in runs]
    kinds = [_kind_of(run) for run in runs]
    detector = FirstBadStepDetector().fit(tables, bad, kinds=kinds)
    detector.causes = fit_causes(runs, detector) or detector.causes
    return detector


def _kind_of(run: LabelledRun) -> str:
    of = "healthy_kind" if run.first_bad_step is None else "fault_kind"
    return str(run.facts.get(of) or run.run_id)


def fit(
    data: str | Path | Sequence[str | Path],
    out: str | Path,
    *,
    splits: Sequence[str] = ("train",),
    command: str = "",
) -> FirstBadStepDetector:
    """Fit on the training split of a data set and save, with ``provenance.json`` beside it.

    Args:
        data: The data set, or several.
        out: Folder of the detector.
        splits: ``train``, and ``calibration`` where thresholds may see it; never ``test``.
        command: The command line, for the provenance.

    Raises:
        NoBaselineError: If `splits` names ``test``, or holds no run.
    """
    if "test" in splits:
        msg = "a detector is never fitted on the split 'test'; use train, or train,calibration"
        raise NoBaselineError(msg)
    folders = [data] if isinstance(data, (str, Path)) else list(data)
    found = [run for folder in folders for run in load_runs(folder, splits=splits)]
    runs = [run for run in found if run.split in splits]
    if not runs:
        names = ", ".join(str(folder) for folder in folders)
        msg = f"{names}: no run of the splits {', '.join(splits)}; build more runs"
        raise NoBaselineError(msg)
    detector = fitted(runs)
    folder = detector.save(out)
    facts = _provenance(folders, runs, splits, command)
    (folder / PROVENANCE).write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
    return detector


def _provenance(
    folders: Sequence[str | Path],
    runs: Sequence[LabelledRun],
    splits: Sequence[str],
    command: str,
) -> dict[str, Any]:
    from flashback_core.forensics.score import versions

    return {
        "command": command,
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "versions": versions(),
        "data_fingerprints": [fingerprint(folder) for folder in folders],
        "splits": list(splits),
        "n_runs": len(runs),
        "n_healthy_runs": sum(run.first_bad_step is None for run in runs),
        "n_steps": sum(len(run.table) for run in runs),
        "kinds": sorted({_kind_of(run) for run in runs}),
    }
