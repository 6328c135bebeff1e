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


@pytest.mark.parametrize(
    ("text", "expected"), [("3", (3, None)), ("100:120", (None, range(100, 120)))]
)
def test_seeds_are_a_number_or_a_range(text: str, expected: tuple[object, object]) -> None:
    """`N` runs of each kind, or the seeds `A` to `B - 1`."""
    parser = argparse.ArgumentParser()
    add(parser.add_subparsers())
    assert parser.parse_args(["forensics", "build", "--seeds", text]).seeds == expected


@pytest.mark.parametrize("text", ["0", "5:5", "7:3", "-2:4", "a:b", "3:"])
def test_wrong_seeds_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and the option is named."""
    with pytest.raises(SystemExit) as stopped:
        run("build", f"--seeds={text}")
    assert stopped.value.code == 2
    assert "--seeds" in capsys.readouterr().err


def test_seeds_by_number_are_built(copied: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is there is counted by its seed."""
    assert run("build", "--scale", "tiny", "--kinds", "lr_spike_loud,plain", "--seeds", "6:7",
               "--out", str(copied), "--jobs", "1") == 0  # fmt: skip
    assert "0 runs built, 2 were there" in capsys.readouterr().out


def test_score_keeps_what_it_judged(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Beside the tables, in a folder that git ignores; the second time gives the same tables."""
    out = tmp_path / "out"
    for _ in range(2):
        assert run("score", "--data", str(copied), "--out", str(out), "--jobs", "1") == 0
    assert len(list((out / ".outcomes").glob("*.json"))) == 10
    assert (out / ".outcomes" / ".gitignore").read_text("utf-8") == "*\n"
    assert "## Figures" in (out / "score.md").read_text("utf-8")
    assert json.loads((out / "score.json").read_text("utf-8"))["figures"]


def test_leaks_are_a_status(copied: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Status 1 where a detector looks at what it should not, so that CI stops there."""
    from flashback_core.detectors.published import PublishedDetector
    from flashback_core.forensics import score

    monkeypatch.setattr(score, "detectors", lambda _: {score.OURS: PublishedDetector()})
    assert run("score", "--data", str(copied), "--leaks", "--limit", "1") == 1


def test_help(capsys: pytest.CaptureFixture[str]) -> None:
    """`flashback forensics` alone prints what there is."""
    assert run() == 0
    assert "{build,fit,score}" in (text := capsys.readouterr().out) or "build" in text
    with pytest.raises(SystemExit):
        run("build", "--jobs", "0")
