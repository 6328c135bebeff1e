"""Where a fault acts: a tensor, an element, a bit."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Iterable, Mapping

import numpy as np
import torch
from torch import Tensor

from flashback_core.errors import ModelError

__all__ = ["clear_bits", "flip_bit", "is_embedding", "matching", "pick_matrix", "siblings"]

_INTEGERS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.bfloat16: torch.int16,
    torch.float16: torch.int16,
}
_EMBEDDINGS = ("embed", "wte", "wpe", "pos")


def flip_bit(tensor: Tensor, element: int, bit: int) -> None:
    """Flip one bit of one element, in place.

    Args:
        tensor: A floating-point tensor, any shape and device.
        element: Position in the flattened tensor.
        bit: 0 is the lowest bit of the mantissa.

    Raises:
        ModelError: If there is no such element or bit.
    """
    _bits(tensor, element, bit).bitwise_xor_(_mask(tensor, bit))


def clear_bits(tensor: Tensor, element: int, bits: Iterable[int]) -> None:
    """Set some bits of one element to 0, in place; arguments as in `flip_bit`."""
    for bit in bits:
        _bits(tensor, element, bit).bitwise_and_(~_mask(tensor, bit))


def _mask(tensor: Tensor, bit: int) -> int:
    mask = 1 << bit
    return mask - (1 << _width(tensor)) if bit == _width(tensor) - 1 else mask


def _width(tensor: Tensor) -> int:
    return 8 * tensor.element_size()


def _bits(tensor: Tensor, element: int, bit: int) -> Tensor:
    if tensor.dtype not in _INTEGERS:
        msg = f"bits are flipped in float64, float32, bfloat16 and float16, not in {tensor.dtype}"
        raise ModelError(msg)
    if not (0 <= element < tensor.numel() and 0 <= bit < _width(tensor)):
        msg = (
            f"element {element}, bit {bit} is not in a tensor of {tensor.numel()} elements of "
            f"{_width(tensor)} bits; count both from 0"
        )
        raise ModelError(msg)
    spot = tensor.detach()[np.unravel_index(element, tensor.shape)]
    return spot.view(1).view(_INTEGERS[tensor.dtype])


def is_embedding(name: str) -> bool:
    """Whether a parameter's name is one of a token or position embedding."""
    return any(part in name for part in _EMBEDDINGS)


def matching(names: Iterable[str], pattern: str) -> list[str]:
    """Names that equal or match `pattern`.

    Raises:
        ModelError: If there are none; the message names close ones.
    """
    known = list(names)
    found = [name for name in known if fnmatch.fnmatchcase(name, pattern)]
    if found:
        return found
    close = difflib.get_close_matches(pattern, known, n=3)
    hint = f"; close to it: {', '.join(close)}" if close else ""
    msg = f"no trained parameter is called {pattern!r} among {len(known)}{hint}"
    raise ModelError(msg)


def pick_matrix(
    parameters: Mapping[str, Tensor], rng: np.random.Generator, pattern: str | None = None
) -> str:
    """Name of one weight matrix, by chance; embeddings only where there is nothing else.

    Args:
        parameters: Trained parameters by name.
        rng: Makes the choice.
        pattern: A name or pattern that it has to match.

    Raises:
        ModelError: If no parameter matches.
    """
    if pattern is not None:
        names = matching(parameters, pattern)
        return names[int(rng.integers(len(names)))]
    matrices = [n for n, p in parameters.items() if p.dim() > 1]
    body = [n for n in matrices if not is_embedding(n)]
    names = body or matrices or list(parameters)
    if not names:
        msg = "the model has no trained parameter; a fault needs one to act on"
        raise ModelError(msg)
    # tiny matrices are rare in real models, so they are left out where larger ones exist
    half = sorted(parameters[n].numel() for n in names)[len(names) // 2]
    names = [n for n in names if parameters[n].numel() >= min(half, 1000)]
    return names[int(rng.integers(len(names)))]


def siblings(parameters: Mapping[str, Tensor], name: str) -> list[str]:
    """Parameters of the module that holds `name`, for example its weight and its bias."""
    module = name.rpartition(".")[0]
    return [n for n in parameters if n.rpartition(".")[0] == module]
