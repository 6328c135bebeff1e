"""Kind and Place: what a fault is, and where it acts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from flashback_core.faults.base import Fault

__all__ = ["Kind", "Place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a fault acts; what is None is chosen by the fault's seed when it is attached.

    Args:
        tensor: Name of a parameter, or a pattern such as ``*.attn.*``.
        element: Position in the flattened tensor.
        bit: Bit of the element, 0 the lowest of the mantissa (float32: 31 is the sign).
    """

    tensor: str | None = None
    element: int | None = None
    bit: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What a fault kind is; `flashback_core.faults.register` adds one.

    Args:
        name: The kind, as in ``make(name, …)``.
        family: Kinds that break the same part of a loop.
        act: The class that does it.
        doc: One line; ``{strength}``, ``{tensor}``, ``{element}`` and ``{bit}`` are filled in.
        behaviour: What is expected to be seen after it.
        strength: The usual strength; its unit is told by `doc`.
        strengths: Smallest and largest strength of the benchmark; None for a kind of one strength.
        lasts: Steps that it lasts; None is to the end of the run.
        needs: What the loop must have: see `flashback_core.forensics.kinds.ABILITIES`.
        bits: Lowest and highest bit that the seed may choose, for bit flips.
    """

    name: str
    family: str
    act: type[Fault]
    doc: str
    behaviour: str
    strength: float = 1.0
    strengths: tuple[float, float] | None = None
    lasts: int | None = None
    needs: tuple[str, ...] = ()
    bits: tuple[int, int] | None = None
