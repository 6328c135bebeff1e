"""A row on its way into the index: what is known of a step before and after it ends."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import xxhash

from flashback_core.schema import SketchSchema
from flashback_core.sketch.sums import metric_values

if TYPE_CHECKING:
    from flashback_core.sketch.backend import PendingSums

__all__ = ["Logged", "OpenRow", "batch_fields"]


@dataclass(slots=True, kw_only=True)
class Logged:
    """What one call of `Recorder.log` gave."""

    loss: Any = None
    scalars: dict[str, float] = field(default_factory=dict)
    exact: dict[str, float] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class OpenRow:
    """One step, from its gradients to its row.

    Attributes:
        sums: Sums of the step, None until the update has been seen.
        scalars: Metrics that the sums do not know, by name.
        exact: Exact fields by name.
        loss: The loss, a number or a tensor of one element.
    """

    sums: PendingSums | None = None
    scalars: dict[str, float] = field(default_factory=dict)
    exact: dict[str, float] = field(default_factory=dict)
    loss: Any = None

    def add(self, logged: Logged) -> None:
        """Take over what was logged for this step."""
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


def batch_fields(batch_ids: Any) -> tuple[Mapping[str, float], Mapping[str, float]]:
    """Metrics and exact fields of a batch's sample ids.

    Args:
        batch_ids: Integers of any shape, array-like or a tensor.

    Returns:
        ``batch_id_mean`` and ``batch_uniq_frac``; ``batch_hash`` of the ids in their order.

    Raises:
        ValueError: If the ids are not integers or there are none.
    """
    if hasattr(batch_ids, "detach"):
        batch_ids = batch_ids.detach().cpu().numpy()
    ids = np.asarray(batch_ids)
    if ids.dtype.kind not in "iu" or ids.size == 0:
        msg = f"batch_ids has dtype {ids.dtype} and {ids.size} entries; expected integers"
        raise ValueError(msg)
    flat = np.ascontiguousarray(ids.ravel(), np.int64)
    scalars = {
        "batch_id_mean": float(flat.mean()),
        "batch_uniq_frac": np.unique(flat).size / flat.size,
    }
    return scalars, {"batch_hash": xxhash.xxh3_64_intdigest(flat.tobytes())}
