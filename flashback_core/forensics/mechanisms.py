"""Mechanisms: which signs each fault kind can leave, from how the fault works.

Written from what each kind does, for all kinds of the list alike, whether a detector was fitted on
runs of them or not. A kind that no run of the training split shows can so be named where its signs
are there, and a kind that was seen is held less likely where they are not.
"""

from __future__ import annotations

__all__ = ["MECHANISMS", "Signs"]

Signs = tuple[frozenset[str], ...]
"""Alternatives: sets of signs (`detectors.signature.signs_of`), of which one has to be there; one
behind ``!`` must not."""

_RATE_KINDS = ("lr_jump", "lr_off_schedule", "update_jump")


def _any(*alternatives: str | tuple[str, ...]) -> Signs:
    return tuple(frozenset([a] if isinstance(a, str) else a) for a in alternatives)


def _rate(*words: str) -> tuple[str, ...]:
    return tuple(f"{kind}: {word}" for kind in _RATE_KINDS for word in words)


_ONE_ENTRY = "weights_changed: one entry"
_SAME_SIZE = (_ONE_ENTRY, "!nonfinite: many entries", "!zero_gradient")
"""A mantissa bit changes a weight by less than its own size: too little to overflow anything."""
_OVERFLOW = ("nonfinite: many entries", "!weights_changed")
_MANY = "weights_changed: many tensors"
_ATTENTION = _any(("weights_changed: one tensor", "weights_changed: attention"), "weight_shift")
_STATE_MANY = "state_changed: many tensors"
_SECOND = ("state_changed: one tensor", "state_changed: second moment only")
_STRANGE_INPUT = (
    "inputs_changed", "labels_misaligned", "loss_shift", "sign_shift", "distribution_shift",
)  # fmt: skip
_ONE_GRADIENT = ("outlier", "gradient_shift", "balance_shift", "weight_shift")

MECHANISMS: dict[str, Signs] = {
    "w_flip_exp": _any(_ONE_ENTRY, "nonfinite: many entries"),
    "w_flip_exp_lo": _any(_ONE_ENTRY),
    "w_flip_mant_hi": _any(_SAME_SIZE),
    "w_flip_mant_lo": _any(_SAME_SIZE),
    "buffer_flip": _any("buffers_changed"),
    "attn_scale": _ATTENTION,
    "attn_blowup": _ATTENTION,
    "qk_growth": _ATTENTION,
    "router_collapse": _any("weights_changed: router"),
    "resume_from_ema": _any(_MANY, "resume_discontinuity"),
    "resume_old_weights": _any(_MANY, "resume_discontinuity"),
    "weights_rolled_back": _any(_MANY),
    "untied_head_on_resume": _any(("weights_changed: one tensor", "weights_changed: head")),
    "bf16_master": _any(_MANY, "precision_lost"),
    "bf16_update_lost": _any("precision_lost", "update_lost"),
    "fp8_overflow_inf": _any(_OVERFLOW),
    "fp16_overflow": _any(_OVERFLOW, "skip_loop"),
    "overflow_skip_loop": _any("skip_loop"),
    "lowprec_overflow": _any("gradients_capped", "outlier", "distribution_shift"),
    "nan_one": _any("nonfinite: one entry"),
    "opt_lost": _any(_STATE_MANY, "resume_discontinuity"),
    "opt_lost_nobc": _any((_STATE_MANY, "!optimizer_step_reset")),
    "m_lost": _any("state_changed: first moment only"),
    "adam_step_reset": _any("optimizer_step_reset", "state_changed: step only"),
    "v_flip_up": _any(_SECOND),
    "v_flip_down": _any(_SECOND),
    "eps_small": _any("config_changed: eps down"),
    "eps_large": _any("config_changed: eps up"),
    "wd_x100": _any("config_changed: weight_decay up"),
    "beta2_changed": _any("config_changed: betas"),
    "clip_dropped": _any("clip_dropped", "config_changed: clip", "update_shift"),
    "dropout_high": _any("config_changed: dropout up", "config_changed: dropout down"),
    "dropout_off": _any("config_changed: dropout to zero"),
    "stuck_in_eval": _any("eval_mode"),
    "batch_dup1": _any("batch_repeated"),
    "batch_stuck": _any("batch_repeated"),
    "epoch_replay": _any("data_replay", "no_reshuffle"),
    "dup_in_batch": _any("duplicate_samples"),
    "duplicate_batch_across_ranks": _any("duplicate_samples"),
    "label_shift": _any("labels_changed: all", "labels_misaligned", "loss_shift", "divergence"),
    "label_noise10": _any("labels_changed: some", "labels_misaligned", "loss_shift"),
    "empty_target_batch": _any("nonfinite: loss"),
    "masked_nan_hidden": _any("loss_zero"),
    "data_poison_heavy": _any(*_STRANGE_INPUT, "divergence"),
    "data_poison_subtle": _any(*_STRANGE_INPUT),
    "low_byte_noise": _any(*_STRANGE_INPUT),
    "case_fold": _any(*_STRANGE_INPUT),
    "shuffle5": _any(*_STRANGE_INPUT),
    "lr_spike_loud": _any(*_rate("far up")),
    "lr_spike_subtle": _any(*_rate("up")),
    "lr_x1_5": _any(*_rate("up", "a little up")),
    "lr_ramp": _any("lr_off_schedule: a little up", "schedule_turned"),
    "lr_zero": _any(*_rate("zero")),
    "sched_restart": _any("schedule_step: back to the start", "lr_jump: warm-up"),
    "sched_offset": _any("schedule_step: far ahead", "schedule_step: a few ahead", "lr_jump: down"),
    "lr_resume_offset": _any("schedule_step: back"),
    "lr_schedule_xN": _any("schedule_step: a few ahead", "schedule_step: runs ahead"),
    "update_not_applied": _any("zero_update: several groups", "update_lost"),
    "layer_frozen": _any("zero_update: one group"),
    "zero_grad_group": _any("zero_gradient", "missing_gradient"),
    "grad_zero_layer": _any("zero_gradient", "missing_gradient"),
    "grad_flip_exp": _any(*_ONE_GRADIENT, "distribution_shift"),
    "grad_flip_mant": _any(*_ONE_GRADIENT),
    "bit_flip": _any(*_ONE_GRADIENT, "distribution_shift"),
    "grad_x4": _any("gradient_shift", "distribution_shift"),
    "grad_noise": _any("distribution_shift", "sign_shift", "gradient_shift"),
    "clip_saturated": _any("gradient_shift", "sign_shift", "distribution_shift"),
    "zero_grad_missing": _any("gradients_kept", "sign_shift", "gradient_shift"),
    "one_rank_corrupt": _any("gradient_shift", "loss_shift", "replica_divergence"),
    "rank_desync": _any("replica_divergence", "gradient_shift"),
    "stale_half": _any("replica_divergence", "sign_shift"),
    "comm_corrupt": _any("sign_shift", "balance_shift"),
    "compile_divergence": _any("loss_shift", "gradient_shift"),
}
