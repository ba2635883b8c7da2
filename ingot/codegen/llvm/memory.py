"""Index expressions and memory accesses: from an `Expr` and the loops around it to addresses, loads
and stores."""

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
        As an i32 it is right where it fits, whatever its parts are."""
        e = self.emitter
        if expr.constant is not None:
            return e.constant(expr.constant, type)
        terms = [self._term(coefficient, atoms, type) for coefficient, atoms in expr.terms]
        terms.sort(key=lambda v: (v.lanes, v.depth))
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    def _term(self, coefficient: int, atoms: tuple[Expr, ...], type: str) -> Value:
        values = (self._atom(a) for a in atoms)
        factors = sorted(
            (self._short(v) if type == "i32" else v for v in values),
            key=lambda v: (v.lanes, v.depth),
        )
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
            return self.bound[atom] if atom in self.bound else self._size(atom)
        if isinstance(atom, (Max, Min)):
            name = "smax" if isinstance(atom, Max) else "smin"
            return e.intrinsic(name, (self.index(atom.left), self.index(atom.right)))
        left, right = self.index(atom.left), self.index(atom.right)
        low = atom.left.bounds[0]
        if low is None or low < 0:
            quotient = floor_divide("signed", left, right)
            return quotient if isinstance(atom, FloorDiv) else left - quotient * right
        opcode = "urem" if isinstance(atom, Mod) else "udiv"
        if fits_short(atom.left) and fits_short(atom.right):
            short = e.binary(opcode, e.cast("trunc", left, "i32"), self._short(right))
            return e.cast("zext", short, "i64")
        return e.binary(opcode, left, right)

    def _short(self, value: Value) -> Value:
        e = self.emitter
        return (
            e.constant(int(value.text), "i32") if value.constant else e.cast("trunc", value, "i32")
        )

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
        """A scalar pointer, or one per lane; and whether the scalar pointer starts a run of `lanes`
        adjacent elements."""
        e = self.emitter
        base, type = self.base[buffer], REPRESENTATIONS[self.dtypes[buffer]].memory
        if buffer in self.per_lane:
            pointer = e.pointer(base, type, self.index(expr) * e.lanes)
            return (
                (pointer, True)
                if pointer.lanes == 1
                else (e.pointer(pointer, type, e.iota("i64")), False)
            )
        varying = [
            s
            for s in expr.symbols
            if s is self.vector or (s in self.bound and self.bound[s].lanes > 1)
        ]
        linear = (
            expr.linear((self.vector,)) if self.vector in varying and len(varying) == 1 else None
        )
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

    def _stride(self, buffer: str, expr: Expr) -> tuple[int, Expr] | None:
        """(the constant distance between neighbouring lanes' elements, the index without the vector
        loop's share)."""
        vector = self.vector
        if vector is None or vector not in expr.symbols or buffer in self.per_lane:
            return None
        if any(s in self.bound and self.bound[s].lanes > 1 for s in expr.symbols):
            return None
        linear = expr.linear((vector,))
        stride = None if linear is None else linear[1][vector].constant
        return None if linear is None or stride is None else (stride, linear[0])

    def _lane_pointer(self, buffer: str, stride: int, offset: Expr, lane: int) -> Value:
        """The address of one lane's element, `stride` and `offset` being what `_stride` gives."""
        e, type = self.emitter, REPRESENTATIONS[self.dtypes[buffer]].memory
        assert self.vector is not None
        pointer = e.pointer(self.base[buffer], type, self.index(offset))
        pointer = e.pointer(pointer, type, self.bound[self.vector] * stride)
        return e.pointer(pointer, type, (self.shift + lane) * stride)

    def sure_depth(self, depth: int) -> int:
        """The outermost depth, not less than `depth`, from which the present point is sure to be
        reached."""
        scopes = self.emitter.scopes
        return next((d for d in range(len(scopes) - 1, depth, -1) if not scopes[d].sure), depth)

    def both(self, a: Value | None, b: Value | None) -> Any:
        """The conjunction of two conditions, None being true."""
        return a if b is None else b if a is None else a & b

    def check(self, buffer: str, pointer: Value, adjacent: bool, condition: Value | None) -> None:
        """Where bounds are checked: report an access at `pointer` that is not within the buffer. Of
        a run of adjacent elements those in range and under `condition` count."""
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
        e = self.emitter
        dtype = self.dtypes[buffer]
        form = REPRESENTATIONS[dtype]
        size = dtype.itemsize
        block = self.transposed.get((buffer, expr))
        if block is not None:
            value = self._load_adjacent(block, form.memory, size, None, "")
            return e.compare("ne", value, 0) if form.kind == "bool" else value
        pointer, adjacent = self.address(buffer, expr)
        self.check(buffer, pointer, adjacent, condition)
        if pointer.lanes > 1:
            mask = self.both(self.mask, condition)
            found = self._stride(buffer, expr)
            if found is not None and found[0] == -1:
                mask = mask if mask is None else e.reversed_lanes(mask)
                last = self._lane_pointer(buffer, *found, e.lanes - 1)
                value = e.reversed_lanes(self._load_adjacent(last, form.memory, size, mask, buffer))
            elif found is not None and abs(found[0]) <= SHORT_STRIDE and mask is None:
                value = self._load_strided(buffer, *found)
            else:
                value = self._gather(pointer, form.memory, size, mask, buffer)
        elif adjacent:
            mask = None if buffer in self.per_lane else self.both(self.mask, condition)
            value = self._load_adjacent(pointer, form.memory, size, mask, buffer)
        else:
            value = self._load_one(pointer, form.memory, size, condition, buffer)
        return e.compare("ne", value, 0) if form.kind == "bool" else value

    def _fetch(self, text: str, type: str, lanes: int, depth: int, buffer: str) -> Value:
        if buffer in self.mutable:
            return self.emitter.here(text, type, lanes)
        return self.emitter.place(text, type, lanes, self.sure_depth(depth))

    def _load_one(
        self, pointer: Value, type: str, size: int, condition: Value | None, buffer: str
    ) -> Value:
        e = self.emitter
        if condition is None:
            return self._fetch(
                f"load {type}, ptr {pointer.text}, align {size}", type, 1, pointer.depth, buffer
            )
        reached = e.any_lane(condition if condition.lanes == 1 else self.both(self.mask, condition))
        safe = e.select(reached, pointer, Value(e, "@ingot.zeros", "ptr", 1, 0))
        value = self._fetch(
            f"load {type}, ptr {safe.text}, align {size}", type, 1, safe.depth, buffer
        )
        return e.select(condition, value, 0) if condition.lanes > 1 else value

    def _load_adjacent(
        self, pointer: Value, type: str, size: int, mask: Value | None, buffer: str
    ) -> Value:
        e = self.emitter
        vector = vector_type(type, e.lanes)
        if mask is None:
            return self._fetch(
                f"load {vector}, ptr {pointer.text}, align {size}",
                type,
                e.lanes,
                pointer.depth,
                buffer,
            )
        masks = vector_type("i1", e.lanes)
        function = f"llvm.masked.load.{mangled(type, e.lanes)}.p0"
        e.declare(vector, function, f"ptr, i32, {masks}, {vector}")
        text = (
            f"call {vector} @{function}(ptr {pointer.text}, i32 {size}, {masks} "
            f"{e.argument(mask, e.lanes)}, "
            f"{vector} zeroinitializer)"
        )
        return self._fetch(text, type, e.lanes, max(pointer.depth, mask.depth), buffer)

    def _gather(
        self, pointers: Value, type: str, size: int, mask: Value | None, buffer: str
    ) -> Value:
        e = self.emitter
        vector, masks, addresses = (vector_type(t, e.lanes) for t in (type, "i1", "ptr"))
        function = f"llvm.masked.gather.{mangled(type, e.lanes)}.v{e.lanes}p0"
        e.declare(vector, function, f"{addresses}, i32, {masks}, {vector}")
        allowed = e.argument(mask, e.lanes) if mask is not None else "splat (i1 true)"
        text = (
            f"call {vector} @{function}({addresses} {pointers.text}, i32 {size}, {masks} "
            f"{allowed}, "
            f"{vector} zeroinitializer)"
        )
        depth = max(pointers.depth, mask.depth if mask is not None else 0)
        return self._fetch(text, type, e.lanes, depth, buffer)

    def _load_strided(self, buffer: str, stride: int, offset: Expr) -> Value:
        """Whole vectors are loaded, from the first lane's element to the last one's, and the
        elements picked out. Loads that together take all of the elements between share the
        vectors."""
        e, step = self.emitter, abs(stride)
        form, size = REPRESENTATIONS[self.dtypes[buffer]], self.dtypes[buffer].itemsize
        phase = self._phase(buffer, stride, offset)
        starts = [part * e.lanes for part in range(step)]
        if phase is None:
            phase, starts[-1] = 0, (e.lanes - 1) * (step - 1)
        first = self._lane_pointer(buffer, stride, offset - phase, 0 if stride > 0 else e.lanes - 1)
        pointers = (e.pointer(first, form.memory, start) for start in starts)
        parts = [
            self._load_adjacent(pointer, form.memory, size, None, buffer) for pointer in pointers
        ]
        elements = range(phase, phase + e.lanes * step, step)
        places = [
            next((p, n - s) for p, s in enumerate(starts) if 0 <= n - s < e.lanes) for n in elements
        ]
        return e.collect(parts, places if stride > 0 else places[::-1])

    def _phase(self, buffer: str, stride: int, offset: Expr) -> int | None:
        """The element's number among `stride` ones that lie side by side, where all of them are
        loaded; else None."""
        rest, own = split_constant(offset)
        loaded = set()
        for other, expr in self.strided if stride > 0 else ():
            found = self._stride(other, expr) if other == buffer else None
            if found is not None and found[0] == stride and split_constant(found[1])[0] == rest:
                loaded.add(split_constant(found[1])[1])
        if own not in loaded:
            return None
        first = own - (own - min(loaded)) % stride
        return own - first if loaded.issuperset(range(first, first + stride)) else None

    # -- stores ------------------------------------------------------------------------------------

    def store_all(self, stores: Sequence[tuple[str, Expr, Value, str]]) -> None:
        """Several stores, as `store` takes them, of one body. Those that together write side by
        side do so in whole vectors."""
        sides: dict[tuple[str, int, Expr], dict[int, tuple[Expr, Value]]] = {}
        for buffer, expr, value, mode in stores:
            found = self._stride(buffer, expr) if mode == "store" and self.mask is None else None
            if found is None or not 1 < found[0] <= SHORT_STRIDE:
                self.store(buffer, expr, value, mode)
                continue
            rest, own = split_constant(found[1])
            sides.setdefault((buffer, found[0], rest), {})[own] = expr, value
        for (buffer, stride, rest), members in sides.items():
            for own in sorted(members):
                group = [members.get(k) for k in range(own, own + stride)]
                if None not in group:
                    self._store_side_by_side(buffer, stride, rest + own, group)  # type: ignore[arg-type]
                    for k in range(own, own + stride):
                        del members[k]
                elif own in members:
                    self.store(buffer, *members[own], "store")

    def _store_side_by_side(
        self, buffer: str, stride: int, offset: Expr, group: list[tuple[Expr, Value]]
    ) -> None:
        e, lanes, size = self.emitter, self.emitter.lanes, self.dtypes[buffer].itemsize
        for expr, _ in group:
            self.check(buffer, *self.address(buffer, expr), None)
        values = [e.splat(self._stored(buffer, value), lanes) for _, value in group]
        pointer = self._lane_pointer(buffer, stride, offset, 0)
        for part in range(stride):
            places = [(n % stride, n // stride) for n in range(part * lanes, (part + 1) * lanes)]
            target = e.pointer(pointer, values[0].type, part * lanes)
            self._store_adjacent(target, e.collect(values, places), size, None)

    def _stored(self, buffer: str, value: Value) -> Value:
        """A value of the buffer's dtype as it lies in memory."""
        e = self.emitter
        if self.dtypes[buffer] is not torch.bool:
            return value
        return (
            e.cast("zext", value, "i8")
            if not value.constant
            else e.constant(value.text == "true", "i8")
        )

    def store(self, buffer: str, expr: Expr, value: Value, mode: str) -> None:
        """Write `value`, of the buffer's dtype, at `expr`: "store" replaces, the other modes
        combine, lane after lane."""
        e = self.emitter
        value = self._stored(buffer, value)
        pointer, adjacent = self.address(buffer, expr)
        self.check(buffer, pointer, adjacent, None)
        mask = None if buffer in self.per_lane and adjacent else self.mask
        found = self._stride(buffer, expr) if pointer.lanes > 1 and mask is None else None
        if mode != "store":
            self._update(buffer, pointer, adjacent, value, mode)
        elif found is not None and 1 < found[0] <= SHORT_STRIDE and self._masks_stores(buffer):
            self._store_strided(
                self._lane_pointer(buffer, *found, 0), found[0], value, self.dtypes[buffer].itemsize
            )
        elif adjacent:
            self._store_adjacent(pointer, value, self.dtypes[buffer].itemsize, mask)
        elif pointer.lanes == 1 and value.lanes == 1:
            e.line(
                f"store {value.type} {value.text}, ptr {pointer.text}, align "
                f"{self.dtypes[buffer].itemsize}"
            )
        else:
            self._scatter(e.splat(pointer, e.lanes), value, self.dtypes[buffer].itemsize, mask)

    def _masks_stores(self, buffer: str) -> bool:
        """Whether the target stores vectors of the buffer's elements under a mask."""
        return self.emitter.vector_bytes >= (64 if self.dtypes[buffer].itemsize < 4 else 32)

    def _store_strided(self, pointer: Value, stride: int, value: Value, size: int) -> None:
        """Vectors in which every `stride`th lane counts, the others being masked."""
        e, lanes = self.emitter, self.emitter.lanes
        value = e.splat(value, lanes)
        for part in range(stride):
            numbers = range(part * lanes, (part + 1) * lanes)
            spread = e.shuffle(value, None, [None if n % stride else n // stride for n in numbers])
            mask = "<" + ", ".join("i1 false" if n % stride else "i1 true" for n in numbers) + ">"
            target = e.pointer(pointer, value.type, part * lanes)
            self._store_adjacent(target, spread, size, Value(e, mask, "i1", lanes, 0))

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
        vector, masks, addresses = (vector_type(t, e.lanes) for t in (value.type, "i1", "ptr"))
        function = f"llvm.masked.scatter.{mangled(value.type, e.lanes)}.v{e.lanes}p0"
        e.declare("void", function, f"{vector}, {addresses}, i32, {masks}")
        allowed = mask.text if mask is not None else "splat (i1 true)"
        operand = e.argument(value, e.lanes)
        e.line(
            f"call void @{function}({vector} {operand}, {addresses} {pointers.text}, i32 {size}, "
            f"{masks} {allowed})"
        )

    def _update(self, buffer: str, pointer: Value, adjacent: bool, value: Value, mode: str) -> None:
        """One lane at a time where lanes may meet at one address; lanes out of range write to a
        place of their own."""
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
        pointers = (
            e.pointer(pointer, type, e.iota("i64")) if adjacent else e.splat(pointer, e.lanes)
        )
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
            wide = [convert(v, dtype, torch.float32) for v in (old, value)]
            new = convert(_combined(torch.float32, mode, *wide), torch.float32, dtype)
        else:
            new = _combined(dtype, mode, old, value)
        e.line(f"store {new.type} {new.text}, ptr {pointer.text}, align {size}")


HALVES = (torch.bfloat16, torch.float16)
_KINDS = {"add": "sum", "mul": "prod", "max": "max", "min": "min"}


def _combined(dtype: torch.dtype, mode: str, old: Value, new: Value) -> Value:
    return combine(_KINDS[mode], dtype, (old,), (new,))[0]
