"""Expressions of random Python programs that give containers, functions and objects, in the
templates of random_python_grammar."""

from __future__ import annotations

EXPRESSIONS = {
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
<Table!>.listed()
list(<Node!>.values())
list(<Out!>.values())
list(<Out!>.to_tuple())
[t for t in (yielding(<V>))]
list(delegating(<V>, <list[V]!>))
[v for v, _ in zip(itertools.repeat(<V>), range(<small>))]
[*map(operator.add, <list[V]!>, <list[V]!>)]
sorted(<list[V]!>, key=lambda t: -t.dim(), reverse=True)
list(itertools.filterfalse(lambda t: t.dim() > 1, <list[V]!>))
list(itertools.compress(<list[V]!>, [1, 0, 1]))
[t for _, t in sorted(zip(<list[int]!>, <list[V]!>), key=lambda p: p[0])]
[*<list[V]!>[:1], *<list[V]!>[-1:]]
<list[V]!>[slice(0, 2)]
<list[V]!> * 2
list(dict.fromkeys(<list[V]!>))
list(iter(<list[V]!>))
list(reversed([*<dict[V]!>.values()]))
Items(<list[V]!>).doubled()
[x for x in <Items!>]
list(torch.split(<V>, 1)) and [<V>]
[row * k for k, row in enumerate(<M>, start=1)]
list({k: t for k, t in zip('ab', <list[V]!>)}.values())
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
[m.value for m in Mode]
list(sends(<int>))
[len(t) for t in <list[V]!>]
[k for k, _ in itertools.groupby(sorted(<list[int]!>))]
list(zip(*[<list[int]>, [1, 2]]))[0:0] or [<int>]
list(itertools.combinations(<list[int]!>, 2))[:0] or <list[int]!>
[*itertools.dropwhile(lambda k: k < 1, <list[int]!>)]
list(filter(None, <list[int]!>))
[x for x in <list[int]!> for _ in range(x % 2)]
list(range(3))[::-1]
[b for a, *b in [(1, 2, 3)]][0]
sorted({1, <int>, 3}, reverse=True)
list(<dict[int]!>.values())[:2]
[<int> if k else <int> for k in range(2)]
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
[n for n, _ in <Net!>.named_parameters()]
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
dict(<Table!>)
dict(<Out!>)
{k: v for k, v in zip(<list[str]!>, <list[V]!>)}
{**dict(a=<V>), **<dict[V]!>}
dict(filter(lambda kv: kv[0] != 'a', <dict[V]!>.items()))
{k: <fn!>(t) for k, t in <dict[V]!>.items()}
dict(reversed(list(<dict[V]!>.items())))
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
collections.Counter(a=<int>)
dict(zip('ab', <list[int]!>))
{k: len(t) for k, t in <dict[V]!>.items()}
{str(k): k for k in <list[int]!>}
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
pick(<int>)
<Tower!>.run
<Gauge!>.scaled
functools.partial(<fn!>)
scaled_by(<float>)(torch.cos)
<Mode!>.apply
compose(<fn!>, <fn!>)
<ModuleList!>[0]
undisturbed
Runner(<int>).step
Runner(<int>)
functools.partial(Runner(2).step, k=<int>)
""",
    "Vec": (
        "Vec(<V>)\nVec(<V>)\nNamed(<V>, <str>)\n<Vec!> + <V>\n<Vec!> + <Vec!>\nVec.zeros(<cols>)\n"
        "-<Vec!>"
    ),
    "Stack": "Stack(<list[V]>)\nStack([<V>])\nStack(<V> for i in range(2))",
    "Pair": "Pair(<V>, <int>)\nPair(t=<V>, n=<int>)\n<Pair!>._replace(n=<int>)",
    "Config": (
        "Config(<float>)\nConfig(<float>, shift=<int>)\ndataclasses.replace(<Config!>, shift=<int>)"
    ),
    "Meter": "Meter()\nMeter(<V>)",
    "pair": "(<V>, <int>)\n(<V>, <int>)",
    "Named": "Named(<V>)\nNamed(<V>, name=<str>)",
    "Mode": "Mode.QUIET\nMode.LOUD\nMode(<int> % 2)\nMode['LOUD']\nlist(Mode)[0]",
    "Table": "Table(a=<V>)\nTable({'a': <V>, 'b': <V>})\nTable(<dict[V]!>)",
    "Items": "Items([<V>, <V>])\nItems(<list[V]!>)",
    "Out": "Out(last=<V>)\nOut(last=<V>, hidden=<V>)",
    "Node": "Node(<V>)\nNode(<V>, Node(<V>))\nNode(<V>, <Node!>)",
    "Tower": "Tower(<V>)\nTower(<V>, <fn!>)",
    "Gauge": "Gauge(<V>)\nGauge(<V>, <int>)",
    "array": "np.arange(<cols>, dtype=np.float32)\nnp.full(<cols>, <float>, dtype=np.float32)",
}
