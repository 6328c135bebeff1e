"""The core is light: no tracker, nothing heavy before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TRACKERS = {"lightning", "pytorch_lightning", "wandb", "mlflow", "transformers", "tensorboard",
            "flashback_plugins"}  # fmt: skip
NEEDS_TORCH = ("sketch", "recorder", "rewind", "faults", "forensics", "start", "optimizer_hooks",
               "replicas", "digests", "watch", "testing",
               "scaler_hooks", "row")  # fmt: skip


def sources(folder: str) -> list[Path]:
    """Every Python file of a package."""
    return sorted((ROOT / folder).rglob("*.py"))


def imported(path: Path) -> set[str]:
    """Top-level names that a file imports anywhere, inside functions too."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names.add((node.module or "").partition(".")[0])
    return names


@pytest.mark.parametrize("path", sources("flashback_core"), ids=lambda p: p.stem)
def test_core_imports_no_tracker(path: Path) -> None:
    """The core runs where no tracker is installed."""
    assert not imported(path) & TRACKERS


@pytest.mark.parametrize("path", sources("flashback_core"), ids=lambda p: p.stem)
def test_torch_stays_where_tensors_are(path: Path) -> None:
    """Reading and detecting need no torch."""
    parts = path.relative_to(ROOT / "flashback_core").with_suffix("").parts
    if not any(part.startswith(NEEDS_TORCH) for part in parts):
        assert "torch" not in imported(path)


def _run(code: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return done.stdout


def test_import_loads_nothing_heavy() -> None:
    """`import flashback_core` loads neither torch nor a tracker nor pandas nor pyarrow."""
    loaded = _run("import flashback_core, sys; print(*sys.modules)").split()
    assert not {"torch", "pandas", "pyarrow", "numba", *TRACKERS} & set(loaded)


def test_detection_needs_no_torch(tmp_path: Path) -> None:
    """A whole offline detection, page included, runs without torch."""
    code = f"""
import sys
sys.modules["torch"] = None
import numpy as np
import flashback_core as fb
steps = np.arange(200)
rng = np.random.default_rng(0)
table = fb.MemoryTable(steps, {{"loss": 3 - steps / 100 + 0.05 * rng.standard_normal(200)}})
report = fb.detect(table)
report.write({str(tmp_path)!r})
print(report.status)
"""
    assert _run(code).strip() == "healthy"
    assert (tmp_path / "report.html").exists()


@pytest.mark.parametrize(
    ("code", "limit_s"),
    [("import flashback_core", 0.5), ("import flashback_plugins.cli", 0.3)],
    ids=["core", "command"],
)
def test_start_is_quick(code: str, limit_s: float) -> None:
    """The core starts in half a second and the command in 0.3 s, Python's own start not counted."""
    measure = f"import time; t = time.process_time(); {code}; print(time.process_time() - t)"
    assert min(float(_run(measure)) for _ in range(3)) < limit_s


def test_help_is_quick() -> None:
    """`flashback --help` answers in 0.3 s of processor time, beyond Python's own start."""

    def cost(*arguments: str) -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True, cwd=ROOT)
        return time.perf_counter() - started

    bare = min(cost("-c", "pass") for _ in range(3))
    assert min(cost("-m", "flashback_plugins.cli", "--help") for _ in range(3)) - bare < 0.3
