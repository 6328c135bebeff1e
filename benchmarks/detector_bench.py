"""What the detector costs: CPU time of a step online, of 100,000 steps offline, memory.

Run ``python -m benchmarks detector``. The rows are a made-up healthy run of 128 metrics and the
exact fields; times are CPU times of the process, the smallest of the rounds, since other work on
the machine only adds. Each is measured with the compiled kernels (extra ``fast``), where numba is
installed, and without; the findings are the same.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

import flashback_core as fb
from flashback_core.schema import EXACT_FIELDS
from flashback_core.testing import healthy_run

__all__ = ["main"]

GOALS = {
    "online, row as a mapping, us a step": "50 (10)",
    "online, row as a recorder has it, us a step": "50 (10)",
    "offline, s per 100,000 steps": "5 (1)",
    "state of the stream, MB": "bounded",
    "kernels from disk, s": "once per process",
    "kernels compiled, s": "once per machine",
}
_LOAD = """
import time
import flashback_core as fb
detector = fb.FirstBadStepDetector()
start = time.process_time()
detector.stream()
print(time.process_time() - start)
"""


def main(*, quick: bool = False) -> None:
    """Print the table."""
    n, rounds = (2_000, 3) if quick else (8_000, 8)
    backends = ["", "flat"] if importlib.util.find_spec("numba") else ["flat"]
    found = {name: measure(n, rounds, name) for name in backends}
    if "" in found:
        found[""] |= loading()
    print(f"{'figure':46} {'with numba':>10} {'without':>9}   goal (stretch)")
    for name, goal in GOALS.items():
        with_numba, without = (found.get(b, {}).get(name, np.nan) for b in ("", "flat"))
        print(f"{name:46} {with_numba:>10.2f} {without:>9.2f}   {goal}")


def measure(n: int, rounds: int, backend: str) -> dict[str, float]:
    """All figures of one backend, by name."""
    os.environ["FLASHBACK_BACKEND"] = backend
    table, detector = run(n), fb.FirstBadStepDetector()
    columns = {name: table.column(name).tolist() for name in table}
    rows = [{"step": i, **{k: v[i] for k, v in columns.items()}} for i in range(n)]
    values = table.values
    exact = [{k[6:]: v[i] for k, v in columns.items() if k.startswith("exact:")} for i in range(n)]

    def by_mapping() -> None:
        stream = detector.stream()
        for row in rows:
            stream.update(row)

    def by_recorder() -> None:
        stream = detector.stream()
        stream.begin((*table.names, *table.exact_names))
        for i in range(n):
            stream.push(i, values[i], exact[i])

    stream = detector.stream()
    for row in rows[:1000]:
        stream.update(row)
    size = sum(np.asarray(v).nbytes for v in stream.state().values())
    return {
        "online, row as a mapping, us a step": 1e6 * best(by_mapping, rounds) / n,
        "online, row as a recorder has it, us a step": 1e6 * best(by_recorder, rounds) / n,
        "offline, s per 100,000 steps": 1e5 * best(lambda: detector.predict(table), rounds) / n,
        "state of the stream, MB": size / 1e6,
    }


def loading() -> dict[str, float]:
    """What a stream's start costs a new process, numba's own start included."""
    plain = {name: value for name, value in os.environ.items() if name != "FLASHBACK_BACKEND"}

    def started(**more: str) -> float:
        command = [sys.executable, "-c", _LOAD]
        done = subprocess.run(command, env=plain | more, capture_output=True, text=True, check=True)
        return float(done.stdout)

    with tempfile.TemporaryDirectory() as folder:
        compiled = started(NUMBA_CACHE_DIR=folder)
        return {
            "kernels compiled, s": compiled,
            "kernels from disk, s": min(started(NUMBA_CACHE_DIR=folder) for _ in range(3)),
        }


def run(n: int) -> fb.MemoryTable:
    """A healthy run with every exact field known."""
    healthy = healthy_run(n)
    columns = {name: np.asarray(healthy.column(name)) for name in healthy}
    columns |= {f.column: np.full(n, f.absent, f.dtype) for f in EXACT_FIELDS}
    columns["exact:optimizer"] = np.zeros(n, np.int64)
    columns["exact:config_hash"] = np.full(n, 2**63 + 5, np.uint64)
    columns["exact:scheduler_step"] = np.arange(n)
    columns["exact:opt_steps"] = np.arange(n)
    columns["exact:lr_scheduled"] = columns["lr"].astype(np.float64)
    return fb.MemoryTable(np.arange(n), columns)


def best(act: Callable[[], object], rounds: int) -> float:
    """Smallest CPU time of some rounds, in seconds."""
    times = []
    for _ in range(rounds):
        start = time.process_time()
        act()
        times.append(time.process_time() - start)
    return min(times)


if __name__ == "__main__":
    main()
