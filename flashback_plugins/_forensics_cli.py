"""``flashback forensics build | fit | score``."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["add"]

_FOLDER = "forensics-data"
_DATA = f"the folder of the data set (default: {_FOLDER})"


def add(commands: Any) -> None:
    """Add the command ``forensics`` to the sub-commands `commands` of an argument parser."""
    parser = commands.add_parser(
        "forensics",
        help="build the labelled data set, fit a detector on it, score detectors",
        description="Runs broken on purpose at a known step: build them, fit on them, score.",
    )
    parser.set_defaults(run=_help_of(parser))
    parts = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add_one in (_add_build, _add_fit, _add_score):
        add_one(parts)


def _help_of(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    def run(_: argparse.Namespace) -> int:
        parser.print_help()
        return 0

    return run


def _part(
    parts: Any, name: str, run: Callable[[argparse.Namespace], int], summary: str, more: str
) -> argparse.ArgumentParser:
    description = f"{summary[0].upper()}{summary[1:]}. {more}"
    parser: argparse.ArgumentParser = parts.add_parser(name, help=summary, description=description)
    parser.set_defaults(run=run)
    return parser


# -- build -------------------------------------------------------------------------------------


def _add_build(parts: Any) -> None:
    p = _part(parts, "build", _build, "build the data set, or go on with it",
              "Trains, records and labels the runs of a scale. A build that was stopped goes on "
              "where it was; all but times follows from kind, seed and scale.")  # fmt: skip
    scales = "tiny, medium, six, small, large, fit or evaluation (default: tiny)"
    p.add_argument("--scale", default="tiny", metavar="NAME", help=scales)
    p.add_argument("--out", default=_FOLDER, metavar="DIR", help=_DATA)
    p.add_argument("--jobs", type=_count, metavar="N", help="processes (default: one per core)")
    p.add_argument("--kinds", type=_names, metavar="A,B", help="these kinds, or sets of kinds: "
                   "seed, hard, reported, placebo, healthy, added")  # fmt: skip
    p.add_argument("--seeds", type=_seeds, default=(None, None), metavar="N|A:B",
                   help="N: runs of each kind, spread over the splits; A:B: the seeds A to B - 1 "
                   "by number (last digit 0-3 train, 4-5 calibration, 6-9 test)")  # fmt: skip
    p.add_argument("--limit", type=_count, metavar="N", help="only the first N runs of the scale; "
                   "a larger N goes on from there")  # fmt: skip
    p.add_argument("--twins", type=float, metavar="SHARE",
                   help="share of the fault runs that get a healthy twin")  # fmt: skip
    p.add_argument("--also", metavar="FILE.py", help="a file that adds kinds of your own")
    p.add_argument("--push-to-hub", metavar="NAME",
                   help="upload the data set to the Hugging Face hub as user/data-set")  # fmt: skip


def _build(arguments: argparse.Namespace) -> int:
    from flashback_core.forensics.build import build

    with _Bar("building", "steps") as bar:
        done = build(
            arguments.out,
            arguments.scale,
            kinds=arguments.kinds,
            n_seeds=arguments.seeds[0],
            seeds=arguments.seeds[1],
            limit=arguments.limit,
            twins=arguments.twins,
            also=arguments.also,
            jobs=arguments.jobs,
            progress=bar,
        )
    print(f"{done.folder}: {done.n_built} runs built, {done.n_present} were there")
    for run_id, error in done.failed.items():
        print(f"failed: {run_id}: {error}", file=sys.stderr)
    if arguments.push_to_hub and not done.failed:
        from flashback_core.forensics.hub import push

        print(f"Pushed: {push(done.folder, arguments.push_to_hub)}")
    return 1 if done.failed else 0


# -- fit ---------------------------------------------------------------------------------------


def _add_fit(parts: Any) -> None:
    p = _part(parts, "fit", _fit, "fit the detector on the training split and save it",
              "Writes the detector's folder, and provenance.json beside it.")  # fmt: skip
    p.add_argument("--data", type=_names, default=[_FOLDER], metavar="DIR[,DIR]",
                   help=f"{_DATA}; several with commas between")  # fmt: skip
    p.add_argument("--out", required=True, metavar="DIR", help="the folder of the detector")
    p.add_argument("--splits", type=_names, default=["train"], metavar="A,B",
                   help="train (default), or train,calibration")  # fmt: skip


def _fit(arguments: argparse.Namespace) -> int:
    from flashback_core.forensics.fitting import fit

    fit(arguments.data, arguments.out, splits=arguments.splits, command=_command_line())
    of = ", ".join(arguments.data)
    print(f"{arguments.out}: fitted on {', '.join(arguments.splits)} of {of}")
    return 0


# -- score -------------------------------------------------------------------------------------


def _add_score(parts: Any) -> None:
    p = _part(parts, "score", _score, "score detectors on the data set",
              "Nothing is fitted on the test split: thresholds are as the detectors come, and "
              "peers without a published one get theirs from the training split.")  # fmt: skip
    p.add_argument("--data", default=_FOLDER, metavar="DIR", help=_DATA)
    p.add_argument("--detector", metavar="DIR", help="a saved detector instead of the shipped one")
    p.add_argument("--peers", action="store_true", help="score the rules of others too")
    p.add_argument("--peers-fitted-on", metavar="DIR",
                   help="the data set whose training split sets the thresholds of peers that "
                        "have no published one (default: that of --data)")  # fmt: skip
    p.add_argument("--leaks", action="store_true", help="check that what means nothing changes "
                   "no verdict, instead of scoring")  # fmt: skip
    p.add_argument("--limit", type=_count, metavar="N", help="with --leaks: only the first N runs")
    p.add_argument("--write", action="store_true",
                   help="put the predictions into runs/ of the data set")  # fmt: skip
    p.add_argument("--out", metavar="DIR", help="write score.json, score.md, short.md, "
                   "outcomes.jsonl and two pictures there")  # fmt: skip
    p.add_argument("--json", action="store_true", help="print one JSON object and nothing else")
    p.add_argument("--jobs", type=_count, metavar="N", help="processes (default: one per core)")
    p.add_argument("--cache", metavar="DIR", help="keep what was judged there, so that a scoring "
                   "that was stopped goes on (default: .outcomes in the folder of --out, or "
                   "nothing is kept)")  # fmt: skip


def _score(arguments: argparse.Namespace) -> int:
    if arguments.leaks:
        return _leaks(arguments)
    from flashback_core.forensics.results import show, write
    from flashback_core.forensics.score import (
        OURS,
        detectors,
        fitted_peers,
        score,
    )

    notes: list[str] = []
    candidates = detectors(arguments.detector)
    if arguments.peers:
        others, notes = fitted_peers(arguments.peers_fitted_on or arguments.data)
        candidates |= others
    cache = arguments.cache or (Path(arguments.out, ".outcomes") if arguments.out else None)
    with _Bar("scoring", "files") as bar:
        result = score(
            arguments.data, candidates, jobs=arguments.jobs, cache=cache, progress=bar,
            notes=notes, command=_command_line(),
        )  # fmt: skip
    if arguments.write:
        from flashback_core.forensics.predictions import write_predictions

        write_predictions(arguments.data, candidates[OURS])
    paths = write(result, arguments.out) if arguments.out else []
    if arguments.json:
        _print_json({k: v for k, v in result.items() if k != "outcomes"})
    else:
        show(result)
        for path in paths:
            print(path)
    return 0


def _leaks(arguments: argparse.Namespace) -> int:
    """Exit status 1 where a verdict changed."""
    from itertools import islice

    from flashback_core.forensics.leaks import check_leaks
    from flashback_core.forensics.score import OURS, detectors
    from flashback_core.forensics.tables import load_runs

    runs = islice(load_runs(arguments.data), arguments.limit)
    found = check_leaks(detectors(arguments.detector)[OURS], runs)
    if arguments.json:
        _print_json(found)
    else:
        for name, entry in found.items():
            changed = entry["changed"]
            shown = ", ".join(changed[:8]) + (" …" if len(changed) > 8 else "")
            print(f"{name:22} {len(changed)} of {entry['n']} changed  {shown}".rstrip())
    return 1 if any(entry["changed"] for entry in found.values()) else 0


# -- beside them -------------------------------------------------------------------------------


def _print_json(value: Any) -> None:
    from flashback_core.report.model import strict_json

    print(json.dumps(strict_json(value), allow_nan=False))


def _command_line() -> str:
    return shlex.join(["flashback", *sys.argv[1:]])


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _count(text: str) -> int:
    number = int(text)
    if number < 1:
        msg = f"{text} is below 1"
        raise argparse.ArgumentTypeError(msg)
    return number


def _seeds(text: str) -> tuple[int | None, range | None]:
    """``N`` as a number of runs, ``A:B`` as the seeds A … B - 1."""
    low, colon, high = text.partition(":")
    if not colon:
        return _count(text), None
    seeds = range(int(low), int(high))
    if seeds.start < 0 or not seeds:
        msg = f"{text}: expected A:B with 0 <= A < B, e.g. 100:120"
        raise argparse.ArgumentTypeError(msg)
    return None, seeds


class _Bar:
    """A progress bar with the time that is left, on standard error."""

    def __init__(self, what: str, unit: str) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        self._progress = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn(unit),
            TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(),
            console=Console(stderr=True),
        )  # fmt: skip
        self._task = self._progress.add_task(what, total=None)

    def __call__(self, done: int, total: int, run_id: str) -> None:
        self._progress.update(self._task, completed=done, total=total, description=run_id)

    def __enter__(self) -> _Bar:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
