"""Every kind does what it says at exactly its step."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from flashback_core import faults
from flashback_core.faults import Fault, Kind, Place
from flashback_core.faults.registry import ALIASES

ONSET = 3
PLACEBOS = [k for k in faults.kinds() if k.startswith("placebo_")]
WITHOUT_TRACE = {*PLACEBOS, "buffer_flip"}  # no weight depends on what they change


@pytest.mark.parametrize("kind", faults.kinds())
def test_kind_acts_at_its_step_and_not_before(kind: str, broken: Callable[..., Any]) -> None:
    """Weights equal the healthy twin's bit for bit before the step, and differ after it.

    The same seed gives the same run, NaN included, and the fault says in one line what it did.
    """
    run, twin = broken(kind)
    is_same = [torch.equal(a, b) for a, b in zip(run.weights, twin.weights, strict=True)]
    assert is_same[:ONSET] == [True] * ONSET
    assert run.losses[:ONSET] == twin.losses[:ONSET]
    assert is_same[ONSET] is (kind in WITHOUT_TRACE)
    again, _ = broken(kind)
    assert torch.equal(run.weights[-1].nan_to_num(7.0), again.weights[-1].nan_to_num(7.0))
    assert run.fault.description == again.fault.description
    check_texts(run.fault)


def check_texts(fault: Fault) -> None:
    """Description and behaviour are one line each, with the place filled in."""
    assert f"from step {ONSET}" in fault.description
    for text in (fault.description, fault.expected_behaviour):
        assert not set(text) & set("{?\n")


@pytest.mark.parametrize("kind", PLACEBOS)
def test_placebo_changes_nothing(kind: str, broken: Callable[..., Any]) -> None:
    """A placebo leaves weights, gradients and losses as they are, bit for bit."""
    run, twin = broken(kind)
    assert run.losses == twin.losses
    for name in ("weights", "gradients"):
        pairs = zip(getattr(run, name), getattr(twin, name), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_kinds_cover_the_published_six() -> None:
    """The six kinds of the published data set are there under their names."""
    assert {
        "bit_flip",
        "data_poison_heavy",
        "data_poison_subtle",
        "lowprec_overflow",
        "lr_spike_loud",
        "lr_spike_subtle",
    } <= set(faults.kinds())


@pytest.mark.parametrize("alias", ALIASES)
def test_alias_leads_to_a_kind(alias: str) -> None:
    """Names used in failure reports find the kind that stands for them."""
    assert faults.make(alias, step=3).kind == ALIASES[alias]


def test_unknown_kind_names_close_ones() -> None:
    """A misspelt kind is answered with the right one."""
    with pytest.raises(ValueError, match=r"'bit_flipp'.*close to it: bit_flip"):
        faults.make("bit_flipp", step=3)


@pytest.mark.parametrize("step", [-1, 2.5, True])
def test_step_is_checked(step: Any) -> None:
    """A step is an integer from 0."""
    with pytest.raises(ValueError, match="a fault starts at a step"):
        faults.make("bit_flip", step=step)


@pytest.mark.parametrize("strength", [0.0, -1.0, math.nan, math.inf])
def test_strength_is_checked(strength: float) -> None:
    """A strength is a finite number above 0."""
    with pytest.raises(ValueError, match="strength is a finite number above 0"):
        faults.make("grad_x4", step=3, strength=strength)


def test_place_is_a_name_a_dict_or_a_place() -> None:
    """Three ways to say where; unknown fields are refused."""
    expected = Place(tensor="head.weight")
    for place in ("head.weight", {"tensor": "head.weight"}, expected):
        assert faults.make("bit_flip", step=3, place=place).place == expected
    with pytest.raises(ValueError, match="a place has tensor, element and bit, not 'row'"):
        faults.make("bit_flip", step=3, place={"row": 1})


def test_registered_kind_can_be_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind of one's own is a class and an entry."""
    monkeypatch.setattr("flashback_core.faults.registry._KINDS", {})

    class SignFlip(Fault):
        """Negate all gradients."""

        def _gradients(self, step: int) -> None:
            if self.is_active(step):
                for gradient in self.gradients():
                    gradient.neg_()

    kind = Kind(
        name="sign_flip",
        family="gradient_scale",
        act=SignFlip,
        lasts=1,
        doc="gradients negated",
        behaviour="one step uphill",
    )
    faults.register(kind)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    faults.make("sign_flip", step=0).attach(model, optimizer)
    before = model.weight.detach().clone()
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    torch.testing.assert_close(model.weight.detach(), before + 1.0)
    with pytest.raises(ValueError, match="already"):
        faults.register(kind)
