"""What the index costs: bytes a step, CPU time of an append, CPU time and memory of reading.

Run ``python benchmarks/index_bench.py``. The rows are those of a real run: a small GPT, trained
here and recorded with `fb.Recorder`. All times are CPU times of the process, all threads included,
medians of the rounds. The million steps repeat the real rows in random order, which spoils their
compression and leaves their decoding as it is.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import flashback_core as fb

GOALS = {
    "bytes per step, sealed, 128 metrics": "300 (240)",
    "bytes per step, sealed, with exact fields": "340 (280)",
    "append, µs CPU": "10 (3)",
    "append with sealing, µs CPU": "10",
    "1 M steps, open and one column, s CPU": "0.5",
    "1 M steps, open and all 128 columns, s CPU": "2.5",
    "1 M steps, growth of memory, MB": "250",
}


def main(*, quick: bool = False) -> None:
    """Print the table, or with ``--json`` one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=1200, help="real steps to record")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=1_000_000, help="steps of the long index")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args(None if __name__ == "__main__" else [])
    if quick:
        arguments.rows, arguments.rounds, arguments.steps = 400, 5, 100_000
    with tempfile.TemporaryDirectory(prefix="flashback-bench-") as folder:
        figures = measure(Path(folder), arguments.rows, arguments.rounds, arguments.steps)
    if arguments.json:
        print(json.dumps(figures))
        return
    print(f"{'figure':46} {'measured':>9}   goal (stretch)")
    for name, value in figures.items():
        print(f"{name:46} {value:>9.2f}   {GOALS.get(name, '')}")


def measure(folder: Path, n_rows: int, rounds: int, n_steps: int) -> dict[str, float]:
    """All figures, by name."""
    record(folder / "real", n_rows)
    real = fb.open_run(folder / "real")
    rows = rows_of(real)
    figures = sizes(real, folder, rows)
    figures |= appends(folder, rows, rounds)
    long = folder / "long"
    build(long, rows, n_steps)
    figures |= reads(long)
    return figures


# -- a real run --------------------------------------------------------------------------------


def record(folder: Path, n_steps: int) -> None:
    """Train a GPT of 0.54 M parameters on made-up text and record every step."""
    import torch
    from torch.nn import functional

    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = gpt()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=n_steps + 1)
    rng = np.random.default_rng(0)
    text = rng.zipf(1.5, 200_000) % 256
    with fb.Recorder(folder, model, optimizer, write_report=False) as recorder:
        for step in range(n_steps):
            ids = rng.integers(0, len(text) - 65, 8)
            batch = torch.tensor(np.stack([text[i : i + 65] for i in ids]))
            logits = model(batch[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            recorder.log(loss=loss, batch_ids=ids, epoch=0, batch_index=step)


def gpt(width: int = 100, depth: int = 4, tokens: int = 256) -> Any:
    """A small decoder with the usual names of its parameters."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.c_attn, self.attn_proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.mlp_fc, self.mlp_proj = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            b, t, _ = x.shape
            parts = self.c_attn(self.ln_1(x)).split(width, 2)
            q, k, v = (p.view(b, t, 4, width // 4).transpose(1, 2) for p in parts)
            mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.attn_proj(mixed.transpose(1, 2).reshape(b, t, width))
            return x + self.mlp_proj(nn.functional.gelu(self.mlp_fc(self.ln_2(x))))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.wpe = nn.Embedding(tokens, width), nn.Embedding(64, width)
            self.h = nn.ModuleList([Block() for _ in range(depth)])
            self.ln_f, self.lm_head = nn.LayerNorm(width), nn.Linear(width, tokens, bias=False)

        def forward(self, ids: torch.Tensor) -> torch.Tensor:
            x = self.wte(ids) + self.wpe.weight[: ids.shape[1]]
            for block in self.h:
                x = block(x)
            return self.lm_head(self.ln_f(x))

    return Gpt()


Rows = list[tuple[np.ndarray, dict[str, float]]]


def rows_of(table: fb.StepTable) -> Rows:
    """(values, exact fields) of each row, as a recorder appends them."""
    values = table.values
    names = [n for n in table.exact_names if n.split(":")[1] in
             ("optimizer", "epoch", "batch_index", "batch_hash")]  # fmt: skip
    exact = {name.split(":")[1]: table[name].tolist() for name in names}
    return [(values[i].copy(), {n: v[i] for n, v in exact.items()}) for i in range(len(table))]


# -- figures -----------------------------------------------------------------------------------


def sizes(real: fb.StepTable, folder: Path, rows: Rows) -> dict[str, float]:
    """Bytes of everything in the folder of the sealed index, per step."""
    n = len(real)
    with_exact = folder_bytes(folder / "real" / "sketch") / n
    exact = column_bytes(folder / "real" / "sketch") / n
    return {
        "bytes per step, sealed, 128 metrics": with_exact - exact,
        "bytes per step, sealed, with exact fields": with_exact,
        "bytes per step, not yet sealed": unsealed(folder / "tail", rows) / n,
    }


def folder_bytes(folder: Path) -> int:
    """Bytes of the files in `folder`."""
    return sum(path.stat().st_size for path in folder.iterdir())


def column_bytes(folder: Path) -> int:
    """Bytes of the columns of the exact fields, their share of the footer included."""
    import pyarrow.parquet as pq

    total = 0
    for path in folder.glob("segment-*.parquet"):
        group = pq.read_metadata(path).row_group(0)
        columns = [group.column(i) for i in range(group.num_columns)]
        exact = [c for c in columns if c.path_in_schema.startswith("exact:")]
        total += sum(c.total_compressed_size for c in exact)
        total += (
            (path.stat().st_size - sum(c.total_compressed_size for c in columns))
            * len(exact)
            // len(columns)
        )
    return total


def unsealed(folder: Path, rows: Rows) -> int:
    """Bytes of the same rows in a tail."""
    index = fb.StepSketchIndex(folder, "a")
    for step, (values, exact) in enumerate(rows):
        index.append(step, values, exact)
    size = folder_bytes(folder)
    index.close()
    return size


def appends(folder: Path, rows: Rows, rounds: int) -> dict[str, float]:
    """CPU time of an append, without and with the sealing of segments of 4096 rows."""
    alone, sealed = [], []
    many = [rows[i % len(rows)] for i in range(4096)]
    for n in range(rounds + 1):
        index = fb.StepSketchIndex(folder / f"append-{n}", "a", segment_rows=1 << 30)
        begin = time.process_time()
        for step, (values, exact) in enumerate(many):
            index.append(step, values, exact)
        middle = time.process_time()
        index._open_writer.seal()
        alone.append((middle - begin) / len(many) * 1e6)
        sealed.append((time.process_time() - begin) / len(many) * 1e6)
        index.close()
        shutil.rmtree(folder / f"append-{n}")
    return {
        "append, µs CPU": statistics.median(alone[1:]),
        "append with sealing, µs CPU": statistics.median(sealed[1:]),
        "first sealing (loads pyarrow), ms CPU": (sealed[0] - alone[0]) * len(many) / 1e3,
    }


def build(folder: Path, rows: Rows, n_steps: int) -> None:
    """An index of `n_steps` that repeats the real rows in random order."""
    order = np.random.default_rng(0).integers(0, len(rows), n_steps)
    with fb.StepSketchIndex(folder, "a") as index:
        for step, i in enumerate(order):
            index.append(step, *rows[i])


def reads(folder: Path) -> dict[str, float]:
    """CPU time and memory of reading a long index, each in a process of its own."""
    one = in_new_process(read_one, folder)
    every = in_new_process(read_all, folder)
    n = len(fb.StepSketchIndex(folder))
    name = f"{n // 1_000_000} M steps" if n >= 1_000_000 else f"{n} steps"
    return {
        f"{name}, open and one column, s CPU": one["cpu"],
        f"{name}, open and all 128 columns, s CPU": every["cpu"],
        f"{name}, growth of memory, MB": every["megabytes"],
        f"{name}, bytes per step": folder_bytes(folder) / n,
    }


def read_one(folder: Path) -> None:
    """Open and read one column."""
    fb.StepSketchIndex(folder)["grad_norm"]


def read_all(folder: Path) -> None:
    """Open and read each metric, one after the other."""
    index = fb.StepSketchIndex(folder)
    for name in index.names:
        index[name]


def in_new_process(read: Callable[[Path], None], folder: Path) -> dict[str, float]:
    """CPU seconds and peak growth of memory of `read`, without what importing takes."""
    command = [sys.executable, __file__, "--read", read.__name__, str(folder)]
    return dict(json.loads(subprocess.run(command, check=True, capture_output=True).stdout))


def measured_read(name: str, folder: Path) -> None:
    """The other end of `in_new_process`."""
    import pyarrow.parquet  # noqa: F401 - loaded before the clock starts

    before = peak_kilobytes()
    begin = time.process_time()
    {"read_one": read_one, "read_all": read_all}[name](folder)
    cpu = time.process_time() - begin
    grown = (peak_kilobytes() - before) / 1024
    print(json.dumps({"cpu": cpu, "megabytes": grown}))


def peak_kilobytes() -> int:
    """Largest resident memory of this process so far (`ru_maxrss` would count its parent's)."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


if __name__ == "__main__":
    if sys.argv[1:2] == ["--read"]:
        measured_read(sys.argv[2], Path(sys.argv[3]))
    else:
        main()
