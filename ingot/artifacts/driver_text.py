"""The part of a shared library's driver that is the same for all: LLVM text.

It has what `ingot_artifact.h` declares, but for the entries. `driver.py` writes these, and the
tables that this text refers to. A model is seven pointers and numbers, and behind them two pointers
for each tensor of the state: to its memory, and to the memory that the model has to free.
"""

MESSAGES = {
    "no.error": "",
    "no.memory": "there is no memory",
    "no.weight": "no weight of this name has the dtype, sizes and strides of the tensor",
    "no.weights": "a weight is missing: set each of them first",
    "no.entry": "there is no such entry, or none whose facts hold for these arguments",
    "too.large": "a size does not fit in 64 bits",
    "wrong.count": "the number of inputs or outputs is another one",
}
"""What `ingot_model_error` says, by the names that the text has for it."""

TEXT = """
%Model = type { ptr, ptr, i64, ptr, i64, ptr, ptr, i32, i32 }
; the reason, arena, its bytes, scratch, its bytes, parallel_for, its context, workers
%State = type { i64, i64, i64 }
; where it begins in @weights or -1, its bytes, whether it is written
%Weight = type { ptr, i64, i64, i64, ptr, ptr }
; name, number among the state, rank, dtype, sizes, strides
%Task = type { ptr, ptr, ptr, i64, i64, ptr, i64, i32, i32 }
; kernel, buffers, sizes, extent, unit, scratch, scratch's stride, status

declare ptr @aligned_alloc(i64, i64)
declare ptr @calloc(i64, i64)
declare void @free(ptr)
declare i32 @strcmp(ptr, ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define i32 @ingot_abi() { ret i32 1 }

define ptr @ingot_description() { ret ptr @description }

define ptr @ingot_model_error(ptr %model) {
  %reason = load ptr, ptr %model
  ret ptr %reason
}

; Has the place on the left say what the one on the right does, if that says anything.
define internal void @remember(ptr %left, ptr %right) {
  %reason = load ptr, ptr %right
  %none = icmp eq ptr %reason, null
  br i1 %none, label %end, label %say
say:
  store ptr %reason, ptr %left
  br label %end
end:
  ret void
}

define internal ptr @allocated(i64 %bytes) {
  %more = add i64 %bytes, 64
  %whole = and i64 %more, -64
  %memory = call ptr @aligned_alloc(i64 64, i64 %whole)
  ret ptr %memory
}

define internal ptr @copied(ptr %from, i64 %bytes) {
  %memory = call ptr @allocated(i64 %bytes)
  %none = icmp eq ptr %memory, null
  br i1 %none, label %end, label %copy
copy:
  call void @llvm.memcpy.p0.p0.i64(ptr %memory, ptr %from, i64 %bytes, i1 false)
  br label %end
end:
  ret ptr %memory
}

; -- what belongs to a model

define internal ptr @state_place(ptr %model, i64 %number) {
  %first = getelementptr %Model, ptr %model, i64 1
  %double = shl i64 %number, 1
  %place = getelementptr ptr, ptr %first, i64 %double
  ret ptr %place
}

define ptr @ingot_model_new() {
  %why = call ptr @ingot_why_not()
  %fits = icmp eq ptr %why, null
  br i1 %fits, label %make, label %none
make:
  %count = load i64, ptr @state_count
  %pairs = shl i64 %count, 4
  %bytes = add i64 %pairs, ptrtoint (ptr getelementptr (%Model, ptr null, i64 1) to i64)
  %model = call ptr @calloc(i64 1, i64 %bytes)
  %failed = icmp eq ptr %model, null
  br i1 %failed, label %none, label %fill
fill:
  store ptr @no.error, ptr %model
  br label %next
next:
  %k = phi i64 [ 0, %fill ], [ %after, %done ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %end
one:
  %row = getelementptr %State, ptr @states, i64 %k
  %offset = load i64, ptr %row
  %is.here = icmp sge i64 %offset, 0
  br i1 %is.here, label %embedded, label %done
embedded:
  %from = getelementptr i8, ptr @weights, i64 %offset
  %size.place = getelementptr %State, ptr %row, i64 0, i32 1
  %size = load i64, ptr %size.place
  %kept = call i1 @keep(ptr %model, i64 %k, ptr %from, i64 %size)
  br i1 %kept, label %done, label %undo
done:
  %after = add i64 %k, 1
  br label %next
undo:
  call void @ingot_model_delete(ptr %model)
  ret ptr null
none:
  ret ptr null
end:
  ret ptr %model
}

define internal i1 @keep(ptr %model, i64 %number, ptr %from, i64 %bytes) {
  %place = call ptr @state_place(ptr %model, i64 %number)
  %own.place = getelementptr ptr, ptr %place, i64 1
  %flag.place = getelementptr %State, ptr @states, i64 %number, i32 2
  %flag = load i64, ptr %flag.place
  %is.written = icmp ne i64 %flag, 0
  br i1 %is.written, label %copy, label %borrow
borrow:
  store ptr %from, ptr %place
  ret i1 true
copy:
  %memory = call ptr @copied(ptr %from, i64 %bytes)
  %none = icmp eq ptr %memory, null
  br i1 %none, label %failed, label %replace
replace:
  %old = load ptr, ptr %own.place
  call void @free(ptr %old)
  store ptr %memory, ptr %place
  store ptr %memory, ptr %own.place
  ret i1 true
failed:
  ret i1 false
}

define void @ingot_model_delete(ptr %model) {
  %none = icmp eq ptr %model, null
  br i1 %none, label %end, label %begin
begin:
  %count = load i64, ptr @state_count
  br label %next
next:
  %k = phi i64 [ 0, %begin ], [ %after, %one ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %rest
one:
  %place = call ptr @state_place(ptr %model, i64 %k)
  %own.place = getelementptr ptr, ptr %place, i64 1
  %own = load ptr, ptr %own.place
  call void @free(ptr %own)
  %after = add i64 %k, 1
  br label %next
rest:
  %arena.place = getelementptr %Model, ptr %model, i64 0, i32 1
  %arena = load ptr, ptr %arena.place
  call void @free(ptr %arena)
  %scratch.place = getelementptr %Model, ptr %model, i64 0, i32 3
  %scratch = load ptr, ptr %scratch.place
  call void @free(ptr %scratch)
  call void @free(ptr %model)
  br label %end
end:
  ret void
}

define i32 @ingot_model_set_weight(ptr %model, ptr %name, ptr %tensor) {
  %count = load i64, ptr @weight_count
  br label %next
next:
  %k = phi i64 [ 0, %0 ], [ %after, %other ]
  %more = icmp slt i64 %k, %count
  br i1 %more, label %one, label %unknown
one:
  %row = getelementptr %Weight, ptr @weight_rows, i64 %k
  %its.name = load ptr, ptr %row
  %order = call i32 @strcmp(ptr %its.name, ptr %name)
  %is.it = icmp eq i32 %order, 0
  br i1 %is.it, label %found, label %other
other:
  %after = add i64 %k, 1
  br label %next
found:
  %number.place = getelementptr %Weight, ptr %row, i64 0, i32 1
  %rank.place = getelementptr %Weight, ptr %row, i64 0, i32 2
  %dtype.place = getelementptr %Weight, ptr %row, i64 0, i32 3
  %sizes.place = getelementptr %Weight, ptr %row, i64 0, i32 4
  %strides.place = getelementptr %Weight, ptr %row, i64 0, i32 5
  %number = load i64, ptr %number.place
  %rank = load i64, ptr %rank.place
  %dtype = load i64, ptr %dtype.place
  %sizes = load ptr, ptr %sizes.place
  %strides = load ptr, ptr %strides.place
  %fits = call i1 @has_facts(ptr %tensor, i64 %rank, i64 %dtype, ptr %sizes, ptr %strides)
  br i1 %fits, label %use, label %unknown
use:
  %from = call ptr @data_of(ptr %tensor)
  %bytes.place = getelementptr %State, ptr @states, i64 %number, i32 1
  %bytes = load i64, ptr %bytes.place
  %kept = call i1 @keep(ptr %model, i64 %number, ptr %from, i64 %bytes)
  br i1 %kept, label %good, label %full
good:
  store ptr @no.error, ptr %model
  ret i32 0
unknown:
  store ptr @no.weight, ptr %model
  ret i32 1
full:
  store ptr @no.memory, ptr %model
  ret i32 2
}

define void @ingot_model_set_threads(ptr %model, ptr %parallel, ptr %context, i32 %workers) {
  %parallel.place = getelementptr %Model, ptr %model, i64 0, i32 5
  %context.place = getelementptr %Model, ptr %model, i64 0, i32 6
  %workers.place = getelementptr %Model, ptr %model, i64 0, i32 7
  %few = icmp slt i32 %workers, 2
  %used = select i1 %few, ptr null, ptr %parallel
  store ptr %used, ptr %parallel.place
  store ptr %context, ptr %context.place
  store i32 %workers, ptr %workers.place
  ret void
}

; Memory of a model that only grows: its pointer, and behind that its bytes.
define internal i1 @grown(ptr %place, i64 %bytes) {
  %size.place = getelementptr ptr, ptr %place, i64 1
  %size = load i64, ptr %size.place
  %enough = icmp sge i64 %size, %bytes
  br i1 %enough, label %good, label %grow
grow:
  %old = load ptr, ptr %place
  call void @free(ptr %old)
  store ptr null, ptr %place
  store i64 0, ptr %size.place
  %memory = call ptr @allocated(i64 %bytes)
  %none = icmp eq ptr %memory, null
  br i1 %none, label %failed, label %keep
keep:
  store ptr %memory, ptr %place
  store i64 %bytes, ptr %size.place
  br label %good
good:
  ret i1 true
failed:
  ret i1 false
}

; -- tensors

define internal ptr @data_of(ptr %tensor) {
  %data = load ptr, ptr %tensor
  %offset.place = getelementptr i8, ptr %tensor, i64 40
  %offset = load i64, ptr %offset.place
  %begin = getelementptr i8, ptr %data, i64 %offset
  ret ptr %begin
}

define internal i64 @size_of(ptr %tensor, i64 %dim) {
  %shape.place = getelementptr i8, ptr %tensor, i64 24
  %shape = load ptr, ptr %shape.place
  %place = getelementptr i64, ptr %shape, i64 %dim
  %size = load i64, ptr %place
  ret i64 %size
}

; The stride along a dimension; that of contiguous tensors where there are none, or the size is 1.
define internal i64 @stride_of(ptr %tensor, i64 %dim) {
  %strides.place = getelementptr i8, ptr %tensor, i64 32
  %strides = load ptr, ptr %strides.place
  %none = icmp eq ptr %strides, null
  %own = call i64 @size_of(ptr %tensor, i64 %dim)
  %is.one = icmp eq i64 %own, 1
  %usual = or i1 %none, %is.one
  br i1 %usual, label %compute, label %given
given:
  %place = getelementptr i64, ptr %strides, i64 %dim
  %stride = load i64, ptr %place
  ret i64 %stride
compute:
  %rank.place = getelementptr i8, ptr %tensor, i64 16
  %rank = load i32, ptr %rank.place
  %end = sext i32 %rank to i64
  br label %next
next:
  %d = phi i64 [ %dim, %compute ], [ %inner, %one ]
  %product = phi i64 [ 1, %compute ], [ %larger, %one ]
  %inner = add i64 %d, 1
  %more = icmp slt i64 %inner, %end
  br i1 %more, label %one, label %last
one:
  %size = call i64 @size_of(ptr %tensor, i64 %inner)
  %larger = mul i64 %product, %size
  br label %next
last:
  ret i64 %product
}

; Whether a tensor is on a CPU, of this rank and dtype, with these sizes and strides, of which -1 is
; any. The stride of a size of 1 is any as well.
define internal i1 @has_facts(ptr %tensor, i64 %rank, i64 %dtype, ptr %sizes, ptr %strides) {
  %none = icmp eq ptr %tensor, null
  br i1 %none, label %no, label %look
look:
  %device.place = getelementptr i8, ptr %tensor, i64 8
  %device = load i32, ptr %device.place
  %on.cpu = icmp eq i32 %device, 1
  %rank.place = getelementptr i8, ptr %tensor, i64 16
  %its.rank = load i32, ptr %rank.place
  %its.rank.wide = sext i32 %its.rank to i64
  %same.rank = icmp eq i64 %its.rank.wide, %rank
  %dtype.place = getelementptr i8, ptr %tensor, i64 20
  %its.dtype = load i32, ptr %dtype.place
  %its.dtype.wide = zext i32 %its.dtype to i64
  %same.dtype = icmp eq i64 %its.dtype.wide, %dtype
  %some = and i1 %on.cpu, %same.rank
  %all = and i1 %some, %same.dtype
  br i1 %all, label %next, label %no
next:
  %d = phi i64 [ 0, %look ], [ %after, %good ]
  %more = icmp slt i64 %d, %rank
  br i1 %more, label %one, label %yes
one:
  %size = call i64 @size_of(ptr %tensor, i64 %d)
  %wanted.place = getelementptr i64, ptr %sizes, i64 %d
  %wanted = load i64, ptr %wanted.place
  %any.size = icmp eq i64 %wanted, -1
  %same.size = icmp eq i64 %size, %wanted
  %is.negative = icmp slt i64 %size, 0
  %size.fits = or i1 %any.size, %same.size
  %size.refused = xor i1 %size.fits, true
  %bad.size = or i1 %size.refused, %is.negative
  br i1 %bad.size, label %no, label %step
step:
  %stride = call i64 @stride_of(ptr %tensor, i64 %d)
  %stride.place = getelementptr i64, ptr %strides, i64 %d
  %wanted.stride = load i64, ptr %stride.place
  %any.stride = icmp eq i64 %wanted.stride, -1
  %same.stride = icmp eq i64 %stride, %wanted.stride
  %is.one = icmp eq i64 %size, 1
  %free = or i1 %any.stride, %is.one
  %stride.fits = or i1 %free, %same.stride
  br i1 %stride.fits, label %good, label %no
good:
  %after = add i64 %d, 1
  br label %next
yes:
  ret i1 true
no:
  ret i1 false
}

; A tensor that owns `memory` and begins at `data`; its shape and strides are the caller's to fill.
define internal ptr @made(ptr %memory, ptr %data, i64 %rank, i64 %dtype) {
  %room = shl i64 %rank, 4
  %bytes = add i64 %room, 64
  %tensor = call ptr @calloc(i64 1, i64 %bytes)
  %none = icmp eq ptr %tensor, null
  br i1 %none, label %end, label %fill
fill:
  store ptr %data, ptr %tensor
  %device.place = getelementptr i8, ptr %tensor, i64 8
  store i32 1, ptr %device.place
  %rank.place = getelementptr i8, ptr %tensor, i64 16
  %short = trunc i64 %rank to i32
  store i32 %short, ptr %rank.place
  %dtype.place = getelementptr i8, ptr %tensor, i64 20
  %type = trunc i64 %dtype to i32
  store i32 %type, ptr %dtype.place
  %shape = getelementptr i8, ptr %tensor, i64 64
  %shape.place = getelementptr i8, ptr %tensor, i64 24
  store ptr %shape, ptr %shape.place
  %strides = getelementptr i64, ptr %shape, i64 %rank
  %strides.place = getelementptr i8, ptr %tensor, i64 32
  store ptr %strides, ptr %strides.place
  %context.place = getelementptr i8, ptr %tensor, i64 48
  store ptr %memory, ptr %context.place
  %deleter.place = getelementptr i8, ptr %tensor, i64 56
  store ptr @unmade, ptr %deleter.place
  br label %end
end:
  ret ptr %tensor
}

define internal void @unmade(ptr %tensor) {
  %none = icmp eq ptr %tensor, null
  br i1 %none, label %end, label %work
work:
  %context.place = getelementptr i8, ptr %tensor, i64 48
  %memory = load ptr, ptr %context.place
  call void @free(ptr %memory)
  call void @free(ptr %tensor)
  br label %end
end:
  ret void
}

; Python's division and remainder; by 0 they are 0, and a condition has refused that.
define internal i64 @floordiv(i64 %a, i64 %b) {
  %zero = icmp eq i64 %b, 0
  %minus = icmp eq i64 %b, -1
  %odd = or i1 %zero, %minus
  br i1 %odd, label %special, label %usual
special:
  %opposite = sub i64 0, %a
  %result = select i1 %zero, i64 0, i64 %opposite
  ret i64 %result
usual:
  %quotient = sdiv i64 %a, %b
  %back = mul i64 %quotient, %b
  %rest = sub i64 %a, %back
  %exact = icmp eq i64 %rest, 0
  %signs = xor i64 %rest, %b
  %differ = icmp slt i64 %signs, 0
  %inexact = xor i1 %exact, true
  %lower = and i1 %differ, %inexact
  %one = zext i1 %lower to i64
  %floor = sub i64 %quotient, %one
  ret i64 %floor
}

define internal i64 @mod(i64 %a, i64 %b) {
  %quotient = call i64 @floordiv(i64 %a, i64 %b)
  %back = mul i64 %quotient, %b
  %rest = sub i64 %a, %back
  ret i64 %rest
}

; -- launches

; Runs a kernel over `extent` points that take so many picoseconds each.
define internal i32 @launched(ptr %model, ptr %kernel, ptr %buffers, ptr %sizes, i64 %extent,
                              i64 %unit, i64 %bytes, i64 %work) {
  %some = icmp sgt i64 %extent, 0
  br i1 %some, label %begin, label %nothing
nothing:
  ret i32 0
begin:
  %scratch.more = add i64 %bytes, 64
  %stride = and i64 %scratch.more, -64
  %parallel.place = getelementptr %Model, ptr %model, i64 0, i32 5
  %parallel = load ptr, ptr %parallel.place
  %alone = icmp eq ptr %parallel, null
  %total = mul i64 %extent, %work
  %short = icmp slt i64 %total, 6000000
  %serial = or i1 %alone, %short
  %workers.place = getelementptr %Model, ptr %model, i64 0, i32 7
  %workers = load i32, ptr %workers.place
  %count = select i1 %serial, i32 1, i32 %workers
  %wide = sext i32 %count to i64
  %all = mul i64 %stride, %wide
  %scratch.place = getelementptr %Model, ptr %model, i64 0, i32 3
  %grown = call i1 @grown(ptr %scratch.place, i64 %all)
  br i1 %grown, label %run, label %full
full:
  store ptr @no.memory, ptr %model
  ret i32 -2
run:
  %scratch = load ptr, ptr %scratch.place
  %task = alloca %Task
  store ptr %kernel, ptr %task
  %buffers.place = getelementptr %Task, ptr %task, i64 0, i32 1
  store ptr %buffers, ptr %buffers.place
  %sizes.place = getelementptr %Task, ptr %task, i64 0, i32 2
  store ptr %sizes, ptr %sizes.place
  %extent.place = getelementptr %Task, ptr %task, i64 0, i32 3
  store i64 %extent, ptr %extent.place
  %unit.place = getelementptr %Task, ptr %task, i64 0, i32 4
  store i64 %unit, ptr %unit.place
  %memory.place = getelementptr %Task, ptr %task, i64 0, i32 5
  store ptr %scratch, ptr %memory.place
  %stride.place = getelementptr %Task, ptr %task, i64 0, i32 6
  store i64 %stride, ptr %stride.place
  %status.place = getelementptr %Task, ptr %task, i64 0, i32 7
  store i32 0, ptr %status.place
  %above = add i64 %extent, %unit
  %rounded = sub i64 %above, 1
  %units = sdiv i64 %rounded, %unit
  br i1 %serial, label %here, label %there
here:
  call void @piece(ptr %task, i64 0, i64 %units, i32 0)
  br label %end
there:
  %context.place = getelementptr %Model, ptr %model, i64 0, i32 6
  %context = load ptr, ptr %context.place
  call void %parallel(ptr %context, ptr @piece, ptr %task, i64 %units)
  br label %end
end:
  %status = load atomic i32, ptr %status.place acquire, align 4
  ret i32 %status
}

; Runs a part of a launch, in units of points.
define internal void @piece(ptr %task, i64 %begin, i64 %end, i32 %worker) {
  %kernel = load ptr, ptr %task
  %buffers.place = getelementptr %Task, ptr %task, i64 0, i32 1
  %buffers = load ptr, ptr %buffers.place
  %sizes.place = getelementptr %Task, ptr %task, i64 0, i32 2
  %sizes = load ptr, ptr %sizes.place
  %extent.place = getelementptr %Task, ptr %task, i64 0, i32 3
  %extent = load i64, ptr %extent.place
  %unit.place = getelementptr %Task, ptr %task, i64 0, i32 4
  %unit = load i64, ptr %unit.place
  %memory.place = getelementptr %Task, ptr %task, i64 0, i32 5
  %memory = load ptr, ptr %memory.place
  %stride.place = getelementptr %Task, ptr %task, i64 0, i32 6
  %stride = load i64, ptr %stride.place
  %from = mul i64 %begin, %unit
  %to.all = mul i64 %end, %unit
  %is.last = icmp sgt i64 %to.all, %extent
  %to = select i1 %is.last, i64 %extent, i64 %to.all
  %wide = sext i32 %worker to i64
  %distance = mul i64 %wide, %stride
  %scratch = getelementptr i8, ptr %memory, i64 %distance
  store i64 0, ptr %scratch
  %status = call i32 %kernel(ptr %buffers, ptr %sizes, i64 %from, i64 %to, ptr %scratch)
  %good = icmp eq i32 %status, 0
  br i1 %good, label %done, label %failed
failed:
  %status.place = getelementptr %Task, ptr %task, i64 0, i32 7
  store atomic i32 %status, ptr %status.place release, align 4
  br label %done
done:
  ret void
}
"""

ANY_PROCESSOR = "define ptr @ingot_why_not() { ret ptr null }\n"

X86_PROCESSOR = """
define ptr @ingot_why_not() {
  %first = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
      "={ax},={bx},={cx},={dx},{ax},{cx}"(i32 1, i32 0)
  %c = extractvalue { i32, i32, i32, i32 } %first, 2
  %c.wanted = and i32 %c, 953159680
  %c.has = icmp eq i32 %c.wanted, 953159680
  br i1 %c.has, label %system, label %no
system:
  %enabled = call { i32, i32 } asm sideeffect "xgetbv", "={ax},={dx},{cx}"(i32 0)
  %low = extractvalue { i32, i32 } %enabled, 0
  %low.wanted = and i32 %low, XCR0
  %low.has = icmp eq i32 %low.wanted, XCR0
  br i1 %low.has, label %vectors, label %no
vectors:
  %seventh = call { i32, i32, i32, i32 } asm sideeffect "cpuid",
      "={ax},={bx},={cx},={dx},{ax},{cx}"(i32 7, i32 0)
  %b = extractvalue { i32, i32, i32, i32 } %seventh, 1
  %b.wanted = and i32 %b, BITS
  %b.has = icmp eq i32 %b.wanted, BITS
  br i1 %b.has, label %yes, label %no
yes:
  ret ptr null
no:
  ret ptr @no.features
}
"""
