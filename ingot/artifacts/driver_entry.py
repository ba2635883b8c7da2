"""The function of an entry in a shared library's driver, as LLVM text, in straight lines.

In: a program, its signature and its description. Out: a function that checks the arguments,
computes the sizes, places the buffers, launches the kernels and makes tensors of the results. What
it calls is in `driver_text.py`.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ingot.artifacts.calls import Program
from ingot.artifacts.driver_tables import Tables, dtype_number
from ingot.artifacts.signature import Signature, TensorLeaf
from ingot.artifacts.trees import Node
from ingot.errors import ExportError
from ingot.sequences import at

WRONG_ARGUMENTS, NO_MEMORY, NO_WEIGHTS, WRONG_DATA = 1, 2, 3, 4
"""What a call gives, as in `ingot_artifact.h`."""


class Part(NamedTuple):
    """An entry: its program, the description of that, and the slots of its constants."""

    program: Program
    description: tuple[Any, ...]
    constants: tuple[int, ...]


class Entry:
    """Writes the function of an entry."""

    def __init__(self, tables: Tables, part: Part, number: int) -> None:
        self.tables, self.part, self.number = tables, part, number
        self.signature = part.program.signature
        self.leaves = self.signature.leaves
        self.outputs = outputs_of(self.signature)
        self.lines: list[str] = []
        self.entry: list[str] = []  # what stands at the function's beginning: rooms on the stack
        self.names = itertools.count()
        self.overflow = "false"  # whether a number so far has not fit
        self.values: list[str] = []  # the table of values
        self.owned: dict[int, str] = {}  # the room of each buffer that the entry allocates
        self.moved: dict[int, str] = {}  # the memory of those that belong to an output now
        (
            self.inputs,
            self.symbols,
            self.expressions,
            _,
            self.buffers,
            self.views,
            self.steps,
            self.results,
            self.arena,
            *_,
        ) = part.description

    def text(self) -> str:
        self.status, self.reason = self.alloca("i32"), self.alloca("ptr")
        self.tensors = [self.alloca("ptr") for _ in self.outputs]
        self.check_arguments()
        self.compute_values()
        self.place_buffers()
        for step in self.steps:
            self.step(step)
        self.make_outputs()
        return "\n".join(
            [
                f"define internal i32 @entry{self.number}"
                "(ptr %model, ptr %inputs, ptr %outputs) {",
                *self.entry,
                *self.lines,
                "  store ptr @no.error, ptr %model",
                "  br label %free",
                "bad:",
                f"  %bad.reason = load ptr, ptr {self.reason}",
                "  store ptr %bad.reason, ptr %model",
                *self.undone(),
                "  br label %free",
                "free:",
                *self.freed(),
                f"  %result = load i32, ptr {self.status}",
                "  ret i32 %result",
                "}",
            ]
        )

    # -- small parts -------------------------------------------------------------------------------

    def new(self, code: str) -> str:
        """The name of a new value, which `code` computes."""
        name = f"%v{next(self.names)}"
        self.lines.append(f"  {name} = {code}")
        return name

    def do(self, code: str) -> None:
        self.lines.append(f"  {code}")

    def alloca(self, kind: str) -> str:
        """Room on the stack, which begins as 0."""
        name = f"%room{next(self.names)}"
        self.entry.append(f"  {name} = alloca {kind}, align 8")
        self.entry.append(f"  store {kind} zeroinitializer, ptr {name}")
        return name

    def require(self, condition: str, status: int, reason: str) -> None:
        """Goes on where a condition holds, and ends the call otherwise."""
        k = next(self.names)
        self.do(f"br i1 {condition}, label %good{k}, label %bad{k}")
        self.lines += [
            f"bad{k}:",
            f"  store i32 {status}, ptr {self.status}",
            f"  store ptr {reason}, ptr {self.reason}",
            "  br label %bad",
            f"good{k}:",
        ]

    def require_memory(self, memory: str) -> None:
        self.require(self.new(f"icmp ne ptr {memory}, null"), NO_MEMORY, "@no.memory")

    def exact(self, operation: str, left: str, right: str) -> str:
        """A sum, difference or product; `require_exact` asks whether it fits in 64 bits."""
        kind = "{ i64, i1 }"
        pair = self.new(
            f"call {kind} @llvm.s{operation}.with.overflow.i64(i64 {left}, i64 {right})"
        )
        too_large = self.new(f"extractvalue {kind} {pair}, 1")
        self.overflow = self.new(f"or i1 {self.overflow}, {too_large}")
        return self.new(f"extractvalue {kind} {pair}, 0")

    def require_exact(self) -> None:
        fits = self.new(f"xor i1 {self.overflow}, true")
        self.require(fits, WRONG_ARGUMENTS, "@too.large")
        self.overflow = "false"

    def evaluated(self, steps: Iterable[tuple[Any, ...]], table: Sequence[str]) -> str:
        """The value of an expression (see `loops/postfix.py`)."""
        stack: list[str] = []
        for step in steps:
            kind = step[0]
            if kind == "const":
                stack.append(str(step[1]))
            elif kind == "symbol":
                stack.append(table[step[1]])
            else:
                right, left = stack.pop(), stack.pop()
                if kind in _OPERATIONS:
                    stack.append(self.new(_OPERATIONS[kind].format(left, right)))
                else:
                    stack.append(self.exact(kind, left, right))
        return stack.pop()

    def span(self, sizes: Iterable[str], strides: Iterable[str], itemsize: int) -> str:
        """The bytes from the first to the last element; 0 where there is none."""
        last, some = "0", "true"
        for size, stride in zip(sizes, strides):
            count = self.exact("sub", size, "1")
            last = self.exact("add", last, self.exact("mul", count, stride))
            more = self.new(f"icmp sge i64 {count}, 0")
            some = self.new(f"and i1 {some}, {more}")
        size_in_bytes = self.exact("mul", self.exact("add", last, "1"), str(itemsize))
        self.require_exact()
        return self.new(f"select i1 {some}, i64 {size_in_bytes}, i64 0")

    # -- arguments ---------------------------------------------------------------------------------

    def check_arguments(self) -> None:
        self.arguments = []
        for k, leaf in enumerate(self.leaves):
            place = self.new(f"getelementptr ptr, ptr %inputs, i64 {k}")
            tensor = self.new(f"load ptr, ptr {place}")
            self.arguments.append(tensor)
            sizes, strides, dtype, text = _facts(leaf)
            fits = self.new(
                f"call i1 @has_facts(ptr {tensor}, i64 {len(sizes)}, i64 {dtype_number(dtype)}, "
                f"ptr {self.tables.numbers(sizes)}, ptr {self.tables.numbers(strides)})"
            )
            self.require(fits, WRONG_ARGUMENTS, self.tables.text(text))
        numbers, first = [], dict[str, str]()
        for number in self.signature.numbers:
            value = self.read(self.arguments[number.leaf], number.what, number.dim)
            numbers.append(value)
            if number.what != "stride" and first.setdefault(number.name, value) != value:
                same = self.new(f"icmp eq i64 {first[number.name]}, {value}")
                text = f"{number.name} differs among the arguments"
                self.require(same, WRONG_ARGUMENTS, self.tables.text(text))
        for condition in self.signature.conditions:
            sides = [self.evaluated(side, numbers) for side in (condition.left, condition.right)]
            holds = self.new(f"icmp {_RELATIONS[condition.relation]} i64 {', '.join(sides)}")
            reason = self.tables.text(f"expected {condition.text}")
            self.require(holds, WRONG_ARGUMENTS, reason)
        self.require_exact()
        for k, j in self.signature.distinct:
            differ = self.new(f"icmp ne ptr {self.arguments[k]}, {self.arguments[j]}")
            self.require(differ, WRONG_ARGUMENTS, self.tables.text("two arguments are one object"))
        self.check_memory()

    def check_memory(self) -> None:
        """Requires that no argument that is written shares memory with another."""
        is_written = [leaf is not None and leaf.is_written for leaf in self.leaves]
        if not any(is_written):
            return
        spans = list(map(self.span_of_argument, range(len(self.leaves))))
        for (k, (start, end)), (j, (other, its_end)) in itertools.combinations(enumerate(spans), 2):
            if not (is_written[k] or is_written[j]):
                continue
            before = self.new(f"icmp ule ptr {end}, {other}")
            behind = self.new(f"icmp ule ptr {its_end}, {start}")
            apart = self.new(f"or i1 {before}, {behind}")
            text = "arguments share memory that is written"
            self.require(apart, WRONG_ARGUMENTS, self.tables.text(text))

    def span_of_argument(self, number: int) -> tuple[str, str]:
        """Where the memory of an argument begins and ends."""
        leaf, tensor = self.leaves[number], self.arguments[number]
        itemsize = 8 if leaf is None else leaf.dtype.itemsize
        bytes_ = self.span(*self.geometry_of(number), itemsize)
        start = self.new(f"call ptr @data_of(ptr {tensor})")
        return start, self.new(f"getelementptr i8, ptr {start}, i64 {bytes_}")

    def geometry_of(self, number: int) -> tuple[list[str], list[str]]:
        """The sizes and strides of an argument."""
        leaf, tensor = self.leaves[number], self.arguments[number]
        sizes, strides = [], []
        for dim in range(0 if leaf is None else len(leaf.sizes)):
            sizes.append(self.read(tensor, "size", dim))
            strides.append(self.read(tensor, "stride", dim))
        return sizes, strides

    def read(self, tensor: str, what: str, dim: int) -> str:
        if what == "value":
            place = self.new(f"call ptr @data_of(ptr {tensor})")
            return self.new(f"load i64, ptr {place}, align 8")
        return self.new(f"call i64 @{what}_of(ptr {tensor}, i64 {dim})")

    def compute_values(self) -> None:
        for position, what, dim in self.symbols:
            kind, number = self.part.program.inputs[position]
            assert kind == "argument"  # sizes of the state are known
            self.values.append(self.read(self.arguments[number], what, dim))
        for steps in self.expressions:
            self.values.append(self.evaluated(steps, self.values))
        self.require_exact()
        count = max(1, len(self.symbols))
        self.sizes = self.alloca(f"[{count} x i64]")
        for k, value in enumerate(self.values[: len(self.symbols)]):
            place = self.new(f"getelementptr i64, ptr {self.sizes}, i64 {k}")
            self.do(f"store i64 {value}, ptr {place}")

    # -- buffers -----------------------------------------------------------------------------------

    def place_buffers(self) -> None:
        place = self.new("getelementptr %Model, ptr %model, i64 0, i32 1")
        grown = self.new(f"call i1 @grown(ptr {place}, i64 {self.values[self.arena]})")
        self.require(grown, NO_MEMORY, "@no.memory")
        arena = self.new(f"load ptr, ptr {place}")
        self.data: list[str] = []
        for number, (kind, _, _, _, position, *_) in enumerate(self.buffers):
            if kind == "input":
                self.data.append(self.input(position))
            elif kind == "constant":
                self.data.append(self.state(self.part.constants[position]))
            elif kind == "arena":
                self.data.append(
                    self.new(f"getelementptr i8, ptr {arena}, i64 {self.values[position]}")
                )
            else:
                self.owned[number] = self.alloca("ptr")
                self.data.append("")

    def input(self, position: int) -> str:
        kind, number = self.part.program.inputs[position]
        if kind == "state":
            return self.state(number)
        return self.new(f"call ptr @data_of(ptr {self.arguments[number]})")

    def state(self, number: int) -> str:
        """The memory of a tensor of the state, which must be there."""
        place = self.new(f"call ptr @state_place(ptr %model, i64 {number})")
        memory = self.new(f"load ptr, ptr {place}")
        self.require(self.new(f"icmp ne ptr {memory}, null"), NO_WEIGHTS, "@no.weights")
        return memory

    def memory_of(self, buffer: int) -> str:
        """Where a buffer begins, now."""
        if buffer in self.moved:
            return self.moved[buffer]
        if buffer in self.owned:
            return self.new(f"load ptr, ptr {self.owned[buffer]}")
        return self.data[buffer]

    # -- steps -------------------------------------------------------------------------------------

    def step(self, step: tuple[Any, ...]) -> None:
        if step[0] == "allocate":
            _, dtype, sizes, strides, *_ = self.buffers[step[1]]
            geometry = at(self.values, sizes), at(self.values, strides)
            span = self.span(*geometry, dtype.itemsize)
            memory = self.new(f"call ptr @allocated(i64 {span})")
            self.do(f"store ptr {memory}, ptr {self.owned[step[1]]}")
            self.require_memory(memory)
        elif step[0] == "kernel":
            self.launch(*step[1:])

    def launch(
        self,
        kernel: str,
        buffers: Sequence[int],
        extent: int,
        work: float,
        unit: int,
        scratch: int,
        errors: Sequence[Any],
        extents: Sequence[int],
        varying_work: int,
        offsets: Sequence[int],
    ) -> None:
        table = self.alloca(f"[{max(1, len(buffers))} x ptr]")
        for k, buffer in enumerate(buffers):
            memory = self.memory_of(buffer)
            if offsets:
                memory = self.new(f"getelementptr i8, ptr {memory}, i64 {self.values[offsets[k]]}")
            place = self.new(f"getelementptr ptr, ptr {table}, i64 {k}")
            self.do(f"store ptr {memory}, ptr {place}")
        picoseconds = str(round(1000 * work))
        if varying_work >= 0:
            picoseconds = self.values[varying_work]
        scratch_bytes = self.values[scratch] if scratch >= 0 else "0"
        width = len(buffers) // max(1, len(extents))
        for part, points in enumerate(extents or [extent]):
            first = self.new(f"getelementptr ptr, ptr {table}, i64 {part * width}")
            status = self.new(
                f"call i32 @launched(ptr %model, ptr @{kernel}, ptr {first}, ptr {self.sizes}, "
                f"i64 {self.values[points]}, i64 {unit}, i64 {scratch_bytes}, i64 {picoseconds})"
            )
            full = self.new(f"icmp ne i32 {status}, -2")
            self.require(full, NO_MEMORY, "@no.memory")
            for number, (_, message) in enumerate(errors):
                holds = self.new(f"icmp ne i32 {status}, {number + 1}")
                self.require(holds, WRONG_DATA, self.tables.text(message))

    # -- outputs -----------------------------------------------------------------------------------

    def make_outputs(self) -> None:
        for (kind, number), room in zip(self.outputs, self.tensors):
            if kind == "given":
                tensor = self.copied_argument(number)
            else:
                tensor = self.output(self.results[number])
            self.do(f"store ptr {tensor}, ptr {room}")
        for k, room in enumerate(self.tensors):
            tensor = self.new(f"load ptr, ptr {room}")
            place = self.new(f"getelementptr ptr, ptr %outputs, i64 {k}")
            self.do(f"store ptr {tensor}, ptr {place}")

    def output(self, result: tuple[str, int]) -> str:
        """A tensor for a result of the program: with the memory that the entry allocated for it, or
        a copy where that is somebody else's."""
        kind, number = result
        if kind == "int":
            memory = self.new("call ptr @allocated(i64 8)")
            self.require_memory(memory)
            self.do(f"store i64 {self.values[number]}, ptr {memory}")
            return self.tensor(memory, memory, torch.int64, (), ())
        buffer, offset = number, "0"
        if kind == "buffer":
            _, dtype, sizes, strides, *_ = self.buffers[number]
        else:
            buffer, dtype, sizes, strides, place = self.views[number]
            offset = self.exact("mul", self.values[place], str(dtype.itemsize))
            self.require_exact()
        base = self.memory_of(buffer)
        data = self.new(f"getelementptr i8, ptr {base}, i64 {offset}")
        geometry = at(self.values, sizes), at(self.values, strides)
        if buffer not in self.owned or buffer in self.moved:
            return self.copy(data, dtype, *geometry)
        tensor = self.tensor(base, data, dtype, *geometry)
        self.do(f"store ptr null, ptr {self.owned[buffer]}")
        self.moved[buffer] = base
        return tensor

    def copied_argument(self, number: int) -> str:
        leaf = self.leaves[number]
        data = self.new(f"call ptr @data_of(ptr {self.arguments[number]})")
        dtype = torch.int64 if leaf is None else leaf.dtype
        return self.copy(data, dtype, *self.geometry_of(number))

    def copy(
        self, data: str, dtype: torch.dtype, sizes: Sequence[str], strides: Sequence[str]
    ) -> str:
        """A tensor in memory of its own, with all that lies between its elements."""
        span = self.span(sizes, strides, dtype.itemsize)
        memory = self.new(f"call ptr @copied(ptr {data}, i64 {span})")
        self.require_memory(memory)
        return self.tensor(memory, memory, dtype, sizes, strides)

    def tensor(
        self,
        memory: str,
        data: str,
        dtype: torch.dtype,
        sizes: Sequence[str],
        strides: Sequence[str],
    ) -> str:
        """A tensor that frees its memory."""
        made = self.new(
            f"call ptr @made(ptr {memory}, ptr {data}, i64 {len(sizes)}, i64 {dtype_number(dtype)})"
        )
        self.require_memory(made)
        for k, value in enumerate((*sizes, *strides)):
            place = self.new(f"getelementptr i64, ptr {made}, i64 {8 + k}")
            self.do(f"store i64 {value}, ptr {place}")
        return made

    def undone(self) -> Iterator[str]:
        """Lets go of the outputs that were made."""
        for k, room in enumerate(self.tensors):
            yield f"  %undone{k} = load ptr, ptr {room}"
            yield f"  call void @unmade(ptr %undone{k})"

    def freed(self) -> Iterator[str]:
        """Frees what the entry allocated, and no output has."""
        for k, room in self.owned.items():
            yield f"  %freed{k} = load ptr, ptr {room}"
            yield f"  call void @free(ptr %freed{k})"


def _facts(leaf: TensorLeaf | None) -> tuple[list[int], list[int], torch.dtype, str]:
    """The sizes and strides of an argument, of which -1 is any, its dtype, and all that as text."""
    if leaf is None:
        return [], [], torch.int64, "an argument that varies: expected an int64 tensor of rank 0"
    sizes, strides = [], []
    for size, stride in zip(leaf.sizes, leaf.strides):
        sizes.append(size if isinstance(size, int) else -1)
        strides.append(-1 if stride is None else stride)
    text = f"argument {leaf.name!r}: expected {leaf}, with the strides of the export"
    return sizes, strides, leaf.dtype, text


def outputs_of(signature: Signature) -> list[tuple[str, int]]:
    """The tensors and ints of a result in order: ("output", k) of the program, or ("given", leaf).

    Raises ExportError for a result that is the artifact's own state.
    """
    found: list[tuple[str, int]] = []
    rows = signature.result

    def visit(position: int) -> None:
        kind, part = rows[position]
        if kind == "output":
            found.append((kind, part))
        elif kind == "given":
            node = signature.parameters[part[0]].tree
            for key in part[1:]:
                node = dict(node[1])[key] if node[0] == "dict" else node[1][key]
            found.extend(("given", leaf) for leaf in _leaves_in(node))
        elif kind == "dict":
            for _, item in part:
                visit(item)
        elif kind == "state":
            raise ExportError(
                "ingot.export: the call returns a tensor of its state, which a library keeps: "
                "return a copy of it, by clone()"
            )
        elif kind != "constant":
            for item in part[1] if kind == "call" else part:
                visit(item)

    visit(len(rows) - 1)
    return found


def _leaves_in(node: Node) -> Iterator[int]:
    kind, part = node
    if kind in ("tensor", "int"):
        yield part
    elif kind != "constant":
        for item in dict(part).values() if kind == "dict" else part:
            yield from _leaves_in(item)


_OPERATIONS = {
    "floordiv": "call i64 @floordiv(i64 {}, i64 {})",
    "mod": "call i64 @mod(i64 {}, i64 {})",
    "max": "call i64 @llvm.smax.i64(i64 {}, i64 {})",
    "min": "call i64 @llvm.smin.i64(i64 {}, i64 {})",
}
_RELATIONS = {"==": "eq", "!=": "ne", "<": "slt", "<=": "sle", ">": "sgt", ">=": "sge"}
