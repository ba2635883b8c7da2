"""The private names of torch that Ingot touches: a later torch may rename or drop each of them
without a word.

A name is private if a part of its path begins with an underscore. tests/test_house.py holds these
rules:

- Functions, classes and modules are looked up here, by `find`, and imported from here by the rest
  of Ingot.
- Attributes of torch's objects are read where they are needed. `ATTRIBUTES` lists them, for Python
  and C.
- C code looks up C++ symbols by itself, and has a slower way without each;
  `_native.missing_symbols()` names those that are not there.
- Operators are data of tables. Those that Ingot has a rule for are read through `aten`.
- Strings that are only compared are free: the name of the module that a function is from, or a mark
  that torch.compile leaves on an object. So is what backends.py imports when the user asks for
  another compiler.

A missing name is no error at import. It is logged, `Missing` stands for it, and what needs it runs
in eager: the reason is in the report. Where only running code, and no compilation, would meet it,
the compilation asks `require` first.
"""

from __future__ import annotations

import importlib
import logging
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch.optim import optimizer as _optimizers

from ingot.errors import Unsupported, unsupported

if TYPE_CHECKING:
    from torch._ops import OpOverload as OpOverload
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

ALL = "capture"
GRADIENTS = "compiled gradients"
BACKWARDS = "compiled_backward"
GRAPHS = "CUDA graphs"
SCALERS = "steps of a gradient scaler"
NESTED = "nested tensors"
DONATION = "donated arguments"

MISSING: dict[str, str] = {}
"""By the path of each name that this torch does not have: the feature that is off, "" for what the
name itself does."""


class Missing:
    """Stands for a name, of whatever kind, that this torch does not have. Nothing is an instance of
    it. A class may derive from it, which then has no instances."""

    def __init__(self, path: str) -> None:
        self._path = path

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise _unsupported(self._path, "")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return Missing(f"{self._path}.{name}")

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __subclasscheck__(self, cls: type) -> bool:
        return False

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[type]:
        def refuse(cls: type, *args: Any, **kwargs: Any) -> Any:
            raise _unsupported(self._path, "")

        return (type(self._path.rpartition(".")[2], (), {"__new__": refuse}),)

    def __enter__(self) -> Any:
        raise _unsupported(self._path, "")

    def __exit__(self, *_: object) -> None: ...

    def __repr__(self) -> str:
        return f"<{self._path}, which torch {torch.__version__} does not have>"


def _unsupported(path: str, feature: str) -> Unsupported:
    for_what = ""
    if feature:
        for_what = f", for {feature}"
    return unsupported("torch-lacks", f"{path} is missing in torch {torch.__version__}{for_what}")


def find(path: str, feature: str = "", *, optional: bool = False) -> Any:
    """What torch has of that name. Its absence turns a whole `feature` off, or only what uses the
    name; it is as usual where it is `optional`, as in a torch that is built without CUDA, or before
    it had that."""
    value: Any = torch
    walked = "torch"
    for name in path.split(".")[1:]:
        walked = f"{walked}.{name}"
        try:
            value = getattr(value, name)
        except AttributeError:
            try:
                value = importlib.import_module(walked)
            except ImportError:
                if not optional:
                    MISSING[path] = feature
                return Missing(path)
    return value


def why_off(*features: str) -> Unsupported | None:
    """Why one of these features is off: a name that it needs is missing."""
    for path, feature in MISSING.items():
        if feature in features:
            return _unsupported(path, feature)
    return None


def require(*features: str) -> None:
    """Raises Unsupported where one of them is off."""
    why = why_off(*features)
    if why is not None:
        raise why


# -- the state around a call -----------------------------------------------------------------------

set_grad_enabled = find("torch._C._set_grad_enabled", ALL)
enter_autocast = find("torch.amp._enter_autocast")
exit_autocast = find("torch.amp._exit_autocast")
push_inference_mode = find("torch.autograd.grad_mode._enter_inference_mode")
pop_inference_mode = find("torch.autograd.grad_mode._exit_inference_mode")
InferenceMode = find("torch._C._InferenceMode")
safe_softmax = find("torch._safe_softmax")
get_tracing_state = find("torch._C._get_tracing_state")
is_tracing = find("torch._C._is_tracing")
is_autocast_available = find("torch._C._is_autocast_available")
is_any_autocast_enabled = find("torch._C._is_any_autocast_enabled")
are_functorch_transforms_active = find("torch._C._are_functorch_transforms_active")
autograd_is_checkpoint_valid = find("torch.autograd._is_checkpoint_valid")
get_privateuse1_backend_name = find("torch._C._get_privateuse1_backend_name")
get_fp32_precision_getter = find("torch._C._get_fp32_precision_getter", ALL)
get_cublas_allow_bf16_reduced_precision_reduction = find(
    "torch._C._get_cublas_allow_bf16_reduced_precision_reduction", ALL
)
get_cublas_allow_fp16_reduced_precision_reduction = find(
    "torch._C._get_cublas_allow_fp16_reduced_precision_reduction", ALL
)
get_cublas_allow_fp16_accumulation = find("torch._C._get_cublas_allow_fp16_accumulation", ALL)
top_saved_tensors_default_hooks = find("torch._C._autograd._top_saved_tensors_default_hooks", ALL)
pop_saved_tensors_default_hooks = find("torch._C._autograd._pop_saved_tensors_default_hooks", ALL)
push_saved_tensors_default_hooks = find("torch._C._autograd._push_saved_tensors_default_hooks", ALL)
saved_hooks_message = find(
    "torch._C._autograd._saved_tensors_hooks_get_disabled_error_message", ALL
)
saved_hooks_disable = find("torch._C._autograd._saved_tensors_hooks_disable", ALL)
saved_hooks_enable = find("torch._C._autograd._saved_tensors_hooks_enable", ALL)

set_torchs_default_dtype = find("torch._C._set_default_dtype", ALL)
attention_order = find("torch._C._get_sdp_priority_order", ALL)
set_attention_order = find("torch._C._set_sdp_priority_order", ALL)
get_sdp_flags = (
    find("torch._C._get_flash_sdp_enabled", ALL),
    find("torch._C._get_mem_efficient_sdp_enabled", ALL),
    find("torch._C._get_math_sdp_enabled", ALL),
    find("torch._C._get_cudnn_sdp_enabled", ALL),
    find("torch._C._get_overrideable_sdp_enabled", ALL),
    find("torch._C._get_math_sdp_allow_fp16_bf16_reduction", ALL),
)
set_sdp_flags = (
    find("torch._C._set_sdp_use_flash", ALL),
    find("torch._C._set_sdp_use_mem_efficient", ALL),
    find("torch._C._set_sdp_use_math", ALL),
    find("torch._C._set_sdp_use_cudnn", ALL),
    find("torch._C._set_sdp_use_overrideable", ALL),
    find("torch._C._set_math_sdp_allow_fp16_bf16_reduction", ALL),
)
SDPBackend = find("torch._C._SDPBackend", ALL)
create_function_from_graph = find("torch._C._create_function_from_graph", optional=True)
get_graph_executor_optimize = find("torch._C._get_graph_executor_optimize", optional=True)
set_graph_executor_optimize = find("torch._C._set_graph_executor_optimize", optional=True)
ScriptFunction = find("torch._C.ScriptFunction", optional=True)
ListType = find("torch._C.ListType", optional=True)
JITException = find("torch._C.JITException", optional=True)

# -- modes and dispatch ----------------------------------------------------------------------------

if not TYPE_CHECKING:
    OpOverload = find("torch._ops.OpOverload", ALL)
    OpOverloadPacket = find("torch._ops.OpOverloadPacket", ALL)
    TorchDispatchMode = find("torch.utils._python_dispatch.TorchDispatchMode", ALL)
DeviceContext = find("torch.utils._device.DeviceContext", ALL)
device_constructors = find("torch.utils._device._device_constructors", ALL)
AutoDispatchBelowAutograd = find("torch._C._AutoDispatchBelowAutograd")
DispatchKey = find("torch._C.DispatchKey", ALL)
DisableTorchDispatch = find("torch._C._DisableTorchDispatch", ALL)
disable_current_modes = find("torch.utils._python_dispatch._disable_current_modes", ALL)
DisableTorchFunction = find("torch._C.DisableTorchFunction", ALL)
DisableTorchFunctionSubclass = find("torch._C.DisableTorchFunctionSubclass", ALL)
TensorBase = find("torch._C.TensorBase", ALL)
disabled_torch_dispatch_impl = find("torch._C._disabled_torch_dispatch_impl", ALL)
disabled_torch_function_impl = find("torch._C._disabled_torch_function_impl", ALL)
dispatch_has_kernel = find("torch._C._dispatch_has_kernel", ALL)
dispatch_has_kernel_for_dispatch_key = find("torch._C._dispatch_has_kernel_for_dispatch_key", ALL)
dispatch_keys = find("torch._C._dispatch_keys", ALL)
dispatch_tls_local_exclude_set = find("torch._C._dispatch_tls_local_exclude_set", ALL)
dispatch_tls_local_include_set = find("torch._C._dispatch_tls_local_include_set", ALL)
get_function_stack_at = find("torch._C._get_function_stack_at", ALL)
get_torch_function_state = find("torch._C._get_torch_function_state", ALL)
is_torch_function_enabled = find("torch._C._is_torch_function_enabled")
is_torch_function_mode_enabled = find("torch._C._is_torch_function_mode_enabled")
len_torch_dispatch_stack = find("torch._C._len_torch_dispatch_stack", ALL)
len_torch_function_stack = find("torch._C._len_torch_function_stack", ALL)
log_api_usage_once = find("torch._C._log_api_usage_once")
pop_torch_function_stack = find("torch._C._pop_torch_function_stack")
push_on_torch_function_stack = find("torch._C._push_on_torch_function_stack")
pop_torch_dispatch_stack = find("torch._C._pop_torch_dispatch_stack", ALL)
infra_mode = find("torch._C._get_dispatch_mode", ALL)
FAKE_MODE = find("torch._C._TorchDispatchModeKey.FAKE", ALL)
push_on_torch_dispatch_stack = find("torch._C._push_on_torch_dispatch_stack", ALL)

# -- autograd --------------------------------------------------------------------------------------

CreationMeta = find("torch._C._autograd.CreationMeta", GRADIENTS)
DelayedError = find("torch._C._functions.DelayedError")
FunctionBase = find("torch._C._FunctionBase", ALL)
FunctionSchema = find("torch._C.FunctionSchema")
current_autograd_node = find("torch._C._current_autograd_node", ALL)
efficientzerotensor = find("torch._efficientzerotensor", GRADIENTS)
engine_run_backward = find("torch.autograd.graph._engine_run_backward", GRADIENTS)
get_creation_meta = find("torch._C._autograd._get_creation_meta", GRADIENTS)
set_creation_meta = find("torch._C._autograd._set_creation_meta", GRADIENTS)
get_current_graph_task_id = find("torch._C._current_graph_task_id", GRADIENTS)
get_current_graph_task_keep_graph = find(
    "torch._C._autograd._get_current_graph_task_keep_graph", GRADIENTS
)
increment_version = find("torch._C._increment_version", ALL)
is_checkpoint_valid = find(
    "torch.autograd.Variable._execution_engine.is_checkpoint_valid", GRADIENTS
)
neg_view = find("torch._neg_view", GRADIENTS)
storage_use_count = find("torch._C._storage_Use_Count", GRAPHS)
throw_on_mutable_data_ptr = find("torch._C._set_throw_on_mutable_data_ptr", DONATION)
unsafe_set_version_counter = find("torch._C._autograd._unsafe_set_version_counter", GRADIENTS)
will_engine_execute_node = find("torch._C._will_engine_execute_node", GRADIENTS)
BackwardHookNode = find("torch.nn.modules._functions.BackwardHookFunction._backward_cls")


def backward_class(function: type) -> Any:
    """The class of the nodes of a torch.autograd.Function."""
    result = getattr(function, "_backward_cls", None)
    if result is None:
        MISSING["torch.autograd.Function._backward_cls"] = GRADIENTS
        return Missing("torch.autograd.Function._backward_cls")
    return result


def set_engine(run: Any) -> None:
    """Has torch.autograd's functions call this one in place of `engine_run_backward`."""
    torch.autograd._engine_run_backward = run


# -- transforms of torch.func ----------------------------------------------------------------------

CVmapInterpreterPtr = find("torch._C._functorch.CVmapInterpreterPtr")
RandomnessType = find("torch._C._functorch.RandomnessType")
TransformType = find("torch._C._functorch.TransformType")
VmapInfo = find("torch._functorch.autograd_function.VmapInfo")
add_batch_dim = find("torch._C._functorch._add_batch_dim")
create_batched_inputs = find("torch._functorch.vmap._create_batched_inputs")
flat_vmap = find("torch._functorch.vmap._flat_vmap")
func_decrement_nesting = find("torch._C._functorch._func_decrement_nesting", ALL)
get_dynamic_layer_stack_depth = find("torch._C._functorch.get_dynamic_layer_stack_depth", ALL)
get_inplace_requires_grad_allowed = find("torch._C._functorch.get_inplace_requires_grad_allowed")
get_interpreter_stack = find("torch._C._functorch.get_interpreter_stack")
get_unwrapped = find("torch._C._functorch.get_unwrapped")
grad_and_value_impl = find("torch._functorch.eager_transforms.grad_and_value_impl")
grad_decrement_nesting = find("torch._C._functorch._grad_decrement_nesting", ALL)
grad_increment_nesting = find("torch._C._functorch._grad_increment_nesting")
is_batchedtensor = find("torch._C._functorch.is_batchedtensor")
is_functorch_wrapped_tensor = find("torch._C._functorch.is_functorch_wrapped_tensor", ALL)
is_legacy_batchedtensor = find("torch._C._functorch.is_legacy_batchedtensor", ALL)
jvp_decrement_nesting = find("torch._C._functorch._jvp_decrement_nesting", ALL)
jvp_with_argnums = find("torch._functorch.eager_transforms._jvp_with_argnums")
lazy_load_decompositions = find("torch._functorch.predispatch.lazy_load_decompositions")
maybe_get_bdim = find("torch._C._functorch.maybe_get_bdim")
maybe_get_level = find("torch._C._functorch.maybe_get_level")
peek_interpreter_stack = find("torch._C._functorch.peek_interpreter_stack", ALL)
predispatch_add_batch_dim = find("torch._functorch.predispatch._add_batch_dim")
predispatch_remove_batch_dim = find("torch._functorch.predispatch._remove_batch_dim")
remove_batch_dim = find("torch._C._functorch._remove_batch_dim")
scan_op = find("torch._higher_order_ops.scan")
set_inplace_requires_grad_allowed = find("torch._C._functorch.set_inplace_requires_grad_allowed")
slice_argnums = find("torch._functorch.eager_transforms._slice_argnums")
temporarily_clear_interpreter_stack = find(
    "torch._functorch.pyfunctorch.temporarily_clear_interpreter_stack", ALL
)
tree_flatten = find("torch.utils._pytree.tree_flatten", ALL)
tree_leaves = find("torch.utils._pytree.tree_leaves", ALL)
tree_map = find("torch.utils._pytree.tree_map", ALL)
tree_map_only = find("torch.utils._pytree.tree_map_only", ALL)
tree_unflatten = find("torch.utils._pytree.tree_unflatten", ALL)
unwrap_batched = find("torch._functorch.vmap._unwrap_batched")
unwrap_for_grad = find("torch._C._functorch._unwrap_for_grad")
vjp_with_argnums = find("torch._functorch.eager_transforms._vjp_with_argnums")
vmap_decrement_nesting = find("torch._C._functorch._vmap_decrement_nesting", ALL)
vmap_increment_nesting = find("torch._C._functorch._vmap_increment_nesting")
vmapmode_decrement_nesting = find("torch._C._vmapmode_decrement_nesting", ALL)
vmapmode_increment_nesting = find("torch._C._vmapmode_increment_nesting", ALL)
wrap_for_grad = find("torch._C._functorch._wrap_for_grad")

# -- torch.distributed -----------------------------------------------------------------------------

apply_to_tensors = find("torch.distributed.utils._apply_to_tensors", optional=True)
ProcessGroup = find("torch._C._distributed_c10d.ProcessGroup", optional=True)
collectives = find("torch.ops._c10d_functional")
default_group = find("torch.distributed.distributed_c10d._get_default_group", optional=True)
process_groups = find("torch.distributed.distributed_c10d._world", optional=True)
Placement = find("torch._C._distributed.Placement", optional=True)
rank_not_in_group = find("torch.distributed.distributed_c10d._rank_not_in_group", optional=True)
register_work = find("torch._C._distributed_c10d._register_work", optional=True)
resolve_process_group = find("torch._C._distributed_c10d._resolve_process_group", optional=True)
Work = find("torch._C._distributed_c10d.Work", optional=True)

# -- functions -------------------------------------------------------------------------------------

registered_kernels = find("torch.library._impls", optional=True)
shape_rules = find("torch._decomp.meta_table", optional=True)
VariableFunctions = find("torch._C._VariableFunctions")
pack_padded_sequence = find("torch._pack_padded_sequence")
pad_packed_sequence = find("torch._pad_packed_sequence")
addmm_activation = find("torch._addmm_activation")
amp_foreach_non_finite_check_and_unscale_ = find("torch._amp_foreach_non_finite_check_and_unscale_")
amp_update_scale_ = find("torch._amp_update_scale_")
assert_ = find("torch._assert")
check = find("torch._check")
check_index = find("torch._check_index")
check_is_size = find("torch._check_is_size")
check_not_implemented = find("torch._check_not_implemented")
check_tensor_all = find("torch._check_tensor_all")
check_type = find("torch._check_type")
check_value = find("torch._check_value")
combine_input_and_mask = find("torch.masked._ops._combine_input_and_mask")
conv_determine_backend_memory_format = find("torch._C._conv_determine_backend_memory_format")
_disable_dynamo = find("torch._compile._disable_dynamo")
TORCH_DISABLED_CODE: Any = None
if not isinstance(_disable_dynamo, Missing):
    TORCH_DISABLED_CODE = _disable_dynamo(lambda: None).__code__
foreach_copy_ = find("torch._foreach_copy_", GRAPHS)
foreach_norm = find("torch._foreach_norm")
foreach_pow = find("torch._foreach_pow")
foreach_zero_ = find("torch._foreach_zero_")
fused_adagrad_ = find("torch._fused_adagrad_")
fused_adam_ = find("torch._fused_adam_")
fused_adamw_ = find("torch._fused_adamw_")
fused_sgd_ = find("torch._fused_sgd_")
group_tensors_by_device_and_dtype = find("torch._C._group_tensors_by_device_and_dtype")
masked_identity = find("torch.masked._ops._reduction_identity")
masked_input_mask = find("torch.masked._ops._input_mask")
masked_where = find("torch.masked._ops._where")
library_registry = find("torch._library.simple_registry.singleton", ALL)
exchange_device = find("torch.cuda._exchange_device")
maybe_exchange_device = find("torch.cuda._maybe_exchange_device")
native_nn = find("torch._C._nn")
native_linear = find("torch._C._nn.linear")
native_one_hot = find("torch._C._nn.one_hot")
NestedIntNode = find("torch.nested._internal.nested_int.NestedIntNode", NESTED)
nested_int_of = find("torch.nested._internal.nested_tensor.get_tensor_symint", NESTED)
nested_ints = find("torch.nested._internal.nested_tensor._tensor_symint_registry", NESTED)
constant_bool_node = find("torch._C._get_constant_bool_symnode")
native_attention = find("torch._C._nn.scaled_dot_product_attention")
select_jagged_attention = find("torch.nested._internal.sdpa._select_sdp_backend", NESTED)
JaggedTensor = find("torch.nested._internal.nested_tensor.NestedTensor", NESTED)
jagged_dummy = find("torch.nested._internal.nested_tensor._nt_view_dummy", NESTED)
jagged_from_padded = find("torch.nested._internal.nested_tensor.nested_from_padded", NESTED)
jagged_view = find("torch.nested._internal.nested_tensor.nested_view_from_values_offsets", NESTED)
jagged_view_of_lengths = find(
    "torch.nested._internal.nested_tensor.nested_view_from_values_offsets_lengths", NESTED
)
nested_tensor_from_mask_left_aligned = find("torch._nested_tensor_from_mask_left_aligned")
resize_output_ = find("torch._resize_output_")
set_ctx_getter = find("torch._library.fake_impl.set_ctx_getter")
side_effectful_functions = find("torch.fx.node._side_effectful_functions", ALL)
select_conv_backend = find("torch._C._select_conv_backend")


def substitutes_of_torch() -> dict[Any, Any]:
    """What `torch.compiler.substitute_in_graph` has registered, by the function that it stands for.
    Empty where the program has not imported torch.compile."""
    owner = sys.modules.get("torch._dynamo.variables.functions")
    handlers: dict[Any, Any] = getattr(
        getattr(owner, "PolyfilledFunctionVariable", None), "_get_polyfill_handlers", dict
    )()
    return handlers


# -- classes, and methods of them ------------------------------------------------------------------

CachingTorchDispatchMode = find("torch.utils.checkpoint._CachingTorchDispatchMode")
DecoratorContextManager = find("torch.utils._contextlib._DecoratorContextManager")
LazyGraphModule = find("torch.fx._lazy_graph_module._LazyGraphModule", ALL)
NoParamDecoratorContextManager = find("torch.utils._contextlib._NoParamDecoratorContextManager")
call_impl = find("torch.nn.Module._call_impl", ALL)
lazy_property_and_property = find("torch.distributions.utils._lazy_property_and_property")
maybe_opt_step = find("torch.amp.GradScaler._maybe_opt_step")
multi_tensor_asgd = find("torch.optim.asgd._multi_tensor_asgd")
multi_tensor_radam = find("torch.optim.radam._multi_tensor_radam")
rnn_weights_have_changed = find("torch.nn.RNNBase._weights_have_changed")
# since torch 2.15
set_stack_frame_name = find("torch.utils._contextlib._set_stack_frame_name", optional=True)
single_tensor_asgd = find("torch.optim.asgd._single_tensor_asgd")
single_tensor_radam = find("torch.optim.radam._single_tensor_radam")
wrapped_call_impl = find("torch.nn.Module._wrapped_call_impl", ALL)

CONTEXTLIB_FILE: str = getattr(find("torch.utils._contextlib"), "__file__", "")
"""Whose frames are not the user's."""

# -- CUDA, which a torch may be built without ------------------------------------------------------

CUDAGraph = find("torch._C._CUDAGraph", optional=True)
cuda_end_allocate_to_pool = find("torch._C._cuda_endAllocateToPool", optional=True)
cuda_get_current_raw_stream = find("torch._C._cuda_getCurrentRawStream", optional=True)
cuda_get_device = find("torch._C._cuda_getDevice", optional=True)
cuda_get_memory_metadata = find("torch._C._cuda_getMemoryMetadata", optional=True)
cuda_is_history_enabled = find("torch._C._cuda_isHistoryEnabled", optional=True)
cuda_set_memory_metadata = find("torch._C._cuda_setMemoryMetadata", optional=True)
cuda_is_current_stream_capturing = find("torch._C._cuda_isCurrentStreamCapturing", optional=True)

# -- operators -------------------------------------------------------------------------------------


class _Operators:
    """torch.ops.aten, with `Missing` for an operator that this torch does not have."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            operator = getattr(torch.ops.aten, name)
        except AttributeError:
            operator = Missing(f"torch.ops.aten.{name}")
        setattr(self, name, operator)
        return operator


aten: Any = _Operators()
left_shift = find("torch.ops.aten.__lshift__")
right_shift = find("torch.ops.aten.__rshift__")

ADDRESSING = frozenset(
    getattr(aten, name).default
    for name in ("as_strided", "as_strided_", "as_strided_copy", "as_strided_scatter")
)
"""The ops that count elements from where the storage of their argument begins, and not from the
argument's first."""

# -- attributes ------------------------------------------------------------------------------------

_HOOKS = ("_backward_hooks", "_backward_pre_hooks", "_forward_hooks", "_forward_pre_hooks")

ATTRIBUTES: dict[str, tuple[str, Any, tuple[str, ...]]] = {
    "torch.Tensor": (
        ALL,
        torch.Tensor,
        tuple(
            """
            _backward_hooks _base _cdata _is_view _is_zerotensor _make_wrapper_subclass
            _post_accumulate_grad_hooks _use_count _version
            """.split()
        ),
    ),
    "an operator of torch's": ("", aten.add, ("_qualified_op_name",)),
    "a process group": ("", ProcessGroup, ("_get_backend", "_get_sequence_number_for_group")),
    "a nested tensor": (
        NESTED,
        SimpleNamespace(**vars(JaggedTensor), **getattr(JaggedTensor, "__annotations__", {})),
        ("_lengths", "_maybe_max_seqlen", "_maybe_min_seqlen", "_offsets", "_ragged_idx", "_size",
         "_values"),
    ),
    "torch.UntypedStorage": (ALL, torch.UntypedStorage, ("_cdata",)),
    "torch.nn.Module": (
        ALL, torch.nn.Module(),
        ("_buffers", "_forward_hooks_always_called", "_modules", "_parameters", *_HOOKS),
    ),
    "torch.nn.modules.module": (
        ALL, torch.nn.modules.module,
        tuple([f"_global{name}" for name in (*_HOOKS, "_forward_hooks_always_called")]),
    ),
    "torch.nn.RNNBase": (
        "", torch.nn.RNN(1, 1, device="meta"),
        ("_flat_weights", "_flat_weights_names"),
    ),
    "torch.fx.Graph": (ALL, torch.fx.Graph(), ("_root", "_target_to_str")),
    "an operator": (ALL, getattr(torch.ops.aten.sin, "default", None), ("_op_dk", "_schema")),
    "torch's registry of custom operators": (ALL, library_registry, ("_data",)),
    "torch.autograd.forward_ad": (ALL, torch.autograd.forward_ad, ("_current_level",)),
    "a node of autograd": (
        BACKWARDS, FunctionBase,
        ("_input_metadata", "_raw_saved_tensors", "_sequence_nr", "_set_sequence_nr"),
    ),
    "torch.autograd.Function": (GRADIENTS, torch.autograd.Function, ("_backward_cls",)),
    "torch.optim.optimizer": (
        SCALERS, _optimizers, ("_global_optimizer_post_hooks", "_global_optimizer_pre_hooks"),
    ),
    "torch.optim.Optimizer": (
        # to make one takes seconds
        SCALERS, SimpleNamespace(**getattr(torch.optim.Optimizer, "__annotations__", {})),
        ("_optimizer_step_post_hooks", "_optimizer_step_pre_hooks"),
    ),
}  # fmt: skip
"""Attributes of torch's objects by what these are in words: the feature that is off without them,
an object that has them, and their names."""

MARKS = frozenset({
    # of DTensors, their class and their losses, which only a program of such tensors loads
    "_allow_implicit_replication", "_custom_op_handlers", "_disable_custom_loss_ops",
    "_enable_custom_loss_ops", "_local_tensor", "_op_dispatcher", "_spec",
    # of FSDP's states, groups and parameters, which only a program that shards has: without one its
    # hooks run
    "_fsdp_param_group", "_fsdp_param_groups", "_get_module_fsdp_state", "_is_root", "_lazy_init",
    "_modules", "_module_info", "_mp_policy", "_orig_dtype", "_orig_size",
    "_post_forward_hook_handle", "_pre_forward_hook_handle", "_reduce_dtype",
    "_sharded_param_data", "_sharded_state", "_sharding_spec", "_state_ctx", "_training_state",
    "_all_reduce_hook", "_get_gradient_divide_factors", "_modules_to_run_forward",
    "_partial_reduce_output",
    "_forward_cls",  # of a node whose class a torch.autograd.Function has made
    "_has_symbolic_sizes_strides",  # of a tensor whose sizes torch says are symbols
    "_initialize_hook",  # of a lazy module that has no parameters yet
    "_input_grad_buffers",  # of a torch.autograd.Function's context, since torch 2.15
    "_opt_called", "_wrapped_by_lr_sched",  # set by a scheduler
})  # fmt: skip
"""Attributes that an object of torch's may have or not: nothing is off without them."""

for _words, (_feature, _object, _names) in ATTRIBUTES.items():
    for _name in _names:
        if getattr(_object, _name, MISSING) is MISSING:
            MISSING[f"{_words}.{_name}"] = _feature

if MISSING:
    logging.getLogger("ingot").warning(
        "torch %s lacks private names that Ingot uses. What needs them runs in eager: %s",
        torch.__version__,
        ", ".join(f"{path} ({feature})" if feature else path for path, feature in MISSING.items()),
    )  # fmt: skip
