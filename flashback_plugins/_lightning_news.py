"""What the ranks of a run tell each other, and what follows from it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flashback_core.report.model import Finding

__all__ = ["STATE", "WEIGHTS", "Change", "RankNews", "divergence"]

WEIGHTS, STATE = "weights", "optimizer state"

_KINDS = {WEIGHTS: "weights_changed", STATE: "state_changed"}
_CERTAIN = 0.99


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """What something else than the optimizer changed on one rank.

    Attributes:
        step: The step before whose update it was found.
        what: `WEIGHTS` or `STATE`.
        tensors: Names of some that changed.
    """

    step: int
    what: str
    tensors: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankNews:
    """What one rank tells the others.

    Attributes:
        rank: Its number.
        step: The step that it is at.
        changes: What changed on it since the ranks met, by step.
        weights: Digest of all weights, 0 where they are not in host memory or not whole.
        is_bad: Whether it has found the run to be bad.
        is_sharded: Whether it holds a part of the model, not a copy of it.
        is_watching: Whether it holds anything that it could find changed.
    """

    rank: int
    step: int
    changes: tuple[Change, ...] = ()
    weights: int = 0
    is_bad: bool = False
    is_sharded: bool = False
    is_watching: bool = True


def divergence(news: Sequence[RankNews]) -> tuple[Finding, int] | None:
    """What the ranks' news say about their weights, and the rank that is apart.

    A change that all ranks made before the same step (an average swapped in) is no divergence.

    Returns:
        None while all agree. The rank is -1 where the majority does not tell it.
    """
    watching = [n for n in news if n.is_watching]
    made = [(c.step, c.what, n.rank, n, c) for n in watching for c in n.changes]
    shared = Counter((step, what) for step, what, *_ in made)
    alone = [m for m in made if shared[m[:2]] < len(watching)]
    if alone:
        _, _, rank, teller, change = min(alone, key=lambda m: m[:3])
        return _changed(teller, change), rank
    counts = Counter(n.weights for n in news)
    if len(counts) == 1:
        return None
    common, n_common = counts.most_common(1)[0]
    apart = [n.rank for n in news if n.weights != common]
    rank = apart[0] if len(apart) == 1 and n_common > 1 else -1
    step = news[0].step
    text = f"The ranks held different weights after step {step}: {len(counts)} different digests."
    return _finding("replica_divergence", step, (0, step), text), rank


def _changed(news: RankNews, change: Change) -> Finding:
    step, names = change.step, ", ".join(change.tensors)
    if news.is_sharded:
        text = (f"The part of the {change.what} that lies on rank {news.rank} changed before the "
                f"update of step {step}, outside of the optimizer: {names}.")  # fmt: skip
        return _finding(_KINDS[change.what], step, (step, step), text)
    text = (f"The {change.what} of rank {news.rank} changed before the update of step {step}, "
            f"outside of the optimizer, and those of other ranks did not: {names}.")  # fmt: skip
    return _finding("replica_divergence", step, (step, step), text)


def _finding(kind: str, step: int, interval: tuple[int, int], text: str) -> Finding:
    return Finding(
        step=step, interval=interval, kind=kind, confidence=_CERTAIN, severity="bad",
        evidence=(text,),
    )  # fmt: skip
