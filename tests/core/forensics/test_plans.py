"""Plans follow from kind and seed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from flashback_core.forensics.kinds import abilities, load_kinds
from flashback_core.forensics.optimizers import LEARNING_RATES
from flashback_core.forensics.plans import PRESETS, plan

KINDS = load_kinds()


@pytest.mark.parametrize("preset", PRESETS)
def test_every_kind_can_be_planned(preset: str) -> None:
    """A plan repeats, has what its kind needs, and says the right split."""
    for kind in KINDS.entries:
        check_plan(kind, preset)


def check_plan(kind: str, preset: str) -> None:
    """One plan."""
    run = plan(7, kind, preset=preset)
    assert run == plan(7, kind, preset=preset)
    assert run.run_id == f"{kind}__s7"
    assert run.split == "test"
    is_card_alone = PRESETS[preset].is_card and KINDS[kind].set == "healthy"
    assert is_card_alone or set(KINDS[kind].needs) <= abilities(run.task)
    assert json.loads(run.to_json())["kind"] == kind
    assert (len(run.faults) == 0) is (KINDS[kind].set == "healthy")


def test_no_two_runs_share_their_data() -> None:
    """Kinds share no seed of weights and data, at the same seed too."""
    seeds = [plan(s, k).task.seed for s in range(5) for k in KINDS.names("seed", "hard")]
    assert len(set(seeds)) == len(seeds)


def test_fault_steps_are_uniform_over_the_run() -> None:
    """Between 5 and 95 % of the run, as often early as late."""
    runs = [plan(s, "bit_flip") for s in range(400)]
    shares = np.array([r.faults[0].step / r.n_steps for r in runs])
    assert 0.04 < shares.min() < 0.08
    assert 0.92 < shares.max() <= 0.95
    assert float(shares.mean()) == pytest.approx(0.5, abs=0.04)


def test_strengths_are_log_uniform() -> None:
    """Half of the strengths lie below the geometric mean of the range."""
    low, high = KINDS["grad_x4"].strengths
    strengths = np.array([plan(s, "grad_x4").faults[0].strength for s in range(300)])
    assert low <= strengths.min()
    assert strengths.max() <= high
    assert float(np.mean(strengths < np.sqrt(low * high))) == pytest.approx(0.5, abs=0.08)


def test_a_fifth_of_the_planned_lengths_is_wrong() -> None:
    """The schedule is made for another length in a fifth of the runs."""
    runs = [plan(s, "plain") for s in range(400)]
    wrong = np.mean([r.task.planned_steps != r.n_steps for r in runs])
    assert float(wrong) == pytest.approx(0.2, abs=0.06)


def test_a_tenth_of_the_fault_runs_has_a_second_fault() -> None:
    """Second faults come later, fit the task and are not held out in training."""
    runs = [plan(s, "opt_lost") for s in range(300)]
    two = [r for r in runs if len(r.faults) == 2]
    assert 10 <= len(two) <= 45
    for run in two:
        first, second = run.faults
        assert second.step >= first.step + 50
        assert run.first_bad_step == first.step
        assert set(KINDS[second.kind].needs) <= abilities(run.task)
        assert run.split == "test" or not KINDS[second.kind].is_held_out


def test_published_set_up() -> None:
    """`medium` is the tiny transformer, 1200 steps, batch 8, rate 3e-3, usual strengths."""
    run = plan(0, "lr_spike_loud", preset="medium")
    task = run.task
    assert (task.family, task.size, run.n_steps) == ("gpt", "tiny", 1200)
    assert (task.batch, task.lr, task.optimizer) == (8, 3e-3, "adamw")
    assert run.faults[0].strength == 60.0
    assert run.split == "train"


def test_placebos_have_no_first_bad_step() -> None:
    """A placebo has a step and no label."""
    run = plan(3, "placebo_nothing")
    assert run.faults[0].step > 0
    assert run.first_bad_step == -1


def test_bad_requests_are_refused() -> None:
    """Unknown kinds and presets and negative seeds."""
    with pytest.raises(ValueError, match="frozen list"):
        plan(0, "bit_flop")
    with pytest.raises(ValueError, match="preset 'huge' is not one of tiny, medium, six"):
        plan(0, "bit_flip", preset="huge")
    with pytest.raises(ValueError, match="a seed is an integer from 0"):
        plan(-1, "bit_flip")


@pytest.mark.parametrize("kind", ["buffer_flip", "router_collapse"])
def test_forced_families_are_trained_by_what_can_train_them(kind: str) -> None:
    """A kind that asks for a family never gets an optimizer that cannot train it."""
    for seed in range(120):
        task = plan(seed, kind, preset="small").task
        assert not (task.family == "cnn" and task.optimizer == "muon")
        assert task.lr is not None
        assert 0.3 <= task.lr / LEARNING_RATES[task.optimizer] <= 1.5
