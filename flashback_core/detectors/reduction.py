"""Reduction: the scores of all features as a few statistics per family and test.

A family of features becomes, for each test, four numbers: the largest, the third largest, the root
mean square, and the *consensus*, the absolute median over groups of the signed scores. One odd
batch moves some groups; a fault in the learning rate or in the optimizer's state moves every group
at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.compiled import kernels
from flashback_core.detectors.features import FAMILIES, Feature
from flashback_core.detectors.score_stream import SCALES

__all__ = ["ALL", "Reduction"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

POINT_ONLY = ("update",)
"""Families of which only edges count: without the learning rate, a schedule looks like a drift."""
CONSENSUS = ("gradient", "update", "update_lr", "sign")
"""Families whose groups vote together."""
ALL = "all"
"""All families together, where there are at least `MANY` features."""
MANY = 20
SEVERAL = 4
"""Members from which on a family has a third largest and a mean square."""
_CAP = 50.0


class Reduction:
    """Turns scores into statistics ``family/test/reduction``.

    Args:
        items: The features.

    Attributes:
        names: Names of the statistics, in their order.
        tests: Test of each, as its place in `SCALES`.
    """

    def __init__(self, items: Sequence[Feature]) -> None:
        self._families = list(_families(items))
        names = [name for family in self._families for name in _names(*family)]
        self.names = tuple(names)
        places = {test: k for k, test in enumerate(SCALES)}
        self.tests = np.array([places[n.split("/")[1]] for n in names], np.int64)
        self._members = _joined([members for _, members, _ in self._families])
        self._groups = _joined([groups for _, _, groups in self._families])
        self._plan = _plan(self._families)

    def __call__(self, z: Floats, score: Floats) -> Floats:
        """Statistics of shape (statistics, rows).

        Args:
            z: Signed deviations, (tests, features, rows).
            score: Their size over their own tails, likewise.
        """
        n = z.shape[-1]
        compiled = kernels(is_worth_it=False)
        if compiled is not None:
            out = np.empty((len(self.names), n))
            z, score = np.ascontiguousarray(z), np.ascontiguousarray(score)
            compiled.reduce_pass(z, score, self._members, self._groups, self._plan, _CAP, out)
            return out
        if n == 1:  # sums of a single column take another order
            return self(np.repeat(z, 2, -1), np.repeat(score, 2, -1))[:, :1]
        parts = [part for family in self._families for part in _reduced(*family, z=z, score=score)]
        return np.concatenate(parts) if parts else np.zeros((0, n))


def _families(items: Sequence[Feature]) -> Iterator[tuple[str, Ints, Ints]]:
    """Each family with its features and those of them that are of a group."""
    for family in (*FAMILIES, ALL):
        members = [j for j, item in enumerate(items) if family in (item.family, ALL)]
        if members and (family != ALL or len(members) >= MANY):
            groups = [j for j in members if items[j].group]
            yield family, np.array(members, np.int64), np.array(groups, np.int64)


def _joined(parts: list[Ints]) -> Ints:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _plan(families: Sequence[tuple[str, Ints, Ints]]) -> Ints:
    """For the compiled pass, a row per family.

    Its members and groups from where to where among those of all, its tests, the place of the third
    largest, and the first row of each of the four reductions, −1 for one that it does not have.
    """
    rows, member, group, at = [], 0, 0, 0
    for family, members, groups in families:
        n, tests = len(members), len(_tests(family))
        rows.append([member, member + n, group, group + len(groups), tests, _third(n)])
        member, group = member + n, group + len(groups)
        there = _reductions(family, members, groups)
        for reduction in ("largest", "third", "rms", "consensus"):
            rows[-1].append(at if reduction in there else -1)
            at += tests * (reduction in there)
    return np.array(rows, np.int64).reshape(-1, 10)


def _third(n: int) -> int:
    """Which of the largest counts as the third, among `n`."""
    return max(3, n // 10)


def _tests(family: str) -> list[str]:
    return ["point"] if family in POINT_ONLY else list(SCALES)


def _names(family: str, members: Ints, groups: Ints) -> Iterator[str]:
    for reduction in _reductions(family, members, groups):
        yield from (f"{family}/{test}/{reduction}" for test in _tests(family))


def _reductions(family: str, members: Ints, groups: Ints) -> list[str]:
    found = [] if family == ALL else ["largest"]
    if len(members) >= SEVERAL:
        found += ["third", "rms"]
    if family in CONSENSUS and len(groups) >= 3:
        found.append("consensus")
    return found


def _reduced(
    family: str, members: Ints, groups: Ints, *, z: Floats, score: Floats
) -> Iterator[Floats]:
    tests = len(_tests(family))
    mine = score[:tests, members]
    for reduction in _reductions(family, members, groups):
        if reduction == "largest":
            yield mine.max(axis=1)
        elif reduction == "third":
            place = len(members) - _third(len(members))
            yield np.partition(mine, place, axis=1)[:, place]
        elif reduction == "rms":
            yield np.sqrt((np.minimum(mine, _CAP) ** 2).sum(axis=1) / len(members))
        else:
            yield consensus(np.copysign(score[:tests, groups], z[:tests, groups]))


def consensus(z: Floats) -> Floats:
    """Absolute median over live groups of the signed scores, (…, groups, rows) to (…, rows).

    A group whose score is exactly 0 has no say: it has not begun, or it is frozen. Rows with
    fewer than three groups left give 0.
    """
    live = z != 0
    count = live.sum(axis=-2)
    ordered = np.sort(np.where(live, z, np.inf), axis=-2)
    last = z.shape[-2] - 1
    at = np.clip(np.stack([(count - 1) // 2, count // 2]), 0, last)
    low, high = (np.take_along_axis(ordered, a[..., None, :], axis=-2)[..., 0, :] for a in at)
    enough = count >= 3
    return np.asarray(np.abs(np.where(enough, low, 0.0) + np.where(enough, high, 0.0)) / 2)
