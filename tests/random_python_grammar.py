"""What random Python programs are made of: templates of expressions, statements, classes and helpers.

In a template `<T>` is an expression of type T, `<T!>` a variable of it, `<T=>` one that may be assigned to, `<new T>` a
fresh one; `<T! as x>` names what was chosen, for `<.x>` to repeat; `<block>` and `<block loop>` are statements; `<rows>`
and `<cols>` are the sizes that all tensors share, `<small>` is a count, `<test>` a condition.

The types: V, M, S are float tensors of one, two and no dimensions, N an integer and W a boolean one; `int`, `float`, `bool`,
`str`, `list[T]`, `dict[T]` (of strings to T), `set`, `deque`; `Vec`, `Stack`, `Pair`, `Config`, `Meter` are classes of the
program; `fn` takes a V to a V; `counter` is an int that nothing assigns to.
"""

from __future__ import annotations

ATOMS = {
    "V": "torch.ones(<cols>)|torch.arange(<cols>) * 0.5|torch.linspace(-1, 1, <cols>)|torch.zeros(<cols>)",
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
""",
    "list[V]": """
[<V>, <V>]
[<V>, <V>, <V>]
[t * 2 for t in <list[V]!>]
[<V> for i in range(<small>)]
list(<M>.unbind(0))
[row for row in <M>]
list(<M>)
<list[V]!>[1:]
<list[V]!>[::-1]
list(map(<fn!>, <list[V]!>))
list(map(lambda t, k: t * k, <list[V]!>, <list[int]>))
[*<list[V]!>, <V>]
list(filter(lambda t: t.dim() == 1, <list[V]!>))
<list[V]!> + [<V>]
list(reversed(<list[V]!>))
<list[V]!>.copy()
[p + q for p, q in zip(<list[V]!>, <list[V]!>)]
[t + i for i, t in enumerate(<list[V]!>)]
[t for t in <list[V]!> if <bool>]
list(itertools.accumulate(<list[V]!>))
list(itertools.accumulate(<list[V]!>, lambda p, q: p * 0.5 + q))
list(<dict[V]!>.values())
[<dict[V]! as d>[k] for k in sorted(<.d>)]
list(itertools.chain(<list[V]!>, [<V>]))
list(itertools.islice(itertools.cycle([<V>, <V>]), <small>))
[p * q for p in <list[V]!>[:2] for q in (<V>, <V>)]
sorted(<list[V]!>, key=len)
[*<deque!>]
list(<iter>)
list(<iter>)
[t * 2 for t in <iter>]
[t for t in itertools.islice(<iter>, 2)]
list(<Stack!>)
[t for pair in zip(<list[V]!>, <list[V]!>) for t in pair]
list(itertools.takewhile(lambda t: t.dim() > 0, <list[V]!>))
[functools.partial(operator.mul, <V>)(t) for t in <list[V]!>]
copy.copy(<list[V]!>)
""",
    "iter": "<genfn!>()",
    "list[int]": """
[<int>, <int>]
list(range(<small>))
[i * i for i in range(4) if i != <int>]
sorted(<list[int]!>, reverse=True)
sorted(<list[int]!>, key=lambda k: -k)
[len(s) for s in <list[str]!>]
list(<dict[int]!>.values())
sorted(<set!>)
[i for i, t in enumerate(<list[V]!>)]
[k for k in <list[int]!> if k % 2]
[k for row in [<list[int]>, <list[int]>] for k in row]
<list[int]!>[:2]
<list[int]!> + <list[int]>
<list[int]!> * 2
[i + j for i in range(2) for j in range(i + 1)]
list(map(int, '120'))
list(map(abs, <list[int]!>))
list(<M>.shape)
[*range(<small>), <int>]
list(itertools.chain.from_iterable([<list[int]>, <list[int]>]))
[n for n, _ in itertools.groupby(sorted(<list[int]!>))]
[j for i, j in itertools.product(range(2), repeat=2)]
""",
    "list[str]": """
[<str>, <str>]
list(<dict[V]!>)
sorted(<dict[int]!>)
[s.upper() for s in <list[str]!>]
[f'{k}{i}' for i, k in enumerate(<dict[V]!>)]
'a,b,c'.split(',')
list(<str>)[:2]
[str(k) for k in <list[int]!>]
""",
    "dict[V]": """
{'a': <V>, 'b': <V>}
dict(a=<V>, c=<V>)
{k: t + 1 for k, t in <dict[V]!>.items()}
{**<dict[V]!>, 'c': <V>}
<dict[V]!> | {'d': <V>}
dict(zip(['a', 'b'], <list[V]!>))
{f'k{i}': t for i, t in enumerate(<list[V]!>)}
{<str>: <V>, <str>: <V>}
<dict[V]!>.copy()
dict(<dict[V]!>, e=<V>)
dict(sorted(<dict[V]!>.items(), key=lambda item: item[0]))
collections.OrderedDict(a=<V>, b=<V>)
dict.fromkeys(['p', 'q'], <V>)
{k: t for k, t in <dict[V]!>.items() if k != <str>}
collections.ChainMap({'a': <V>}, <dict[V]!>).maps[0]
""",
    "dict[int]": """
{'a': <int>, 'b': <int>}
dict(n=<int>)
{k: len(k) for k in <list[str]!>}
{s: i for i, s in enumerate(<list[str]>)}
{**<dict[int]!>, 'a': <int>}
dict(collections.Counter(<str>))
{k: v for k, v in <dict[int]!>.items() if v > 0}
collections.defaultdict(int, a=<int>)
""",
    "set": """
{1, <int>}
{k % 3 for k in <list[int]!>}
set(<list[int]!>)
<set!> | {<int>}
<set!> & {0, 1, 2}
<set!> - {<int>}
set(range(<small>))
""",
    "deque": """
collections.deque([<V>, <V>], maxlen=3)
collections.deque(<list[V]!>)
collections.deque([<V>])
""",
    "fn": """
lambda v: v * <float>
lambda v: v + <V>
lambda v, k=<int>: v + k
functools.partial(torch.mul, other=<V>) if <bool> else torch.neg
<fn!> if <bool> else torch.tanh
<Config!>.apply
<Meter!>.update
operator.neg
torch.nn.functional.relu
make_scaler(<int>)
""",
    "Vec": "Vec(<V>)\nVec(<V>)\nNamed(<V>, <str>)\n<Vec!> + <V>\n<Vec!> + <Vec!>\nVec.zeros(<cols>)\n<Vec!> * <float>\n-<Vec!>",
    "Stack": "Stack(<list[V]>)\nStack([<V>])\nStack(<V> for i in range(2))",
    "Pair": "Pair(<V>, <int>)\nPair(t=<V>, n=<int>)\n<Pair!>._replace(n=<int>)",
    "Config": "Config(<float>)\nConfig(<float>, shift=<int>)\ndataclasses.replace(<Config!>, shift=<int>)",
    "Meter": "Meter()\nMeter(<V>)",
    "pair": "(<V>, <int>)\n(<V>, <int>)",
}

# The value is not known before the tensor work has been done.
DATA_DEPENDENT = {
    "V": """
max(<V>, <V>, key=lambda t: t.sum().item())
torch.from_numpy(<V>.numpy() * 2)
torch.tensor(<V>.tolist())
<V> * <S>.item()
<V> + int(<S>.nan_to_num().clamp(-3, 3))
<V> if <V>.sum() > 0 else <V>
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
""",
    "str": """
f'{<S!>.item():.1f}'
str(<N>.tolist())
f'{<V!>.sum():.1f}'
f'{float(<V!>[0]):.1f}'
'pos' if <S> > 0 else 'neg'
""",
    "list[V]": "sorted(<list[V]!>, key=lambda t: t.sum().item())\n[t for t in <list[V]!> if t.sum() > 0]",
    "list[int]": "<N>.tolist()\n[int(k) for k in <N>]",
}

TENSOR_TESTS = "<S> > <float>\n<V>.sum() > 0\n(<M> > 0).any()\n<S> < <S>\n<V>.mean() <= <V>.max()\n(<N> > 1).any()"

SIMPLE_STATEMENTS = """
<new V> = <V>
<new V> = <V>
<new V> = <V>
<new M> = <M>
<new M> = <M>
<new S> = <S>
<new int> = <int>
<new float> = <float>
<new bool> = <bool>
<new str> = <str>
<new list[V]> = <list[V]>
<new list[V]> = <list[V]>
<new list[int]> = <list[int]>
<new dict[V]> = <dict[V]>
<new dict[int]> = <dict[int]>
<new set> = <set>
<new deque> = <deque>
<new fn> = <fn>
<new Vec> = <Vec>
<new Stack> = <Stack>
<new Pair> = <Pair>
<new Config> = <Config>
<new Meter> = <Meter>
<new N> = <N>
<V=> = <V>
<V=> = <V>
<V=> += <V>
<V=> *= <float>
<V=> = <V=> + <V>
<M=> = <M>
<M=> -= <M>
<S=> = <S> + <S>
<N=> += 1
<int=> = <int>
<int=> += <int>
<int=> -= 1
<str=> += <str>
<float=> *= 0.5
<list[V]=> = <list[V]>
<list[V]=> += [<V>]
<list[int]=> += <list[int]>
<dict[V]=> |= {'z': <V>}
<dict[V]=> = <dict[V]>
<fn=> = <fn>
<Vec=> += <V>
<new V> = <new V> = <V>
<new V>, <new int> = <pair>
<new V>, <new V> = <V>, <V>
<new V>, *<new list[V]> = [<V>, *<list[V]!>]
(<new V>, <new int>), <new str> = (<V>, <int>), <str>
<new int>, <new int> = divmod(<int>, 3)
<new V>, <new N> = <M>.max(0)
<new list[V]> = <list[V]!>
<new dict[V]> = <dict[V]!>
<new V> = <V!>
<V!>.add_(<V>)
<V!>.mul_(<float>)
<V!>.clamp_(-1, 1)
<V!>[0] = <float>
<V!>[-1] = <S>
<V!>.copy_(<V>)
<V!>.zero_()
<M!>[0] = <V>
<M!>[:, 0] = <float>
<M!>[<W>] = <float>
<M!>[0] += <V>
<M!>.tanh_()
<list[V]!>.append(<V>)
<list[V]!>.append(<V>)
<list[V]!>.extend(<list[V]>)
<list[V]!>.insert(0, <V>)
<list[V]! as l>.pop() if <.l> else None
<list[V]!>.reverse()
<list[V]!>[:1] = [<V>]
del <list[V]!>[2:]
<list[V]!>.clear()
<list[int]!>.append(<int>)
<list[int]!>.sort()
<list[int]!>.extend(range(<small>))
<list[str]!>.append(<str>)
<list[str]!>.append(f'{<int!>}')
<dict[V]!>[<str>] = <V>
<dict[V]!>[<str>] = <V>
<dict[V]!>.setdefault('s', <V>)
<dict[V]!>.update(a=<V>)
<dict[V]!>.update(<dict[V]>)
<dict[V]!>.pop(<str>, None)
<dict[int]! as d>['n'] = <.d>.get('n', 0) + 1
<dict[int]!>[<str>] = <int>
<dict[int]!>.setdefault(<str>, <int>)
<set!>.add(<int>)
<set!>.discard(<int>)
<set!>.update(<list[int]>)
<deque!>.append(<V>)
<deque!>.appendleft(<V>)
<deque!>.rotate(1)
<deque! as q>.popleft() if <.q> else None
<Vec!>.data = <V>
<Vec!>.label = <str>
<Vec!>.reads += 1
<Vec!>.data.mul_(0.5)
<Stack!>.push(<V>)
<Stack!>[0] = <V>
<Config!>.shift += 1
<Config!>.parts.append(<V>)
<Meter!>.count = <int>
<Meter!>.last = <V>
setattr(<Vec!>, 'extra', <V>)
setattr(<Meter!>, <str>, <int>)
<Vec!>.__dict__['reads'] = <int>
print(<str>)
print(<str>, <int>)
print('n =', <int>, <str>, sep='|')
print(f'{<str!>} {<int!>}', end=';')
print(f'{<dict[int]!>} {len(<list[V]!>)}')
print(f'{<V!>.dtype} {<V!>.dim()=}')
print(<V!>.shape, <bool>)
print(*<list[int]>)
print(<list[int]!>, <dict[int]!>)
assert <V!>.dim() == 1, 'a vector'
<new int> = <int>; del <list[int]!>[1:]
<new int> = sum(1 for _ in <list[V]!>)
<new iter> = <iter>
<new V> = next(<iter!>, <V>)
<V=> = <V=> + next(<iter!>, 0)
<new any> = None
<new list[V]> = [<V>] * 2
pass
"""

# What only real Python can do: the graph ends before it.
OPAQUE_STATEMENTS = """
time.sleep(0)

id(<V!>)

print(<V!>)

print(<S>)

print(f'{<V!>.sum():.2f}')

str(object())

sys.getrefcount(<any!>)

<new V> = copy.deepcopy(<V!>)

<new list[V]> = copy.deepcopy(<list[V]!>)

<new str> = json.dumps(<list[int]>)

gc.isenabled()

opaque(<V!>)

<new V> = opaque(<V!>)

<new int> = random.Random(<int>).randint(0, 3)

print(<S>.item())

print(<N>.tolist())

<new float> = <S>.item()

<new int> = int(<S>.nan_to_num().clamp(-3, 3))

<new list[int]> = <N>.tolist()

<new bool> = sys.intern(<str>) is None

<new V> = torch.from_numpy(<V>.numpy() + 1)
"""

COMPOUND_STATEMENTS = """
if <test>:
    <block>

if <test>:
    <block>
else:
    <block>

if <test>:
    <block>
elif <test>:
    <block>
else:
    <block>

if (<new int as k> := len(<list[V]!>)) > 1:
    <block>

if (<new V as t> := <V>).dim() == 1 and <test>:
    <block>

for <new counter> in range(<small>):
    <block loop>

for <new counter> in range(<small>):
    <block loop>
else:
    <block>

for <new counter>, <new V> in enumerate(<list[V]!>[:3]):
    <block loop>

for <new V> in list(<list[V]!>):
    <block loop>

for <new V> in [<V>, <V>]:
    <block loop>

for <new V>, <new counter> in zip(<list[V]!>, range(3)):
    <block loop>

for <new str>, <new V> in list(<dict[V]!>.items()):
    <block loop>

for <new V> in tuple(<dict[V]!>.values()):
    <block loop>

for <new V> in <M>:
    <block loop>

for <new counter> in reversed(range(<small>)):
    <block loop>

for <new counter>, <new counter> in itertools.product(range(2), range(2)):
    <block loop>

for <new fn> in (torch.sin, <fn>, torch.tanh):
    <block loop>

for <new V> in vectors(<V>, <int>):
    <block loop>

for <new V> in <iter>:
    <block loop>

for <new counter>, <new V> in enumerate(<iter>):
    <block loop>

<new counter as c> = 0
while <.c> < <small>:
    <.c> += 1
    <block loop>

<new counter as c> = 0
while <.c> < 3 and <test>:
    <.c> += 1
    <block loop>

<new counter as c> = 0
while True:
    <.c> += 1
    if <.c> > <small> or <test>:
        break
    <block loop>

<new counter as c> = 3
while <.c> := <.c> - 1:
    <block loop>
else:
    <block>

with torch.no_grad():
    <block>

with torch.set_grad_enabled(False):
    <block>

with Tracker(<list[str]!>) as <new any>:
    <block>

with Tracker(<list[str]!>, ValueError):
    <block>
    if <test>:
        raise ValueError(<str>)

with section(<list[str]!>, <V>) as <new V>:
    <block>

with section(<list[str]!>, <V>) as <new V>, Tracker(<list[str]!>):
    <block>

with contextlib.suppress(ValueError, KeyError):
    <block>
    if <test>:
        raise ValueError(<str>)
    <block>

with contextlib.nullcontext(<V>) as <new V>:
    <block>

try:
    <block>
    if <test>:
        raise ValueError(<str>)
    <block>
except ValueError as <new any as e>:
    print('caught', <.e>)
    <block>

try:
    <block>
finally:
    <block>

try:
    <new V> = <V> + torch.ones(3, 7, 11)
    <block>
except RuntimeError as <new any as e>:
    print(type(<.e>).__name__)
    <block>

try:
    <new V> = <dict[V]!>[<str>]
except KeyError as <new any as e>:
    print('missing', <.e>)
else:
    <block>

try:
    <new int> = <list[int]!>[<int>]
    <block>
except (IndexError, TypeError) as <new any as e>:
    print(f'{<.e>}')
finally:
    <block>

try:
    <block>
    if <test>:
        raise KeyError(<str>)
    elif <test>:
        raise ValueError(<int>)
except KeyError:
    <block>
except ValueError:
    <block>
else:
    <block>
finally:
    <block>

try:
    try:
        <block>
        if <test>:
            raise ValueError(<str>)
    except ValueError as <new any as e>:
        raise RuntimeError('again') from <.e>
except RuntimeError as <new any as o>:
    print(<.o>, repr(<.o>.__cause__))

match <int> % 3:
    case 0:
        <block>
    case 1 | -1 if <test>:
        <block>
    case _:
        <block>

match (<int>, <str>):
    case (0, _):
        <block>
    case (<new int as k>, 'a' | 'b'):
        <block>
    case (<new int>, <new str>):
        <block>

match <dict[V]!>:
    case {'a': <new V as t>}:
        <block>
    case {}:
        <block>

match <list[V]!>:
    case []:
        <block>
    case [<new V>]:
        <block>
    case [<new V>, *<new list[V]>]:
        <block>

match <Pair!>:
    case Pair(n=0):
        <block>
    case Pair(t=<new V>, n=<new int>):
        <block>

match <str>:
    case 'a':
        <block>
    case str() as <new str>:
        <block>
"""

# Only in loops.
JUMPS = """
if <test>:
    break

if <test>:
    continue

if <counter!> == <small>:
    break

if <counter!> % 2 == 0:
    continue
"""

IMPORTS = """
import collections, contextlib, copy, dataclasses, functools, gc, itertools, json, math, operator, random, sys, time
import numpy as np
import torch
import torch.nn.functional as F
"""

# Name -> (text, classes it needs); only those that a program uses are written.
PARTS = {
    "Vec": '''
class Vec:
    label = 'vec'

    def __init__(self, data):
        self.data = data
        self.reads = 0

    @classmethod
    def zeros(cls, n):
        return cls(torch.zeros(n))

    @property
    def norm(self):
        self.reads += 1
        return (self.data * self.data).sum()

    @property
    def doubled(self):
        return self.data * 2

    def __add__(self, other):
        return type(self).of(self.data + (other.data if isinstance(other, Vec) else other))

    def __mul__(self, other):
        return Vec(self.data * getattr(other, 'data', other))

    def __neg__(self):
        return Vec(-self.data)

    def __call__(self, v):
        self.reads += 1
        return self.data + v

    def __bool__(self):
        return self.reads < 2

    @staticmethod
    def of(data):
        return Vec(data)
''',
    "Named": '''
class Named(Vec):
    def __init__(self, data, name='named'):
        super().__init__(data)
        self.name = name
        self.label = f'{name}!'

    def __call__(self, v):
        return super().__call__(v) * 0.5

    @property
    def doubled(self):
        return super().doubled + 1
''',
    "Stack": '''
class Stack:
    def __init__(self, items):
        self.items = list(items)

    @property
    def top(self):
        return len(self.items) - 1

    def push(self, item):
        self.items.append(item)
        return self

    def __getitem__(self, i):
        return self.items[i % len(self.items)]

    def __setitem__(self, i, value):
        self.items[i] = value

    def __len__(self):
        return len(self.items)

    def __iter__(self):
        yield from self.items

    def __contains__(self, n):
        return 0 <= n < len(self)
''',
    "Pair": "Pair = collections.namedtuple('Pair', 't n')",
    "Config": '''
@dataclasses.dataclass
class Config:
    scale: float
    shift: int = 1
    parts: list = dataclasses.field(default_factory=list, compare=False)

    def apply(self, v):
        self.shift += 1
        return v * self.scale + self.shift
''',
    "Meter": '''
class Meter:
    __slots__ = ('count', 'last', '__dict__')

    def __init__(self, last=None):
        self.count, self.last = 0, last

    def update(self, v):
        self.count += 1
        if self.last is not None:
            v = v + self.last
        self.last = v
        return v

    def __getattr__(self, name):
        if name == 'data':
            raise AttributeError(name)
        return len(name)
''',
    "Tracker": '''
class Tracker:
    def __init__(self, log, swallows=()):
        self.log, self.swallows = log, swallows

    def __enter__(self):
        self.log.append('enter')
        return self

    def __exit__(self, kind, value, traceback):
        self.log.append('leave' if kind is None else kind.__name__)
        return kind is not None and issubclass(kind, self.swallows)
''',
    "section": '''
@contextlib.contextmanager
def section(log, v):
    log.append('begin')
    try:
        yield v * 2
    finally:
        log.append('end')
''',
    "make_scaler": '''
def make_scaler(k):
    calls = 0

    def scaler(v):
        nonlocal calls
        calls += 1
        return v * k + calls

    return scaler
''',
    "vectors": '''
def vectors(v, n):
    for i in range(n % 3 + 1):
        v = v * 0.5 + i
        yield v
''',
    "opaque": "opaque = operator.methodcaller('abs')",
}
PARTS_ALIAS = {"Named": ("Vec",)}
