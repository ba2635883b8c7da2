"""Which family has the records of an op, by the names of functions, without `aten::`.

`python -m tests.ops.index` writes this file.
"""

NAMES = {
    "activations": """
        _prelu_kernel _prelu_kernel_backward celu elu elu_backward gelu gelu_backward glu
        glu_backward hardshrink hardshrink_backward hardsigmoid hardsigmoid_backward hardswish
        hardswish_backward hardtanh hardtanh_backward leaky_relu leaky_relu_backward
        log_sigmoid_backward log_sigmoid_forward mish relu sigmoid_backward silu softplus
        softplus_backward softshrink softshrink_backward tanh_backward threshold
        threshold_backward
    """,
    "arithmetic": """
        abs add addcdiv addcmul angle atan2 ceil clamp clamp_max clamp_min copysign deg2rad div
        floor floor_divide fmax fmin fmod frac gcd heaviside hypot lcm ldexp lerp maximum
        minimum mul nan_to_num neg nextafter pow rad2deg reciprocal remainder round rsqrt rsub
        sgn sign sqrt sub trunc
    """,
    "arrays": """
        ingot::numpy_along ingot::numpy_call ingot::numpy_call_2 ingot::numpy_call_3
        ingot::numpy_ufunc ingot::numpy_ufunc_2 ingot::numpy_ufunc_3 ingot::numpy_ufunc_4
    """,
    "attention": """
        _native_multi_head_attention _scaled_dot_product_efficient_attention
        _scaled_dot_product_efficient_attention_backward
        _scaled_dot_product_flash_attention_for_cpu
        _scaled_dot_product_flash_attention_for_cpu_backward _transformer_encoder_layer_fwd
        ingot::attention
    """,
    "control_flow": """
        ingot::cond ingot::scan ingot::while_loop
    """,
    "conversions": """
        _conj_physical _to_copy clone complex copy polar
    """,
    "convolution": """
        convolution
    """,
    "convolution_backward": """
        convolution_backward
    """,
    "creation": """
        _efficientzerotensor arange block_diag cat diag_embed empty empty_like empty_strided eye
        fill full full_like new_empty new_empty_strided new_full new_ones new_zeros ones
        ones_like repeat scalar_tensor stack zero zeros zeros_like
    """,
    "functions": """
        acos acosh asin asinh atan atanh cos cosh digamma erf erfc erfinv exp exp2 expm1 lgamma
        log log10 log1p log2 logaddexp logaddexp2 logit sigmoid sin sinc sinh special_entr
        special_xlog1py tan tanh xlogy
    """,
    "indexing": """
        _embedding_bag _embedding_bag_forward_only _unsafe_index diagonal_backward
        diagonal_scatter embedding embedding_dense_backward gather index index_select isin
        select_backward select_scatter slice_backward slice_scatter take tril triu
    """,
    "launches": """
        ingot_triton::launch
    """,
    "logic": """
        __lshift__ __rshift__ _local_scalar_dense bitwise_and bitwise_left_shift bitwise_not
        bitwise_or bitwise_right_shift bitwise_xor eq ge gt isinf isnan isneginf isposinf le
        logical_and logical_not logical_or logical_xor lt masked_fill masked_select ne nonzero
        signbit where
    """,
    "losses": """
        _ctc_loss_backward binary_cross_entropy binary_cross_entropy_backward
        binary_cross_entropy_with_logits huber_loss huber_loss_backward mse_loss
        mse_loss_backward nll_loss2d_backward nll_loss2d_forward nll_loss_backward
        nll_loss_forward smooth_l1_loss smooth_l1_loss_backward soft_margin_loss
        soft_margin_loss_backward
    """,
    "norms": """
        _fused_rms_norm _fused_rms_norm_backward _native_batch_norm_legit_no_training
        cudnn_batch_norm cudnn_batch_norm_backward native_batch_norm native_batch_norm_backward
        native_group_norm native_group_norm_backward native_layer_norm
        native_layer_norm_backward
    """,
    "pooling": """
        _adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_max_pool2d
        adaptive_max_pool2d_backward adaptive_max_pool3d adaptive_max_pool3d_backward avg_pool2d
        avg_pool3d col2im im2col max_pool2d_with_indices max_pool2d_with_indices_backward
        max_pool3d_with_indices max_pool3d_with_indices_backward max_unpool2d max_unpool3d
    """,
    "products": """
        _addmm_activation _linalg_svd addmm addmv baddbmm bmm dot linalg_cross linear mm mv
        trace
    """,
    "ragged": """
        _jagged_to_padded_dense_forward _padded_dense_to_jagged_forward
    """,
    "random": """
        bernoulli cauchy exponential geometric log_normal native_dropout native_dropout_backward
        normal_functional rand rand_like randint randint_like randn randn_like random uniform
    """,
    "rearranging": """
        channel_shuffle constant_pad_nd flip pixel_shuffle pixel_unshuffle reflection_pad1d
        reflection_pad2d reflection_pad3d replication_pad1d replication_pad2d replication_pad3d
        roll rot90
    """,
    "recurrent": """
        ingot::cudnn_rnn ingot::cudnn_rnn_backward ingot::packed_rnn mkldnn_rnn_layer
        mkldnn_rnn_layer_backward
    """,
    "reductions": """
        all amax amin aminmax any argmax argmin count_nonzero linalg_vector_norm max mean min
        nansum norm prod std std_mean sum var var_mean
    """,
    "resampling": """
        _upsample_nearest_exact1d _upsample_nearest_exact2d _upsample_nearest_exact3d
        upsample_bicubic2d upsample_bilinear2d upsample_linear1d upsample_nearest1d
        upsample_nearest2d upsample_nearest3d upsample_trilinear3d
    """,
    "resampling_backward": """
        _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward
        _upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward
        _upsample_nearest_exact3d_backward avg_pool2d_backward avg_pool3d_backward
        reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward
        replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward
        upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_linear1d_backward
        upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward
        upsample_trilinear3d_backward
    """,
    "sampling": """
        cudnn_grid_sampler cudnn_grid_sampler_backward grid_sampler_2d
    """,
    "scans": """
        cummax cummin cumprod cumsum logcumsumexp masked_scatter
    """,
    "scatters": """
        _index_put_impl _unsafe_index_put index_add index_copy index_fill index_put index_reduce
        put scatter scatter_add scatter_reduce
    """,
    "scored_attention": """
        ingot::scored_attention ingot::scored_product ingot::scored_square
    """,
    "searching": """
        bucketize histc searchsorted sort topk
    """,
    "softmax": """
        _log_softmax _log_softmax_backward_data _safe_softmax _softmax _softmax_backward_data
        logsumexp
    """,
    "special": """
        i0 mvlgamma polygamma special_i0e special_i1 special_i1e
    """,
    "views": """
        _reshape_alias _unsafe_view alias alias_copy as_strided as_strided_copy
        as_strided_scatter detach detach_copy diagonal diagonal_copy expand expand_copy
        is_same_size lift_fresh lift_fresh_copy narrow_copy permute permute_copy select
        select_copy slice slice_copy split split_copy split_with_sizes split_with_sizes_copy
        squeeze squeeze_copy t t_copy transpose transpose_copy unbind unbind_copy unfold
        unfold_copy unsafe_split unsafe_split_with_sizes unsqueeze unsqueeze_copy view
        view_as_complex view_as_real view_copy
    """,
}
