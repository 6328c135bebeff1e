"""Every speed of the sketch equals the definition, on ordinary and on hostile tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flashback_core.sketch.backend import Backend, Watched
from flashback_core.sketch.choose import SplitBackend
from flashback_core.sketch.device import DeviceBackend
from flashback_core.sketch.flat import FlatBackend
from flashback_core.sketch.fused import FusedBackend
from flashback_core.sketch.layout import BLOCK
from flashback_core.sketch.reference import reference_sums
from flashback_core.sketch.sums import StepSums

BACKENDS: dict[str, tuple[Callable[..., Backend], float]] = {
    "flat": (FlatBackend, 1e-4),
    "fused": (FusedBackend, 1e-6),
    "device": (DeviceBackend, 1e-4),
    "device-chunks": (partial(DeviceBackend, chunk=1 << 16), 1e-4),
    "split": (SplitBackend, 1e-4),
}
backends = pytest.mark.parametrize("name", BACKENDS)

FLOAT = torch.float32


class Twin:
    """A backend beside the float64 reference, over the same parameters."""

    def __init__(
        self, name: str, parameters: Sequence[torch.Tensor], groups: Sequence[int], every: int = 1
    ) -> None:
        make, self.rtol = BACKENDS[name]
        if any(p.dtype != FLOAT for p in parameters):
            self.rtol = 1e-4  # `fused` hands other dtypes to `flat`
        self.parameters, self.groups = list(parameters), list(groups)
        self.backend = make(Watched.of(parameters, groups, 8), every)
        self.signs: list[np.ndarray | None] = [None] * len(parameters)
        self.before = [_numpy(p) for p in parameters]

    def step(
        self,
        grads: Sequence[torch.Tensor | None],
        update: Callable[[torch.Tensor], None] | None = None,
        scale: float = 1.0,
        meddle: Callable[[torch.Tensor], None] | None = None,
    ) -> tuple[StepSums, StepSums]:
        """One optimizer step: (sums of the backend, sums of the reference)."""
        for p, g in zip(self.parameters, grads, strict=True):
            p.grad = g
        with torch.no_grad():
            for p in self.parameters:
                if meddle is not None:
                    meddle(p)
        start = [_numpy(p) for p in self.parameters]
        self.backend.gradients(scale)
        with torch.no_grad():
            for p in self.parameters:
                if update is not None:
                    update(p)
                elif p.grad is not None:
                    p -= 1e-3 * p.grad.to_dense() if p.grad.is_sparse else 1e-3 * p.grad
        ours = self.backend.updates().result()
        after = [_numpy(p) for p in self.parameters]
        plain = [None if g is None else _numpy(g) / np.float32(scale) for g in grads]
        theirs = reference_sums(
            plain,
            self.before,
            after,
            self.groups,
            8,
            self.signs,
            start,
            [p.dtype == FLOAT for p in self.parameters],
        )
        self.before = after
        return ours, theirs

    def check(self, *args: object, **kwargs: object) -> StepSums:
        """Step and compare everything."""
        ours, theirs = self.step(*args, **kwargs)  # type: ignore[arg-type]
        assert_equal(ours, theirs, self.rtol)
        return ours


def _numpy(tensor: torch.Tensor) -> np.ndarray:
    tensor = tensor.detach()
    tensor = tensor.to_dense() if tensor.layout is not torch.strided else tensor
    wide = torch.float64 if tensor.dtype == torch.float64 else torch.float32
    return tensor.to(wide).numpy().copy()


def assert_equal(ours: StepSums, theirs: StepSums, rtol: float) -> None:
    """Counts, maxima and histograms exactly; moments and norms within `rtol`."""
    np.testing.assert_array_equal(ours.counts, theirs.counts)
    np.testing.assert_array_equal(ours.bins, theirs.bins)
    np.testing.assert_array_equal(ours.peaks, theirs.peaks)
    np.testing.assert_array_equal(ours.changed, theirs.changed)
    np.testing.assert_array_equal(ours.still, theirs.still)
    np.testing.assert_allclose(ours.moments[:, 1:], theirs.moments[:, 1:], rtol=2 * rtol)
    # a sum may cancel: what it is used for is the variance, so its error is measured against that
    n = np.maximum(theirs.counts[:, 0] - theirs.counts[:, 1], 1)
    room = rtol * np.sqrt(theirs.moments[:, 1] / n) * n
    assert np.all(np.abs(ours.moments[:, 0] - theirs.moments[:, 0]) <= room)
    np.testing.assert_allclose(ours.tensor_sumsq, theirs.tensor_sumsq, rtol=2 * rtol)


def _parameters(*shapes: tuple[int, ...], dtype: torch.dtype = FLOAT) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(s, generator=generator).to(dtype)) for s in shapes]


def _noise(parameters: Sequence[torch.Tensor], seed: int, size: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [size * torch.randn(p.shape, generator=generator).to(p.dtype) for p in parameters]


@backends
def test_many_shapes_over_steps(name: str) -> None:
    """Small, large, odd-sized and empty tensors in shared groups agree over several steps."""
    shapes = [(100,), (256, 100), (3, BLOCK // 2 + 5), (7,), (0,), (3, 5), (2 * BLOCK + 9,), ()]
    parameters = _parameters(*shapes)
    twin = Twin(name, parameters, (0, 0, 1, 1, 7, 7, 2, 2))
    for seed in range(4):
        twin.check(_noise(parameters, seed, 10.0 ** (-2 * seed)))


SPECIAL = {
    "zeros": [0.0, -0.0, 0.0],
    "one NaN": [1.0, float("nan"), -2.0],
    "infinities": [float("inf"), float("-inf"), 3.0],
    "all NaN": [float("nan")] * 3,
    "subnormal": [1e-40, -1e-42, 0.0],
    "squares vanish": [1e-30, -3e-25, 1e-28],
    "squares overflow": [3e38, -3e38, 1e30],
    "mixed scales": [3e38, 1e-40, -1.0],
    "bin bounds": [2.0**-29, 2.0**-27, 0.5],
    "below a bound": [np.nextafter(np.float32(0.5), np.float32(0)), 2.0, -(2.0**-3)],
}


@backends
@pytest.mark.parametrize("case", SPECIAL)
def test_special_values(name: str, case: str) -> None:
    """Zeros, NaN, infinities, subnormal and huge values agree, in small and in large tensors."""
    parameters = _parameters((3,), (BLOCK,))
    twin = Twin(name, parameters, (0, 1))
    twin.check(_noise(parameters, 1), update=lambda _: None)
    values = torch.tensor(SPECIAL[case], dtype=FLOAT)
    large = _noise(parameters, 2)[1]
    large[1000:1003] = values
    twin.check([values, large], update=lambda _: None)
    twin.check(_noise(parameters, 3), update=lambda _: None)


@backends
def test_updates_that_are_not_finite(name: str) -> None:
    """Weights that become NaN or infinite are counted, and the next step is judged again."""
    parameters = _parameters((10,), (BLOCK + 1,))
    twin = Twin(name, parameters, (0, 1))

    def spoil(p: torch.Tensor) -> None:
        p[2], p[5] = float("nan"), float("inf")

    ours = twin.check(_noise(parameters, 1), update=spoil)
    assert ours.counts[:2, 5].tolist() == [2, 2]
    twin.check(_noise(parameters, 2), update=lambda p: p.nan_to_num_(0.0, 0.0, 0.0))
    twin.check(_noise(parameters, 3))


@backends
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_that_something_else_changed(name: str, dtype: torch.dtype) -> None:
    """One flipped bit, a sign of zero and a NaN written between two steps are counted, exactly."""
    parameters = _parameters((40,), (9,), (BLOCK + 1,), dtype=dtype)
    twin = Twin(name, parameters, (0, 0, 1))
    assert twin.check(_noise(parameters, 1)).changed.tolist() == [0, 0, 0]
    word = torch.int32 if dtype == torch.float32 else torch.int16

    def meddle(p: torch.Tensor) -> None:
        if p.numel() == 9:
            p.view(word)[4] ^= 1
        elif p.numel() > 40:
            p[7], p[BLOCK] = float("nan"), float("nan")

    assert twin.check(_noise(parameters, 2), meddle=meddle).changed.tolist() == [0, 1, 2]
    assert twin.check(_noise(parameters, 3)).changed.tolist() == [0, 0, 0]


@backends
def test_none_is_not_zero(name: str) -> None:
    """A parameter without a gradient adds nothing; one with a zero gradient adds its entries."""
    parameters = _parameters((8,), (9,), (10,))
    twin = Twin(name, parameters, (0, 0, 1))
    grads = _noise(parameters, 1)
    ours = twin.check([grads[0], None, None])
    assert ours.counts[0, 0] == 8
    assert ours.counts[1, 0] == 0
    ours = twin.check([grads[0], torch.zeros(9), torch.zeros(10)])
    assert ours.counts[0, 0] == 17
    assert ours.bins[0].sum() == 27
    for seed in range(2, 5):
        twin.check([None if seed == 3 else g for g in _noise(parameters, seed)])


@backends
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_other_dtypes(name: str, dtype: torch.dtype) -> None:
    """bfloat16, float16 and float64 parameters agree, alone and beside float32."""
    parameters = [*_parameters((50, 40), (7,), dtype=dtype), *_parameters((33,), (BLOCK,))]
    twin = Twin(name, parameters, (0, 1, 0, 1))
    for seed in range(3):
        twin.check(_noise(parameters, seed, 1e-2))


@backends
def test_layouts_of_memory(name: str) -> None:
    """Transposed, strided, expanded and sparse gradients are read by value, never past the end."""
    parameters = _parameters((6, 4), (5,), (12, 3), (20, 2))
    twin = Twin(name, parameters, (0, 1, 2, 3))
    at, ones = torch.tensor([[3, 3, 17]]), torch.ones(3, 2)
    sparse = torch.sparse_coo_tensor(at, ones, (20, 2), check_invariants=True)
    for seed in range(2):
        grads = _noise(parameters, seed)
        views = [
            grads[0].t().contiguous().t(),
            torch.full((1,), -2.0 + 4 * seed).expand(5),
            torch.cat([grads[2], grads[2]])[::2],
            sparse,
        ]
        twin.check(views, update=lambda _: None)


@backends
def test_parameters_that_are_not_contiguous(name: str) -> None:
    """Weights that are a transposed view agree."""
    base = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    parameter = torch.nn.Parameter(base.t())
    twin = Twin(name, [parameter], (0,))
    for seed in range(3):
        twin.check([_noise([parameter], seed)[0]])


@backends
def test_memory_that_moves(name: str) -> None:
    """`parameter.data = …` gives a parameter other memory; the update is still right."""
    parameters = _parameters((30,), (BLOCK,))
    twin = Twin(name, parameters, (0, 1))
    twin.check(_noise(parameters, 1))

    def move(p: torch.Tensor) -> None:
        p.data = p.data * 0.5

    twin.check(_noise(parameters, 2), update=move)
    twin.check(_noise(parameters, 3))


@backends
def test_loss_scale_is_taken_off(name: str) -> None:
    """Gradients that still carry a loss scale are divided by it."""
    parameters = _parameters((30,), (BLOCK,))
    twin = Twin(name, parameters, (0, 1))
    for seed in range(2):
        grads = [g * 1024 for g in _noise(parameters, seed)]
        twin.check(grads, scale=1024.0, update=lambda _: None)


@backends
def test_tensors_that_come_and_go(name: str) -> None:
    """After a change of the watched tensors the signs of those that stay are still known."""
    a, b, c = _parameters((40,), (50,), (BLOCK + 3,))
    twin = Twin(name, [a, b], (0, 1))
    first = _noise([a, b, c], 1)
    twin.check(first[:2], update=lambda _: None)
    twin.backend.replace(Watched.of([c, a], (2, 0), 8), [None, 0])
    twin.parameters, twin.groups = [c, a], [2, 0]
    twin.signs = [None, twin.signs[0] if name != "split" else None]
    twin.before = [_numpy(c), _numpy(a)]
    ours = twin.check([first[2], -first[0]], update=lambda _: None)
    if name != "split":
        assert ours.counts[0, 2] == 40  # every sign of `a` flipped
    twin.check([-first[2], first[0]], update=lambda _: None)


@backends
@pytest.mark.parametrize("every", [2, 3])
def test_histograms_in_turns_see_every_entry_once(name: str, every: int) -> None:
    """Over `every` steps with one gradient the bins add up to the full one; the rest is exact."""
    shapes = [(BLOCK * 3 + 17,), (100,), (BLOCK // 2,), (5,), (BLOCK + 1,)]
    parameters = _parameters(*shapes)
    twin = Twin(name, parameters, (0, 0, 1, 1, 2), every)
    grads = _noise(parameters, 1)
    total = np.zeros((2, 16), np.int64)
    for _ in range(every):
        ours, theirs = twin.step([g.clone() for g in grads], update=lambda _: None)
        total += ours.bins
        ours.bins = theirs.bins
        assert_equal(ours, theirs, twin.rtol)
    np.testing.assert_array_equal(total, theirs.bins)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.lists(st.floats(width=32), min_size=1, max_size=40), min_size=1, max_size=3))
@pytest.mark.parametrize("name", ["flat", "fused", "device"])
def test_any_floats(name: str, rows: list[list[float]]) -> None:
    """Whatever float32 values a gradient holds, every speed equals the definition."""
    n = max(len(r) for r in rows)
    parameters = _parameters((n,))
    twin = Twin(name, parameters, (0,))
    for row in rows:
        grad = torch.tensor(row + [0.0] * (n - len(row)), dtype=FLOAT)
        twin.check([grad], update=lambda _: None)


@backends
def test_memory_is_stated(name: str) -> None:
    """A snapshot of 4 bytes and one sign bit per float32 parameter, and bounded buffers."""
    parameters = _parameters((4 * BLOCK,), (1000,))
    backend = BACKENDS[name][0](Watched.of(parameters, (0, 1), 8), 1)
    n = sum(p.numel() for p in parameters)
    held = backend.memory_bytes()
    assert n * (4 + 1 / 8) <= held <= n * (4 + 1 / 8) + 32 * BLOCK
