"""Compound statements and jumps of random Python programs, in the templates of
random_python_grammar."""

from __future__ import annotations

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

match <Mode!>:
    case Mode.LOUD:
        <block>
    case Mode.QUIET:
        <block>

match <list[int]!>:
    case [1, *<new list[int] as r>] | [*<.r>, 9]:
        <block>
    case [<new int>, <new int>]:
        <block>
    case _:
        <block>

match <any!>:
    case torch.Tensor():
        <block>
    case int(<new int>) | float(<new int>):
        <block>
    case str() | None:
        <block>
    case {'a': _, **<new any>}:
        <block>
    case [*_]:
        <block>

match <Config!>:
    case Config(scale=<new float>, shift=1):
        <block>
    case Config(<new float>):
        <block>

for <new Mode> in Mode:
    <block loop>

for <new fn> in <ModuleList!>:
    <block loop>

for <new fn> in <list[fn]!>[:3]:
    <block loop>

for <new str>, <new V> in <Net!>.named_buffers():
    <block loop>

for <new counter> in range(3):
    try:
        if <test>:
            raise_if(True)
        <block>
    except Oops:
        continue
    else:
        break

if <test>:
    import string
    print(string.digits[<int> % 3])

with torch.no_grad(), section(<list[str]!>, <V>) as <new V>, contextlib.suppress(Oops):
    <block>
    raise_if(<test>)
    <block>

try:
    <block>
    try:
        <block>
        raise_if(<test>)
    finally:
        <block>
except Oops as <new any as e>:
    print(<.e>.args, <.e>.code)

for <new V> in <Node!>.values():
    <block loop>

for <new V> in <Stack!>:
    <block loop>

for <new V> in <Items!>[:2]:
    <block loop>

for <new V> in yielding(<V>):
    <block loop>

for <new counter>, (<new V>, <new V>) in enumerate(zip(<list[V]!>[:2], <list[V]!>[:2])):
    <block loop>

for <new V> in itertools.islice(itertools.chain(<list[V]!>, [<V>]), 3):
    <block loop>

for <new str> in sorted(<dict[V]!>):
    <block loop>

for <new str> in [*<dict[int]!>]:
    <block loop>

for <new V> in iter(lambda: None, None):
    <block loop>

for <new counter> in range(3):
    try:
        <block>
        if <test>:
            continue
        if <test>:
            break
    finally:
        <block>

for <new counter> in range(2):
    with Tracker(<list[str]!>):
        <block loop>
        if <test>:
            break

try:
    raise_if(<test>)
    <block>
except Oops as <new any as e>:
    print(<.e>.code, <.e>)
    <block>

try:
    try:
        raise_if(<test>)
        <block>
    except Oops:
        <block>
        raise
except Exception as <new any as e>:
    print(repr(<.e>), <.e>.__context__)

try:
    <new int> = <int> // <int>
except ZeroDivisionError as <new any as e>:
    print(<.e>)

try:
    <new any> = (<any!>).missing
except AttributeError as <new any as e>:
    print(type(<.e>))

try:
    <new any> = len(<any!>)
except TypeError as <new any as e>:
    print(<.e>)
else:
    <block>

try:
    <new any> = <fn!>(<V>, <V>, <V>, <V>)
except TypeError:
    <block>

try:
    <new V> = next(iter(<list[V]!>))
except StopIteration:
    <block>

try:
    <new V> = torch.cat([<M>, <V>])
except RuntimeError as <new any as e>:
    print(str(<.e>)[:20])

try:
    <V!>.add_(torch.ones(7, 11))
except RuntimeError:
    <block>

try:
    <new int> = [k for k in <list[int]!>][5]
except LookupError as <new any as e>:
    print(<.e>, <.e>.args)

try:
    assert <test>, <str>
    <block>
except AssertionError as <new any as e>:
    print('assert', <.e>)

try:
    with Tracker(<list[str]!>):
        <block>
        raise_if(<test>)
        <block>
except Oops:
    <block>
finally:
    <block>

try:
    with section(<list[str]!>, <V>) as <new V>:
        <block>
        raise_if(<test>)
except Oops as <new any as e>:
    <block>

with contextlib.ExitStack() as <new any as s>:
    <.s>.enter_context(Tracker(<list[str]!>))
    <.s>.callback(<list[str]!>.append, 'callback')
    <block>

with contextlib.redirect_stdout(io.StringIO()) as <new any as o>:
    print(<str>)
    <block>
print(<.o>.getvalue())

with warnings.catch_warnings(record=True) as <new any as w>:
    warnings.simplefilter('always')
    warnings.warn(<str>)
    <block>
print([str(k.message) for k in <.w>])

with torch.inference_mode(False):
    <block>

with torch.autocast('cpu', enabled=False):
    <block>

with Tracker(<list[str]!>), torch.no_grad(), contextlib.suppress(Oops):
    <block>
    raise_if(<test>)

if <V=>.sum() > 0.01:
    <block>
else:
    <block>

if not <list[V]!>:
    <block>
elif (<new int as k> := len(<dict[V]!>)) and <test>:
    <block>

while <list[int]! as l> and <.l>.pop() > 0:
    <block loop>

if <test> and (<int> > 0 or <test>):
    <block>

<new counter as c> = 0
while <S> < 100 and <.c> < 3:
    <.c> += 1
    <block loop>

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
