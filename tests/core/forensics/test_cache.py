"""An interrupted scoring goes on, and nothing that changed is taken from before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector, LossCurveDetector
from flashback_core.forensics import cache
from flashback_core.forensics.cache import OutcomeCache, code_digest, detector_keys
from flashback_core.forensics.score import score
from flashback_core.table import StepTable


class Counts(LossCurveDetector):
    """Counts the runs that it is asked about."""

    n = 0

    def predict(self, index: StepTable) -> Any:
        """Count."""
        type(self).n += 1
        return super().predict(index)


class Stops(Counts):
    """Is interrupted at its fifth run."""

    n = 0

    def predict(self, index: StepTable) -> Any:
        """Count, and stop once."""
        if type(self).n == 4:
            type(self).n += 1
            raise KeyboardInterrupt
        return super().predict(index)


def test_interrupted_scoring_goes_on(data: Path, tmp_path: Path) -> None:
    """What was judged before is not judged again, and the result is as without interruption."""
    with pytest.raises(KeyboardInterrupt):
        score(data, {"a": Stops()}, jobs=1, cache=tmp_path / "kept")
    assert len(list((tmp_path / "kept").glob("*.json"))) == 4
    found = score(data, {"a": Stops()}, jobs=1, cache=tmp_path / "kept")
    assert Stops.n == 11  # ten runs and the interruption
    fresh = score(data, {"a": LossCurveDetector()}, jobs=1)
    assert _plain(found) == _plain(fresh)


def _plain(result: dict[str, Any]) -> list[dict[str, Any]]:
    rows = json.loads(json.dumps(result["outcomes"]))
    return [{k: v for k, v in row.items() if k != "cpu_us"} for row in rows]


def test_only_a_new_detector_is_run(data: Path, tmp_path: Path) -> None:
    """Beside one whose outcomes are there."""
    Counts.n = 0
    score(data, {"a": Counts()}, jobs=1, cache=tmp_path)
    assert Counts.n == 10
    result = score(data, {"a": Counts(), "b": LossCurveDetector()}, jobs=1, cache=tmp_path)
    assert Counts.n == 10
    assert len(result["outcomes"]) == 20


def test_key_follows_settings_and_name() -> None:
    """Another threshold is another detector; the same one has the same key."""
    a, b = FirstBadStepDetector(), FirstBadStepDetector(budget=9.0)
    keys = detector_keys({"a": a, "b": b, "c": a})
    assert len(set(keys.values())) == 3
    assert keys == detector_keys({"a": FirstBadStepDetector(), "b": b, "c": a})


_KEYS = """
import json
from flashback_core.forensics.cache import detector_keys
from flashback_core.forensics.peers import peers
from flashback_core.forensics.score import detectors
from flashback_core.testing import run_with_fault

runs = [run_with_fault(first_bad_step=120)] * 2
found = {p.name: p.fit(runs, [None, None]) for p in peers()[0]}
print(json.dumps(detector_keys(detectors() | found)))
"""


def test_key_is_the_same_in_another_process() -> None:
    """In which sets have another order: else no interrupted scoring would ever go on."""
    first, second = (
        json.loads(
            subprocess.run(
                [sys.executable, "-c", _KEYS],
                env=os.environ | {"PYTHONHASHSEED": seed},
                check=True, capture_output=True, text=True,
            ).stdout
        )
        for seed in ("1", "2")
    )  # fmt: skip
    assert first == second
    assert len(set(first.values())) == len(first) == 21


class Holds(LossCurveDetector):
    """Holds a thing."""

    def __init__(self, held: Any) -> None:
        """Hold it."""
        super().__init__()
        self.held = held


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1.0, 2.0], [2.0, 1.0]),
        ([1.0], (1.0,)),
        (1, 1.0),
        (1, True),
        ("1", 1),
        ({"a": 1}, {"a": 2}),
        ({"a": 1}, {"b": 1}),
        ({"ab"}, {"a", "b"}),
        (["ab", "c"], ["a", "bc"]),
        (np.zeros(3), np.zeros((3, 1))),
        (np.zeros(3), np.zeros(3, np.float32)),
        (np.zeros(1, [("x", "u1"), ("y", "f8")]), np.ones(1, [("x", "u1"), ("y", "f8")])),
        (np.array(["a", 1], object), np.array(["a", 2], object)),
        (LossCurveDetector(threshold=5.0), LossCurveDetector(threshold=6.0)),
        (len, max),
    ],
)
def test_key_follows_what_is_held(one: Any, other: Any) -> None:
    """However deep it lies; what is equal has one key."""
    keys = detector_keys({"a": Holds([one])}), detector_keys({"a": Holds([other])})
    assert keys[0] != keys[1]
    assert keys[0] == detector_keys({"a": Holds([one])})


def test_key_of_what_holds_itself() -> None:
    """Comes to an end."""
    held: list[Any] = [1]
    held.append(held)
    assert detector_keys({"a": Holds(held)}) != detector_keys({"a": Holds([1])})


def test_key_follows_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other code, other key."""
    before = detector_keys({"a": LossCurveDetector()})
    monkeypatch.setattr(cache, "code_digest", lambda: "0" * 16)
    assert detector_keys({"a": LossCurveDetector()}) != before
    assert len(code_digest()) == 16


def test_other_data_are_judged_anew(tmp_path: Path) -> None:
    """The bytes of the file decide, not its name or date; a file cut short counts as none."""
    kept = OutcomeCache(tmp_path / "kept", {"a": "k"})
    path = tmp_path / "test-x.parquet"
    path.write_bytes(b"one")
    kept.keep(path, {"a": []})
    assert kept.known(path) == {"a": []}
    assert OutcomeCache(tmp_path / "kept", {"a": "other"}).known(path) == {}
    path.write_bytes(b"two")
    assert kept.known(path) == {}
    kept.keep(path, {"a": []})
    (place,) = kept
    place.write_text(place.read_text("utf-8")[:9], encoding="utf-8")
    assert kept.known(path) == {}
