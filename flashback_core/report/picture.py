"""A chart as an SVG picture of its own, without any package.

The picture follows the reader's theme, light or dark. With the extra ``report`` the module `vega`
makes PNG pictures too.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

from flashback_core.report.palette import DARK, LIGHT
from flashback_core.report.scales import WIDTH, places, step_ticks, value_scale
from flashback_core.report.spec import Chart, HeatMap, Lanes, Panel, Stack
from flashback_core.report.svg import shapes, view_box
from flashback_core.report.text import clean

__all__ = ["to_svg"]

_LEFT, _RIGHT, _HEAD, _FOOT = 124, 14, 40, 26
_TEXT = "font-family:system-ui,'DejaVu Sans',sans-serif;font-size:11px"
_PAPER = {"light": ("#ffffff", "#15181d", "#565e6a"), "dark": ("#12151a", "#eceff3", "#a5aebb")}


def to_svg(chart: Chart, *, width: int = 760) -> str:
    """`chart` as the text of an SVG file.

    Args:
        chart: What to draw.
        width: Of the picture, in pixels; at least 300.
    """
    width = max(width, 300)
    charts = chart.charts if isinstance(chart, Stack) else (chart,)
    parts, top = [], 0
    for part in charts:
        parts.append(f'<g transform="translate(0 {top})">{"".join(_chart(part, width))}</g>')
        top += _HEAD + _height(part) + _FOOT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{top}" '
        f'viewBox="0 0 {width} {top}"><title>{_esc(chart.title)}</title><style>{_style()}</style>'
        f'<rect class="paper" width="{width}" height="{top}"/>{"".join(parts)}</svg>\n'
    )


def _esc(text: str, limit: int = 100) -> str:
    return html.escape(clean(text, limit), quote=True)


def _height(chart: Panel | HeatMap | Lanes) -> int:
    if isinstance(chart, Panel):
        return chart.height
    if isinstance(chart, HeatMap):
        return len(chart.rows) * chart.row_height
    return len(chart.lanes) * 20


def _chart(chart: Panel | HeatMap | Lanes, width: int) -> Iterator[str]:
    inner, height = width - _LEFT - _RIGHT, _height(chart)
    yield f'<text class="head" x="{_LEFT}" y="15">{_esc(chart.title)}</text>'
    yield f'<text class="soft" x="{_LEFT}" y="31">{_esc(chart.note, 110)}</text>'
    box = f'x="{_LEFT}" y="{_HEAD}" width="{inner}" height="{height}"'
    yield f'<rect class="sunk" {box}/>'
    yield f"<svg {box} {view_box()}>{shapes(chart)}</svg>"
    for share, words in _side(chart):
        y = _HEAD + share * height + 4
        yield f'<text class="soft end" x="{_LEFT - 7}" y="{y:.1f}">{_esc(words, 18)}</text>'
    yield from _rule_words(chart, inner)
    for left, words in step_ticks(chart.domain):
        x, y = _LEFT + left * inner / 100, _HEAD + height + 15
        yield f'<text class="soft middle" x="{x:.1f}" y="{y}">{_esc(words)}</text>'


def _rule_words(chart: Panel | HeatMap | Lanes, inner: int) -> Iterator[str]:
    """Words over the rules, on the line of the title; the bad ones first, none over another."""
    taken: list[float] = []
    rules = () if isinstance(chart, Lanes) else chart.rules
    for rule in sorted(rules, key=lambda r: r.role != "bad"):
        x = _LEFT + float(places(rule.step, chart.domain)) / WIDTH * inner
        room = 7.0 * len(rule.label)
        if all(abs(x - other) > room for other in taken) and x > _LEFT + 150:
            taken.append(x)
            role = _esc(rule.role)
            yield f'<text class="{role} middle" x="{x:.1f}" y="15">{_esc(rule.label, 30)}</text>'


def _side(chart: Panel | HeatMap | Lanes) -> list[tuple[float, str]]:
    """Labels on the left and how far down they stand, from 0 to 1."""
    if isinstance(chart, Panel):
        return [(top / 100, words) for top, words in value_scale(chart).ticks()]
    names = chart.rows if isinstance(chart, HeatMap) else [label for label, _ in chart.lanes]
    return [((i + 0.5) / len(names), name) for i, name in enumerate(names)]


def _style() -> str:
    rules = [
        f"text{{{_TEXT};fill:var(--ink)}}.head{{font-weight:600;font-size:13px}}"
        ".soft{fill:var(--soft)}.end{text-anchor:end}.middle{text-anchor:middle}"
        ".paper{fill:var(--paper)}.sunk{fill:var(--soft);opacity:.08}"
        "path{vector-effect:non-scaling-stroke;fill:none}.line{stroke-width:1.4}"
        ".dots{stroke-width:3.6;stroke-linecap:round}.rule{stroke-width:1.4;stroke-dasharray:4 3}"
        ".mark{stroke-width:2.4}path.odd{stroke:var(--bad);stroke-width:2.5}"
        "path.band{fill:var(--band)}path.cell{shape-rendering:crispEdges}",
        f":root{{{_variables('light')}}}",
        f"@media (prefers-color-scheme:dark){{:root{{{_variables('dark')}}}}}",
    ]
    for role in LIGHT:
        if role.startswith(("signed", "share")):
            rules.append(f".{role}{{fill:var(--{role})}}")
        elif role != "band":
            rules.append(f"path.{role}{{stroke:var(--{role})}}text.{role}{{fill:var(--{role})}}")
            rules.append(
                f".span.{role},.stretch.{role}{{fill:var(--{role});stroke:none;opacity:.2}}"
            )
    return "".join(rules)


def _variables(theme: str) -> str:
    paper, ink, soft = _PAPER[theme]
    colours = (DARK if theme == "dark" else LIGHT) | {"paper": paper, "ink": ink, "soft": soft}
    return "".join(f"--{name}:{colour};" for name, colour in colours.items())
