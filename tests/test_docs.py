"""The README tells the truth: its Python runs, its commands have help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("code", BLOCKS, ids=range(len(BLOCKS)))
def test_python_blocks_run(code: str, tmp_path: Path) -> None:
    """Every Python block of the README runs as it stands."""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "command", sorted(set(re.findall(r"^\$ flashback (\w+)", README, re.MULTILINE)))
)
def test_commands_have_help(command: str) -> None:
    """Every command that the README names explains itself."""
    done = subprocess.run(
        [sys.executable, "-m", "flashback_plugins.cli", command, "--help"],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    assert command in done.stdout


def test_links_lead_somewhere() -> None:
    """Relative links of the README point at files that exist."""
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (ROOT / target).exists(), target
