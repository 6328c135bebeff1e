"""Scales: which runs a data set holds, in which order.

The runs of a scale stand in one fixed list in which every part is balanced: a kind with *n* runs
has them at the places (½, 1½, …) / n of the list. The first 300 runs are thus a small data set of
all kinds, and the first 600 hold those 300.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from flashback_core.errors import SourceError
from flashback_core.forensics.kinds import LATER, SEED_KINDS, Kinds, load_kinds, load_later

__all__ = ["SCALES", "Scale", "chosen_kinds", "has_twin", "run_list", "seed_at"]

SETS = ("seed", "hard", "reported", "placebo", "healthy", "added")
_OTHERS = 2
"""Runs of a kind of which the scale has none by itself."""
_SEEDS = (0, 6, 7, 4, 1, 8, 2, 9, 5, 3)
"""Last digits of the seeds in order: train and test first, see `kinds`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """One size of the data set.

    Args:
        doc: One line.
        preset: How large each run is, see `plans.PRESETS`.
        n_seeds: Runs of each kind, by set of kinds.
        kinds: Kinds; None are all.
        twins: Share of the fault runs that get a healthy twin.
        without_twins: Sets of kinds that get none.
        presets: Presets of some sets of kinds, in place of `preset`.
        seeds: Seeds in the order in which they are taken; None is the order of `seed_at`.
        splits: Only runs of these splits; None are all.
    """

    doc: str
    preset: str
    n_seeds: Mapping[str, int]
    kinds: tuple[str, ...] | None = None
    twins: float = 1.0
    without_twins: tuple[str, ...] = ("healthy",)
    presets: Mapping[str, str] = field(default_factory=dict)
    seeds: tuple[int, ...] | None = None
    splits: tuple[str, ...] | None = None

    def preset_of(self, kind_set: str) -> str:
        """The preset of the kinds of a set."""
        return self.presets.get(kind_set, self.preset)

    def seeds_of(self, n: int) -> list[int]:
        """The first `n` seeds of a kind; fewer where the scale lists fewer."""
        return [seed_at(i) for i in range(n)] if self.seeds is None else list(self.seeds[:n])


_TINY = (
    *SEED_KINDS, "opt_lost", "layer_frozen", "epoch_replay", "label_shift", "v_flip_up", "lr_zero",
    "stuck_in_eval", "weights_rolled_back", "placebo_nothing", "plain", "step_decay", "batch_up",
    "curriculum_abrupt", "evaluations", "exact_resume", "outlier_samples", "wsd", "unfreeze",
)  # fmt: skip
_NO_PLACEBOS = tuple(
    name for name, entry in load_kinds().entries.items() if entry.set not in ("placebo", "added")
)
_ALL = {"seed": 72, "hard": 12, "reported": 12, "placebo": 12, "healthy": 21}

SCALES = {
    "tiny": Scale(
        doc="39 runs of very small models, for tests: about two minutes on two cores",
        preset="tiny", n_seeds={"seed": 2, "healthy": 2} | dict.fromkeys(SETS[1:4], 1),
        kinds=_TINY, twins=0.5,
    ),
    "medium": Scale(
        doc="the published set-up: six kinds, three seeds, 1,200 steps, each with its twin",
        preset="medium", n_seeds={"seed": 3}, kinds=SEED_KINDS,
    ),
    "six": Scale(
        doc="the six published kinds at their usual strengths, many seeds, no twins",
        preset="six", n_seeds={"seed": 20}, kinds=SEED_KINDS, twins=0.0,
    ),
    "small": Scale(
        doc="all kinds and families, the smallest models, runs of 300 to 700 steps",
        preset="small", n_seeds=_ALL, twins=0.34,
    ),
    "large": Scale(
        doc="all kinds and families, runs of 600 to 2,400 steps; build it in pieces (--limit)",
        preset="large", n_seeds=_ALL,
    ),
    "fit": Scale(
        doc="what the shipped detector is fitted on: train and calibration, no kind held out",
        preset="small", n_seeds={"seed": 4, "hard": 4, "reported": 4, "healthy": 7}, twins=0.5,
        kinds=_NO_PLACEBOS, presets={"healthy": "long"}, splits=("train", "calibration"),
        seeds=(0, 4, 1, 5, 2, 3, 10),
    ),
    "evaluation": Scale(
        doc="what it is measured on: test seeds, 500,000 healthy steps, 20 runs of each of the six",
        preset="small", n_seeds={"seed": 20, "healthy": 9} | dict.fromkeys(SETS[1:4], 2),
        presets={"seed": "six", "healthy": "long"}, splits=("test",),
        without_twins=("healthy", "seed"),
        seeds=tuple(10 * tens + digit for tens in range(15, 20) for digit in (6, 7, 8, 9)),
    ),
}  # fmt: skip
"""Scales by name."""


def seed_at(position: int) -> int:
    """Seed of the run at a position among the runs of its kind: 0, 6, 7, 4 … 10, 16 and so on."""
    tens, digit = divmod(position, 10)
    return 10 * tens + _SEEDS[digit]


def run_list(
    scale: Scale,
    *,
    kinds: Sequence[str] | None = None,
    n_seeds: int | None = None,
    seeds: Sequence[int] | None = None,
    limit: int | None = None,
) -> list[tuple[str, int]]:
    """Kind and seed of the runs of a scale, in order.

    Args:
        scale: The scale.
        kinds: Names of kinds or sets (``seed``, ``hard``, ``reported``, ``placebo``, ``healthy``,
            ``added``) in place of the scale's; None are the scale's.
        n_seeds: Runs of each kind in place of the scale's, with the seeds of `seed_at`.
        seeds: Seeds of the runs of each kind, by number; in place of `n_seeds`.
        limit: Only the first so many.

    Raises:
        SourceError: If a kind is not known, no run is left (a scale may hold some splits only),
            both `n_seeds` and `seeds` are given, or a seed is below 0.
    """
    load_later(kinds or ())
    frozen = load_kinds()
    names = chosen_kinds(kinds, frozen) if kinds else scale.kinds or _all(frozen)
    if seeds is not None:
        _check_seeds(seeds, n_seeds)
    placed = []
    for name in names:
        n = scale.n_seeds.get(frozen[name].set, _OTHERS) if n_seeds is None else n_seeds
        chosen = scale.seeds_of(n) if seeds is None else seeds
        if scale.splits is not None:
            chosen = [s for s in chosen if frozen.split(name, s) in scale.splits]
        order = zlib.crc32(name.encode())
        placed += [((i + 0.5) / len(chosen), order, name, s) for i, s in enumerate(chosen)]
    runs = [(name, seed) for _, _, name, seed in sorted(placed)][:limit]
    if not runs:
        msg = "no run is left to build; give other --kinds, or a --limit and --seeds above 0"
        raise SourceError(msg)
    return runs


def _all(frozen: Kinds) -> tuple[str, ...]:
    """All kinds but those of `LATER`, so that the list is the same whether they are loaded."""
    return tuple(name for name in frozen.entries if name not in LATER)


def _check_seeds(seeds: Sequence[int], n_seeds: int | None) -> None:
    if n_seeds is not None:
        msg = f"got n_seeds={n_seeds} and seeds by number as well; give one of the two"
        raise SourceError(msg)
    if any(seed < 0 for seed in seeds):
        msg = f"a seed is an integer from 0; got {min(seeds)}"
        raise SourceError(msg)


def chosen_kinds(wanted: Iterable[str], frozen: Kinds) -> list[str]:
    """The kinds that are named, or belong to a set that is named, in the order of the list.

    Raises:
        SourceError: If a name is neither a kind nor a set.
    """
    names = set(wanted)
    unknown = sorted(names - set(frozen.entries) - set(SETS))
    if unknown:
        msg = (
            f"{', '.join(unknown)}: no such kind; expected a set ({', '.join(SETS)}) or a kind of "
            "kinds.json"
        )
        raise SourceError(msg)
    return [n for n, entry in frozen.entries.items() if n in names or entry.set in names]


def has_twin(run_id: str, share: float) -> bool:
    """Whether a fault run gets a healthy twin; decided by its name alone."""
    return zlib.crc32(f"twin/{run_id}".encode()) % 10_000 < round(share * 10_000)
