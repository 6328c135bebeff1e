"""The exact watches see what they should, and are silent about what is ordinary."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import flashback_core as fb
from flashback_core.watch.batch import BatchWatch, fingerprint, label_relation
from flashback_core.watch.config import ConfigWatch
from flashback_core.watch.state import Digester, TensorWatch, digests


def _model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 2)
    )


class Loop:
    """A tiny training under a recorder, with a place to meddle before each step."""

    def __init__(self, folder: Path, steps: int = 12) -> None:
        self.model, self.folder, self.steps = _model(), folder, steps
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)

    def meddle(self, step: int) -> None:
        """Overridden."""

    def run(self) -> fb.StepSketchIndex:
        """Train; returns the index."""
        with fb.Recorder(self.folder, self.model, self.optimizer, write_report=False) as rec:
            for step in range(self.steps):
                generator = torch.Generator().manual_seed(step)
                x = torch.randn(8, 6, generator=generator)
                self.meddle(step)
                loss = self.model(x).square().mean()
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                rec.log(loss=loss, batch=x, batch_ids=np.arange(8 * step, 8 * step + 8))
        return rec.index


def _events(index: fb.StepSketchIndex, kind: str) -> list[dict[str, object]]:
    return [e for e in index.events if e["event"] == kind]


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    """Batch norm's running statistics move by habit; nothing else is said of a healthy run."""
    index = Loop(tmp_path).run()
    assert not index["exact:outside"].any()
    assert len(set(index["exact:config_hash"])) == 1
    assert _events(index, "outside") == []
    assert _events(index, "config") == []
    assert set(index["exact:batch_seen"]) == {-1}
    assert set(index["exact:ids_seen"]) == {0}
    assert set(index["exact:duplicates"]) == {0}
    assert set(index["exact:zero_grads"]) == {0}
    assert set(index["exact:lost_updates"]) == {0}


def test_one_flipped_bit_of_a_weight(tmp_path: Path) -> None:
    """A bit flipped between two steps is seen at the next, with the tensor's name."""

    class Flip(Loop):
        def meddle(self, step: int) -> None:
            if step == 7:
                self.model[4].weight.data.view(torch.int32)[1, 3] ^= 1

    index = Flip(tmp_path).run()
    assert np.flatnonzero(index["exact:outside"]).tolist() == [7]
    (event,) = _events(index, "outside")
    assert (event["step"], event["what"]) == (7, "weights")
    assert event["tensors"] == ["4.weight"]
    assert event["entries"] == [1]


def test_lost_optimizer_state(tmp_path: Path) -> None:
    """Moments set to zero between two steps are seen, with the moment's name."""

    class Lose(Loop):
        def meddle(self, step: int) -> None:
            if step == 6:
                self.optimizer.state[self.model[0].weight]["exp_avg"].zero_()

    index = Lose(tmp_path).run()
    assert index["exact:outside"][6] == 2
    (event,) = _events(index, "outside")
    assert event["tensors"] == ["exp_avg of 0.weight"]


def test_an_exact_reload_is_no_change(tmp_path: Path) -> None:
    """Loading the state dict that was just saved replaces every tensor and changes nothing."""

    class Reload(Loop):
        def meddle(self, step: int) -> None:
            if step == 6:
                self.optimizer.load_state_dict(self.optimizer.state_dict())
                self.model.load_state_dict(self.model.state_dict())

    assert not Reload(tmp_path).run()["exact:outside"].any()


def test_buffers_that_never_move(tmp_path: Path) -> None:
    """A constant buffer that changes is seen although batch norm's buffers move all the time."""

    class Spoil(Loop):
        def __init__(self, folder: Path) -> None:
            super().__init__(folder)
            self.model.register_buffer("mask", torch.ones(4))

        def meddle(self, step: int) -> None:
            if step == 8:
                self.model.mask[2] = 0.0

    index = Spoil(tmp_path).run()
    assert np.flatnonzero(index["exact:outside"]).tolist() == [8]
    assert index["exact:outside"][8] == 4


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("eps of group 0", lambda m, o: o.param_groups[0].update(eps=1e-3)),
        ("betas of group 0", lambda m, o: o.param_groups[0].update(betas=(0.9, 0.9))),
        ("weight_decay of group 0", lambda m, o: o.param_groups[0].update(weight_decay=1.0)),
        ("training of 3", lambda m, o: m[3].eval()),
        ("p of 3", lambda m, o: setattr(m[3], "p", 0.5)),
        ("requires_grad of 0.bias", lambda m, o: m[0].bias.requires_grad_(False)),
    ],
)
def test_settings_that_change(tmp_path: Path, name: str, change: object) -> None:
    """Each kind of setting is seen at the step it takes effect, with before and now."""

    class Change(Loop):
        def meddle(self, step: int) -> None:
            if step == 5:
                change(self.model, self.optimizer)  # type: ignore[operator]

    index = Change(tmp_path).run()
    hashes = index["exact:config_hash"]
    assert len(set(hashes[:5])) == len(set(hashes[5:])) == 1
    assert hashes[4] != hashes[5]
    (event,) = _events(index, "config")
    assert event["step"] == 5
    assert list(event["changed"]) == [name]  # type: ignore[call-overload]


def test_a_schedule_of_momentum_becomes_a_habit() -> None:
    """Betas that change at every step are said three times and are settled after that."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    watch = ConfigWatch(model, [optimizer])
    said = 0
    for step in range(20):
        optimizer.param_groups[0]["betas"] = (0.85 + step / 400, 0.99)
        digest, changed = watch.look()
        said += bool(changed)
        if step > 3:
            assert digest == watch.look()[0]
    assert said == 3


def test_batches_and_samples_seen_before(tmp_path: Path) -> None:
    """A repeated batch names the step it came from; samples and duplicates are counted."""
    watch = BatchWatch()
    ids = np.arange(8)
    assert watch.fields(0, ids, None)["batch_seen"] == -1
    assert watch.fields(1, ids + 8, None)["ids_seen"] == 0
    again = watch.fields(2, ids, None)
    assert (again["batch_seen"], again["ids_seen"]) == (0, 8)
    mixed = watch.fields(3, np.array([3, 100, 100, 101]), None)
    assert (mixed["batch_seen"], mixed["ids_seen"], mixed["duplicates"]) == (-1, 1, 1)
    assert watch.fields(4, np.array([-1, 5]), None)["ids_seen"] == -1


def test_fingerprints_are_of_content() -> None:
    """Equal content in equal nesting has one fingerprint; a changed entry or shape another."""
    batch = {"x": torch.arange(12).reshape(3, 4), "mask": torch.ones(3, dtype=torch.bool)}
    same = {"x": torch.arange(12).reshape(3, 4).t().contiguous().t(), "mask": batch["mask"].clone()}
    assert fingerprint(batch) == fingerprint(same)
    assert fingerprint(batch) != fingerprint({**batch, "x": batch["x"].reshape(4, 3)})
    changed = {**batch, "x": batch["x"].clone()}
    changed["x"][0, 0] = 7
    assert fingerprint(batch) != fingerprint(changed)
    assert fingerprint("no tensor") == 0


def test_labels_against_inputs() -> None:
    """Shifted by one, equal, neither, and no pair of token ids."""
    tokens = torch.arange(30).reshape(3, 10)
    assert label_relation((tokens[:, :-1], tokens[:, 1:])) == 1
    masked = tokens.clone()
    masked[:, :4] = -100
    assert label_relation({"input_ids": tokens, "labels": masked}) == 2
    assert label_relation((tokens[:, :-2], tokens[:, 2:])) == 0
    assert label_relation((torch.randn(3, 10), torch.arange(3))) == -1


def test_labels_that_cannot_tell() -> None:
    """Samples of one token repeated, such as a ruler of dashes, are shifted and equal at once."""
    one = torch.tensor([[7] * 10, [3] * 10])
    assert label_relation((one[:, :-1], one[:, 1:])) == -1
    assert label_relation({"input_ids": one, "labels": torch.full_like(one, -100)}) == -1
    mixed = torch.cat([one, torch.arange(10)[None]])
    assert label_relation((mixed[:, :-1], mixed[:, 1:])) == 1
    assert label_relation((mixed, mixed)) == 2


def test_large_state_is_covered_in_turns() -> None:
    """Over the budget some tensors are digested per step, all of them within a few steps."""
    tensors = [((f"t{i}",), torch.randn(1000)) for i in range(10)]
    watch = TensorWatch(budget=4000 * 3)
    covered = set()
    for _ in range(6):
        watch.end(tensors)
        covered |= set(watch._keys)
        assert watch.start(tensors) == []
        assert watch.covered == pytest.approx(0.3)
    assert len(covered) == 10
    watch.end(tensors)
    key = watch._keys[1]
    dict(tensors)[key][5] += 1
    assert watch.start(tensors) == [key]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
def test_every_bit_counts(dtype: torch.dtype) -> None:
    """A digest differs for each single flipped bit, and for two entries that change places."""
    torch.manual_seed(0)
    tensor = torch.randint(-50, 50, (40,)).to(dtype)
    before = digests([tensor])[0]
    word = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    for bit in range(8 * tensor.element_size() - 1):
        flipped = tensor.clone()
        flipped.view(word)[7] ^= 1 << bit
        assert digests([flipped])[0] != before
    swapped = tensor.clone()
    swapped[[0, 1]] = swapped[[1, 0]]
    assert tensor[0] != tensor[1]
    assert digests([swapped])[0] != before


def test_digests_of_any_layout() -> None:
    """Tensors that the compiled pass cannot read are digested beside those that it can."""
    tensors = [
        torch.arange(6.0), torch.arange(5, dtype=torch.int8), torch.arange(12.0).reshape(3, 4).t(),
        torch.tensor(3.0), torch.arange(3, dtype=torch.bfloat16),
    ]  # fmt: skip
    digester = Digester(tensors)
    before = digester.take()
    assert len(set(before.tolist())) == 5
    for i, tensor in enumerate(tensors):
        tensor += 1
        now = digester.take()
        assert np.flatnonzero(now != before).tolist() == [i]
        before = now


def test_digests_follow_a_tensor_to_other_memory() -> None:
    """What a tensor was given is read, and never what it had before."""
    tensor = torch.arange(6.0)
    digester = Digester([tensor])
    before = digester.take()
    tensor.data = torch.arange(6.0) + 1
    assert digester.take(again=True) == before
    assert digester.take() != before


def test_options_that_change_in_place() -> None:
    """A list among the options may stay the same object and change; a new option is seen too."""
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.param_groups[0]["betas"] = [0.9, 0.99]
    watch = ConfigWatch(model, [optimizer])
    watch.look()
    assert watch.look()[1] == {}
    optimizer.param_groups[0]["betas"][0] = 0.5
    assert watch.look()[1] == {"betas of group 0": ((0.9, 0.99), (0.5, 0.99))}
    optimizer.param_groups[0]["more"] = 1
    assert watch.look()[1] == {"more of group 0": (None, 1)}
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(2))], "eps": 0.1})
    assert watch.look()[1]["eps of group 1"] == (None, 0.1)


def test_many_ids_and_few_are_counted_alike() -> None:
    """Batches above and below the size at which arrays are quicker give the same counts."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(0, 3000, 300) for _ in range(6)]
    many, seen = BatchWatch(), set()
    for step, batch in enumerate(ids):
        found = many.fields(step, batch, None)
        assert found["ids_seen"] == sum(int(i) in seen for i in batch)
        assert found["duplicates"] == len(batch) - len(set(batch.tolist()))
        seen |= set(batch.tolist())
        assert found["ids_left"] == max(seen) + 1 - len(seen)
    few, seen = BatchWatch(), set()
    for step, batch in enumerate(np.concatenate(ids).reshape(-1, 20)):
        found = few.fields(step, batch, None)
        assert found["ids_seen"] == sum(int(i) in seen for i in batch)
        seen |= set(batch.tolist())
        assert found["ids_left"] == max(seen) + 1 - len(seen)
