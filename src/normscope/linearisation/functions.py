"""The kinds of torch functions, by the names under which a function mode sees them."""

from __future__ import annotations


def _names(listed: str) -> frozenset[str]:
    return frozenset(listed.split())


# Linear in the states, whatever the other arguments are.
LINEAR = _names(
    """
    view reshape transpose permute contiguous to float double half bfloat16 type type_as clone
    expand expand_as repeat repeat_interleave tile broadcast_to unsqueeze squeeze flatten
    unflatten sum mean neg negative chunk split split_with_sizes tensor_split unbind select
    narrow __getitem__ index_select gather take_along_dim masked_select roll flip movedim moveaxis
    swapaxes swapdims dropout feature_alpha_dropout dropout1d dropout2d cumsum view_as
    reshape_as t diagonal tril triu unfold fold cpu cuda ravel nan_to_num alias as_strided
    avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d interpolate pixel_shuffle
    pixel_unshuffle diff diag rot90 squeeze_ unsqueeze_ detach
    topk sort max min amax amin maximum minimum kthvalue median msort
    max_pool1d max_pool2d adaptive_max_pool1d _max_pool1d
    """
)
CASTS = _names("to float double half bfloat16 type type_as")
# Among these, choices of entries: a difference of two inputs only passes if both choose the same.
CHOICES = _names("topk sort max min amax amin kthvalue median argmax argmin argsort")
SUMS = _names("add sub subtract rsub __rsub__")
PRODUCTS = _names(
    """
    mul multiply matmul bmm mm mv dot inner outer einsum tensordot __rmatmul__ _grouped_mm
    grouped_mm
    """
)
ELEMENTWISE_PRODUCTS = _names("mul multiply")
QUOTIENTS = _names("div divide true_divide __rdiv__ __rtruediv__")
# Convolutions, and the number of dimensions behind their channels.
CONVOLUTIONS = {f"conv{kind}{n}d": n for kind in ("", "_transpose") for n in (1, 2, 3)}
BIASED_PRODUCTS = _names("addmm baddbmm addbmm addmv")
# Affine: what they give where all states are zero is a constant.
FILLS = _names(
    """
    cat concat concatenate stack hstack vstack where masked_fill masked_scatter index_put
    index_add index_copy index_fill scatter scatter_add pad __setitem__ copy_
    """
)
# Elementwise functions of a state.
ACTIVATIONS = _names(
    """
    relu gelu silu tanh leaky_relu elu selu celu relu6 hardswish hardtanh mish softsign clamp
    clamp_min clamp_max clip square abs softplus threshold logsigmoid log_sigmoid
    """
)
# Elementwise functions that scale or gate other states.
SCALES = _names(
    """
    sigmoid rsqrt sqrt exp log log2 log1p expm1 reciprocal erf erfc cos sin hardsigmoid exp2
    sign floor round ceil __rpow__ float_power acos arccos asin arcsin atan arctan tan sinc
    """
)
SOFTMAX = _names("softmax _softmax")
# Functions of many entries that scale other states.
STATISTICS = _names(
    """
    var std norm vector_norm linalg_vector_norm linalg_norm logsumexp softmin gumbel_softmax
    cumprod prod argmax argmin argsort logcumsumexp cummax cummin
    cdist
    """
)
NORMS = _names("layer_norm rms_norm group_norm")
# Functions that say something about a tensor, and leave it alone.
PLAIN = _names(
    """
    __get__ size dim stride numel is_contiguous is_floating_point is_complex element_size data_ptr
    get_device storage_offset register_hook __len__ __hash__ __repr__ item tolist requires_grad_
    retain_grad is_nonzero __bool__ ndimension nelement __set__
    """
)
