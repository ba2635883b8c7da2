"""Why a graph breaks or a call runs in eager, and what the user can do about it: one row for each
family of reasons.

A reason is a sentence that names what was met; the first row whose pattern is found in it gives the
hint. Where there is no row, there is nothing to advise beside moving the line elsewhere.
"""

from __future__ import annotations

import re

HINTS: tuple[tuple[str, str], ...] = (
    # -- what depends on data
    (
        "a branch on the values of",
        "use torch.where, or move the branch out of the compiled function",
    ),
    ("with a mask: the size of the result depends on", "use torch.where or masked_fill"),
    (
        "a membership test on the values of",
        "use torch.isin, or keep what is searched in a Python container",
    ),
    ("a tensor's data is asked for", "keep it a tensor, or move it out of the function"),
    (
        r"\(\) depends on the data of",
        "keep it a tensor, or convert it outside the compiled function",
    ),
    (
        "is not known during capture",
        "keep it a tensor, or compute it outside the compiled function",
    ),
    # -- what the user asked for
    ("is disabled by", "remove the disable, or call it before or after the compiled function"),
    ("a graph break is asked for", "remove the call where one graph is wanted"),
    (r"\(\) is called$", "call it outside the compiled function"),
    ("a tensor that is no argument", "pass the tensor as an argument"),
    (
        "a function that is allowed in the graph gives",
        "return tensors that it made, numbers, and tuples of them",
    ),
    # -- gradients, modes, devices
    ("gradients are wanted", "call it under torch.no_grad() where no gradients are needed"),
    ("the random state is", "seed outside the compiled function"),
    (
        "torch.func transform or anomaly detection",
        "call the compiled function outside, or apply the transform inside",
    ),
    ("meet in one op", "move them to one device"),
    # -- effects
    ("side effect: print", "print outside the compiled function"),
    ("side effect: warnings", "warn outside the compiled function"),
    ("side effect: Tensor", "set it outside the compiled function"),
    (
        "side effect:|existed before the call",
        "return the new value, and store it outside the compiled function",
    ),
    # -- Python
    ("a generator or coroutine function", "compile what it calls for each element"),
    ("a coroutine", "await outside the compiled function"),
    ("a class is (defined|made)", "define the class outside the compiled function"),
    ("a module .* is made", "make modules outside the compiled function"),
    (" is made", "make it outside the compiled function, and pass it in"),
    ("^import of", "import it at the top of the module"),
    (
        "a C function",
        "write it with torch or plain Python, or call it outside the compiled function",
    ),
    ("as a key of a dict or set", "use a string or a number as the key"),
    ("nested too deeply", "is the recursion endless?"),
    ("instructions in one call", "is the loop endless?"),
    ("is given", "pass tensors, numbers, and containers of them"),
    # -- tensors and modules
    ("tensor subclass", "pass a plain tensor"),
    (
        "its layout is|it is quantized|it is nested|it is a conjugate",
        "convert the tensor before the call",
    ),
    ("has not got its parameters yet", "call the module once before it is compiled"),
    ("more than .* variants", "Report.recompiles says what varies"),
    (
        "has no rule for symbolic sizes|symbolic (size|number)|are symbolic",
        "compile without dynamic=True",
    ),
    ("internal error", "please report it, with the program that led here"),
)


def hint_for(reason: str) -> str:
    """What to change; "" where no row has advice."""
    return next((hint for pattern, hint in HINTS if re.search(pattern, reason)), "")
