"""Reading and replacing parts of a batch: a tensor, a tuple or list, or a dict."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flashback_core.errors import ModelError

__all__ = ["inputs", "labels", "map_rows", "replaced", "shuffled", "sprinkled", "uniform_like"]

INPUT_KEYS = ("x", "input_ids", "input", "inputs", "image", "images", "pixel_values", "data")
LABEL_KEYS = ("y", "label", "labels", "target", "targets")


def _key(batch: Any, names: tuple[str, ...], position: int) -> Any:
    if isinstance(batch, Mapping):
        found = [name for name in names if name in batch]
        return found[0] if found else None
    if isinstance(batch, list | tuple):
        return position if len(batch) > position else None
    return None


def inputs(batch: Any) -> Tensor:
    """The inputs: the tensor itself, the first of a tuple, or ``x``, ``input_ids``, … of a dict.

    Raises:
        ModelError: If there are none.
    """
    if isinstance(batch, Tensor):
        return batch
    key = _key(batch, INPUT_KEYS, 0)
    if key is None or not isinstance(batch[key], Tensor):
        msg = (
            f"a batch of type {type(batch).__name__} holds no inputs that a fault knows; give a "
            f"tensor, a tuple (inputs, labels) or a dict with one of {', '.join(INPUT_KEYS)}"
        )
        raise ModelError(msg)
    found: Tensor = batch[key]
    return found


def labels(batch: Any) -> Tensor | None:
    """The labels: the second of a tuple, or ``y``, ``labels``, … of a dict; None without."""
    key = _key(batch, LABEL_KEYS, 1)
    found = None if key is None else batch[key]
    return found if isinstance(found, Tensor) else None


def replaced(batch: Any, *, x: Tensor | None = None, y: Tensor | None = None) -> Any:
    """A shallow copy of `batch` with other inputs or labels."""
    if isinstance(batch, Tensor):
        return batch if x is None else x
    changes = {}
    if x is not None:
        changes[_key(batch, INPUT_KEYS, 0)] = x
    if y is not None:
        changes[_key(batch, LABEL_KEYS, 1)] = y
    if isinstance(batch, Mapping):
        return {**batch, **changes}
    return _like(batch, [changes.get(i, item) for i, item in enumerate(batch)])


def _like(batch: Any, items: list[Any]) -> Any:
    """A list, tuple or named tuple as `batch` is."""
    make = getattr(batch, "_make", type(batch))
    return make(items)


def map_rows(batch: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A copy of `batch` with `change` applied to every tensor that has a row per sample."""
    rows = len(inputs(batch))

    def changed(item: Any) -> Any:
        is_per_sample = isinstance(item, Tensor | np.ndarray) and len(item) == rows
        if not is_per_sample:
            return item
        return change(torch.as_tensor(item)) if isinstance(item, Tensor) else _array(item, change)

    if isinstance(batch, Tensor):
        return change(batch)
    if isinstance(batch, Mapping):
        return {key: changed(item) for key, item in batch.items()}
    return _like(batch, [changed(item) for item in batch])


def _array(item: Any, change: Callable[[Tensor], Tensor]) -> Any:
    return change(torch.from_numpy(item)).numpy()


def uniform_like(values: Tensor, rng: np.random.Generator, ceiling: int | None = None) -> Tensor:
    """Random values of the shape and dtype of `values`.

    Args:
        values: Integers give integers in [0, ceiling); floats give Gaussian numbers of the same
            mean and standard deviation.
        rng: Makes the values.
        ceiling: One above the largest integer; None is one above the largest in `values`.
    """
    shape = tuple(values.shape)
    if values.is_floating_point():
        spread = float(values.std()) if values.numel() > 1 else 1.0
        noise = rng.normal(float(values.mean()), max(spread, 1e-6), shape)
        return torch.from_numpy(np.asarray(noise)).to(values)
    top = int(values.max()) + 1 if ceiling is None else ceiling
    return torch.from_numpy(np.asarray(rng.integers(0, max(top, 2), shape))).to(values)


def shuffled(row: Tensor, rng: np.random.Generator) -> Tensor:
    """The entries of `row` in another order."""
    order = torch.from_numpy(rng.permutation(row.numel()))
    return row.reshape(-1)[order.to(row.device)].view(row.shape)


def sprinkled(
    values: Tensor, noise: Tensor, share: float, rng: np.random.Generator, *, at_least_one: bool
) -> Tensor:
    """`values` with a share of its entries replaced by those of `noise`.

    Args:
        values: Any shape.
        noise: The same shape and dtype.
        share: Chance of each entry, in [0, 1].
        rng: Makes the choice.
        at_least_one: Replace one entry where chance replaced none, by another value than it had.
    """
    hit = torch.from_numpy(np.asarray(rng.random(tuple(values.shape)) < share)).to(values.device)
    out = torch.where(hit, noise, values)
    if at_least_one and torch.equal(out, values):
        flat = out.reshape(-1)
        i = int(rng.integers(flat.numel()))
        flat[i] = flat[i] - 1 if flat[i] > 0 else flat[i] + 1
        out = flat.view(values.shape)
    return out
