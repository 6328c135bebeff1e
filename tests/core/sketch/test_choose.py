"""Which backend is chosen, and what becomes of a numba that does not work."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytest.importorskip("numba")

CODE = """
import warnings
import numba.core.caching as caching
caching.CacheImpl._locator_classes = []  # as where no folder can be written
import numpy as np, torch
import flashback_core as fb
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
with warnings.catch_warnings(record=True) as said:
    warnings.simplefilter("always")
    with fb.Recorder("run", model, optimizer) as rec:
        for _ in range(60):
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            optimizer.step()
            rec.log(loss=loss)
print(len(rec.index), [str(w.message).split(" (")[0] for w in said])
"""


@pytest.mark.slow
def test_nowhere_to_keep_kernels(tmp_path) -> None:
    """Where numba finds no folder for its kernels, the run is recorded without them."""
    env = {k: v for k, v in os.environ.items() if k != "FLASHBACK_BACKEND"}
    done = subprocess.run(
        [sys.executable, "-c", CODE], cwd=tmp_path, env=env, capture_output=True, text=True,
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "60 ['flashback: numba cannot be used']"
