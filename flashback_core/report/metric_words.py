"""Metrics in words: a label beside the real name, and what the metric is."""

from __future__ import annotations

import re
from functools import lru_cache

from flashback_core.report.text import clean, number
from flashback_core.schema import EXACT_FIELDS, GROUP_METRICS, N_BINS, SketchSchema

__all__ = ["metric_label", "metric_meaning", "split_metric"]

_GROUP_WORDS = {
    "grad_norm": "gradient norm",
    "max_abs": "largest gradient",
    "var": "gradient variance",
    "sign_flip": "gradient signs flipped",
    "nonfinite": "NaN or Inf gradients",
    "update_norm": "update norm",
    "update_max": "largest update",
    "update_nonfinite": "NaN or Inf updates",
    "param_norm": "weight norm",
    "upd_param_ratio": "update / weight ratio",
}
_WORDS = {
    "loss": "loss",
    "lr": "learning rate",
    "grad_norm": "gradient norm",
    "grad_max": "largest gradient",
    "update_norm": "update norm",
    "update_max": "largest update",
    "param_norm": "weight norm",
    "nonfinite": "NaN or Inf gradients",
    "step_wall_ms": "time per step (ms)",
    "batch_id_mean": "mean sample id",
    "batch_uniq_frac": "share of distinct samples",
    "exact:outside": "a write from outside the optimizer",
    "exact:batch_hash": "the batch",
    "exact:config_hash": "the configuration",
    "exact:params_hash": "the weights",
    "exact:state_hash": "the optimizer's state",
    "exact:step_skipped": "a skipped update",
    "exact:loss_scale": "the loss scale",
    "exact:lr_scheduled": "the rate that the scheduler says",
    "exact:scheduler_step": "the scheduler's own counter",
    "exact:opt_steps": "the optimizer's own count of steps",
    "exact:clip_coef": "the factor of gradient clipping",
    "exact:clipped": "whether gradients were clipped",
    "exact:accum_count": "batches in one update",
    "exact:grads_kept": "gradients that were kept",
    "exact:samples_known": "samples that came before",
    "exact:inputs_changed": "inputs of samples that came before",
    "exact:labels_changed": "labels of samples that came before",
    "exact:batch_seen": "a batch that came before",
    "exact:duplicates": "samples that are repeated",
    "exact:labels": "how labels follow their inputs",
    "exact:zero_grads": "tensors with a gradient of zero",
    "exact:no_grads": "tensors without a gradient",
    "exact:lost_updates": "tensors that do not move",
    "exact:low16": "weights rounded to 16 bits",
}


def split_metric(name: str) -> tuple[str, str]:
    """The part of the model and the quantity that a metric name stands for.

    Examples:
        >>> split_metric("group:attn_qkv:max_abs"), split_metric("loss")
        (('attn_qkv', 'max_abs'), ('', 'loss'))
        >>> split_metric("hist_update:15")
        ('hist_update', '15')
    """
    if name.startswith("group:"):
        group, _, quantity = name[len("group:") :].rpartition(":")
        return group, quantity
    if re.fullmatch(r"hist_(grad|update):\d+", name):
        head, _, bin_ = name.partition(":")
        return head, bin_
    return "", name


def metric_label(name: str) -> str:
    """A metric in plain words, for titles beside its real name."""
    group, quantity = split_metric(name)
    if group.startswith("hist_") and quantity.isdigit():
        what = "gradients" if group == "hist_grad" else "updates"
        return f"{what} {_bin_words(int(quantity))}"
    if group:
        return f"{clean(group, 40)}: {_GROUP_WORDS.get(quantity, clean(quantity, 40))}"
    if re.fullmatch(r"grad_norm_p\d+", name):
        return f"gradient norm of tensors, {name[len('grad_norm_p') :]} % quantile"
    return _WORDS.get(name) or clean(name, 60)


def _bin_words(i: int) -> str:
    """The magnitudes that a bin counts, see `flashback_core.schema.N_BINS`."""
    low = 2.0 * 4.0 ** (i - 16)
    if i == 0:
        return f"that are zero or below {number(4 * low, 2)}"
    if i == N_BINS - 1:
        return f"of {number(low, 2)} or more"
    return f"between {number(low, 2)} and {number(4 * low, 2)}"


@lru_cache(maxsize=1)
def _meanings() -> dict[str, str]:
    known = {m.name: m.doc for m in SketchSchema().metrics}
    return known | {f.column: f.doc for f in EXACT_FIELDS}


_GROUP_MEANINGS = {m.name: m.doc for m in GROUP_METRICS}


def metric_meaning(name: str) -> str:
    """What a metric is, in a sentence; empty for metrics of other tools."""
    group, quantity = split_metric(name)
    if name in _meanings():
        return _meanings()[name]
    return _GROUP_MEANINGS.get(quantity, "") if group else ""
