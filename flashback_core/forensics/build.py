"""Building the data set: planned runs are trained, recorded and written, several at a time.

A run that is written is done; a build that was killed goes on with those that are not. All that a
run holds but times follows from its kind, its seed and the scale.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from flashback_core.errors import SourceError
from flashback_core.forensics.card import write_card
from flashback_core.forensics.dataset import facts_of, run_files, write_run, write_runs_tables
from flashback_core.forensics.kinds import load_kinds, load_later
from flashback_core.forensics.oracle import visibility
from flashback_core.forensics.plans import RunPlan, plan
from flashback_core.forensics.predictions import predictions
from flashback_core.forensics.scales import SCALES, Scale, has_twin, run_list

__all__ = ["Build", "Job", "build", "build_run", "jobs_of", "load_more_kinds"]

_MARK = "build.json"
_FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One run to build.

    Args:
        kind: Fault kind or healthy kind.
        seed: Its seed.
        preset: One of `plans.PRESETS`.
        twin: Whether it gets a healthy twin.
        n_steps: Length in place of the preset's.
        also: A Python file that adds kinds, see `load_more_kinds`.
    """

    kind: str
    seed: int
    preset: str
    twin: bool
    n_steps: int | None = None
    also: str | None = None

    def plan(self) -> RunPlan:
        """The plan of the run."""
        return plan(self.seed, self.kind, preset=self.preset, n_steps=self.n_steps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What a build did.

    Attributes:
        folder: The data set.
        n_built: Runs trained now.
        n_present: Runs that were there before.
        failed: What went wrong, by run id.
    """

    folder: Path
    n_built: int
    n_present: int
    failed: dict[str, str]


Progress = Callable[[int, int, str], None]
"""Told: steps that are done, steps in all, the run that has just ended."""


def jobs_of(
    scale: Scale,
    *,
    kinds: Sequence[str] | None = None,
    n_seeds: int | None = None,
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    twins: float | None = None,
    also: str | Path | None = None,
) -> list[Job]:
    """The runs of a scale as jobs; see `build`."""
    if also is not None:
        load_more_kinds(also)
    share = scale.twins if twins is None else twins
    if not 0 <= share <= 1:
        msg = f"the share of runs with a twin is between 0 and 1; got {share}"
        raise SourceError(msg)
    runs = run_list(scale, kinds=kinds, n_seeds=n_seeds, seeds=seeds, limit=limit)
    frozen = load_kinds()
    return [
        Job(
            kind=kind,
            seed=seed,
            preset=scale.preset_of(frozen[kind].set),
            twin=frozen[kind].set not in scale.without_twins
            and has_twin(f"{kind}__s{seed}", share),
            also=None if also is None else str(also),
        )
        for kind, seed in runs
    ]


def build(
    folder: str | Path,
    scale: str = "tiny",
    *,
    kinds: Sequence[str] | None = None,
    n_seeds: int | None = None,
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
    twins: float | None = None,
    also: str | Path | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> Build:
    """Build a data set, or go on with one.

    Args:
        folder: Where it goes; made when it is missing.
        scale: One of `scales.SCALES`.
        kinds: Kinds or sets of kinds; None are those of the scale.
        n_seeds: Runs of each kind; None is the scale's.
        seeds: Seeds of the runs of each kind, by number; in place of `n_seeds`.
        limit: Only the first so many, see `scales.run_list`.
        twins: Share of the fault runs that get a healthy twin; None is the scale's.
        also: A Python file that adds kinds, see `load_more_kinds`.
        jobs: Processes; None is one per core.
        progress: Told after each run.

    Returns:
        What was done. A run that failed is named there, and does not stop the others.

    Raises:
        SourceError: If the scale or a kind is not known, or the folder holds another scale.
    """
    if scale not in SCALES:
        msg = f"scale {scale!r} is none of {', '.join(SCALES)}"
        raise SourceError(msg)
    out = Path(folder)
    wanted = jobs_of(
        SCALES[scale], kinds=kinds, n_seeds=n_seeds, seeds=seeds, limit=limit, twins=twins,
        also=also,
    )  # fmt: skip
    _claim(out, scale)
    present = {facts_of(path)["run_id"] for path in run_files(out)}
    missing = [job for job in wanted if f"{job.kind}__s{job.seed}" not in present]
    failed = _build_all(out, missing, jobs or os.cpu_count() or 1, progress)
    write_runs_tables(out)
    write_card(out, scale)
    return Build(
        folder=out,
        n_built=len(missing) - len(failed),
        n_present=len(wanted) - len(missing),
        failed=failed,
    )


def _claim(folder: Path, scale: str) -> None:
    """Make the folder, or see that it holds the same scale."""
    mark = folder / _MARK
    wanted = {"format": _FORMAT, "scale": scale}
    if mark.exists():
        found = json.loads(mark.read_text("utf-8"))
        if found != wanted:
            msg = (
                f"{folder} holds a data set of scale {found.get('scale')!r} (format "
                f"{found.get('format')}), not {scale!r} (format {_FORMAT}); give another --out"
            )
            raise SourceError(msg)
    elif folder.is_dir() and any(folder.iterdir()):
        msg = f"{folder} is not empty and holds no data set of ours; give another --out"
        raise SourceError(msg)
    folder.mkdir(parents=True, exist_ok=True)
    mark.write_text(json.dumps(wanted) + "\n", "utf-8")
    shutil.rmtree(folder / ".work", ignore_errors=True)


def _build_all(
    folder: Path, jobs: Sequence[Job], n_processes: int, progress: Progress | None
) -> dict[str, str]:
    """Build all jobs; what failed, by run id."""
    sizes = {job: job.plan().n_steps * (1 + job.twin) for job in jobs}
    total, done, failed = sum(sizes.values()), 0, {}
    for job, error in _results(folder, jobs, min(n_processes, max(len(jobs), 1))):
        run_id = f"{job.kind}__s{job.seed}"
        if error is not None:
            failed[run_id] = error
        done += sizes[job]
        if progress is not None:
            progress(done, total, run_id)
    return failed


def _results(
    folder: Path, jobs: Sequence[Job], n_processes: int
) -> Iterator[tuple[Job, str | None]]:
    if n_processes == 1:
        for job in jobs:
            yield job, build_run(folder, job)
        return
    # one thread in each process: set before torch starts, and inherited
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        context = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(n_processes, mp_context=context) as pool:
            yield from _finished(pool, folder, jobs)
    finally:
        if before is None:
            del os.environ["OMP_NUM_THREADS"]
        else:
            os.environ["OMP_NUM_THREADS"] = before


def _finished(
    pool: ProcessPoolExecutor, folder: Path, jobs: Sequence[Job]
) -> Iterator[tuple[Job, str | None]]:
    futures: dict[Future[str | None], Job] = {
        pool.submit(build_run, folder, job): job for job in jobs
    }
    try:
        for future in as_completed(futures):
            yield futures[future], future.result()
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def load_more_kinds(path: str | Path) -> None:
    """Run a Python file that registers kinds and adds them to the list, once per process.

    Raises:
        SourceError: If there is no such file.
    """
    file = Path(path).resolve()
    name = f"flashback_kinds_{zlib.crc32(str(file).encode()):08x}"
    if name in sys.modules:
        return
    spec = spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        msg = f"{path} is no Python file; expected one that registers kinds"
        raise SourceError(msg)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


def build_run(folder: Path, job: Job) -> str | None:
    """Train, record and write one run, after its twin where it gets one.

    Returns:
        None, or what went wrong: one run must not end a build of hundreds.
    """
    import torch

    torch.set_num_threads(1)
    load_later([job.kind])
    if job.also is not None:
        load_more_kinds(job.also)
    run = job.plan()
    work = folder / ".work" / run.run_id
    try:
        twin = _trained(run, work / "twin", twin=True) if job.twin else None
        table, facts = _trained(run, work / "run")
        if twin is not None:
            write_run(folder, *twin)
            facts |= _visibility(run, table, twin[0])
        bad = facts["first_bad_step"]
        facts |= predictions(table, None if bad < 0 else bad)
        write_run(folder, table, facts)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(work, ignore_errors=True)
    return None


def _trained(run: RunPlan, work: Path, *, twin: bool = False) -> tuple[Any, dict[str, Any]]:
    """The recorded table of a run and its facts."""
    from flashback_core.forensics.run import execute, record_into
    from flashback_core.index import StepSketchIndex
    from flashback_core.table import MemoryTable

    shutil.rmtree(work, ignore_errors=True)
    facts = execute(run, record_into(work), twin=twin)
    index = StepSketchIndex(work / "sketch")
    columns = {name: index.column(name) for name in index}
    table = MemoryTable(index.steps, columns, events=index.events, source=run.run_id)
    size = sum(f.stat().st_size for f in (work / "sketch").rglob("*") if f.is_file())
    entry = load_kinds()[run.kind]
    facts |= {
        "sketch_bytes_per_step": size / run.n_steps,
        "kind_set": entry.set,
        "is_held_out": entry.is_held_out,
        "injected_step": run.faults[0].step if run.faults and not twin else None,
        "visibility_metric": "",
    }
    return table, facts


def _visibility(run: RunPlan, table: Any, twin: Any) -> dict[str, Any]:
    later = [f.step for f in run.faults[1:]]
    found = visibility(table, twin, run.faults[0].step, stop=min(later, default=None))
    return {
        "has_twin": True,
        "visibility": found.d_prime,
        "visibility_point": found.point,
        "visibility_window": found.window,
        "visibility_metric": found.metric,
    }
