"""The command `flashback`, as a shell sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import flashback_core as fb
from flashback_core.export import export_table
from flashback_core.table import MemoryTable
from flashback_core.testing import healthy_run, run_with_fault
from flashback_plugins.cli import main

Call = Callable[..., tuple[int, str, str]]
COMMANDS = ("detect", "show", "export", "diff", "scan")


@pytest.fixture
def call(capsys, monkeypatch, tmp_path: Path) -> Call:
    """Run the command in an empty folder; exit status, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments: str) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            status = main(list(map(str, arguments)))
        except SystemExit as end:
            status = int(end.code or 0)
        told = capsys.readouterr()
        return status, told.out, told.err

    return run


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """A healthy and a bad export, two runs in one file, and an index folder."""
    healthy = export_table(healthy_run(300), tmp_path / "healthy.parquet", run_id="h")
    bad = export_table(run_with_fault(first_bad_step=200), tmp_path / "bad.csv", run_id="b")
    with fb.StepSketchIndex(tmp_path / "run" / "sketch", "a") as index:
        for step, values in enumerate(healthy_run(8).values):
            index.append(step, values)
    import pyarrow as pa
    import pyarrow.parquet as pq

    parts = [pq.read_table(export_table(fb.open_run(p), tmp_path / f"{i}.parquet", run_id=f"r{i}"))
             for i, p in enumerate((healthy, bad))]  # fmt: skip
    both = tmp_path / "both.parquet"
    pq.write_table(pa.concat_tables(parts, promote_options="permissive"), both)
    return {"healthy": healthy, "bad": bad, "index": tmp_path / "run", "both": both}


def strict(text: str) -> dict:
    """One JSON object and nothing else, without NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def test_version_and_help(call: Call) -> None:
    """Every command has help; without a command there is help too."""
    assert call("--version")[1] == f"flashback {fb.__version__}\n"
    status, out, _ = call()
    assert (status, "COMMAND" in out) == (0, True)
    for command in COMMANDS:
        status, out, err = call(command, "--help")
        assert status == 0
        assert out.startswith(f"usage: flashback {command}")
        assert err == ""


def test_help_loads_nothing_heavy() -> None:
    """`flashback --help` starts without numpy, pyarrow or torch."""
    code = (
        "import sys; from flashback_plugins.cli import main; main(['--version']);"
        "assert not {'numpy', 'pyarrow', 'torch', 'rich'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_detect_json(call: Call, runs: dict[str, Path]) -> None:
    """`--json` prints one strict JSON object with the promised keys, and nothing else."""
    status, out, err = call("detect", runs["bad"], "--json")
    report = strict(out)
    assert (status, err) == (0, "")
    assert report["status"] == "bad"
    assert report["first_bad_step"] == 200
    assert set(report) >= {
        "status", "first_bad_step", "confidence", "kind", "n_steps", "first_step", "last_step",
        "top_metrics", "evidence", "detector",
    }  # fmt: skip
    assert set(report["top_metrics"][0]) == {"metric", "score", "step"}
    assert set(report["detector"]) >= {"name", "version"}
    assert strict(call("detect", runs["healthy"], "--json")[1])["first_bad_step"] is None


def test_json_is_strict_for_a_run_full_of_nan(call: Call, tmp_path: Path) -> None:
    """NaN and infinity in the run never reach the JSON, of any command."""
    run = healthy_run(300)
    columns = {name: np.array(run[name], np.float64) for name in run.names}
    for i, name in enumerate(columns):
        is_count = "nonfinite" in name or name.startswith("hist_")
        columns[name][200:] = np.nan if is_count else (np.nan, np.inf, -np.inf)[i % 3]
    path = export_table(MemoryTable(run.steps, columns), tmp_path / "nan.parquet")
    other = export_table(run, tmp_path / "run.parquet")
    assert strict(call("detect", path, "--json")[1])["first_bad_step"] == 200
    assert strict(call("diff", path, other, "--json")[1])["step"] == 200
    assert len(strict(call("scan", path, "nowhere", "--json")[1])["runs"]) == 2


def test_exit_codes(call: Call, runs: dict[str, Path]) -> None:
    """0 unless asked; with `--exit-code` 0 healthy, 1 bad, 3 not enough data; 2 bad input."""
    for name, status in (("healthy", 0), ("bad", 1), ("index", 3)):
        assert call("detect", runs[name])[0] == 0
        assert call("detect", runs[name], "--exit-code")[0] == status
        assert call("detect", runs[name], "--exit-code", "--json")[0] == status
    assert call("detect", "nowhere", "--exit-code")[0] == 2


def test_detect_for_people(call: Call, runs: dict[str, Path], tmp_path: Path) -> None:
    """Without `--json` people read the step; the page is written where they say."""
    _, out, _ = call("detect", runs["bad"], "--html", "page.html")
    assert "200" in out
    assert "Page: page.html" in out
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html")
    _, out, _ = call("detect", runs["bad"], "--html", "page.html", "--json")
    strict(out)


def test_detect_picks_a_run(call: Call, runs: dict[str, Path]) -> None:
    """`--run-id` picks a run of a file with several."""
    status, _, err = call("detect", runs["both"])
    assert status == 2
    assert "give run_id (--run-id), one of: r0, r1" in err
    out = call("detect", runs["both"], "--run-id", "r1", "--json")[1]
    assert strict(out)["first_bad_step"] == 200


def test_detect_with_another_detector(call: Call, runs: dict[str, Path], tmp_path: Path) -> None:
    """`--detector` takes the folder of a saved detector."""
    fb.FirstBadStepDetector().save(tmp_path / "mine")
    out = call("detect", runs["bad"], "--detector", "mine", "--json")[1]
    assert strict(out)["first_bad_step"] == 200


def test_show(call: Call, runs: dict[str, Path]) -> None:
    """Metrics, steps and plugins are shown."""
    status, out, _ = call("show", runs["bad"], "--metric", "loss", "--steps", "198:203")
    assert status == 0
    assert "loss" in out
    for steps in ("10:", ":10", "5:5"):
        assert call("show", runs["bad"], "--steps", steps)[0] == 0
    assert call("show", runs["index"], "--groups")[0] in (0, 2)
    status, out, _ = call("show", "--plugins")
    assert status == 0
    assert "wandb: flashback_plugins.wandb:WandbSink" in out


def test_export(call: Call, runs: dict[str, Path], tmp_path: Path) -> None:
    """A run goes into one file, which reads back; of several runs one is picked."""
    status, out, _ = call("export", runs["index"], "out.csv", "--run-id", "mine")
    assert (status, out) == (0, "out.csv: 8 steps, 128 metrics\n")
    assert len(fb.open_run(tmp_path / "out.csv", run_id="mine")) == 8
    assert call("export", runs["both"], "out.parquet", "--run-id", "r1")[0] == 0
    assert len(fb.open_run(tmp_path / "out.parquet")) == 400


def test_diff(call: Call, runs: dict[str, Path], tmp_path: Path) -> None:
    """The first different step with its metrics; equal runs say so."""
    run = healthy_run(300)
    columns = {name: np.array(run[name]) for name in run}
    columns["lr"][123] += 1
    other = export_table(MemoryTable(run.steps, columns), tmp_path / "other.csv")
    status, out, _ = call("diff", runs["healthy"], other)
    assert status == 0
    assert out.startswith("the runs part at step 123 (1 of 127 metrics differ there)\n  lr ")
    found = strict(call("diff", runs["healthy"], other, "--json")[1])
    assert found["step"] == 123
    assert call("diff", runs["healthy"], other, "--rtol", "1e4")[1].startswith("equal: 127 metrics")


def test_scan(call: Call, runs: dict[str, Path]) -> None:
    """One line a run; what cannot be read is said and costs the others nothing."""
    sources = [str(runs["healthy"]), str(runs["bad"]), "nowhere"]
    status, out, _ = call("scan", *sources)
    lines = out.splitlines()
    assert status == 0
    assert [line.split()[0] for line in lines] == ["healthy", "bad", "unreadable"]
    assert "step 200" in lines[1]
    assert "does not exist" in lines[2]
    found = strict(call("scan", *sources, "--json")[1])["runs"]
    assert [r["status"] for r in found] == ["healthy", "bad", "unreadable"]
    assert call("scan", "nowhere")[0] == 2


BAD_SOURCES = {
    "nowhere": None,
    "folder": None,
    "empty.csv": b"",
    "header.csv": b"step,loss\n",
    "apples.csv": b"apples,pears\n1,2\n",
    "zeros.csv": bytes(1000),
    "noise.csv": bytes(range(256)) * 20,
    "empty.parquet": b"",
    "noise.parquet": bytes(range(256)) * 20,
    "cut.parquet": b"PAR1" + bytes(500),
    "x.txt": b"step 1 loss 2",
    "nosuch://bucket/run": None,
}


@pytest.mark.parametrize("source", BAD_SOURCES)
@pytest.mark.parametrize("command", COMMANDS)
def test_bad_sources(call: Call, tmp_path: Path, command: str, source: str) -> None:
    """Bad input of any command: exit 2, one message on standard error, no traceback."""
    (tmp_path / "folder").mkdir()
    content = BAD_SOURCES[source]
    if content is not None:
        (tmp_path / source).write_bytes(content)
    more = {"export": ["out.csv"], "diff": [source]}.get(command, [])
    status, out, err = call(command, source, *more)
    told = out if command == "scan" else err
    assert status == 2
    assert told.count("\n") == 1
    assert source in told
    assert "Traceback" not in told
    if command != "scan":
        assert out == ""
        assert err.startswith("flashback: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["detect"], "source"),
        (["detect", "good.csv", "--html", "no/page.html"], "folder no does not exist"),
        (["detect", "good.csv", "--html", "."], "directory"),
        (["detect", "good.csv", "--detector", "nowhere"], "nowhere"),
        (["detect", "good.csv", "--run-id", "other"], "run 'other' is not in it"),
        (["detect", "good.csv", "--attach"], "--attach needs --run-id"),
        (["show"], "show needs a source"),
        (["show", "good.csv", "--metric", "losss"], "close to it: loss"),
        (["show", "good.csv", "--steps", "9"], "is no range; expected A:B"),
        (["show", "good.csv", "--steps", "9:3"], "is no range"),
        (["show", "good.csv", "--steps", "a:b"], "is no range"),
        (["export", "good.csv", "x.json"], "neither .parquet nor .csv"),
        (["export", "good.csv", "no/x.csv"], "folder no does not exist"),
        (["diff", "good.csv", "apart.csv"], "0 steps in common"),
        (["diff", "good.csv", "good.csv", "--rtol", "-1"], "-1 is negative or NaN"),
        (["diff", "good.csv", "good.csv", "--rtol", "x"], "invalid number"),
        (["scan"], "SOURCE"),
        (["nosuch"], "invalid choice"),
    ],
)
def test_bad_arguments(call: Call, tmp_path: Path, arguments: list[str], message: str) -> None:
    """Bad arguments of any command: exit 2, what came and what to do, no traceback."""
    export_table(healthy_run(60), tmp_path / "good.csv")
    run = healthy_run(60)
    columns = {name: run[name] for name in run}
    export_table(MemoryTable(run.steps + 100, columns), tmp_path / "apart.csv")
    status, out, err = call(*arguments)
    assert status == 2
    assert message in err
    assert "Traceback" not in err
    assert out == ""


def test_a_damaged_index(call: Call, runs: dict[str, Path]) -> None:
    """Each command reads what is left of a damaged index, or says that nothing is."""
    path = runs["index"] / "sketch" / "segment-000000.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    for command in (["detect"], ["show"], ["export", "x.csv"]):
        assert call(command[0], runs["index"], *command[1:])[0] == 0
    path.write_bytes(data[:50])
    for command in (["detect"], ["show"], ["export", "y.csv"]):
        status, _, err = call(command[0], runs["index"], *command[1:])
        assert status in (0, 2)
        assert "Traceback" not in err


def test_a_closed_pipe(runs: dict[str, Path]) -> None:
    """`flashback show … | head` ends without a word about the pipe."""
    command = f"{sys.executable} -m flashback_plugins.cli show {runs['bad']} | head -n 1"
    told = subprocess.run(command, shell=True, capture_output=True, check=True)
    assert told.stderr == b""


def test_attach(call: Call, tmp_path: Path, monkeypatch) -> None:
    """`--attach` puts report and index on an MLflow run."""
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'mlflow.db'}")
    client = mlflow.MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}")
    experiment = client.create_experiment("x", artifact_location=(tmp_path / "art").as_uri())
    run = client.create_run(experiment)
    path = export_table(run_with_fault(first_bad_step=200), tmp_path / "bad.parquet")
    status, out, err = call("detect", path, "--attach", "--run-id", run.info.run_id, "--json")
    assert status == 0, err
    strict(out)
    assert client.get_run(run.info.run_id).data.tags["flashback.status"] == "bad"
    status, _, err = call("detect", path, "--attach", "--run-id", "0" * 32)
    assert status == 2
    assert "0" * 32 in err
