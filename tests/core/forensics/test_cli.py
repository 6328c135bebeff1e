"""`flashback forensics` as a user runs it."""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

import pytest

from flashback_plugins._forensics_cli import add


def run(*arguments: str) -> int:
    """The exit status of a command."""
    parser = argparse.ArgumentParser(prog="flashback")
    add(parser.add_subparsers())
    found = parser.parse_args(["forensics", *arguments])
    return int(found.run(found))


@pytest.fixture
def copied(data: Path, tmp_path: Path) -> Path:
    """A data set that may be written to."""
    shutil.copytree(data, tmp_path / "data")
    return tmp_path / "data"


def test_build_goes_on(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is counted, nothing is trained."""
    kinds = "lr_spike_loud,opt_lost,placebo_nothing,plain"
    status = run("build", "--scale", "tiny", "--kinds", kinds, "--seeds", "2", "--out",
                 str(copied), "--jobs", "1")  # fmt: skip
    assert status == 0
    assert "0 runs built, 8 were there" in capsys.readouterr().out


def test_fit_then_score(copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A detector is fitted, saved, and scored from its folder; `--json` prints JSON alone."""
    folder = tmp_path / "detector"
    assert run("fit", "--data", str(copied), "--out", str(folder)) == 0
    capsys.readouterr()
    out = tmp_path / "out"
    assert run("score", "--data", str(copied), "--detector", str(folder), "--json", "--out",
               str(out), "--jobs", "1", "--write") == 0  # fmt: skip
    printed = json.loads(capsys.readouterr().out)
    assert printed["data"]["n_runs"] == 8
    assert (out / "score.md").is_file()


def test_leaks(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line per check, and status 0 where no verdict changed."""
    assert run("score", "--data", str(copied), "--leaks", "--limit", "1") == 0
    assert "0 of 1 changed" in capsys.readouterr().out


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`flashback forensics` alone prints what there is."""
    assert run() == 0
    assert "{build,fit,score}" in (text := capsys.readouterr().out) or "build" in text
    with pytest.raises(SystemExit):
        run("build", "--jobs", "0")
