"""A row on its way into the index: what is known of a step before and after it ends."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch

from flashback_core.schema import EXACT_FIELDS, SketchSchema
from flashback_core.sketch.sums import metric_values
from flashback_core.watch.batch import distinct_ids
from flashback_core.watch.run import sums_fields

if TYPE_CHECKING:
    from flashback_core.sketch.backend import PendingSums

__all__ = [
    "Logged", "OpenRow", "batch_ids_array", "batch_scalars", "exact_fields", "one_number",
]  # fmt: skip

_FEW = 128  # below it plain numbers are quicker than arrays
_EXACT = {f.name: f.dtype for f in EXACT_FIELDS}


@dataclass(slots=True, kw_only=True)
class Logged:
    """What one call of `Recorder.log` gave."""

    loss: Any = None
    scalars: dict[str, float] = field(default_factory=dict)
    exact: dict[str, float] = field(default_factory=dict)
    events: list[dict[str, Any]] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class OpenRow:
    """One step, from its gradients to its row.

    Attributes:
        sums: Sums of the step, None until the update has been seen.
        scalars: Metrics that the sums do not know, by name.
        exact: Exact fields by name.
        loss: The loss, a number or a tensor of one element.
        parameters: The tensors that the sums are of, in their order.
        found_inf: Not zero if a fused optimizer left the weights as they were; on its device.
        clip_coef: Exact field of this name, it may be on its way from a device as the sums are.
    """

    sums: PendingSums | None = None
    scalars: dict[str, float] = field(default_factory=dict)
    exact: dict[str, float] = field(default_factory=dict)
    loss: Any = None
    parameters: Sequence[torch.Tensor] = ()
    found_inf: torch.Tensor | None = None
    clip_coef: float | torch.Tensor | None = None

    def add(self, logged: Logged) -> None:
        """Take over what was logged for this step."""
        if logged.loss is not None:
            self.loss = logged.loss
        self.scalars.update(logged.scalars)
        self.exact.update(logged.exact)

    def ready(self) -> bool:
        """Whether `values` returns without waiting for a device."""
        return self.sums is None or self.sums.ready()

    def values(self, schema: SketchSchema) -> npt.NDArray[np.float64]:
        """All metrics of the step, float64 of shape (len(schema),)."""
        if self.sums is None:
            values = np.full(len(schema), np.nan)
        else:
            values = metric_values(self.sums.result(), schema)
        if self.loss is not None:
            values[0] = float(self.loss)
        for name, value in self.scalars.items():
            values[schema.position(name)] = value
        return values

    def seal(self, sizes: npt.NDArray[np.int64], compared: npt.NDArray[np.bool_]) -> None:
        """Take over the exact fields that had to be waited for; they are there by now.

        Args:
            sizes: Entries of each of `parameters`.
            compared: Whether what else wrote to it since the step before counts.
        """
        if self.found_inf is not None and bool(self.found_inf):
            self.exact["step_skipped"] = 1
        if self.clip_coef is not None:
            coefficient = float(self.clip_coef)
            self.exact["clip_coef"] = coefficient if math.isfinite(coefficient) else math.nan
        if self.sums is None:
            return
        known = sums_fields(self.sums.result(), sizes, compared)
        known["outside"] = int(known["outside"]) | int(self.exact.get("outside", 0))
        self.exact.update(known)


def batch_ids_array(batch_ids: Any) -> npt.NDArray[np.int64]:
    """Sample ids as a flat array.

    Args:
        batch_ids: Integers of any shape, array-like or a tensor.

    Raises:
        ValueError: If the ids are not integers or there are none.
    """
    if hasattr(batch_ids, "detach"):
        batch_ids = batch_ids.detach().cpu().numpy()
    ids = np.asarray(batch_ids)
    if ids.dtype.kind not in "iu" or ids.size == 0:
        msg = f"batch_ids has dtype {ids.dtype} and {ids.size} entries; expected integers"
        raise ValueError(msg)
    return np.ascontiguousarray(ids.ravel(), np.int64)


def batch_scalars(ids: npt.NDArray[np.int64]) -> dict[str, float]:
    """Metrics of a batch's sample ids."""
    return {
        "batch_id_mean": sum(ids.tolist()) / ids.size if ids.size <= _FEW else float(ids.mean()),
        "batch_uniq_frac": distinct_ids(ids).size / ids.size,
    }


def one_number(loss: Any) -> Any:
    """A loss as it is kept until its row is written: a number, or a tensor of one element.

    Raises:
        ValueError: If it is something else.
    """
    if isinstance(loss, torch.Tensor):
        if loss.numel() != 1:
            msg = f"loss has shape {tuple(loss.shape)}; expected one number, e.g. loss.mean()"
            raise ValueError(msg)
        return loss.detach().reshape(()) if loss.dim() else loss.detach()
    return None if loss is None else float(loss)


def exact_fields(given: Mapping[str, Any]) -> dict[str, float]:
    """Exact fields that a loop gave, checked.

    Raises:
        ValueError: If a name is none of `schema.EXACT_FIELDS`, or a whole number is none.
    """
    out: dict[str, float] = {}
    for name, value in given.items():
        if name not in _EXACT:
            close = ", ".join(difflib.get_close_matches(name, _EXACT, n=2)) or ", ".join(_EXACT)
            msg = f"{name!r} is no exact field; expected one of: {close}"
            raise ValueError(msg)
        number = value if isinstance(value, (int, float)) else value.item()
        if _EXACT[name] != "f8" and number != int(number):
            msg = f"{name}={value!r}; expected a whole number"
            raise ValueError(msg)
        out[name] = number if _EXACT[name] == "f8" else int(number)
    return out
