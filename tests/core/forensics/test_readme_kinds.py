"""The README's way to a kind of one's own is short, and works."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from flashback_core.forensics.dataset import facts_of, run_files
from flashback_core.forensics.tables import load_runs

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = dict(re.findall(r"```python\n# (my_\w+\.py)\n(.*?)```", README, re.DOTALL))


@pytest.mark.parametrize("name", ["my_fault.py", "my_healthy.py"])
def test_at_most_twenty_lines(name: str) -> None:
    """Blank lines not counted."""
    assert 0 < sum(bool(line.strip()) for line in BLOCKS[name].splitlines()) <= 20


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind"), [("my_fault.py", "sign_flip"), ("my_healthy.py", "two_clips")]
)
def test_command_builds_it(name: str, kind: str, tmp_path: Path) -> None:
    """As the README says: the file, the command, a run of the kind."""
    (tmp_path / name).write_text(BLOCKS[name], encoding="utf-8")
    command = [
        sys.executable, "-m", "flashback_plugins.cli", "forensics", "build", "--also", name,
        "--kinds", kind, "--seeds", "1", "--twins", "0", "--jobs", "1", "--out", "mine",
    ]  # fmt: skip
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run(command, check=True, cwd=tmp_path, env=env, capture_output=True)
    (path,) = run_files(tmp_path / "mine")
    facts = facts_of(path)
    assert kind in (facts["fault_kind"], facts["healthy_kind"])
    assert facts["is_held_out"]
    (run,) = load_runs(tmp_path / "mine")
    assert (run.first_bad_step is None) == (kind == "two_clips")
