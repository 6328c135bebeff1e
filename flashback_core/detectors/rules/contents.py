"""Rules on what samples hold: one that came before comes with other inputs or other labels.

Augmentation, noise and odd documents change samples too, at their own rate and all along: see
`unusual`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from flashback_core.detectors.rules.unusual import Unusual
from flashback_core.detectors.rules.view import Floats, View

__all__ = ["Contents", "InputsChanged", "LabelsChanged"]

_COMPARED = "exact:samples_known"


class Contents(Unusual):
    """Samples that came again, and those of them that changed; subclasses name the column."""

    what: ClassVar[str] = ""

    def cases(self, view: View) -> Floats:
        """Samples of each row that came again and can be compared."""
        return view.column(_COMPARED)

    def texts(self, view: View, step: int, n: int, k: int) -> list[str]:
        """How many changed, and which."""
        text = (
            f"Samples that had come before came with {self.what} from step {step} on: {k} of "
            f"{n}, and {self.changed or 'none'} of {self.n} in the steps before."
        )
        return [text, *_named(view, step, self.kind.removesuffix("_changed"))]


class InputsChanged(Contents):
    """Other inputs under the same sample id."""

    column = "exact:inputs_changed"
    beside = (_COMPARED,)
    kind, what = "inputs_changed", "other inputs"


class LabelsChanged(Contents):
    """Other labels on the same inputs."""

    column = "exact:labels_changed"
    beside = (_COMPARED, "exact:inputs_changed")
    kind, what = "labels_changed", "other labels on the same inputs"

    def cases(self, view: View) -> Floats:
        """Samples that came again with the inputs that they had."""
        known = view.column(_COMPARED)
        if not view.has(InputsChanged.column):
            return known
        return np.asarray(known - view.column(InputsChanged.column).clip(0))


def _named(view: View, step: int, what: str) -> Iterator[str]:
    """Which samples changed at `step`, where the recorder noted it."""
    for event in view.book.noted("samples", step):
        if event.get("what") == what:
            where = "ids" if event.get("ids") else "rows"
            names = [str(x) for x in event.get(where, ())]
            more = int(event.get("n", len(names))) - len(names)
            tail = f" and {more} more" if more > 0 else ""
            of = "ids" if where == "ids" else f"rows of the batch of step {step}"
            yield f"The first of them: {of} {', '.join(names)}{tail}."
