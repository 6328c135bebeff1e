"""`report.causes`: likely causes in words, in every form of the report."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import jsonschema
from rich.console import Console

from flashback_core.detectors.attribution import load_causes
from flashback_core.detectors.first_bad_step import SHIPPED
from flashback_core.report.causes import CAUSES, FAMILIES, cause_words, causes_line
from flashback_core.report.json_schema import JSON_SCHEMA
from flashback_core.report.model import UNKNOWN, Cause, DetectionReport, Finding
from flashback_core.report.terminal import render


def finding(*causes: tuple[str, float, str]) -> Finding:
    """A finding with these causes."""
    return Finding(
        step=3, interval=(3, 3), kind="state_changed", confidence=0.99, severity="bad",
        causes=tuple(Cause(name=n, probability=p, family=f) for n, p, f in causes),
    )  # fmt: skip


LOST = finding(("opt_lost", 0.5, "state"), ("m_lost", 0.2, "state"), ("bf16_master", 0.1, "x"))


def with_causes(report: DetectionReport) -> DetectionReport:
    """The report, whose first finding has the causes of `LOST`."""
    first, *rest = report.findings
    return replace(report, findings=(replace(first, causes=LOST.causes), *rest))


def test_the_class_is_the_likeliest_or_unknown() -> None:
    """Probabilities add up by class; what nothing accounts for may be likelier."""
    assert LOST.family == "state"
    assert LOST.families == {"state": 0.7, "x": 0.1}
    assert finding(("opt_lost", 0.3, "state"), ("m_lost", 0.1, "a")).family == UNKNOWN
    assert finding().family == UNKNOWN


def test_one_line_says_it() -> None:
    """Causes with their chance, then the class; nothing without causes."""
    assert causes_line(LOST) == (
        "Likely causes: the optimizer's state lost (50 %), the optimizer's momentum lost (20 %), "
        "master weights rounded to bfloat16 (10 %). Coarse class: optimizer state (70 %)."
    )
    assert causes_line(finding()) == ""
    assert causes_line(finding(("odd_kind", 0.2, "mine"))).endswith("Coarse class: unknown.")


def test_every_shipped_cause_has_words() -> None:
    """No raw name reaches a reader; an unknown name is made readable."""
    model = load_causes(SHIPPED)
    assert model is not None
    assert set(model.families) <= set(CAUSES)
    assert set(model.families.values()) <= set(FAMILIES)
    assert cause_words("my_kind") == "my kind"


def test_every_form_of_the_report_shows_them(spiked: DetectionReport) -> None:
    """Markdown, page and terminal name the first cause and the class."""
    report = with_causes(spiked)
    console = Console(file=StringIO(), width=300)
    render(report, console)
    for text in (report.to_markdown(), report.to_html(), console.file.getvalue()):
        assert "state lost" in text
        assert "Coarse class: optimizer state (70 %)." in text


def test_names_are_text(spiked: DetectionReport) -> None:
    """A cause that is called like a tag stays text."""
    bad = Cause(name="<img src=x>", probability=0.9, family="<b>")
    first, *rest = spiked.findings
    report = replace(spiked, findings=(replace(first, causes=(bad,)), *rest))
    assert "<img src" not in report.to_html()
    assert "<img src" not in report.to_markdown()


def test_the_schema_knows_them(spiked: DetectionReport) -> None:
    """A report with causes is valid."""
    jsonschema.validate(with_causes(spiked).to_dict(), JSON_SCHEMA)
