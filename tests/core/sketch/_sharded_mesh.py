"""Four processes on a mesh of two by two, started by the tests: a folder, and hsdp or tensor.

Each of them trains a sharded model and the same model whole, and compares the sums of both.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

warnings.filterwarnings("ignore")

import numpy as np  # noqa: E402  # quiet first
import torch  # noqa: E402
from torch import distributed, nn  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.fsdp import fully_shard  # noqa: E402
from torch.distributed.tensor.parallel import (  # noqa: E402
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

from flashback_core.sketch.sketcher import Sketcher  # noqa: E402

FIELDS = ("moments", "peaks", "counts", "bins", "tensor_sumsq", "still", "changed")


def make() -> nn.Module:
    """A small perceptron, always the same."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 10), nn.ReLU(), nn.Linear(10, 1))


def shard(net: nn.Module, kind: str) -> None:
    """Copies of shards (hsdp), or shards of tensors that are split too (tensor)."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    if kind == "hsdp":
        fully_shard(net, mesh=mesh)
        return
    parallelize_module(net, mesh["inner"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    fully_shard(net, mesh=mesh["outer"])


def work(rank: int, folder: str, kind: str) -> None:
    """Train three steps; write a file when all sums were equal."""
    torch.set_num_threads(1)
    where = f"file://{folder}/meet"
    distributed.init_process_group("gloo", init_method=where, rank=rank, world_size=4)
    nets = [make(), make()]
    shard(nets[0], kind)
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01, foreach=False) for net in nets]
    sketchers = [Sketcher(o, lambda _: 0, 1) for o in optimizers]
    for step in range(3):
        x = torch.randn(8, 6, generator=torch.Generator().manual_seed(step))
        found = []
        for net, optimizer, sketcher in zip(nets, optimizers, sketchers, strict=True):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            sketcher.gradients()
            optimizer.step()
            found.append(sketcher.updates().result())
        for name in FIELDS:
            np.testing.assert_allclose(*(getattr(f, name) for f in found), rtol=1e-4, err_msg=name)
    distributed.barrier()
    (Path(folder) / f"equal-{rank}").touch()
    distributed.destroy_process_group()


if __name__ == "__main__":
    torch.multiprocessing.spawn(work, tuple(sys.argv[1:3]), nprocs=4)
