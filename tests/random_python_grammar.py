"""What random Python programs are made of: templates of expressions, statements, classes and
helpers.

In a template `<T>` is an expression of type T, `<T!>` a variable of it, `<T=>` one that may be
assigned to, `<new T>` a fresh one; `<T! as x>` names what was chosen, for `<.x>` to repeat;
`<block>` and `<block loop>` are statements; `<rows>` and `<cols>` are the sizes that all tensors
share, `<small>` is a count, `<test>` a condition.

The types: V, M, S are float tensors of one, two and no dimensions, N an integer and W a boolean
one; `int`, `float`, `bool`, `str`, `list[T]`, `dict[T]` (of strings to T), `set`, `deque`, `array`,
`iter`; `fn` takes a V to a V, `genfn` gives an `iter` of Vs; `counter` is an int that nothing
assigns to; the others are classes of random_python_parts.py.
"""

from __future__ import annotations

ATOMS = {
    "V": (
        "torch.ones(<cols>)|torch.arange(<cols>) * 0.5|torch.linspace(-1, 1, <cols>)|"
        "torch.zeros(<cols>)"
    ),
    "M": "torch.full((<rows>, <cols>), 0.25)|torch.eye(<rows>, <cols>)|torch.ones(<rows>, <cols>)",
    "S": "torch.tensor(0.5)|torch.tensor(-1.25)",
    "N": "torch.arange(<cols>)|torch.zeros(<cols>, dtype=torch.long)",
    "W": "torch.ones(<rows>, <cols>, dtype=torch.bool)",
    "int": "0|1|2|3|-1|5",
    "float": "0.5|1.5|-0.25|2.0",
    "bool": "True|False",
    "str": "'a'|'b'|'key'|'left'|'n'",
    "list[V]": "[]|[torch.ones(<cols>)]",
    "list[int]": "[1, 2]|[]|[3, 0, 2]",
    "list[str]": "['x']|[]",
    "dict[V]": "{}|{'a': torch.ones(<cols>)}",
    "dict[int]": "{}|{'a': 1}|{'a': 2, 'b': 0}",
    "set": "{1, 2}|set()",
    "deque": "collections.deque()|collections.deque([torch.ones(<cols>)], maxlen=3)",
    "fn": "torch.sin|(lambda v: v + 1)|torch.tanh",
}

EXPRESSIONS = {
    "V": """
<V> + <V>
<V> + <V>
<V> - <V>
<V> * <V>
<V> * <V>
<V> * <float>
<V> + <int>
<V> - <float>
<V> / (<V>.abs() + 1)
torch.sin(<V>)
<V>.tanh()
<V>.cos()
torch.sigmoid(<V>)
<V>.relu()
<V>.clamp(-1.5, 1.5)
-<V>
<V>.abs().sqrt()
<V> * <S>
<M>.sum(0)
<M>.mean(dim=0)
<M>[0]
<M>[-1]
<M>[<int> % <rows>]
<M>.max(dim=0).values
<M>.amax(0)
torch.where(<V> > <V>, <V>, <V>)
<V>.sort().values
<V>.flip(0)
torch.cumsum(<V>, 0)
torch.stack([<V>, <V>]).mean(0)
torch.stack([*<list[V]!>, <V>]).sum(0)
sum(<list[V]!>, <V>)
<Vec!>.data
(<Vec!> + <V>).data
(<Vec!> * <Vec!>).data
(-<Vec!>).data
<Vec!>(<V>)
<Vec!>.doubled
<Stack!>[<int>]
sum(<Stack!>, <V>)
<Pair!>.t
<Pair!>[0]
<Config!>.apply(<V>)
<Meter!>.update(<V>)
<fn!>(<V>)
<fn!>(<V>)
<dict[V]!>.get(<str>, <V>)
<dict[V]!>['a']
<dict[V]! as d>[<str>] if <str> in <.d> else <V>
<list[V]! as l>[-1] if <.l> else <V>
(<list[V]!> or [<V>])[0]
<list[V]! as l>[<int> % len(<.l>)] if len(<.l>) > 1 else <V>
<deque! as q>[0] if <.q> else <V>
<V> if <bool> else <V>
functools.reduce(lambda p, q: p + q, <list[V]!>, <V>)
functools.partial(torch.add, alpha=2)(<V>, <V>)
(lambda p, q=<V>: p * q)(<V>)
F.softmax(<V>, -1)
F.layer_norm(<V>, (<cols>,))
F.gelu(<V>)
<V>.clone()
<V>.detach()
<V>.view(-1)
<V>[:]
<V>.to(torch.float64).float()
torch.zeros_like(<V>)
torch.ones(<V>.shape[0])
<N>.float()
<V>[<N>.clamp(0, 0)]
<V>[<V>.argsort()]
operator.add(<V>, <V>)
getattr(torch, 'sin')(<V>)
getattr(<V>, 'cos')()
next(iter([<V>, <V>]))
next(<iter>, <V>)
sum(<iter>, <V>)
next((t for t in <list[V]!> if t.dim() == 1), <V>)
torch.add(<V>, <V>, alpha=<int>)
torch.lerp(<V>, <V>, 0.5)
[<V>, <V>][<bool>]
{True: <V>, False: <V>}[<bool>]
(<V>, <V>)[<int> % 2]
max(<list[V]!>, key=len, default=<V>)
copy.copy(<V>)
torch.max(<M>, 0)[0]
torch.cat([<V>, <V>])[:<cols>]
<Table!>.get('a', <V>)
<Table!>.total(<V>)
<Table!>.v
<Out!>.last
<Out!>[0]
<Out!>['last']
<Node!>.total()
sum(node.value for node in <Node!>)
<Tower!>.run(<V>)
<Tower!>.cached
<Gauge!>.level
<Gauge!>.scaled(<V>)
<Mode!>.apply(<V>)
pick(<int>)(<V>)
describe(<any!>) + <V>
<array!> + <V>
torch.from_numpy(<array!>)
torch.as_tensor(<array!>) * <V>
<M>[:, 0][:1] * <V>
<M>[..., -1].sum() * <V>
<M>[[0]].squeeze(0)
<V>[None].squeeze(0)
<V>[-1:] + <V>
torch.roll(<V>, 1)
torch.einsum('ij,j->i', <M>, <V>).sum() + <V>
(<M> @ <V>).mean() * <V>
torch.gather(<V>, 0, <N>.clamp(0, 0))
<V>.index_add(0, <N>.clamp(0, 0), <V>)
torch.broadcast_tensors(<V>, <M>)[0][0]
<V>.masked_fill(<V> > 0, <float>)
torch.topk(<V>, 1).values + <V>
<V>.unbind(0)[0] + <V>
<V>.contiguous()
torch.zeros(<cols>).copy_(<V>)
torch.empty_like(<V>).fill_(<float>)
torch.full_like(<V>, <float>)
<V>.new_zeros(<cols>)
<V>.type_as(<V>)
<V>.to(<V>.dtype)
<V>.mul(<V>).add(<V>)
torch.mul(<V>, <V>, out=torch.empty(<cols>))
operator.attrgetter('data')(<Vec!>)
operator.methodcaller('sin')(<V>)
functools.reduce(torch.add, [<V>, <V>, <V>])
[f(<V>) for f in (torch.sin, <fn!>)][-1]
[lambda v: v + k for k in range(3)][0](<V>)
(lambda *vs, **kw: vs[0] * kw.get('k', 1))(<V>, k=<int>)
<fn!>(*[<V>])
<fn!>(*(<V>,), **{})
{'f': <fn!>}['f'](<V>)
(<fn!> if <bool> else <fn!>)(<V>)
<deque! as q>.pop() if <.q> else <V>
<dict[V]!>.pop('z', <V>)
<dict[V]!>.setdefault('w', <V>)
<list[V]! as l>.pop() if len(<.l>) > 1 else <V>
<V> * contextvar.get()
torch.nn.functional.dropout(<V>, 0.5, training=False)
torch.func.vmap(torch.sin)(<V>)
torch.nn.functional.linear(<V>, <M>[:1].expand(<cols>, <cols>))
<ModuleList!>[<int> % 2](<V>)
<ModuleList!>[-1].weight[0] * <V>
functools.reduce(lambda v, f: f(v), <ModuleList!>, <V>)
next(<Net!>.parameters()).flatten()[0] + <V>
sum((p.sum() for p in <Net!>.parameters()), <V>)
undisturbed(<V>)
torch.func.functional_call(<Net!>.layers[0], {'bias': <V>}, (<V>,))
(<V> if <S> else <V>)
<V>.sum().expand(<cols>)
(<M> * <V>)[0, :]
Runner(<int>)(<V>)
Runner(2).step(<V>, k=<int>)
""",
    "M": """
<M> + <M>
<M> - <M>
<M> * <M>
<M> + <V>
<M> * <V>
<M> * <S>
<M> * <float>
<M> + <int>
<M>.sin()
torch.tanh(<M>)
F.relu(<M>)
torch.sigmoid(<M>)
torch.softmax(<M>, dim=-1)
torch.softmax(<M> @ <M>.mT, -1) @ <M>
torch.outer(<M>.mean(1), <V>)
<V>.expand(<rows>, <cols>)
torch.stack([<V>] * <rows>)
torch.cat([<M>[:1], <M>[1:]])
<M>[torch.arange(<rows>)]
<M>.masked_fill(<W>, 0.5)
torch.where(<W>, <M>, <M>)
<M>.T.contiguous().T
<M>.clone()
<M>.reshape(<rows>, <cols>)
<M>.flatten().view(<rows>, <cols>)
F.layer_norm(<M>, (<cols>,))
<M>.clamp(min=-1)
torch.cumsum(<M>, 1)
<M> if <bool> else <M>
torch.ones_like(<M>)
<M>.unsqueeze(0).squeeze(0)
<M>.t().t()
<M>[:, torch.arange(<cols>)]
torch.tril(<M>)
torch.einsum('ij,j->ij', <M>, <V>)
<M>.roll(1, 0)
<M>[:, None].squeeze(1)
<M>[..., :]
<M>.index_fill(0, torch.tensor([0]), <float>)
torch.cat(<M>.chunk(2, dim=0))
torch.cat(torch.split(<M>, 1, dim=1), dim=1)
<M>.permute(1, 0).permute(1, 0)
torch.stack(<M>.unbind(1), dim=1)
torch.vstack([<V>] * <rows>)
<M>.new_tensor(<float>) + <M>
torch.addmm(<M>, <M>, <M>.mT @ <M>) * 0.1
""",
    "S": """
<V>.sum()
<V>.sum()
<M>.mean()
<V>.max()
<V>.mean()
<M>.sum()
<V>[0]
<V>[-1]
<M>[0, -1]
<S> + <S>
<S> * <float>
<S>.tanh()
<V>.dot(<V>)
torch.tensor(<float>)
<M>.norm()
<V>.prod().tanh()
torch.dot(<V>, <V>)
<Vec!>.norm
sum([<S>, <S>])
torch.stack([<S>, <S>]).sum()
""",
    "N": """
torch.arange(<cols>)
<V>.argsort()
<N> + <int>
<N> % 3
<N> * 2
<N> + <N>
(<V> > 0).long()
<N>.clamp(0, 2)
<N>.flip(0)
(<V>.nan_to_num().clamp(-3, 3) * 2).long()
torch.where(<N> > 1, <N>, 0)
<N> // 2
""",
    "W": """
<M> > <S>
<M> < <M>
<M> >= <float>
~<W>
<W> & <W>
<W> | <W>
torch.isfinite(<M>)
<W>.logical_not()
<M>.ne(0)
""",
    "int": """
<int> + <int>
<int> - <int>
<int> * 2
<int> % 3
<int> // 2
-<int>
abs(<int>)
len(<list[V]!>)
len(<dict[V]!>)
len(<Stack!>)
<M>.shape[0]
<V>.numel()
<M>.dim()
len(<V>)
<V>.size(0)
<N>.numel()
min(<int>, <int>)
max(<int>, <int>, 1)
int(<bool>)
len(<str>)
sum(<list[int]!>)
sum(<list[int]>)
max(<list[int]!>, default=0)
<dict[int]!>.get(<str>, 0)
<dict[int]! as d>[<str>] if <str> in <.d> else <int>
<list[int]! as l>[-1] if <.l> else <int>
<list[int]!>.count(1)
len(<set!>)
<Pair!>.n
<Config!>.shift
<Meter!>.count
<Vec!>.reads
<Stack!>.top
ord(<str>[0])
round(<float>)
int(<float>)
int(math.sqrt(abs(<int>)))
math.gcd(<int>, <int>)
<int> if <bool> else <int>
(lambda k: k + 1)(<int>)
next(iter(<list[int]!>), <int>)
sum(1 for t in <list[V]!> if t.dim() == 1)
functools.reduce(operator.mul, <list[int]!>, 1) % 7
<bool> + <int>
divmod(<int>, 3)[1]
<str>.find('a')
<int> & 3
<int> ^ 1
int('7')
<str>.count('a')
operator.itemgetter(0)([<int>])
<Mode!>.value
len(<Table!>)
<Gauge!>.reads
len(Mode)
<Node!>.depth
Registry.size()
len(inspect.signature(<fn!>).parameters)
cached_square(<int> % 3)
<array!>.ndim
<N>.ndim
hash((<int>, 1)) % 5
pow(<int>, 2, 5)
int(<str> == <str>)
bool(<int>) + 1
len(f'{<int!>:{3}d}')
[<int>, <int>][-1]
max((<int>, 'a'), (<int>, 'b'))[0]
sum(map(len, <list[str]!>))
len({**<dict[int]!>, 'q': 1})
(<int> or <int>)
(<int> and <int>)
~<int>
<int> << 1
<int> ** 2 % 10
bisect.bisect(sorted(<list[int]!>), <int>)
heapq.nsmallest(1, [<int>, <int>])[0]
collections.Counter(<list[int]!>)[1]
len(list(itertools.zip_longest(<list[int]!>, <list[V]!>)))
next(itertools.count(<int>))
len(list(itertools.pairwise(<list[int]!>)))
sum(itertools.starmap(operator.add, [(1, <int>), (2, 3)]))
len(vars(<Vec!>))
operator.index(<int>)
<list[int]! as l>.index(<.l>[0]) if <.l> else 0
int.__add__(<int>, 1)
getattr(<Meter!>, 'count', 0)
getattr(<Vec!>, 'missing', <int>)
len(str(<list[int]!>))
(lambda *ks: len(ks))(*<list[int]!>)
(lambda a, /, b=1, *, c=2: a + b + c)(<int>, c=<int>)
globals_count()
len(<ModuleList!>)
sum(p.numel() for p in <Net!>.parameters())
len(<Net!>.state_dict())
len(list(<Net!>.modules()))
len(dict(<Net!>.named_buffers()))
""",
    "float": """
<int> / 2
<float> * 0.5
<float> + <float>
math.sin(<float>)
<float> - <int>
min(<float>, 1.0)
float(<int>)
<Config!>.scale
<float> if <bool> else <float>
abs(<float>)
sum([<float>, <float>])
round(<float>, 1)
<float> % 2
math.exp(-abs(<float>))
float('0.5')
""",
    "bool": """
<int> > <int>
<int> <= <int>
<int> % 2 == 0
<float> < <float>
0 <= <int> < 4
not <bool>
<bool> and <bool>
<bool> or <bool>
isinstance(<any!>, torch.Tensor)
isinstance(<any!>, (int, float))
isinstance(<any!>, (list, tuple, dict))
isinstance(<Vec!>, Vec)
hasattr(<any!>, 'data')
hasattr(<any!>, 'shape')
callable(<any!>)
<V>.dim() == 1
<any!> is <any!>
<any!> is None
<any!> is not None
<str> in <dict[V]!>
<str> not in <dict[int]!>
<int> in <set!>
<int> in <list[int]!>
<M>.shape == <M>.shape
<V>.dtype == torch.float32
<M>.is_contiguous()
all(t.dim() == 1 for t in <list[V]!>)
any(k == 'a' for k in <dict[V]!>)
all([<bool>, <bool>])
bool(<list[V]!>)
<list[int]!> == <list[int]>
<str> == <str>
<str>.startswith('a')
<str> < <str>
torch.is_tensor(<any!>)
torch.is_grad_enabled()
bool(<Vec!>)
<int> in <Stack!>
<Pair!> == <Pair!>
<Config!> == <Config!>
type(<any!>) is torch.Tensor
len(<list[V]!>) > 1
<set!> >= {1}
issubclass(type(<any!>), torch.Tensor)
(<int>, <int>) < (1, 2)
<Mode!> is Mode.LOUD
<Mode!> == <Mode!>
<Mode!> in (Mode.QUIET, Mode.LOUD)
isinstance(<any!>, int | float)
isinstance(<Named!>, Vec)
isinstance(<Tower!>, Base)
isinstance(<any!>, collections.abc.Mapping)
isinstance(<any!>, collections.abc.Iterable)
<V!> is <V!>
(<V! as x>.contiguous() is <.x>)
<list[V]!> is <list[V]!>
<dict[V]!> is not <dict[V]!>
<fn!> is <fn!>
any(t is <V!> for t in <list[V]!>)
<int> > <int> > 0
<int> != <int> or <str> < 'b'
bool(<dict[int]!>)
not <list[V]!>
<float> == <float>
<set!> == <set!>
<set!>.isdisjoint({9})
<list[int]!> != []
(<int>, <str>) == (1, 'a')
<V>.is_floating_point()
<M>.requires_grad
<M>.stride() == (<cols>, 1)
<dict[int]!> == <dict[int]!>
'x' in <list[str]!>
math.isclose(<float>, <float>)
<str>.isalpha()
<dict[V]!>.keys() == <dict[V]!>.keys()
frozenset({1, <int>}) <= {1, 2, 3}
all(map(torch.is_tensor, <list[V]!>))
<Gauge!> < <Gauge!>
<Pair!>.n > 0
<Net!>.training
isinstance(<Net!>, torch.nn.Module)
hasattr(<Net!>, 'late')
any(p.requires_grad for p in <Net!>.parameters())
""",
    "str": """
<str> + <str>
<str>.upper()
f'{<int!>}:{<str!>}'
f'{<str!>!r}'
f'{<int!>:>4}'
f'{<float!>:.2f}'
f'{<int!>}{<int!> + 1}' + <str>
'%d-%s' % (<int>, <str>)
'-'.join(<list[str]!>)
'/'.join([<str>, <str>])
'{}={n}'.format(<str>, n=<int>)
str(<int>)
repr(<str>)
type(<any!>).__name__
str(<V>.dtype)
f'{tuple(<M!>.shape)}'
f'{<M!>.shape}'
<str>[:2]
<str> * 2
<str>.replace('a', 'o')
<str> if <bool> else <str>
','.join(str(i) for i in <list[int]!>)
','.join(<dict[V]!>)
str(<list[int]!>)
str(<dict[int]!>)
repr(<Pair!>.n)
<Vec!>.label
str(<bool>)
max(<list[str]!>, default='none')
<str>.split('e')[0]
''.join(sorted(<str>))
<Mode!>.name
repr(<Mode!>)
f'{<Mode!>}'
<Tower!>.name()
str(<Gauge!>)
repr(<Config!>.scale)
f'{<float!>:{6}.{2}f}|'
f'{<str!>:>{5}}'
f'{<int!>:03d}{<bool!>}'
'%s=%r' % (<str>, <str>)
'{0}{0}'.format(<str>)
'%(n)d' % {'n': <int>}
<fn!>.__class__.__name__
<str>.title().strip()
'a b'.split()[<int> % 2]
<str>[::-1]
hex(<int>)
chr(97 + <int> % 3)
','.join(map(str, <list[int]!>))
''.join(c for c in <str> if c != 'a')
str(sorted(<set!>))
str(<dict[V]!>.keys())
str((<int>, <str>))
str(None)
str([<str>, <int>])
f'{[<int!>, <str!>]}'
f'{<dict[int]!>}'
type(<any!>).__qualname__
str(<M>.size())
str(<V>.device)
<str>.encode().decode()
min(<str>, <str>)
type(<Net!>).__name__
','.join(n for n, _ in <Net!>.named_children())
""",
}

# The value is not known before the tensor work has been done. Sums decide away from 0, where
# rounding would decide.
DATA_DEPENDENT = {
    "V": """
max(<V>, <V>, key=lambda t: round(t.sum().item(), 3))
torch.from_numpy(<V>.numpy() * 2)
torch.tensor(<V>.tolist())
<V> * <S>.item()
<V> + int(<S>.nan_to_num().clamp(-3, 3))
<V> if <V>.sum() > 0.01 else <V>
min(<list[V]!>, key=lambda t: float(t.sum()), default=<V>)
copy.deepcopy(<V>)
torch.nonzero(<V> > 9).sum() + <V>
<V> + len(<V>[<V> > 0])
""",
    "M": "<M> * <S>.item()\n<M> if (<M> > 0).any() else <M>\n<M>[<W>].sum() + <M>",
    "S": "max(<V>)\nsum(<V>)\n<V>[<V> > 0].sum()\n<M>[<W>].sum()\ntorch.tensor(<V>.tolist()).sum()",
    "N": "torch.nonzero(<V> > -9).flatten()\n<V>.nonzero().sum() + <N>",
    "int": """
int(<S>.nan_to_num().clamp(-3, 3))
<W>.sum().item()
<N>.max().item()
len(<V>[<V> > 0])
(<V> > 0).sum().item()
int(<N>[0])
<N>.tolist()[-1]
torch.nonzero(<V> > 0).shape[0]
<V>.argmax().item()
""",
    "float": """
<S>.item()
float(<S>)
<V>.tolist()[0]
float(np.mean(<V>.numpy()))
<V>.mean().item() * 0.5
""",
    "bool": """
bool(<S> > 0)
(<V> > 0).any().item()
torch.equal(<V>, <V>)
torch.allclose(<V>, <V>)
bool((<M> > 0).all())
<S>.item() > 0.5
0 < <S> < 3
not <S>
(<V> > 0).all() and <bool>
bool(<V>.any()) or <bool>
""",
    "str": """
f'{<S!>.item():.1f}'
str(<N>.tolist())
f'{<V!>.sum():.1f}'
f'{float(<V!>[0]):.1f}'
'pos' if <S> > 0 else 'neg'
""",
    "list[V]": (
        "sorted(<list[V]!>, key=lambda t: round(t.sum().item(), 3))\n"
        "[t for t in <list[V]!> if t.sum() > 0.01]"
    ),
    "list[int]": "<N>.tolist()\n[int(k) for k in <N>]",
}
