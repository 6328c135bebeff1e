"""Every example prints what its README says, and nothing else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"
README = (EXAMPLES / "README.md").read_text(encoding="utf-8")
SECTIONS = {part.split()[0]: part for part in re.split(r"^## ", README, flags=re.MULTILINE)[1:]}
PRINTED = {
    name: block[1]
    for name, part in SECTIONS.items()
    if (block := re.search(r"```text\n(.*?)```", part, re.DOTALL))
}
NO_EXAMPLES = {"small_gpt.py", "demo_training.py"}


def run(name: str, *arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """What a script prints, started as a user would start it."""
    return subprocess.run(
        [sys.executable, str(EXAMPLES / name), *arguments],
        capture_output=True, text=True, check=False, cwd=cwd,
    )  # fmt: skip


def pattern(printed: str) -> str:
    """The expected lines, where ``…`` stands for anything within a line."""
    return ".*".join(map(re.escape, printed.split("…")))


def test_every_script_has_a_section() -> None:
    """The README leaves out no script and names none that is gone."""
    scripts = {path.name for path in EXAMPLES.glob("*.py")}
    assert set(SECTIONS) == scripts - NO_EXAMPLES
    assert set(PRINTED) == scripts - NO_EXAMPLES - {"demo.py"}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(PRINTED))
def test_examples_print_what_the_readme_says(name: str, tmp_path: Path) -> None:
    """Each script runs in a folder that is not there yet, and prints the lines of the README."""
    done = run(name, str(tmp_path / "new"), cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(pattern(PRINTED[name]), done.stdout), done.stdout


@pytest.mark.slow
def test_the_demo_finds_its_fault(tmp_path: Path) -> None:
    """The demo names the step at which the optimizer's state was lost, and where to look."""
    options = ("--fault", "opt_lost", "--seed", "4", "--steps", "200", "--dir", str(tmp_path))
    done = run("demo.py", *options, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "exactly right" in done.stdout
    assert list(tmp_path.glob("*/report.html"))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--fault", "router_collapse"), "needs router; this loop has none"),
        (("--fault", "optlost"), "; --fault list shows those that can"),
        (("--steps", "20"), "take 200 or more"),
    ],
    ids=["router", "unknown", "short"],
)
def test_the_demo_refuses_what_it_cannot_do(
    options: tuple[str, str], message: str, tmp_path: Path
) -> None:
    """A fault or a length that cannot be is one clear line before anything is trained."""
    done = run("demo.py", *options, cwd=tmp_path)
    assert done.returncode == 2
    assert message in " ".join(done.stderr.split())


def test_the_demo_lists_its_faults(tmp_path: Path) -> None:
    """``--fault list`` names each kind that can happen with what it is."""
    lines = run("demo.py", "--fault", "list", cwd=tmp_path).stdout.splitlines()
    assert any(line.split()[0] == "opt_lost" for line in lines)
    assert not any(line.split()[0] == "router_collapse" for line in lines)
