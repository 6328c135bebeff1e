"""Columns of a terminal: names that are never broken inside a word, and what fits beside them."""

from __future__ import annotations

import re
from collections.abc import Sequence

__all__ = ["LONG_NAME", "fitting", "folded", "name_width"]

LONG_NAME = 36
"""Names up to this length are kept in one line where the terminal is wide enough."""

_PARTS = re.compile(r"[^:/._\s|-]*[:/._\s|-]|[^:/._\s|-]+")


def folded(name: str, width: int) -> str:
    r"""`name` with line breaks behind its separators, so that no line is wider than `width`.

    Only a part that is by itself wider than that is broken inside.

    Examples:
        >>> folded("group:attn_out:update_norm", 20)
        'group:attn_out:\nupdate_norm'
    """
    width = max(width, 1)
    lines = [""]
    for part in _PARTS.findall(name):
        if len(lines[-1]) + len(part) <= width or not lines[-1]:
            lines[-1] += part
        else:
            lines.append(part)
    cut = [line[i : i + width] for line in lines for i in range(0, len(line), width)]
    return "\n".join(cut)


def name_width(names: Sequence[str]) -> int:
    """Columns that the names are given: the longest one, long ones folded."""
    return min(max((len(name) for name in names), default=1), LONG_NAME)


def fitting(
    columns: Sequence[Sequence[str]], names: Sequence[str], room: int, padding: int
) -> tuple[int, int]:
    """How many columns fit beside the names, and the width that is left for a sparkline.

    Args:
        columns: Cells of each column with its head, in the order in which they are given up: the
            last one first.
        names: What stands in the first column.
        room: Columns of the terminal that are free.
        padding: Columns between two cells.
    """
    free = room - name_width(names) - padding
    n = 0
    for cells in columns:
        need = max(len(c) for c in cells) + padding
        if free < need:
            break
        free -= need
        n += 1
    return n, max(free - padding, 0)
