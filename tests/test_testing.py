"""check_untouched(): every kind of change is noticed and named, and nothing else is."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.modules.module import register_module_forward_hook
from transformers import AttentionInterface

import normscope
from normscope.errors import ExactnessError, InputError
from normscope.models.architectures import tiny_model
from normscope.testing import check_untouched
from tests.helpers.tiny import tokenizer

TEXT = "the cat sat"
IDS = torch.tensor([[4]])


def layer(model: Any) -> Any:
    return model.encoder.layer[1]


CHANGES: dict[str, tuple[str, Callable[[Any, Any], Any]]] = {
    "mode": ("training of encoder.layer.1", lambda m, t: layer(m).train()),
    "hook": ("_forward_hooks of encoder.layer.1", lambda m, t: layer(m).register_forward_hook(str)),
    "attribute": ("own of encoder.layer.1", lambda m, t: setattr(layer(m), "own", 1)),
    "forward": ("forward of encoder.layer.1", lambda m, t: setattr(layer(m), "forward", str)),
    "module": ("_modules of pooler", lambda m, t: setattr(m.pooler, "dense", torch.nn.Identity())),
    "value": ("pooler.dense.weight", lambda m, t: m.pooler.dense.weight.data[0].add_(1e-13)),
    "version": ("pooler.dense.bias", lambda m, t: m.pooler.dense.bias.detach().add_(0)),
    "gradients": ("pooler.dense.bias", lambda m, t: m.pooler.dense.bias.requires_grad_(False)),
    "grad": (
        "embeddings.LayerNorm.weight",
        lambda m, t: m(torch.tensor([[4]]))[1].sum().backward(),
    ),
    "attention": ("attention implementation", lambda m, t: m.set_attn_implementation("eager")),
    "config": ("configuration 0", lambda m, t: setattr(m.config, "layer_norm_eps", 1.0)),
    "grad mode": ("grad mode", lambda m, t: torch._C._set_grad_enabled(False)),
    "autocast": ("torch's autocast", lambda m, t: torch.set_autocast_enabled("cpu", True)),
    "dtype": ("get_default_dtype", lambda m, t: torch.set_default_dtype(torch.float64)),
    "padding": ("padding of the tokenizer", lambda m, t: t.backend_tokenizer.enable_padding()),
    "tokenizer": ("own of the tokenizer", lambda m, t: setattr(t, "own", 1)),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("error", [None, KeyboardInterrupt])
def test_every_change_is_named(change: str, error: type[BaseException] | None) -> None:
    model, own = tiny_model("bert"), tokenizer()
    named, make = CHANGES[change]
    try:
        with pytest.raises(ExactnessError) as caught:
            _changed(model, lambda: make(model, own), own, error)
    finally:
        torch.set_grad_enabled(True)
        torch.set_autocast_enabled("cpu", False)
        torch.set_default_dtype(torch.float32)
    assert "BertModel was not left as it was; changed: " in str(caught.value)
    assert named in str(caught.value)
    assert isinstance(caught.value.__cause__, error or type(None))


def test_changes_outside_of_the_model_are_named() -> None:
    model = tiny_model("bert")
    before = signal.getsignal(signal.SIGALRM)
    with pytest.raises(ExactnessError, match=f"handler of signal {int(signal.SIGALRM)}"):
        _changed(model, lambda: signal.signal(signal.SIGALRM, lambda *_: None))
    signal.signal(signal.SIGALRM, before)
    with pytest.raises(ExactnessError, match="AttentionInterface"):
        _changed(model, lambda: AttentionInterface.register("another", print))
    AttentionInterface._global_mapping.pop("another")
    handles: list[Any] = []
    with pytest.raises(ExactnessError, match="_global_forward_hooks"):
        _changed(model, lambda: handles.append(register_module_forward_hook(lambda *_: None)))
    handles[0].remove()


def _changed(
    model: Any,
    change: Callable[[], Any],
    own: Any = None,
    error: type[BaseException] | None = None,
) -> None:
    with check_untouched(model, own):
        change()
        if error is not None:
            raise error


def test_nothing_is_named_without_a_change() -> None:
    model, own = tiny_model("bert").train(), tokenizer()
    with check_untouched(model, own):
        normscope.analyze(model, own, TEXT)
    with pytest.raises(InputError, match="unknown map"), check_untouched(model, own):
        normscope.analyze(model, own, TEXT, maps=["none"])
    with pytest.raises(KeyError), check_untouched(model):
        raise KeyError
