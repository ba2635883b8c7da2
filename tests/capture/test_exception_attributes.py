"""PYTEST_DONT_REWRITE. Exceptions: what can be read of one, set on it and done with it, of those
that the program makes and of those that are given."""

# ruff: noqa  (the programs are written as users may write them)
from __future__ import annotations

import copy
import pickle
import sys
import traceback

import pytest
import torch

from tests.capture.questions import unlike_eager


class Plain(Exception):
    pass


class WithInit(ValueError):
    def __init__(self, code, extra=None):
        super().__init__(f"code {code}")
        self.code, self.extra = code, extra


class NoSuper(Exception):
    def __init__(self, a, b):
        self.a = a


class WithNew(Exception):
    def __new__(cls, *args):
        made = super().__new__(cls, "new", *args)
        made.made = True
        return made


class WithStr(KeyError):
    def __str__(self):
        return "own " + ",".join(map(str, self.args))


class WithRepr(Exception):
    def __repr__(self):
        return f"<{self.args}>"


class WithSlots(Exception):
    __slots__ = ("kept",)


class WithProperty(Exception):
    @property
    def args(self):
        return "mine", *Exception.args.__get__(self)


class OwnErrno(OSError):
    pass


class Group(ExceptionGroup):
    def derive(self, excs):
        return Group("derived", excs)


class Falsy(Exception):
    def __bool__(self):
        return False


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


def caused():
    try:
        try:
            raise KeyError("inner")
        except KeyError as inner:
            raise ValueError("outer") from inner
    except ValueError as error:
        return error


def in_context():
    try:
        try:
            raise KeyError("inner")
        except KeyError:
            raise ValueError("outer")
    except ValueError as error:
        return error


def noted():
    made = ValueError("v")
    made.add_note("n1")
    made.__notes__.append("n2")
    return made


def stopped():
    def steps():
        yield 1
        return "result"

    iterator = steps()
    next(iterator)
    try:
        next(iterator)
    except StopIteration as stop:
        return stop


def missing_attribute():
    try:
        return Plain.missing
    except AttributeError as error:
        return error


def missing_key():
    try:
        return {}["k"]
    except KeyError as error:
        return error


def missing_name():
    try:
        return not_defined
    except NameError as error:
        return error


ERRORS = {
    "ValueError": lambda: ValueError("v"),
    "of nothing": lambda: ValueError(),
    "of many": lambda: ValueError("v", 1, [2]),
    "KeyError": lambda: KeyError("k"),
    "KeyError of two": lambda: KeyError("k", 1),
    "StopIteration": lambda: StopIteration(1, 2),
    "SystemExit": lambda: SystemExit(3),
    "OSError of a number": lambda: OSError(2, "No such file"),
    "OSError of a file": lambda: OSError(2, "No such file", "f.txt"),
    "OSError of two files": lambda: OSError(2, "No such file", "f.txt", None, "g.txt"),
    "subclass of OSError": lambda: OwnErrno(2, "No such file", "f.txt"),
    "ImportError": lambda: ImportError("i", name="n", path="p"),
    "AttributeError": lambda: AttributeError("a", name="n", obj=3),
    "NameError": lambda: NameError("a", name="n"),
    "UnicodeDecodeError": lambda: UnicodeDecodeError("utf-8", b"ab", 0, 1, "reason"),
    "SyntaxError": lambda: SyntaxError("s", ("f", 1, 2, "text")),
    "plain subclass": lambda: Plain("p", 1),
    "with __init__": lambda: WithInit(3, extra=[1]),
    "without super()": lambda: NoSuper(1, 2),
    "with __new__": lambda: WithNew(1),
    "with __str__": lambda: WithStr("k", 2),
    "with a property": lambda: WithProperty("s"),
    "falsy": lambda: Falsy("f"),
    "raised": lambda: raised(ValueError("v")),
    "caused": caused,
    "in context": in_context,
    "noted": noted,
    "stopped": stopped,
    "missing key": missing_key,
    "group": lambda: ExceptionGroup(
        "g",
        [ValueError("v"), KeyError("k"), ExceptionGroup("h", [TypeError("t"), ValueError("w")])],
    ),
    "own group": lambda: Group("g", [ValueError("v"), KeyError("k")]),
    "base group": lambda: BaseExceptionGroup("g", [ValueError("v"), SystemExit(1)]),
}


GIVEN = {"missing attribute": missing_attribute, "missing name": missing_name}


def tried(action):
    def attempt(e):
        try:
            return action(e)
        except BaseException as error:
            return type(error), str(error)

    return attempt


def reads(*names):
    return lambda e: [getattr(e, name, "none") for name in names]


def sets(name, value):
    def change(e):
        try:
            setattr(e, name, value)
        except Exception as error:
            return type(error), str(error)
        return getattr(e, name, "none"), e.args, str(e)

    return change


def deletes(name):
    def change(e):
        try:
            delattr(e, name)
        except Exception as error:
            return type(error), str(error)
        return getattr(e, name, "none")

    return change


def handled(e):
    try:
        raise e
    except KeyError as error:
        return "key", error is e, error.args
    except (OSError, ValueError) as error:
        return "os or value", error is e, error.args
    except Exception as error:
        return "other", error is e, str(error)
    except BaseException as error:
        return "base", type(error)


def raised_from(e):
    try:
        raise RuntimeError("new") from e
    except RuntimeError as error:
        return error.__cause__ is e, error.__suppress_context__, error.__context__


def raised_in_context(e):
    try:
        try:
            raise e
        except BaseException:
            raise RuntimeError("new")
    except RuntimeError as error:
        return error.__context__ is e, error.__cause__, error.__suppress_context__


def raised_again(e):
    try:
        try:
            raise e
        except BaseException as error:
            error.seen = True
            raise
    except BaseException as error:
        return error is e, error.seen, error.__context__


def as_a_cause_of_itself(e):
    try:
        raise e from e
    except BaseException as error:
        return error.__cause__ is error, error.__context__


def notes(e):
    e.add_note("one")
    e.add_note("two")
    return e.__notes__, "__notes__" in vars(e)


def wrong_note(e):
    return e.add_note(3)


def context_is_cut(e):
    e.__context__ = KeyError("c")
    e.__cause__ = None
    return e.__suppress_context__, e.__context__.args, e.__cause__


def cause_is_set(e):
    e.__cause__ = TypeError("t")
    return e.__suppress_context__, e.__cause__, e.__context__


def with_traceback(e):
    return e.with_traceback(None) is e, e.__traceback__


def starred(e):
    seen = []
    try:
        try:
            raise e
        except* ValueError as group:
            seen.append(("value", len(group.exceptions)))
        except* KeyError as group:
            seen.append(("key", len(group.exceptions)))
    except BaseException as rest:
        seen.append((type(rest), str(rest)))
    return seen


def shape_of(group):
    if isinstance(group, BaseExceptionGroup):
        return type(group), group.message, [shape_of(each) for each in group.exceptions]
    return None if group is None else (type(group), group.args)


def split(e):
    return [shape_of(part) for part in e.split(ValueError)]


def subgroup(e):
    return shape_of(e.subgroup(lambda each: isinstance(each, (KeyError, TypeError))))


def matched(e):
    match e:
        case OSError(errno=n, filename=f):
            return "os", n, f
        case KeyError(args=(k,)):
            return "key", k
        case ValueError():
            return "value"
        case Exception(args=[first, *rest]):
            return "many", first, rest
    return "none"


QUESTIONS = {
    "args": lambda e: e.args,
    "str": lambda e: str(e),
    "repr": lambda e: repr(e),
    "type": lambda e: (type(e), e.__class__, type(e).__name__, isinstance(e, LookupError)),
    "chain": reads("__cause__", "__context__", "__suppress_context__"),
    "traceback": lambda e: e.__traceback__ is None,
    "notes": reads("__notes__"),
    "value and code": reads("value", "code"),
    "of the system": reads("errno", "strerror", "filename", "filename2", "characters_written"),
    "of names": reads("name", "obj", "path", "msg"),
    "of text": reads(
        "encoding",
        "object",
        "start",
        "end",
        "reason",
        "lineno",
        "offset",
        "text",
        "print_file_and_line",
    ),
    "of groups": lambda e: (getattr(e, "message", "none"), shape_of(e)),
    "own": reads("extra", "a", "made", "kept", "seen"),
    "__dict__": lambda e: dict(e.__dict__),
    "missing": tried(lambda e: e.missing),
    "sets args": sets("args", (1, 2)),
    "sets args to a list": sets("args", [3]),
    "sets args to a number": sets("args", 3),
    "sets an attribute": sets("note", [1]),
    "sets value": sets("value", 5),
    "sets errno": sets("errno", 5),
    "sets filename": sets("filename", "new"),
    "sets name": sets("name", "new"),
    "sets kept": sets("kept", 1),
    "sets the cause": sets("__cause__", None),
    "sets the cause wrongly": sets("__cause__", 3),
    "sets the context wrongly": sets("__context__", "c"),
    "sets what is suppressed": sets("__suppress_context__", True),
    "sets the traceback": sets("__traceback__", None),
    "sets the traceback wrongly": sets("__traceback__", 3),
    "deletes args": deletes("args"),
    "deletes what is missing": deletes("missing"),
    "adds notes": tried(notes),
    "adds a wrong note": tried(wrong_note),
    "cuts the context": context_is_cut,
    "has a cause": cause_is_set,
    "with_traceback": with_traceback,
    "handled": handled,
    "raised from": raised_from,
    "raised in context": raised_in_context,
    "raised again": tried(raised_again),
    "starred": tried(starred),
    "split": tried(split),
    "subgroup": tried(subgroup),
    "matched": matched,
    "copied": tried(lambda e: (copy.copy(e).args, type(copy.copy(e)))),
    "pickled": tried(lambda e: repr(pickle.loads(pickle.dumps(e)))),
    "state": tried(lambda e: (e.__setstate__({"note": 1}), e.note)),
    "__init__ again": tried(lambda e: (e.__init__("x"), e.args, str(e))),
    "returned": lambda e: e,
    "thrown into a generator": tried(lambda e: (i for i in (1, 2)).throw(e)),
}


KINDS = [*ERRORS, *GIVEN]


@pytest.mark.parametrize("kind", KINDS)
def test_exceptions(kind):
    make = ERRORS.get(kind) or GIVEN[kind]
    assert not unlike_eager(QUESTIONS, make, KINDS.index(kind), always_given=kind in GIVEN)
