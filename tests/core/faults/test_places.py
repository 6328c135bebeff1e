"""Bits, elements and tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from flashback_core.errors import ModelError
from flashback_core.faults.places import clear_bits, flip_bit, matching, pick_matrix, siblings

NAMES = {
    "wte.weight": torch.zeros(256, 32),
    "h.0.c_attn.weight": torch.zeros(96, 32),
    "h.0.c_attn.bias": torch.zeros(96),
    "head.weight": torch.zeros(64, 32),
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_flip_bit_changes_one_bit_of_one_element(dtype: torch.dtype) -> None:
    """Every bit can be flipped, the sign too, and flipping again restores it."""
    tensor = torch.tensor([[1.5, -2.0], [0.25, 3.0]], dtype=dtype)
    for bit in range(8 * tensor.element_size()):
        changed = tensor.clone()
        flip_bit(changed, 2, bit)
        differs = (changed != tensor) | changed.isnan()
        assert differs.nonzero().tolist() == [[1, 0]]
        flip_bit(changed, 2, bit)
        assert torch.equal(changed, tensor)


def test_highest_bit_is_the_sign() -> None:
    """Bit 31 of a float32 is its sign; bit 30 makes a small number huge."""
    tensor = torch.tensor([1.5, 0.01])
    flip_bit(tensor, 0, 31)
    flip_bit(tensor, 1, 30)
    assert tensor[0] == -1.5
    assert tensor[1] > 1e35


def test_flip_works_on_parameters_that_are_not_contiguous() -> None:
    """A transposed view is flipped in place."""
    base = torch.ones(3, 2)
    flip_bit(base.T, 1, 31)
    assert base.tolist() == [[1, 1], [-1, 1], [1, 1]]


def test_clear_bits_makes_a_number_smaller() -> None:
    """Clearing exponent bits that are set divides by powers of two."""
    tensor = torch.tensor([1e-5, 1e-5])
    clear_bits(tensor, 0, (26, 27, 28))
    assert 0 <= tensor[0] < 1e-15
    assert tensor[1] == torch.tensor(1e-5)


@pytest.mark.parametrize(("element", "bit"), [(4, 0), (-1, 0), (0, 32), (0, -1)])
def test_place_outside_is_refused(element: int, bit: int) -> None:
    """There is no element or bit beyond the tensor."""
    with pytest.raises(ModelError, match=r"is not in a tensor of 4 elements of 32 bits"):
        flip_bit(torch.zeros(4), element, bit)


def test_matrix_is_no_embedding_where_there_is_another() -> None:
    """Most rows of an embedding's gradient are zero, so it is left out."""
    rng = np.random.default_rng(0)
    assert {pick_matrix(NAMES, rng) for _ in range(40)} == {"h.0.c_attn.weight", "head.weight"}


def test_pattern_chooses_among_matching_names() -> None:
    """A pattern may match several; a name that is not there is answered with a close one."""
    assert matching(NAMES, "h.*.bias") == ["h.0.c_attn.bias"]
    with pytest.raises(ModelError, match=r"close to it: head\.weight"):
        matching(NAMES, "haed.weight")


def test_siblings_share_a_module() -> None:
    """Weight and bias of one layer."""
    expected = ["h.0.c_attn.weight", "h.0.c_attn.bias"]
    assert siblings(NAMES, "h.0.c_attn.weight") == expected
