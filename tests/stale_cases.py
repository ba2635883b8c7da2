"""What a program may change between two calls of a compiled function: the expression that the
function computes, and the statements that change what it was captured from."""

from __future__ import annotations

HELPERS = """
import collections, copy, functools, itertools, math, operator, types
import torch, torch.nn as nn, torch.nn.functional as F

def helper(x, k=2, *, s=1): return x * k + s
def other_helper(x, k=3, *, s=7): return x * k - s
def maker(n):
    def inner(x): return x * n
    return inner
closed = maker(5)
SCALE = 2

class P:
    a = 1
    def m(self, x): return x + self.a
    @property
    def p(self): return 2
    @staticmethod
    def st(x): return x + 3
    @classmethod
    def cm(cls, x): return x + 4

class Sub(nn.Module):
    def __init__(self, v):
        super().__init__()
        self.v = v
    def forward(self, x): return x + self.v

class M(nn.Module):
    def __init__(self):
        super().__init__()
        self.sub, self.par = Sub(1), nn.Parameter(torch.ones(3))
        self.register_buffer("buf", torch.ones(3) * 2)
        self.lin, self.plain, self.seq = nn.Linear(3, 3), 3, nn.Sequential(Sub(1), Sub(2))
        self.none, self.lst = None, nn.ModuleList([Sub(4)])
    def forward(self, x):
        y = self.sub(x) + self.par + self.buf + self.plain
        for layer in self.lst: y = layer(y)
        return self.seq(self.lin(y)) if self.none is None else y

torch.manual_seed(0)
m, m2, p, normal = M(), M(), P(), torch.distributions.Normal
get = object.__getattribute__
def uses(x): return {}
"""

_OF_MODULES = """
object.__setattr__(m, "sub", Sub(9))
m.__dict__["sub"] = Sub(9)
vars(m)["sub"] = Sub(9)
object.__setattr__(m, "par", torch.zeros(3))
m.__dict__["par"] = torch.zeros(3)
object.__setattr__(m, "buf", torch.zeros(3))
m.__dict__["buf"] = torch.zeros(3)
m.__dict__["lin"] = Sub(8)
m.__dict__["seq"] = Sub(8)
m.__dict__["lst"] = [Sub(8)]
m.sub.__dict__["forward"] = lambda x: x * 7
m.__dict__["forward"] = lambda x: x * 7
m.forward = lambda x: x * 7
m.sub.forward = lambda x: x * 7
m.lin.forward = lambda x: x * 7
M.sub = Sub(9)
M.sub = property(lambda s: Sub(9))
M.par = property(lambda s: torch.zeros(3))
M.buf = property(lambda s: torch.zeros(3))
M.buf = torch.zeros(3)
M.plain = property(lambda s: 5)
Sub.v = property(lambda s: 5)
Sub.forward = lambda s, x: x * 3
M.forward = lambda s, x: x * 3
nn.Linear.forward = lambda s, x: x * 3
nn.Linear.__call__ = lambda s, x: x * 3
nn.Module.__call__ = lambda s, x: x * 3
nn.Sequential.forward = lambda s, x: x * 3
nn.Module.__getattr__ = lambda s, n: Sub(9)
M.__getattr__ = lambda s, n: Sub(9) if n in ("sub", "lin", "seq") else nn.Module.__getattr__(s, n)
M.__getattribute__ = lambda s, n: Sub(9) if n == "sub" else object.__getattribute__(s, n)
nn.Linear.__getattribute__ = lambda s, n: torch.zeros(3, 3) if n == "weight" else get(s, n)
m.sub = Sub(9)
m._modules["sub"] = Sub(9)
m._parameters["par"] = nn.Parameter(torch.zeros(3))
m._buffers["buf"] = torch.zeros(3)
del m._modules["sub"]; m.__dict__["sub"] = Sub(8)
del m.sub; m.sub = lambda x: x
del m._modules["sub"]
del m.par
del m.buf
m.none = 3
m._parameters["none"] = 3
m.__dict__["none"] = 3
m.seq[0] = Sub(9)
m.seq._modules["0"] = Sub(9)
m.seq.append(Sub(9))
m.lst.append(Sub(9))
m.lst[0] = Sub(9)
m.lst._modules["0"] = Sub(9)
m.register_forward_hook(lambda mod, a, o: o * 2)
m.sub.register_forward_pre_hook(lambda mod, a: (a[0] * 2,))
nn.modules.module._global_forward_hooks[99] = lambda mod, a, o: o * 2
m.__class__ = type("N", (M,), {"forward": lambda s, x: x * 5})
m.sub.__class__ = type("N", (Sub,), {"forward": lambda s, x: x * 5})
m.sub.v = 11
m.sub.__dict__["v"] = 11
m.__dict__ = m2.__dict__; m.plain = 8
m.par.data = torch.zeros(3)
m.par = nn.Parameter(torch.zeros(3))
m.lin.weight = nn.Parameter(torch.zeros(3, 3))
m.lin.__dict__["weight"] = torch.zeros(3, 3)
object.__setattr__(m.lin, "weight", torch.zeros(3, 3))
m.lin.__dict__["bias"] = None
del m.plain; M.plain = 9
m._modules = dict(m._modules, sub=Sub(9))
m._parameters = dict(m._parameters, par=torch.zeros(3))
m.__dict__["_buffers"] = dict(m._buffers, buf=torch.zeros(3))
m.sub.__call__ = lambda x: x
Sub.__call__ = lambda s, x: x * 4
m.__dict__["_call_impl"] = lambda x: x * 3
m.sub.__dict__["_call_impl"] = lambda x: x * 3
m = M()
m = Sub(3)
M.__len__ = lambda s: 0
"""

STALE: dict[str, str] = {
    "m(x)": _OF_MODULES,
    "torch.relu(x)": "torch.relu = lambda x: x * 9",
    "F.gelu(x)": (
        "F.gelu = lambda x: x * 9\ntorch.nn.functional.gelu = lambda x: x * 9\n"
        "F = types.SimpleNamespace(gelu=lambda x: x * 9)"
    ),
    "F.linear(x, torch.ones(3, 3))": "F.linear = lambda x, w: x * 9",
    "F.relu(x)": "F.relu = lambda x: x * 9\ntorch.relu = lambda x: x * 9",
    "F.softmax(x, 0)": (
        "F.softmax = lambda x, d: x * 9\ntorch.Tensor.softmax = lambda s, *a, **k: s * 9"
    ),
    "F.dropout(x, 0.5, False)": "F.dropout = lambda *a: a[0] * 9",
    "F.layer_norm(x, (3,))": (
        "torch.layer_norm = lambda *a: a[0] * 9\nF.layer_norm = lambda x, s: x * 9"
    ),
    "F.mse_loss(x, x + 1)": (
        "torch._C._nn.mse_loss = lambda *a: a[0] * 9\nF.mse_loss = lambda *a: a[0] * 9\n"
        "torch.broadcast_tensors = lambda *a: [t * 2 for t in a]"
    ),
    "F.cross_entropy(x[None], torch.tensor([1]))": "F.cross_entropy = lambda a, b: a * 9",
    "F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None])": (
        "F.scaled_dot_product_attention = lambda *a: a[0] * 9"
    ),
    "m.lin(x)": (
        "F.linear = lambda x, w, b: x * 9\n"
        "torch.nn.modules.linear.F = types.SimpleNamespace(linear=lambda x, w, b: x * 9)\n"
        "nn.Linear.forward = lambda s, x: x * 9"
    ),
    "nn.ReLU()(x)": (
        "F.relu = lambda x, inplace: x * 9\nnn.ReLU = lambda: (lambda x: x * 9)\n"
        "nn.ReLU.forward = lambda s, x: x * 9\ntorch.relu = lambda x: x * 9"
    ),
    "nn.LayerNorm(3)(x)": "F.layer_norm = lambda x, *a: x * 9",
    "nn.init.zeros_(x.clone())": (
        "nn.init.zeros_ = lambda t: t * 9\ntorch.nn.init._no_grad_zero_ = lambda t: t * 9"
    ),
    "m.lst[0](x)": "nn.ModuleList.__getitem__ = lambda s, i: (lambda x: x * 9)",
    "x.relu()": "torch.Tensor.relu = lambda s: s * 9",
    "x + 1": "torch.Tensor.__add__ = lambda s, o: s * 9",
    "1 - x": "torch.Tensor.__rsub__ = lambda s, o: s * 9",
    "x[0]": "torch.Tensor.__getitem__ = lambda s, o: s * 9",
    "x.T": "torch.Tensor.T = property(lambda s: s * 9)",
    "torch.cat([x, x])": "torch.cat = lambda l: l[0] * 9",
    "torch.einsum('i,i->i', x, x)": "torch.einsum = lambda *a: a[1] * 9",
    "torch.ops.aten.relu(x)": "torch.ops.aten.relu = lambda x: x * 9",
    "torch.distributions.Normal(x, 1.0).mean": (
        "normal.mean = property(lambda s: 9)\n"
        "torch.distributions.Normal = lambda *a: types.SimpleNamespace(mean=9)"
    ),
    "x * math.sqrt(4)": "math.sqrt = lambda v: 9\nmath = types.SimpleNamespace(sqrt=lambda v: 9)",
    "x * math.pi": "math.pi = 3",
    "x * max(1, 2)": "max = lambda *v: 9",
    "x * len([1, 2])": "len = lambda v: 9",
    "x * operator.add(1, 2)": "operator.add = lambda a, b: 9",
    "x * functools.reduce(lambda a, b: a + b, [1, 2])": "functools.reduce = lambda f, v: 9",
    "functools.partial(helper, k=4)(x)": (
        "functools.partial = lambda f, k: (lambda x: x * 9)\nhelper.__kwdefaults__ = {'s': 9}"
    ),
    "x * len(list(itertools.chain([1], [2])))": "itertools.chain = lambda *a: [1] * 9",
    "x * copy.copy([3])[0]": "copy.copy = lambda a: [9]",
    "x * collections.Counter('aab')['a']": (
        "collections.Counter = lambda a: {'a': 9}\n"
        "collections.Counter.__getitem__ = lambda s, k: 9\n"
        "collections.Counter.__init__ = lambda s, k: None"
    ),
    "x * collections.OrderedDict(a=3)['a']": "collections.OrderedDict = lambda a: {'a': 9}",
    "helper(x)": (
        "helper = other_helper\nhelper.__code__ = other_helper.__code__\n"
        "helper.__defaults__ = (9,)\nhelper.__kwdefaults__ = {'s': 9}\n"
        "helper.__kwdefaults__['s'] = 9\n"
        "helper.__defaults__ = None; helper.__code__ = (lambda x: x * 9).__code__"
    ),
    "closed(x)": (
        "closed.__closure__[0].cell_contents = 9\nclosed = maker(9)\n"
        "closed.__code__ = (lambda n: (lambda x: x - n))(1).__code__"
    ),
    "x * SCALE": "SCALE = 9\nglobals()['SCALE'] = 9",
    "p.m(x)": (
        "P.m = lambda s, x: x * 9\np.m = lambda x: x * 9\np.a = 9\nP.a = 9\np.__dict__['a'] = 9\n"
        "P.m.__code__ = (lambda self, x: x * 9).__code__\np = type('Q', (P,), {'a': 9})()\n"
        "P.__getattribute__ = lambda s, n: (lambda x: x * 9)\nP.a = property(lambda s: 9)\n"
        "p.__class__ = type('Q', (P,), {'a': 9})"
    ),
    "x * p.p": "P.p = 9\nP.p = property(lambda s: 9)\nP.p.fget.__code__ = (lambda s: 9).__code__",
    "P.st(x)": (
        "P.st = lambda x: x * 9\nP.st.__code__ = (lambda x: x * 9).__code__\n"
        "P.st = staticmethod(lambda x: x * 9)"
    ),
    "p.cm(x)": (
        "P.cm = classmethod(lambda c, x: x * 9)\n"
        "P.cm.__func__.__code__ = (lambda c, x: x * 9).__code__"
    ),
    "x + getattr(p, 'zz', 1)": "p.zz = 9\nP.zz = 9\nP.__getattr__ = lambda s, n: 9",
    "x + hasattr(p, 'zz')": "p.zz = 9\nP.zz = 9\nP.__getattr__ = lambda s, n: 9",
    "x + isinstance(p, P)": "p = 3\nP = int",
}


def cases() -> list[tuple[str, str]]:
    return [
        (used, change) for used, changes in STALE.items() for change in changes.strip().splitlines()
    ]
