"""Shapes of the models, and what is peculiar to some."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flashback_core.forensics import models
from flashback_core.forensics.lora import LoraLinear, add_lora

TEXT, IMAGES = torch.zeros(2, 12, dtype=torch.int64), torch.zeros(2, 8, 8)
GPT = {"width": 16, "depth": 2, "heads": 2, "context": 12, "dropout": 0.0}


@pytest.mark.parametrize(
    ("model", "inputs", "shape"),
    [
        (models.GPT(**GPT), (TEXT,), (2, 12, 256)),
        (models.GPT(**GPT, experts=3), (TEXT,), (2, 12, 256)),
        (models.CharLSTM(width=8, dropout=0.0), (TEXT,), (2, 12, 256)),
        (models.MLP(width=8, depth=2, dropout=0.0), (IMAGES,), (2, 10)),
        (models.ConvNet(width=4, dropout=0.0), (IMAGES,), (2, 10)),
        (models.VisionTransformer(width=8, depth=1, heads=2, dropout=0.0), (IMAGES,), (2, 10)),
        (models.Denoiser(width=8, depth=1, dropout=0.0), (IMAGES, torch.rand(2)), (2, 8, 8)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_output_has_its_shape(model: Any, inputs: Any, shape: tuple[int, ...]) -> None:
    """Logits per byte, logits per class, or noise per pixel."""
    assert model(*inputs).shape == shape


def test_transformer_looks_back_only() -> None:
    """A later byte changes no earlier logit."""
    torch.manual_seed(0)
    model = models.GPT(**GPT)
    other = TEXT.clone()
    other[:, 7:] = 9
    a, b = model(TEXT), model(other)
    assert torch.equal(a[:, :7], b[:, :7])
    assert not torch.equal(a[:, 7:], b[:, 7:])


def test_expert_without_tokens_has_a_gradient_of_zero() -> None:
    """A healthy mixture of experts has groups whose gradient is exactly 0."""
    layer = models.MixtureOfExperts(8, experts=3, dropout=0.0)
    with torch.no_grad():
        layer.router.bias.copy_(torch.tensor([9.0, 0.0, 0.0]))
    layer(torch.randn(2, 4, 8)).sum().backward()
    used, *unused = ([p.grad for p in e.parameters()] for e in layer.experts)
    assert any(bool(g.any()) for g in used)
    assert not any(bool(g.any()) for grads in unused for g in grads)
    assert float(layer.balance.detach()) > 1.5  # 1 is balanced, 3 is collapsed


def test_adapters_start_as_the_layer_itself() -> None:
    """With its output matrix at 0 an adapter changes nothing, and the base is frozen."""
    torch.manual_seed(0)
    model = models.GPT(**GPT)
    before = model(TEXT)
    add_lora(model, rank=2, dropout=0.0)
    assert torch.equal(model(TEXT), before)
    adapters = [m for m in model.modules() if isinstance(m, LoraLinear)]
    assert len(adapters) == 8
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert {n.rpartition("lora_")[2] for n in trained} == {"A.weight", "B.weight"}
