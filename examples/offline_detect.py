"""Detection on files: an index, its Parquet export, and a CSV that holds nothing but the loss."""

from __future__ import annotations

import csv
import sys
import tempfile
from pathlib import Path

import torch
from small_gpt import SmallGPT, batch, corpus

import flashback_core as fb
from flashback_core.export import export_table

STEPS, WRONG = 300, 187


def record(folder: Path) -> None:
    """A run in which a gradient entry becomes NaN at one step (and is then skipped by hand)."""
    torch.manual_seed(0)
    data, model = corpus(), SmallGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    with fb.Recorder(folder, model, optimizer, write_report=False) as rec:
        for step in range(STEPS):
            ids, windows = batch(data, step)
            loss = model.loss(windows)
            optimizer.zero_grad()
            loss.backward()
            if step == WRONG:
                model.lm_head.weight.grad[3, 5] = float("nan")
            optimizer.step()
            rec.log(loss=loss, batch_ids=ids)


def main(folder: Path) -> None:
    """Record, export, detect on each form."""
    record(folder)
    table = fb.open_run(folder)
    parquet = export_table(table, folder / "run.parquet")
    loss_only = folder / "loss.csv"
    with open(loss_only, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["step", "train_loss"])
        writer.writerows(zip(table.steps.tolist(), table["loss"].tolist(), strict=True))
    for source in (folder, parquet, loss_only):
        report = fb.detect(source)
        verdict = f"{report.status}, first bad step {report.first_bad_step} ({report.kind})"
        print(f"{Path(source).name}: {verdict}; a gradient was NaN at {WRONG}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="flashback-example-")))
