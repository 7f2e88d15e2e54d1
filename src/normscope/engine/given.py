"""The inputs of a model as a caller gives them: checked, converted to tensors, and named."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from normscope.errors import InputError, NormscopeError
from normscope.models.failures import first_line
from normscope.models.running import evaluating
from normscope.models.sides import tokenizers_of
from normscope.text.limits import embedding_table, max_length_of
from normscope.text.pieces import label_ids
from normscope.text.tokens import Tokens, check_tokenizer

IDS = ("input_ids", "decoder_input_ids")
_MASKS = {"input_ids": "attention_mask", "decoder_input_ids": "decoder_attention_mask"}
# What the decorators of transformers accept beside the parameters of a forward.
_ALWAYS = {"return_dict", "output_attentions", "output_hidden_states", "use_cache"}


def checked_inputs(model: Any, inputs: Any, caller: str) -> dict[str, Any]:
    """Return the keyword arguments of a model, with lists and arrays as tensors.

    Args:
        model: a transformers model.
        inputs: a mapping of tensors, arrays and lists, such as a tokenizer or processor returns.
        caller: the function that they were given to, for messages.

    Raises:
        InputError: the model does not take them: their names, shapes, dtypes or ids.
    """
    if not isinstance(inputs, Mapping):
        hint = '; give {"input_ids": …}' if isinstance(inputs, Tensor | np.ndarray | list) else ""
        raise InputError(_needs(caller, f"not {type(inputs).__name__}{hint}"))
    _check_names(model, inputs)
    given = {name: _tensor(name, value) for name, value in inputs.items()}
    if not any(isinstance(value, Tensor) for value in given.values()):
        kinds = ", ".join(f"{name}: {type(value).__name__}" for name, value in given.items())
        raise InputError(_needs(caller, f"not {kinds or 'an empty one'}"))
    for name, value in given.items():
        if isinstance(value, Tensor) and 0 in value.shape:
            raise InputError(f"{name} is empty: it has the shape {tuple(value.shape)}")
    for name in IDS:
        if isinstance(given.get(name), Tensor):
            given[name] = _checked_ids(model, name, given[name])
            _check_beside(model, name, given)
    dtype = model.dtype
    floats = ("pixel_values", "input_values", "input_features", "inputs_embeds")
    for name in floats:  # numpy and processors give float32 or float64, whatever the model has
        value = given.get(name)
        if isinstance(value, Tensor) and value.is_floating_point() and value.dtype != dtype:
            given[name] = value.to(dtype)
    return given


@contextmanager
def model_failures(model: Any, inputs: Mapping[str, Any]) -> Iterator[None]:
    """Raise InputError where the model by itself fails on the inputs, too."""
    try:
        yield
    except (NormscopeError, torch.OutOfMemoryError):
        raise
    except Exception:
        try:
            with evaluating(model), torch.no_grad():
                model(**inputs)
        except Exception as error:
            ids = inputs.get("input_ids")
            length = ids.shape[-1] if isinstance(ids, Tensor) else 0
            limit = max_length_of(model.config)
            hint = ""
            if limit is not None and length > limit:
                hint = f"; the rows have {length} positions, and the model has {limit}"
            raise InputError(
                f"{type(model).__name__} itself fails on these inputs: {type(error).__name__}: "
                f"{first_line(error)}{hint}"
            ) from error
        raise


def row_tokens(
    model: Any, tokenizer: Any, inputs: Mapping[str, Any]
) -> list[dict[str, Tokens | None]] | None:
    """Return what the ids of each row are, by role, if there are ids."""
    both = tokenizers_of(model, tokenizer)
    sides = {"": ("input_ids", both.source), "decoder": ("decoder_input_ids", both.target)}
    named: dict[str, list[Tokens]] = {}
    for role, (name, own) in sides.items():
        check_tokenizer(own)
        ids = inputs.get(name)
        if isinstance(ids, Tensor):
            named[role] = [label_ids(own, row) for row in ids.flatten(0, -2).tolist()]
    count = max(map(len, named.values()), default=0)
    return [{role: rows[at] for role, rows in named.items()} for at in range(count)] or None


def row_count(inputs: Mapping[str, Any]) -> int:
    """Return the number of rows of a batch: that of ids or masks, if there are any."""
    # The patches of all images may follow each other in one tensor, without an axis of rows.
    first = (*IDS, "inputs_embeds", "decoder_inputs_embeds", "attention_mask")
    tensors = [inputs.get(name) for name in (*first, *inputs)]
    return next(len(t) for t in tensors if isinstance(t, Tensor) and t.dim())


def _needs(caller: str, what: str) -> str:
    return (
        f"{caller}() needs a mapping of tensors (input_ids, pixel_values, …) as the model itself "
        f"does, {what}"
    )


def _check_names(model: Any, inputs: Mapping[str, Any]) -> None:
    """Raise InputError for a name that the model's forward does not have."""
    parameters = inspect.signature(type(model).forward).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    fixed = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    names = [name for name, p in parameters.items() if p.kind not in fixed and name != "self"]
    for name in inputs:
        alike = difflib.get_close_matches(str(name), names, n=1, cutoff=0.8)
        if name in names or name in _ALWAYS or (open_ended and not alike):
            continue
        meant = f" (did you mean {alike[0]!r}?)" if alike else ""
        raise InputError(
            f"{type(model).__name__} has no input {name!r}{meant}; its inputs are: "
            f"{', '.join(names)}"
        )


def _tensor(name: str, value: Any) -> Any:
    """Return a list or an array as a tensor, and anything else as it is."""
    if not isinstance(value, list | np.ndarray):
        return value
    try:
        if isinstance(value, list) and value and isinstance(value[0], Tensor):
            return torch.stack(value)
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError, RuntimeError) as error:
        rows = value if isinstance(value, list) else []
        lengths = sorted({len(row) for row in rows if hasattr(row, "__len__")})
        if len(lengths) > 1:
            raise InputError(
                f"the rows of {name} have different lengths ({lengths[0]} to {lengths[-1]}): pad "
                'them, as tokenizer(…, padding=True, return_tensors="pt") does'
            ) from error
        raise InputError(
            f"{name} cannot be made a tensor ({first_line(error)}): give a tensor"
        ) from error


def _checked_ids(model: Any, name: str, ids: Tensor) -> Tensor:
    """Return ids as whole numbers; raise InputError for a shape or for ids without embedding."""
    if ids.dim() < 2:
        raise InputError(
            f"{name} has the shape {tuple(ids.shape)}; give (row, position), with one row for one "
            'text (tokenizer(…, return_tensors="pt") returns it)'
        )
    if ids.is_floating_point() or ids.is_complex() or ids.dtype == torch.bool:
        kind = str(ids.dtype).removeprefix("torch.")
        raise InputError(f"{name} has the dtype {kind}: ids are whole numbers (int64)")
    if ids.dtype not in (torch.int32, torch.int64):
        ids = ids.long()
    table = embedding_table(model, as_target=name != "input_ids")
    rows = None if table is None else len(table)
    low, high = int(ids.min()), int(ids.max())
    if low < 0 or (rows is not None and high >= rows):
        bad = low if low < 0 else high
        valid = "" if rows is None else f"; the model has ids 0 to {rows - 1}"
        hint = " (-100 marks labels that are ignored, not ids)" if bad == -100 else ""
        raise InputError(f"{name} has the id {bad}, which is out of range{valid}{hint}")
    return ids


def _check_beside(model: Any, name: str, given: dict[str, Any]) -> None:
    """Check what has one entry for each id: the mask, and token types."""
    ids = given[name]
    mask = given.get(_MASKS[name])
    kinds = getattr(model.config, "type_vocab_size", None) or 0
    types = given.get("token_type_ids") if name == "input_ids" else None
    if isinstance(mask, Tensor) and mask.dim() < 3 and given.get("past_key_values") is None:
        if mask.shape != ids.shape:
            raise InputError(
                f"{_MASKS[name]} has the shape {tuple(mask.shape)}, and {name} has "
                f"{tuple(ids.shape)}: they must be equal"
            )
        if not bool(((mask == 0) | (mask == 1)).all()):
            raise InputError(
                f"{_MASKS[name]} has values other than 0 (padding) and 1: give those, or a mask "
                "of the scores with four axes"
            )
    if isinstance(mask, Tensor) and 1 < mask.dim() < 4:
        real = mask.bool().flatten(0, -2).any(-1)
        if not bool(real.all()):
            row = int((~real).nonzero()[0])
            raise InputError(f"row {row} of {_MASKS[name]} is all zero: it has no real position")
    if isinstance(types, Tensor):
        if types.dim() > 1 and types.shape[-1] != ids.shape[-1]:
            raise InputError(
                f"token_type_ids has the shape {tuple(types.shape)}, and {name} has "
                f"{tuple(ids.shape)}: they must be equal"
            )
        if kinds and not 0 <= int(types.min()) <= int(types.max()) < kinds:
            raise InputError(
                f"token_type_ids has values from {int(types.min())} to {int(types.max())}, and the "
                f"model has types 0 to {kinds - 1}"
            )
    positions = given.get("position_ids") if name == "input_ids" else None
    if isinstance(positions, Tensor) and positions.shape[-1:] != ids.shape[-1:]:
        raise InputError(
            f"position_ids has the shape {tuple(positions.shape)}, and {name} has "
            f"{tuple(ids.shape)}: give one position for each id"
        )
