"""The demo: a transformer goes wrong at a step that nobody knows, and flashback finds it.

A small GPT is trained with Lightning on the standard library's own source files. At a step drawn at
random something goes wrong. W&B (offline) and MLflow (sqlite) log the run, `FlashbackCallback`
records it, and at the end the step that it found stands beside the true one.

    python examples/demo.py                     # a fault drawn at random
    python examples/demo.py --fault bit_flip    # one of flashback_core.faults.kinds()
    python examples/demo.py --fault none        # nothing goes wrong
    python examples/demo.py --fault list        # the kinds that can go wrong here
"""

from __future__ import annotations

import argparse
import logging
import os
import secrets
import sys
import warnings
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flashback_core import faults

DRAWN = ("bit_flip", "data_poison_heavy", "data_poison_subtle", "lowprec_overflow",
         "lr_spike_loud", "lr_spike_subtle")  # fmt: skip
"""Kinds from which a random fault is drawn."""
NOT_HERE = {"replicas", "scaler", "router", "buffers"}
"""Needs of fault kinds that this loop, one process in float32, and its model do not have."""


@dataclass(frozen=True)
class Plan:
    """What will happen; shown only when it has happened."""

    kind: str | None
    step: int
    seed: int
    n_steps: int
    folder: Path
    root: Path


def main() -> int:
    """Plan, train, tell."""
    console = Console()
    plan = make_plan(arguments())
    words = "nothing will go wrong" if plan.kind is None else "something will go wrong"
    console.print(
        Text.assemble(("flashback demo", "bold"), f"  a GPT learns to write Python; {words}")
    )
    with console.status("loading torch, Lightning, W&B and MLflow"):
        run = import_run()
        keep_quiet()
    outcome = run(plan)
    show(console, plan, outcome)
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--fault", default="random", help="a fault kind, none, random (default), or list"
    )
    parser.add_argument(
        "--seed", type=int, help="draws everything; a new one each time if left out"
    )
    parser.add_argument("--steps", type=int, default=600, help="optimizer steps (default 600)")
    parser.add_argument("--dir", type=Path, default=Path("demo-runs"), help="where runs are kept")
    found = parser.parse_args()
    if found.steps < 200:
        parser.error(f"--steps {found.steps} leaves too little before the fault; take 200 or more")
    if found.fault == "list":
        print("\n".join(f"{name:<30}{described(name)}" for name in possible()))
        parser.exit()
    if found.fault not in ("random", "none"):
        check(parser, found.fault)
    return found


def possible() -> list[str]:
    """Fault kinds that can happen in this loop."""
    return [name for name in faults.kinds() if not NOT_HERE & set(faults.kind_of(name).needs)]


def described(name: str) -> str:
    """What a kind of fault does at its usual strength."""
    return faults.make(name, step=0).description.partition("; from step")[0]


def check(parser: argparse.ArgumentParser, name: str) -> None:
    """Refuse a fault that does not exist or cannot happen here."""
    try:
        kind = faults.kind_of(name)
    except ValueError as error:
        parser.error(f"{error}; --fault list shows those that can happen here")
    missing = NOT_HERE & set(kind.needs)
    if missing:
        parser.error(f"--fault {name} needs {', '.join(missing)}; this loop has none")


def make_plan(given: argparse.Namespace) -> Plan:
    """Draw what was not given."""
    seed = secrets.randbelow(10_000) if given.seed is None else given.seed
    rng = np.random.default_rng([seed, 1])
    drawn = str(rng.choice(DRAWN))
    step = int(rng.integers(given.steps * 2 // 5, given.steps * 4 // 5))
    kind = {"random": drawn, "none": None}.get(given.fault, given.fault)
    folder = given.dir / f"{datetime.now():%Y%m%d-%H%M%S}-seed-{seed}"
    return Plan(kind, step, seed, given.steps, folder, given.dir)


def keep_quiet() -> None:
    """Let only the demo speak."""
    warnings.filterwarnings("ignore")
    os.environ |= {"WANDB_MODE": "offline", "WANDB_SILENT": "true",
                   "GIT_PYTHON_REFRESH": "quiet", "MLFLOW_DISABLE_TELEMETRY": "true",
                   "MLFLOW_LOGGING_LEVEL": "ERROR"}  # fmt: skip
    import wandb

    wandb.setup(wandb.Settings(silent=True))
    for name in ("alembic", "mlflow", "lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)


def import_run() -> Any:
    """The slow imports, behind a line that says so."""
    sys.path.insert(0, str(Path(__file__).parent))
    import demo_training

    return demo_training.run


def show(console: Console, plan: Plan, outcome: Any) -> None:
    """The report, the truth, and where to look."""
    from flashback_core.report.terminal import render

    console.print()
    if outcome.report is None:
        console.print("no report was made: see the warnings above", style="bold red")
        return
    render(outcome.report, console)
    show_truth(console, plan, outcome)
    show_places(console, plan, outcome)


def show_truth(console: Console, plan: Plan, outcome: Any) -> None:
    """The step that was found, and the true one beside it."""
    found = outcome.report.first_bad_step
    console.print("\n[bold]The truth")
    if plan.kind is None:
        good = found is None
        said = "nothing was called bad" if good else f"step {found} was called bad: a false alarm"
        console.print(Text(f"  no fault was injected, and {said}", "green" if good else "red"))
        return
    grid = Table(box=None, show_header=False, padding=(0, 2))
    grid.add_row("found", Text("no bad step" if found is None else f"step {found}", "bold"))
    grid.add_row("true", Text(f"step {plan.step}", "bold"))
    grid.add_row("fault", Text(f"{plan.kind}: {outcome.fault}"))
    console.print(grid)
    console.print(judged(found, plan.step))


def judged(found: int | None, true: int) -> Text:
    """How far off it was."""
    if found is None:
        return Text("  missed", "bold red")
    if found == true:
        return Text("  exactly right", "bold green")
    off = found - true
    words = f"  {abs(off)} step{'s' * (abs(off) > 1)} {'late' if off > 0 else 'early'}"
    return Text(words, "bold yellow" if abs(off) <= 5 else "bold red")


def show_places(console: Console, plan: Plan, outcome: Any) -> None:
    """Where the run can be looked at, as commands to paste."""
    bin_ = command_prefix()
    console.print("\n[bold]Where to look")
    places = {
        "report": [str(shown(plan.folder / "report.html"))],
        "MLflow": [
            f"{bin_}mlflow ui --backend-store-uri sqlite:///{shown(plan.root / 'mlflow.db')}",
            f"http://127.0.0.1:5000/#/experiments/{outcome.experiment_id}/runs/{outcome.run_id}",
        ],
        "W&B": [
            f"{bin_}wandb leet {shown(outcome.wandb_folder)}",
            f"{bin_}wandb sync {shown(outcome.wandb_folder)}",
        ],
        "again": [f"{bin_}python examples/demo.py --seed {plan.seed} --fault {plan.kind or 'none'}"
                  f" --steps {plan.n_steps}"],
    }  # fmt: skip
    for name, lines in places.items():
        for i, line in enumerate(lines):
            console.print(
                f"  [dim]{name if i == 0 else '':<8}[/]{line}", soft_wrap=True, highlight=False
            )


def shown(path: Path) -> Path:
    """`path` as short as it can be said from here."""
    here = Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def command_prefix() -> str:
    """What to put before a command of this environment."""
    place = Path(sys.executable).parent
    if str(place) in os.environ.get("PATH", "").split(os.pathsep):
        return ""
    return f"{shown(place)}/"


if __name__ == "__main__":
    raise SystemExit(main())
