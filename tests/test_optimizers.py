"""torch's optimizers inside compiled functions: eager's numbers, in place, in few kernels, compiled
once."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import ingot

SHAPES = [(16, 8), (8,), (5, 3, 2), (7,), (33, 9)]

KINDS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "sgd": lambda ps, **kw: torch.optim.SGD(ps, lr=0.1, **kw),
    "momentum": lambda ps, **kw: torch.optim.SGD(
        ps, lr=0.1, momentum=0.9, dampening=0.1, weight_decay=0.01, **kw
    ),
    "nesterov": lambda ps, **kw: torch.optim.SGD(
        ps, lr=0.1, momentum=0.9, nesterov=True, maximize=True, **kw
    ),
    "adam": lambda ps, **kw: torch.optim.Adam(ps, lr=0.01, **kw),
    "amsgrad": lambda ps, **kw: torch.optim.Adam(
        ps, lr=0.01, amsgrad=True, weight_decay=0.1, maximize=True, **kw
    ),
    "adamw": lambda ps, **kw: torch.optim.AdamW(ps, lr=0.01, **kw),
    "rmsprop": lambda ps, **kw: torch.optim.RMSprop(ps, lr=0.01, momentum=0.9, centered=True, **kw),
    "adagrad": lambda ps, **kw: torch.optim.Adagrad(ps, lr=0.01, lr_decay=0.1, **kw),
    "adamax": lambda ps, **kw: torch.optim.Adamax(ps, lr=0.01, **kw),
    "adadelta": lambda ps, **kw: torch.optim.Adadelta(ps, lr=0.5, **kw),
    "nadam": lambda ps, **kw: torch.optim.NAdam(ps, lr=0.01, **kw),
    "radam": lambda ps, **kw: torch.optim.RAdam(ps, lr=0.1, weight_decay=0.1, **kw),
    "radamw": lambda ps, **kw: torch.optim.RAdam(
        ps, lr=0.1, weight_decay=0.1, decoupled_weight_decay=True, maximize=True, **kw
    ),
    "asgd": lambda ps, **kw: torch.optim.ASGD(ps, lr=0.1, lambd=0.1, t0=3, weight_decay=0.1, **kw),
    "adafactor": lambda ps, **kw: torch.optim.Adafactor(ps, lr=0.5, weight_decay=0.1, **kw),
    "asgd that ascends": lambda ps, **kw: torch.optim.ASGD(ps, lr=0.1, maximize=True, **kw),
}

OF_MANY_KERNELS = ["adafactor", "adamax", "adadelta", "nadam"]
FUSED = ["sgd", "momentum", "nesterov", "adam", "amsgrad", "adamw", "adagrad"]


class Setting:
    """Parameters, and an optimizer of them."""

    def __init__(
        self, kind: str, dtype: torch.dtype = torch.float32, shapes: Any = SHAPES, **options: Any
    ) -> None:
        generator = torch.Generator().manual_seed(0)
        values = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        self.parameters = [nn.Parameter(value.to(dtype)) for value in values]
        self.optimizer = KINDS[kind](self.parameters, **options)
        self.generator = generator

    def give_gradients(self) -> None:
        for p in self.parameters:
            p.grad = torch.randn(p.shape, generator=self.generator, dtype=torch.float64).to(p.dtype)

    def tensors(self) -> list[torch.Tensor]:
        """All that a step writes, in a fixed order."""
        states = [self.optimizer.state[p] for p in self.parameters]
        return [
            *self.parameters,
            *(v for s in states for v in s.values() if isinstance(v, torch.Tensor)),
        ]


def error(found: list[torch.Tensor], exact: list[torch.Tensor]) -> float:
    """Relative, over all tensors together."""
    with torch.no_grad():
        difference = sum(
            float((a.double() - b).square().sum()) for a, b in zip(found, exact, strict=True)
        )
        return (difference / sum(float(b.square().sum()) for b in exact)) ** 0.5


def assert_as_exact(ours: Setting, eager: Setting, exact: Setting) -> None:
    eps = torch.finfo(ours.parameters[0].dtype).eps
    eagers = error(eager.tensors(), exact.tensors())
    # Torch's fused SGD with maximize=True reads the momentum of bfloat16 before it is written: NaN
    # where NaN lay there.
    assert error(ours.tensors(), exact.tensors()) <= max(
        0 if math.isnan(eagers) else 1.1 * eagers, 4 * eps
    )


def compiled_step(setting: Setting) -> Any:
    def step() -> None:
        setting.optimizer.step()

    return ingot.compile(step)


def report(compiled: Any) -> ingot.Report:
    return ingot.explain(compiled)()


class TestNumbers:
    @pytest.mark.parametrize("foreach", [False, True])
    @pytest.mark.parametrize("kind", KINDS)
    def test_steps_are_as_exact_as_eagers(self, kind, foreach):
        dtypes = torch.float32, torch.float32, torch.float64
        ours, eager, exact = (Setting(kind, dtype, foreach=foreach) for dtype in dtypes)
        step = compiled_step(ours)
        for _ in range(10):
            for setting in (ours, eager, exact):
                setting.give_gradients()
            step()
            eager.optimizer.step()
            exact.optimizer.step()
        assert_as_exact(ours, eager, exact)
        for mine, its in zip(ours.tensors(), eager.tensors(), strict=True):
            assert (mine.dtype, mine.stride(), mine.requires_grad) == (
                its.dtype,
                its.stride(),
                its.requires_grad,
            )
        assert list(ours.optimizer.state[ours.parameters[0]]) == list(
            eager.optimizer.state[eager.parameters[0]]
        )

    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("kind", FUSED)
    def test_fused_steps_are_as_exact_as_eagers(self, kind, dtype):
        ours, eager, exact = (Setting(kind, d, fused=True) for d in (dtype, dtype, torch.float64))
        for its, like in zip(exact.parameters, eager.parameters, strict=True):
            its.data.copy_(like)
        step = compiled_step(ours)
        for _ in range(10):
            for setting in (ours, eager, exact):
                setting.give_gradients()
            for its, like in zip(exact.parameters, eager.parameters, strict=True):
                its.grad.copy_(like.grad)
            step()
            eager.optimizer.step()
            exact.optimizer.step()
        assert_as_exact(ours, eager, exact)

    @pytest.mark.parametrize(
        "kind", ["sgd", "adamw", "rmsprop", "nadam", "radam", "asgd", "fused adam", "fused sgd"]
    )
    def test_a_learning_rate_that_is_a_tensor(self, kind):
        def make(dtype: torch.dtype) -> Setting:
            name = kind.removeprefix("fused ")
            setting = Setting(name, dtype, **({"fused": True} if name != kind else {}))
            (group,) = setting.optimizer.param_groups
            group["lr"] = torch.tensor(group["lr"])
            return setting

        ours, eager, exact = make(torch.float32), make(torch.float32), make(torch.float64)
        step = compiled_step(ours)
        for k in range(10):
            for setting in (ours, eager, exact):
                setting.give_gradients()
                setting.optimizer.param_groups[0]["lr"].fill_(0.1 / (k + 1))
            step()
            eager.optimizer.step()
            exact.optimizer.step()
        assert_as_exact(ours, eager, exact)
        found = report(step)
        assert found.break_count == 0 and len(found.recompiles) <= 1

    @pytest.mark.parametrize("kind", ["momentum", "adam", "amsgrad"])
    def test_double_precision(self, kind):
        ours, eager = Setting(kind, torch.float64), Setting(kind, torch.float64)
        step = compiled_step(ours)
        for _ in range(4):
            for setting in (ours, eager):
                setting.give_gradients()
            step()
            eager.optimizer.step()
        for mine, its in zip(ours.tensors(), eager.tensors(), strict=True):
            torch.testing.assert_close(mine, its, rtol=1e-14, atol=1e-16)

    def test_muon(self):
        """Its updates are bfloat16, so they are the same but for roundings of these."""

        def make() -> Setting:
            setting = Setting("sgd", shapes=[(16, 8), (8, 12)])
            setting.optimizer = torch.optim.Muon(setting.parameters, lr=0.1)
            return setting

        ours, eager = make(), make()
        step = compiled_step(ours)
        for _ in range(3):
            for setting, do in ((ours, step), (eager, eager.optimizer.step)):
                setting.give_gradients()
                do()
        assert error(ours.tensors(), eager.tensors()) < 0.01
        assert report(step).break_count == 0

    def test_steps_are_counted_exactly(self):
        ours = Setting("adam")
        ours.give_gradients()
        step = compiled_step(ours)
        for _ in range(40):
            step()
        assert {float(s["step"]) for s in ours.optimizer.state.values()} == {40.0}


class TestOnePiece:
    @pytest.mark.parametrize("foreach", [False, True])
    @pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in OF_MANY_KERNELS])
    def test_no_break_and_few_kernels(self, kind, foreach):
        ours = Setting(kind, shapes=SHAPES * 8, foreach=foreach)
        ours.give_gradients()
        ours.optimizer.step()
        found = report(compiled_step(ours))
        assert (found.graph_count, found.break_count) == (1, 0)
        assert len(found.kernels) <= 3 and all(kernel.kind == "fused" for kernel in found.kernels)

    @pytest.mark.parametrize("kind", FUSED)
    def test_fused(self, kind):
        ours = Setting(kind, shapes=SHAPES * 8, fused=True)
        ours.give_gradients()
        ours.optimizer.step()
        found = report(compiled_step(ours))
        assert (found.graph_count, found.break_count) == (1, 0)
        assert len(found.kernels) <= 3 and all(kernel.kind == "fused" for kernel in found.kernels)

    @pytest.mark.parametrize("found", [0.0, 1.0])
    @pytest.mark.parametrize("kind", FUSED)
    def test_fused_steps_of_scaled_gradients(self, kind, found):
        """Gradients are divided where they lie; nothing is written where one is not finite."""
        ours, eager = Setting(kind, fused=True), Setting(kind, fused=True)
        step = compiled_step(ours)
        for setting, do in ((ours, step), (eager, eager.optimizer.step)):
            setting.give_gradients()
            do()
            for scale in (4.0, 2.0):
                setting.give_gradients()
                setting.optimizer.grad_scale = torch.tensor(scale)
                setting.optimizer.found_inf = torch.tensor(found)
                do()
        for mine, its in zip(ours.tensors(), eager.tensors(), strict=True):
            torch.testing.assert_close(mine, its)
        for mine, its in zip(ours.parameters, eager.parameters, strict=True):
            torch.testing.assert_close(mine.grad, its.grad)
        assert report(step).break_count == 0

    @pytest.mark.parametrize("kind", ["radam", "asgd", "adafactor"])
    def test_once_for_all_counts_of_steps(self, kind):
        ours = Setting(kind)
        step = compiled_step(ours)
        for _ in range(12):
            ours.give_gradients()
            step()
        assert report(step).break_count == 0 and len(report(step).recompiles) == 1

    def test_once_torch_compile_has_run(self):
        """It disables functions of torch's optimizers for itself."""
        torch.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
        self.test_no_break_and_few_kernels("adam", True)

    def test_compiled_for_the_first_step_and_for_the_others(self):
        ours = Setting("adam")
        ours.give_gradients()
        step = compiled_step(ours)
        for _ in range(5):
            step()
        assert len(report(step).recompiles) == 1

    def test_a_learning_rate_is_read_at_each_call(self):
        ours, eager = Setting("adamw"), Setting("adamw")
        steps = compiled_step(ours), eager.optimizer.step
        for setting in (ours, eager):
            setting.give_gradients()
        for rate in (0.1, 0.1, 0.03, 0.5, 0.0):
            for setting, step in zip((ours, eager), steps, strict=True):
                setting.optimizer.param_groups[0]["lr"] = rate
                step()
        for mine, its in zip(ours.tensors(), eager.tensors(), strict=True):
            torch.testing.assert_close(mine, its)
        assert len(report(steps[0]).recompiles) == 1

    @pytest.mark.parametrize("kind", ["momentum", "adam"])
    def test_schedulers(self, kind):
        ours, eager = Setting(kind), Setting(kind)
        schedulers = [
            torch.optim.lr_scheduler.CosineAnnealingLR(s.optimizer, 6) for s in (ours, eager)
        ]
        steps = compiled_step(ours), eager.optimizer.step
        for _ in range(6):
            for setting, scheduler, step in zip((ours, eager), schedulers, steps, strict=True):
                setting.give_gradients()
                step()
                scheduler.step()
        for mine, its in zip(ours.tensors(), eager.tensors(), strict=True):
            torch.testing.assert_close(mine, its)
        assert len(report(steps[0]).recompiles) == 1

    def test_groups_with_their_own_settings(self):
        def make() -> Setting:
            setting = Setting("adam")
            *first, last = setting.parameters
            groups = [
                {"params": first, "lr": 0.3, "weight_decay": 0.1},
                {"params": [last], "eps": 0.1},
            ]
            setting.optimizer = torch.optim.AdamW(groups, lr=0.01)
            return setting

        ours, eager = make(), make()
        step = compiled_step(ours)
        for _ in range(3):
            for setting in (ours, eager):
                setting.give_gradients()
            step()
            eager.optimizer.step()
        for mine, its in zip(ours.tensors(), eager.tensors(), strict=True):
            torch.testing.assert_close(mine, its)

    def test_parameters_without_gradients_are_left_alone(self):
        ours = Setting("adam")
        ours.give_gradients()
        ours.parameters[1].grad = None
        before = ours.parameters[1].clone()
        step = compiled_step(ours)
        step()
        step()
        assert (
            torch.equal(ours.parameters[1], before)
            and ours.parameters[1] not in ours.optimizer.state
        )


class TestInPlace:
    def test_memory_stays_where_it_is_and_versions_go_up(self):
        ours = Setting("adam")
        ours.give_gradients()
        step = compiled_step(ours)
        step()
        places = [t.data_ptr() for t in ours.tensors()]
        versions = [t._version for t in ours.tensors()]
        step()
        assert [t.data_ptr() for t in ours.tensors()] == places
        assert all(
            now._version > before for now, before in zip(ours.tensors(), versions, strict=True)
        )

    def test_a_graph_that_saved_a_parameter_notices(self):
        ours = Setting("sgd")
        ours.give_gradients()
        loss = sum((p * p).sum() for p in ours.parameters)
        compiled_step(ours)()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    def test_no_temporaries_as_large_as_the_parameters(self):
        ours = Setting("adam", shapes=[(64, 64)] * 8)
        ours.give_gradients()
        ours.optimizer.step()
        inputs = sum(t.nbytes for t in ours.tensors()) + sum(p.nbytes for p in ours.parameters)
        assert report(compiled_step(ours)).peak_bytes <= inputs + 64 * 64

    def test_state_goes_out_and_in(self):
        ours, eager = Setting("adam"), Setting("adam")
        step = compiled_step(ours)
        for setting, do in ((ours, step), (eager, eager.optimizer.step)):
            for _ in range(2):
                setting.give_gradients()
                do()
            setting.optimizer.load_state_dict(copy.deepcopy(setting.optimizer.state_dict()))
            for _ in range(2):
                setting.give_gradients()
                do()
        for mine, its in zip(ours.tensors(), eager.tensors(), strict=True):
            torch.testing.assert_close(mine, its)
