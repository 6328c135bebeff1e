"""The documents tell the truth: their Python runs, their commands have help, their links lead."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.errors import DetectorError, NoBaselineError, SourceError
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run, run_with_fault

ROOT = Path(__file__).parents[1]
PAGES = {
    name: (ROOT / name).read_text(encoding="utf-8")
    for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "examples/README.md",
                 *sorted(f"docs/{page.name}" for page in (ROOT / "docs").glob("*.md")))
}  # fmt: skip
_FOUND = {
    f"{name}-{i}": code
    for name, page in PAGES.items()
    for i, code in enumerate(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
}
BLOCKS = {
    name: code
    for name, code in _FOUND.items()
    if not any(code != other and code in other for other in _FOUND.values())
}
"""Code by place, without blocks that another one begins or ends with."""
COMMANDS = {
    command.strip()
    for page in PAGES.values()
    for command in re.findall(r"(?:^\$ |`)flashback ((?:forensics )?[\w-]+)", page, re.MULTILINE)
}


def run(*arguments: str, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """What Python says with these arguments."""
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, check=False
    )


@pytest.mark.parametrize("code", BLOCKS.values(), ids=BLOCKS)
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    """Every Python block of the documents runs as it stands."""
    done = run("-c", code, cwd=tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_commands_have_help(command: str) -> None:
    """Every command that the documents name explains itself."""
    done = run("-m", "flashback_plugins.cli", *command.split(), "--help")
    assert done.returncode == 0, done.stderr
    assert command in done.stdout


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Relative links of the documents point at files that exist."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", PAGES[name]):
        assert ((ROOT / name).parent / target).exists(), target


# -- docs/detector.md, "Odd input" ---------------------------------------------------------------


def log(steps: list[float], loss: list[float | str]) -> str:
    """A CSV of two columns."""
    rows = "".join(f"{step},{x}\n" for step, x in zip(steps, loss, strict=True))
    return f"step,loss\n{rows}"


def read(folder: Path, text: str) -> fb.StepTable:
    """The run in a CSV file of this text."""
    path = folder / "log.csv"
    path.write_text(text, encoding="utf-8")
    return fb.open_run(path)


def falling(n: int = 200) -> list[float]:
    """A loss that falls, with a little noise."""
    return [1 + 3 * float(np.exp(-i / 60)) + 0.01 * ((i * 7919) % 13 - 6) for i in range(n)]


def with_column(name: str, value: float) -> MemoryTable:
    """A healthy run in which one column is constant."""
    run_ = healthy_run(200)
    columns = {n: np.array(run_.column(n)) for n in run_}
    return MemoryTable(run_.steps, columns | {name: np.full(200, value)})


def losses(values: list[float]) -> MemoryTable:
    """A table of nothing but a loss."""
    return MemoryTable(np.arange(len(values)), {"loss": np.array(values)})


NAN = float("nan")
ODD = {
    "constant": (with_column("grad_max", 3.0), "healthy", None, None),
    "nan": (with_column("grad_max", NAN), "healthy", None, None),
    "constant loss": (losses([2.0] * 100), "bad", 0, "never_learns"),
    "loss that climbs": (losses([2 + i / 50 for i in range(100)]), "bad", 0, "never_learns"),
    "nan loss": (losses([NAN] * 100), "bad", 0, "nonfinite"),
    "turns nan": (losses([*falling(4), *[NAN] * 96]), "bad", 4, "nonfinite"),
    "now and then": (losses([x if i % 3 else NAN for i, x in enumerate(falling())]), "healthy",
                     None, None),
    "no row": (healthy_run(1)[:0], "not_enough_data", None, None),
    "one row": (healthy_run(1), "not_enough_data", None, None),
    "43 rows": (healthy_run(43), "not_enough_data", None, None),
    "60 rows": (healthy_run(60), "healthy", None, None),
    "nan in few rows": (run_with_fault(first_bad_step=3, n_steps=20, kind="nonfinite"), "bad", 3,
                        "nonfinite"),
    "nan at once": (run_with_fault(first_bad_step=0, kind="nonfinite"), "bad", 0, "nonfinite"),
    "sizes wrong at once": (run_with_fault(first_bad_step=0, kind="update_jump"), "healthy", None,
                            None),
    "the loss alone": (run_with_fault(first_bad_step=200)[["loss"]], "bad", 200, "divergence"),
}  # fmt: skip


@pytest.mark.parametrize(("table", "status", "step", "kind"), ODD.values(), ids=ODD)
def test_odd_tables(table: fb.StepTable, status: str, step: int | None, kind: str | None) -> None:
    """Each odd run has the status that docs/detector.md gives it."""
    report = fb.detect(table)
    assert (report.status, report.first_bad_step) == (status, step)
    assert kind is None or report.kind == kind


def test_odd_steps_in_a_file(tmp_path: Path) -> None:
    """A file is sorted, a step that comes again replaces the first, steps are cut to whole ones."""
    numbers = [3.0, 1.0, 2.0, 1.0, 4.5, NAN]
    table = read(tmp_path, log(numbers, [3.0, 9.0, 2.0, 1.0, 4.0, 5.0]))
    assert table.steps.tolist() == [1, 2, 3, 4]
    assert table["loss"].tolist() == [1.0, 2.0, 3.0, 4.0]
    assert any("repeat a step" in str(event.get("text")) for event in table.events)


def test_odd_steps_in_memory_and_in_a_stream() -> None:
    """Out of order or twice is one clear error that names the step."""
    for steps in ([0, 5, 3], [0, 1, 1]):
        with pytest.raises(ValueError, match=f"step {steps[-1]} after {steps[1]}"):
            MemoryTable(np.array(steps), {"loss": np.ones(3)})
        stream = fb.FirstBadStepDetector().stream()
        for step in steps[:2]:
            stream.update({"step": step, "loss": 1.0})
        with pytest.raises(DetectorError, match=f"step {steps[-1]} came after step {steps[1]}"):
            stream.update({"step": steps[-1], "loss": 1.0})


def test_odd_files(tmp_path: Path) -> None:
    """A file without a metric, or without a number in one, is a `SourceError` that says so."""
    with pytest.raises(SourceError, match="columns: apples"):
        read(tmp_path, "step,apples\n1,2\n")
    with pytest.raises(SourceError, match="no number in any row of 'loss'"):
        read(tmp_path, log([1, 2], ["nan", ""]))
    assert read(tmp_path, "step,loss\na,3\nb,2\n").steps.tolist() == [0, 1]


def test_no_baseline() -> None:
    """`fit` refuses runs without a healthy stretch; `predict` never does."""
    for run_, bad in ((healthy_run(30), None), (run_with_fault(first_bad_step=0), 0)):
        with pytest.raises(NoBaselineError, match="hold no healthy step"):
            fb.FirstBadStepDetector().fit([run_], [bad])
