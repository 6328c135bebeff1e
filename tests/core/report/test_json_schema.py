"""`report.json_schema`: the published form of report.json."""

from __future__ import annotations

import copy
from pathlib import Path

import jsonschema
import pytest

from flashback_core.report.json_schema import JSON_SCHEMA
from flashback_core.report.model import DetectionReport, MetricScore

VALIDATOR = jsonschema.Draft202012Validator(JSON_SCHEMA)


def test_the_schema_is_one() -> None:
    """The schema itself is valid."""
    jsonschema.Draft202012Validator.check_schema(JSON_SCHEMA)


def test_every_kind_of_report_fits(
    spiked, healthy, with_nan, loss_only, hostile, make_report
) -> None:
    """Bad, healthy, empty and hostile reports fit the schema, before and after JSON."""
    reports = [spiked, healthy, with_nan, loss_only, hostile, make_report(None, "not_enough_data")]
    for report in reports:
        VALIDATOR.validate(report.to_dict())
        VALIDATOR.validate(DetectionReport.from_json(report.to_json()).to_dict())


def test_scores_that_are_no_numbers_fit(make_run, make_bad) -> None:
    """An infinite score is a string, a NaN is null; both are allowed."""
    report = make_bad(make_run(20), 3)
    for score in (float("inf"), float("nan")):
        data = copy.deepcopy(report)
        finding = data.findings[0]
        object.__setattr__(finding, "top_metrics", (MetricScore(metric="a", score=score, step=3),))
        VALIDATOR.validate(data.to_dict())


@pytest.mark.parametrize(
    "change", [{"status": "fine"}, {"confidence": 2}, {"report_version": 99}, {"extra": 1}]
)
def test_other_things_do_not_fit(change: dict[str, object], spiked) -> None:
    """A wrong status, confidence or version and unknown keys are refused."""
    with pytest.raises(jsonschema.ValidationError):
        VALIDATOR.validate(spiked.to_dict() | change)


def test_every_key_is_documented() -> None:
    """`docs/report.md` names every key of the report, and every fact that the page knows."""
    text = (Path(__file__).parents[3] / "docs" / "report.md").read_text("utf-8")
    facts = ("checked", "confidence_meaning", "false_alarms_per_100k", "budget", "rewind")
    for key in (*JSON_SCHEMA["properties"], *facts):
        assert f"`{key}`" in text, key
    for key in JSON_SCHEMA["$defs"]["finding"]["properties"]:
        assert key in text, key
