"""What is known of the batches that went into one optimizer step."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
import xxhash

from flashback_core.rows import batch_ids_array, batch_scalars
from flashback_core.watch.batch import BatchWatch

__all__ = ["Window", "batch_loss", "sample_ids", "unscaled"]

_ID_KEYS = (
    "ids", "id", "idx", "index", "indices", "sample_ids", "sample_id", "sample_idx", "example_ids",
    "example_id", "batch_ids",
)  # fmt: skip
_UNKNOWN = -1
_SUMS = ("duplicates", "ids_seen", "samples_known", "inputs_changed", "labels_changed")


class Window:
    """The batches since the last optimizer step: their losses, their content, their samples.

    Args:
        hashes: Whether to fingerprint the content of batches.
        ids_of: Gives the sample ids of a batch, or None where it has none.

    Attributes:
        backwards: Backward passes since gradients were zero.
        evaluations: Backward passes of the batch that is trained on; several with LBFGS.
        first_loss: Loss of the first of them.
        events: What the last batch is to be noted for.
    """

    def __init__(self, *, hashes: bool, ids_of: Callable[[Any], Any] | None) -> None:
        self._hashes, self._ids_of = hashes, ids_of
        self._watch = BatchWatch()
        self.events: list[dict[str, Any]] = []
        self.backwards = self.evaluations = 0
        self.first_loss: Any = None
        self.clear()

    def clear(self) -> None:
        """Begin the next step."""
        self._fields: dict[str, float] = {}
        self._ids: list[Any] = []
        self._loss: Any = None
        self._n_losses = 0

    def add_batch(self, batch: Any, step: int) -> dict[str, float]:
        """Take up a batch before the model sees it.

        Args:
            batch: Tensors in any nesting.
            step: The step that it is for.

        Returns:
            Scalars and exact fields of the window so far, for `Recorder.mark`.
        """
        given = self._ids_of(batch) if self._ids_of is not None else None
        ids = None if given is None else batch_ids_array(given)
        new = self._watch.fields(step, ids, batch if self._hashes else None)
        self.events = [{**note, "step": step} for note in self._watch.notes]
        self._fields = _merged(self._fields, new) if self._fields else new
        if ids is not None:
            self._ids.append(ids)
        scalars = batch_scalars(np.concatenate(self._ids)) if self._ids else {}
        return {**scalars, **self._fields}

    def add_loss(self, loss: Any) -> None:
        """Take up the loss of one batch, on whatever device it is."""
        if loss is None:
            return
        if isinstance(loss, torch.Tensor):
            loss = loss.detach()
        self._loss = loss if self._loss is None else self._loss + loss
        self._n_losses += 1

    @property
    def loss(self) -> Any:
        """Mean loss of the batches, None where there is none."""
        return self._loss / self._n_losses if self._n_losses > 1 else self._loss


def _merged(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
    """Fields of several batches of one step."""
    out = {**old, **new}
    if "batch_hash" in old and "batch_hash" in new:
        pair = (int(old["batch_hash"]), int(new["batch_hash"]))
        digest = b"".join(part.to_bytes(8, "little") for part in pair)
        out["batch_hash"] = xxhash.xxh3_64_intdigest(digest)
        out["batch_seen"] = max(old["batch_seen"], new["batch_seen"])
    for name in _SUMS:
        if name in old and name in new:
            known = _UNKNOWN not in (old[name], new[name])
            out[name] = old[name] + new[name] if known else _UNKNOWN
    if "labels" in old and old["labels"] != out["labels"]:
        out["labels"] = _UNKNOWN
    return out


def batch_loss(trainer: Any, outputs: Any, *, is_divided: bool) -> Any:
    """Loss of one batch as its training step made it, None where it made none.

    Args:
        trainer: The trainer.
        outputs: What `on_train_batch_end` is given.
        is_divided: Whether Lightning has divided it by the number of accumulated batches.
    """
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    n = trainer.accumulate_grad_batches
    return loss if loss is None or n == 1 or not is_divided else loss * n


def unscaled(trainer: Any, loss: torch.Tensor) -> torch.Tensor:
    """`loss` without the loss scale that is on it."""
    scaler = getattr(trainer.precision_plugin, "scaler", None)
    scale = 1.0 if scaler is None else scaler.get_scale()
    return loss.detach() if scale == 1.0 else loss.detach() / scale


def sample_ids(batch: Any) -> Any:
    """Integer sample ids that a batch carries under a usual name, or None."""
    if not isinstance(batch, Mapping):
        return None
    for key in _ID_KEYS:
        value = batch.get(key)
        if value is not None and _is_ids(value):
            return value
    return None


def _is_ids(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        is_integer = not (value.is_floating_point() or value.is_complex())
        is_integer = is_integer and value.dtype is not torch.bool
        return value.ndim <= 1 and value.numel() > 0 and is_integer
    if isinstance(value, np.ndarray):
        return bool(value.ndim <= 1 and value.size and value.dtype.kind in "iu")
    return isinstance(value, (list, tuple)) and bool(value) and all(type(v) is int for v in value)
