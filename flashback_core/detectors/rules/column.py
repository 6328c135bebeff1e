"""ColumnRule: a rule that looks at whole stretches of one column, not at single rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from flashback_core.detectors.rules.rule import Rule
from flashback_core.detectors.rules.view import Bools, Layout, View

__all__ = ["ColumnRule"]


class ColumnRule(Rule):
    """Subclasses have `run`. A run without the column has no such rule."""

    always = True
    column: ClassVar[str] = ""
    beside: ClassVar[tuple[str, ...]] = ()
    """Columns that it looks at too, where they are there."""

    def wants(self, table_names: Sequence[str]) -> list[str]:
        """The columns."""
        return [name for name in (self.column, *self.beside) if name in table_names]

    def bind(self, layout: Layout) -> None:
        """Whether there is such a column."""
        if self.column not in layout.row:
            self.silence()

    def hits(self, view: View) -> Bools | None:
        """None: `run` looks at all rows at once."""
        return None
