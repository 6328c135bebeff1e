"""What each kind of finding looks like, in a clause."""

from __future__ import annotations

from flashback_core.report.text import clean

__all__ = ["kind_words"]

KINDS = {
    "lr_jump": "the learning rate jumped",
    "lr_spike": "the learning rate jumped",
    "lr_spike_subtle": "the learning rate rose a little",
    "lr_drop": "the learning rate dropped",
    "lr_zero": "the learning rate fell to zero",
    "lr_shift": "the learning rate changed",
    "nonfinite": "numbers that are NaN or infinite appeared",
    "nan": "numbers that are NaN appeared",
    "loss_nonfinite": "the loss became NaN or infinite",
    "loss_spike": "the loss jumped",
    "loss_shift": "the loss left its usual range",
    "loss_zero": "the loss fell to exactly zero",
    "loss_frozen": "the loss stopped changing",
    "update_shift": "the updates of the weights left their usual size",
    "update_zero": "a part of the model stopped being updated",
    "dead_group": "a part of the model stopped being updated",
    "gradient_shift": "the gradients left their usual size",
    "grad_shift": "the gradients left their usual size",
    "grad_spike": "the gradients jumped",
    "grad_zero": "a part of the model stopped getting gradients",
    "weights_changed": "weights changed outside the optimizer, between two steps",
    "params_changed": "weights changed outside the optimizer, between two steps",
    "outside_weights": "weights changed outside the optimizer, between two steps",
    "outside_state": "the optimizer's state changed between two steps",
    "state_changed": "the optimizer's state changed between two steps",
    "state_lost": "the optimizer's state was lost",
    "buffers_changed": "buffers of the model changed between two steps",
    "config_changed": "the configuration changed",
    "batch_repeat": "a batch came a second time",
    "batch_repeated": "a batch came a second time",
    "batch_duplicates": "samples are repeated inside a batch",
    "data_shift": "the data changed",
    "poison": "the data of some batches looks poisoned",
    "poisoned_batch": "the data of a batch looks poisoned",
    "bit_flip": "a number in the weights changed by itself",
    "skip_loop": "the optimizer skips one step after another",
    "step_skipped": "the optimizer skipped a step",
    "never_learns": "the run never learnt anything",
    "gradual": "the run went wrong little by little",
    "slow_step": "steps became slow",
    "loss_jump": "the loss jumped",
    "divergence": "the run diverges: the loss climbs and does not come back",
    "skipped_step": "the optimizer skipped a step",
    "zero_gradient": "the gradient of a part of the model fell to exactly zero",
    "zero_update": "a part of the model stopped being updated",
    "balance_shift": "the balance between the parts of the model changed",
    "outlier": "a single huge value appeared",
    "sign_shift": "the signs of the gradients changed their pattern",
    "distribution_shift": "the sizes of gradients or updates changed their distribution",
    "weight_shift": "the weights left their usual size",
    "lr_milestone": "the learning rate changed as at a milestone of a schedule",
    "not_enough_data": "too few steps for a verdict",
    "consensus": "many metrics left their usual range together",
    "unknown": "something changed that fits no known kind",
}


def kind_words(kind: str | None) -> str:
    """What a kind of finding looks like, as a clause."""
    if not kind:
        return KINDS["unknown"]
    return KINDS.get(kind) or clean(kind.replace("_", " "))
