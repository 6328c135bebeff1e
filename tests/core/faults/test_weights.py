"""Weight faults: what is changed between two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from flashback_core import faults
from flashback_core.errors import ModelError


class Attention(nn.Module):
    """Projections with the names of Llama, an embedding and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.q_proj, self.k_proj = nn.Linear(4, 4), nn.Linear(4, 4)
        self.v_proj = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 7)


def at_onset(kind: str, **choices: Any) -> tuple[dict[str, Any], dict[str, Any], faults.Fault]:
    """Weights before and after the fault's first step."""
    torch.manual_seed(0)
    model = Attention()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fault = faults.make(kind, step=0, **choices).attach(model, optimizer)
    before = {n: p.detach().clone() for n, p in model.named_parameters()}
    fault.on_step_start(0)
    return before, {n: p.detach().clone() for n, p in model.named_parameters()}, fault


@pytest.mark.parametrize(
    ("kind", "bit"),
    [("w_flip_exp_lo", 25), ("w_flip_mant_hi", 22), ("w_flip_mant_lo", 8), ("w_flip_exp", 30)],
)
def test_one_weight_has_one_bit_flipped(kind: str, bit: int) -> None:
    """Only the chosen bit of the chosen weight differs."""
    before, after, fault = at_onset(kind)
    assert fault.place.bit == bit
    for name in before:
        xor = before[name].view(torch.int32) ^ after[name].view(torch.int32)
        expected = 1 << bit if name == fault.place.tensor else 0
        assert int(xor.sum()) == expected


def test_queries_and_keys_are_scaled() -> None:
    """Projections that stand apart are both scaled; values are not."""
    before, after, _ = at_onset("attn_scale", strength=2.0)
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == {"q_proj.weight", "k_proj.weight"}
    torch.testing.assert_close(after["q_proj.weight"], before["q_proj.weight"] * 2.0)


def test_joint_projection_keeps_its_values(broken: Callable[..., Any]) -> None:
    """Of a joint matrix the first two thirds of the rows are scaled."""
    run, _ = broken("attn_scale", n_steps=3)
    weight = dict(run.task.model.named_parameters())[run.fault.place.tensor]
    before = weight.detach().clone()
    run.fault.on_step_start(3)
    rows = 2 * len(weight) // 3
    torch.testing.assert_close(weight[:rows].detach(), before[:rows] * 2.0)
    assert torch.equal(weight[rows:].detach(), before[rows:])


def test_growth_hits_all_layers(broken: Callable[..., Any]) -> None:
    """`qk_growth` is in every layer, by a share per step."""
    run, _ = broken("qk_growth", n_steps=3)
    before = {n: p.detach().clone() for n, p in run.task.model.named_parameters()}
    run.fault.on_step_start(3)
    after = dict(run.task.model.named_parameters())
    changed = {n for n in before if not torch.equal(before[n], after[n])}
    assert changed == {f"transformer.h.{i}.attn.c_attn.weight" for i in range(2)}


def test_rebuilt_head_is_the_embedding() -> None:
    """The head's weights are the embedding's."""
    _, after, fault = at_onset("untied_head_on_resume")
    assert fault.place.tensor == "lm_head.weight"
    assert torch.equal(after["lm_head.weight"], after["embed.weight"])


def test_rounded_weights_are_bfloat16() -> None:
    """All weights have 16 zero bits at the end."""
    _, after, _ = at_onset("bf16_master")
    assert all(torch.equal(w, w.bfloat16().float()) for w in after.values())


def test_old_weights_come_back(broken: Callable[..., Any]) -> None:
    """The weights at the onset are those of `strength` steps before."""
    run, twin = broken("resume_old_weights", n_steps=3, strength=2.0)
    run.fault.on_step_start(3)
    now = torch.cat([p.detach().reshape(-1) for p in run.task.model.parameters()])
    assert torch.equal(now, twin.weights[0])


def test_rollback_repeats(broken: Callable[..., Any]) -> None:
    """Every `strength` steps the weights of the first roll-back come back."""
    run, twin = broken("weights_rolled_back", n_steps=5, strength=2.0)
    run.fault.on_step_start(5)
    now = torch.cat([p.detach().reshape(-1) for p in run.task.model.parameters()])
    assert torch.equal(now, twin.weights[0])


def test_average_is_exponential() -> None:
    """The weights become the average of those after each update."""
    layer = nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make("resume_from_ema", step=3, strength=0.5).attach(layer, optimizer)
    for step, value in enumerate([8.0, 4.0, 2.0]):
        layer.weight.data.fill_(value)
        fault.after_update(step)
    fault.on_step_start(3)
    assert float(layer.weight.detach()) == 4.0  # 8 -> (8 + 4)/2 = 6 -> (6 + 2)/2


def test_wrong_layer_scales_one_output() -> None:
    """The output of one layer is too large from the onset on, and right again once detached."""
    layer = nn.Linear(3, 2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.0)
    model = nn.Sequential(layer)
    fault = faults.make("compile_divergence", step=1, strength=0.5).attach(model, optimizer)
    x = torch.ones(1, 3)
    right = model(x)
    fault.on_step_start(1)
    torch.testing.assert_close(model(x), right * 1.5)
    fault.detach()
    torch.testing.assert_close(model(x), right)


def test_layer_that_is_not_there_is_refused() -> None:
    """A wrong layer name is answered with the names that are there."""
    model = nn.Sequential(nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    fault = faults.make("compile_divergence", step=1, place="fc")
    with pytest.raises(ModelError, match="no layer is called 'fc'; layers: 0"):
        fault.attach(model, optimizer)


def test_router_prefers_one_expert(broken: Callable[..., Any]) -> None:
    """The bias for one expert rises in every layer."""
    run, _ = broken("router_collapse", n_steps=3, strength=0.5)
    biases = [p for n, p in run.task.model.named_parameters() if n.endswith("router.bias")]
    before = [b.detach().clone() for b in biases]
    run.fault.on_step_start(3)
    for old, new in zip(before, biases, strict=True):
        step = (new - old).detach()
        assert int((step != 0).sum()) == 1
        assert float(step[run.fault.place.element]) == pytest.approx(0.5)


def test_buffer_flip_leaves_weights_alone(broken: Callable[..., Any]) -> None:
    """One running statistic is huge; no weight differs."""
    run, twin = broken("buffer_flip")
    pairs = zip(run.task.model.buffers(), twin.task.model.buffers(), strict=True)
    assert sum(int((a != b).sum()) for a, b in pairs) == 1
