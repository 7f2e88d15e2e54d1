"""How a layer is wired, as data: where its norms are, and what its feed-forward consists of.

A layer is an attention block, in decoders of encoder–decoder models a cross-attention block, and a
feed-forward block. From its input x, a block computes

    branch = core(before(x));   branch = scale · branch_norm(branch);   out = after(x + branch)

where core is the attention up to the output of its output projection, or the feed-forward. Any norm
and the scale may be missing. The output of one block is the input x of the next; only in a parallel
layer do attention and feed-forward read the same x, and out = x + attention + feed-forward.

Names are paths below the layer's module. `LAYOUTS` has the layouts of each layer class: several if
the parts of a layer, or a flag of its config, decide which one it has. A class that is not listed
gets a layout that names all of its parameters, if it calls its norms in that order. For any other
class call `register_layout`.
"""

from __future__ import annotations

import ast
import functools
import inspect
import itertools
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

from torch import Tensor, nn

from normscope.errors import UnsupportedModelError


@dataclass(frozen=True, kw_only=True)
class Wiring:
    """What is around the core of a block; None for what is missing."""

    before: str | None = None  # the norm on the block's input (pre-norm)
    branch: str | None = None  # the norm on the core's output, before the residual is added
    scale: str | None = None  # a vector or a number that multiplies the branch
    after: str | None = None  # the norm on the residual sum (post-norm)


@dataclass(frozen=True, kw_only=True)
class Attention(Wiring):
    """An attention block, self or cross."""

    module: str  # the attention module, as in `Capture.name`
    output: str  # its output projection, as in `Capture.projection.name`


@dataclass(frozen=True, kw_only=True)
class FeedForward(Wiring):
    """second(act(first(h))), or second(act(gate(h)) · first(h)) where it is gated."""

    first: str
    second: str
    activation: str  # a path, or transformers' name of a function that the code calls
    gate: str | None = None
    packed: Literal["gate_first", "gate_last"] | None = None  # gate and first as halves of `first`


@dataclass(frozen=True, kw_only=True)
class Experts(Wiring):
    """A mixture of experts in place of one feed-forward."""

    module: str  # router, experts and all; its output is the core's output
    experts: str  # the module that holds the experts alone


@dataclass(frozen=True)
class Layout:
    """The wiring of one layer."""

    attention: Attention
    ff: FeedForward | Experts
    cross: Attention | None = None  # left out for layers that do not have its module
    parallel: bool = False
    when: str | None = None  # "flag" or "not flag": an attribute of the layer or of its config


# The common layouts, named once; the classes that have them follow.
# fmt: off
def _at(output: str, module: str = "") -> Attention:
    return Attention(output=output, module=module or output.rpartition(".")[0])

def _ff(within: str, first: str, second: str, activation: str, **gated: Any) -> FeedForward:
    return FeedForward(first=within + first, second=within + second, activation=within + activation,
                       **gated)

def _post(at: Attention, at_norm: str, ff: FeedForward, ff_norm: str, cross: Any = None) -> Layout:
    return Layout(replace(at, after=at_norm), replace(ff, after=ff_norm), cross)

def _pre(at: Attention, at_norm: str, ff: FeedForward, ff_norm: str, cross: Any = None) -> Layout:
    return Layout(replace(at, before=at_norm), replace(ff, before=ff_norm), cross)

def _parallel(at: Attention, at_norm: str, ff: FeedForward, ff_norm: str) -> Layout:
    return replace(_pre(at, at_norm, ff, ff_norm), parallel=True)

_SELF = _at("attention.output.dense", "attention.self")
_CROSS = _at("crossattention.output.dense", "crossattention.self")
_VISION, _DENSE = _at("attention.o_proj"), _at("self_attention.dense")
_VISION_5_0 = _at("attention.output.dense", "attention.attention")  # transformers 5.0
_O_PROJ, _OUT_PROJ = _at("self_attn.o_proj"), _at("self_attn.out_proj")
_BERT_FF = _ff("", "intermediate.dense", "output.dense", "intermediate.intermediate_act_fn")
_BART_FF = _ff("", "fc1", "fc2", "activation_fn")
_GPT2_FF = _ff("mlp.", "c_fc", "c_proj", "act")
_NEOX_FF = _ff("mlp.", "dense_h_to_4h", "dense_4h_to_h", "act")
_CLIP_FF = _ff("mlp.", "fc1", "fc2", "activation_fn")
_LLAMA_FF = _ff("mlp.", "up_proj", "down_proj", "act_fn", gate="mlp.gate_proj")
_PHI3_FF = _ff("mlp.", "gate_up_proj", "down_proj", "activation_fn", packed="gate_first")
_AUDIO_FF = _ff("feed_forward.", "intermediate_dense", "output_dense", "intermediate_act_fn")
_SWIGLU_5_0 = FeedForward(first="mlp.weights_in", second="mlp.weights_out", activation="silu",
                          packed="gate_first")

# The residual sum is normalised.
BERT_LIKE = _post(_SELF, "attention.output.LayerNorm", _BERT_FF, "output.LayerNorm",
                  replace(_CROSS, after="crossattention.output.LayerNorm"))
MPNET = _post(_at("attention.attn.o"), "attention.LayerNorm", _BERT_FF, "output.LayerNorm")
DISTILBERT = _post(_at("attention.out_lin"), "sa_layer_norm",
                   _ff("ffn.", "lin1", "lin2", "activation"), "output_layer_norm")
ALBERT = _post(_at("attention.dense"), "attention.LayerNorm",
               _ff("", "ffn", "ffn_output", "activation"), "full_layer_layer_norm")
BART_LIKE = _post(_OUT_PROJ, "self_attn_layer_norm", _BART_FF, "final_layer_norm",
                  replace(_at("encoder_attn.out_proj"), after="encoder_attn_layer_norm"))
WAV2VEC2 = _post(_at("attention.out_proj"), "layer_norm", _AUDIO_FF, "final_layer_norm")

# The input is normalised.
WAV2VEC2_STABLE = _pre(_at("attention.out_proj"), "layer_norm", _AUDIO_FF, "final_layer_norm")
MBART_LIKE = _pre(_OUT_PROJ, "self_attn_layer_norm", _BART_FF, "final_layer_norm",
                  replace(_at("encoder_attn.out_proj"), before="encoder_attn_layer_norm"))
NLLB = _pre(_OUT_PROJ, "self_attn_layer_norm", _ff("ffn.", "fc1", "fc2", "act"), "ff_layer_norm",
            replace(_at("cross_attention.out_proj"), before="cross_attention_layer_norm"))
NLLB_SPARSE = replace(NLLB, ff=Experts(before="ff_layer_norm", module="ffn", experts="ffn.experts"))
ESM = _pre(_SELF, "attention.LayerNorm", replace(_BERT_FF, activation="gelu"), "LayerNorm")
MODERNBERT = _pre(_at("attn.Wo"), "attn_norm",
                  _ff("mlp.", "Wi", "Wo", "act", packed="gate_first"), "mlp_norm")
GPT2_LIKE = _pre(_at("attn.c_proj"), "ln_1", _GPT2_FF, "ln_2",
                 replace(_at("crossattention.c_proj"), before="ln_cross_attn"))
GPT_NEO = _pre(_at("attn.attention.out_proj"), "ln_1", _GPT2_FF, "ln_2")
GPT_NEOX = _pre(_at("attention.dense"), "input_layernorm", _NEOX_FF, "post_attention_layernorm")
FALCON = _pre(_DENSE, "input_layernorm", _NEOX_FF, "post_attention_layernorm")
BLOOM = _pre(_DENSE, "input_layernorm", replace(_NEOX_FF, activation="mlp.gelu_impl"),
             "post_attention_layernorm")
LLAMA_LIKE = _pre(_O_PROJ, "input_layernorm", _LLAMA_FF, "post_attention_layernorm")
PHI3 = _pre(_O_PROJ, "input_layernorm", _PHI3_FF, "post_attention_layernorm")
GRANITE_LIKE = Layout(replace(LLAMA_LIKE.attention, scale="residual_multiplier"),
                      replace(LLAMA_LIKE.ff, scale="residual_multiplier"))
MIXTRAL_LIKE = replace(LLAMA_LIKE, ff=Experts(
    before="post_attention_layernorm", module="mlp", experts="mlp.experts"))
CLIP_LIKE = _pre(_OUT_PROJ, "layer_norm1", _CLIP_FF, "layer_norm2")
VIT_LIKE = (_pre(_VISION, "layernorm_before", _CLIP_FF, "layernorm_after"),
            _pre(_VISION_5_0, "layernorm_before", _BERT_FF, "layernorm_after"))
DINOV2_LIKE = tuple(
    _pre(replace(attention, scale="layer_scale1.lambda1"), "norm1",
         replace(ff, scale="layer_scale2.lambda1"), "norm2")
    for attention, ff in ((_VISION, _CLIP_FF), (_VISION, _LLAMA_FF), (_VISION_5_0, _SWIGLU_5_0),
                          (_VISION_5_0, replace(_CLIP_FF, activation="mlp.activation"))))
T5_LIKE = tuple(  # the feed-forward is the third of a decoder's parts, the second of an encoder's
    _pre(_at("layer.0.SelfAttention.o"), "layer.0.layer_norm",
         _ff(f"{last}.DenseReluDense.", first, "wo", "act", gate=gate and last + gate),
         f"{last}.layer_norm",
         replace(_at("layer.1.EncDecAttention.o"), before="layer.1.layer_norm"))
    for last in ("layer.2", "layer.1")
    for first, gate in (("wi", None), ("wi_1", ".DenseReluDense.wi_0")))

# Attention and feed-forward read the same input, through one norm or one each.
GPTJ = _parallel(_at("attn.out_proj"), "ln_1", _ff("mlp.", "fc_in", "fc_out", "act"), "ln_1")
PHI = _parallel(_at("self_attn.dense"), "input_layernorm", _CLIP_FF, "input_layernorm")
COHERE_LIKE = _parallel(_O_PROJ, "input_layernorm", _LLAMA_FF, "input_layernorm")
FALCON_ONE_NORM = _parallel(_DENSE, "input_layernorm", _NEOX_FF, "input_layernorm")
FALCON_TWO_NORMS = _parallel(_DENSE, "ln_attn", _NEOX_FF, "ln_mlp")

# The branch is normalised before it is added; in Gemma 2 and 3 the input is, too.
OLMO2_LIKE = Layout(replace(_O_PROJ, branch="post_attention_layernorm"),
                    replace(_LLAMA_FF, branch="post_feedforward_layernorm"))
GEMMA2_LIKE = Layout(replace(OLMO2_LIKE.attention, before="input_layernorm"),
                     replace(OLMO2_LIKE.ff, before="pre_feedforward_layernorm"))

LAYOUTS: dict[str, tuple[Layout, ...]] = {name: layouts for names, layouts in {
    "BertLayer RobertaLayer XLMRobertaLayer CamembertLayer ElectraLayer": (BERT_LIKE,),
    "DebertaV2Layer": (BERT_LIKE,), "MPNetLayer": (MPNET,), "AlbertLayer": (ALBERT,),
    "TransformerBlock": (DISTILBERT,), "ModernBertEncoderLayer": (MODERNBERT,), "EsmLayer": (ESM,),
    "GPT2Block": (GPT2_LIKE,), "GPTNeoBlock": (GPT_NEO,), "GPTJBlock": (GPTJ,),
    # With the flag BLOOM's residual is the norm's output, which no layout describes.
    "BloomBlock": (replace(BLOOM, when="not apply_residual_connection_post_layernorm"),),
    "GPTNeoXLayer": (replace(GPT_NEOX, parallel=True, when="use_parallel_residual"),
                     replace(GPT_NEOX, when="not use_parallel_residual")),
    "FalconDecoderLayer": (FALCON, FALCON_ONE_NORM, FALCON_TWO_NORMS), "PhiDecoderLayer": (PHI,),
    "GraniteDecoderLayer": (GRANITE_LIKE,),  # before those that have its names but no multiplier
    "LlamaDecoderLayer MistralDecoderLayer Qwen2DecoderLayer Qwen3DecoderLayer GemmaDecoderLayer "
    "OlmoDecoderLayer": (LLAMA_LIKE,),
    "MixtralDecoderLayer GptOssDecoderLayer": (MIXTRAL_LIKE,), "Phi3DecoderLayer": (PHI3,),
    "DeepseekV3DecoderLayer": (LLAMA_LIKE, MIXTRAL_LIKE), "CohereDecoderLayer": (COHERE_LIKE,),
    "StableLmDecoderLayer": (replace(COHERE_LIKE, when="use_parallel_residual"),
                             replace(LLAMA_LIKE, when="not use_parallel_residual")),
    "Gemma2DecoderLayer Gemma3DecoderLayer": (GEMMA2_LIKE,), "Olmo2DecoderLayer": (OLMO2_LIKE,),
    "OPTDecoderLayer": (replace(MBART_LIKE, when="do_layer_norm_before"),
                        replace(BART_LIKE, when="not do_layer_norm_before")),
    "MarianEncoderLayer MarianDecoderLayer BartEncoderLayer BartDecoderLayer "
    "EncoderLayer DecoderLayer": (BART_LIKE,),  # the last two are FSMT's
    "MBartEncoderLayer MBartDecoderLayer M2M100EncoderLayer M2M100DecoderLayer "
    "PegasusEncoderLayer PegasusDecoderLayer WhisperEncoderLayer WhisperDecoderLayer "
    "BioGptDecoderLayer": (MBART_LIKE,),
    "NllbMoeEncoderLayer NllbMoeDecoderLayer": (NLLB, NLLB_SPARSE),
    "T5Block MT5Block UMT5Block": T5_LIKE, "ViTLayer DeiTLayer": VIT_LIKE,
    "Dinov2Layer": DINOV2_LIKE, "CLIPEncoderLayer SiglipEncoderLayer": (CLIP_LIKE,),
    "Wav2Vec2EncoderLayer": (WAV2VEC2,), "Wav2Vec2EncoderLayerStableLayerNorm": (WAV2VEC2_STABLE,),
}.items() for name in names.split()}
# fmt: on

_REMEDY = (
    "If the equations in normscope.layouts describe such a layer, say where its parts are with "
    "normscope.layouts.register_layout(the name of its class, Layout(...))"
)


def register_layout(class_name: str, *layouts: Layout) -> None:
    """Set the layouts of a layer class, for this process.

    Args:
        class_name: the name of the layer's class; classes derived from it have the layout too.
        layouts: the first that fits a layer is used. They replace earlier ones of the class.
    """
    LAYOUTS[class_name] = layouts


def layout_of(layer: nn.Module, config: Any = None) -> Layout:
    """Return the layout of a layer, without norms that are nn.Identity and missing blocks.

    Flags (``Layout.when``) are looked up in the layer, then in its own config, then in ``config``.

    Raises:
        UnsupportedModelError: no known layout fits the layer.
    """
    names = [cls.__name__ for cls in type(layer).__mro__]
    listed = next((LAYOUTS[name] for name in names if name in LAYOUTS), ())
    misfits = []
    for layout in (_present(layer, layout) for layout in listed):
        misfits.append(_misfit(layer, layout, config))
        if not misfits[-1]:
            return layout
    others = [a for a in itertools.chain(*LAYOUTS.values()) if part(layer, a.attention.output)]
    for layout in (_present(layer, layout) for layout in dict.fromkeys(others)):
        if not _misfit(layer, layout, config) and _runs_like(layer, layout):
            return layout
    why = f" ({'; '.join(misfits)})" if misfits else ""
    raise UnsupportedModelError(f"{names[0]} is not wired like any known layer{why}. {_REMEDY}")


def layer_of(model: nn.Module, attention_path: str) -> tuple[str, nn.Module]:
    """Return path and module of the nearest layer around an attention module that has a layout."""
    path, refusals = attention_path, {}
    while path:
        path = path.rpartition(".")[0]
        layer = model.get_submodule(path)
        try:
            layout_of(layer, getattr(model, "config", None))
        except UnsupportedModelError as refusal:
            refusals[type(layer).__name__] = refusal
        else:
            return path, layer
    for name in refusals.keys() & LAYOUTS.keys():
        raise refusals[name]
    around = f"{attention_path} is in {', in '.join(refusals)}"
    raise UnsupportedModelError(f"{around}: none of them is wired like a known layer. {_REMEDY}")


def part(layer: nn.Module, path: str) -> Any:
    """Return the module, parameter, function or number at a path below a layer; None if missing."""
    value: Any = layer
    for name in path.split("."):
        value = getattr(value, name, None)
    return value


def activation_of(layer: nn.Module, ff: FeedForward) -> Callable[[Tensor], Tensor]:
    """Return the activation of a feed-forward, as a function of tensors."""
    from transformers.activations import ACT2FN

    return part(layer, ff.activation) or ACT2FN[ff.activation]


def _present(layer: nn.Module, layout: Layout) -> Layout:
    """The layout without a cross-attention that the layer does not have, and without idle norms."""

    def without_idle_norms(block: Any) -> Any:
        norms = [name for name in ("before", "branch", "after") if getattr(block, name)]
        idle = [n for n in norms if isinstance(part(layer, getattr(block, n)), nn.Identity)]
        return replace(block, **dict.fromkeys(idle))

    has_cross = layout.cross is not None and part(layer, layout.cross.module) is not None
    return replace(
        layout,
        attention=without_idle_norms(layout.attention),
        cross=without_idle_norms(layout.cross) if has_cross else None,
        ff=without_idle_norms(layout.ff),
    )


def _blocks(layout: Layout) -> list[Attention | FeedForward | Experts]:
    return [b for b in (layout.attention, layout.cross, layout.ff) if b is not None]


def _misfit(layer: nn.Module, layout: Layout, config: Any) -> str:
    """Why a layout does not fit a layer; empty if it does."""
    from transformers.activations import ACT2FN

    if layout.when is not None:
        flag = layout.when.removeprefix("not ")
        owners = [o for o in (layer, getattr(layer, "config", None), config) if hasattr(o, flag)]
        if not owners or bool(getattr(owners[0], flag)) == layout.when.startswith("not "):
            return f"{flag} is {getattr(owners[0], flag) if owners else 'not set'}"
    named = (getattr(b, f.name) for b in _blocks(layout) for f in fields(b) if f.name != "packed")
    paths = [path for path in named if path is not None]
    for path in paths:
        if part(layer, path) is None and path not in ACT2FN:
            return f"it has no {path}"
    for name, _ in layer.named_parameters():
        if not any(f"{name}.".startswith(f"{path}.") for path in paths):
            return f"it has {name} too"
    return ""


def _runs_like(layer: nn.Module, layout: Layout) -> bool:
    """Whether an unlisted class calls its norms before and after its cores as the layout says."""
    if isinstance(layout.ff, FeedForward) and part(layer, layout.ff.activation) is None:
        return False  # which function the code calls is not known
    calls = _calls(type(layer).forward)
    for block in _blocks(layout):
        core = (block.first if isinstance(block, FeedForward) else block.module).split(".")[0]
        for norm, first in ((block.before, True), (block.branch, False), (block.after, False)):
            if norm is not None and "." not in norm:
                order = [name == norm for name in calls if name in (norm, core)]
                if norm not in calls or order != sorted(order, reverse=first):
                    return False
    return True


@functools.cache
def _calls(forward: Callable[..., Any]) -> list[str]:
    """The names of the attributes of self that a method calls, in the order of the calls."""
    try:
        source = inspect.getsource(inspect.unwrap(forward))
    except (OSError, TypeError):
        return []
    calls = [n for n in ast.walk(ast.parse(textwrap.dedent(source))) if isinstance(n, ast.Call)]
    calls.sort(key=lambda n: (n.end_lineno, n.end_col_offset))  # a call ends after its arguments
    names = [ast.unparse(call.func).split(".") for call in calls]
    return [name[1] for name in names if name[0] == "self" and len(name) == 2]
