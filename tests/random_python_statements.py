"""Statements of random Python programs, in the templates of random_python_grammar."""

from __future__ import annotations

TENSOR_TESTS = (
    "<S> > <float>\n<V>.sum() > 0.01\n(<M> > 0).any()\n<S> < <S>\n<V>.mean() <= <V>.max()\n"
    "(<N> > 1).any()"
)

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
<new Mode> = <Mode>
<new Table> = <Table>
<new Items> = <Items>
<new Out> = <Out>
<new Node> = <Node>
<new Tower> = <Tower>
<new Gauge> = <Gauge>
<Table!>['b'] = <V>
<Table!>.v = <V>
<Table!>.update(c=<V>)
<Items!>.append(<V>)
<Items!>.tag = <str>
<Out!>['extra'] = <V>
<Out!>.hidden = <V>
<Node!>.value = <V>
<Node!>.next = Node(<V>)
<Node!>.value += 1
<Tower!>.extra = <V>
<Gauge!>.level = <V>
<Gauge!>.level += <V>
<new V> = <Tower!>.cached
<new V> = <Gauge!>.level
<new iter> = yielding(<V>)
<new iter> = iter([<V>, <V>])
<new iter> = map(<fn!>, <list[V]!>)
<new iter> = (t + 1 for t in <list[V]!>)
<new iter> = zip_first(<list[V]!>)
<new V>, <new V> = (<V>, <V>)[::-1]
[<new V>, [<new int>, <new str>]] = [<V>, (<int>, <str>)]
*<new list[V]>, <new V> = [<V>, <V>]
<new V> = <V>; <new fn> = (lambda v: v * 2); <new bool> = <bool>
<new V>: torch.Tensor = <V>
<list[V]!>[0:0] = <list[V]>
<list[V]! as l>[-1:] = [<V>]
<list[V]! as l>.remove(<.l>[0]) if <.l> else None
<list[V]!>.sort(key=len)
<list[int]! as l>[0:1] = <.l>[1:2]
<list[int]!>.sort(key=lambda k: -k, reverse=<bool>)
<list[int]! as l>.insert(<int>, <int>)
<dict[V]! as d>.popitem() if <.d> else None
<dict[V]!>.clear()
<dict[V]! as d>['a'] = <.d>.pop('a', <V>)
<dict[int]!>.update(zip('pq', <list[int]!>))
<dict[int]! as d>.update({k: v + 1 for k, v in <.d>.items()})
<set! as x>.remove(1) if 1 in <.x> else <.x>.add(1)
<set!>.clear()
<set=> |= {<int>}
<set=> -= {<int>}
<deque!>.extend([<V>, <V>])
<deque!>.clear()
<deque! as q>.pop() if len(<.q>) > 1 else <.q>.append(<V>)
<V!>.add_(<V!>)
<V=>, <int=> = <V>, <int>
<V!>.index_fill_(0, torch.tensor([0]), <float>)
<V!>[<V!> > 0] = <float>
<V!>[<N>.clamp(0, 0)] = <float>
<M!>.masked_fill_(<W>, <float>)
<M!>[:, -1] = <S>
<M!>[..., 0] += <float>
<M!>.copy_(<V>)
<M!>[0].add_(1)
<M!>.t()[0] = <float>
<M!>.view(-1)[0] = <float>
torch.add(<V!>, 1, out=<V!>)
F.relu(<V!>, inplace=True)
<V!>.data.mul_(2)
<V!>.note = <str>
<new array> = <V!>.numpy()
<array!>[0] = <float>
<array=> += 1
<new bool> = hasattr(<V!>, 'note')
delattr(<Vec! as x>, 'extra') if hasattr(<.x>, 'extra') else setattr(<.x>, 'extra', <V>)
<Vec! as x>.__dict__.pop('extra', None)
vars(<Vec!>).update(reads=<int>)
del <new V as t>; <.t> = <V>
contextvar.set(<float>)
Registry.items.append(<str>)
Registry.count += 1
logger.info('%s %d', <str>, <int>)
logger.warning(<str>)
warnings.warn(<str>)
print(<Mode!>, <Mode!>.value)
print(<str>, file=sys.stdout)
print()
print(*<list[str]!>, sep=<str>)
print(repr(<str>), <float>, <bool>, None)
print(<dict[V]!>.keys(), len(<list[V]!>))
sys.stdout.write(<str> + chr(10))
globals()['EXTRA'] = <int>
raise_if(<int> > 90)
import math as maths; <new float> = maths.cos(<float>)
from collections import deque as dq; <new deque> = dq([<V>])
<new list[int]> = [(last := k) + 1 for k in <list[int]!>]
<new V> = [acc := <V>, *[acc := acc * 0.5 + t for t in <list[V]!>]][-1]
<new dict[int]> = dict(<dict[int]!>, **{'kw': <int>})
<new any> = functools.singledispatch(lambda o: o)
<new any> = (<V>, [<V>], {'t': <V>})
<new any> = slice(<int>, None)
<new any> = range(<int>)
<new any> = frozenset({<int>})
<new any> = NotImplemented
<new any> = object()
<new any> = torch.float64
<new any> = <V>.shape
<new any> = Mode
<new any> = inspect.signature(<fn!>)
<new any> = contextlib.ExitStack()
<new any> = (x for x in <list[int]!>)
<Net!>.late = <V>
<Net!>.register_buffer('late', <V>)
<Net!>.late = None
<Net!>.train(<bool>)
<new fn> = <Net!>.layers[0]
<new V> = undisturbed(<V>)
assert <V>.sum() < 1000, <str>
<new list[fn]> = [lambda v: v * k for k in range(2)]
<new list[fn]> = [<fn>, <fn>]
<new V> = <list[fn]!>[-1](<V>)
<list[fn]!>.append(<fn>)
<new V> = <V> or <V> if <V>.numel() == 1 else <V>
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

<new int> = eval('1 + 1')

<new any> = type('Dynamic', (), {'n': <int>})

<new V> = torch.from_numpy(np.sin(<V>.numpy()))

<new float> = float(<V>.numpy().sum())

<new N> = torch.unique(<N>)[:1] + <N>

<new V> = torch.masked_select(<V>, <V> > 9).sum() + <V>

print(<Vec!>.norm)

<new str> = repr(<V>)

<new any> = <V>.tolist()

<new V> = torch.tensor([float(t.sum()) for t in <list[V]!>] or [0.0]).sum() + <V>

<new int> = sum(int(k) for k in <N>)

sys.intern(<str>)

<new dict[V]> = copy.deepcopy(<dict[V]!>)

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
