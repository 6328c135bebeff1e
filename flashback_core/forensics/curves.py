"""Curves with intervals as one SVG file each, without any package."""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["psychometric_svg", "reliability_svg"]

WIDTH, HEIGHT = 680, 360
_LEFT, _RIGHT, _TOP, _BOTTOM = 56, 216, 40, 48
_COLOURS = ("#1f6feb", "#d1495b", "#2a9d55", "#b7791f", "#7c5cc4", "#3b8ea5")

Point = tuple[float, float, float, float]  # x in [0, 1], share, low, high


def psychometric_svg(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Share found against d′, one curve per detector."""
    points = {
        name: [(_log_place(r["d_prime"]), r["found"] / r["n"], *r["interval"]) for r in rows]
        for name, rows in curves.items()
    }
    ticks = [(_log_place(d), f"{d:g}") for d in (0.1, 1, 8, 100, 1000)] + [(1.0, "≥ 10⁴")]
    return _chart("Found within 2 steps, by visibility of the fault", "d′ (8: visible)", ticks,
                  points)  # fmt: skip


def reliability_svg(curves: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    """Share that is right against the confidence that was stated, one curve per detector."""
    points = {
        name: [(r["confidence"], r["right"] / r["n"], *r["interval"]) for r in rows]
        for name, rows in curves.items()
    }
    ticks = [(x / 4, f"{x / 4:g}") for x in range(5)]
    return _chart("Right within 2 steps, by stated confidence", "confidence", ticks, points,
                  has_diagonal=True)  # fmt: skip


def _log_place(d_prime: float) -> float:
    return min(max((math.log10(max(d_prime, 0.1)) + 1.0) / 5.0, 0.0), 1.0)


def _x(place: float) -> float:
    return _LEFT + place * (WIDTH - _LEFT - _RIGHT)


def _y(share: float) -> float:
    return _TOP + (1.0 - share) * (HEIGHT - _TOP - _BOTTOM)


def _chart(
    title: str,
    axis: str,
    ticks: Sequence[tuple[float, str]],
    curves: Mapping[str, Sequence[Point]],
    *,
    has_diagonal: bool = False,
) -> str:
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        f'font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="{html.escape(title)}">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>',
        f'<text x="{_LEFT}" y="22" font-size="14" font-weight="600">{html.escape(title)}</text>',
    ]
    for share in (0, 0.25, 0.5, 0.75, 1):
        parts.append(_line(_x(0), _y(share), _x(1), _y(share), "#d8dde4"))
        parts.append(_text(_LEFT - 8, _y(share) + 4, f"{share:.0%}", "end"))
    for place, label in ticks:
        parts.append(_line(_x(place), _y(0), _x(place), _y(0) + 5, "#8b949e"))
        parts.append(_text(_x(place), _y(0) + 19, label, "middle"))
    parts.append(_text(_x(0.5), HEIGHT - 8, axis, "middle"))
    if has_diagonal:
        parts.append(_line(_x(0), _y(0), _x(1), _y(1), "#8b949e"))
    for i, (name, points) in enumerate(curves.items()):
        parts += _curve(name, points, i)
    return "\n".join([*parts, "</svg>\n"])


def _curve(name: str, points: Sequence[Point], i: int) -> list[str]:
    colour = _COLOURS[i % len(_COLOURS)]
    line = " ".join(f"{_x(x):.1f},{_y(y):.1f}" for x, y, _, _ in points)
    parts = [f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2"/>']
    for x, y, low, high in points:
        parts.append(_line(_x(x), _y(low), _x(x), _y(high), colour))
        parts.append(f'<circle cx="{_x(x):.1f}" cy="{_y(y):.1f}" r="3.5" fill="{colour}"/>')
    row = _TOP + 12 + 18 * i
    parts.append(_line(WIDTH - _RIGHT + 12, row - 4, WIDTH - _RIGHT + 28, row - 4, colour))
    parts.append(_text(WIDTH - _RIGHT + 34, row, name, "start"))
    return parts


def _line(x0: float, y0: float, x1: float, y1: float, colour: str) -> str:
    return (
        f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}" stroke-width="1.2" '
        'fill="none"/>'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="#24292f">'
        f"{html.escape(text)}</text>"
    )
