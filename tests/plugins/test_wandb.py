"""The W&B adapter against W&B itself: offline files, and online mode against a local server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flashback_core import errors
from flashback_plugins.panels import LOG2_EDGES
from tests.plugins import _tracker_data as data
from tests.plugins._wandb_backend import Backend, wandb_backend
from tests.plugins._wandb_file import OfflineRun, records

wandb = pytest.importorskip("wandb")
fw = pytest.importorskip("flashback_plugins.wandb")

ROOT = Path(__file__).parents[2]
HOME = {"WANDB_DIR": "", "WANDB_DATA_DIR": "data", "WANDB_CACHE_DIR": "cache",
        "WANDB_CONFIG_DIR": "config"}  # fmt: skip
PREAMBLE = """
import json, sys
from pathlib import Path
import wandb
from flashback_plugins.wandb import WandbSink, attach
from tests.plugins import _tracker_data as data

def start(**settings):
    silent = wandb.Settings(silent=True, console="off", x_disable_stats=True)
    return wandb.init(project="p", settings=silent, **settings)

def where(run):
    return str(next(Path(run.dir).parent.glob("*.wandb")))

"""


def environment(folder: Path, **extra: str) -> dict[str, str]:
    """An environment in which W&B writes into `folder` only."""
    places = {name: str(folder / sub) for name, sub in HOME.items()}
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("WANDB_", "FLASHBACK_"))}
    return {**kept, **places, "PYTHONPATH": str(ROOT), "WANDB_MODE": "offline", **extra}


def script(folder: Path, code: str, *, status: int = 0, **extra: str) -> str:
    """Run `code` in `folder` as a script of its own; its standard output."""
    path = folder / "script.py"
    path.write_text(PREAMBLE + code, encoding="utf-8")
    done = subprocess.run(
        [sys.executable, str(path)], cwd=folder, env=environment(folder, **extra), text=True,
        capture_output=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == status, done.stderr
    return done.stdout


# --- the user's own rows ------------------------------------------------------------------------

N_STEPS = 20
USERS = {
    "plain": ("run.log({'loss': i})", 1),
    "module": ("wandb.log({'loss': i})", 1),
    "step": ("run.log({'loss': i}, step=i)", 1),
    "step_in_two": ("run.log({'loss': i}, step=i); run.log({'acc': i}, step=i)", 1),
    "every_5": ("i % 5 or run.log({'loss': i})", 5),
    "step_every_5": ("i % 5 or run.log({'loss': i}, step=i)", 5),
    "uncommitted": ("run.log({'loss': i}, commit=False); run.log({'acc': i})", 1),
}
ORDERS = ("before", "after", "both")

SHARED = """
files = {}
for user, (code, _) in json.loads(sys.argv[1] if sys.argv[1:] else USERS).items():
    for order in ("before", "after", "both"):
        run = start(reinit="finish_previous")
        sink = WandbSink(run)
        for i in range(N_STEPS):
            if order != "after":
                sink.log_metrics({"grad_norm": i, "loss": float("nan")}, i)
                sink.log_histograms({"hist_grad": [i] * 16}, i)
            exec(code)
            if order != "before":
                sink.log_metrics({"grad_norm": i}, i)
        run.finish()
        files[f"{user}-{order}"] = where(run)
print(json.dumps(files))
"""


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, OfflineRun]:
    """Offline runs in which a user and the sink log side by side, in every order."""
    folder = tmp_path_factory.mktemp("shared")
    head = f"USERS = {json.dumps(json.dumps(USERS))}\nN_STEPS = {N_STEPS}\n"
    files = json.loads(script(folder, head + SHARED).splitlines()[-1])
    return {case: OfflineRun(Path(path)) for case, path in files.items()}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("user", USERS)
def test_no_row_of_the_user_is_lost(
    shared_runs: dict[str, OfflineRun], user: str, order: str
) -> None:
    """Whichever way the user logs, every value of theirs is stored, in order."""
    run = shared_runs[f"{user}-{order}"]
    every = USERS[user][1]
    assert run.series("loss") == list(range(0, N_STEPS, every))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("user", USERS)
def test_the_users_own_steps_stay(
    shared_runs: dict[str, OfflineRun], user: str, order: str
) -> None:
    """A user who names `step=` finds each value at that step."""
    run = shared_runs[f"{user}-{order}"]
    placed = [(row["_step"], row["loss"]) for row in run.rows if "loss" in row]
    if "step" in user:
        assert all(step == loss for step, loss in placed)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("user", USERS)
def test_every_row_of_ours_names_its_step(
    shared_runs: dict[str, OfflineRun], user: str, order: str
) -> None:
    """A stored row with a metric of ours has `flashback/step`, and the metric of that step."""
    rows = [r for r in shared_runs[f"{user}-{order}"].rows if "flashback/grad_norm" in r]
    assert len(rows) >= N_STEPS // USERS[user][1] - 1
    assert all(row["flashback/step"] == row["flashback/grad_norm"] for row in rows)


def test_metrics_have_an_axis_of_their_own(shared_runs: dict[str, OfflineRun]) -> None:
    """Charts of our metrics run over `flashback/step`, which itself gets no chart."""
    run = shared_runs["plain-before"]
    assert run.axes["flashback/grad_norm"] == "flashback/step"
    assert run.axes["flashback/hist_grad"] == "flashback/step"
    assert run.hidden == {"flashback/step"}


def test_histograms_have_edges_in_powers_of_two(shared_runs: dict[str, OfflineRun]) -> None:
    """A histogram keeps its 16 counts and its 17 edges."""
    stored = shared_runs["plain-before"].series("flashback/hist_grad")[7]
    assert stored["values"] == [7] * 16
    assert stored["bins"] == list(LOG2_EDGES)


# --- report, alert, artifacts -------------------------------------------------------------------

WHOLE = """
run = start()
sink = WandbSink(run)
for i in range(5):
    sink.log_metrics({"grad_norm": i, "batch_id_mean": 123.0}, i)
    run.log({"loss": i})
sink.alert(data.finding())
sink.alert(data.finding(38))
sink.alert(data.finding(50, confidence=0.4))
sink.log_report(data.report(), data.FolderFiles(Path.cwd(), data.report()))
sink.close()
run.finish()
print(where(run))
"""


@pytest.fixture(scope="module")
def whole_run(tmp_path_factory: pytest.TempPathFactory) -> OfflineRun:
    """One offline run with everything that a sink does."""
    folder = tmp_path_factory.mktemp("whole")
    return OfflineRun(Path(script(folder, WHOLE).splitlines()[-1]))


def test_summary_has_the_verdict(whole_run: OfflineRun) -> None:
    """The verdict can be sorted and filtered in the table of runs."""
    assert whole_run.summary["flashback/first_bad_step"] == data.FIRST_BAD_STEP
    assert whole_run.summary["flashback/status"] == "bad"
    assert whole_run.summary["flashback/confidence"] == 0.97


def test_one_alert_for_each_event(whole_run: OfflineRun) -> None:
    """The same event one step later raises no second alert; another event does."""
    assert [(a.title, a.level) for a in whole_run.alerts] == [
        ("flashback: first bad step 37 (update_shift)", "ERROR"),
        ("flashback: first bad step 50 (update_shift)", "WARN"),
    ]
    assert "group:attn_qkv:update_norm left its baseline" in whole_run.alerts[0].text


def test_report_and_findings_are_shown(whole_run: OfflineRun) -> None:
    """The report is there as a page, the findings as a table, in a row that has a step."""
    row = next(row for row in whole_run.rows if "flashback/report" in row)
    assert row["flashback/report"]["_type"] == "html-file"
    assert row["flashback/findings"]["nrows"] == 2
    assert row["flashback/step"] == 4


DRAWN = """
run = start()
report = data.report().with_table(data.table())
sink = WandbSink(run)
sink.log_report(report, data.FolderFiles(Path.cwd(), report))
sink.close()
run.finish()
print(where(run))
"""


def test_what_moved_first_is_drawn(tmp_path: Path) -> None:
    """A chart on W&B's own preset works offline; pictures are there with the extra `report`."""
    run = OfflineRun(Path(script(tmp_path, DRAWN).splitlines()[-1]))
    row = next(row for row in run.rows if "flashback/moved_first_table" in row)
    assert row["flashback/moved_first_table"]["_type"] == "table-file"
    assert row["flashback/step"] == 0
    pytest.importorskip("vl_convert")
    pytest.importorskip("PIL")
    for name in ("timeline", "moved_first"):
        assert row[f"flashback/{name}_picture"]["format"] == "png"
        assert row[f"flashback/{name}_picture"]["width"] > 600


def test_index_and_report_are_artifacts(whole_run: OfflineRun) -> None:
    """Both artifacts carry the verdict as metadata and an alias with the step."""
    kept = {a.type: a for a in whole_run.artifacts.values() if a.type.startswith("flashback-")}
    assert set(kept) == {"flashback-index", "flashback-report"}
    assert {f.path for f in kept["flashback-report"].manifest.contents} == {
        "report.html", "report.json", "report.md",
    }  # fmt: skip
    index = kept["flashback-index"]
    assert [f.path for f in index.manifest.contents] == ["index.parquet"]
    assert set(index.aliases) == {"latest", "step-37"}
    metadata = json.loads(index.metadata)
    assert (metadata["first_bad_step"], metadata["status"]) == (37, "bad")
    assert metadata["confidence"] == 0.97


def test_sample_ids_stay_here(whole_run: OfflineRun) -> None:
    """What is known of sample ids goes into no live row."""
    assert not any("batch" in key for row in whole_run.rows for key in row)


def test_a_flipped_bit_in_the_file_is_noticed(tmp_path: Path) -> None:
    """The reader of these tests checks the checksums, so what it reads was stored."""
    path = tmp_path / "run.wandb"
    path.write_bytes(b":W&B\x00\x00\x00" + bytes([1, 2, 3, 4, 1, 0, 1, 9]))
    with pytest.raises(ValueError, match="checksum"):
        list(records(path))


# --- ends of a run ------------------------------------------------------------------------------

ENDS = """
def report():
    sink.alert(data.finding())
    sink.log_report(data.report(), data.FolderFiles(Path.cwd(), data.report()))
    sink.close()
    print("closed")
run = start()
print(where(run))
sink = WandbSink(run)
sink.before_finish(report)
run.log({"loss": 1})
"""
WITHOUT_HOOKS = "del wandb.sdk.wandb_run.TeardownHook\n"


@pytest.mark.parametrize(
    ("end", "status"),
    [
        ("run.finish()", 0),
        ("with run: pass", 0),
        ("raise RuntimeError('boom')", 1),
        pytest.param("wandb.finish()", 0, marks=pytest.mark.slow),
        pytest.param("pass", 0, marks=pytest.mark.slow),
        pytest.param("raise KeyboardInterrupt", -2, marks=pytest.mark.slow),
        pytest.param("sys.exit(3)", 3, marks=pytest.mark.slow),
    ],
)
def test_report_is_there_however_the_run_ends(tmp_path: Path, end: str, status: int) -> None:
    """Alert and artifacts are stored, once, and the script's exit status stays."""
    out = script(tmp_path, f"{ENDS}\n{end}\n", status=status).split()
    run = OfflineRun(Path(out[0]))
    assert out[1:] == ["closed"]
    assert len(run.alerts) == 1
    assert {a.type for a in run.artifacts.values()} >= {"flashback-index", "flashback-report"}
    assert run.summary["flashback/first_bad_step"] == data.FIRST_BAD_STEP


@pytest.mark.slow
@pytest.mark.parametrize("end", ["run.finish()", "wandb.finish()", "raise RuntimeError('boom')"])
def test_a_wandb_without_its_private_hook_will_do(tmp_path: Path, end: str) -> None:
    """Where W&B has no teardown hook, `finish` is wrapped, and put back afterwards."""
    code = f"{WITHOUT_HOOKS}{ENDS}\n{end}\nassert 'finish' not in vars(run)\n"
    out = script(tmp_path, code, status=int("raise" in end)).split()
    assert out[1:] == ["closed"]
    assert len(OfflineRun(Path(out[0])).alerts) == 1


def test_a_failing_end_leaves_the_run_intact(tmp_path: Path) -> None:
    """An error while closing costs a warning; the run is finished and complete."""
    code = ENDS.replace('print("closed")', "raise OSError('disk full')")
    check = """
import warnings
with warnings.catch_warnings(record=True) as seen:
    warnings.simplefilter("always")
    run.finish()
print(*(w.category.__name__ for w in seen))
"""
    out = script(tmp_path, code + check).split()
    run = OfflineRun(Path(out[0]))
    assert out[1:] == [errors.FlashbackWarning.__name__]
    assert run.series("loss") == [1]
    assert run.exit_code == 0


# --- recording ----------------------------------------------------------------------------------

TRAIN = """
import torch
def train(attach, n_steps=60, crash=None):
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    rec, losses = attach(model, optimizer), []
    for step in range(n_steps):
        x = torch.randn(16, 8)
        loss = ((model(x) - x[:, :1]) ** 2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        rec.log(loss=loss, batch_ids=list(range(16)))
        losses.append(loss.item())
        if wandb.run:
            run.log({"train/loss": loss.item()}, step=step)
        if step == crash:
            raise RuntimeError("boom")
    rec.close()
    return losses
import flashback_core as fb
"""
RECORDED = """
alone = train(lambda model, optimizer: fb.Recorder("alone", model, optimizer))
run = start(id="mine")
watched = train(lambda *args: attach(run, *args, log_every=5))
run.finish()
print(json.dumps([where(run), alone, watched]))
"""
CRASHED = """
run = start(id="mine")
print(json.dumps([where(run)]), flush=True)
train(lambda *args: attach(run, *args, log_every=5), crash=40)
"""


def test_attach_records_and_reports(tmp_path: Path) -> None:
    """A watched run has its live rows, its verdict and its artifacts, and the very same losses."""
    path, alone, watched = json.loads(script(tmp_path, TRAIN + RECORDED))
    run = OfflineRun(Path(path))
    assert watched == alone
    assert run.series("train/loss") == watched
    assert {step % 5 for step in run.series("flashback/step")} == {0}
    assert len(run.series("flashback/loss")) == 12
    assert {a.type for a in run.artifacts.values()} >= {"flashback-index", "flashback-report"}
    assert run.summary["flashback/status"] in {"bad", "healthy", "not_enough_data"}
    assert (tmp_path / "runs" / "mine" / "sketch").is_dir()


@pytest.mark.slow
def test_a_script_that_crashes_leaves_its_report(tmp_path: Path) -> None:
    """Without `with`, and after an exception, the artifacts are there and no row is lost."""
    (path,) = json.loads(script(tmp_path, TRAIN + CRASHED, status=1))
    run = OfflineRun(Path(path))
    assert len(run.series("train/loss")) == 41
    assert {a.type for a in run.artifacts.values()} >= {"flashback-index", "flashback-report"}
    assert "flashback/status" in run.summary
    assert run.exit_code == 1


@pytest.mark.slow
def test_switched_off(tmp_path: Path) -> None:
    """FLASHBACK_DISABLED leaves no folder, no row and no summary of ours."""
    code = TRAIN + RECORDED.replace("alone =", "alone = None and")
    path, _, losses = json.loads(script(tmp_path, code, FLASHBACK_DISABLED="1"))
    run = OfflineRun(Path(path))
    assert run.series("train/loss") == losses
    assert not any("flashback" in key for row in [*run.rows, run.summary] for key in row)
    assert not (tmp_path / "runs").exists()


# --- online, disabled, wrong --------------------------------------------------------------------


@pytest.fixture(scope="module")
def online(tmp_path_factory: pytest.TempPathFactory) -> Backend:
    """A server to which a run in online mode has sent everything."""
    folder = tmp_path_factory.mktemp("online")
    with wandb_backend() as backend:
        key = "0" * 40  # any forty characters pass
        script(
            folder, WHOLE.replace("print(where(run))", ""), WANDB_MODE="online",
            WANDB_BASE_URL=backend.url, WANDB_API_KEY=key,
        )  # fmt: skip
    return backend


def test_alerts_leave_the_machine(online: Backend) -> None:
    """In online mode the server is told title, text and severity, once for each event."""
    first, second = online.alerts
    assert first["title"] == "flashback: first bad step 37 (update_shift)"
    assert "confidence 0.97" in first["text"]
    assert [first["severity"], second["severity"]] == ["ERROR", "WARN"]


def test_artifacts_leave_the_machine(online: Backend) -> None:
    """The server holds the Parquet file and the report, and the artifacts are committed."""
    files = {path.rpartition("/")[2]: content for path, content in online.uploads.items()}
    assert files["index.parquet"][:4] == b"PAR1"
    assert json.loads(files["report.json"])["first_bad_step"] == data.FIRST_BAD_STEP
    assert sum(name.startswith("flashback-") for name in online.committed) == 2


def test_history_and_summary_leave_the_machine(online: Backend) -> None:
    """The user's rows and ours arrive together."""
    assert [row["loss"] for row in online.history if "loss" in row] == [0, 1, 2, 3, 4]
    assert [r["flashback/step"] for r in online.history if "loss" in r] == [0, 1, 2, 3, 4]
    assert online.summary["flashback/first_bad_step"] == data.FIRST_BAD_STEP


def test_a_disabled_run_does_nothing(tmp_path: Path) -> None:
    """Everything can be called on a disabled run, and no file comes of it."""
    code = WHOLE.replace("print(where(run))", "").replace("start()", 'start(mode="disabled")')
    script(tmp_path, code)
    assert [path.name for path in tmp_path.iterdir()] == ["script.py"]


def test_steps_cannot_be_left_out() -> None:
    """The message says what to use instead."""
    with pytest.raises(ValueError, match=r"every_n_steps=5: every step .*log_every"):
        fw.attach(None, None, None, every_n_steps=5)


def test_a_run_that_is_none_is_refused() -> None:
    """The message says what to pass."""
    with pytest.raises(TypeError, match=r"run is None.*wandb\.init"):
        fw.WandbSink(None)


def test_something_else_is_refused() -> None:
    """The message says what came."""
    with pytest.raises(TypeError, match="run is a str; expected the W&B run"):
        fw.WandbSink("my-run")


def test_a_finished_run_is_refused(tmp_path: Path) -> None:
    """Nothing can be sent to a run that is over; the message says so."""
    code = """
run = start(); run.finish()
try:
    WandbSink(run)
except ValueError as error:
    print(error)
"""
    assert "has finished; attach before run.finish()" in script(tmp_path, code)


def test_a_missing_wandb_is_named() -> None:
    """Without W&B the import says what to install."""
    code = "import sys; sys.modules['wandb'] = None; import flashback_plugins.wandb"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, text=True, capture_output=True, check=False
    )
    assert "this needs wandb: pip install 'flashback-plugins[wandb]'" in done.stderr
