"""The command `flashback`. Each command imports what it needs when it runs."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flashback_core.detectors.first_bad_step import FirstBadStepDetector
    from flashback_core.report.model import DetectionReport
    from flashback_core.table import StepTable

__all__ = ["main"]

_BAD_INPUT = 2
_EXIT_CODES = {"healthy": 0, "bad": 1, "not_enough_data": 3}
_SOURCE = "a run folder, its index, an export (.parquet, .csv), or the URL of one"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit status: 0 it ran, 2 bad input."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    try:
        return int(arguments.run(arguments))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # `flashback … | head`: nobody reads on
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if not _is_ours(error):
            raise
        print(f"flashback: {error}", file=sys.stderr)
        return _BAD_INPUT


def _is_ours(error: Exception) -> bool:
    """Whether `error` speaks to the user: one of ours, or the file system's."""
    from flashback_core.errors import FlashbackError

    return isinstance(error, (FlashbackError, OSError))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="flashback",
        description="At which step did this training run first go wrong, and what moved first?",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.set_defaults(run=_version_or_help(parser))
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (_add_detect, _add_show, _add_export, _add_diff, _add_scan, _add_forensics):
        add(commands)
    return parser


def _add_forensics(commands: Any) -> None:
    from flashback_plugins import _forensics_cli

    _forensics_cli.add(commands)


def _version_or_help(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    def run(arguments: argparse.Namespace) -> int:
        if arguments.version:
            from flashback_core.version import __version__

            print(f"flashback {__version__}")
            return 0
        parser.print_help()
        return 0

    return run


def _command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int],
    summary: str,
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = commands.add_parser(
        name, help=summary, description=summary[0].upper() + summary[1:] + "."
    )
    parser.set_defaults(run=run)
    return parser


# -- detect ------------------------------------------------------------------------------------


def _add_detect(commands: Any) -> None:
    p = _command(commands, "detect", _detect, "find the first bad step of a run")
    p.add_argument("source", help=_SOURCE)
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    p.add_argument("--html", metavar="FILE", help="write the report as one HTML page")
    p.add_argument("--detector", metavar="DIR", help="a detector's folder instead of the shipped")
    p.add_argument("--budget", type=_positive, metavar="B", help="nominal false alarms of the "
                   "statistics per 100,000 steps (the shipped detector: 3)")  # fmt: skip
    p.add_argument("--follow", action="store_true", help="print the findings of a run that is "
                   "still recorded as they come, until it ends")  # fmt: skip
    p.add_argument("--run-id", metavar="ID", help="which run of a file that holds several; with "
                   "--attach the MLflow run")  # fmt: skip
    p.add_argument("--attach", action="store_true", help="attach the report to the MLflow run "
                   "--run-id (tracking URI from MLFLOW_TRACKING_URI)")  # fmt: skip
    p.add_argument("--exit-code", action="store_true",
                   help="exit with 1 if the run is bad, 3 if there is not enough data")  # fmt: skip


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        msg = f"{text} is no budget; expected false alarms per 100,000 steps, above 0"
        raise argparse.ArgumentTypeError(msg)
    return value


_positive.__name__ = "number"  # argparse says: invalid number value


def _detect(arguments: argparse.Namespace) -> int:
    if arguments.follow:
        from flashback_plugins import _follow

        status = _follow.run(arguments, _detector(arguments))
        return _EXIT_CODES[status] if arguments.exit_code else 0
    report = _report_of(arguments)
    if arguments.html:
        _write_page(report, Path(arguments.html))
    if arguments.attach:
        _attach(report, arguments.run_id)
    if arguments.json:
        print(report.to_json())
    else:
        from flashback_core.report.terminal import render

        render(report)
        if arguments.html:
            print(f"Page: {arguments.html}")
    return _EXIT_CODES[report.status] if arguments.exit_code else 0


def _write_page(report: DetectionReport, path: Path) -> None:
    from flashback_core.errors import SourceError

    if not path.parent.is_dir():
        msg = f"cannot write {path}: the folder {path.parent} does not exist; make it first"
        raise SourceError(msg)
    path.write_text(report.to_html(), encoding="utf-8", errors="replace")


def _report_of(arguments: argparse.Namespace) -> DetectionReport:
    from flashback_core.detection import detect
    from flashback_core.source import open_run

    table = open_run(arguments.source, run_id=None if arguments.attach else arguments.run_id)
    return detect(table, detector=_detector(arguments))


def _detector(arguments: argparse.Namespace) -> FirstBadStepDetector:
    from flashback_core.detectors.first_bad_step import FirstBadStepDetector

    folder, budget = arguments.detector, arguments.budget
    found = FirstBadStepDetector() if folder is None else FirstBadStepDetector.load(folder)
    return found if budget is None else _at_budget(found, budget)


def _at_budget(detector: FirstBadStepDetector, budget: float) -> FirstBadStepDetector:
    from flashback_core.errors import DetectorError

    try:
        detector.score_ratio_at(budget)  # raises where no budget sets the thresholds
    except DetectorError as error:
        msg = f"{error}; or leave out --budget"
        raise DetectorError(msg) from None
    return detector.at_budget(budget)


def _attach(report: DetectionReport, run_id: str | None) -> None:
    from flashback_core.errors import SourceError

    if run_id is None:
        msg = "--attach needs --run-id: the id of the MLflow run that gets the report"
        raise SourceError(msg)
    import tempfile

    from flashback_core.export import export_parquet
    from flashback_plugins._mlflow_store import client
    from flashback_plugins.mlflow import MlflowSink

    assert report.table is not None  # `detect` attaches it
    sink = MlflowSink(client(None), run_id)
    with tempfile.TemporaryDirectory(prefix="flashback-") as folder:
        index = export_parquet(report.table, Path(folder) / "index.parquet")
        sink.attach(report, report.write(Path(folder)), index)
    sink.close()


# -- show --------------------------------------------------------------------------------------


def _add_show(commands: Any) -> None:
    p = _command(commands, "show", _show, "show what was recorded, in the terminal")
    p.add_argument("source", nargs="?", help=_SOURCE)
    p.add_argument("--metric", action="append", metavar="NAME", help="show this metric (repeat)")
    p.add_argument("--steps", metavar="A:B", help="only steps A to B")
    p.add_argument("--groups", action="store_true", help="show which parameter is in which group")
    p.add_argument("--open", action="store_true", help="open the report as a page in the browser")
    p.add_argument("--plugins", action="store_true", help="list the installed sinks and exit")
    p.add_argument("--run-id", metavar="ID", help="which run of a file that holds several")


def _show(arguments: argparse.Namespace) -> int:
    if arguments.plugins:
        return _show_plugins()
    from flashback_core.errors import SourceError
    from flashback_core.source import open_run

    if arguments.source is None:
        msg = f"show needs a source: {_SOURCE}"
        raise SourceError(msg)
    table = open_run(arguments.source, run_id=arguments.run_id)
    if arguments.open:
        return _open_page(table)
    from flashback_core.report.terminal import render_groups, render_table

    if arguments.groups:
        render_groups(table)
    else:
        steps = _step_range(arguments.steps, table)
        render_table(table, metrics=arguments.metric, steps=steps)
    return 0


def _step_range(text: str | None, table: StepTable) -> tuple[int, int] | None:
    from flashback_core.errors import SourceError

    if text is None:
        return None
    first, colon, last = text.partition(":")
    try:
        low = int(first) if first else int(table.steps[0])
        high = int(last) if last else int(table.steps[-1])
    except (ValueError, IndexError):
        colon = ""
    if not colon or low > high:
        msg = f"--steps {text!r} is no range; expected A:B with A <= B, e.g. 100:140"
        raise SourceError(msg)
    return low, high


def _open_page(table: StepTable) -> int:
    import tempfile
    import webbrowser

    from flashback_core.detection import detect

    path = Path(tempfile.mkdtemp(prefix="flashback-")) / "report.html"
    _write_page(detect(table), path)
    webbrowser.open(path.as_uri())
    print(f"Page: {path}")
    return 0


def _show_plugins() -> int:
    from importlib.metadata import entry_points

    for entry in entry_points(group="flashback.sinks"):
        print(f"{entry.name}: {entry.value}")
    return 0


# -- export, diff, scan ------------------------------------------------------------------------


def _add_export(commands: Any) -> None:
    p = _command(commands, "export", _export, "write a run as one Parquet or CSV file")
    p.add_argument("source", help=_SOURCE)
    p.add_argument("out", help="the file to write; .parquet or .csv")
    p.add_argument("--run-id", metavar="ID", help="which run of a file that holds several; of a "
                   "folder, the value of the column run_id")  # fmt: skip


def _export(arguments: argparse.Namespace) -> int:
    from flashback_core.export import export_table
    from flashback_core.source import open_run

    table = open_run(arguments.source, run_id=arguments.run_id)
    path = export_table(table, arguments.out, run_id=arguments.run_id)
    print(f"{path}: {len(table)} steps, {len(table.names)} metrics")
    return 0


def _add_diff(commands: Any) -> None:
    p = _command(commands, "diff", _diff, "find the first step at which two runs part")
    p.add_argument("run_a", help=_SOURCE)
    p.add_argument("run_b", help="the other run")
    p.add_argument("--rtol", type=_tolerance, default=0.0, metavar="R",
                   help="relative difference that counts as equal (0: bit for bit)")  # fmt: skip
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def _tolerance(text: str) -> float:
    value = float(text)
    if not value >= 0:
        msg = f"{text} is negative or NaN; expected 0 or a relative difference"
        raise argparse.ArgumentTypeError(msg)
    return value


_tolerance.__name__ = "number"  # argparse says: invalid number value


def _diff(arguments: argparse.Namespace) -> int:
    from dataclasses import asdict

    from flashback_core.compare import first_difference
    from flashback_core.source import open_run

    a, b = open_run(arguments.run_a), open_run(arguments.run_b)
    parting = first_difference(a, b, rtol=arguments.rtol)
    if arguments.json:
        print(json.dumps(_strict(asdict(parting)), allow_nan=False))
        return 0
    if parting.step is None:
        print(f"equal: {parting.n_metrics} metrics over {parting.n_common} common steps")
        return 0
    print(f"the runs part at step {parting.step} ({len(parting.metrics)} of "
          f"{parting.n_metrics} metrics differ there)")  # fmt: skip
    for name, x, y in parting.metrics[:12]:
        print(f"  {name:32} {x:>14.8g} {y:>14.8g}")
    if len(parting.metrics) > 12:
        print(f"  … and {len(parting.metrics) - 12} more")
    return 0


def _strict(value: Any) -> Any:
    from flashback_core.report.model import strict_json

    return strict_json(value)


def _add_scan(commands: Any) -> None:
    p = _command(commands, "scan", _scan, "detect in many runs, one line each")
    p.add_argument("sources", nargs="+", metavar="SOURCE", help=_SOURCE)
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")


def _scan(arguments: argparse.Namespace) -> int:
    from flashback_core.detection import detect
    from flashback_core.errors import FlashbackError

    rows: list[dict[str, Any]] = []
    for source in arguments.sources:
        try:
            report = detect(source).to_dict()
            keys = ("status", "first_bad_step", "confidence", "kind", "n_steps")
            rows.append({"source": source} | {key: report.get(key) for key in keys})
        except (FlashbackError, OSError) as error:
            rows.append({"source": source, "status": "unreadable", "why": str(error)})
        if not arguments.json:
            print(_scan_line(rows[-1]), flush=True)
    if arguments.json:
        print(json.dumps(_strict({"runs": rows}), allow_nan=False))
    return _BAD_INPUT if all(r["status"] == "unreadable" for r in rows) else 0


def _scan_line(row: dict[str, Any]) -> str:
    if row["status"] == "bad":
        what = f"step {row['first_bad_step']}  {row['kind']}  confidence {row['confidence']:.2f}"
    else:
        what = row.get("why", f"{row.get('n_steps')} steps")
    return f"{row['status']:16} {row['source']}  {what}"


if __name__ == "__main__":
    sys.exit(main())
