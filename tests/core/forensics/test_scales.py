"""Which runs a scale holds."""

from __future__ import annotations

from collections import Counter

import pytest

from flashback_core.errors import SourceError
from flashback_core.forensics.build import jobs_of
from flashback_core.forensics.kinds import SEED_KINDS, load_kinds
from flashback_core.forensics.plans import PRESETS
from flashback_core.forensics.scales import SCALES, has_twin, run_list, seed_at


def test_first_seeds_are_of_train_and_of_test() -> None:
    """Two runs of a kind that is not held out are one to fit on and one to score on."""
    splits = [load_kinds().split("bit_flip", seed_at(i)) for i in range(4)]
    assert splits == ["train", "test", "test", "calibration"]
    assert len({seed_at(i) for i in range(40)}) == 40


@pytest.mark.parametrize("name", sorted(SCALES))
def test_scale_has_its_preset(name: str) -> None:
    """Every scale says how large its runs are."""
    assert SCALES[name].preset in PRESETS


def test_large_scale_holds_every_kind_and_two_fifths_healthy_runs() -> None:
    """No kind is left out; the six kinds have at least twenty test runs each."""
    runs = run_list(SCALES["large"])
    frozen = load_kinds()
    assert {kind for kind, _ in runs} == set(frozen.entries)
    assert sum(frozen[kind].set == "healthy" for kind, _ in runs) >= 0.4 * len(runs)
    test = Counter(kind for kind, seed in runs if frozen.split(kind, seed) == "test")
    assert all(test[kind] >= 20 for kind in SEED_KINDS)


def test_every_part_of_the_list_is_balanced() -> None:
    """The first sixth has every kind twice, and the six kinds a sixth of their runs."""
    whole = run_list(SCALES["large"])
    part = run_list(SCALES["large"], limit=len(whole) // 6)
    assert part == whole[: len(part)]
    counts = Counter(kind for kind, _ in part)
    assert min(counts.values()) >= 2
    assert {counts[kind] for kind in SEED_KINDS} <= {11, 12, 13}


def test_medium_scale_is_the_published_one() -> None:
    """Six kinds, three seeds, two of them in test."""
    runs = run_list(SCALES["medium"])
    assert Counter(kind for kind, _ in runs) == dict.fromkeys(SEED_KINDS, 3)


def test_kinds_are_chosen_by_name_or_set() -> None:
    """Names and sets may be mixed, and have as many runs as asked for."""
    runs = run_list(SCALES["tiny"], kinds=["placebo", "wsd"], n_seeds=1)
    assert {kind for kind, _ in runs} == {*load_kinds().names("placebo"), "wsd"}
    assert len(runs) == 7


def test_unknown_kind_is_an_error() -> None:
    """It is named."""
    with pytest.raises(SourceError, match="bitflip: no such kind"):
        run_list(SCALES["tiny"], kinds=["bitflip"])


def test_no_run_left_is_an_error() -> None:
    """It says what to change."""
    with pytest.raises(SourceError, match="--limit"):
        run_list(SCALES["tiny"], limit=0)


def test_share_of_twins_is_kept() -> None:
    """A third of the runs, always the same, and all of them at a share of 1."""
    names = [f"kind{i}__s{i}" for i in range(900)]
    assert 240 < sum(has_twin(name, 1 / 3) for name in names) < 360
    assert all(has_twin(name, 1.0) for name in names)


def test_seeds_may_be_given_by_number() -> None:
    """Each kind has just these; the list is as balanced as with a number of runs."""
    runs = run_list(SCALES["tiny"], kinds=["bit_flip", "plain"], seeds=range(100, 103))
    assert sorted(runs) == [(k, s) for k in ("bit_flip", "plain") for s in (100, 101, 102)]
    by_number = run_list(SCALES["tiny"], seeds=[seed_at(i) for i in range(4)])
    assert by_number == run_list(SCALES["tiny"], n_seeds=4)


@pytest.mark.parametrize(
    ("n_seeds", "seeds", "said"),
    [(2, range(3), "one of the two"), (None, [-1], "from 0"), (None, [], "no run is left")],
)
def test_wrong_seeds_are_an_error(n_seeds: int | None, seeds: list[int], said: str) -> None:
    """It says what was expected."""
    with pytest.raises(SourceError, match=said):
        run_list(SCALES["tiny"], n_seeds=n_seeds, seeds=seeds)


def test_the_fit_never_sees_the_test_split() -> None:
    """What the shipped detector is fitted on: no test seed, no kind that is held out."""
    frozen = load_kinds()
    runs = run_list(SCALES["fit"])
    assert {frozen.split(*run) for run in runs} == {"train", "calibration"}
    assert not any(frozen[kind].is_held_out for kind, _ in runs)
    assert run_list(SCALES["fit"], kinds=["plain"], seeds=[3, 6]) == [("plain", 3)]
    with pytest.raises(SourceError, match="no run is left"):
        run_list(SCALES["fit"], kinds=["wsd"])


def test_the_evaluation_is_of_the_size_that_its_figures_need() -> None:
    """Test seeds alone: every kind, 20 runs of each of the six, half a million healthy steps."""
    frozen, scale = load_kinds(), SCALES["evaluation"]
    runs = run_list(scale)
    assert {frozen.split(*run) for run in runs} == {"test"}
    assert {kind for kind, _ in runs} == {*frozen.names("seed", "hard", "reported", "placebo",
                                                        "healthy")}  # fmt: skip
    assert all(sum(kind == name for kind, _ in runs) == 20 for name in SEED_KINDS)
    jobs = [job for job in jobs_of(scale) if frozen[job.kind].set == "healthy"]
    assert sum(job.plan().n_steps for job in jobs) >= 500_000
    assert {job.preset for job in jobs} == {"long"}


def test_twins_where_the_scale_has_them() -> None:
    """Neither healthy runs nor the six kinds of the evaluation have twins, all others do."""
    of = {frozen_set(job.kind): job.twin for job in jobs_of(SCALES["evaluation"])}
    assert of == {"healthy": False, "seed": False, "hard": True, "reported": True, "placebo": True}


def frozen_set(kind: str) -> str:
    """Set of a kind."""
    return load_kinds()[kind].set
