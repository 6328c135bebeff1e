"""The rules of others, as they are published."""

from __future__ import annotations

import copy
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt
import pytest

from flashback_core.errors import NoBaselineError
from flashback_core.forensics.peers import PEERS, Peer, changepoints, peers
from flashback_core.forensics.peers.base import innovations
from flashback_core.forensics.peers.changepoints import Focus, RupturesPelt, _focus
from flashback_core.forensics.peers.rules import (
    FiniteCheck,
    KillLossSpike,
    LossZScore,
    MegatronSpike,
    SixSigma,
    SoupMedian,
    SpikeDetection,
    WandbZScore,
    ZClip,
)
from flashback_core.forensics.tables import LabelledRun
from flashback_core.table import MemoryTable, StepTable

Floats = npt.NDArray[np.float64]
N = 300


def table(loss: Floats | None = None, norm: Floats | None = None) -> MemoryTable:
    """A calm run with a given loss or gradient norm."""
    rng = np.random.default_rng(2)
    calm = 2.0 + rng.normal(0.0, 0.01, (2, N))
    columns = {"loss": calm[0] if loss is None else loss, "grad_norm": calm[1]
               if norm is None else norm, "nonfinite": np.zeros(N)}  # fmt: skip
    return MemoryTable(np.arange(N), columns)


def spiked(at: int, value: float) -> Floats:
    """A calm loss with one other value."""
    loss = np.asarray(table().column("loss")).copy()
    loss[at] = value
    return loss


def alarms(peer: Peer, run: StepTable) -> list[int]:
    """Rows at which it alarms."""
    return [int(i) for i in np.flatnonzero(peer.alarms(run))]


def test_names_are_distinct_and_said_in_a_line() -> None:
    """Every peer has a name and its rule with the settings."""
    assert len({p.name for p in PEERS}) == len(PEERS)
    assert all(10 < len(p.doc) < 100 for p in PEERS)


def test_lightning_needs_three_times_the_mean() -> None:
    """A loss of 5.9 is no spike at a mean of 2; 6.1 is; nothing is in the first hundred."""
    assert alarms(SpikeDetection(), table(spiked(200, 5.9))) == []
    assert alarms(SpikeDetection(), table(spiked(200, 6.1))) == [200]
    assert alarms(SpikeDetection(), table(spiked(99, 60.0))) == []


def test_soup_needs_twice_the_median() -> None:
    """Of the twenty before; NaN always."""
    assert alarms(SoupMedian(), table(spiked(200, 3.9))) == []
    assert alarms(SoupMedian(), table(spiked(200, 4.1))) == [200]
    assert alarms(SoupMedian(), table(spiked(200, np.nan))) == [200]


def test_kill_loss_spike_needs_five_in_a_row() -> None:
    """Twice the mean of the last hundred, five times."""
    loss = np.asarray(table().column("loss")).copy()
    loss[200:204] = 4.5
    assert alarms(KillLossSpike(), table(loss)) == []
    loss[204] = 4.5
    assert alarms(KillLossSpike(), table(loss)) == [204]
    high = np.asarray(table().column("loss")).copy()
    high[100:] = 10.5
    assert 150 in alarms(KillLossSpike(), table(high))


def test_megatron_compares_with_the_first_hundred() -> None:
    """Ten times the largest of them; NaN at any step but the first."""
    assert alarms(MegatronSpike(), table(spiked(200, 19.0))) == []
    assert alarms(MegatronSpike(), table(spiked(200, 21.0))) == [200]
    assert alarms(MegatronSpike(), table(spiked(0, np.nan))) == []


def test_finite_check() -> None:
    """Only what is not finite."""
    assert alarms(FiniteCheck(), table(spiked(200, 1e30))) == []
    assert alarms(FiniteCheck(), table(spiked(200, np.inf))) == [200]


def test_one_nan_blinds_six_sigma() -> None:
    """As measured on the original: it skips the step of the NaN and the 128 after it."""
    assert alarms(SixSigma(), table(spiked(150, 2.5))) == [150]
    assert alarms(SixSigma(), table(spiked(150, np.nan))) == list(range(150, 279))


def test_wandb_alarms_at_three_sigma() -> None:
    """Either way, of the thirty before."""
    assert 200 in alarms(WandbZScore(), table(spiked(200, 2.1)))
    assert 200 in alarms(WandbZScore(), table(spiked(200, 1.9)))


def test_zclip_alarms_above_only() -> None:
    """A norm that is too large, not one that is too small."""
    assert 200 in alarms(ZClip(), table(norm=spiked(200, 4.0)))
    assert 200 not in alarms(ZClip(), table(norm=spiked(200, 0.5)))


def test_focus_is_the_largest_of_all_onsets() -> None:
    """The pruned list gives what trying every onset gives."""
    z = np.random.default_rng(5).normal(0.0, 1.0, 120) + np.where(np.arange(120) < 70, 0.0, 1.0)
    sums = np.concatenate([[0.0], np.cumsum(z)])
    brute = [
        max(max(sums[t] - sums[k], 0.0) ** 2 / (2 * (t - k)) for k in range(t))
        for t in range(1, 121)
    ]
    np.testing.assert_allclose(_focus(z), brute, atol=1e-9)


def test_calibrated_peer_keeps_its_budget() -> None:
    """In 500 healthy steps no alarm is allowed; the fault itself does not count."""
    peer = LossZScore().fit([table(), table(spiked(200, 9.0))], [None, 200])
    assert alarms(peer, table()) == []
    assert alarms(peer, table(spiked(220, 9.0))) == [220]
    noisy = [table(spiked(200, 3.0)) for _ in range(100)]  # 30 000 steps: three are allowed
    noisy[7:] = [table() for _ in noisy[7:]]
    threshold = LossZScore().fit(noisy, [None] * 100).threshold
    assert threshold == pytest.approx(float(LossZScore().score(noisy[0])[200]))
    with pytest.raises(NoBaselineError, match="no healthy step"):
        Focus().fit([table()[:20]], [None])


def test_innovations_are_in_units_of_their_own_size() -> None:
    """About one, whatever the scale; the future plays no part."""
    x = np.random.default_rng(6).normal(0.0, 1.0, 600)
    z = innovations(x)
    assert 0.7 < np.std(z[200:]) < 1.5
    np.testing.assert_allclose(innovations(1000.0 * x), z)
    np.testing.assert_array_equal(innovations(x[:400]), z[:400])


@pytest.mark.parametrize("kind", PEERS, ids=lambda kind: kind.__name__)
def test_peer_reports_and_leaves_the_run_alone(kind: type[Peer], runs: list[LabelledRun]) -> None:
    """The same answer twice, on a run of NaN too, and on one step."""
    if kind.needs and find_spec(kind.needs) is None:
        pytest.skip(f"{kind.needs} is not installed")
    train = [run for run in runs if run.split == "train" and not run.is_twin]
    peer = kind().fit([run.table for run in train], [run.first_bad_step for run in train])
    run = runs[0].table
    before = copy.deepcopy(run.values)
    assert peer.predict(run) == peer.predict(run)
    np.testing.assert_array_equal(run.values, before)
    empty = MemoryTable(np.arange(200), {"loss": np.full(200, np.nan)})
    assert peer.predict(empty).n_steps == 200
    assert peer.predict(run[:1]).n_steps == 1


def test_missing_package_leaves_the_peer_out() -> None:
    """What is there and what is missing are all of them."""
    there, missing = peers()
    assert {p.name for p in there} | set(missing) == {p.name for p in PEERS}


@pytest.mark.skipif(find_spec("ruptures") is None, reason="needs ruptures")
def test_pelt_takes_long_runs_in_stretches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Changes are named by their rows in the run, and the end of a stretch is none."""
    monkeypatch.setattr(changepoints, "_STRETCH", 250)
    signals = np.random.default_rng(4).normal(0.0, 0.1, (1000, 4))
    signals[600:] += 3.0
    assert RupturesPelt()._changes(signals) == [600]
    assert RupturesPelt()._changes(signals[:240]) == []
