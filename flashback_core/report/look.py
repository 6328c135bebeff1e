"""Where to look first, by kind of finding."""

from __future__ import annotations

__all__ = ["LOOK", "SHRANK", "look_words"]

_SCHEDULE = (
    "Compare the scheduler with the learning rate at that step: a scheduler stepped twice, a wrong "
    "resume and a changed configuration look like this."
)
_MEANT = (
    "If the schedule is meant to do this, declare it with rec.expect(step, 'lr_milestone'); "
    "else compare the scheduler with the learning rate at that step."
)
_SCALE = (
    "Look at the metrics that moved first: a gradient that moves before the loss points to the "
    "data or the loss, an update that moves alone to the optimizer or the learning rate."
)
_WRITER = (
    "Something other than the optimizer wrote there: look at callbacks, checkpoint loading, "
    "averaging of weights and the memory of the machine. Restore the state of the step before, "
    "compare it with this one, and run the memory test of the machine if nothing explains it."
)
_DETACHED = (
    "Look for parameters that lost their gradient: requires_grad, a detached tensor, a no_grad "
    "block, a loss that does not use them, an underflow of 16-bit numbers."
)
_LOADER = (
    "Look at the sampler and the data loader: whether a resume went back to the start of the "
    "epoch, whether set_epoch is called, and whether every process has a seed of its own."
)

LOOK = {
    "lr_jump": _SCHEDULE,
    "lr_milestone": _MEANT,
    "update_jump": _SCHEDULE,
    "nonfinite": (
        "Look at the part of the model that is not finite first; check the loss scale, the "
        "learning rate and the batch of that step, and go back to the step before it."
    ),
    "loss_zero": (
        "Look for code that replaces NaN by zero, for a batch without targets, and for a mask that "
        "leaves nothing to learn from."
    ),
    "skip_loop": (
        "The gradient scaler finds NaN or Inf at every step: look at the loss scale and the loss, "
        "and start again from before the first skipped step."
    ),
    "skipped_step": (
        "A loss scaler skips a step now and then; nothing is to be done unless it does not stop."
    ),
    "loss_shift": (
        "Look at the batch of that step and at the metrics that moved first: where no gradient "
        "moved before the loss, the data or the loss function changed."
    ),
    "loss_jump": (
        "Look at the batch of that step and at the learning rate; the loss alone does not say "
        "which of them it was. Record with fb.Recorder to see what moved first."
    ),
    "gradient_shift": _SCALE,
    "odd_batch": (
        "Nothing needs to be done. Look at the samples of that batch if batches like it should not "
        "be in the data."
    ),
    "update_shift": (
        "Look at the learning rate and the optimizer's settings and state: updates that change "
        "while gradients do not come from there. Else look at what moved first."
    ),
    "balance_shift": (
        "Look at the parts of the model that moved against the others: their learning rates, their "
        "initial values, and whether something is added to or scaled in them."
    ),
    "outlier": (
        "Look at the tensor whose largest entry moved first: a flipped bit, an overflow of 16-bit "
        "numbers, clipping by value, or a single broken sample in the batch of that step."
    ),
    "sign_shift": (
        "Look at the batches from that step on and at the momentum: gradients whose signs repeat "
        "or alternate point to repeated samples, wrong labels or a learning rate that is too high."
    ),
    "distribution_shift": (
        "Look at the number format and the loss scale: sizes that change while norms do not point "
        "to underflow, to rounding, or to weights that stopped being used."
    ),
    "weight_shift": (
        "Look at what writes to the weights: weight decay, averaging, a checkpoint, a learning "
        "rate that is too high for one part."
    ),
    "gradient_explosion": (
        "Look at gradient clipping, the learning rate and the batch of that step; go back to "
        "before the climb began, and go on with a lower learning rate."
    ),
    "divergence": (
        "Look at the learning rate before the loss began to climb; go back to the lowest loss, and "
        "go on with a lower learning rate or with that data left out."
    ),
    "never_learns": (
        "Nothing was ever learnt: check the learning rate, the labels, and that the optimizer "
        "holds the parameters of this model."
    ),
    "zero_gradient": _DETACHED,
    "missing_gradient": _DETACHED,
    "zero_update": (
        "Look for parameters that left the optimizer or have a learning rate of zero, and for "
        "updates too small for 16-bit weights."
    ),
    "update_lost": (
        "Look at what lies between the gradient and the weights: optimizer.step() on a copy, "
        "parameters replaced after the optimizer was made, updates too small for 16-bit weights."
    ),
    "precision_lost": (
        "Something rounded the weights to 16 bits: look for .half(), .bfloat16(), a checkpoint "
        "saved in low precision, and master weights that are not used."
    ),
    "weights_changed": _WRITER,
    "state_changed": _WRITER,
    "buffers_changed": (
        "Buffers such as running means changed between two steps: look for forward passes in train "
        "mode that are no training, checkpoint loading, and the memory of the machine."
    ),
    "replica_divergence": (
        "Look for weights that are not synchronised: parameters left out of the wrapper, code that "
        "runs on one process only, different seeds, a failing device."
    ),
    "resume_discontinuity": (
        "Save and load what was lost together with the weights: optimizer, scheduler, loss scaler, "
        "random states and the position in the data."
    ),
    "config_changed": (
        "Compare the settings before and after: options of the parameter groups, dropout rates, "
        "who is frozen. Undo it, or declare it with rec.expect(step, kind)."
    ),
    "eval_mode": (
        "Look for model.eval() without model.train() after it, most often at the end of an "
        "evaluation or in a callback."
    ),
    "train_mode": "Look for model.train() on a part that is meant to stay in eval mode.",
    "freeze": (
        "If it was meant, declare it with rec.expect(step, 'freeze'); else look for code that sets "
        "requires_grad to False."
    ),
    "unfreeze": (
        "If it was meant, declare it with rec.expect(step, 'unfreeze'); else look for parameters "
        "that should have been trained from the start."
    ),
    "batch_repeated": (
        "Look for a loop that does not ask for the next batch, a retry after an error, and a "
        "loader that gives every process the same samples."
    ),
    "data_replay": _LOADER,
    "no_reshuffle": (
        "If the order is meant to stay, nothing is to be done; else look for shuffle=True and for "
        "a sampler whose set_epoch nobody calls."
    ),
    "duplicate_samples": (
        "Look at the sampler and at how the batch is put together: sampling with replacement, an "
        "overlap of shards, padding with copies."
    ),
    "labels_misaligned": (
        "Look at how inputs and labels are put together: a shift by one, a shuffle of one of them, "
        "a collate function that sorts."
    ),
    "gradients_capped": (
        "Look at what gradients pass through: a cast to 8 or 16 bits whose scale does not fit, "
        "compression before an exchange, clipping by value. Lower the scale, or count the entries "
        "at the largest number where the casting is done."
    ),
    "gradients_kept": (
        "Look at where zero_grad is called: once per update, before the backward pass, on the "
        "model or the optimizer that is stepped, on every path through the loop."
    ),
    "labels_changed": (
        "Compare the labels of these samples with the data set as it lies on disk: a label map or "
        "file that was read anew, an offset, a worker with another version of the data."
    ),
    "inputs_changed": (
        "Compare these samples with the data set as it lies on disk: preprocessing that changes a "
        "cached copy in place, a damaged shard, augmentation that was switched on."
    ),
    "lr_off_schedule": (
        "Look for what sets the learning rate beside the scheduler: a second scheduler, code that "
        "writes into the optimizer's groups, a checkpoint whose rate was loaded without its "
        "scheduler."
    ),
    "schedule_step": (
        "Look at where scheduler.step() is called: once per update, also under gradient "
        "accumulation and on every process, and with a state that a resume brings back."
    ),
    "schedule_stopped": (
        "If the schedule ends here, declare it with rec.expect(step, 'lr_milestone'); else look "
        "at why scheduler.step() is no longer reached."
    ),
    "schedule_bent": _MEANT,
    "schedule_turned": _MEANT,
    "optimizer_step_reset": (
        "Look for code that makes the optimizer anew, clears its state or loads one: after a "
        "resume, load optimizer.state_dict() before the first step."
    ),
    "clip_dropped": (
        "Look at where the loop clips: a branch that leaves it out, an unscale that moved behind "
        "it, a resume or a wrapper that forgot the setting."
    ),
    "clip_changed": _MEANT,
    "consensus": _SCALE,
    "not_enough_data": "Record more steps and judge again.",
}
"""By every kind that our detectors name, see `detectors`."""

SHRANK = (
    "Look for what cuts off large values: numbers of 8 or 16 bits that saturate, clipping by "
    "value, a loss scale that changed."
)
"""For values that should be large and are not."""

_FAMILIES = (
    (("lr",), _SCHEDULE),
    (("nonfinite", "nan", "inf"), LOOK["nonfinite"]),
    (("outside", "params_changed", "bit_flip", "state"), _WRITER),
    (("batch", "data", "poison", "label"), "Look at the samples of that batch: their source, "
     "labels and order."),
    (("config",), LOOK["config_changed"]),
    (("dead", "zero", "frozen"), _DETACHED),
    (("never",), LOOK["never_learns"]),
    (("skip",), LOOK["skip_loop"]),
    (("shift", "jump", "spike", "outlier", "divergence", "gradual"), _SCALE),
)  # fmt: skip
"""Words in a kind of somebody else's detector, and where to look first; the first fit holds."""


def look_words(kind: str) -> str:
    """Where to look first for a kind of finding; empty for a kind that nobody knows."""
    kind = kind.lower()
    if kind in LOOK:
        return LOOK[kind]
    words = kind.split("_")
    for keys, sentence in _FAMILIES:
        if any(key in words or ("_" in key and key in kind) for key in keys):
            return sentence
    return ""
