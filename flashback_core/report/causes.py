"""Likely causes of a finding, in words."""

from __future__ import annotations

from flashback_core.report.model import UNKNOWN, Finding
from flashback_core.report.text import clean

__all__ = ["cause_words", "causes_line", "class_line", "family_words", "ranked_causes"]

CAUSES = {
    "adam_step_reset": "the optimizer's step count lost, its moments kept",
    "attn_blowup": "query and key weights growing at each step",
    "attn_scale": "query and key weights scaled",
    "batch_dup1": "one batch given twice",
    "batch_stuck": "the same batch at every step",
    "beta2_changed": "beta2 of the optimizer changed",
    "bf16_master": "master weights rounded to bfloat16",
    "bf16_update_lost": "small updates lost in bfloat16",
    "bit_flip": "a bit flipped in a gradient",
    "buffer_flip": "a bit flipped in a buffer",
    "case_fold": "input normalised in another way",
    "clip_dropped": "gradient clipping not applied",
    "clip_saturated": "gradients growing behind the clipping",
    "comm_corrupt": "a gradient exchange between processes that repeats old values",
    "compile_divergence": "a module that computes something else, as after a compilation",
    "data_poison_heavy": "batches full of random data",
    "data_poison_subtle": "some random data in the batches",
    "dropout_high": "dropout changed",
    "dropout_off": "dropout switched off",
    "dup_in_batch": "a sample twice in each batch",
    "duplicate_batch_across_ranks": "the same batch on several processes",
    "empty_target_batch": "a batch without a single target",
    "epoch_replay": "the data started again",
    "eps_large": "eps of the optimizer raised",
    "eps_small": "eps of the optimizer lowered",
    "fp16_overflow": "gradients overflowing float16",
    "fp8_overflow_inf": "gradients overflowing float8 to infinity",
    "grad_flip_exp": "an exponent bit flipped in a gradient",
    "grad_flip_mant": "a mantissa bit flipped in a gradient",
    "grad_noise": "noise in the gradients",
    "grad_x4": "gradients scaled, as by a wrong accumulation",
    "grad_zero_layer": "a layer without a gradient",
    "label_noise10": "some wrong labels",
    "label_shift": "labels off by one",
    "layer_frozen": "a layer that gets no update",
    "low_byte_noise": "random entries in the inputs",
    "lowprec_overflow": "gradients saturating in float8",
    "lr_ramp": "the learning rate drifting off its schedule",
    "lr_resume_offset": "a schedule one step late, as after a resume",
    "lr_schedule_xN": "the scheduler stepped several times per update",
    "lr_spike_loud": "a spike of the learning rate",
    "lr_spike_subtle": "a learning rate that is too high from there on",
    "lr_x1_5": "a learning rate a little too high from there on",
    "lr_zero": "the learning rate set to zero",
    "m_lost": "the optimizer's momentum lost",
    "masked_nan_hidden": "a NaN loss hidden as 0, by a batch without targets",
    "nan_one": "one NaN in a gradient",
    "one_rank_corrupt": "one process with broken weights",
    "opt_lost": "the optimizer's state lost",
    "opt_lost_nobc": "the optimizer's moments lost, its step count kept",
    "overflow_skip_loop": "a loss scaler that skips every step",
    "qk_growth": "query and key weights growing slowly",
    "rank_desync": "processes with slightly different weights",
    "resume_from_ema": "weights replaced by their average",
    "resume_old_weights": "older weights loaded",
    "router_collapse": "all tokens sent to one expert",
    "sched_offset": "the schedule jumping ahead",
    "sched_restart": "the schedule starting over",
    "shuffle5": "samples in random order inside",
    "stale_half": "a process with old weights",
    "stuck_in_eval": "the model left in evaluation mode",
    "untied_head_on_resume": "the output layer overwritten by the embedding",
    "update_not_applied": "updates computed and not applied",
    "v_flip_down": "a bit cleared in a second moment",
    "v_flip_up": "a bit set in a second moment",
    "w_flip_exp": "a high exponent bit flipped in a weight",
    "w_flip_exp_lo": "a low exponent bit flipped in a weight",
    "w_flip_mant_hi": "a high mantissa bit flipped in a weight",
    "w_flip_mant_lo": "a low mantissa bit flipped in a weight",
    "wd_x100": "weight decay raised",
    "weights_rolled_back": "weights set back again and again",
    "zero_grad_group": "a role of layers without gradients",
    "zero_grad_missing": "gradients never set to zero, so that they add up",
}

FAMILIES = {
    "attention": "attention weights", "data_order": "order of the data",
    "data_poison": "content of the data", "experts": "routing to experts",
    "forward": "forward computation", "gradient_bits": "bits of a gradient",
    "gradient_scale": "size of the gradients", "labels": "labels", "mode": "dropout and modes",
    "nonfinite": "non-finite numbers", "precision": "numerical precision",
    "rate": "learning rate", "replicas": "processes out of step", "resume": "resume",
    "schedule": "learning-rate schedule", "settings": "settings of the optimizer",
    "state": "optimizer state", "update": "updates of the weights",
    "weight_bits": "bits of a weight", "zero_gradient": "missing gradients",
    UNKNOWN: "unknown",
}  # fmt: skip

SHOWN = 3
LEAST = 0.05
"""Probability from which a cause that is not the first is shown."""


def cause_words(name: str) -> str:
    """A cause as a short phrase."""
    return CAUSES.get(name) or clean(name.replace("_", " "), 80)


def family_words(name: str) -> str:
    """A coarse class as a short phrase."""
    return FAMILIES.get(name) or clean(name.replace("_", " "), 80)


def ranked_causes(finding: Finding) -> list[tuple[str, str]]:
    """The first causes as phrases, each with its probability in words."""
    shown = [c for i, c in enumerate(finding.causes[:SHOWN]) if not i or c.probability >= LEAST]
    return [(cause_words(c.name), _percent(c.probability)) for c in shown]


def causes_line(finding: Finding) -> str:
    """One sentence on the likely causes; empty where none is named.

    Examples:
        >>> from flashback_core.report.model import Cause
        >>> causes = (Cause(name="opt_lost", probability=0.62, family="state"),)
        >>> causes_line(
        ...     Finding(step=3, interval=(3, 3), kind="state_changed", confidence=0.99,
        ...             severity="bad", causes=causes)
        ... )
        "Likely cause: the optimizer's state lost (62 %). Coarse class: optimizer state (62 %)."
    """
    named = ranked_causes(finding)
    if not named:
        return ""
    causes = ", ".join(f"{words} ({chance})" for words, chance in named)
    label = "Likely cause" if len(named) == 1 else "Likely causes"
    return f"{label}: {causes}. {class_line(finding)}"


def class_line(finding: Finding) -> str:
    """One sentence on the coarse class; empty where no cause is named."""
    if not finding.causes:
        return ""
    if finding.family == UNKNOWN:
        return "Coarse class: unknown."
    return (
        f"Coarse class: {family_words(finding.family)} "
        f"({_percent(finding.families[finding.family])})."
    )


def _percent(p: float) -> str:
    return f"{round(100 * p)} %"
