"""One call of one op, compiled and in eager: whether both did the same, and what the compiled
program consists of."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._pytree import tree_flatten, tree_map

import ingot
from ingot.compiler import Compiler
from ingot.schedule.plan import LibraryStep

# Relative error, and absolute error relative to the largest magnitude of a result, that counts as
# equal without a look at float64.
CLOSE = {
    torch.float64: 1e-13, torch.complex128: 1e-13, torch.float32: 5e-7, torch.complex64: 5e-7,
    torch.float16: 1e-3, torch.complex32: 1e-3, torch.bfloat16: 8e-3,
}  # fmt: skip
WIDE = {dtype: torch.float64 for dtype in CLOSE} | {
    dtype: torch.complex128 for dtype in (torch.complex32, torch.complex64, torch.complex128)
}
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
ERROR_RATIO, ERROR_FLOOR = 1.1, 4  # of the relative L2 error, against eager's and in eps

Call = tuple[Any, tuple[Any, ...], dict[str, Any]]  # input, args, kwargs


class Different(AssertionError):
    """The compiled call did something else than eager."""


@dataclass
class Ran:
    """What a call gave, and what it left of its arguments."""

    call: Call
    result: Any = None
    error: Exception | None = None
    random: Any = None
    leaves: list[Any] = field(default_factory=list)

    @staticmethod
    def of(function: Any, call: Call) -> Ran:
        ran = Ran(copied(call))
        torch.manual_seed(0)
        try:
            ran.result = function(*ran.call)
        except Exception as error:
            ran.error = error
        ran.random = torch.random.get_rng_state()
        ran.leaves = tree_flatten(ran.result)[0]
        return ran

    def all_leaves(self) -> list[Any]:
        return self.leaves

    def tensors_given(self) -> list[torch.Tensor]:
        return [t for t in tree_flatten(self.call)[0] if isinstance(t, torch.Tensor)]


def copied(call: Call) -> Call:
    """The call with its tensors in memory of their own, laid out alike and shared alike."""

    given = tree_flatten(call)[0]
    sparse = [t for t in given if isinstance(t, torch.Tensor) and t.layout is not torch.strided]
    # they have no storage that deepcopy could see
    return copy.deepcopy(call, {id(t): t.clone() for t in sparse})


def compare(
    actual: Ran, expected: Ran, function: Any, call: Call, *, values: bool = True,
    elementwise: bool = False,
    zeros: bool = True, peak: float = 0.0,
) -> None:  # fmt: skip
    """Raises Different unless both raised the same type, or gave the same: types, values, dtypes,
    sizes, strides, aliasing, what was written, what was drawn. `values`: whether these are defined
    at all, `elementwise`: whether each element of the result depends on one of each argument only,
    so that eager can be asked for it elsewhere, `zeros`: whether the signs of zeros are defined,
    `peak`: a magnitude that errors count against where results are smaller."""
    if type(actual.error) is not type(expected.error):
        raise Different(f"raises {text(actual.error)}, eager {text(expected.error)}")
    if expected.error is not None:
        return
    if type(actual.result) is not type(expected.result) or len(actual.leaves) != len(
        expected.leaves
    ):
        raise Different(f"gives {text(actual.result)}, eager {text(expected.result)}")
    if not torch.equal(actual.random, expected.random):
        raise Different("draws other random numbers")
    if sharing(actual) != sharing(expected):
        raise Different(f"shares memory otherwise: {sharing(actual)}, eager {sharing(expected)}")
    for k, (a, e) in enumerate(zip(actual.tensors_given(), expected.tensors_given())):
        if a.layout is torch.strided and not is_close(a, e):
            problem = difference(a, e, exactly(function, call, Ran.tensors_given, k, e))
            if problem:
                raise Different(f"writes its arguments otherwise: {problem}")
    for k, (a, e) in enumerate(zip(actual.leaves, expected.leaves)):
        if not isinstance(e, torch.Tensor):
            if type(a) is not type(e) or (a != e and a == a):
                raise Different(f"gives {text(a)}, eager {text(e)}")
            continue
        compare_geometry(a, e)
        if not values or e.layout is not torch.strided or is_close(a, e, zeros):
            continue
        problem = difference(a, e, exactly(function, call, Ran.all_leaves, k, e), peak)
        if problem and not (
            elementwise and is_an_answer(a, e, other_answers(function, call, k, e))
        ):
            raise Different(problem)


def compare_geometry(a: torch.Tensor, e: torch.Tensor) -> None:
    for name in ("dtype", "shape", "layout", "requires_grad", "is_conj", "is_neg"):
        x, y = getattr(a, name), getattr(e, name)
        x, y = (x(), y()) if callable(x) else (x, y)
        if x != y:
            raise Different(f"{name} is {x}, in eager {y}")
    if e.layout is not torch.strided or not e.numel():
        return
    if any(x != y for size, x, y in zip(e.shape, a.stride(), e.stride()) if size > 1):
        raise Different(f"stride is {a.stride()}, in eager {e.stride()} of {tuple(e.shape)}")


def same_bits(a: torch.Tensor, e: torch.Tensor) -> bool:
    return bool(((a == e) | ((a != a) & (e != e))).all())


def is_close(a: torch.Tensor, e: torch.Tensor, zeros: bool = True) -> bool:
    return bool(close(a, e, zeros).all())


def close(a: torch.Tensor, e: torch.Tensor, zeros: bool = True) -> torch.Tensor:
    """Where they are equal, `zeros`' signs included; floats within a few eps, infinite and NaN in
    the same places."""
    if e.dtype not in CLOSE:
        return (a == e) | ((a != a) & (e != e))  # there are floats of 8 bits
    if e.is_complex():
        a, e = a.resolve_conj(), e.resolve_conj()
        return close(a.real, e.real, zeros) & close(a.imag, e.imag, zeros)
    tolerance = CLOSE[e.dtype]
    a, e = a.double(), e.double()
    finite = e[e.isfinite()]
    scale = min(1.0, finite.abs().max().item()) if finite.numel() else 0.0
    equal = torch.isclose(a, e, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
    unlike = (a == 0) & (e == 0) & (a.signbit() != e.signbit())
    return equal & ~(unlike & zeros)


def is_an_answer(a: torch.Tensor, e: torch.Tensor, others: list[torch.Tensor]) -> bool:
    """Whether each element is one of those that eager gives."""
    found = close(a, e)
    for other in others:
        found = found | close(a, other)
    return bool(found.all())


def other_answers(function: Any, call: Call, k: int, e: torch.Tensor) -> list[torch.Tensor]:
    """What else eager gives for the elements of an elementwise call, whose kernels have two codes
    for it that need not agree: elements apart from each other go through that of scalars, many in a
    row through that of vectors."""
    tensors = [t for t in tree_flatten(call)[0] if isinstance(t, torch.Tensor)]
    if any(t.shape != e.shape or t.layout is not torch.strided for t in tensors):
        return []
    answers = []
    for step, count in ((2, 1), (1, 64)):

        def spread(t: Any, step: int = step, count: int = count) -> Any:
            many = (
                t.unsqueeze(-1).repeat(*[1] * t.dim(), step * count)
                if isinstance(t, torch.Tensor)
                else t
            )
            return many[..., ::step] if isinstance(t, torch.Tensor) else t

        leaves = Ran.of(function, tree_map(spread, call)).leaves
        answer = leaves[k] if k < len(leaves) else None
        if (
            isinstance(answer, torch.Tensor)
            and answer.shape[:-1] == e.shape
            and answer.dtype is e.dtype
        ):
            answers.append(answer[..., 0])
    return answers


def difference(
    a: torch.Tensor, e: torch.Tensor, exact: torch.Tensor | None, peak: float = 0.0
) -> str:
    """What is wrong with `a`, given what eager gave and what float64 gives; "" if nothing is."""
    both = f"{text(a)}, in eager {text(e)}"
    if e.dtype not in CLOSE:
        return f"values are {both}"
    wide = WIDE[e.dtype]
    eps = torch.finfo(e.dtype).eps
    a, e = a.to(wide), e.to(wide)
    if not torch.equal(a.isnan(), e.isnan()):
        return f"NaN at other places: {both}"
    if not same_bits(a[~a.isfinite()], e[~a.isfinite()]) or not torch.equal(a.isinf(), e.isinf()):
        return f"infinite at other places: {both}"
    if torch.equal(torch.nan_to_num(a), torch.nan_to_num(e)):
        return f"zeros of another sign: {both}"
    if exact is None:
        exact = e
    error, usual = relative_error(a, exact, peak), relative_error(e, exact, peak)
    if error <= max(ERROR_RATIO * usual, ERROR_FLOOR * eps):
        return ""
    return f"error {error / eps:.3g} eps, eager's {usual / eps:.3g}: {both}, exactly {text(exact)}"


def relative_error(t: torch.Tensor, exact: torch.Tensor, peak: float = 0.0) -> float:
    """L2, over what is finite, relative to `peak` at least."""
    finite = t.isfinite() & exact.isfinite()
    size = max(exact[finite].abs().norm().item(), peak)
    return (
        (t[finite] - exact[finite]).abs().norm().item() / size
        if size
        else (t[finite].abs().norm().item() and 1e9)
    )


def exactly(
    function: Any, call: Call, found: Callable[[Ran], list[Any]], k: int, e: torch.Tensor
) -> torch.Tensor | None:
    """The k-th of what is `found` after eager's call with the arguments in float64 or complex128
    (and asked for such a result), integers too if that is needed; None where it refuses them, or
    gives another type all the same."""
    for wide in (WIDE, WIDE | dict.fromkeys(INTEGERS, torch.float64)):
        tensors = found(Ran.of(function, tree_map(lambda t, wide=wide: widened(t, wide), call)))
        exact = tensors[k] if k < len(tensors) else None
        if (
            isinstance(exact, torch.Tensor)
            and exact.dtype is WIDE.get(e.dtype)
            and exact.shape == e.shape
        ):
            return exact
    return None


def widened(t: Any, wide: dict[torch.dtype, torch.dtype]) -> Any:
    if isinstance(t, torch.dtype):
        return WIDE.get(t, t)
    return t.to(wide[t.dtype]) if isinstance(t, torch.Tensor) and t.dtype in wide else t


def sharing(ran: Ran) -> list[Any]:
    """For each tensor returned: which tensor, given or returned before, has its storage, and how
    far apart they are in bytes."""
    known: dict[int, tuple[str, int]] = {}
    pattern: list[Any] = []
    given, results = ran.tensors_given(), [t for t in ran.leaves if isinstance(t, torch.Tensor)]
    for kind, tensors in (("input", given), ("result", results)):
        for k, t in enumerate(tensors):
            if t.layout is not torch.strided or not t.untyped_storage().nbytes():
                continue
            start = t.storage_offset() * t.element_size()
            first, offset = known.setdefault(t.untyped_storage()._cdata, (f"{kind} {k}", start))
            if kind == "result" and first != f"result {k}":
                pattern.append((k, first, start - offset if t.numel() else None))
    return pattern


def text(value: Any) -> str:
    """A value on one line of moderate length."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        value = (
            f"{str(value.dtype).removeprefix('torch.')}{list(value.shape)} "
            f"{value.flatten()[:6].tolist()}"
        )
    shown = re.sub(r"\s+", " ", str(value) if not isinstance(value, Exception) else repr(value))
    return shown if len(shown) < 160 else shown[:160] + "..."


def assert_op(function: Callable[..., Any], *args: Any, native: bool = False) -> None:
    """The compiled call of an op does what eager's does; `native`: and calls nothing in ATen."""

    def call(first: Any, rest: Any, named: Any) -> Any:
        return function(first, *rest)

    compiled, arguments = ingot.compile(call), (args[0], args[1:], {})
    compare(Ran.of(compiled, arguments), Ran.of(call, arguments), call, arguments)
    assert not native or made(compiled).kind == "native"


@dataclass
class Made:
    """What became of a call: ATen functions that its programs call, and why something was left to
    eager."""

    called: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)

    @property
    def kind(self) -> str:
        return "eager" if self.left else "ATen" if self.called else "native"


def made(compiled: Any) -> Made:
    """What is known of the latest compilation of a compiled function."""
    compiler = Compiler.of(compiled)
    assert compiler is not None
    result = Made()
    for compilation in compiler.compilations:
        for why in (compilation.break_, compilation.skipped):
            if why is not None:
                result.left.append(re.sub(r"\d+", "#", why.reason)[:150])
        for step in compilation.log.plan.steps if compilation.log.plan is not None else ():
            if isinstance(step, LibraryStep):
                result.called.append(
                    step.node.origin.ops[0] if step.node.origin.ops else str(step.node.function)
                )
    return result
