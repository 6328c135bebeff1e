"""JSON Schema of a report: what `DetectionReport.to_dict` writes and ``report.json`` holds.

The schema has the version of the report, `flashback_core.report.model.REPORT_VERSION`. A later
version may add keys; it never changes what a key of this version means.
"""

from __future__ import annotations

from typing import Any

from flashback_core.report.model import MOST_CAUSES, REPORT_VERSION, SEVERITIES, STATUSES

__all__ = ["JSON_SCHEMA"]

_STEP = {"type": ["integer", "null"]}
_INTERVAL = {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2}
_CONFIDENCE = {"type": "number", "minimum": 0, "maximum": 1}
_NUMBER = {
    "description": "A number; infinity is the string inf or -inf, NaN is null.",
    "anyOf": [{"type": ["number", "null"]}, {"enum": ["inf", "-inf"]}],
}
_SENTENCES = {"type": "array", "items": {"type": "string"}}

_METRIC_SCORE = {
    "type": "object",
    "description": "A metric that moved.",
    "required": ["metric", "score", "step"],
    "properties": {
        "metric": {"type": "string", "description": "Its name in the index."},
        "score": {**_NUMBER, "description": "Robust deviations from the baseline."},
        "step": {"type": "integer", "description": "Step at which it moved."},
    },
    "additionalProperties": False,
}

_CAUSE = {
    "type": "object",
    "description": "A likely cause of a finding.",
    "required": ["name", "probability", "family"],
    "properties": {
        "name": {"type": "string", "description": "A fault kind, e.g. opt_lost."},
        "probability": {**_CONFIDENCE, "description": "How likely it is."},
        "family": {"type": "string", "description": "Its coarse class, e.g. state."},
    },
    "additionalProperties": False,
}

_FINDING = {
    "type": "object",
    "description": "One thing that the detector found.",
    "required": [
        "step", "interval", "kind", "confidence", "severity", "evidence", "top_metrics",
    ],
    "properties": {
        "step": {"type": "integer", "description": "First bad step, in the run's numbering."},
        "interval": {**_INTERVAL, "description": "Credible interval, both ends included."},
        "kind": {"type": "string", "description": "What it looks like, e.g. lr_jump."},
        "confidence": {**_CONFIDENCE, "description": "Weight of the evidence."},
        "severity": {
            "enum": list(SEVERITIES),
            "description": "bad; change: a regime change that looks wanted; or info.",
        },
        "evidence": {**_SENTENCES, "description": "For people, the strongest first."},
        "top_metrics": {
            "type": "array",
            "items": {"$ref": "#/$defs/metric_score"},
            "description": "In the order in which they moved.",
        },
        "causes": {
            "type": "array",
            "items": {"$ref": "#/$defs/cause"},
            "maxItems": MOST_CAUSES,
            "description": "Likely causes, the likeliest first; the rest to 1 is unknown.",
        },
    },
    "additionalProperties": False,
}  # fmt: skip

JSON_SCHEMA: dict[str, Any] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "title": "flashback report",
    "description": "At which step a training run first went wrong, and what moved first.",
    "type": "object",
    "required": [
        "report_version", "status", "first_bad_step", "interval", "confidence", "kind", "n_steps",
        "first_step", "last_step", "top_metrics", "evidence", "findings", "detector", "source",
        "facts",
    ],
    "properties": {
        "report_version": {"const": REPORT_VERSION},
        "status": {"enum": list(STATUSES)},
        "first_bad_step": {**_STEP, "description": "Step of the first bad finding, or null."},
        "interval": {"anyOf": [_INTERVAL, {"type": "null"}]},
        "confidence": {**_CONFIDENCE, "description": "Of the first bad step; 0 without one."},
        "kind": {"type": ["string", "null"]},
        "n_steps": {"type": "integer", "minimum": 0, "description": "Rows that were looked at."},
        "first_step": _STEP,
        "last_step": _STEP,
        "top_metrics": {"type": "array", "items": {"$ref": "#/$defs/metric_score"}},
        "evidence": _SENTENCES,
        "findings": {
            "type": "array",
            "items": {"$ref": "#/$defs/finding"},
            "description": "Everything found, first step first.",
        },
        "detector": {
            "type": "object",
            "description": "Name and version of the detector.",
            "additionalProperties": {"type": "string"},
        },
        "source": {"type": "string", "description": "Where the run lies, for people."},
        "facts": {"type": "object", "description": "Facts of the run; any JSON values."},
    },
    "additionalProperties": False,
    "$defs": {"metric_score": _METRIC_SCORE, "cause": _CAUSE, "finding": _FINDING},
}  # fmt: skip
