"""Gradient faults: bits, range, scale, noise."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from flashback_core import faults

ONSET = 3


@pytest.mark.parametrize(("kind", "bits"), [("bit_flip", {30}), ("grad_flip_mant", {20})])
def test_flip_changes_one_bit_of_one_entry(
    kind: str, bits: set[int], broken: Callable[..., Any]
) -> None:
    """Before clipping one gradient entry differs, by one bit, at one step."""
    seen = {}

    def look(task: Any, step: int) -> None:
        seen[step] = {n: p.grad.clone() for n, p in task.model.named_parameters()}

    clean, damaged = _gradients(broken, None, look, seen), _gradients(broken, kind, look, seen)
    differing = [
        (name, np.flatnonzero(words(damaged[ONSET][name]) != words(clean[ONSET][name])))
        for name in clean[ONSET]
    ]
    hits = [(name, rows) for name, rows in differing if rows.size]
    assert len(hits) == 1
    name, (row,) = hits[0]
    xor = int(words(damaged[ONSET][name])[row] ^ words(clean[ONSET][name])[row])
    assert xor.bit_count() == 1
    assert xor.bit_length() - 1 in bits
    assert all(torch.equal(clean[ONSET - 1][n], damaged[ONSET - 1][n]) for n in clean[ONSET - 1])


def words(tensor: torch.Tensor) -> Any:
    """The bits of a float32 tensor."""
    return tensor.contiguous().view(torch.int32).reshape(-1).numpy()


def _gradients(broken: Any, kind: str | None, look: Any, seen: dict[int, Any]) -> dict[int, Any]:
    from flashback_core.forensics.config import TaskConfig
    from flashback_core.forensics.tasks import build

    task = build(TaskConfig(size="micro", warmup=4, batch=4))
    if kind is not None:
        task.attach(faults.make(kind, step=ONSET, seed=1))
    steps = iter(range(ONSET + 1))
    task.watch = lambda: look(task, next(steps))
    for step in range(ONSET + 1):
        task.step(step)
    return dict(seen)


def test_place_can_be_given(broken: Callable[..., Any]) -> None:
    """Tensor, element and bit are taken from the place."""
    place = {"tensor": "lm_head.weight", "element": 5, "bit": 22}
    run, _ = broken("bit_flip", place=place)
    assert run.fault.place == faults.Place(**place)
    assert run.fault.description == (
        "bit 22 of gradient element 5 of lm_head.weight flipped; from step 3, once"
    )


def test_element_outside_is_refused(broken: Callable[..., Any]) -> None:
    """An element that the tensor has not is told at once."""
    with pytest.raises(ValueError, match=r"element 99999999 is not in 'lm_head\.weight'"):
        broken("bit_flip", place={"tensor": "lm_head.weight", "element": 99999999})


def on_gradient(kind: str, gradient: list[float], **choices: Any) -> torch.Tensor:
    """What a fault makes of a gradient."""
    layer = torch.nn.Linear(len(gradient), 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make(kind, step=0, **choices).attach(layer, optimizer)
    layer.weight.grad = torch.tensor([gradient])
    fault.on_gradients(0)
    return layer.weight.grad[0]


def test_lowprec_overflow_saturates() -> None:
    """Entries above 1/8 of the largest are cut to it; entries far below become 0."""
    out = on_gradient("lowprec_overflow", [8.0, -4.0, 0.5, 1e-7], strength=8.0)
    torch.testing.assert_close(out, torch.tensor([1.0, -1.0, 0.5, 0.0]))


def test_fp8_overflow_becomes_infinite_with_its_sign() -> None:
    """Entries out of range are infinite, the others untouched."""
    out = on_gradient("fp8_overflow_inf", [8.0, -4.0, 0.5], strength=4.0)
    assert out.tolist() == [math.inf, -math.inf, 0.5]


def test_fp16_overflow_hits_the_largest() -> None:
    """Only what float16 cannot hold at that scale is infinite."""
    out = on_gradient("fp16_overflow", [8.0, 1.0], strength=4.0)
    assert out[0] == math.inf
    torch.testing.assert_close(out[1], torch.tensor(1.0), rtol=1e-3, atol=0)


def test_nan_is_one_entry() -> None:
    """One entry is NaN, the others are as they were."""
    out = on_gradient("nan_one", [1.0, 2.0, 3.0])
    assert int(out.isnan().sum()) == 1


def test_noise_has_the_asked_strength() -> None:
    """The noise's deviation is `strength` times that of the gradient."""
    clean = np.random.default_rng(0).normal(0, 2.0, 20_000).tolist()
    noise = on_gradient("grad_noise", clean, strength=0.5) - torch.tensor(clean)
    assert float(noise.std()) == pytest.approx(1.0, rel=0.05)


def test_zero_group_hits_all_layers_of_a_role(broken: Callable[..., Any]) -> None:
    """`zero_grad_group` zeroes one role in every layer, `grad_zero_layer` one module."""
    place = {"tensor": "transformer.h.0.mlp.c_fc.weight"}
    for kind, n_expected in (("zero_grad_group", 4), ("grad_zero_layer", 2)):
        run, _ = broken(kind, place=place)
        model = run.task.model
        zero = [n for n, p in model.named_parameters() if not bool(p.grad.any())]
        assert len(zero) == n_expected
        assert all("c_fc" in name for name in zero)


def test_missing_zero_grad_adds_up() -> None:
    """From the fault on a gradient holds those before it."""
    layer = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make("zero_grad_missing", step=2).attach(layer, optimizer)
    seen = []
    for step in range(5):
        layer.weight.grad = torch.tensor([[10.0**step]])
        fault.on_gradients(step)
        seen.append(float(layer.weight.grad))
    assert seen == [1.0, 10.0, 110.0, 1110.0, 11110.0]


def test_dropped_clipping_gives_the_optimizer_the_raw_gradient() -> None:
    """Clipping between the two phases has no effect."""
    layer = torch.nn.Linear(2, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make("clip_dropped", step=0).attach(layer, optimizer)
    layer.weight.grad = torch.tensor([[30.0, 40.0]])
    fault.on_gradients(0)
    torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
    fault.before_update(0)
    assert layer.weight.grad.tolist() == [[30.0, 40.0]]


def test_overflow_loop_skips_every_update(broken: Callable[..., Any]) -> None:
    """With a loss scaler no weight moves any more and the scale halves at each step."""
    run, _ = broken("overflow_skip_loop")
    assert torch.equal(run.weights[ONSET - 1], run.weights[-1])
    assert run.task.scaler.get_scale() == 2.0**12 / 2**2
    assert len(run.rates) == ONSET  # the optimizer is not called when the scaler skips


def test_stale_block_repeats_part_of_a_gradient() -> None:
    """A quarter of the gradient is that of the step before."""
    layer = torch.nn.Linear(8, 1, bias=False)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    fault = faults.make("comm_corrupt", step=1, strength=0.25).attach(layer, optimizer)
    for step in range(3):
        layer.weight.grad = torch.full((1, 8), float(step))
        fault.on_gradients(step)
        counts = [int((layer.weight.grad == v).sum()) for v in (step - 1.0, float(step))]
        assert counts == ([0, 8] if step == 0 else [2, 6])
