"""Faults: defects put into a training run on purpose, at a known step.

Examples:
    A plain loop; the fault is attached before the recorder, so that the recorder sees its work::

        import flashback_core as fb
        from flashback_core import faults

        fault = faults.make("bit_flip", step=400, seed=3).attach(model, optimizer)
        with fb.Recorder("runs/broken", model, optimizer) as rec:
            for step, batch in enumerate(loader):
                batch = fault.batch(step, batch)      # only data faults need this line
                ...
        print(fault.description)

    A new kind::

        class SignFlip(faults.Fault):
            def _gradients(self, step):
                if self.is_active(step):
                    for gradient in self.gradients():
                        gradient.neg_()

        faults.register(faults.Kind(
            name="sign_flip", family="gradient_scale", act=SignFlip, lasts=1,
            doc="gradients negated", behaviour="one step uphill"))
"""

from __future__ import annotations

from flashback_core.faults.base import Fault
from flashback_core.faults.kind import Kind, Place
from flashback_core.faults.phases import Phases
from flashback_core.faults.registry import kind_of, kinds, make, register

__all__ = ["Fault", "Kind", "Phases", "Place", "kind_of", "kinds", "make", "register"]
