"""Colours by role, light and dark, told apart by people who see red and green alike.

Lines and marks take hues of the Okabe–Ito set; surprise runs from blue (below) over grey to orange
(above), shares from pale to dark in one hue.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["DARK", "LIGHT", "SHARE_STEPS", "SIGNED_STEPS", "legend", "level_name", "level_of"]

LIGHT = {
    "series-1": "#0067a6",
    "series-2": "#b3478c",
    "series-3": "#00795a",
    "series-4": "#8a6100",
    "bad": "#c03d00",
    "change": "#7a4fa3",
    "good": "#00795a",
    "quiet": "#6b7280",
    "info": "#6b7280",
    "band": "#cfe3d8",
    "signed-p4": "#a33600",
    "signed-p3": "#d95f02",
    "signed-p2": "#f2a25c",
    "signed-p1": "#fad7b5",
    "signed-p0": "#eceef1",
    "signed-n1": "#cbdcf0",
    "signed-n2": "#8fb8de",
    "signed-n3": "#3f86c2",
    "signed-n4": "#0b4f8a",
}

DARK = {
    "series-1": "#6cb8f0",
    "series-2": "#e39ac9",
    "series-3": "#55c9a4",
    "series-4": "#e3b74f",
    "bad": "#ff8f57",
    "change": "#c3a2ec",
    "good": "#55c9a4",
    "quiet": "#9aa4b2",
    "info": "#9aa4b2",
    "band": "#24453a",
    "signed-p4": "#ff8a3d",
    "signed-p3": "#d4691f",
    "signed-p2": "#96501f",
    "signed-p1": "#553520",
    "signed-p0": "#262c35",
    "signed-n1": "#24405c",
    "signed-n2": "#2c618f",
    "signed-n3": "#4590cc",
    "signed-n4": "#86c5f7",
}

SIGNED_STEPS = tuple(range(-4, 5))
SHARE_STEPS = tuple(range(8))
_SIGNED = (4.0, 8.0, 16.0, 32.0)
"""Robust deviations at which a stronger colour begins."""
_SHARE = (0.0, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.15)
"""Shares above which a darker colour begins."""

_LIGHT_SHARE = (
    "#f4f5f7",
    "#e3ecf5",
    "#cadcee",
    "#a8c7e3",
    "#7aabd3",
    "#4788bd",
    "#1f639f",
    "#0a3f73",
)
_DARK_SHARE = (
    "#1b2027",
    "#1f2c3a",
    "#213c55",
    "#265176",
    "#2f6b9b",
    "#4a8ec2",
    "#7fb6e2",
    "#c3e0f8",
)
LIGHT |= {f"share-p{i}": c for i, c in enumerate(_LIGHT_SHARE)}
DARK |= {f"share-p{i}": c for i, c in enumerate(_DARK_SHARE)}


def level_of(values: npt.NDArray[np.float64], scale: str) -> npt.NDArray[np.int64]:
    """The colour step of each value; -99 where nothing is known."""
    known = np.isfinite(values)
    x = np.where(known, values, 0.0)
    if scale == "signed":
        level = np.sign(x) * np.searchsorted(_SIGNED, np.abs(x), side="right")
    else:
        level = np.searchsorted(_SHARE, x, side="left")
    return np.where(known, level, -99).astype(np.int64)


def level_name(scale: str, level: int) -> str:
    """Name of a colour step, as in `LIGHT` and in the page's classes.

    Examples:
        >>> level_name("signed", -3), level_name("share", 2)
        ('signed-n3', 'share-p2')
    """
    return f"{scale}-{'n' if level < 0 else 'p'}{abs(level)}"


def legend(scale: str) -> tuple[tuple[int, str], ...]:
    """Colour steps and what they mean, for the line under a heat map."""
    if scale == "signed":
        return (
            (-4, "32 or more below"), (-3, "16"), (-2, "8"), (-1, "4"), (0, "as usual"),
            (1, "4"), (2, "8"), (3, "16"), (4, "32 or more above"),
        )  # fmt: skip
    return ((0, "none"), (2, "up to 0.01 %"), (4, "1 %"), (5, "5 %"), (6, "15 %"), (7, "more"))
