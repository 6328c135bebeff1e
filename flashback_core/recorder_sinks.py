"""The sinks of a recorder: one alert for one fault, whoever finds it first."""

from __future__ import annotations

from collections.abc import Sequence

from flashback_core.report.model import Finding
from flashback_core.sink import Sink
from flashback_core.sink_set import SinkSet
from flashback_core.warn import Guard

__all__ = ["AlertingOnce", "Told"]

NEAR = 2
"""Bad findings whose steps are this close are one fault."""


class Told:
    """Which bad findings people know of.

    A report merges the signs of one fault, so the kind of a finding may be another one in the end;
    the step is what stays.
    """

    def __init__(self) -> None:
        self._steps: set[int] = set()

    def is_new(self, finding: Finding) -> bool:
        """Whether nobody was told of this fault; from now on they are."""
        if finding.severity != "bad":
            return True
        near = range(finding.step - NEAR, finding.step + NEAR + 1)
        is_new = self._steps.isdisjoint(near)
        self._steps.add(finding.step)
        return is_new


class AlertingOnce(SinkSet):
    """A `SinkSet` that the detection of the run that goes on and the report may both alert.

    Args:
        sinks: Where to send.
        guard: Warns once per sink.
        every: Steps between two sends.
    """

    def __init__(self, sinks: Sequence[Sink], guard: Guard, every: int) -> None:
        super().__init__(sinks, guard, every)
        self._told = Told()

    def alert(self, finding: Finding) -> None:
        """Tell people of `finding`, unless they know of a bad one within two steps."""
        if self._told.is_new(finding):
            super().alert(finding)
