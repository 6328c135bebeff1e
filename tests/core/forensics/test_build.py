"""Building: deterministic, resumable, parallel."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from flashback_core.errors import SourceError
from flashback_core.forensics.build import Job, build, build_run, jobs_of
from flashback_core.forensics.dataset import facts_of, run_files
from flashback_core.forensics.scales import SCALES
from flashback_core.forensics.tables import runs_in

ROOT = Path(__file__).parents[3]


def job(kind: str, *, twin: bool = False, seed: int = 6) -> Job:
    """A run of a few dozen steps."""
    return Job(kind=kind, seed=seed, preset="tiny", twin=twin, n_steps=70)


def test_run_is_written_with_its_twin(tmp_path: Path) -> None:
    """Both files, the visibility in the facts, and no work files."""
    assert build_run(tmp_path, job("lr_spike_loud", twin=True)) is None
    (path,) = run_files(tmp_path)
    facts = facts_of(path)
    assert facts["has_twin"]
    assert facts["visibility"] > 8
    assert facts["injected_step"] == facts["first_bad_step"] > 0
    (twin,) = runs_in(run_files(tmp_path, "twins")[0])
    assert twin.is_twin
    assert twin.first_bad_step is None
    assert not any((tmp_path / ".work").glob("*"))


def test_run_repeats(tmp_path: Path) -> None:
    """All metrics but the wall time are the same, bit for bit."""
    found = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        assert build_run(folder, job("grad_noise")) is None
        (run,) = runs_in(run_files(folder)[0])
        found.append(run.table)
    for name in found[0]:
        if name != "step_wall_ms":
            np.testing.assert_array_equal(found[0].column(name), found[1].column(name))


def test_run_records_its_batches(tmp_path: Path) -> None:
    """The digest of the batch and how labels follow inputs are there for the invariants."""
    assert build_run(tmp_path, job("label_shift")) is None
    (run,) = runs_in(run_files(tmp_path)[0])
    labels = run.table.column("exact:labels")
    assert len(np.unique(run.table.column("exact:batch_hash"))) == len(run.table)
    assert labels[0] == 1
    assert labels[run.first_bad_step] == 0


def test_failing_run_is_a_result(tmp_path: Path) -> None:
    """An error in one run is told, and ends no build of hundreds."""
    blocked = tmp_path / "file"
    blocked.write_text("where the folder should be")
    assert "Error" in str(build_run(blocked, job("plain")))


def test_build_goes_on(tmp_path: Path) -> None:
    """What is there is not built again; a larger limit adds the rest."""
    first = build(tmp_path, "tiny", kinds=["placebo_nothing"], n_seeds=1, twins=0, jobs=1)
    assert (first.n_built, first.n_present, first.failed) == (1, 0, {})
    path = run_files(tmp_path)[0]
    before = path.stat().st_mtime_ns
    again = build(tmp_path, "tiny", kinds=["placebo_nothing"], n_seeds=1, twins=0, jobs=1)
    assert (again.n_built, again.n_present) == (0, 1)
    assert path.stat().st_mtime_ns == before
    assert "config_name: steps" in (tmp_path / "README.md").read_text("utf-8")


def test_another_scale_is_refused(tmp_path: Path) -> None:
    """One folder holds one scale."""
    (tmp_path / "build.json").write_text(json.dumps({"format": 1, "scale": "medium"}))
    with pytest.raises(SourceError, match="scale 'medium'"):
        build(tmp_path, "tiny", limit=1)


def test_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    """Nothing of the user's is mixed with the data set."""
    (tmp_path / "thesis.tex").write_text("…")
    with pytest.raises(SourceError, match="not empty"):
        build(tmp_path, "tiny", limit=1)


def test_unknown_scale_is_refused(tmp_path: Path) -> None:
    """The scales are listed."""
    with pytest.raises(SourceError, match="tiny, medium, six, small, large"):
        build(tmp_path, "huge")


def test_twins_are_of_fault_runs_only() -> None:
    """A healthy run needs no twin."""
    jobs = jobs_of(SCALES["tiny"], twins=1.0)
    assert {j.twin for j in jobs if j.kind == "plain"} == {False}
    assert all(j.twin for j in jobs if j.kind == "bit_flip")
    with pytest.raises(SourceError, match="between 0 and 1"):
        jobs_of(SCALES["tiny"], twins=1.5)


@pytest.mark.slow
def test_killed_build_goes_on(tmp_path: Path) -> None:
    """Killed in the middle, it leaves whole files only, and the next build adds the rest."""
    code = (
        "from flashback_core.forensics.build import build; "
        f"build({str(tmp_path)!r}, 'tiny', kinds=['plain'], n_seeds=3, jobs=1)"
    )
    process = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    while process.poll() is None and not run_files(tmp_path):
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    process.kill()
    process.wait()
    n_before = len(run_files(tmp_path))
    done = build(tmp_path, "tiny", kinds=["plain"], n_seeds=3, jobs=2)
    assert (done.n_present, done.n_built) == (n_before, 3 - n_before)
    assert [len(list(runs_in(path))) for path in run_files(tmp_path)] == [1, 1, 1]


@pytest.mark.slow
def test_kinds_of_ones_own_are_built(tmp_path: Path) -> None:
    """A file of a few lines adds a fault kind and a healthy kind, in all processes."""
    code = (
        "from flashback_core.forensics.build import build\n"
        "if __name__ == '__main__':\n"
        f"    done = build({str(tmp_path / 'out')!r}, 'tiny', kinds=['sign_flip', 'lower_dropout'],"
        f" n_seeds=1, also={str(Path(__file__).with_name('more_kinds.py'))!r}, jobs=2)\n"
        "    assert not done.failed, done.failed\n"
    )
    script = tmp_path / "script.py"
    script.write_text(code)
    subprocess.run([sys.executable, str(script)], check=True, cwd=ROOT, env=_path())
    facts = {facts_of(path)["run_id"]: facts_of(path) for path in run_files(tmp_path / "out")}
    assert facts["sign_flip__s0"]["fault_description"].startswith("gradients negated")
    assert facts["sign_flip__s0"]["split"] == facts["lower_dropout__s0"]["split"] == "test"


def _path() -> dict[str, str]:
    import os

    return {**os.environ, "PYTHONPATH": str(ROOT)}
