"""The batch of a step: which one it was, and whether it came before."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flashback_core.table import StepTable

__all__ = ["Batch", "batch_at"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What is known of the batch of one step; None where it was not recorded.

    Attributes:
        seen_at: Other steps with the same fingerprint, at most 20, in order.
    """

    step: int
    epoch: int | None
    index: int | None
    fingerprint: str | None
    distinct: float | None
    seen_at: tuple[int, ...] = ()

    @property
    def words(self) -> str:
        """Epoch and index, else the fingerprint."""
        parts = []
        if self.epoch is not None:
            parts.append(f"epoch {self.epoch:,}")
        if self.index is not None:
            parts.append(f"batch {self.index:,}")
        if not parts and self.fingerprint:
            parts.append(f"fingerprint {self.fingerprint}")
        return ", ".join(parts)

    @property
    def rows(self) -> tuple[tuple[str, str], ...]:
        """Label and value of everything that is known."""
        distinct = None if self.distinct is None else f"{self.distinct * 100:.4g} %"
        seen = ", ".join(f"{s:,}" for s in self.seen_at)
        found = (
            ("Epoch", None if self.epoch is None else f"{self.epoch:,}"),
            ("Batch of the epoch", None if self.index is None else f"{self.index:,}"),
            ("Fingerprint", self.fingerprint),
            ("Distinct samples", distinct),
            ("Other steps with this batch", seen or ("none" if self.fingerprint else None)),
        )
        return tuple((label, value) for label, value in found if value is not None)


def batch_at(table: StepTable, step: int) -> Batch | None:
    """The batch of `step`; None where nothing of it was recorded."""
    try:
        row = table.row_of(step)
    except KeyError:
        return None
    digest = _integer(table, "exact:batch_hash", row, absent=0)
    batch = Batch(
        step=step,
        epoch=_integer(table, "exact:epoch", row),
        index=_integer(table, "exact:batch_index", row),
        fingerprint=None if digest is None else f"{digest:016x}",
        distinct=_float(table, "batch_uniq_frac", row),
        seen_at=() if digest is None else _seen(table, digest, row),
    )
    return batch if batch.rows else None


def _integer(table: StepTable, name: str, row: int, absent: int = -1) -> int | None:
    if name not in table:
        return None
    value = table.column(name)[row]
    known = 0 <= value < 2**64  # a table made by hand may hold NaN or less than nothing
    return int(value) if known and value != absent else None


def _float(table: StepTable, name: str, row: int) -> float | None:
    if name not in table:
        return None
    value = float(table.column(name)[row])
    return value if np.isfinite(value) else None


def _seen(table: StepTable, digest: int, row: int) -> tuple[int, ...]:
    hashes = np.asarray(table.column("exact:batch_hash"))
    rows = np.flatnonzero(hashes == hashes.dtype.type(digest))
    return tuple(int(s) for s in table.steps[rows[rows != row][:20]])
