"""Continuity: what of a model changed on a rank while nobody should have touched it."""

from __future__ import annotations

import torch
from torch import nn

from flashback_plugins._lightning_continuity import Continuity
from flashback_plugins._lightning_news import STATE, WEIGHTS, Change


def make(*, with_state: bool = True) -> tuple[nn.Linear, torch.optim.Optimizer, Continuity]:
    """A layer, its optimizer and their watch."""
    torch.manual_seed(1)
    net = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(net.parameters())
    names = {id(p): n for n, p in net.named_parameters()}
    return net, optimizer, Continuity([optimizer], lambda p: names[id(p)], with_state=with_state)


def train(net: nn.Linear, optimizer: torch.optim.Optimizer, watch: Continuity, n: int) -> None:
    """Make `n` steps."""
    for step in range(n):
        net(torch.ones(1, 3)).sum().backward()
        watch.look(0, step)
        optimizer.step()
        watch.keep(0)


def test_an_untouched_model() -> None:
    """Nothing is said of what the optimizer itself does."""
    net, optimizer, watch = make()
    train(net, optimizer, watch, 8)
    assert watch.changes == []


def test_one_bit_of_each() -> None:
    """One bit of a weight and one of the optimizer state are named, once."""
    net, optimizer, watch = make()
    train(net, optimizer, watch, 8)
    for tensor in (net.weight.data, optimizer.state[net.weight]["exp_avg"]):
        tensor.view(-1)[:1].view(torch.int32).bitwise_xor_(1)
    watch.look(0, 8)
    watch.look(0, 8)
    assert watch.changes == [
        Change(step=8, what=WEIGHTS, tensors=("weight",)),
        Change(step=8, what=STATE, tensors=("exp_avg of weight",)),
    ]
    watch.clear()
    assert watch.changes == []


def test_weights_alone() -> None:
    """The state is watched where it is asked for."""
    net, optimizer, watch = make(with_state=False)
    train(net, optimizer, watch, 8)
    optimizer.state[net.weight]["exp_avg"].add_(1)
    watch.look(0, 8)
    assert watch.changes == []


def test_digest_and_what_lies_here() -> None:
    """Equal weights have equal digests; one with nothing to watch says so."""
    _, _, watch = make()
    other = make()[0]
    assert watch.weights() == make()[2].weights()
    assert watch.is_watching
    single = torch.optim.SGD([nn.Parameter(torch.ones(1))])
    assert not Continuity([single], lambda _: "w", with_state=False).is_watching
    assert other.weight.numel() == 6
