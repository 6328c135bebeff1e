"""The report as an artifact of an MLflow run, with tags to search by."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")

import mlflow
import torch
from small_gpt import SmallGPT, batch, corpus

import flashback_plugins.mlflow as fm

STEPS, WRONG = 250, 158


def main(folder: Path) -> None:
    """Train; at one step every moment of the optimizer is lost."""
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(0)
    data, model = corpus(), SmallGPT()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    store = f"sqlite:///{folder / 'mlflow.db'}"
    mlflow.set_tracking_uri(store)
    mlflow.create_experiment("flashback-example", artifact_location=str(folder / "artifacts"))
    mlflow.set_experiment("flashback-example")
    with mlflow.start_run() as run, fm.record(model, optimizer, dir=folder / "run") as rec:
        for step in range(STEPS):
            ids, windows = batch(data, step)
            loss = model.loss(windows)
            optimizer.zero_grad()
            loss.backward()
            if step == WRONG:
                optimizer.state.clear()
            optimizer.step()
            rec.log(loss=loss, batch_ids=ids)
    tags = mlflow.get_run(run.info.run_id).data.tags
    artifacts = mlflow.artifacts.list_artifacts(run_id=run.info.run_id, artifact_path="flashback")
    print(f"tag flashback.first_bad_step: {tags.get('flashback.first_bad_step')} "
          f"(the optimizer's state was lost at {WRONG})")  # fmt: skip
    print(f"artifacts: {', '.join(sorted(a.path for a in artifacts))}")
    print(f"open:  mlflow ui --backend-store-uri {store}")


if __name__ == "__main__":
    main(Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp(prefix="flashback-example-")))
