"""PYTEST_DONT_REWRITE. The truth of a tensor, as Python asks for it: where one answer only leads to
an error the graph checks that it is the other one, and wherever else it is used eager gives the
same."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import contextlib
import functools
import io
import operator

import pytest
import torch

import ingot
from tests.oracle import assert_same, outcome
from tests.test_data_dependent_sizes import Counted


def helper(t):
    return bool(t.all())


def item(t):
    return t.all().item()


def nothelper(t):
    return not bool(t.all())


def nottensor(t):
    return not t.all()


def two(t):
    return helper(t)


def default(t, ok=None):
    ok = bool(t.all()) if ok is None else ok
    return ok


def both(a, b):
    return bool(a.all()) and bool(b.all())


def both_t(a, b):
    return a.all() and b.all()


def either(a, b):
    return bool(a.all()) or bool(b.all())


def branches(t):
    if t.all():
        return True
    return False


def in_a_helper(x):
    if not helper(x < 1.5):
        raise ValueError("a")
    return x * 2


def as_an_item(x):
    if not item(x < 1.5):
        raise ValueError("a")
    return x * 2


def negated_in_a_helper(x):
    if nothelper(x < 1.5):
        raise ValueError(f"{x.sum()}")
    return x * 2


def a_tensor_negated(x):
    if nottensor(x < 1.5):
        raise ValueError(f"{x.sum()}")
    return x * 2


def through_two_functions(x):
    if not two(x < 1.5):
        raise ValueError(f"{x.sum()}")
    return x * 2


def kept_in_a_local(x):
    ok = two(x < 1.5)
    y = x.sin()
    if not ok:
        raise ValueError(f"{x.sum()}")
    return x * 2 + y


def of_a_default(x):
    if not default(x < 1.5):
        raise ValueError(f"{x.sum()}")
    return x * 2


def two_joined_in_a_helper(x):
    if not both(x < 1.5, x > 0):
        raise ValueError(f"{x.sum()}")
    return x * 2


def two_tensors_joined(x):
    if not both_t(x < 1.5, x > 0):
        raise ValueError(f"{x.sum()}")
    return x * 2


def two_joined_in_a_local(x):
    ok = bool((x < 1.5).all()) and bool((x > 0).all())
    if not ok:
        raise ValueError(f"{x.sum()}")
    return x * 2


def two_joined_by_an_operator(x):
    ok = bool((x < 1.5).all()) & bool((x > 0).all())
    if not ok:
        raise ValueError(f"{x.sum()}")
    return x * 2


def all_of_a_list(x):
    oks = [bool((x < v).all()) for v in (1.5, 2, 3)]
    if not all(oks):
        raise ValueError(f"{x.sum()}")
    return x * 2


def all_of_a_generator(x):
    if not all(bool((x < v).all()) for v in (1.5, 2, 3)):
        raise ValueError(f"{x.sum()}")
    return x * 2


def any_of_tensors(x):
    if any((x > v).any() for v in (1.5, 2, 3)):
        raise ValueError(f"{x.sum()}")
    return x * 2


def is_false(x):
    for ok in {"k": bool((x < 1.5).all())}.values():
        if ok is False:
            raise ValueError(f"{x.sum()}")
    return x * 2


def equals_false(x):
    ok = helper(x < 1.5)
    if ok == False:
        raise ValueError(f"{x.sum()}")
    return x * 2


def a_branch_in_a_helper(x):
    if not branches(x < 1.5):
        raise ValueError(f"{x.sum()}")
    return x * 2


def asserted(x):
    assert helper(x < 1.5), f"{x.sum()}"
    return x * 2


def a_number_compared(x):
    if x.max().item() > 1.5:
        raise ValueError(f"{x.sum()}")
    return x * 2


def a_count_compared(x):
    n = (x > 1.5).sum().item()
    if n > 0:
        raise ValueError(f"{n}")
    return x * 2


def a_count(x):
    n = int((x > 1.5).sum())
    if n:
        raise ValueError(f"{n}")
    return x * 2


def an_item_of_any(x):
    if (x > 1.5).any().item():
        raise ValueError
    return x * 2


def a_size_that_the_data_decide(x):
    sel = x[x > 1.5]
    if sel.shape[0] > 0:
        raise ValueError(sel.shape)
    return x * 2


def used_afterwards(x):
    ok = helper(x < 1.5)
    if not ok:
        raise ValueError
    return x * 2 if ok else x, ok


def made_in_a_context(x):
    with torch.no_grad():
        ok = helper(x < 1.5)
    if not ok:
        raise ValueError
    return x * 2


def returned_out_of_a_context(x):
    def inner(t):
        with torch.no_grad():
            return bool(t.all())

    if not inner(x < 1.5):
        raise ValueError
    return x * 2


class C:
    def __init__(self, x):
        self.ok = bool((x < 1.5).all())

    @property
    def valid(self):
        return self.ok

    def __bool__(self):
        return self.ok


def of_a_property(x):
    if not C(x).valid:
        raise ValueError
    return x * 2


def of_an_instance(x):
    if not C(x):
        raise ValueError
    return x * 2


def either(x):
    ok = bool((x < 1.5).all()) or bool((x > 9).all())
    if not ok:
        raise ValueError
    return x * 2


def either_of_tensors(x):
    if not ((x < 1.5).all() or (x > 9).all()):
        raise ValueError
    return x * 2


def a_conditional_expression(x):
    return (
        (x * 2).sum()
        if functools.reduce(lambda a, b: a and b, [helper(x < 1.5), helper(x < 2)])
        else boom(x)
    )


def boom(x):
    raise ValueError("boom")


def a_lambda(x):
    if not (lambda t: True if t.all() else False)(x < 1.5):
        raise ValueError
    return x * 2


def equal_tensors(x):
    if not torch.equal(x, x):
        raise ValueError
    return x


def negated_in_a_local(x):
    ok = helper(x < 1.5)
    bad = not ok
    if bad:
        raise ValueError
    return x * 2


def joined_in_a_loop(x):
    ok = True
    for v in (1.5, 2.0, 3.0):
        ok = ok and bool((x < v).all())
    if not ok:
        raise ValueError
    return x * 2


def joined_in_a_loop_by_an_operator(x):
    ok = True
    for v in (1.5, 2.0, 3.0):
        ok &= bool((x < v).all())
    if not ok:
        raise ValueError
    return x * 2


def matched(x):
    match bool((x < 1.5).all()):
        case False:
            raise ValueError
    return x * 2


def a_loop(x):
    while not helper(x < 1.5):
        raise ValueError
    return x * 2


def a_conditional_of_constants(x):
    ok = False if (x > 1.5).any() else True
    if not ok:
        raise ValueError("x")
    return x


def behind_another_condition(x):
    if isinstance(helper(x < 1.5), bool) and not helper(x < 1.5):
        raise ValueError("x")
    return x


def called_by_name(x):
    if (x < 1.5).all().__bool__() is not True:
        raise ValueError("x")
    return x


CHECKED = (
    in_a_helper,
    as_an_item,
    negated_in_a_helper,
    a_tensor_negated,
    through_two_functions,
    kept_in_a_local,
    of_a_default,
    two_joined_in_a_helper,
    two_tensors_joined,
    two_joined_in_a_local,
    two_joined_by_an_operator,
    all_of_a_list,
    all_of_a_generator,
    any_of_tensors,
    is_false,
    equals_false,
    a_branch_in_a_helper,
    asserted,
    a_number_compared,
    a_count_compared,
    a_count,
    an_item_of_any,
    a_size_that_the_data_decide,
    used_afterwards,
    made_in_a_context,
    returned_out_of_a_context,
    of_a_property,
    of_an_instance,
    a_lambda,
    negated_in_a_local,
    joined_in_a_loop_by_an_operator,
    matched,
    a_loop,
    a_conditional_of_constants,
    behind_another_condition,
    called_by_name,
)  # fmt: skip
BROKEN = {
    either: "a branch on the number",
    either_of_tensors: "a branch on the values",
    a_conditional_expression: "a branch on the number",
    equal_tensors: "the result of equal",
    joined_in_a_loop: "a branch on the number",
}
"""Where neither answer only leads to an error, as far as capture looks ahead."""


@pytest.mark.parametrize("gradients", (False, True))
@pytest.mark.parametrize("function", CHECKED, ids=lambda f: f.__name__)
def test_an_answer_that_only_leads_to_an_error(function, gradients):
    counted = Counted(function, fullgraph=True)
    small, large = (torch.full((5,), v, requires_grad=gradients) for v in (1.0, 1.75))
    assert [counted(small), counted(small)] == [(1, 0), (0, 0)]
    assert_same(outcome(counted.tracked.compiled, large), outcome(function, large))
    assert counted(small) == (0, 0)


@pytest.mark.parametrize("function", BROKEN, ids=lambda f: f.__name__)
def test_other_answers_break_the_graph(function):
    compiled = ingot.compile(function)
    for value in (1.0, 1.75, 1.0, 10.0):
        x = torch.full((5,), value)
        assert_same(outcome(compiled, x), outcome(function, x))
    (found,) = {region.reason for region in ingot.explain(function)(torch.ones(5)).breaks[:1]}
    assert BROKEN[function] in found


def test_an_error_that_is_handled():
    def function(x):
        try:
            if not helper(x < 1.5):
                raise ValueError("large")
        except ValueError as error:
            return str(error), x + 1
        return x

    compiled = ingot.compile(function)
    for value in (1.0, 1.75, 1.0):
        x = torch.full((2,), value)
        assert_same(outcome(compiled, x), outcome(function, x))


# -- other uses ------------------------------------------------------------------------------------


def alone(x):
    return bool(x.sum() > 0)


def chosen_by(x):
    b = bool(x.sum() > 0)
    return x * 2 if b else x - 1, b


def compared(x):
    b = bool(x.sum() > 0)
    return (
        b is True,
        b is False,
        b is not True,
        b == True,
        b != True,
        b == 1,
        b is None,
        b == None,
        True is b,
    )


def keys_and_indices(x):
    b = bool(x.sum() > 0)
    return {b: 1}, {True: "t", False: "f"}[b], [1, 2][b], "ab"[b]


def numbers(x):
    b = bool(x.sum() > 0)
    return (
        b + 1,
        b * x,
        x * b,
        b & True,
        b | False,
        b ^ True,
        ~b,
        -b,
        int(b),
        float(b),
        str(b),
        f"{b}",
        repr(b),
        hash(b),
    )


def of_each_other(x):
    b = bool(x.sum() > 0)
    c = bool(x.max() > 1)
    return b and c, b or c, not b, b & c, b | c, b ^ c, b == c, b != c, b is c, b < c


def counted_in_a_loop(x):
    b = bool(x.sum() > 0)
    n = 0
    while bool(x.sum() > n):
        n += 1
    return n, b


def arguments(x):
    return torch.sum(x, 0, keepdim=bool(x.sum() > 0)), torch.nn.functional.dropout(
        x, 0.0, bool(x.sum() > 0)
    )


def of_comprehensions(x):
    return (
        [v for v in (1.0, 2.0) if bool(x.sum() > v)],
        any(bool(x.sum() > v) for v in (1, 9)),
        all([bool(x.sum() > v) for v in (1, 9)]),
    )


def printed(x):
    print(bool(x.sum() > 0))
    return x


def types(x):
    return isinstance(bool(x.sum() > 0), bool), type(not x.sum()), isinstance(bool(x.sum()), int)


def asked_again(x):
    b = not x.sum() > 0
    y = x
    if b:
        y = x + 1
    if not b:
        y = x - 1
    if b:
        y = y * 2
    return y, b


def elements(x):
    return (
        torch.tensor(bool(x.sum() > 0)),
        torch.where(x > 0, bool(x.sum() > 0), x),
        torch.full((2,), bool(x.sum() > 0)),
        torch.tensor([bool(x.sum()), False]),
    )


def of_what_may_have_many_elements(x):
    return bool(x)


def of_no_element(x):
    return bool(x[:0]), not x[:0]


def of_other_types(x):
    return (
        bool(torch.tensor(float("nan")) * x.sum()),
        not (x.sum() * float("nan")),
        bool((x.sum() + 0j)),
        bool(x.sum().int()),
        bool(x.sum() * 0),
    )


def before_and_after_a_write(x):
    x = x.clone()
    b = bool(x.sum() > 0)
    x.zero_()
    return b, bool(x.sum() > 0), not x.sum()


def floats_compared(x):
    m = x.max().item()
    return m > 1, m < 1, m == 1, 1 < m, m >= m, m != 2, 1.5 <= m, m > 1 and m < 9


def integers_compared(x):
    n = int((x > 0).sum())
    return n > 1, n == 5, 2 <= n, n != n, n > True, n > 2.5


def sorted_and_largest(x):
    return (
        sorted([x[0].item(), x[1].item()]),
        max(x[0].item(), x[1].item()),
        min(x[0].item(), 1.2),
        sorted([bool(x[0]), False]),
    )


def members(x):
    s = {bool(x.sum() > 0)}
    return (
        s,
        True in s,
        [True].index(bool(x.sum() > -100)),
        (bool(x.sum() > 0),) == (True,),
        [bool(x.sum() > 0)].count(True),
    )


def called(x):
    return x.sum().__bool__(), torch.is_nonzero(x.sum())


def of_a_conditional(x):
    m = x.max().item()
    return (x * 2 if m > 1.2 else x * 3), round(m, 1) if m == m else 0


def of_a_function_made(x):
    f = lambda flag=bool(x.sum() > 0): flag
    return f(), f() and x, x if f() else 0


def of_operators(x):
    b = bool(x.sum() > 0)
    return (
        operator.not_(x.sum()),
        operator.truth(x.sum()),
        operator.is_(b, True),
        b.__and__(True),
        bool(b),
        bool(not b),
    )


class K:
    def __init__(s, b):
        s.b = b

    def __bool__(s):
        return s.b


def of_an_object(x):
    k = K(bool(x.sum() > 0))
    return bool(k), not k, (x if k else x + 1), k.b


def filtered(x):
    return list(filter(None, [bool(x.sum() > 0), x.sum() > 1])), list(
        filter(lambda v: v > 1, [x[0].item(), x[1].item()])
    )


USES = (
    alone,
    chosen_by,
    compared,
    keys_and_indices,
    numbers,
    of_each_other,
    counted_in_a_loop,
    arguments,
    of_comprehensions,
    printed,
    types,
    asked_again,
    elements,
    of_what_may_have_many_elements,
    of_no_element,
    of_other_types,
    before_and_after_a_write,
    floats_compared,
    integers_compared,
    sorted_and_largest,
    members,
    called,
    of_a_conditional,
    of_a_function_made,
    of_operators,
    of_an_object,
    filtered,
)  # fmt: skip


@pytest.mark.parametrize("backend", ("ingot", "eager"))
@pytest.mark.parametrize("function", USES, ids=lambda f: f.__name__)
def test_uses(function, backend):
    compiled = ingot.compile(function, backend=backend)
    for x in (
        torch.full((5,), 1.0),
        torch.full((5,), 1.75),
        torch.full((5,), -1.0),
        torch.ones(1),
        torch.zeros(5),
    ):
        results = [outcome(compiled, x.clone()), outcome(function, x.clone())]
        if function is numbers:  # `~b` of a bool warns where it is captured: see docs/limits.md
            results = [result._replace(warned=[]) for result in results]
        assert_same(*results)
