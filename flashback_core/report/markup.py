"""Pieces of HTML: escaping, and the few tags that every section uses."""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence

from flashback_core.report.metric_words import metric_meaning
from flashback_core.report.text import ABBREVIATIONS, MAX_TEXT, clean

__all__ = ["code", "esc", "explained", "metric_name", "run_text", "section", "table"]


def esc(value: object, limit: int = MAX_TEXT) -> str:
    """`value` cleaned, cut and escaped, for text and for attributes in double quotes."""
    return html.escape(clean(value, limit), quote=True)


def run_text(value: object, limit: int = MAX_TEXT) -> str:
    """Text that a run gave: escaped, and with a direction of writing of its own."""
    return f"<bdi>{esc(value, limit)}</bdi>"


def metric_name(name: str) -> str:
    """A metric's real name; hovering explains it where it is one of ours."""
    meaning = metric_meaning(name)
    inner = f"<code>{run_text(name, 80)}</code>"
    return f'<abbr title="{esc(meaning, 300)}">{inner}</abbr>' if meaning else inner


def explained(sentence: str, limit: int = 600) -> str:
    """A sentence, escaped, with the first use of each abbreviation explained on hover."""
    text = esc(sentence, limit)
    for word, meaning in ABBREVIATIONS.items():
        tag = f'<abbr title="{esc(meaning, 300)}">{word}</abbr>'
        text = re.sub(rf"(?<![\w:<>=\"/-]){re.escape(word)}(?![\w:>\"=-])", tag, text, count=1)
        if tag in text:
            break  # one a sentence: an explanation must not be explained
    return text


def code(text: str, language: str, why: str) -> str:
    """A command with its purpose and a button that copies it."""
    return (
        f'<div class="command"><p>{esc(why, 200)}</p>'
        f'<pre data-language="{esc(language)}"><code>{html.escape(text, quote=True)}</code></pre>'
        '<button type="button" class="copy">Copy</button></div>'
    )


def table(
    head: Sequence[str], rows: Iterable[Sequence[str]], *, numeric: Sequence[int] = ()
) -> str:
    """A table; cells are HTML already. Columns in `numeric` are set to the right."""
    heads = "".join(f'<th scope="col"{_right(i, numeric)}>{h}</th>' for i, h in enumerate(head))
    body = "".join(
        "<tr>" + "".join(f"<td{_right(i, numeric)}>{c}</td>" for i, c in enumerate(row)) + "</tr>"
        for row in rows
    )
    return (
        f'<div class="scroll" tabindex="0"><table><thead><tr>{heads}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _right(column: int, numeric: Sequence[int]) -> str:
    return ' class="n"' if column in numeric else ""


def section(identity: str, title: str, body: str, *, lead: str = "") -> str:
    """A section of the page; nothing at all when `body` is empty."""
    if not body:
        return ""
    under = f'<p class="lead">{lead}</p>' if lead else ""
    return (
        f'<section id="{identity}" aria-labelledby="h-{identity}">'
        f'<h2 id="h-{identity}">{title}</h2>{under}{body}</section>'
    )
