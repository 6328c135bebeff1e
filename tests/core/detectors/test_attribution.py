"""Likely causes of findings: probabilities, their file, and that online is offline."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from flashback_core.detectors import FirstBadStepDetector
from flashback_core.detectors.attribution import FILE, CauseModel, load_causes
from flashback_core.detectors.first_bad_step import SHIPPED
from flashback_core.detectors.signature import NUMBERS
from flashback_core.errors import DetectorError
from flashback_core.report.model import MOST_CAUSES, DetectionReport
from flashback_core.testing import run_with_fault

ONE_ENTRY = frozenset({"weights_changed", "weights_changed: one entry"})


@pytest.fixture(scope="module")
def model() -> CauseModel:
    """The shipped causes."""
    found = load_causes(SHIPPED)
    assert found is not None
    return found


def names(model: CauseModel, *signs: str) -> list[str]:
    """Causes of signs alone, the likeliest first."""
    return [c.name for c in model.causes(frozenset(signs))]


NOBODY_KNOWS = frozenset({"no_such_kind"})


def test_probabilities_leave_room_for_the_unknown(model: CauseModel) -> None:
    """They are ordered, at most five, and sum to less than 1, whatever the numbers are."""
    rng = np.random.default_rng(0)
    for signs in (ONE_ENTRY, frozenset({"outlier"}), NOBODY_KNOWS):
        for numbers in (None, rng.normal(size=len(NUMBERS)) * 1e3):
            p = [c.probability for c in model.causes(signs, numbers)]
            assert len(p) <= MOST_CAUSES
            assert p == sorted(p, reverse=True)
            assert sum(p) < 1.0
            assert p or signs == NOBODY_KNOWS


def test_a_certain_finding_names_its_mechanism(model: CauseModel) -> None:
    """One entry is a bit, many tensors are a resume, a lost momentum is a lost momentum."""
    assert {n[:6] for n in names(model, *ONE_ENTRY)[:3]} == {"w_flip"}
    many = names(model, "weights_changed", "weights_changed: many tensors")
    assert {"resume_old_weights", "weights_rolled_back"} & set(many)
    kind = "state_changed"
    signs = (kind, f"{kind}: many tensors", f"{kind}: first moment only")
    assert "m_lost" in names(model, *signs)[:3]


def test_statistics_do_not_outweigh_what_is_certain(model: CauseModel) -> None:
    """An outlier beside changed weights brings no flipped gradient bits in."""
    fit = model.fitting(ONE_ENTRY | {"outlier"})
    assert fit == model.fitting(ONE_ENTRY)
    assert "grad_flip_exp" in model.fitting(frozenset({"outlier"}))


def test_a_cause_out_of_every_list_is_unknown(model: CauseModel) -> None:
    """Without its mechanism, a cause that was never shown leaves its share to the unknown."""
    signs = frozenset({"optimizer_step_reset"})
    known, unheard = model, model.without("adam_step_reset")
    rest = [1.0 - sum(m.probabilities(signs, None).values()) for m in (known, unheard)]
    assert rest[0] < rest[1]


def test_the_file_is_plain_json_and_comes_back(model: CauseModel, tmp_path: Path) -> None:
    """Saved and loaded it is the same."""
    model.save(tmp_path)
    assert load_causes(tmp_path) == model
    assert json.loads((tmp_path / FILE).read_text("utf-8"))["provenance"]["n_kinds"] > 30
    assert load_causes(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "version 9"), ({"weights": [[1.0]]}, "shape"),
        ({"families": {}}, "class"), ({"kinds": None}, "fit the detector again"),
        ({"mixture": {"other": 1}}, "fit the detector again"),
    ],
)  # fmt: skip
def test_a_broken_file_is_one_clear_error(
    model: CauseModel, change: dict[str, object], message: str
) -> None:
    """What came, and what to do."""
    with pytest.raises(DetectorError, match=message):
        CauseModel.from_dict({**model.to_dict(), **change})


def test_a_detector_carries_its_causes(tmp_path: Path) -> None:
    """Saved and loaded; a detector without them names none, and leaves no file behind."""
    detector = FirstBadStepDetector()
    run = run_with_fault(first_bad_step=120, kind="nonfinite")
    again = FirstBadStepDetector.load(detector.save(tmp_path))
    assert again.predict(run).bad == detector.predict(run).bad
    assert detector.predict(run).bad.causes
    detector.causes = None
    without = FirstBadStepDetector.load(detector.save(tmp_path))
    assert without.causes is None
    assert without.predict(run).bad.causes == ()


@pytest.mark.parametrize("kind", ["nonfinite", "update_jump"])
def test_a_report_with_causes_round_trips(kind: str) -> None:
    """The causes of a finding are in its JSON, and a report that has none still loads."""
    report = FirstBadStepDetector().predict(run_with_fault(first_bad_step=200, kind=kind))
    assert report.bad.causes
    assert DetectionReport.from_json(report.to_json()) == report
    old = report.to_dict()
    for finding in old["findings"]:
        del finding["causes"]
    loaded = DetectionReport.from_json(json.dumps(old))
    assert loaded.bad == replace(report.bad, causes=())
    assert loaded.bad.family == "unknown"


def test_what_is_told_at_its_row_has_causes_too() -> None:
    """A certain finding is told before the rows after it are there; its kind says enough."""
    stream = FirstBadStepDetector().stream()
    run = run_with_fault(first_bad_step=120, kind="nonfinite")
    rows = run.to_pandas().reset_index().to_dict("records")
    told = next(f for f in map(stream.update, rows) if f)
    assert told.kind == "nonfinite"
    assert told.causes


@pytest.mark.parametrize("stop", [121, 122, 140])
def test_causes_survive_a_restart(stop: int) -> None:
    """A stream that is stopped while the numbers of a finding wait gives the same causes."""
    detector = FirstBadStepDetector()
    run = run_with_fault(first_bad_step=120, kind="nonfinite")
    rows = run.to_pandas().reset_index().to_dict("records")
    stream = detector.stream()
    for i, row in enumerate(rows):
        if i == stop:
            stream = detector.stream(state=stream.state())
        stream.update(row)
    stream.finish()
    assert stream.report().findings == detector.predict(run).findings
    assert stream.report().bad.causes


def test_the_numbers_say_more_than_the_kind(model: CauseModel) -> None:
    """The same signs with other numbers give other probabilities."""
    numbers = np.zeros(len(NUMBERS))
    numbers[NUMBERS.index("exact:batch_seen later")] = 1.0
    once, again = (
        {c.name: c.probability for c in model.causes(frozenset({"batch_repeated"}), n)}
        for n in (np.zeros(len(NUMBERS)), numbers)
    )
    assert again["batch_stuck"] > once["batch_stuck"]
