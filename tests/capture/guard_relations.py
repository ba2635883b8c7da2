"""Facts about several values, and about all of a module: cases as those of guard_cases.py."""

from __future__ import annotations

import torch

from ingot.capture.guards import MISSING, Kind
from ingot.capture.sources import (
    AttrSource,
    ConstSource,
)
from tests.capture.guard_cases import (
    Case,
    Thing,
    X,
    Y,
    base,
    fact,
    module,
    mutate,
    one,
    state_weight,
)

RELATIONS = [
    Case(
        "same object",
        lambda: (base(),) * 2,
        fact(Kind.SAME, Y),
        lambda _: (base(), base()),
        "x is y was True, is False",
    ),
    Case(
        "distinct objects",
        lambda: (base(), base()),
        fact(Kind.DISTINCT, Y),
        lambda s: (s[0], s[0]),
        "x is y was False, is True",
    ),
    Case(
        "same storage",
        lambda: ((b := base()), b[1:]),
        fact(Kind.SAME_STORAGE, (Y, 4)),
        lambda _: (base(), base()[1:]),
        "shared a storage",
    ),
    Case(
        "distance in storage",
        lambda: ((b := base()), b[1:]),
        fact(Kind.SAME_STORAGE, (Y, 4)),
        lambda s: (s[0], s[0][2:]),
        "y was 4 bytes after x, is 8",
    ),
    Case(
        "disjoint",
        lambda: (base(), base()),
        fact(Kind.TENSOR_DISJOINT, ((X,), (Y,)), None),
        lambda s: (s[0], s[0][1:]),
        "x and y shared no memory, and do",
    ),
    Case(
        "disjoint in one storage",
        lambda: (base(), base()),
        fact(Kind.TENSOR_DISJOINT, ((X,), (Y,)), None),
        lambda s: (s[0][:4], s[0][4:]),
        holds=True,
    ),
    Case(
        "disjoint and empty",
        lambda: (base(), base()),
        fact(Kind.TENSOR_DISJOINT, ((X,), (Y,)), None),
        lambda s: (s[0], s[0][3:3]),
        holds=True,
    ),
    Case(
        "both written",
        lambda: (base(), base()),
        fact(Kind.TENSOR_DISJOINT, ((X, Y), ()), None),
        lambda s: (s[0], s[0]),
    ),
    # a module
    Case(
        "parameter replaced",
        lambda: (module(),),
        state_weight,
        mutate(lambda m: setattr(m[0], "weight", torch.nn.Parameter(torch.ones(3, 3)))),
        "x[0].weight.shape[1] was 2, is 3",
    ),
    Case(
        "parameter's data replaced",
        lambda: (module(),),
        state_weight,
        mutate(lambda m: setattr(m[0].weight, "data", torch.ones(3, 4))),
        "x[0].weight.shape[1]",
    ),
    Case(
        "parameter frozen",
        lambda: (module(),),
        state_weight,
        mutate(lambda m: m[0].weight.requires_grad_(False)),
        "x[0].weight.requires_grad",
    ),
    Case(
        "parameter of equal shape",
        lambda: (module(),),
        state_weight,
        mutate(lambda m: setattr(m[0], "weight", torch.nn.Parameter(torch.ones(3, 2)))),
        holds=True,
    ),
    Case(
        "module removed",
        lambda: (module(),),
        state_weight,
        mutate(lambda m: m.__delitem__(0)),
        "cannot be read",
    ),
    Case(
        "training flag",
        lambda: (module(),),
        fact(Kind.EQUALS, True, AttrSource(X, "training")),
        mutate(lambda m: m.eval()),
        "x.training was True, is False",
    ),
    Case(
        "hook",
        lambda: (module(),),
        fact(Kind.DICT_EMPTY, None, AttrSource(X, "_forward_hooks")),
        mutate(lambda m: m.register_forward_hook(print)),
        "x._forward_hooks",
    ),
    Case(
        "constant",
        one(0),
        fact(Kind.CLASS_ATTRIBUTE, ("missing", MISSING), ConstSource(Thing)),
        one(1),
        holds=True,
    ),
]
