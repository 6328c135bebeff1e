"""Drawing a chart specification as SVG, without any package.

`shapes` draws into a box of `WIDTH` x `HEIGHT` units that a page stretches to its size; text is not
among the shapes, so that it stays text. `to_svg` adds the labels for a picture of its own.
"""

from __future__ import annotations

import html
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from flashback_core.report.palette import SHARE_STEPS, SIGNED_STEPS, level_name, level_of
from flashback_core.report.scales import HEIGHT, WIDTH, ValueScale, places, value_scale
from flashback_core.report.spec import Band, HeatMap, Lanes, Line, Panel, Rule, Span

__all__ = ["shapes"]

DOTS_UP_TO = 160
Floats = npt.NDArray[np.float64]


def shapes(chart: Panel | HeatMap | Lanes) -> str:
    """The shapes of one chart, as the inside of an SVG element."""
    if isinstance(chart, Panel):
        return "".join(_panel(chart))
    if isinstance(chart, HeatMap):
        return "".join(_heat(chart))
    return "".join(_lanes(chart))


def _panel(panel: Panel) -> Iterator[str]:
    scale = value_scale(panel)
    if panel.band is not None:
        yield _band(panel.band, panel.domain, scale)
    yield from (_span(s, panel.domain) for s in panel.spans)
    yield from (_rule(r, panel.domain) for r in panel.rules)
    for line in panel.lines:
        yield from _line(line, panel.domain, scale)


def _band(band: Band, domain: tuple[float, float], scale: ValueScale) -> str:
    x = places(band.steps, domain)
    top, bottom = scale.places(band.high), scale.places(band.low)
    bottom = np.where(np.isfinite(top) & ~np.isfinite(bottom), HEIGHT * 1.2, bottom)
    path = ""
    for part in _unbroken(np.isfinite(top)):
        there = _points(x[part], top[part])
        back = _points(x[part][::-1], bottom[part][::-1])
        path += f"M{there}L{back}Z"
    return f'<path class="band" d="{path}"/>' if path else ""


def _span(span: Span, domain: tuple[float, float]) -> str:
    left, right = places([span.first - 0.5, span.last + 0.5], domain)
    path = f"M{left:.0f} 0H{right:.0f}V{HEIGHT}H{left:.0f}Z"
    return f'<path class="span {_role(span.role)}" d="{path}"/>'


def _rule(rule: Rule, domain: tuple[float, float]) -> str:
    x = float(places(rule.step, domain))
    return f'<path class="rule {_role(rule.role)}" d="M{x:.0f} 0V{HEIGHT}"/>'


def _line(line: Line, domain: tuple[float, float], scale: ValueScale) -> Iterator[str]:
    x, y = places(line.steps, domain), scale.places(line.values)
    parts = _unbroken(np.isfinite(y))
    path = "".join(f"M{_points(x[p], y[p])}" for p in parts if p.stop - p.start > 1)
    role = _role(line.role)
    if path:
        yield f'<path class="line {role}" d="{path}"/>'
    lonely = [p.start for p in parts if p.stop - p.start == 1]
    dots = range(len(x)) if len(x) <= DOTS_UP_TO else lonely
    path = "".join(f"M{x[i]:.0f} {y[i]:.0f}h0" for i in dots if np.isfinite(y[i]))
    if path:
        yield f'<path class="dots {role}" d="{path}"/>'
    odd = x[~np.isfinite(line.values)]
    if len(odd):
        marks = "".join(f"M{v:.0f} 0v130" for v in odd)
        yield f'<path class="odd" d="{marks}"/>'


def _points(x: Floats, y: Floats) -> str:
    """Absolute first point, then relative ones: fewer digits."""
    xs, ys = np.floor(x).astype(np.int64), np.rint(y).astype(np.int64)
    steps = zip(np.diff(xs).tolist(), np.diff(ys).tolist(), strict=True)
    rest = " ".join(f"{dx} {dy}" for dx, dy in steps)
    return f"{xs[0]} {ys[0]}" + (f"l{rest}" if rest else "")


def _unbroken(there: npt.NDArray[np.bool_]) -> list[slice]:
    """Stretches in which `there` holds."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], there, [False]]).astype(np.int8)))
    return [slice(int(a), int(b)) for a, b in edges.reshape(-1, 2)]


def _heat(chart: HeatMap) -> Iterator[str]:
    x = np.rint(places(chart.edges, chart.domain)).astype(np.int64)
    levels = level_of(chart.values, chart.scale)
    height = HEIGHT / len(chart.rows)
    steps = SIGNED_STEPS if chart.scale == "signed" else SHARE_STEPS
    for level in steps:
        path = "".join(_cells(levels, level, x, height))
        if path:
            yield f'<path class="cell {level_name(chart.scale, level)}" d="{path}"/>'
    yield from (_rule(r, chart.domain) for r in chart.rules)


def _cells(
    levels: npt.NDArray[np.int64], level: int, x: npt.NDArray[np.int64], height: float
) -> Iterator[str]:
    """Rectangles of one level, neighbours in a row drawn as one."""
    for i, row in enumerate(levels):
        for part in _unbroken(row == level):
            left, right = x[part.start], x[part.stop]
            yield f"M{left} {i * height:.4g}H{right}v{height * 0.94:.4g}H{left}Z"


def _lanes(chart: Lanes) -> Iterator[str]:
    height = HEIGHT / len(chart.lanes)
    for i, (_, marks) in enumerate(chart.lanes):
        top, bottom = (i + 0.2) * height, (i + 0.8) * height
        for role in dict.fromkeys(m.role for m in marks):
            same = [m for m in marks if m.role == role]
            x = places([m.step for m in same], chart.domain)
            path = "".join(f"M{v:.0f} {top:.0f}V{bottom:.0f}" for v in x)
            yield f'<path class="mark {_role(role)}" d="{path}"/>'
            long = [m for m in same if m.last is not None and m.last > m.step]
            if long:
                ends = places(
                    [(m.step - 0.5, (m.last or m.step) + 0.5) for m in long], chart.domain
                )
                boxes = "".join(
                    f"M{a:.0f} {top:.0f}H{b:.0f}V{bottom:.0f}H{a:.0f}Z" for a, b in ends
                )
                yield f'<path class="stretch {_role(role)}" d="{boxes}"/>'


def _role(role: str) -> str:
    return html.escape(role, quote=True)


def view_box() -> str:
    """The box that `shapes` draws in, as attributes of an SVG element."""
    return f'viewBox="0 0 {WIDTH} {HEIGHT}" preserveAspectRatio="none"'
