"""Chains of `__context__` and `__cause__`, with cycles in them, against CPython."""

from __future__ import annotations

import itertools

import pytest
import torch

import ingot

EDGES = [  # of each exception to its context, by their numbers
    {},
    {0: 0},
    {0: 1},
    {0: 1, 1: 0},
    {1: 2, 2: 1},
    {0: 1, 1: 2},
    {0: 1, 1: 1},
    {0: 1, 1: 2, 2: 0},
    {0: 1, 1: 2, 2: 1},
    {0: 2, 2: 2, 1: 0},
    {0: 1, 1: 2, 2: 3, 3: 1},
    {1: 3, 3: 1, 0: 2, 2: 0},
    {0: 3, 3: 2, 2: 1, 1: 3},
]


def linked(edges, name="__context__"):
    errors = [ValueError("0"), KeyError("1"), TypeError("2"), OSError("3")]
    for one, other in edges.items():
        setattr(errors[one], name, errors[other])
    return errors


def chain(error, most=9):
    """The names of what a chain leads to, as far as that goes."""
    names = []
    while error is not None and len(names) < most:
        names.append(
            (
                type(error).__name__,
                error.args,
                type(error.__cause__).__name__,
                error.__suppress_context__,
            )
        )
        error = error.__context__
    return names


def raised_while_handled(x, errors):
    try:
        raise errors[0]
    except ValueError:
        try:
            raise errors[1]
        except KeyError as error:
            return x + 1, error


def new_while_handled(x, errors):
    try:
        raise errors[0]
    except ValueError:
        try:
            raise IndexError("new")
        except IndexError as error:
            return x + 1, error


def by_an_operation(x, errors):
    try:
        raise errors[0]
    except ValueError:
        try:
            return {}["missing"]
        except KeyError as error:
            return x + 1, error


def raised_again(x, errors):
    try:
        try:
            raise errors[0]
        except ValueError as first:
            try:
                raise errors[1]
            except KeyError:
                raise first  # noqa: B904
    except ValueError as error:
        return x + 1, error


def with_a_cause(x, errors):
    try:
        raise errors[0]
    except ValueError as first:
        try:
            raise errors[1] from first
        except KeyError as error:
            return x + 1, error


def in_finally(x, errors):
    try:
        try:
            raise errors[0]
        finally:
            raise errors[1]
    except KeyError as error:
        return x + 1, error


class Manager:
    def __init__(self, error):
        self.error = error

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        raise self.error


def in_an_exit(x, errors):
    try:
        with Manager(errors[1]):
            raise errors[0]
    except KeyError as error:
        return x + 1, error


def three_deep(x, errors):
    try:
        raise errors[0]
    except ValueError:
        try:
            raise errors[1]
        except KeyError:
            try:
                raise errors[2]
            except TypeError as error:
                return x + 1, error


def behind_a_break(x, errors):
    try:
        raise errors[0]
    except ValueError:
        torch._C._get_default_device()
        value = float((x * 2).sum())
        try:
            raise errors[1]
        except KeyError as error:
            return x + value, error


def that_leaves(x, errors):
    x = x + 1
    try:
        raise errors[0]
    except ValueError:
        raise errors[1]  # noqa: B904


PROGRAMS = [
    raised_while_handled, new_while_handled, by_an_operation, raised_again, with_a_cause,
    in_finally, in_an_exit,
    three_deep, behind_a_break, that_leaves,
]  # fmt: skip


def outcome(function, edges, inside):
    errors = linked(edges)
    try:
        tensor, error = function(torch.ones(2), edges if inside else errors)
    except KeyError as raised:
        tensor, error = torch.zeros(2), raised
    return tensor.tolist(), chain(error), [] if inside else [chain(e) for e in errors]


def made_inside(program):
    """The same with exceptions that the function makes."""

    def function(x, edges):
        errors = [ValueError("0"), KeyError("1"), TypeError("2"), OSError("3")]
        for one, other in edges.items():
            errors[one].__context__ = errors[other]
        return program(x, errors)

    return function


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@pytest.mark.parametrize("inside", [False, True], ids=["arguments", "made inside"])
def test_contexts(program, inside):
    function = made_inside(program) if inside else program
    compiled = ingot.compile(function)
    for edges in EDGES:
        assert outcome(compiled, edges, inside) == outcome(function, edges, inside), edges


def test_all_chains_of_three():
    function = made_inside(raised_while_handled)
    for targets in itertools.product([None, 0, 1, 2], repeat=3):
        edges = {one: other for one, other in enumerate(targets) if other is not None}
        assert outcome(ingot.compile(function), edges, True) == outcome(function, edges, True), (
            edges
        )
