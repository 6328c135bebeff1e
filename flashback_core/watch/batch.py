"""BatchWatch: has this batch, or have its samples, been seen before?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import xxhash

from flashback_core.watch.contents import SampleContents

__all__ = ["BatchWatch", "distinct_ids", "fingerprint", "label_relation"]

_REMEMBERED = 200_000
_LARGEST_ID = 1 << 28
_FEW = 128
_BITS = np.left_shift(1, np.arange(8)).astype(np.uint8)
_OF_NUMPY = {
    torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool,
}  # fmt: skip

Ints = npt.NDArray[np.int64]


class BatchWatch:
    """Remembers the batches and sample ids of a run, in bounded memory.

    The last 200 000 batches are remembered (about 20 MB), and every sample id from 0 to 2**28 as
    one bit (32 MB at most); ids outside are not remembered. What the samples held is remembered as
    `SampleContents` says.
    """

    @property
    def notes(self) -> list[dict[str, Any]]:
        """Events of the last batch, without their step: which samples changed."""
        return self._contents.notes

    def __init__(self) -> None:
        self._steps: dict[int, int] = {}
        self._bits = np.zeros(0, np.uint8)
        self._distinct, self._largest = 0, -1
        self._contents = SampleContents()

    def fields(self, step: int, ids: Ints | None, batch: Any) -> dict[str, float]:
        """Exact fields of the batch of `step`.

        Args:
            step: The step that uses the batch.
            ids: Sample ids, int64 and flat, or None.
            batch: The batch itself: tensors in any nesting of sequences and mappings, or None.
        """
        out: dict[str, float] = {}
        if ids is not None:
            distinct = distinct_ids(ids)
            out["batch_hash"] = xxhash.xxh3_64_intdigest(ids.tobytes())
            out["duplicates"] = ids.size - distinct.size
            out["batch_size"] = ids.size
            out["ids_seen"] = self._see(ids, distinct)
            out["ids_left"] = self._left()
        if batch is not None:
            content = fingerprint(batch)
            if content:
                out["batch_hash"] = content
            out["labels"] = label_relation(batch)
            if ids is None:
                out["batch_size"], out["duplicates"] = _rows(batch)
            out |= self._contents.fields(ids, batch)
        if "batch_hash" in out:
            out["batch_seen"] = self._remember(int(out["batch_hash"]), step)
        return out

    def _remember(self, digest: int, step: int) -> int:
        before = self._steps.pop(digest, -1)
        self._steps[digest] = step
        if len(self._steps) > _REMEMBERED:
            del self._steps[next(iter(self._steps))]
        return before if before < step else -1

    def _see(self, ids: Ints, distinct: Ints) -> int:
        """How many of `ids` an earlier step had; -1 where they cannot be remembered."""
        few = ids.tolist() if ids.size <= _FEW else None
        low, high = (min(few), max(few)) if few else (int(ids.min()), int(ids.max()))
        if low < 0 or high >= _LARGEST_ID:
            return -1
        if high >= 8 * len(self._bits):
            grown = np.zeros(min(2 * (high // 8 + 1), _LARGEST_ID // 8), np.uint8)
            grown[: len(self._bits)] = self._bits
            self._bits = grown
        self._largest = max(self._largest, high)
        if few is not None:
            return self._see_few(few)
        place, bit = ids >> 3, _BITS[ids & 7]
        seen = known = int(np.count_nonzero(self._bits[place] & bit))
        if distinct is not ids:
            known = int(np.count_nonzero(self._bits[distinct >> 3] & _BITS[distinct & 7]))
        self._distinct += distinct.size - known
        np.bitwise_or.at(self._bits, place, bit)
        return seen

    def _see_few(self, ids: list[int]) -> int:
        """As `_see`: a loop is quicker than arrays for a batch of usual size."""
        bits = self._bits.data
        seen = sum(bits[i >> 3] >> (i & 7) & 1 for i in ids)
        for i in ids:
            if not bits[i >> 3] >> (i & 7) & 1:
                bits[i >> 3] |= 1 << (i & 7)
                self._distinct += 1
        return seen

    def _left(self) -> int:
        """Ids up to the largest one that no batch has had; -1 where ids are not remembered."""
        return self._largest + 1 - self._distinct if self._largest >= 0 else -1


def distinct_ids(ids: Ints) -> Ints:
    """The distinct ones of flat sample ids; `ids` itself where no two are equal."""
    if ids.size <= _FEW and len(set(ids.tolist())) == ids.size:  # quicker than sorting
        return ids
    distinct = np.unique(ids)
    return ids if distinct.size == ids.size else distinct


def _tensors(batch: Any) -> Iterator[torch.Tensor]:
    """Tensors of a batch in any nesting, in order."""
    if isinstance(batch, torch.Tensor):
        yield batch
    elif isinstance(batch, (tuple, list)):
        for value in batch:
            yield from _tensors(value)
    elif isinstance(batch, np.ndarray) and batch.dtype.kind in "biuf":
        yield torch.from_numpy(batch)
    elif isinstance(batch, Mapping):
        for value in batch.values():
            yield from _tensors(value)
    elif isinstance(batch, Sequence) and not isinstance(batch, (str, bytes)):
        for value in batch:
            yield from _tensors(value)


def fingerprint(batch: Any) -> int:
    """xxh3-64 of the content of a batch; 0 where nothing of it lies in host memory."""
    digest, found = xxhash.xxh3_64(), False
    for tensor in _tensors(batch):
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            continue
        found = True
        digest.update(str(tuple(tensor.shape)).encode())
        if tensor.numel():
            digest.update(_bytes(tensor))
    return digest.intdigest() if found else 0


def _bytes(tensor: torch.Tensor) -> Any:
    """The bytes of a tensor in host memory, in the order of its entries."""
    if tensor.dtype in _OF_NUMPY:
        return np.ascontiguousarray(tensor.detach().numpy())
    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())  # type: ignore[arg-type]  # an array is a buffer


def label_relation(batch: Any) -> int:
    """How labels follow inputs where both are token ids of one shape.

    Returns:
        1 if ``labels[t] == inputs[t + 1]``, 2 if they are equal, 0 if neither, -1 if the batch has
        no such pair or cannot tell: samples of one token repeated are both, as are labels that are
        all masked. Negative labels are masked and not compared.
    """
    pair = _pair(batch)
    if pair is None:
        return -1
    inputs, labels = (tensor.numpy() for tensor in pair)
    is_equal, is_shifted = _agree(labels, inputs), _agree(labels[..., :-1], inputs[..., 1:])
    if is_equal:
        return -1 if is_shifted else 2
    return int(is_shifted)


def _pair(batch: Any) -> tuple[torch.Tensor, torch.Tensor] | None:
    if isinstance(batch, Mapping):
        found = (batch.get("input_ids", batch.get("inputs")), batch.get("labels"))
    elif isinstance(batch, Sequence) and len(batch) == 2:
        found = (batch[0], batch[1])
    else:
        return None
    inputs, labels = found
    if not (isinstance(inputs, torch.Tensor) and isinstance(labels, torch.Tensor)):
        return None
    fits = (
        inputs.shape == labels.shape
        and inputs.ndim >= 2
        and inputs.shape[-1] > 2
        and not (inputs.is_floating_point() or labels.is_floating_point())
        and inputs.device.type == labels.device.type == "cpu"
    )
    return (inputs, labels) if fits else None


def _agree(labels: npt.NDArray[Any], inputs: npt.NDArray[Any]) -> bool:
    """Whether all labels that are not masked are the inputs; quick both ways in usual batches."""
    start = zip(labels[:1].ravel()[:16].tolist(), inputs[:1].ravel()[:16].tolist(), strict=True)
    if not all(a == b or a < 0 for a, b in start):
        return False
    if labels.dtype == inputs.dtype and labels.tobytes() == inputs.tobytes():
        return True
    return bool(((labels == inputs) | (labels < 0)).all())


def _rows(batch: Any) -> tuple[int, int]:
    """Rows of the first tensor, and how many of them another one repeats; -1 where unknown."""
    first = next(_tensors(batch), None)
    if first is None or first.device.type != "cpu" or first.ndim < 2 or not len(first):
        return (-1 if first is None or first.ndim == 0 else len(first)), -1
    rows = first.detach().contiguous().reshape(len(first), -1)
    rows = rows.to(torch.uint8) if rows.dtype is torch.bool else rows
    bytes_ = rows.view(torch.uint8).numpy()
    return len(first), len(first) - len({xxhash.xxh3_64_intdigest(row) for row in bytes_})
