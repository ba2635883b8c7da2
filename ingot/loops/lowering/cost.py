"""What a function of each element costs in a kernel of Ingot's and in eager's: where a kernel would do nothing else and
is predicted to lose, eager's is called.

The figures were measured by `python -m benchmarks.costs` on two cores with 512-bit vectors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

CALL = 800.0  # nanoseconds that a call of a compiled function takes besides its work ...
LIBRARY_CALL = 150.0  # ... and that one of eager's within it takes longer than by itself
MARGIN = 1.15  # by how much eager has to be faster: less may be the measurement

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Times(NamedTuple):
    """Nanoseconds: of a call of eager's, and of each element."""

    call: float
    ours: float
    eager: float


# For each function and each of DTYPES: nanoseconds of a call of eager's, and picoseconds per element, ours and eager's
_MEASURED = """
abs             1100:61/76    1100:132/129      1100:24/27      1100:23/23
neg              900:50/50     900:124/148       900:24/25       900:22/23
exp            1000:68/323    1000:210/701     900:101/149      900:82/124
log           1000:119/406    1100:322/983     900:167/208     900:145/189
sqrt           1000:58/243    1000:185/834       900:43/86       900:42/80
rsqrt           900:68/132     900:222/398      900:69/141      900:67/131
sin           1000:126/557   1100:317/1338     900:153/278     900:137/219
cos           1000:118/602   1100:297/1271    1000:149/294     900:135/242
tanh         1100:115/1124   1200:445/2116    1000:140/573    1000:122/550
sigmoid         900:79/115     900:251/311     900:124/167     900:103/144
erf           1000:129/528   1100:759/1302     900:172/217     900:152/201
relu             900:49/53     900:139/127       900:23/68       900:22/47
floor            900:45/46     900:160/142       900:27/63       900:30/39
reciprocal       900:53/50     900:118/111       900:32/36       900:27/29
tan           1000:338/671   1200:366/2307    1000:394/790    1000:382/724
asin          1100:346/656   1200:354/1741    1000:395/285     900:396/271
atan         1100:302/1136   1400:342/2540     900:360/429     900:343/405
sinh          1100:366/462    1000:362/846     900:417/521     900:410/487
log1p          900:161/257    1000:411/693     900:217/350     900:183/284
expm1          1100:76/378    1100:247/716    1500:118/451     1000:98/430
exp2            1300:64/84     900:198/243      900:96/124     1000:79/111
log2          1000:139/457   1100:306/1030     900:157/217     900:139/199
round            900:49/48     900:152/148       900:29/62       900:25/37
sign             900:55/52     900:132/136      900:38/105       900:28/86
acosh        1400:641/7101   1300:764/7685   1400:689/7459   1400:700/7674
atanh         1000:314/450   1100:651/1288    1000:353/498    1000:344/478
erfc          1100:794/784  1300:2298/2304   1100:862/1242   1000:861/1210
lgamma      1200:1418/2221  1700:6215/6197  1200:1450/2254  1200:1406/2235
digamma      1500:777/7081  1700:7704/7657   1500:831/6887   1500:848/6923
gelu          7400:128/156    1100:884/985    8800:173/139    1000:147/232
elu            1400:84/452    1500:263/844    1400:129/513    1400:107/474
hardswish       1200:56/62    1200:173/195      1100:46/81      1100:35/58
leaky_relu      1200:56/65    1300:174/272      1300:33/75      1400:29/47
acos          1000:306/678   1200:326/1860     900:373/345    1000:348/325
cosh          1000:308/448    1000:278/850    1000:352/502    1000:340/480
asinh       1600:768/10118  1800:886/13555  1600:777/10208  1600:789/10185
"""


def _parsed(text: str) -> dict[tuple[str, torch.dtype], Times]:
    table = {}
    for line in text.split("\n"):
        name, *figures = line.split() or [""]
        for dtype, figure in zip(DTYPES, figures):
            call, _, each = figure.partition(":")
            ours, _, eager = each.partition("/")
            table[name, dtype] = Times(int(call), int(ours) / 1000, int(eager) / 1000)
    return table


FUNCTIONS = _parsed(_MEASURED)


def predicted(times: Times, elements: int) -> tuple[float, float]:
    """Nanoseconds of a compiled call that computes a function of `elements` elements: by a kernel, by eager's."""
    return CALL + elements * times.ours, times.call + LIBRARY_CALL + elements * times.eager


def eager_is_faster(name: str, dtype: torch.dtype, elements: int) -> bool:
    """Whether eager's kernel of the ATen op `name` is predicted to be faster than one that does nothing else."""
    times = FUNCTIONS.get((name, dtype))
    if times is None:
        return False
    ours, eager = predicted(times, elements)
    return eager * MARGIN < ours
