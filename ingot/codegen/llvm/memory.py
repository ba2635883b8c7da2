"""Index expressions and memory accesses: from an `Expr` to addresses, loads and stores.

What is written here is right for each lane in range: the others are masked or write nowhere.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ingot.codegen.llvm.emitter import Emitter, Value
from ingot.codegen.llvm.scalar import combine, convert, floor_divide
from ingot.codegen.llvm.types import REPRESENTATIONS, mangled, vector_type
from ingot.errors import OutOfBounds
from ingot.loops.expr import Expr, FloorDiv, Max, Min, Mod, Symbol
from ingot.loops.ir import Fault
from ingot.schedule.tiling import SHORT_STRIDE

SHORT = 2**31


def fits_short(e: Expr) -> bool:
    """Whether all values of an expression are known to fit 31 bits."""
    low, high = e.bounds
    return low is not None and low >= 0 and high is not None and high < SHORT


def split_constant(e: Expr) -> tuple[Expr, int]:
    """An expression as a sum of one without constant term, and a constant."""
    constant = next((coefficient for coefficient, atoms in e.terms if not atoms), 0)
    return e - constant, constant


def _outer_first(value: Value) -> tuple[int, int]:
    return value.lanes, value.depth


class Memory:
    """The buffers of one kernel and the index symbols in scope.

    A symbol is bound to an i64 value. `vector` is the symbol whose successive values fill the
    lanes, or None while code runs once per point; it is bound to lane 0's value less `shift`, a
    constant that differs between unrolled copies. `mask` says which lanes are in range (None: all).
    """

    def __init__(self, emitter: Emitter, sizes: dict[Symbol, int]) -> None:
        self.emitter = emitter
        self.sizes = sizes
        self.bound: dict[Symbol, Value] = {}
        self.vector: Symbol | None = None
        self.shift = 0
        self.mask: Value | None = None
        self.base: dict[str, Value] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        self.mutable: set[str] = set()
        self.per_lane: set[str] = set()  # rows of which every lane has one of its own
        self.lengths: dict[str, Expr] = {}  # elements of a buffer, where known
        # given where bounds are checked
        self.fail_if: Callable[[Value, Fault, Value | None], None] | None = None
        self.strided: list[tuple[str, Expr]] = []  # the unconditional loads of the present body
        # loads of which the present vector lies transposed here
        self.transposed: dict[tuple[str, Expr], Value] = {}

    # -- index arithmetic --------------------------------------------------------------------------

    def index(self, expr: Expr, type: str = "i64") -> Value:
        """The value of `expr`: a scalar where its symbols are, summed from the outer loops inwards.

        As an i32 it is right where it fits, even if its terms do not.
        """
        e = self.emitter
        if expr.constant is not None:
            return e.constant(expr.constant, type)
        terms = []
        for coefficient, atoms in expr.terms:
            terms.append(self._term(coefficient, atoms, type))
        terms.sort(key=_outer_first)
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def _term(self, coefficient: int, atoms: tuple[Expr, ...], type: str) -> Value:
        factors = []
        for atom in atoms:
            value = self._atom(atom)
            factors.append(self._short(value) if type == "i32" else value)
        factors.sort(key=_outer_first)
        if coefficient != 1 or not factors:
            factors.insert(0, self.emitter.constant(coefficient, type))
        total = factors[0]
        for factor in factors[1:]:
            total = total * factor
        return total

    def _atom(self, atom: Any) -> Value:
        e = self.emitter
        if isinstance(atom, Symbol):
            if atom is self.vector:
                return self.bound[atom] + self._lane_numbers(1)
            if atom in self.bound:
                return self.bound[atom]
            return self._size(atom)
        if isinstance(atom, (Max, Min)):
            bounds = (self.index(atom.left), self.index(atom.right))
            return e.intrinsic("smax" if isinstance(atom, Max) else "smin", bounds)
        left, right = self.index(atom.left), self.index(atom.right)
        low = atom.left.bounds[0]
        if low is None or low < 0:
            quotient = floor_divide("signed", left, right)
            if isinstance(atom, FloorDiv):
                return quotient
            return left - quotient * right
        opcode = "udiv"
        if isinstance(atom, Mod):
            opcode = "urem"
        if fits_short(atom.left) and fits_short(atom.right):
            short = e.binary(opcode, e.cast("trunc", left, "i32"), self._short(right))
            return e.cast("zext", short, "i64")
        return e.binary(opcode, left, right)

    def _short(self, value: Value) -> Value:
        if value.constant:
            return self.emitter.constant(int(value.text), "i32")
        return self.emitter.cast("trunc", value, "i32")

    def _size(self, symbol: Symbol) -> Value:
        e = self.emitter
        sizes = Value(e, "%sizes", "ptr", 1, 0)
        pointer = e.pointer(sizes, "i64", self.sizes[symbol])
        return e.place(f"load i64, ptr {pointer.text}, align 8", "i64", 1, 0)

    def _lane_numbers(self, stride: int) -> Value:
        """Constant vector: stride * (lane + shift)."""
        e = self.emitter
        numbers = ", ".join(f"i64 {stride * (lane + self.shift)}" for lane in range(e.lanes))
        return Value(e, f"<{numbers}>", "i64", e.lanes, 0)

    # -- addresses ---------------------------------------------------------------------------------

    def address(self, buffer: str, expr: Expr) -> tuple[Value, bool]:
        """A scalar pointer, or one per lane, and whether the elements of all lanes are adjacent.

        Then the pointer is a scalar, of the first lane's element.
        """
        e = self.emitter
        base, type = self.base[buffer], REPRESENTATIONS[self.dtypes[buffer]].memory
        if buffer in self.per_lane:
            pointer = e.pointer(base, type, self.index(expr) * e.lanes)
            if pointer.lanes == 1:
                return pointer, True
            return e.pointer(pointer, type, e.iota("i64")), False
        varying = set()
        for s in expr.symbols:
            if s is self.vector or self._is_per_lane(s):
                varying.add(s)
        linear = None
        if varying == {self.vector}:
            linear = expr.linear(varying)
        if linear is None:
            narrow = varying and fits_short(expr)
            return e.pointer(base, type, self.index(expr, "i32" if narrow else "i64")), False
        offset, coefficients = linear
        assert self.vector is not None
        stride, first = coefficients[self.vector], self.bound[self.vector]
        pointer = e.pointer(base, type, self.index(offset))
        if stride.constant is not None:
            pointer = e.pointer(pointer, type, first * stride.constant)
            if stride.constant == 1:
                return e.pointer(pointer, type, self.shift), True
            return e.pointer(pointer, type, self._lane_numbers(stride.constant)), False
        step = self.index(stride)
        pointer = e.pointer(pointer, type, first * step)
        return e.pointer(pointer, type, self._lane_numbers(1) * step), False

    def _is_per_lane(self, symbol: Symbol) -> bool:
        """Whether a symbol is bound to a vector."""
        return symbol in self.bound and self.bound[symbol].lanes > 1

    def _stride(self, buffer: str, expr: Expr) -> tuple[int, Expr] | None:
        """(the distance of neighbouring lanes' elements, the index without the vector loop).

        None where the distance is not constant.
        """
        vector = self.vector
        if vector is None or vector not in expr.symbols or buffer in self.per_lane:
            return None
        linear = None
        if not any(map(self._is_per_lane, expr.symbols)):
            linear = expr.linear((vector,))
        if linear is None:
            return None
        offset, coefficients = linear
        stride = coefficients[vector].constant
        if stride is None:
            return None
        return (stride, offset)

    def _lane_pointer(self, buffer: str, stride: int, offset: Expr, lane: int) -> Value:
        """The address of one lane's element, `stride` and `offset` being what `_stride` gives."""
        e, type = self.emitter, REPRESENTATIONS[self.dtypes[buffer]].memory
        assert self.vector is not None
        pointer = e.pointer(self.base[buffer], type, self.index(offset))
        pointer = e.pointer(pointer, type, self.bound[self.vector] * stride)
        return e.pointer(pointer, type, (self.shift + lane) * stride)

    def sure_depth(self, depth: int) -> int:
        """The outermost depth, from `depth` inwards, whose points all reach the present one."""
        scopes = self.emitter.scopes
        return next((d for d in range(len(scopes) - 1, depth, -1) if not scopes[d].sure), depth)

    def both(self, a: Value | None, b: Value | None) -> Any:
        """The conjunction of two conditions, None being true."""
        if a is None or b is None:
            return a or b
        return a & b

    def check(self, buffer: str, pointer: Value, adjacent: bool, condition: Value | None) -> None:
        """Where bounds are checked: report an access at `pointer` that is not within the buffer.

        Of adjacent elements those in range and under `condition` count.
        """
        if self.fail_if is None or buffer not in self.lengths:
            return
        e, form = self.emitter, REPRESENTATIONS[self.dtypes[buffer]]
        if adjacent:
            pointer = e.pointer(pointer, form.memory, e.iota("i64"))
        offset = e.cast("ptrtoint", pointer, "i64") - e.cast("ptrtoint", self.base[buffer], "i64")
        end = self.index(self.lengths[buffer]) * self.dtypes[buffer].itemsize
        fault = Fault(OutOfBounds, f"a kernel touches memory outside of its buffer {buffer}")
        self.fail_if(e.compare("uge", offset, end), fault, condition)

    # -- loads -------------------------------------------------------------------------------------

    def load(self, buffer: str, expr: Expr, condition: Value | None) -> Value:
        """The element at `expr`, in its register type; 0 where `condition` does not hold."""
        dtype = self.dtypes[buffer]
        type, size = REPRESENTATIONS[dtype].memory, dtype.itemsize
        block = self.transposed.get((buffer, expr))
        if block is not None:
            value = self._load_adjacent(block, type, size, None, "")
        else:
            pointer, adjacent = self.address(buffer, expr)
            self.check(buffer, pointer, adjacent, condition)
            if pointer.lanes > 1:
                value = self._load_lanes(buffer, expr, pointer, self.both(self.mask, condition))
            elif adjacent:
                mask = None
                if buffer not in self.per_lane:
                    mask = self.both(self.mask, condition)
                value = self._load_adjacent(pointer, type, size, mask, buffer)
            else:
                value = self._load_one(pointer, type, size, condition, buffer)
        if dtype is torch.bool:
            return self.emitter.compare("ne", value, 0)
        return value

    def _load_lanes(self, buffer: str, expr: Expr, pointers: Value, mask: Value | None) -> Value:
        """Elements that are not adjacent, as vectors where they are near each other."""
        e, dtype = self.emitter, self.dtypes[buffer]
        type, size = REPRESENTATIONS[dtype].memory, dtype.itemsize
        stride = self._stride(buffer, expr)
        if stride is not None and stride[0] == -1:
            if mask is not None:
                mask = e.reversed_lanes(mask)
            last = self._lane_pointer(buffer, *stride, e.lanes - 1)
            return e.reversed_lanes(self._load_adjacent(last, type, size, mask, buffer))
        if stride is not None and abs(stride[0]) <= SHORT_STRIDE and mask is None:
            return self._load_strided(buffer, *stride)
        return self._gather(pointers, type, size, mask, buffer)

    def _fetch(self, text: str, type: str, lanes: int, depth: int, buffer: str) -> Value:
        if buffer in self.mutable:
            return self.emitter.here(text, type, lanes)
        return self.emitter.place(text, type, lanes, self.sure_depth(depth))

    def _load_one(
        self, pointer: Value, type: str, size: int, condition: Value | None, buffer: str
    ) -> Value:
        e = self.emitter
        if condition is not None:
            if condition.lanes == 1:
                present = condition
            else:
                present = self.both(self.mask, condition)
            zeros = Value(e, "@ingot.zeros", "ptr", 1, 0)
            pointer = e.select(e.any_lane(present), pointer, zeros)
        text = f"load {type}, ptr {pointer.text}, align {size}"
        value = self._fetch(text, type, 1, pointer.depth, buffer)
        if condition is not None and condition.lanes > 1:
            return e.select(condition, value, 0)
        return value

    def _load_adjacent(
        self, pointer: Value, type: str, size: int, mask: Value | None, buffer: str
    ) -> Value:
        e = self.emitter
        vector = vector_type(type, e.lanes)
        if mask is None:
            text = f"load {vector}, ptr {pointer.text}, align {size}"
            return self._fetch(text, type, e.lanes, pointer.depth, buffer)
        masks = vector_type("i1", e.lanes)
        function = f"llvm.masked.load.{mangled(type, e.lanes)}.p0"
        e.declare(vector, function, f"ptr, i32, {masks}, {vector}")
        text = (
            f"call {vector} @{function}(ptr {pointer.text}, i32 {size}, "
            f"{masks} {e.argument(mask, e.lanes)}, {vector} zeroinitializer)"
        )
        return self._fetch(text, type, e.lanes, max(pointer.depth, mask.depth), buffer)

    def _vectors(self, type: str) -> tuple[str, str, str]:
        """The types of vectors of elements, masks and addresses."""
        lanes = self.emitter.lanes
        return vector_type(type, lanes), vector_type("i1", lanes), vector_type("ptr", lanes)

    def _gather(
        self, pointers: Value, type: str, size: int, mask: Value | None, buffer: str
    ) -> Value:
        e = self.emitter
        vector, masks, addresses = self._vectors(type)
        function = f"llvm.masked.gather.{mangled(type, e.lanes)}.v{e.lanes}p0"
        e.declare(vector, function, f"{addresses}, i32, {masks}, {vector}")
        allowed = "splat (i1 true)"
        if mask is not None:
            allowed = e.argument(mask, e.lanes)
        text = (
            f"call {vector} @{function}({addresses} {pointers.text}, i32 {size}, "
            f"{masks} {allowed}, {vector} zeroinitializer)"
        )
        if mask is None:
            depth = pointers.depth
        else:
            depth = max(pointers.depth, mask.depth)
        return self._fetch(text, type, e.lanes, depth, buffer)

    def _load_strided(self, buffer: str, stride: int, offset: Expr) -> Value:
        """Whole vectors from the first lane's element to the last one's, and a shuffle of them.

        Loads that together take all of the elements between share the vectors.
        """
        e, step = self.emitter, abs(stride)
        form, size = REPRESENTATIONS[self.dtypes[buffer]], self.dtypes[buffer].itemsize
        phase = self._phase(buffer, stride, offset)
        starts = []
        for index in range(step):
            starts.append(index * e.lanes)
        if phase is None:
            phase, starts[-1] = 0, (e.lanes - 1) * (step - 1)
        first = self._lane_pointer(buffer, stride, offset - phase, 0 if stride > 0 else e.lanes - 1)
        if (step, size, starts[-1]) == (2, 2, e.lanes):
            pairs = self._load_adjacent(first, "i32", size, None, buffer)
            one = e.cast("trunc", pairs >> 16 * phase, "i16")
            return e.cast("bitcast", one, form.memory)
        vectors = []
        for start in starts:
            pointer = e.pointer(first, form.memory, start)
            vectors.append(self._load_adjacent(pointer, form.memory, size, None, buffer))
        places = []
        for element in range(phase, phase + e.lanes * step, step):
            number = next(k for k, s in enumerate(starts) if 0 <= element - s < e.lanes)
            places.append((number, element - starts[number]))
        return e.collect(vectors, places if stride > 0 else places[::-1])

    def _phase(self, buffer: str, stride: int, offset: Expr) -> int | None:
        """The element's number among `stride` adjacent ones, if all of them are loaded."""
        base, place = split_constant(offset)
        loaded = set()
        for other, expr in self.strided if stride > 0 else ():
            access = None
            if other == buffer:
                access = self._stride(other, expr)
            if access is not None and access[0] == stride:
                other_base, other_place = split_constant(access[1])
                if other_base == base:
                    loaded.add(other_place)
        if place not in loaded:
            return None
        first = place - (place - min(loaded)) % stride
        if loaded.issuperset(range(first, first + stride)):
            return place - first
        return None

    # -- stores ------------------------------------------------------------------------------------

    def store_all(self, stores: Sequence[tuple[str, Expr, Value, str]]) -> None:
        """The stores of one body, as `store` takes them.

        Those that together write adjacent elements do so in whole vectors.
        """
        strided: dict[tuple[str, int, Expr], dict[int, tuple[Expr, Value]]] = {}
        for buffer, expr, value, mode in stores:
            access = None
            if mode == "store" and self.mask is None:
                access = self._stride(buffer, expr)
            if access is None or not 1 < access[0] <= SHORT_STRIDE:
                self.store(buffer, expr, value, mode)
                continue
            base, place = split_constant(access[1])
            strided.setdefault((buffer, access[0], base), {})[place] = expr, value
        for (buffer, stride, base), members in strided.items():
            for place in sorted(members):
                places = range(place, place + stride)
                if members.keys() >= set(places):
                    group = list(map(members.pop, places))
                    self._store_side_by_side(buffer, stride, base + place, group)
                elif place in members:
                    self.store(buffer, *members[place], "store")

    def _store_side_by_side(
        self, buffer: str, stride: int, offset: Expr, group: list[tuple[Expr, Value]]
    ) -> None:
        e, lanes, size = self.emitter, self.emitter.lanes, self.dtypes[buffer].itemsize
        for expr, _ in group:
            self.check(buffer, *self.address(buffer, expr), None)
        values = [e.splat(self._stored(buffer, value), lanes) for _, value in group]
        pointer = self._lane_pointer(buffer, stride, offset, 0)
        for index in range(stride):
            places = []
            for n in range(index * lanes, (index + 1) * lanes):
                places.append((n % stride, n // stride))
            target = e.pointer(pointer, values[0].type, index * lanes)
            self._store_adjacent(target, e.collect(values, places), size, None)

    def _stored(self, buffer: str, value: Value) -> Value:
        """A value of the buffer's dtype as it lies in memory."""
        e = self.emitter
        if self.dtypes[buffer] is not torch.bool:
            return value
        if value.constant:
            return e.constant(value.text == "true", "i8")
        return e.cast("zext", value, "i8")

    def store(self, buffer: str, expr: Expr, value: Value, mode: str) -> None:
        """Write `value`, of the buffer's dtype, at `expr`.

        "store" replaces, the other modes combine, lane after lane.
        """
        e, size = self.emitter, self.dtypes[buffer].itemsize
        value = self._stored(buffer, value)
        pointer, adjacent = self.address(buffer, expr)
        self.check(buffer, pointer, adjacent, None)
        if buffer in self.per_lane and adjacent:
            mask = None
        else:
            mask = self.mask
        stride = None
        if pointer.lanes > 1 and mask is None:
            stride = self._stride(buffer, expr)
        if mode != "store":
            self._update(buffer, pointer, adjacent, value, mode)
        elif stride is not None and 1 < stride[0] <= SHORT_STRIDE and self._masks_stores(buffer):
            self._store_strided(self._lane_pointer(buffer, *stride, 0), stride[0], value, size)
        elif adjacent:
            self._store_adjacent(pointer, value, size, mask)
        elif pointer.lanes == 1 and value.lanes == 1:
            e.line(f"store {value.type} {value.text}, ptr {pointer.text}, align {size}")
        else:
            self._scatter(e.splat(pointer, e.lanes), value, size, mask)

    def _masks_stores(self, buffer: str) -> bool:
        """Whether the target stores vectors of the buffer's elements under a mask."""
        return self.emitter.vector_bytes >= (64 if self.dtypes[buffer].itemsize < 4 else 32)

    def _store_strided(self, pointer: Value, stride: int, value: Value, size: int) -> None:
        """Vectors in which every `stride`th lane counts, the others being masked."""
        e, lanes = self.emitter, self.emitter.lanes
        value = e.splat(value, lanes)
        for index in range(stride):
            numbers = range(index * lanes, (index + 1) * lanes)
            order: list[int | None] = [None] * lanes
            mask = ["i1 false"] * lanes
            for lane, number in enumerate(numbers):
                if number % stride == 0:
                    order[lane], mask[lane] = number // stride, "i1 true"
            spread = e.shuffle(value, None, order)
            target = e.pointer(pointer, value.type, index * lanes)
            condition = Value(e, f"<{', '.join(mask)}>", "i1", lanes, 0)
            self._store_adjacent(target, spread, size, condition)

    def _store_adjacent(self, pointer: Value, value: Value, size: int, mask: Value | None) -> None:
        e = self.emitter
        vector = vector_type(value.type, e.lanes)
        operand = e.argument(value, e.lanes)
        if mask is None:
            e.line(f"store {vector} {operand}, ptr {pointer.text}, align {size}")
            return
        masks = vector_type("i1", e.lanes)
        function = f"llvm.masked.store.{mangled(value.type, e.lanes)}.p0"
        e.declare("void", function, f"{vector}, ptr, i32, {masks}")
        e.line(
            f"call void @{function}({vector} {operand}, ptr {pointer.text}, i32 {size}, {masks} "
            f"{mask.text})"
        )

    def _scatter(self, pointers: Value, value: Value, size: int, mask: Value | None) -> None:
        e = self.emitter
        vector, masks, addresses = self._vectors(value.type)
        function = f"llvm.masked.scatter.{mangled(value.type, e.lanes)}.v{e.lanes}p0"
        e.declare("void", function, f"{vector}, {addresses}, i32, {masks}")
        allowed = "splat (i1 true)"
        if mask is not None:
            allowed = mask.text
        operand = e.argument(value, e.lanes)
        e.line(
            f"call void @{function}({vector} {operand}, {addresses} {pointers.text}, i32 {size}, "
            f"{masks} {allowed})"
        )

    def _update(self, buffer: str, pointer: Value, adjacent: bool, value: Value, mode: str) -> None:
        """One lane at a time where lanes may meet at one address.

        Lanes out of range write to a place of their own.
        """
        e, dtype = self.emitter, self.dtypes[buffer]
        if self.vector is None and pointer.lanes == value.lanes == 1:
            self._update_one(buffer, pointer, value, mode)
            return
        if adjacent and dtype not in HALVES:
            old = self._load_adjacent(pointer, value.type, dtype.itemsize, self.mask, buffer)
            new = _combined(dtype, mode, old, e.splat(value, e.lanes))
            self._store_adjacent(pointer, new, dtype.itemsize, self.mask)
            return
        type = REPRESENTATIONS[dtype].memory
        if adjacent:
            pointer = e.pointer(pointer, type, e.iota("i64"))
        pointers = e.splat(pointer, e.lanes)
        if self.mask is not None:
            pointers = e.select(self.mask, pointers, Value(e, "%nowhere", "ptr", 1, 0))
        values = e.splat(value, e.lanes)
        for lane in range(e.lanes):
            self._update_one(buffer, self._lane(pointers, lane), self._lane(values, lane), mode)

    def _lane(self, vector: Value, lane: int) -> Value:
        text = f"extractelement {vector_type(vector.type, vector.lanes)} {vector.text}, i64 {lane}"
        return self.emitter.place(text, vector.type, 1, vector.depth)

    def _update_one(self, buffer: str, pointer: Value, value: Value, mode: str) -> None:
        e, dtype = self.emitter, self.dtypes[buffer]
        size = dtype.itemsize
        old = e.here(f"load {value.type}, ptr {pointer.text}, align {size}", value.type, 1)
        if dtype in HALVES:
            wide, more = convert(old, dtype, torch.float32), convert(value, dtype, torch.float32)
            new = convert(_combined(torch.float32, mode, wide, more), torch.float32, dtype)
        else:
            new = _combined(dtype, mode, old, value)
        e.line(f"store {new.type} {new.text}, ptr {pointer.text}, align {size}")


HALVES = (torch.bfloat16, torch.float16)
_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def _combined(dtype: torch.dtype, mode: str, old: Value, new: Value) -> Value:
    return combine(_KINDS[mode], dtype, (old,), (new,))[0]
