"""Scripts that know nothing of flashback run with one line added, and train as before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import flashback_core as fb

pytest.importorskip("lightning.pytorch")
pytest.importorskip("sklearn")
pytestmark = pytest.mark.slow
ROOT = Path(__file__).parents[2]
SCRIPTS = Path(__file__).parent / "lightning_scripts"
LINE = ("from flashback_plugins.lightning import FlashbackCallback; "
        "trainer.callbacks.append(FlashbackCallback())")  # fmt: skip


def run(folder: Path, code: list[str]) -> list[str]:
    """Run a script in its own folder; what it prints of its result."""
    folder.mkdir()
    (folder / "script.py").write_text("\n".join(code))
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "script.py"],
        env=env, capture_output=True, text=True, cwd=folder, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.startswith(("steps", "result"))]


@pytest.mark.parametrize(("name", "groups"), [
    ("digits", ["stem", "norm", "head"]),
    ("transformer", ["embed", "attn_qkv", "attn_out", "mlp_in", "mlp_out", "norm", "head"]),
])  # fmt: skip
def test_one_added_line(tmp_path: Path, name: str, groups: list[str]) -> None:
    """One row per optimizer step, a report, and the result of the script is what it was."""
    code = (SCRIPTS / f"{name}.py").read_text(encoding="utf-8").splitlines()
    assert "flashback_plugins" not in "\n".join(code)
    made = next(i for i, line in enumerate(code) if line.startswith("trainer = pl.Trainer("))
    watched = [*code[: made + 1], LINE, *code[made + 1 :]]
    said = run(tmp_path / "watched", watched)
    assert said == run(tmp_path / "alone", code)
    recorded = tmp_path / "watched" / "lightning_logs" / "version_0" / "flashback"
    index = fb.StepSketchIndex(recorded / "sketch")
    assert said[0] == f"steps {len(index)}"
    assert (recorded / "report.html").exists()
    for group in groups:
        assert (index[f"group:{group}:grad_norm"] > 0).all(), group
