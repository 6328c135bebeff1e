"""SampleContents: is a sample that comes again what it was when it came before?"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

__all__ = ["SampleContents", "inputs_and_labels"]

INPUT_KEYS = ("input_ids", "inputs", "input", "pixel_values", "images", "image", "x", "data")
LABEL_KEYS = ("labels", "label", "targets", "target", "y")

FIRST_SLOTS, MOST_SLOTS = 1 << 10, 1 << 18
MOST_ROWS, MOST_BYTES = 256, 4 << 20
"""Samples and bytes of inputs of a batch that are looked at; of a larger one only the first."""
KNOWN, HABIT = 64, 0.02
"""What `detectors.rules.unusual` goes by: samples that came again before one that changed can say
anything, and the share of changed ones from which that is the run's habit."""
NAMED, MOST_NOTES = 8, 64
"""Samples that a note names, and notes of a run."""
_SPREAD = np.uint64(0x9E3779B97F4A7C15)

Hashes = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


class SampleContents:
    """Remembers digests of the inputs and labels of samples, in bounded memory (6 MB at most).

    A sample is known by its id, and where the loop gives none by its inputs; only inputs of one
    shape and type are compared. A table holds one sample a slot: one that comes later takes the
    place of another, which then counts as never seen. So a change may be overlooked, but none is
    made up.

    Attributes:
        notes: Events of the last batch that say which samples changed; none where they do so by
            habit.
    """

    def __init__(self) -> None:
        self._table = np.zeros((3, FIRST_SLOTS), np.uint64)
        self._n_filled = self._n_notes = 0
        self._n_known, self._n_changed = 0, {"inputs": 0, "labels": 0}
        self.notes: list[dict[str, Any]] = []

    def fields(self, ids: Ints | None, batch: Any) -> dict[str, float]:
        """Exact fields of a batch; none where its samples cannot be told apart.

        Args:
            ids: Sample ids, int64 of shape (samples,), or None.
            batch: A pair of inputs and labels, or a mapping with both; tensors in host memory.
        """
        self.notes = []
        pair = inputs_and_labels(batch)
        if pair is None or (ids is not None and len(ids) != len(pair[0])):
            return {}
        inputs, labels = pair
        n = _looked_at(inputs)
        content, shape = _digests(inputs[:n]), xxhash.xxh3_64_intdigest(_shape(inputs))
        keys = content if ids is None else ids[:n].astype(np.uint64) ^ np.uint64(shape | 1)
        return self._compare(keys, content, _digests(labels[:n]), ids)

    def _compare(
        self, keys: Hashes, content: Hashes, labels: Hashes, ids: Ints | None
    ) -> dict[str, float]:
        slots = self._slots(keys)
        before = self._table[:, slots]
        known = before[0] == keys
        same = known & (before[1] == content)
        relabelled = same & (before[2] != labels)
        self._n_filled += int(np.count_nonzero(before[0] == 0))
        self._table[:, slots] = keys, content, labels
        if self._table.shape[1] // 2 < self._n_filled < MOST_SLOTS // 2:
            self._grow()
        n_inputs = self._note("inputs", known & ~same, ids)
        n_labels = self._note("labels", relabelled, ids)
        n_known = int(np.count_nonzero(known))
        self._n_known += n_known
        return {
            "samples_known": n_known,
            "inputs_changed": -1 if ids is None else n_inputs,
            "labels_changed": n_labels,
        }

    def _note(self, what: str, changed: Bools, ids: Ints | None) -> int:
        """Count samples that changed, and note which, unless that is usual."""
        rows = np.flatnonzero(changed)
        if not rows.size:
            return 0
        before = self._n_changed[what]
        self._n_changed[what] += rows.size
        is_usual = self._n_known < KNOWN or before + 1 > HABIT * (self._n_known + 2)
        if not is_usual and self._n_notes < MOST_NOTES:
            self._n_notes += 1
            named = rows[:NAMED]
            note = {"event": "samples", "what": what, "n": rows.size, "rows": named.tolist()}
            self.notes.append(note if ids is None else note | {"ids": ids[named].tolist()})
        return rows.size

    def _slots(self, keys: Hashes) -> npt.NDArray[np.intp]:
        bits = self._table.shape[1].bit_length() - 1
        return ((keys * _SPREAD) >> np.uint64(64 - bits)).astype(np.intp)

    def _grow(self) -> None:
        """Twice the slots; of two samples of one new slot the later in the table stays."""
        filled = self._table[:, self._table[0] != 0]
        self._table = np.zeros((3, 2 * self._table.shape[1]), np.uint64)
        self._table[:, self._slots(filled[0])] = filled
        self._n_filled = int(np.count_nonzero(self._table[0]))


def inputs_and_labels(batch: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Inputs and labels of a batch with as many rows each, in host memory; None without."""
    if isinstance(batch, Mapping):
        found = [next((batch[k] for k in keys if k in batch), None)
                 for keys in (INPUT_KEYS, LABEL_KEYS)]  # fmt: skip
    elif isinstance(batch, Sequence) and len(batch) == 2:
        found = list(batch)
    else:
        return None
    inputs, labels = (torch.from_numpy(x) if _is_numbers(x) else x for x in found)
    if not (isinstance(inputs, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return None
    is_here = all(x.device.type == "cpu" and x.layout is torch.strided for x in (inputs, labels))
    fits = is_here and inputs.ndim >= 2 and labels.ndim >= 1 and inputs.numel() > 0
    return (inputs, labels) if fits and len(inputs) == len(labels) else None


def _is_numbers(x: Any) -> bool:
    return isinstance(x, np.ndarray) and x.dtype.kind in "biuf"


def _looked_at(inputs: torch.Tensor) -> int:
    bytes_a_row = inputs[0].numel() * inputs.element_size()
    return min(len(inputs), MOST_ROWS, max(1, MOST_BYTES // bytes_a_row))


def _shape(inputs: torch.Tensor) -> bytes:
    return f"{tuple(inputs.shape[1:])} {inputs.dtype}".encode()


def _digests(rows: torch.Tensor) -> Hashes:
    """A number of 64 bits for each row, never 0; equal for equal rows."""
    if rows.ndim == 1 and not rows.is_floating_point() and not rows.is_complex():
        return rows.detach().to(torch.int64).numpy().astype(np.uint64) + np.uint64(1)
    flat = rows.detach().contiguous().reshape(len(rows), -1)
    flat = flat.to(torch.uint8) if flat.dtype is torch.bool else flat
    bytes_ = flat.view(torch.uint8).numpy()
    digest = xxhash.xxh3_64_intdigest
    return np.array([digest(row) | 1 for row in bytes_], np.uint64)
