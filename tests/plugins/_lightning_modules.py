"""Small modules that work out their own reference, apart from any hook that flashback uses."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

N_SAMPLES, N_INPUTS = 28, 6


class Points(Dataset[dict[str, Any]]):
    """Points of a noisy plane, with their ids."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(5)
        self.x = torch.randn(N_SAMPLES, N_INPUTS, generator=made)
        self.y = self.x.sum(1, keepdim=True) + torch.randn(N_SAMPLES, 1, generator=made)

    def __len__(self) -> int:
        return N_SAMPLES

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": self.x[i], "y": self.y[i], "ids": i}


def loader() -> DataLoader[dict[str, Any]]:
    """Seven batches of four, always in the same order."""
    return DataLoader(Points(), batch_size=4)


def norm(tensors: list[torch.Tensor]) -> float:
    """2-norm of all entries, in float64."""
    return float(sum((t.detach().double() ** 2).sum() for t in tensors)) ** 0.5


def make_net(base: type, **settings: Any) -> Any:
    """A module of either namespace; `base` is its LightningModule."""

    class Net(base):  # type: ignore[misc,valid-type]  # chosen at run time
        """A regression whose gradients are worked out a second time with `torch.autograd.grad`.

        Attributes:
            losses: Loss of every batch, as float.
            gradients: Reference gradient norm of every optimizer step, nan without a gradient.
            updates: Reference update norm of every optimizer step.
        """

        def __init__(self, *, optimizer: str = "adamw", skips: bool = False) -> None:
            super().__init__()
            torch.manual_seed(11)
            self.body = nn.Sequential(
                nn.Linear(N_INPUTS, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 1)
            )
            self.optimizer, self.skips = optimizer, skips
            self.losses: list[float] = []
            self.gradients: list[float] = []
            self.updates: list[float] = []
            self._sum: list[torch.Tensor] | None = None
            self._batch = -1
            self.blow_up_at: int | None = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.body(x)
            return out

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> torch.Tensor | None:
            if self.skips and batch_idx % 3 == 1:
                return None
            loss = nn.functional.mse_loss(self(batch["x"]).float(), batch["y"])
            if self.blow_up_at == len(self.losses):
                loss = loss * float("inf")
            if batch_idx != self._batch:  # LBFGS comes here several times
                self._batch = batch_idx
                self._add_reference(loss)
                self.losses.append(float(loss.detach()))
            return loss

        def _add_reference(self, loss: torch.Tensor) -> None:
            found = torch.autograd.grad(loss, list(self.parameters()), retain_graph=True)
            found = [g.double() / self.trainer.accumulate_grad_batches for g in found]
            old = self._sum
            self._sum = found if old is None else [a + b for a, b in zip(old, found, strict=True)]

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            self._steps = self.trainer.global_step
            self._weights = [p.detach().clone() for p in self.parameters()]

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            self._batch = -1
            if self.trainer.global_step > self._steps:
                self.gradients.append(float("nan") if self._sum is None else norm(self._sum))
                new = zip(self.parameters(), self._weights, strict=True)
                self.updates.append(norm([p.detach() - w for p, w in new]))
                self._sum = None

        def configure_optimizers(self) -> Any:
            if self.optimizer == "lbfgs":
                return torch.optim.LBFGS(self.parameters(), lr=0.1, max_iter=3)
            if self.optimizer == "sgd":
                return torch.optim.SGD(self.parameters(), lr=0.01)
            is_fused = self.optimizer == "fused"
            return torch.optim.AdamW(self.parameters(), lr=0.01, fused=is_fused)

    return Net(**settings)


def make_gan(base: type, *, use_pl_optimizer: bool = True) -> Any:
    """Two networks that are trained by hand, each by its own optimizer."""

    class Gan(base):  # type: ignore[misc,valid-type]  # chosen at run time
        """Each step's gradient is noted just before the step, of that optimizer's tensors alone."""

        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(12)
            self.automatic_optimization = False
            self.generator = nn.Linear(N_INPUTS, N_INPUTS)
            self.critic = nn.Linear(N_INPUTS, 1)
            self.losses: list[float] = []
            self.gradients: list[float] = []

        def training_step(self, batch: dict[str, Any], batch_idx: int) -> None:
            for_generator, for_critic = self.optimizers(use_pl_optimizer=use_pl_optimizer)
            made = self.generator(batch["x"])
            self._step(for_generator, -self.critic(made).mean(), self.generator)
            real, false = self.critic(batch["x"]).mean(), self.critic(made.detach()).mean()
            self._step(for_critic, false - real + self.critic.weight.pow(2).sum(), self.critic)

        def _step(self, optimizer: Any, loss: torch.Tensor, net: nn.Module) -> None:
            found = torch.autograd.grad(loss, list(net.parameters()), retain_graph=True)
            self.losses.append(float(loss.detach()))
            self.gradients.append(norm([g.double() for g in found]))
            optimizer.zero_grad()
            self.manual_backward(loss)
            optimizer.step()

        def configure_optimizers(self) -> Any:
            return (
                torch.optim.AdamW(self.generator.parameters(), lr=0.01),
                torch.optim.SGD(self.critic.parameters(), lr=0.02),
            )

    return Gan()
