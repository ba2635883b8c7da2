"""What a function of each element costs in a kernel of Ingot's and in eager's.

Eager's is called where a kernel would do nothing else and is predicted to lose.

The figures were measured by `python -m benchmarks.costs` on two cores with 512-bit vectors: on
Intel's, for which MKL, eager's library for many of them, has code of its own, and on AMD's, which
stand for all others.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

CALL = 800.0  # nanoseconds that a call of a compiled function takes besides its work ...
LIBRARY_CALL = 150.0  # ... and that one of eager's within it takes longer than by itself
CORES = 2  # that shared the elements when their times were measured
MARGIN = 1.1  # by how much eager has to be faster: less may be the measurement

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class Times(NamedTuple):
    """Nanoseconds: of a call of eager's, and of each element."""

    call: float
    ours: float
    eager: float


# For each function and each of DTYPES: nanoseconds of a call of eager's, and picoseconds per
# element, ours and eager's; of 2^20 elements on AMD's processors, 2^16 on Intel's. A function that
# is not there is a kernel.
_AMD = """
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
sinh          1100:366/462    1000:362/846     900:417/521     900:410/487
log1p          900:161/257    1000:411/693     900:217/350     900:183/284
expm1          1100:76/378    1100:247/716    1500:118/451     1000:98/430
exp2            1300:64/84     900:198/243      900:96/124     1000:79/111
log2          1000:139/457   1100:306/1030     900:157/217     900:139/199
round            900:49/48     900:152/148       900:29/62       900:25/37
sign             900:55/52     900:132/136      900:38/105       900:28/86
acosh        1400:641/7101   1300:764/7685   1400:689/7459   1400:700/7674
atanh         1000:314/450   1100:651/1288    1000:353/498    1000:344/478
lgamma      1200:1418/2221  1700:6215/6197  1200:1450/2254  1200:1406/2235
digamma      1500:777/7081  1700:7704/7657   1500:831/6887   1500:848/6923
gelu          7400:128/156    1100:884/985    8800:173/139    1000:147/232
cosh          1000:308/448    1000:278/850    1000:352/502    1000:340/480
asinh       1600:768/10118  1800:886/13555  1600:777/10208  1600:789/10185
"""
_INTEL = """
abs           1500:141/206    1500:131/137      1500:48/47      1400:43/45
neg             1100:74/72    1100:155/129      1100:44/48      1100:43/51
exp           1200:131/122    1200:333/263    1100:201/262    1100:162/266
log           1200:202/160    1200:506/430    1200:263/385    1200:237/351
sqrt            1100:87/94    1100:532/221     900:147/160     900:127/130
rsqrt         1000:150/253    1000:861/844    1000:188/240    1000:150/228
sin           1200:226/254    1300:493/504    1200:279/441    1200:245/373
cos           1200:205/257    1200:470/482    1200:268/443    1200:240/377
tanh          1200:198/180    1300:746/756    1200:256/955    1200:225/901
sigmoid       1200:176/242    1200:410/644    1200:234/321    1100:194/274
erf           1200:213/342   1300:1725/619    1200:300/412    1200:281/373
relu            1100:73/73    1100:123/121     1100:47/148     1100:49/102
floor           1100:69/78    1200:149/176     1100:80/142      1200:55/87
reciprocal    1100:119/121    1200:355/359    1100:133/137    1100:124/128
tan           1200:254/275    1300:530/613   1300:349/1167   1200:318/1031
asin          1200:166/252    1200:942/545    1100:229/498    1200:201/464
atan          1200:293/203    1200:467/666    1200:312/618    1200:309/615
sinh          1200:705/761   1300:582/1644    1200:840/839    1200:818/810
log1p         1100:281/418   1200:712/1020    1100:352/498    1100:324/465
expm1         1200:148/715   1200:343/1423    1200:195/713    1200:167/672
exp2          1100:130/171    1100:339/464    1100:190/239    1100:161/210
log2          1200:200/160    1200:549/375    1100:278/416    1100:236/387
round           1100:75/77    1100:120/133     1100:78/143      1000:60/88
sign            1100:70/94    1100:132/149     1100:88/182     1100:66/280
acosh       1700:1429/9084  1700:1327/9272  1900:1424/9691  1800:1447/9812
atanh         1200:512/737  1300:1222/1957    1200:581/786    1200:554/782
erfc          1200:695/313    1300:828/807   1300:738/1725   1400:706/1710
lgamma      1600:2865/3443  2300:9505/8995  1600:2512/3282  1600:2631/3485
digamma     2000:1880/8955  2200:9315/9283  2000:2053/8860  2000:1973/8880
gelu         11100:196/211  1100:1806/1481   11000:263/228   11100:249/247
acos          1200:164/275    1200:569/613    1100:210/577    1100:182/540
cosh          1200:570/741   1300:470/1632    1200:659/807    1200:613/786
asinh      1800:1727/12079 1800:1707/13382 1900:1791/13020 2000:1787/13552
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


TABLES = {"GenuineIntel": _parsed(_INTEL), "AuthenticAMD": _parsed(_AMD)}


def vendor() -> str:
    """Who made this processor, as Linux names it; "" where that is not known."""
    try:
        with Path("/proc/cpuinfo").open() as lines:
            line = next((line for line in lines if line.startswith(("vendor_id", "\n"))), "")
    except OSError:
        return ""
    return line.partition(":")[2].strip()


FUNCTIONS = TABLES.get(vendor(), TABLES["AuthenticAMD"])


def predicted(times: Times, elements: int) -> tuple[float, float]:
    """Nanoseconds of a compiled call that computes a function of `elements` elements: by a kernel,
    by eager's."""
    return CALL + elements * times.ours, times.call + LIBRARY_CALL + elements * times.eager


def eager_is_faster(name: str, dtype: torch.dtype, elements: int) -> bool:
    """Whether eager's kernel of the ATen op `name` is predicted to be faster than one that does
    nothing else."""
    times = FUNCTIONS.get((name, dtype))
    if times is None:
        return False
    ours, eager = predicted(times, elements)
    return eager * MARGIN < ours
