"""The metrics of a sketch: names, order, units, phase and merge rule.

The default schema has exactly 128 metrics: 11 scalars, 5 quantiles of the gradient norms of single
tensors, 10 metrics for each of 8 parameter groups, and two histograms of 16 bins. Beside them stand
the *exact fields* of `EXACT_FIELDS` (integers, hashes, flags), which no statistic replaces.

Words used by `Metric.merge`, the rule that makes one value out of the values of several shards:

* ``sum``: add (counts, histogram bins).
* ``max``: take the largest.
* ``root_sum_square``: norms; add the squares.
* ``weighted``: made again from merged counts and sums, never averaged.
* ``local``: belongs to one process; the value of rank zero stands.

`Metric.phase` says which weights a value saw: ``before`` metrics describe the gradient (the weights
at the start of the step), ``after`` metrics describe the update and the weights that it left.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from flashback_core.errors import SchemaError

__all__ = [
    "BODY_GROUPS",
    "EXACT_FIELDS",
    "GRADIENT_NORM_QUANTILES",
    "GROUP_METRICS",
    "N_BINS",
    "SCALARS",
    "TRANSFORMER_GROUPS",
    "ExactField",
    "Metric",
    "SketchSchema",
]

TRANSFORMER_GROUPS = (
    "embed", "attn_qkv", "attn_out", "mlp_in", "mlp_out", "norm", "head", "other",
)  # fmt: skip
BODY_GROUPS = ("stem", "body_1", "body_2", "body_3", "body_4", "norm", "head", "other")

N_BINS = 16
"""Bins of each log-magnitude histogram. Bin b of 1 … 14 counts magnitudes in
[4**(b - 16) * 2, 4**(b - 15) * 2); bin 0 all that is smaller, zeros included; bin 15 all that is
0.5 or more. One bin is a factor of 4; the bounds are exact powers of two. Non-finite entries are
in no bin."""

GRADIENT_NORM_QUANTILES = (0.10, 0.25, 0.50, 0.75, 0.90)


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One number per step: its name, unit, dtype on disk, merge rule, phase and meaning."""

    name: str
    unit: str
    dtype: str
    merge: str
    phase: str
    doc: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactField:
    """One exact field per step, column ``exact:<name>``; `absent` stands where it is not known."""

    name: str
    dtype: str
    absent: float | int
    doc: str

    @property
    def column(self) -> str:
        """Name of the column in an index and in every export."""
        return f"exact:{self.name}"


def _metric(name: str, unit: str, dtype: str, merge: str, phase: str, doc: str) -> Metric:
    return Metric(name=name, unit=unit, dtype=dtype, merge=merge, phase=phase, doc=doc)


SCALARS = (
    _metric("loss", "loss", "f8", "local", "before", "Loss of the step as the loop logged it."),
    _metric("lr", "1", "f8", "local", "before", "Learning rate of the first parameter group."),
    _metric("grad_norm", "1", "f4", "root_sum_square", "before",
            "2-norm of all finite gradient entries, before clipping and unscaled."),
    _metric("grad_max", "1", "f4", "max", "before", "Largest finite gradient magnitude."),
    _metric("update_norm", "1", "f4", "root_sum_square", "after",
            "2-norm of all finite entries of weights after minus weights before the step."),
    _metric("update_max", "1", "f4", "max", "after", "Largest finite update magnitude."),
    _metric("param_norm", "1", "f4", "root_sum_square", "after",
            "2-norm of all finite weights after the step."),
    _metric("nonfinite", "count", "i8", "sum", "before",
            "Gradient entries that are NaN or infinite."),
    _metric("step_wall_ms", "ms", "f4", "local", "before",
            "Wall time since the step before ended, without what the loop declared as pause."),
    _metric("batch_id_mean", "1", "f8", "local", "before",
            "Mean of the sample ids of the batch; NaN where the loop gives none."),
    _metric("batch_uniq_frac", "1", "f4", "local", "before",
            "Share of distinct sample ids in the batch; NaN where the loop gives none."),
)  # fmt: skip

_QUANTILES = tuple(
    _metric(f"grad_norm_p{round(q * 100)}", "1", "f4", "weighted", "before",
            f"{round(q * 100)} % quantile (linear) of the gradient norms of single tensors.")
    for q in GRADIENT_NORM_QUANTILES
)  # fmt: skip

GROUP_METRICS = (
    _metric("grad_norm", "1", "f4", "root_sum_square", "before",
            "2-norm of the group's finite gradient entries."),
    _metric("max_abs", "1", "f4", "max", "before", "Largest finite gradient magnitude."),
    _metric("var", "1", "f4", "weighted", "before",
            "Population variance of the group's finite gradient entries."),
    _metric("sign_flip", "1", "f4", "weighted", "before",
            "Share of gradient entries whose sign differs from their last non-zero sign."),
    _metric("nonfinite", "count", "i8", "sum", "before",
            "Gradient entries that are NaN or infinite."),
    _metric("update_norm", "1", "f4", "root_sum_square", "after",
            "2-norm of the group's finite update entries."),
    _metric("update_max", "1", "f4", "max", "after", "Largest finite update magnitude."),
    _metric("update_nonfinite", "count", "i8", "sum", "after",
            "Update entries that are NaN or infinite."),
    _metric("param_norm", "1", "f4", "root_sum_square", "after",
            "2-norm of the group's finite weights after the step."),
    _metric("upd_param_ratio", "1", "f4", "weighted", "after",
            "update_norm / param_norm; NaN where param_norm is 0."),
)  # fmt: skip

_UNKNOWN = -1
_NAN = float("nan")


def _exact(name: str, dtype: str, absent: float, doc: str) -> ExactField:
    return ExactField(name=name, dtype=dtype, absent=absent, doc=doc)


EXACT_FIELDS = (
    _exact("optimizer", "i4", 0, "Index of the optimizer that stepped, in the order given."),
    _exact("rank", "i4", 0, "Rank of the process that wrote the row."),
    _exact("step_skipped", "i4", 0, "1 where the update was attempted and not applied, else 0."),
    _exact("loss_scale", "f8", 1.0, "Scale that GradScaler had put on the loss; 1 without one."),
    _exact("accum_count", "i4", _UNKNOWN, "Backward passes in the gradient; -1 not known."),
    _exact("clipped", "i4", _UNKNOWN,
           "1 where the gradient was seen after clipping, 0 before; -1 not known."),
    _exact("epoch", "i4", _UNKNOWN, "Epoch of the loop, from 0; -1 not known."),
    _exact("batch_index", "i8", _UNKNOWN, "Index of the batch in its epoch; -1 not known."),
    _exact("batch_hash", "u8", 0, "xxh3-64 of the batch's content or sample ids; 0 not known."),
    _exact("batch_size", "i4", _UNKNOWN, "Samples in the batch; -1 not known."),
    _exact("batch_seen", "i8", _UNKNOWN,
           "Last step before this one that had the same batch; -1 none."),
    _exact("ids_seen", "i4", _UNKNOWN,
           "Sample ids of the batch that an earlier step had; -1 not known."),
    _exact("ids_left", "i8", _UNKNOWN,
           "Sample ids below the largest one so far that no step has had yet; -1 not known."),
    _exact("duplicates", "i4", _UNKNOWN,
           "Samples of the batch that another sample of it repeats; -1 not known."),
    _exact("labels", "i4", _UNKNOWN,
           "How labels follow inputs: 1 shifted by one, 2 equal, 0 neither; -1 not known."),
    _exact("params_hash", "u8", 0, "xxh3-64 of the weights after the step; 0 not taken."),
    _exact("state_hash", "u8", 0, "xxh3-64 of the optimizer state after it; 0 not taken."),
    _exact("config_hash", "u8", 0, "xxh3-64 of the configuration at the step; 0 not taken."),
    _exact("outside", "i4", 0,
           "Bits: what changed outside the optimizer since the step before ended: 1 weights, "
           "2 optimizer state, 4 buffers."),
    _exact("zero_grads", "i4", _UNKNOWN,
           "Tensors whose gradient is exactly zero; -1 not known."),
    _exact("no_grads", "i4", _UNKNOWN,
           "Trainable tensors of the optimizer without a gradient; -1 not known."),
    _exact("zero_updates", "i4", _UNKNOWN,
           "Tensors of which no entry moved; -1 not known."),
    _exact("lost_updates", "i4", _UNKNOWN,
           "Tensors with a gradient that is not zero, of which no entry moved; -1 not known."),
    _exact("unmoved", "i8", _UNKNOWN, "Entries of all weights that did not move; -1 not known."),
    _exact("low16", "i8", _UNKNOWN,
           "Float32 weights whose low 16 bits are zero, as after bfloat16; -1 not known."),
    _exact("lr_scheduled", "f8", _NAN,
           "Rate of the first group that the run's own scheduler says holds; NaN not known."),
    _exact("scheduler_step", "i8", _UNKNOWN,
           "The scheduler's own counter just before the update; -1 not known."),
    _exact("opt_steps", "i8", _UNKNOWN,
           "Smallest step count in the optimizer's state before the update; -1 not known."),
    _exact("clip_coef", "f8", _NAN,
           "Factor by which the loop scaled the gradients after they were seen, as clipping by "
           "norm does (1: not at all); of one tensor; NaN not known."),
    _exact("samples_known", "i4", _UNKNOWN,
           "Samples of the batch whose contents an earlier step showed; -1 not known."),
    _exact("inputs_changed", "i4", _UNKNOWN,
           "Of these, the ones with other inputs under the same id; -1 not known."),
    _exact("labels_changed", "i4", _UNKNOWN,
           "Of these, the ones with other labels on the same inputs; -1 not known."),
    _exact("grads_kept", "i4", _UNKNOWN,
           "1 where the gradients are the tensors of the step before, as without zero_grad or "
           "where it keeps them, 0 where they are new; -1 not known."),
)  # fmt: skip


@dataclass(frozen=True)
class SketchSchema:
    """Names, order and units of the metrics of a sketch.

    Args:
        groups: Names of the parameter groups, in order. The default gives 128 metrics.

    Examples:
        >>> schema = SketchSchema()
        >>> len(schema)
        128
        >>> schema.names[:3]
        ('loss', 'lr', 'grad_norm')
        >>> "group:attn_qkv:max_abs" in schema
        True
    """

    groups: tuple[str, ...] = TRANSFORMER_GROUPS

    def __post_init__(self) -> None:
        """Refuse groups that would make two metrics of one name."""
        if len(set(self.groups)) != len(self.groups):
            msg = f"the groups {self.groups} name one group twice; give each group once"
            raise SchemaError(msg)
        bad = [g for g in self.groups if not g or ":" in g]
        if bad:
            msg = f"group name {bad[0]!r} is empty or holds ':'; use letters, digits and '_'"
            raise SchemaError(msg)

    @cached_property
    def metrics(self) -> tuple[Metric, ...]:
        """All metrics in order."""
        return (*SCALARS, *_QUANTILES, *self._group_metrics(), *_histogram_metrics())

    def _group_metrics(self) -> Iterator[Metric]:
        for group in self.groups:
            for m in GROUP_METRICS:
                doc = f"Group {group}: {m.doc[0].lower()}{m.doc[1:]}"
                yield _metric(f"group:{group}:{m.name}", m.unit, m.dtype, m.merge, m.phase, doc)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of all metrics in order."""
        return tuple(m.name for m in self.metrics)

    @cached_property
    def _positions(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def __len__(self) -> int:
        """Number of metrics."""
        return len(self.names)

    def __contains__(self, name: object) -> bool:
        """Whether a metric of this name is in the schema."""
        return name in self._positions

    def position(self, name: str) -> int:
        """Position of the metric `name`.

        Raises:
            SchemaError: If there is no such metric; the message names close ones.
        """
        try:
            return self._positions[name]
        except KeyError:
            raise SchemaError(unknown_metric(name, self.names)) from None

    @cached_property
    def fingerprint(self) -> str:
        """16 hexadecimal digits that differ when names, order or dtypes differ."""
        text = json.dumps([[m.name, m.dtype] for m in self.metrics])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


def _histogram_metrics() -> Iterator[Metric]:
    for kind, phase in (("grad", "before"), ("update", "after")):
        for i in range(N_BINS):
            doc = f"Entries of the {kind} in magnitude bin {i} (see N_BINS)."
            yield _metric(f"hist_{kind}:{i}", "count", "i8", "sum", phase, doc)


def unknown_metric(name: str, names: Sequence[str]) -> str:
    """Message for a metric name that is not among `names`, with the closest ones."""
    close = difflib.get_close_matches(str(name), names, n=3)
    hint = f"; close to it: {', '.join(close)}" if close else ""
    return f"metric {name!r} is not among the {len(names)} metrics here{hint}"
