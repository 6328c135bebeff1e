"""Two kinds of one's own: what `flashback forensics build --also` takes."""

from flashback_core import faults
from flashback_core.forensics import healthy, kinds
from flashback_core.forensics.events import Change


class SignFlip(faults.Fault):
    """All gradients negated."""

    def _gradients(self, step: int) -> None:
        if self.is_active(step):
            for gradient in self.gradients():
                gradient.neg_()


def lower_dropout(config, n_steps, rng):
    """Dropout 0.05 from the middle on."""

    def change(task):
        for module in task.model.modules():
            if hasattr(module, "p"):
                module.p = 0.05

    return config, [Change(n_steps // 2, change, "dropout")]


faults.register(faults.Kind(name="sign_flip", family="gradient_scale", act=SignFlip, lasts=1,
                            doc="gradients negated", behaviour="one step uphill"))  # fmt: skip
kinds.add("sign_flip")
healthy.register("lower_dropout", healthy.HealthyKind(
    doc="less dropout from the middle on", make=lower_dropout, needs=("dropout",),
    declares="dropout"))  # fmt: skip
kinds.add("lower_dropout")
