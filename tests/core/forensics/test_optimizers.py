"""Lion, and Muon with AdamW beside it."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from flashback_core.forensics.optimizers import Lion, MuonWithAdamW, make_optimizer


def model() -> nn.Module:
    """Two layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))


def test_lion_moves_by_the_sign() -> None:
    """The first update is the rate times the sign of the gradient."""
    weight = nn.Parameter(torch.tensor([1.0, 1.0, 1.0]))
    optimizer = Lion([weight], lr=0.1)
    weight.grad = torch.tensor([5.0, -0.001, 0.0])
    optimizer.step()
    torch.testing.assert_close(weight.detach(), torch.tensor([0.9, 1.1, 1.0]))


def test_lion_decays_apart_from_the_gradient() -> None:
    """Weight decay shrinks the weight by rate times decay."""
    weight = nn.Parameter(torch.tensor([2.0]))
    optimizer = Lion([weight], lr=0.1, weight_decay=0.5)
    weight.grad = torch.zeros(1)
    optimizer.step()
    assert float(weight.detach()) == pytest.approx(2.0 * 0.95)


def test_muon_equals_its_two_parts() -> None:
    """Matrices move as under torch's Muon, the rest as under torch's AdamW."""
    ours, theirs = model(), model()
    both = MuonWithAdamW([ours[0].weight], [ours[0].bias], lr=0.02, weight_decay=0.1)
    muon = torch.optim.Muon([theirs[0].weight], lr=0.02, weight_decay=0.1)
    adamw = torch.optim.AdamW([theirs[0].bias], lr=0.003, betas=(0.9, 0.99), weight_decay=0.1)
    for step in range(3):
        torch.manual_seed(step)
        grads = torch.randn(8, 4), torch.randn(8)
        for net in (ours, theirs):
            net[0].weight.grad, net[0].bias.grad = (g.clone() for g in grads)
        both.step()
        muon.step()
        adamw.step()
    assert torch.equal(ours[0].weight, theirs[0].weight)
    assert torch.equal(ours[0].bias, theirs[0].bias)


def test_muon_goes_on_after_loading_its_state() -> None:
    """Saving and loading state changes no later update, nor does it cut off a scheduler."""
    nets = [nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)) for _ in range(2)]
    nets[1].load_state_dict(nets[0].state_dict())
    optimizers = [make_optimizer("muon", n, lr=0.02, weight_decay=0.1, beta2=0.99) for n in nets]
    for step in range(4):
        if step == 2:
            optimizers[1].load_state_dict(copy.deepcopy(optimizers[1].state_dict()))
        for net, optimizer in zip(nets, optimizers, strict=True):
            for group in optimizer.param_groups:
                group["lr"] = group["lr"] * 0.9
            optimizer.zero_grad()
            net(torch.ones(2, 4)).square().sum().backward()
            optimizer.step()
    pairs = zip(nets[0].parameters(), nets[1].parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_unknown_optimizer_is_refused() -> None:
    """The message lists those that are known."""
    with pytest.raises(ValueError, match="'adamax' is not one of adamw, sgdm"):
        make_optimizer("adamax", model(), lr=0.1, weight_decay=0.0, beta2=0.99)
