"""The report as one self-contained HTML page: no network, no package, no server.

The page is text and inline SVG. One script adds the read-out, the zoom and the theme; a policy in
the page allows that script alone, by its hash, so nothing that came from a run can ever be run.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files

from flashback_core.report.facts import facts
from flashback_core.report.markup import esc, explained, run_text, section
from flashback_core.report.model import DetectionReport
from flashback_core.report.page_charts import chart_sections, recorded_parts
from flashback_core.report.page_verdict import evidence_section, now_section, verdict_card
from flashback_core.report.palette import DARK, LIGHT
from flashback_core.report.unseen import unseen
from flashback_core.report.verdict import verdict

__all__ = ["to_html"]

_PAPER = {
    "light": {
        "paper": "#fbfbfc", "card": "#ffffff", "sunk": "#f3f4f6", "ink": "#15181d",
        "soft": "#565e6a", "faint": "#a3abb6", "line": "#e3e6ea", "edge": "#d5d9df",
    },
    "dark": {
        "paper": "#12151a", "card": "#191d24", "sunk": "#1d222a", "ink": "#eceff3",
        "soft": "#a5aebb", "faint": "#5d6673", "line": "#2a303a", "edge": "#363e4a",
    },
}  # fmt: skip


_FOOT = (
    "Made by flashback from the run's own records; nothing was sent anywhere to make or to show it."
)


def to_html(report: DetectionReport) -> str:
    """`report` as a page, as text. Charts are there when the report has its table."""
    style, script = _style(), _asset("page.js")
    body = "".join(
        (
            verdict_card(report),
            "" if report.bad else _checked(report),
            chart_sections(report),
            evidence_section(report),
            now_section(report),
            _checked(report) if report.bad else "",
            _unseen(report),
            _facts(report),
        )
    )
    title = f"{verdict(report).headline} – {esc(report.source)}"
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>{esc(title, 200)}</title><style>{style}</style></head><body>"
        '<a class="skip" href="#verdict">To the verdict</a>'
        f'<header class="top"><b>flashback</b><span class="source">'
        f"{run_text(report.source, 200)}</span>"
        '<button type="button" id="theme" title="Light or dark">Theme</button></header>'
        f"<main>{body}</main><footer>{_FOOT}</footer><script>{script}</script></body></html>\n"
    )


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        "default-src 'none'; style-src 'unsafe-inline'; "
        f"script-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )


@cache
def _asset(name: str) -> str:
    return (files("flashback_core.report") / name).read_text(encoding="utf-8")


@cache
def _style() -> str:
    light, dark = _PAPER["light"] | LIGHT, _PAPER["dark"] | DARK
    return (
        f":root{{{_variables(light)}}}"
        f"@media (prefers-color-scheme: dark){{:root{{{_variables(dark)}}}}}"
        f':root[data-theme="light"]{{color-scheme:light;{_variables(light)}}}'
        f':root[data-theme="dark"]{{color-scheme:dark;{_variables(dark)}}}'
        f"@media print{{:root,:root[data-theme]{{{_variables(light)}}}}}"
        f"{_roles()}{_asset('page.css')}"
    )


def _variables(colours: Mapping[str, str]) -> str:
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())


def _roles() -> str:
    """Rules that give each role its colour in charts and legends."""
    rules = []
    for role in LIGHT:
        if role.startswith(("signed", "share")):
            rules.append(
                f".plot .{role}{{fill:var(--{role})}}.legend .{role}{{background:var(--{role})}}"
            )
        elif role != "band":
            rules.append(
                f".plot .{role}{{stroke:var(--{role})}}"
                f".plot .span.{role},.plot .stretch.{role}{{fill:var(--{role});stroke:none}}"
                f".at.{role}{{color:var(--{role})}}"
            )
    return "".join(rules)


def _checked(report: DetectionReport) -> str:
    """What was checked, for people who doubt a healthy verdict."""
    given = report.facts.get("checked")
    if not isinstance(given, (list, tuple)) or not given:
        return ""
    items = "".join(f"<li>{explained(str(c))}</li>" for c in given[:60])
    return section("checked", "What was checked", f'<ul class="plain">{items}</ul>')


def _unseen(report: DetectionReport) -> str:
    found = unseen(report.table)
    there = "not recorded" if report.table is not None else "not at hand"
    items = "".join(
        f"<li><strong>{esc(u.what)}</strong>: {there}. {explained(u.consequence)} "
        f"<em>{esc(u.how, 200)}</em></li>"
        for u in found
    )
    return section(
        "unseen", "What could not be seen", f'<ul class="plain">{items}</ul>' if items else ""
    )


def _facts(report: DetectionReport) -> str:
    rows = [*facts(report)]
    if report.table is not None:
        rows += [(f"Part {name}", words) for name, words in list(recorded_parts(report.table))[:40]]
    cells = "".join(
        f'<tr><th scope="row">{esc(k)}</th><td>{run_text(v, 400)}</td></tr>' for k, v in rows
    )
    return section("facts", "Facts of this run", f'<table class="facts">{cells}</table>')
