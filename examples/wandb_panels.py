"""Sketches beside your own metrics in an offline W&B run: live scalars, histograms, an alert."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("WANDB_MODE", "offline")
os.environ.setdefault("WANDB_SILENT", "true")

import torch
import wandb
from small_gpt import SmallGPT, batch, corpus

import flashback_plugins.wandb as fw

STEPS, WRONG = 250, 171


def main(folder: Path) -> None:
    """Train with a learning rate that jumps for good at one step."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    data, model = corpus(), SmallGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with wandb.init(project="flashback-example", dir=folder) as run:
        with fw.attach(run, model, optimizer, dir=folder / "run") as rec:
            for step in range(STEPS):
                ids, windows = batch(data, step)
                loss = model.loss(windows)
                optimizer.zero_grad()
                loss.backward()
                optimizer.param_groups[0]["lr"] = 1e-3 * (20 if step >= WRONG else 1)
                optimizer.step()
                rec.log(loss=loss, batch_ids=ids)
                run.log({"train/loss": loss.item()})  # your own logging stays as it is
        found = run.summary.get("flashback/first_bad_step")
        where = Path(run.dir).parent
    print(f"summary flashback/first_bad_step: {found} (the learning rate jumped at {WRONG})")
    print(f"view:  wandb leet {where}")
    print(f"sync:  wandb sync {where}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="flashback-example-")))
