"""Why a graph breaks or a call runs in eager, and what the user can do about it: one row for each family of reasons.

A reason is a sentence that names what was met; the first row whose pattern is found in it gives the hint. A reason that
comes with a hint of its own keeps that one.
"""

from __future__ import annotations

import re

HINTS: tuple[tuple[str, str], ...] = (
    # -- what depends on data
    ("a branch on the values of", "use torch.where, or move the branch out of the compiled function"),
    ("a mask: the size of the result depends on the data", "use torch.where, or masked_fill"),
    ("a membership test on the values of", "compare with torch.isin, or keep what is searched in a Python container"),
    (r"a tensor's data is asked for", "keep it a tensor, or move it out of the function"),
    (r"^\w+\(\) depends on the data of", "keep it a tensor, or convert it outside the compiled function"),
    ("depends on the data of", "keep it a tensor, or read it outside the compiled function"),
    ("is not known during capture", "keep it a tensor, or compute it outside the compiled function"),
    # -- what the user asked for
    ("is disabled by", "remove the disable, or call it before or after the compiled function"),
    (r"graph_break\(\) is called", "remove the call where one graph is wanted"),
    # -- gradients and modes
    ("gradients are wanted", "call it under torch.no_grad(): training is not compiled yet"),
    ("the random state is", "seed outside the compiled function"),
    # -- effects
    ("side effect: print", "print outside the compiled function"),
    ("side effect: warnings", "warn outside the compiled function"),
    ("side effect: Tensor", "set it outside the compiled function"),
    ("side effect:|existed before the call", "return the new value, and store it outside the compiled function"),
    # -- Python
    ("a generator or coroutine function", "compile what it calls for each element"),
    ("a coroutine", "await outside the compiled function"),
    ("a class is (defined|made)", "define the class outside the compiled function"),
    ("a module .* is made", "make modules outside the compiled function"),
    ("(is|are) made", "make it outside the compiled function, and pass it in"),
    ("^import of", "import it at the top of the module"),
    (r"a C function|\(\) of ", "write it with torch or plain Python, or call it outside the compiled function"),
    ("nested too deeply", "is the recursion endless?"),
    ("instructions in one call", "is the loop endless?"),
    ("is given", "pass tensors, numbers, or containers of them"),
    ("a tensor that is no argument", "pass the tensor as an argument"),
    # -- tensors and modules
    ("tensor subclass", "pass a plain tensor"),
    ("its layout is|it is quantized|it is nested|conjugate", "convert the tensor before the call"),
    ("has hooks", "remove the hooks, or call the module outside"),
    ("was compiled in place", "use module.forward, or undo module.compile()"),
    ("more than .* variants", "Report.recompiles says what varies"),
    ("symbolic", "compile without dynamic=True"),
    ("has no (shape )?rule", "call it outside the compiled function"),
)


def hint_for(reason: str) -> str:
    """What to change, "" where there is no advice but to leave it as it is."""
    return next((hint for pattern, hint in HINTS if re.search(pattern, reason)), "")
