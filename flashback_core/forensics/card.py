"""The card of the data set: README.md with the block that `datasets` reads."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from flashback_core.forensics.dataset import run_files
from flashback_core.forensics.scales import SCALES
from flashback_core.version import __version__

__all__ = ["card_text", "write_card"]

_PARTS = ("train", "test")
_SIZES = ((1_000, "n<1K"), (10_000, "1K<n<10K"), (100_000, "10K<n<100K"),
          (1_000_000, "100K<n<1M"), (10_000_000, "1M<n<10M"))  # fmt: skip


def write_card(folder: str | Path, scale: str) -> Path:
    """Write ``README.md`` from what lies in the folder."""
    path = Path(folder) / "README.md"
    path.write_text(card_text(folder, scale), encoding="utf-8")
    return path


def card_text(folder: str | Path, scale: str) -> str:
    """The card of the data set in `folder`."""
    runs = [row for path in run_files(folder, "runs") for row in pq.read_table(path).to_pylist()]
    n_steps = sum(row["n_steps"] for row in runs)
    return "\n".join((_header(Path(folder), n_steps), _body(runs, n_steps, scale), ""))


def _header(folder: Path, n_steps: int) -> str:
    size = next((name for bound, name in _SIZES if n_steps < bound), "n>10M")
    lines = [
        "---", "license: apache-2.0", "pretty_name: Flashback Forensics", "task_categories:",
        "- tabular-classification", "- time-series-forecasting", "tags:", "- machine-learning",
        "- debugging", "- observability", "- anomaly-detection", "- change-point-detection",
        "- flashback", "size_categories:", f"- {size}", "configs:",
    ]  # fmt: skip
    for name in ("steps", "runs", "twins"):
        parts = [p for p in _PARTS if any((folder / name).glob(f"{p}-*.parquet"))]
        if not parts:
            continue
        lines += [f"- config_name: {name}", "  data_files:"]
        for part in parts:
            lines += [f"  - split: {part}", f"    path: {name}/{part}-*.parquet"]
    return "\n".join([*lines, "---", ""])


def _body(runs: list[dict[str, Any]], n_steps: int, scale: str) -> str:
    n_healthy = sum(row["fault_kind"] == "healthy" for row in runs)
    n_twins = sum(row["has_twin"] for row in runs)
    return _TEXT.format(
        scale=scale, doc=SCALES[scale].doc, n_runs=len(runs), n_steps=n_steps, n_twins=n_twins,
        n_healthy=n_healthy, n_faults=len(runs) - n_healthy,
        splits=_counts(runs, "split"), families=_counts(runs, "model_family"),
        optimizers=_counts(runs, "optimizer"), precisions=_counts(runs, "precision"),
        kinds=", ".join(f"`{k}`" for k in sorted({row["fault_kind"] for row in runs})),
        healthy=", ".join(f"`{k}`" for k in sorted({row["healthy_kind"] for row in runs})),
        version=__version__,
    )  # fmt: skip


def _counts(runs: list[dict[str, Any]], column: str) -> str:
    found = Counter(row[column] for row in runs)
    return ", ".join(f"{name} {n}" for name, n in found.most_common())


_TEXT = """\
# Flashback Forensics

Telemetry of training runs that were broken on purpose at a known step, and of healthy runs that do
unusual things. One row is one optimizer step: 128 summary statistics and a few exact fields. The
label is the step at which the fault was put in.

## Contents

Scale `{scale}`: {doc}.

| config | rows | one row is |
|---|---|---|
| `steps` | {n_steps:,} | one step of one run: metrics and labels |
| `runs` | {n_runs:,} | one run: fault kind, first bad step, configuration, predictions |
| `twins` | the steps of {n_twins} runs | the same run (seed, data, dropout) without its fault |

{n_faults} runs have a fault or a placebo, {n_healthy} are healthy. Split: {splits} (the files
`train` hold the splits `train` and `calibration`; the column `split` of `runs` tells them apart).
Splits are by seed and by kind: a third of the fault kinds and of the healthy kinds is held out and
only ever in `test`. No two runs share a prefix. Models: {families}. Optimizers: {optimizers}.
Precision: {precisions}.

Fault kinds: {kinds}.

What healthy runs do: {healthy}.

## Fields of `steps`

- `run_id`, `step`, `fault_kind` (`healthy` without a fault).
- The metrics of the Flashback sketch. Transformers have the groups embed, attn_qkv, attn_out,
  mlp_in, mlp_out, norm, head, other; models without attention have stem, body_1 … body_4, norm,
  head, other. A run has 128 of the columns; the others are null.
- `exact:*`: integers, hashes and flags, such as digests of weights, optimizer state, configuration
  and batch, and what changed outside the optimizer.
- `is_after_first_bad`: 1 from the first bad step on.
- `steps_to_first_bad`: signed distance from the first bad step, negative before it; null where the
  run has none.

## Fields of `runs`

−1 means none. `first_bad_step` is the label; `injected_step` is also set for placebos, which change
nothing and must not be found. `all_bad_steps` and `all_kinds` are JSON lists (a tenth of the fault
runs has two faults). `visibility` is d′ of the fault against the healthy twin, in units of the
run's own noise, and from 8 on a fault counts as visible. `events` is a JSON list of what the
recorder noted: declared changes, changes of the configuration, weights changed from outside.
`loss_only_*` and `flashback_*` are the predictions of two detectors and their errors in steps.

## Usage

```python
from datasets import load_dataset

steps = load_dataset("PATH", "steps", split="test")
runs = load_dataset("PATH", "runs", split="test")
```

Every file of `steps` and `twins` is also a run for the command line:
`flashback detect steps/test-<run_id>.parquet`.

To build it again: `flashback forensics build --scale {scale} --out DIR` (Flashback {version}). All
but times follows from kind, seed and scale.

## What is not here

No weights, no gradients, no training data; only statistics. The models are small and were trained
on a CPU on standard-library text, digits images and made-up sources.
"""
