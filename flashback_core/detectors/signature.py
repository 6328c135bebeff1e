"""Signature: what a finding looks like, as words and numbers that fit any model.

The *signs* are words: the kinds of all findings of the step, and what their evidence says of how
much changed (one entry, one tensor, many), of which setting and in which direction. The *numbers*
are the deviations of the metrics in the rows from the onset on, by family, whatever the groups are
called and however many there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from flashback_core.detectors.features import Feature
from flashback_core.report.model import Finding

__all__ = ["EXACT", "NUMBERS", "ROWS", "numbers_of", "signs_of"]

Floats = npt.NDArray[np.float64]

ROWS = 4
"""Rows from the onset on that the numbers look at: the onset, and what follows."""
MOVED = 4.0
"""Deviations from which a feature has moved."""
_LARGEST = 1e3
_FAR_LR = 5.0

_MANY = (
    ("gradient", "before"), ("update", "after"), ("composition", "before"),
    ("composition", "after"), ("peak", "before"), ("peak", "after"), ("sign", "before"),
    ("parameter", "after"),
)  # fmt: skip
_ONE = (
    ("loss", "before", "loss"), ("histogram", "before", "mean"), ("histogram", "before", "width"),
    ("histogram", "after", "mean"), ("histogram", "after", "width"),
)  # fmt: skip
EXACT = tuple(
    f"exact:{name}"
    for name in (
        "step_skipped", "loss_scale", "clipped", "clip_coef", "batch_seen", "ids_seen",
        "duplicates", "labels", "outside", "zero_grads", "no_grads", "zero_updates",
        "lost_updates", "unmoved", "low16",
    )
)  # fmt: skip
"""Exact fields of which the numbers say whether they changed, and whether they stayed so."""

NUMBERS = (
    *(f"{f} {p} {what} {when}" for f, p in _MANY for when in ("now", "later")
      for what in ("middle", "strongest", "share")),
    *(f"{f} {p} {label} {when}" for f, p, label in _ONE for when in ("now", "later")),
    "lr now", "lr later",
    *(f"{name} {when}" for name in EXACT for when in ("now", "later")),
)  # fmt: skip
"""Names of the numbers, in their order."""


def numbers_of(items: Sequence[Feature], z: Floats, lr: Floats, exact: Floats) -> Floats:
    """The numbers of a signature, of shape (len(NUMBERS),).

    Args:
        items: The features.
        z: Their signed deviations from the onset on, (features, up to `ROWS` rows).
        lr: Learning rate in the row before the onset and in these rows, (1 + rows,).
        exact: The fields `EXACT` in the same rows, (fields, 1 + rows); NaN where not recorded.
    """
    if not z.shape[1]:
        return np.zeros(len(NUMBERS))
    later = np.median(z[:, 1:], axis=1) if z.shape[1] > 1 else np.zeros(len(z))
    out: list[float] = []
    for family, phase in _MANY:
        mine = [j for j, item in enumerate(items) if _is_of(item, family, phase)]
        out += [*_summary(z[mine, 0]), *_summary(later[mine])]
    for family, phase, label in _ONE:
        mine = [
            j for j, item in enumerate(items)
            if _is_of(item, family, phase) and item.label.startswith(label)
        ][:1]  # fmt: skip
        out += [_strongest(_pressed(z[mine, 0])), _strongest(_pressed(later[mine]))]
    return np.array([*out, *_lr_moves(lr), *_exact_moves(exact)])


def _is_of(item: Feature, family: str, phase: str) -> bool:
    return item.phase == phase and (
        item.family == family or (family == "update" and item.family == "update_lr")
    )


def _pressed(z: Floats) -> Floats:
    return np.asarray(np.sign(z) * np.log1p(np.minimum(np.abs(z), _LARGEST)))


def _summary(z: Floats) -> tuple[float, float, float]:
    """Median of the features that live, the strongest with its sign, and the share that moved."""
    live = z[np.isfinite(z) & (z != 0)]
    if not len(live):
        return 0.0, 0.0, 0.0
    pressed = _pressed(live)
    return (
        float(np.median(pressed)), _strongest(pressed), float((np.abs(live) >= MOVED).mean()),
    )  # fmt: skip


def _strongest(pressed: Floats) -> float:
    known = pressed[np.isfinite(pressed)]
    return float(known[int(np.argmax(np.abs(known)))]) if len(known) else 0.0


def _lr_moves(lr: Floats) -> tuple[float, float]:
    """Logarithm of the learning rate over the one before the onset, now and later."""
    known = np.isfinite(lr) & (lr >= 0)
    if len(lr) < 2 or not known.all() or lr[0] <= 0:
        return 0.0, 0.0
    ratio = np.clip(np.log(np.maximum(lr[1:], 1e-30) / lr[0]), -_FAR_LR, _FAR_LR)
    return float(ratio[0]), float(np.median(ratio[1:])) if len(ratio) > 1 else 0.0


def _exact_moves(exact: Floats) -> list[float]:
    out: list[float] = []
    for values in exact:
        moved = np.sign(values[1:] - values[0])
        moved[~np.isfinite(moved)] = 0.0
        later = float(moved[1:].mean()) if len(moved) > 1 else 0.0
        out += [float(moved[0]) if len(moved) else 0.0, later]
    return out


# -- signs ---------------------------------------------------------------------------------------

_SETTINGS = {
    "weight_decay": r"weight_decay of [^:]*", "eps": r"eps of [^:]*", "dropout": r"\bp of [^:]*",
    "betas": r"betas? of [^:]*", "momentum": r"momentum of [^:]*", "clip": r"clip[^:]*",
}  # fmt: skip
_NUMBER = r"(-?[\d.]+(?:e[+-]?\d+)?)"
_NAMES = {
    "attention": r"attn|attention|[qkv]_proj|qkv|query|key",
    "head": r"lm_head|\bhead\b",
}
_TIMES = re.compile(rf"{_NUMBER} times (?:the value before|those before|that)")
_SCHEDULE = re.compile(r"counter went from (-?\d+) to (-?\d+)")
_MOMENTS = re.compile(r"(exp_avg_sq|square_avg|row_var|col_var|exp_avg|momentum_buffer|step) of")
_SECOND = frozenset({"exp_avg_sq", "square_avg", "row_var", "col_var"})
_CAUGHT_UP = 20
"""Steps by which a scheduler's counter may jump and still have been stepped several times."""
_SUBTLE, _LOUD = 1.1, 6.0


def signs_of(findings: Iterable[Finding]) -> frozenset[str]:
    """What findings of one step say together, as words: kinds, and facts from their evidence."""
    out: set[str] = set()
    for finding in findings:
        out.add(finding.kind)
        text = " ".join(finding.evidence[:3])
        out |= {f"{finding.kind}: {fact}" for fact in _facts(finding.kind, text)}
    return frozenset(out)


def _facts(kind: str, text: str) -> set[str]:
    if kind in ("weights_changed", "state_changed", "buffers_changed"):
        return _what_changed(text)
    if kind == "config_changed":
        return _settings(text)
    if kind in ("lr_jump", "lr_off_schedule", "update_jump"):
        return _rate(text)
    if kind == "schedule_step":
        return _counter(text)
    if kind in ("labels_changed", "inputs_changed"):
        return _share(text)
    if kind in ("zero_update", "zero_gradient", "duplicate_samples", "nonfinite"):
        return _how_many(kind, text)
    return set()


def _what_changed(text: str) -> set[str]:
    names = text.partition(": ")[2]
    entries = re.search(r"\((\d+) of its entries\)", names)
    several = "," in names or " more" in names
    size = "many tensors" if several else "one tensor"
    if entries and not several:
        size = "one entry" if entries[1] == "1" else "one tensor"
    if len(re.findall(r"\w[\w.]*router", names)) == names.count(",") + 1:
        return {"router"}
    out = {size} if names else set()
    if not several:
        out |= {name for name, like in _NAMES.items() if re.search(like, names)}
    moments = set(_MOMENTS.findall(names))
    if moments and moments <= _SECOND:
        out.add("second moment only")
    elif moments and not moments & _SECOND:
        out.add("step only" if moments == {"step"} else "first moment only")
    return out


def _settings(text: str) -> set[str]:
    out = set()
    for name, like in _SETTINGS.items():
        found = re.search(rf"{like}: (?:{_NUMBER} → {_NUMBER})?", text)
        if found:
            out.add(name)
            if found[1] is not None and found[2] is not None:
                before, after = (float(v.rstrip(".")) for v in found.groups())
                out.add(f"{name} {'to zero' if not after else 'up' if after > before else 'down'}")
    return out


def _rate(text: str) -> set[str]:
    found = _TIMES.search(text)
    out = {"came back"} if "came back" in text else set()
    if "warm-up" in text:
        out.add("warm-up")
    if found:
        times = float(found[1])
        steps = ((0.0, "zero"), (1.0, "down"), (_SUBTLE, "a little up"), (_LOUD, "up"))
        out.add(next((word for most, word in steps if times <= most), "far up"))
    return out


def _counter(text: str) -> set[str]:
    found = _SCHEDULE.search(text)
    if not found:
        return {"runs ahead"}
    before, after = int(found[1]), int(found[2])
    if after <= 1:
        return {"back to the start"}
    if after <= before:
        return {"back"}
    return {"a few ahead" if after - before <= _CAUGHT_UP else "far ahead"}


def _share(text: str) -> set[str]:
    found = re.search(r": (\d+) of (\d+)", text)
    return {"all" if found[1] == found[2] else "some"} if found else set()


def _how_many(kind: str, text: str) -> set[str]:
    if kind == "nonfinite":
        found = re.search(r"(\d+) gradient entr", text)
        out = {"one entry" if found[1] == "1" else "many entries"} if found else set()
        return out | ({"loss"} if re.search(r"\bloss was", text) else set())
    if kind == "duplicate_samples":
        found = re.search(r"\((\d+)\)", text)
        return {"one" if found[1] == "1" else "several"} if found else set()
    names = re.search(r"(?:update|gradient) of (.+?) was", text)
    return {"several groups" if names and "," in names[1] else "one group"}
