"""Find the transformers model inside what people hold: adapters, wrappers, pipelines.

An object is taken apart only where running the model inside gives the numbers that running the
object gives. Every other object is refused by a message that says what to give instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from normscope.errors import InputError, UnsupportedModelError
from normscope.models.walk import named_modules

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Adapters of PEFT that do more than replace modules of the model, beside those that add positions.
_OWN_FORWARD = {"ADAPTION_PROMPT", "POLY", "SHADOW", "XLORA"}


def holds_model(given: object) -> bool:
    """Return whether an object is a module, or a pipeline of transformers, which holds one."""
    return isinstance(given, nn.Module) or _is_pipeline(given)


def unwrapped(given: Any, tokenizer: Any = None) -> tuple[PreTrainedModel, Any]:
    """Return the transformers model inside a module or a pipeline, and its tokenizer.

    DataParallel, DistributedDataParallel and compiled models stand for their module; a PEFT model
    for the model with its adapters, which stay active; a SentenceTransformer or CrossEncoder for
    its transformer; a pipeline for its model.

    Args:
        given: what :func:`holds_model` is true of.
        tokenizer: the tokenizer that was given with it. If it is None, that of a
            SentenceTransformer or a pipeline is returned.

    Raises:
        InputError: it is not a model of transformers, and stands for none.
        UnsupportedModelError: its weights are elsewhere, or it does not compute what the model
            inside computes.
    """
    from transformers import PreTrainedModel

    model = given
    while not isinstance(model, PreTrainedModel):
        own = None
        if _is_pipeline(model) or hasattr(model, "auto_model"):
            own = getattr(model, "processor", None) or getattr(model, "tokenizer", None)
            own = own or getattr(model, "image_processor", None)
            own = own or getattr(model, "feature_extractor", None)
        tokenizer = own if tokenizer is None else tokenizer
        inside = _inside(model)
        if inside is None:
            raise _refused(given, model)
        model = inside
    _check_weights(model)
    return model, tokenizer


def check_mean_pooling(given: Any) -> None:
    """Raise InputError for a SentenceTransformer whose embeddings are not means of states."""
    if not _is_sentence_transformer(given):
        return
    others = []
    for module in given[1:]:
        how, kind = _pooling(module), type(module).__name__
        if how is None and kind != "Normalize":  # which changes no cosine
            others.append(kind)
        elif how not in (None, "mean"):
            others.append(f"{how} pooling")
    if others:
        raise InputError(
            f"similar_to explains the cosine of mean embeddings, and those of this "
            f"{type(given).__name__} are others ({', '.join(others)}): give a function of the "
            "model's output as answer="
        )


def _inside(model: Any) -> Any:
    """Return what a wrapper runs, or None if that is not known."""
    if _is_pipeline(model):
        return model.model
    parts = getattr(model, "_modules", {})
    if "_orig_mod" in parts:  # torch.compile
        return parts["_orig_mod"]
    if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return model.module
    if isinstance(getattr(model, "peft_config", None), dict):
        _check_adapters(model)
        # PeftModel has a base_model, which is the model itself or a tuner with a model.
        return parts.get("base_model", parts.get("model"))
    if _is_sentence_transformer(model):
        return model[0]
    return getattr(model, "auto_model", None)


def _is_sentence_transformer(model: object) -> Any:
    """Return whether a model is a sequence that begins with a transformer."""
    return isinstance(model, nn.Sequential) and len(model) and hasattr(model[0], "auto_model")


def _is_pipeline(given: object) -> bool:
    """Return whether an object is a pipeline, without importing those."""
    names = {f"{kind.__module__}.{kind.__name__}" for kind in type(given).__mro__}
    return "transformers.pipelines.base.Pipeline" in names


def _pooling(module: Any) -> str | None:
    """Return how a module makes an embedding of states; None if it does something else."""
    mode = getattr(module, "pooling_mode", None)  # newer versions have one setting
    if mode is not None:
        return mode if isinstance(mode, str) else "+".join(mode)
    flags = [name for name in vars(module) if name.startswith("pooling_mode_")]
    chosen = [name for name in flags if vars(module)[name]]
    if not flags:
        return None
    return "mean" if chosen == ["pooling_mode_mean_tokens"] else "+".join(chosen)


def _check_adapters(model: Any) -> None:
    """Raise UnsupportedModelError for adapters that add positions or have a forward of their own.

    Those that replace modules of the model are the model's own business: they are run.
    """
    active = getattr(model, "active_adapter", None)
    active = [active] if isinstance(active, str) else active
    for name, config in model.peft_config.items():
        kind = getattr(config, "peft_type", None)
        kind = str(getattr(kind, "value", kind))
        prompts = getattr(config, "is_prompt_learning", False)
        if (active is not None and name not in active) or not (prompts or kind in _OWN_FORWARD):
            continue
        why = "computes more than the model with some modules replaced"
        instead = "load the model again without it"
        if prompts:
            why = "puts learned vectors before the text, so that positions are not those of tokens"
            instead = "give the model without it (model.get_base_model())"
        raise UnsupportedModelError(
            f"the adapter {name!r} of this {type(model).__name__} ({kind}) {why}; {instead}. "
            "Adapters that replace modules, such as LoRA, are analysed as part of the model"
        )


def _refused(given: object, model: Any) -> Exception:
    """Return the error for an object that stands for no transformers model."""
    kind = type(model).__name__
    inside = "" if model is given else f" inside the {type(given).__name__}"
    if isinstance(model, torch.jit.ScriptModule):
        return UnsupportedModelError(
            f"{kind}{inside} is a traced or scripted module (torch.jit), so its attention cannot "
            "be recorded. Give the transformers model that it was made from"
        )
    held = _held(model)
    if "FullyShardedDataParallel" in kind:
        return UnsupportedModelError(
            f"{kind}{inside} divides its weights among processes. Give the model as it was before "
            "it was wrapped, or load it again from its checkpoint"
        )
    hint = "give the model itself, or its folder or name"
    if held:
        what = " or ".join(f"{path} ({name})" for path, name in held[:3])
        hint = f"it holds one, and what it does around it is not known: give {what}"
    return InputError(f"model must be a transformers model, and {kind}{inside} is none; {hint}")


def _held(model: Any) -> list[tuple[str, str]]:
    """Return the transformers models inside a module, as Python and the name of their class."""
    from transformers import PreTrainedModel

    found: list[tuple[str, str]] = []
    above: list[str] = []
    for path, module in named_modules(model):
        if isinstance(module, PreTrainedModel) and not path.startswith(tuple(above)):
            steps = [f"[{step}]" if step.isdigit() else f".{step}" for step in path.split(".")]
            found.append((f"model{''.join(steps)}", type(module).__name__))
            above.append(f"{path}.")
    return found


def _check_weights(model: Any) -> None:
    """Raise UnsupportedModelError for a model whose weights are not where it runs."""
    for path, module in named_modules(model):
        tensors = (*module._parameters.items(), *module._buffers.items())
        empty = [name for name, tensor in tensors if tensor is not None and tensor.is_meta]
        if not empty:
            continue
        what = f"{path}.{empty[0]}" if path else empty[0]
        if any("_hf_hook" in vars(each) for _, each in named_modules(model)):
            raise UnsupportedModelError(
                f"{type(model).__name__} is offloaded by accelerate: {what} is loaded only while "
                "its module runs, and normscope has to read it. Load the model onto one device "
                "(without device_map or with device_map={'': 'cpu'}), in a smaller dtype if "
                "memory is short"
            )
        raise UnsupportedModelError(
            f"{type(model).__name__} is on the meta device: {what} has a shape and no values. "
            "Load the weights first (from_pretrained, load_state_dict)"
        )
