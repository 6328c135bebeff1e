"""Our section of a run's description in MLflow, between two markers in the user's own text."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

__all__ = ["NOTE", "with_section"]

NOTE = "mlflow.note.content"
"""The tag that MLflow shows as the run's description, in Markdown."""

_BEGIN, _END = "<!-- flashback:begin -->", "<!-- flashback:end -->"
# from the last begin before an end: a marker that the user has cut in two takes no text along
_SECTION = re.compile(f"{_BEGIN}(?:(?!{_BEGIN}).)*?{_END}", re.DOTALL)
_MAX_LENGTH = 8000  # MLflow cuts a longer tag, and our end marker with it


def with_section(note: str, verdict: Mapping[str, Any], text: str, link: str | None) -> str:
    """The user's `note` with our section in it, once.

    Args:
        note: The description as it is, with or without a section of ours.
        verdict: ``status``, ``first_bad_step`` and what else `panels.summary` gives.
        text: Plain lines that explain the verdict; they are escaped.
        link: Address of the report, None while there is none.

    Returns:
        The description with the section where it was, else at the end. What the user wrote stays
        to the letter; where there is no room left, the section is shortened or left out.
    """
    title = f"### flashback: {_headline(verdict)}"
    page = f"[Report]({link})" if link else ""
    for parts in ([title, _escaped(text), page], [title, page]):
        section = "\n\n".join([_BEGIN, *filter(None, parts), _END])
        result = _placed(note, section)
        if len(result) <= _MAX_LENGTH:
            return result
    return _SECTION.sub("", note)


def _headline(verdict: Mapping[str, Any]) -> str:
    if verdict.get("first_bad_step") is not None:
        return f"first bad step {verdict['first_bad_step']}"
    return str(verdict["status"]).replace("_", " ")


def _placed(note: str, section: str) -> str:
    if _SECTION.search(note):
        return _SECTION.sub(lambda _: section, note, count=1)
    return f"{note}\n\n{section}" if note else section


def _escaped(text: str) -> str:
    """`text` with every character that Markdown or HTML reads as a sign made harmless."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    lines = re.sub(r"([\\`*_\[\]#|!~])", r"\\\1", text).splitlines()
    return "\n".join(f"- {line}" for line in lines)
