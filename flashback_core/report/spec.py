"""The grammar of charts: plain data that `svg` draws and `vega` translates.

A chart is a `Panel` (lines, points, a healthy band, rules and spans over steps), a `HeatMap`
(rows by steps), `Lanes` (marks of events by kind) or a `Stack` of these that share their steps.
Colours are roles, never values: ``series-1`` to ``series-4``, ``bad``, ``change``, ``good`` and
``quiet``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Band", "Chart", "HeatMap", "Lanes", "Line", "Mark", "Panel", "Rule", "Span", "Stack"]

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A series over steps. Values that are not finite break the line and are marked at the top."""

    steps: Ints
    values: Floats
    label: str
    role: str = "series-1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """The range in which healthy values lie, by step."""

    steps: Ints
    low: Floats
    high: Floats
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A vertical line at a step, with a word on it."""

    step: int
    label: str
    role: str = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A stretch of steps, both ends included."""

    first: int
    last: int
    label: str
    role: str = "bad"


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """Series over steps with their healthy band.

    Attributes:
        title: Plain words.
        domain: Where the steps begin and end, half a step before the first and after the last.
        log: Whether values are shown on a logarithmic scale.
        note: A sentence that says in words what the chart shows.
        height: Of the plotting area, in CSS pixels.
    """

    title: str
    domain: tuple[float, float]
    lines: tuple[Line, ...]
    band: Band | None = None
    rules: tuple[Rule, ...] = ()
    spans: tuple[Span, ...] = ()
    log: bool = False
    note: str = ""
    height: int = 96
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeatMap:
    """Values by row and by stretch of steps.

    Attributes:
        edges: Where the columns begin, half a step before their first step, and where the last
            ends; shape (columns + 1,).
        rows: Names of the rows, top first.
        values: Shape (rows, columns); NaN where nothing is known.
        leads: What to say of a cell beside its value, shape (rows, columns) of indices into
            `words`; negative for nothing.
        scale: ``signed`` (robust deviations, both directions) or ``share`` (0 to 1).
    """

    title: str
    edges: Floats
    rows: tuple[str, ...]
    values: Floats
    scale: str
    unit: str
    leads: npt.NDArray[np.int64] | None = None
    words: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()
    note: str = ""
    name: str = ""
    row_height: int = 18

    @property
    def domain(self) -> tuple[float, float]:
        """Where the columns begin and end."""
        return float(self.edges[0]), float(self.edges[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class Lanes:
    """Events as marks at their steps, one lane for each kind of event."""

    title: str
    domain: tuple[float, float]
    lanes: tuple[tuple[str, tuple[Mark, ...]], ...]
    note: str = ""
    name: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """One event in a lane."""

    step: int
    label: str
    role: str = "quiet"
    last: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Charts above each other that share their steps and are zoomed together."""

    title: str
    charts: tuple[Panel | HeatMap | Lanes, ...]
    note: str = ""
    name: str = ""
    jumps: tuple[tuple[str, int, int], ...] = field(default=())
    """Stretches of steps that can be shown with one press: (words, first, last)."""


Chart = Panel | HeatMap | Lanes | Stack
