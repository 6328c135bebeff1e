"""Sums of shards: packed, added up and unpacked they are `merge_sums`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

from flashback_core.sketch.backend import Watched
from flashback_core.sketch.choose import choose_backend
from flashback_core.sketch.sharded import ShardedBackend, is_sharded, local_part, pack, unpack
from flashback_core.sketch.sums import StepSums, empty_sums, merge_sums

FIELDS = ("moments", "peaks", "counts", "bins", "tensor_sumsq", "still", "changed")

ROOT = Path(__file__).parents[3]


def some_sums(seed: int) -> StepSums:
    """Sums of three groups and five tensors, the last one without a gradient anywhere."""
    made = np.random.default_rng(seed)
    sums = empty_sums(3, 5)
    sums.moments[:], sums.peaks[:] = made.normal(size=(3, 4)), made.random((3, 2))
    for counts in (sums.counts, sums.bins, sums.still, sums.changed):
        counts[:] = made.integers(0, 2**50, counts.shape)
    sums.tensor_sumsq[:4] = made.random(4)
    sums.tensor_sumsq[seed % 4] = np.nan
    return sums


def test_packed_sums_merge_as_sums_do() -> None:
    """Adding up and taking maxima of packed sums is `merge_sums`, counts to the last one."""
    parts = [some_sums(seed) for seed in range(3)]
    packed = [pack(p) for p in parts]
    added, peaks = sum(a for a, _ in packed), np.max([p for _, p in packed], axis=0)
    merged, wanted = unpack(added, peaks, 3, 5), merge_sums(parts)
    for name in FIELDS:
        np.testing.assert_allclose(getattr(merged, name), getattr(wanted, name), rtol=1e-14)
        assert getattr(merged, name).dtype == getattr(wanted, name).dtype


def test_plain_tensors_are_not_sharded() -> None:
    """A plain tensor is its own local part."""
    tensor = torch.ones(3)
    assert not is_sharded(tensor)
    assert local_part(tensor) is tensor


@pytest.fixture
def one_process() -> object:
    """A process group of one."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def watched(*tensors: torch.Tensor) -> Watched:
    """All of one group."""
    return Watched.of(tensors, [0] * len(tensors), 1)


@pytest.mark.usefixtures("one_process")
def test_the_backend_of_dtensors() -> None:
    """DTensors get the sharded backend, whose sums are those of plain tensors; so do newcomers."""
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    mesh = DeviceMesh("cpu", [0])
    torch.manual_seed(0)
    plain = [torch.randn(4, 3, requires_grad=True) for _ in range(2)]
    spread = [
        torch.nn.Parameter(distribute_tensor(p.detach().clone(), mesh, [Shard(0)])) for p in plain
    ]
    ours, theirs = choose_backend(watched(spread[0])), choose_backend(watched(plain[0]))
    assert isinstance(ours, ShardedBackend)
    assert ours.name == f"sharded {theirs.name}"
    for step in range(3):
        if step == 2:  # the second tensor joins
            ours.replace(watched(*spread), [0, None])
            theirs.replace(watched(*plain), [0, None])
        for p, s in zip(plain, spread, strict=True):
            p.grad = torch.randn(4, 3)
            s.grad = distribute_tensor(p.grad, mesh, [Shard(0)])
        for backend, tensors in ((ours, spread), (theirs, plain)):
            backend.gradients(1.0)
            with torch.no_grad():
                for t in tensors:
                    t.add_(t.grad, alpha=-0.1)
        merged, wanted = ours.updates().result(), theirs.updates().result()
        for name in FIELDS:
            np.testing.assert_allclose(getattr(merged, name), getattr(wanted, name), rtol=1e-6)


@pytest.mark.usefixtures("one_process")
def test_what_fails_ends_on_all_ranks() -> None:
    """A failure is kept until the ranks meet; from then on nobody waits for anybody."""
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    tensor = torch.nn.Parameter(
        distribute_tensor(torch.ones(4), DeviceMesh("cpu", [0]), [Shard(0)])
    )
    backend = choose_backend(watched(tensor))
    assert isinstance(backend, ShardedBackend)
    backend._inner.gradients = None  # type: ignore[method-assign,assignment]  # to break it
    backend.gradients(1.0)
    for _ in range(2):
        with pytest.raises(RuntimeError, match="failed on this rank or another one"):
            backend.updates()
    backend.leave()


@pytest.mark.usefixtures("one_process")
def test_state_is_refused() -> None:
    """Updates from the optimizer's state are not for sharded models."""
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    from flashback_core.sketch.adam_state import AdamState

    tensor = torch.nn.Parameter(
        distribute_tensor(torch.ones(4), DeviceMesh("cpu", [0]), [Shard(0)])
    )
    state = AdamState(torch.optim.AdamW([tensor]))
    with pytest.raises(ValueError, match="use update_from='snapshot'"):
        choose_backend(watched(tensor), 1, state)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hsdp", "tensor"])
def test_meshes_of_two_dimensions(tmp_path: Path, kind: str) -> None:
    """Four processes: copies of shards count once, shards of split tensors all count."""
    script = ROOT / "tests" / "core" / "sketch" / "_sharded_mesh.py"
    env = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path), kind],
        env=env, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(list(tmp_path.glob("equal-*"))) == 4
