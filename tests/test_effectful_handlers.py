"""Effectful ops inside of exception handlers and context managers."""

from __future__ import annotations

import pytest
import torch

import ingot
from ingot.compiler import Compiler
from tests.effectful_ops import (
    noted,
)
from tests.test_effectful_ops import STATE, _outcome, _Refused, _refuses


def _branch_not_taken(x, flag):
    try:
        y = _refuses(x, 2.0)
    finally:
        if flag is not None:
            noted(x - 1)
    return y + 1


def _of_torch_inside_one(x, flag):
    try:
        with torch.no_grad():
            y = _refuses(x, 2.0)
    finally:
        if flag:
            noted(x - 1)
    return y + 1


def _one_in_another(x, flag):
    try:
        try:
            y = _refuses(x, 2.0)
        finally:
            if flag:
                noted(x - 1)
    finally:
        if not flag:
            pass
        else:
            noted(x - 2)
    return y


def _of_torch_inside_a_handler(x, flag):
    try:
        with torch.no_grad():
            return _refuses(x, 2.0)
    except _Refused:
        noted(x - 1)
        return x


def _returns(x, flag):
    try:
        return _refuses(x, 2.0)
    finally:
        if not flag:
            return x - 3  # noqa: B012


def _puts_back(x, flag):
    STATE.busy = True
    try:
        return _refuses(x, 2.0) + 1
    finally:
        STATE.busy = False


def _puts_back_behind_a_lookup(x, flag):
    STATE.busy = True
    try:
        y = _refuses(x, 2.0)
        return y[torch.arange(2) + (y > 1.0).long().sum()]
    finally:
        STATE.busy = False


def _puts_back_by_methods(x, flag):
    token = STATE.begin("eager")
    try:
        y = _refuses(x, 2.0)
    finally:
        STATE.end(token)
    return _refuses(y - 1, 2.0)


def _puts_back_what_was(x, flag):
    state, before = STATE, STATE.mode
    STATE.mode = "other"
    try:
        return _refuses(x, 2.0) + 1
    finally:
        state.mode = before


def _puts_back_and_raises(x, flag):
    STATE.busy = True
    try:
        y = _refuses(x, 2.0)
    except:
        STATE.busy = False
        raise
    STATE.busy = False
    return y


class _Busy:
    def __enter__(self):
        STATE.busy = True
        return self

    def __exit__(self, kind, error, traceback):
        self.over = True
        STATE.busy = False


class _Noticing(_Busy):
    def __exit__(self, kind, error, traceback):
        if kind is not None:
            STATE.failed = True


class _Swallowing(_Busy):
    def __exit__(self, kind, error, traceback):
        STATE.busy = False
        return True


def _in_a_manager(x, flag):
    with _Busy():
        return _refuses(x, 2.0) + 1


def _in_one_that_notices(x, flag):
    with _Noticing():
        return _refuses(x, 2.0) + 1


def _in_one_that_swallows(x, flag):
    with _Swallowing():
        return _refuses(x, 2.0) + 1


def _notices(x, flag):
    try:
        return _refuses(x, 2.0) + 1
    finally:
        STATE.failed = True


def _counts(x, flag):
    try:
        return _refuses(x, 2.0) + 1
    finally:
        STATE.count += 1


def _puts_back_of_a_comprehension(x, flag):
    mode = None
    try:
        return [_refuses(x, mode) for mode in (2.0, 3.0)][0]
    finally:
        STATE.mode = mode


_HANDLERS = {
    _branch_not_taken: (None, 0),
    _of_torch_inside_one: (False, 0),
    _one_in_another: (False, 0),
    _of_torch_inside_a_handler: (None, 1),
    _returns: (False, 1),
    _puts_back: (None, 0),
    _puts_back_behind_a_lookup: (None, 0),
    _puts_back_by_methods: (None, 0),
    _puts_back_what_was: (None, 0),
    _puts_back_and_raises: (None, 0),
    _in_a_manager: (None, 0),
    _in_one_that_notices: (None, 1),
    _in_one_that_swallows: (None, 1),
    _notices: (None, 1),
    _counts: (None, 1),
    _puts_back_of_a_comprehension: (None, 0),
}


@pytest.mark.parametrize("program", _HANDLERS)
def test_handlers_around_what_acts(program):
    """What acts stays in the graph where its error would only go on, as through a `finally` that
    does nothing, or one that puts attributes back."""
    idle, least = _HANDLERS[program]
    for flag in (idle, True):
        compiled = ingot.compile(program)
        for most in (1.0, 9.0, 1.5, 1.0, 9.0):
            given = torch.tensor([0.0, most])
            assert _outcome(program, given, flag) == _outcome(compiled, given, flag), (flag, most)
        compilations = Compiler.of(compiled).compilations
        breaks = [str(c.break_) for c in compilations if c.break_ is not None]
        if flag is idle:
            assert bool(breaks) == bool(least), breaks
            assert [str(c.skipped) for c in compilations if c.skipped is not None] == [] or breaks


@pytest.mark.parametrize("before", [{"busy": True}, {"mode": "before"}, {"mode": 3}], ids=str)
@pytest.mark.parametrize(
    "program", [_puts_back, _puts_back_by_methods, _puts_back_what_was, _in_a_manager]
)
def test_a_handler_that_puts_back_what_was_not_there(program, before):
    """What a handler sets is compared with what is there before each call."""
    compiled = ingot.compile(program)
    for state in ({}, before, {}):
        for most in (1.0, 9.0):
            given = torch.tensor([0.0, most])
            assert _outcome(program, given, None, **state) == _outcome(
                compiled, given, None, **state
            ), (state, most)
