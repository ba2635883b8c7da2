"""Common causes of graph breaks and errors, each as a small program as people write them.

Of each program the line that is marked with `# <-` is to blame. causes_page.py writes a page of
what Ingot says of them.
"""

from __future__ import annotations

import asyncio
import ctypes
import datetime
import decimal
import enum
import gc
import hashlib
import inspect
import io
import json
import logging
import math
import os
import pickle
import queue
import random
import re
import sqlite3
import struct
import subprocess
import sys
import threading
import time
import uuid
import warnings
import weakref
import zlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import ingot

MARK = "  # <-"

log = logging.getLogger("train")
LOCK = threading.Lock()
NUMPYS = np.random.default_rng(0)
PYTHONS = random.Random(0)
LABELS = ["cat", "dog", "bird", "fish"]
SEEN: dict[int, Any] = {}
WEIGHT = torch.ones(4, 4, requires_grad=True)


class Cause(NamedTuple):
    """A program, and the arguments of a call that shows what it is about."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    is_error: bool

    @property
    def name(self) -> str:
        return self.function.__name__


CAUSES: list[Cause] = []


def breaks(*arguments: Any) -> Callable[[Any], Any]:
    """The graph breaks, or the call runs in eager; `x` of 4 x 4 unless arguments are given."""
    return _cause(arguments, False)


def fails(*arguments: Any) -> Callable[[Any], Any]:
    """The program raises an error, in eager as well."""
    return _cause(arguments, True)


def _cause(arguments: tuple[Any, ...], is_error: bool) -> Callable[[Any], Any]:
    def note(function: Any) -> Any:
        CAUSES.append(Cause(function, arguments or (_matrix(),), is_error))
        return function

    return note


def _matrix() -> Tensor:
    return torch.linspace(-1, 1, 16).reshape(4, 4)


# -- values of tensors -----------------------------------------------------------------------------


@breaks()
def branch(x):
    if x.sum() > 0:  # <-
        return x * 2
    return x - 1


def clipped(loss):
    if loss.item() > 0.1:  # <-
        return loss * 0.1
    return loss


@breaks()
def item_in_a_helper(x):
    loss = x.square().mean()
    return clipped(loss)


@breaks()
def until_converged(x):
    while x.norm() > 1:  # <-
        x = x / 2
    return x


@breaks()
def conditional_expression(x):
    return x * 2 if x.any() else x  # <-


@breaks()
def compared_with_another(x):
    if torch.allclose(x, x.t()):  # <-
        return x
    return x * 2


@breaks()
def membership(x):
    if 3 in x:  # <-
        return x
    return x + 1


@breaks()
def to_a_list(x):
    rows = x.sum(1).tolist()  # <-
    return x * max(rows)


@breaks()
def python_math(x):
    scale = math.sqrt(float(x.abs().mean()))  # <-
    return x * scale


@breaks()
def rounded(x):
    return x * round(x.mean().item(), 2)  # <-


@breaks()
def as_many_times(x):
    for i in range(x.argmax().item()):  # <-
        x = x + i
    return x


@breaks()
def label_of(x):
    return LABELS[x.sum(1).argmax().item()], x  # <-


@breaks()
def sorted_rows(x):
    return sorted(x, key=lambda row: row.sum())[0]  # <-


@breaks()
def text_of_a_tensor(x):
    name = f"mean={x.mean():.3f}"
    return x + len(name)  # <-


@breaks()
def rows_above(x):
    found = torch.nonzero(x > 0)
    if len(found) > 3:  # <-
        return x + 1
    return x


@breaks()
def each_class(x):
    total = x
    for value in torch.unique(x.round()):  # <-
        total = total + value
    return total


@breaks()
def address(x):
    return x.data_ptr()  # <-


# -- random numbers and time -----------------------------------------------------------------------


@breaks()
def shuffled(x):
    order = [0, 1, 2, 3]
    random.shuffle(order)  # <-
    return x[order]


@breaks()
def sampled(x):
    return x[random.sample(range(4), 2)]  # <-


@breaks()
def generator_of_python(x):
    return x * PYTHONS.random()  # <-


@breaks()
def noise_of_numpy(x):
    noise = np.random.rand(4, 4)  # <-
    return x + torch.from_numpy(noise).float()


@breaks()
def generator_of_numpy(x):
    return x + NUMPYS.normal()  # <-


@breaks()
def generator_of_torch(x):
    generator = torch.Generator()  # <-
    return x + torch.rand(4, 4, generator=generator)


@breaks()
def seeded(x):
    torch.manual_seed(0)  # <-
    return x + torch.rand(4, 4)


@breaks()
def timed(x):
    begin = time.perf_counter()  # <-
    y = x.exp()
    return y, time.perf_counter() - begin


@breaks()
def dated(x):
    return x + datetime.datetime.now().year  # <-


@breaks()
def waiting(x):
    time.sleep(0)  # <-
    return x + 1


# -- the system ------------------------------------------------------------------------------------


def note_step(path, x):
    with open(path, "a") as file:  # <-
        file.write(f"{x.shape}\n")


@breaks(_matrix(), os.devnull)
def writing_a_file(x, path):
    note_step(path, x)
    return x + 1


@breaks()
def to_stdout(x):
    sys.stdout.write("")  # <-
    return x + 1


@breaks()
def environment(x):
    os.environ["LAST_SHAPE"] = str(tuple(x.shape))  # <-
    return x + 1


@breaks()
def is_there(x):
    if os.path.exists("weights.pt"):  # <-
        return x + 1
    return x


@breaks()
def run_a_program(x):
    return x + subprocess.run(["true"]).returncode  # <-


@breaks()
def named_by_uuid(x):
    return x, uuid.uuid4().hex  # <-


@breaks()
def leaving(x):
    sys.exit(3)  # <-


@breaks()
def asking(x):
    return x * float(input())  # <-


@breaks()
def collecting(x):
    y = x * 2
    gc.collect()  # <-
    return y + 1


@breaks()
def looking_at_the_stack(x):
    return x + len(inspect.stack())  # <-


@breaks()
def threads_of_torch(x):
    torch.set_num_threads(torch.get_num_threads())  # <-
    return x + 1


# -- Python and libraries --------------------------------------------------------------------------


@breaks()
def executed(x):
    scope = {"x": x}
    exec("y = x * 2", scope)  # <-
    return scope["y"]


@breaks()
def weak(x):
    return weakref.ref(x)() + 1  # <-


@breaks()
def locked(x):
    with LOCK:  # <-
        return x + 1


@breaks()
def queued(x):
    jobs = queue.Queue()  # <-
    jobs.put(x)
    return jobs.get() + 1


@breaks()
def pickled(x):
    return len(pickle.dumps(x))  # <-


@breaks()
def as_json(x):
    return json.dumps({"loss": x.mean().item()}), x  # <-


@breaks(_matrix(), "layer1")
def replaced(x, name):
    name = re.sub(r"\d", lambda found: str(int(found[0]) + 1), name)  # <-
    return {name: x}


@breaks()
def hashed(x):
    return x, hashlib.md5(b"key").hexdigest()  # <-


@breaks()
def checksum(x):
    return x + zlib.crc32(b"key") % 7  # <-


@breaks()
def unpacked(x):
    return x * struct.unpack("f", b"\0\0\0\0")[0]  # <-


@breaks()
def exact(x):
    return x * float(decimal.Decimal("1.5"))  # <-


@breaks()
def c_library(x):
    return x + ctypes.c_int(3).value  # <-


@breaks()
def database(x):
    rows = sqlite3.connect(":memory:")  # <-
    return x + rows.execute("select 1").fetchone()[0]


@breaks()
def enumeration(x):
    class Mode(enum.Enum):  # <-
        TRAIN = 1

    return x + Mode.TRAIN.value


@breaks()
def rows_one_by_one(x) -> Iterator[Tensor]:  # <-
    for row in x:
        yield row * 2


async def plus_one(x):
    return x + 1


@breaks()
def asynchronous(x):
    return asyncio.run(plus_one(x))  # <-


@breaks()
def remembered(x):
    SEEN[id(x)] = x.shape  # <-
    return x + 1


@breaks()
def warned(x):
    warnings.warn("slow path", stacklevel=2)  # <-
    return x + 1


@breaks()
def module_in_forward(x):
    return nn.Linear(4, 4)(x)  # <-


@ingot.disable
def plot(x):
    return x.max().item()


@breaks()
def disabled(x):
    plot(x)  # <-
    return x + 1


# -- torch -----------------------------------------------------------------------------------------


@breaks(_matrix().requires_grad_())
def hooked(x):
    y, seen = x * 2, []
    y.register_hook(lambda gradient: seen.append(gradient))  # <-
    return y.sum()


@breaks()
def parameter_data(x):
    WEIGHT.data = WEIGHT.data + x
    return WEIGHT * 1  # <-


@breaks()
def in_memory(x):
    file = io.BytesIO()  # <-
    torch.save(x, file)
    return x


@breaks()
def sparse(x):
    return torch.sparse.mm(x.to_sparse(), x)  # <-


@breaks()
def nested(x):
    rows = torch.nested.nested_tensor([x[:2], x])  # <-
    return rows.to_padded_tensor(0.0)


@breaks()
def profiled(x):
    with torch.profiler.profile():  # <-
        return x + 1


# -- errors of the program -------------------------------------------------------------------------


@fails(torch.ones(3, 4), torch.ones(5, 6))
def shapes_of_a_product(x, w):
    return x @ w  # <-


def add_bias(y, bias):
    return y + bias  # <-


@fails(torch.ones(3, 4), torch.ones(5))
def shapes_in_a_helper(x, bias):
    return add_bias(x * 2, bias)


@fails()
def wrong_view(x):
    return x.view(3, 5)  # <-


@fails(torch.ones(3, 4), torch.ones(5, 4, dtype=torch.float64))
def two_dtypes(x, w):
    return F.linear(x, w)  # <-


@fails()
def index_of_floats(x):
    return x[x]  # <-


@fails()
def out_of_bounds(x):
    return x[7]  # <-


@fails(torch.tensor([0, 9]), torch.ones(4, 2))
def out_of_the_vocabulary(ids, table):
    return F.embedding(ids, table)  # <-


@fails(_matrix(), torch.tensor([0, 1, 2, 9]))
def wrong_class(x, classes):
    return F.cross_entropy(x, classes)  # <-


@fails()
def misspelt_keyword(x):
    return torch.softmax(x, dims=1)  # <-


@fails()
def missing_argument(x):
    return add_bias(x)  # <-


@fails()
def no_such_method(x):
    return x.foo()  # <-


@fails()
def checked(x):
    assert (x > 0).all(), "negative input"  # <-
    return x.log()


@fails()
def not_a_number(x):
    if (x < 0).any():
        raise ValueError("negative input")  # <-
    return x.sqrt()


@fails()
def leaf_in_place(x):
    WEIGHT.add_(x)  # <-
    return WEIGHT * 2


@fails()
def grown_while_iterated(x):
    parts = {"a": x}
    for name in parts:  # <-
        parts[name + "2"] = x * 2
    return parts


@fails()
def missing_key(x):
    return x * {"lr": 0.1}["momentum"]  # <-


@fails()
def nothing_there(x):
    weight = None
    return x * weight  # <-


@fails()
def by_zero(x):
    return x * (1 / (len(x) - 4))  # <-


@fails()
def no_module(x):
    import not_a_module  # <-

    return not_a_module.scale(x)
