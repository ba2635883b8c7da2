"""What to change where the program calls what cannot be captured.

It is found by the names of classes and functions. Reasons have a hint by their ids beside it."""

from __future__ import annotations

from typing import Any

from ingot.capture.values.base import Value
from ingot.capture.values.wording import fact_of, public_name

_CLOCK = "read the clock before and after the compiled function, not in it"
_FILES = "read and write files outside the compiled function"
_OUTSIDE = "compute it outside the compiled function, and pass it in"
_SYSTEM = "ask the system outside the compiled function, and pass the answer in"
_FRAMES = "look at the stack outside the compiled function"
_LOCK = "take the lock around the call of the compiled function"

EDITS = {
    "open": _FILES,
    "io": _FILES,
    "time.sleep": "wait outside the compiled function",
    "time": _CLOCK,
    "datetime": _CLOCK,
    "threading.lock": _LOCK,
    "threading.RLock": _LOCK,
    "threading.allocate_lock": "make locks and queues outside the compiled function",
    "threading": "use threads outside the compiled function",
    "os.putenv": "set it before the compiled function is called",
    "os.urandom": "draw it outside the compiled function, and pass it in",
    "os": _SYSTEM,
    "socket": _SYSTEM,
    "sqlite3": _SYSTEM,
    "subprocess": _SYSTEM,
    "signal": _SYSTEM,
    "random.Random.shuffle": "index with torch.randperm, or shuffle outside the compiled function",
    "random.Random.sample": "index with torch.randperm, or draw outside the compiled function",
    "numpy.random": "draw with torch.rand or torch.randn, or pass the numbers in",
    "torch.Generator": "make it outside the compiled function, and draw there",
    "torch.nested": "make nested tensors outside the compiled function",
    "torch.set_num_threads": "set it before the compiled function is called",
    "gc": "collect between calls of the compiled function",
    "sys._getframe": _FRAMES,
    "frame": _FRAMES,
    "sys.exit": "return a flag, and exit where the compiled function is called",
    "exec": "write the statements into the function itself",
    "eval": "write the expression into the function itself",
    "input": "ask outside the compiled function, and pass the answer in",
    "hashlib": _OUTSIDE,
    "zlib": _OUTSIDE,
    "binascii": _OUTSIDE,
    "struct": _OUTSIDE,
    "ctypes": "call the library outside the compiled function, or as a torch.library.custom_op",
    "decimal": "use a float, or compute it outside the compiled function",
    "fractions": "use a float, or compute it outside the compiled function",
    "json": "return the values, and write JSON outside the compiled function",
    "pickle": "return the values, and pickle them outside the compiled function",
    "itertools.count": "count with range(), or keep the counter outside the compiled function",
    "str": "make the text outside the compiled function",
    "weakref": "make weak references outside the compiled function",
}
"""By the public name of a class or function, or the beginning of it."""


def edit_for(thing: Any) -> str:
    """What to do about a class, a function, or a value of either; "" for the reason's own hint."""
    if isinstance(thing, Value):
        called = getattr(thing, "object", None)
        thing = thing.python_type()
        if isinstance(fact_of(called, "__qualname__"), str):
            thing = called
    name = public_name(thing)
    while name:
        if name in EDITS:
            return EDITS[name]
        name = name.rpartition(".")[0]
    return ""
