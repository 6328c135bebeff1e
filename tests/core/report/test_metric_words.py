"""`report.metric_words`: metrics in words."""

from __future__ import annotations

from flashback_core.report import metric_words
from flashback_core.schema import SketchSchema


def test_every_metric_of_the_schema_has_words() -> None:
    """Each of the 128 metrics has a label in words and a meaning."""
    names = SketchSchema().names
    assert all(metric_words.metric_meaning(n) for n in names)
    assert len({metric_words.metric_label(n) for n in names}) == len(names)


def test_other_groups_have_meanings_too() -> None:
    """A metric of a group of the user's own is explained like ours."""
    assert "2-norm" in metric_words.metric_meaning("group:router:grad_norm")
