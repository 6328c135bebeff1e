"""Each invariant is reported where it was first broken, and habits of a run are not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from flashback_core.report.model import Finding
from flashback_core.table import MemoryTable
from tests.core.detectors.rules_on import INVARIANTS, said

N, T0 = 100, 60


def _find(events: list[dict[str, Any]] | None = None, **fields: Any) -> list[Finding]:
    columns: dict[str, Any] = {"loss": np.linspace(3, 1, N), "lr": np.full(N, 1e-3)}
    columns |= {"update_norm": np.full(N, 0.1)}
    columns |= {f"hist_update:{i}": np.full(N, 1000) for i in range(16)}
    columns |= {f"exact:{name}": np.asarray(values) for name, values in fields.items()}
    table = MemoryTable(np.arange(N), columns, events=events or ())
    return said(table, INVARIANTS)


def _from(t0: int, value: int, before: int = 0, length: int = N) -> np.ndarray:
    out = np.full(N, before)
    out[t0 : t0 + length] = value
    return out


def _kinds(findings: list[Finding]) -> list[tuple[str, int, str]]:
    return [(f.kind, f.step, f.severity) for f in findings]


def test_nothing_known_nothing_said() -> None:
    """A run without exact fields, and a clean run, break nothing."""
    assert _find() == []
    clean = {name: np.zeros(N, int) for name in ("outside", "duplicates", "lost_updates")}
    assert _find(**clean, batch_seen=np.full(N, -1), labels=np.ones(N, int)) == []


@pytest.mark.parametrize(
    ("bit", "kind"), [(1, "weights_changed"), (2, "state_changed"), (4, "buffers_changed")]
)
def test_outside(bit: int, kind: str) -> None:
    """One change from outside is certain, at its step, with the tensor's name."""
    event = {"event": "outside", "step": T0, "what": {1: "weights", 2: "optimizer state",
             4: "buffers"}[bit], "n_tensors": 1, "tensors": ["h.0.weight"]}  # fmt: skip
    (finding,) = _find([event], outside=_from(T0, bit, length=1))
    assert _kinds([finding]) == [(kind, T0, "bad")]
    assert "h.0.weight" in finding.evidence[0]


def test_outside_by_habit() -> None:
    """Weights that are scaled outside the optimizer at every step are the run's own way."""
    assert _find(outside=np.ones(N, int)) == []


def test_outside_at_the_start_of_a_session() -> None:
    """A checkpoint loaded after the recorder was made, or before a resume, is no fault."""
    session = {"event": "session", "step": T0}
    assert _find([session], outside=_from(T0, 3, length=1)) == []
    assert _find(outside=_from(0, 3, length=1)) == []


SETTINGS = {
    "eps": ({"eps of group 0": [1e-8, 1e-3]}, ("config_changed", T0, "bad")),
    "dropout": ({"p of 3": [0.1, 0.3]}, ("config_changed", T0, "bad")),
    "a decay far off": ({"weight_decay of group 0": [0.1, 10.0]}, ("config_changed", T0, "bad")),
    "a decay to zero": ({"weight_decay of group 0": [0.1, 0.0]}, ("config_changed", T0, "bad")),
    "a decay and more": (
        {"weight_decay of group 0": [0.1, 0.2], "eps of group 0": [1e-8, 1e-7]},
        ("config_changed", T0, "bad"),
    ),
    "a decay as schedules have it": (
        {"weight_decay of group 0": [0.01, 0.05], "weight_decay of group 1": [0.02, 0.01]},
        ("config_changed", T0, "change"),
    ),
    "eval": ({"training of net": [True, False]}, ("eval_mode", T0, "bad")),
    "thaw": ({"requires_grad of a": [False, True]}, ("unfreeze", T0, "change")),
}


@pytest.mark.parametrize("case", SETTINGS)
def test_settings(case: str) -> None:
    """Hyper-parameters and eval mode are bad; a thawed parameter, or more decay, is a change."""
    changed, expected = SETTINGS[case]
    event = {"event": "config", "step": T0, "n_settings": 1, "changed": changed}
    assert _kinds(_find([event], config_hash=_from(T0, 7, before=5))) == [expected]


@pytest.mark.parametrize(
    ("kind", "setting", "values"),
    [("unfreeze", "requires_grad of a", [False, True]),
     ("weight_decay", "weight_decay of group 0", [0.01, 0.1])],
)  # fmt: skip
def test_declared_settings_are_silent(kind: str, setting: str, values: list[Any]) -> None:
    """A change of settings that was declared is not even a change."""
    events = [
        {"event": "expect", "step": T0, "kind": kind},
        {"event": "config", "step": T0, "changed": {setting: values}},
    ]
    assert _find(events, config_hash=_from(T0, 7, before=5)) == []


def _seen(lag: int, length: int) -> np.ndarray:
    out = np.full(N, -1)
    rows = np.arange(T0, min(T0 + length, N))
    out[rows] = rows - lag
    return out


def test_repeated_batches() -> None:
    """The same batch twice, and a stretch of old batches while others were never seen."""
    assert _kinds(_find(batch_seen=_seen(1, 1))) == [("batch_repeated", T0, "bad")]
    assert _kinds(_find(batch_seen=_seen(T0, 30))) == [("data_replay", T0, "bad")]
    left = {"ids_left": np.full(N, 40)}
    assert _kinds(_find(batch_seen=_seen(T0, 30), **left)) == [("data_replay", T0, "bad")]


def test_an_epoch_that_repeats_is_only_noted() -> None:
    """Once all samples were seen, or a new epoch began, the same order again is information."""
    expected = [("no_reshuffle", T0, "info")]
    left = np.arange(T0 - 1, T0 - 1 - N, -1).clip(0)
    assert _kinds(_find(batch_seen=_seen(T0, 30), ids_left=left)) == expected
    assert _kinds(_find(batch_seen=_seen(T0, 30), epoch=_from(T0, 1))) == expected


def test_a_replay_in_the_middle_of_a_shuffled_epoch() -> None:
    """Batches of the first epoch that come again when a later one had its own order are a fault."""
    left = np.arange(40, 40 - N, -1).clip(0)
    found = _find(batch_seen=_seen(T0, 30), ids_left=left)
    assert _kinds(found) == [("data_replay", T0, "bad")]
    assert "another order" in found[0].evidence[0]


def test_repeats_by_habit() -> None:
    """Full-batch training has one batch for ever; single chance repeats are no stretch."""
    rows = np.arange(N)
    assert _find(batch_seen=rows - 1) == []
    assert _find(batch_seen=_seen(37, 1)) == []


def test_duplicates_and_labels() -> None:
    """Lasting duplicates after a clean stretch; labels that stop following the inputs at once."""
    assert _kinds(_find(duplicates=_from(T0, 1))) == [("duplicate_samples", T0, "bad")]
    assert _find(duplicates=_from(T0, 1, length=2)) == []
    assert _find(duplicates=_from(5, 1)) == []
    assert _kinds(_find(labels=_from(T0, 0, before=1))) == [("labels_misaligned", T0, "bad")]
    assert _find(labels=np.zeros(N, int)) == []
    assert _find(labels=_from(T0, -1, length=2, before=1)) == []  # batches that cannot tell
    late = _from(T0, 0, before=1)
    late[:3] = -1
    assert _kinds(_find(labels=late)) == [("labels_misaligned", T0, "bad")]


def test_updates_and_gradients_that_stop() -> None:
    """Tensors that stop to move or to have a gradient, after a stretch in which they did."""
    assert _kinds(_find(lost_updates=_from(T0, 2))) == [("update_lost", T0, "bad")]
    assert _kinds(_find(zero_grads=_from(T0, 3, before=1))) == [("zero_gradient", T0, "bad")]
    assert _kinds(_find(no_grads=_from(T0, 3))) == [("missing_gradient", T0, "bad")]
    flicker = np.arange(N) % 5
    assert _find(zero_grads=flicker) == []


def test_experts_that_starve_for_a_while() -> None:
    """The number of tensors without a gradient does not stay, and in the end it is none again."""
    counts = np.zeros(N, int)
    counts[T0 : T0 + 20] = [4, 4, 4, 4, 12, 4, 4, 4, 12, 12, 4, 4, 8, 8, 4, 8, 8, 8, 4, 4]
    assert _find(zero_grads=counts) == []
    counts[T0 : T0 + 40] = [4, 8] * 20
    assert _kinds(_find(zero_grads=counts)) == [("zero_gradient", T0, "bad")]


def test_updates_that_fade_out() -> None:
    """More and more entries are below the precision of their weights, until one tensor is still."""
    unmoved = np.arange(N) * 4
    assert _find(lost_updates=_from(T0, 1), unmoved=unmoved) == []
    unmoved = np.where(np.arange(N) < T0, 5, 4000)
    assert _kinds(_find(lost_updates=_from(T0, 1), unmoved=unmoved)) == [("update_lost", T0, "bad")]


def test_nothing_moves_from_the_start() -> None:
    """An optimizer that holds other parameters than the model's is seen from step 0 on."""
    columns = {"update_norm": np.zeros(N), "lr": np.full(N, 1e-3)}
    table = MemoryTable(np.arange(N), {**columns, "exact:lost_updates": np.full(N, 9)})
    assert _kinds(said(table, INVARIANTS)) == [("update_lost", 0, "bad")]


def test_precision_lost() -> None:
    """Weights whose low 16 bits are gone from one step on."""
    assert _kinds(_find(low16=_from(T0, 16_000, before=3))) == [("precision_lost", T0, "bad")]
    assert _find(low16=np.full(N, 16_000)) == []


def test_skipped_steps_lose_no_update() -> None:
    """A step that the scaler skipped moves nothing, and that is no fault."""
    skipped = _from(T0, 1, length=4)
    assert _find(lost_updates=_from(T0, 9, length=4), step_skipped=skipped) == []


def test_what_an_adapter_told() -> None:
    """Replicas that differ and a resume that lost state are findings; a clean resume is none."""
    divergence = {"event": "replica_divergence", "step": 40, "rank": 1, "text": "Rank 1 differs."}
    clean = {"event": "resume_check", "step": 20, "differs": []}
    lossy = {"event": "resume_check", "step": T0, "differs": ["optimizer state"]}
    found = _kinds(_find([clean, divergence, lossy]))
    assert found == [("replica_divergence", 40, "bad"), ("resume_discontinuity", T0, "bad")]
