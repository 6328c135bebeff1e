"""A plain PyTorch loop, recorded. The learning rate is wrong for one step; flashback says which."""

from __future__ import annotations

import sys
import tempfile

import torch
from small_gpt import SmallGPT, batch, corpus

import flashback_core as fb

STEPS, WRONG = 300, 203


def main(folder: str) -> None:
    """Train, break one step, report."""
    torch.manual_seed(0)
    data, model = corpus(), SmallGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    with fb.Recorder(folder, model, optimizer) as rec:
        for step in range(STEPS):
            ids, windows = batch(data, step)
            loss = model.loss(windows)
            optimizer.zero_grad()
            loss.backward()
            optimizer.param_groups[0]["lr"] = 3e-3 * (60 if step == WRONG else 1)
            optimizer.step()
            rec.log(loss=loss, batch_ids=ids)

    report = rec.report
    print(f"first bad step: {report.first_bad_step} (the learning rate was wrong at {WRONG})")
    print(f"confidence: {report.confidence:.2f}")
    print(f"what moved first: {', '.join(m.metric for m in report.top_metrics[:3])}")
    print(f"page: {rec.dir}/report.html")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="flashback-example-"))
