"""The detector beside a recorder: what it finds while the run goes on, and what it owes the run."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import distributed, nn

import flashback_core as fb
from flashback_core.detectors.stream import BLOCK_ROWS, DetectorStream
from flashback_core.errors import FlashbackWarning
from flashback_core.recorder import Recorder
from flashback_core.report.model import DetectionReport, Finding
from flashback_core.sink import RunFiles, Sink
from flashback_core.sink_set import Told

LATE = BLOCK_ROWS + 8 + 8
"""Rows that a sure statistical finding may be late: a block, and those that date an alarm, which
itself may come some rows after the fault."""


class Batches:
    """Points and their classes; from `shuffled_at` on the classes are those of other points."""

    def __init__(self, shuffled_at: int | None = None, seed: int = 0) -> None:
        self._made = torch.Generator().manual_seed(seed)
        self._teacher = torch.randn(8, 4, generator=self._made)
        self.shuffled_at = shuffled_at

    def at(self, step: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The batch of a step; asked for in order."""
        x = torch.randn(32, 8, generator=self._made)
        y = (x @ self._teacher).argmax(1)
        if self.shuffled_at is not None and step >= self.shuffled_at:
            y = y[torch.randperm(len(y), generator=self._made)]
        return x, y


def make_model(seed: int = 0) -> nn.Sequential:
    """A small classifier, always the same."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(8, 24), nn.Tanh(), nn.Linear(24, 4))


class Training:
    """A model, its optimizer and its data, which outlive a recorder.

    Attributes:
        losses: Loss of each step.
    """

    def __init__(self, shuffled_at: int | None = None, nan_at: int | None = None) -> None:
        self.model = make_model()
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=3e-3)
        self._batches, self._nan_at = Batches(shuffled_at), nan_at
        self.losses: list[float] = []

    def steps(self, n: int, recorder: Recorder | None) -> None:
        """Train `n` steps."""
        for step in range(len(self.losses), len(self.losses) + n):
            x, y = self._batches.at(step)
            loss = nn.functional.cross_entropy(self.model(x), y)
            if step == self._nan_at:
                loss = loss * float("nan")
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            self.losses.append(loss.item())
            if recorder is not None:
                recorder.log(loss=loss)

    def record(self, folder: Path, n: int, **options: Any) -> Recorder:
        """Train `n` steps under a recorder, which is closed then."""
        with Recorder(folder, self.model, self.optimizer, **options) as recorder:
            self.steps(n, recorder)
        return recorder


class Heard:
    """Findings, each with the last step that was complete when it was told."""

    def __init__(self) -> None:
        self.findings: list[tuple[Finding, int]] = []

    def __call__(self, recorder: Recorder, finding: Finding) -> None:
        """Note one."""
        self.findings.append((finding, recorder.next_step - 1))

    @property
    def bad(self) -> list[tuple[Finding, int]]:
        """The bad ones."""
        return [(f, at) for f, at in self.findings if f.severity == "bad"]


class Alerts(Sink):
    """A tracker that keeps its alerts."""

    def __init__(self) -> None:
        self.findings: list[Finding] = []
        self.report: DetectionReport | None = None

    def log_metrics(self, values: Any, step: int) -> None:
        """Nothing."""

    def log_histograms(self, counts: Any, step: int) -> None:
        """Nothing."""

    def alert(self, finding: Finding) -> None:
        """Keep it."""
        self.findings.append(finding)

    def log_report(self, report: DetectionReport, files: RunFiles) -> None:
        """Keep it."""
        self.report = report

    def close(self) -> None:
        """Nothing."""


def test_nan_is_told_at_its_step(tmp_path: Path) -> None:
    """What is certain is told with the row of its step, in a young run too."""
    told = Heard()
    Training(nan_at=9).record(tmp_path, 14, on_finding=told, write_report=False)
    finding, at = told.bad[0]
    assert (finding.step, finding.kind, at) == (9, "nonfinite", 9)


@pytest.mark.parametrize("shuffled_at", [150, 177])
def test_a_statistical_fault_is_told_soon(tmp_path: Path, shuffled_at: int) -> None:
    """Labels that are shuffled are told while the run goes on, as the report dates them."""
    told = Heard()
    recorder = Training(shuffled_at).record(tmp_path, shuffled_at + LATE + 20, on_finding=told)
    finding, at = next((f, at) for f, at in told.bad if f.confidence >= 0.9)
    assert abs(finding.step - shuffled_at) <= 2
    assert shuffled_at < at <= shuffled_at + LATE
    assert recorder.report is not None
    assert recorder.report.first_bad_step == finding.step


def test_a_healthy_run_is_silent(tmp_path: Path) -> None:
    """A run in which nothing goes wrong has no bad finding and no alert."""
    told, sink = Heard(), Alerts()
    Training().record(tmp_path, 200, on_finding=told, sinks=[sink])
    assert told.bad == []
    assert sink.findings == []
    assert sink.report is not None


def test_one_alert_for_one_fault(tmp_path: Path) -> None:
    """One alert while the run goes on; the report, which names more signs of it, adds none."""
    told, sink = Heard(), Alerts()
    Training(shuffled_at=150).record(tmp_path, 260, on_finding=told, sinks=[sink])
    assert len({f.kind for f, _ in told.bad if abs(f.step - 150) <= 2}) > 1
    (alert,) = sink.findings
    assert alert == told.bad[0][0]
    assert sink.report is not None
    assert sink.report.bad is not None
    assert sink.report.bad.kind != alert.kind


def test_another_kind_of_the_same_step_is_no_new_alert() -> None:
    """Bad findings within two steps are one fault, whatever they are called; others are not."""

    def finding(step: int, kind: str, severity: str = "bad") -> Finding:
        return Finding(
            step=step, interval=(step, step), kind=kind, confidence=0.9, severity=severity,
            evidence=(),
        )  # fmt: skip

    told = Told()
    given = [finding(100, "divergence"), finding(100, "divergence"), finding(102, "loss_shift"),
             finding(98, "nonfinite"), finding(120, "divergence"),
             finding(101, "lr_change", "change")]  # fmt: skip
    assert [told.is_new(f) for f in given] == [True, False, False, False, True, True]


@pytest.mark.parametrize("start_step", [None, 160])
def test_a_continued_run_is_known(tmp_path: Path, start_step: int | None) -> None:
    """A second recorder knows what is normal: a fault ten rows after the resume is told."""
    training, told = Training(shuffled_at=180), Heard()
    first = start_step or 170
    with Recorder(tmp_path, training.model, training.optimizer, write_report=False) as recorder:
        training.steps(first, recorder)
        kept = copy.deepcopy((training.model.state_dict(), training.optimizer.state_dict()))
        training.steps(170 - first, recorder)
    training.model.load_state_dict(kept[0])
    training.optimizer.load_state_dict(kept[1])
    recorder = training.record(
        tmp_path, 10 + LATE, start_step=start_step, on_finding=told, write_report=False
    )
    assert recorder.index.steps.tolist() == list(range(first + 10 + LATE))
    finding, at = told.bad[0]
    assert abs(finding.step - (first + 10)) <= 2
    assert at <= first + 10 + LATE


def test_old_findings_are_not_told_again(tmp_path: Path) -> None:
    """What a continued run holds was told before."""
    training, told = Training(nan_at=40), Heard()
    with Recorder(tmp_path, training.model, training.optimizer, write_report=False) as recorder:
        training.steps(45, recorder)
    with Recorder(
        tmp_path, training.model, training.optimizer, write_report=False, on_finding=told
    ) as recorder:
        recorder.log(loss=1.0)
    assert all(f.step >= 45 for f, _ in told.findings)


def test_a_detector_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure inside the detector is one warning; the recording and the training go on."""

    def fails(*_: Any, **__: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(DetectorStream, "push", fails)
    with pytest.warns(FlashbackWarning, match="detection while the run goes on failed") as caught:
        recorder = Training(nan_at=9).record(tmp_path, 14)
    assert len(caught) == 1
    assert len(recorder.index) == 14
    assert recorder.report is not None  # the report needs no stream
    assert recorder.report.first_bad_step == 9


def test_a_function_that_fails(tmp_path: Path) -> None:
    """A failing `on_finding` is one warning."""

    def fails(recorder: Recorder, finding: Finding) -> None:
        raise ZeroDivisionError

    with pytest.warns(FlashbackWarning, match="on_finding failed") as caught:
        recorder = Training(nan_at=9).record(tmp_path, 14, on_finding=fails, write_report=False)
    assert len(caught) == 1
    assert len(recorder.index) == 14


def test_switched_off(tmp_path: Path) -> None:
    """With `online=False` nothing is told before the report, which still alerts."""
    told, sink = Heard(), Alerts()
    recorder = Training(nan_at=9).record(tmp_path, 14, online=False, on_finding=told, sinks=[sink])
    assert recorder._online is None
    assert told.findings == []
    assert [f.step for f in sink.findings] == [9]


def test_two_optimizers(tmp_path: Path) -> None:
    """Each optimizer is its own series: the one that goes wrong is found among their steps."""
    nets = nn.ModuleDict({"a": make_model(0), "b": make_model(1)})
    optimizers = [torch.optim.Adam(n.parameters(), lr=3e-3) for n in nets.values()]
    batches, told = [Batches(None, 3), Batches(150, 4)], Heard()
    with Recorder(tmp_path, nets, optimizers, on_finding=told, write_report=False) as recorder:
        for step in range(150 + LATE):
            for net, optimizer, data in zip(nets.values(), optimizers, batches, strict=True):
                x, y = data.at(step)
                loss = nn.functional.cross_entropy(net(x), y)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                recorder.log(loss=loss)
    finding, _ = told.bad[0]
    assert finding.step % 2 == 1
    assert abs(finding.step - 301) <= 4  # two steps of its own series


def test_the_same_losses(tmp_path: Path) -> None:
    """Losses are equal bit for bit, online or not, through a fault too."""
    losses = []
    for name, online in (("bare", None), ("off", False), ("on", True)):
        training = Training(shuffled_at=60)
        if online is None:
            training.steps(110, None)
        else:
            training.record(tmp_path / name, 110, online=online, write_report=False)
        losses.append(training.losses)
    assert losses[0] == losses[1] == losses[2]


@pytest.fixture
def one_process() -> Iterator[None]:
    """A process group of one."""
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_that_does_not_write_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rank: int
) -> None:
    """Of a sharded model only the rank that writes detects."""
    from torch.distributed.tensor import DeviceMesh, Shard, distribute_tensor

    spread: Callable[[torch.Tensor], nn.Parameter] = lambda t: nn.Parameter(  # noqa: E731  # short
        distribute_tensor(t.detach(), DeviceMesh("cpu", [0]), [Shard(0)])
    )
    model = make_model()
    for layer in (model[0], model[2]):
        layer.weight, layer.bias = spread(layer.weight), spread(layer.bias)
    monkeypatch.setattr("flashback_core.recorder.rank", lambda: rank)
    recorder = Recorder(tmp_path, model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert (recorder._online is None) == (rank > 0)
    recorder.close()


def test_public_stream_says_the_same(tmp_path: Path) -> None:
    """The recorder's findings are those of the detector's stream over the rows of the index."""
    told = Heard()
    recorder = Training(shuffled_at=150).record(
        tmp_path, 150 + LATE, on_finding=told, write_report=False
    )
    stream = fb.FirstBadStepDetector().stream()
    rows = recorder.index.to_pandas().reset_index()
    for row in rows.to_dict("records"):
        stream.update(row)
    stream.finish()
    same = lambda f: (f.step, f.kind, f.confidence)  # noqa: E731  # short
    assert sorted(map(same, stream.findings)) == sorted(same(f) for f, _ in told.findings)
