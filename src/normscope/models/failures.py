"""What a failure to load a model means for the user."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from normscope.errors import MissingExtraError, ModelNotFoundError

LoaderResult = TypeVar("LoaderResult")


def attempt(source: str, function: Callable[..., LoaderResult], *arguments: Any) -> LoaderResult:
    """Call a loader; turn its failure into a ModelNotFoundError that says what to do."""
    import torch
    from safetensors import SafetensorError

    try:
        return function(*arguments)
    except (ModelNotFoundError, MissingExtraError, MemoryError, torch.OutOfMemoryError):
        raise
    except SafetensorError as error:
        raise ModelNotFoundError(
            f"the weights of {source!r} are damaged: {_damaged(Path(source))} "
            f"({first_line(error)}); download or save them again"
        ) from error
    except Exception as error:
        text = str(error)
        if "trust_remote_code" in text:
            raise remote_code(source) from error
        if "cannot be loaded with `safetensors`" in text:
            raise pickle_only(source) from error
        if Path(source).is_dir():
            advice = "check that config.json and the weights are complete and belong together"
        elif Path(source).is_file():
            advice = (
                "check that the file is complete, and that transformers reads GGUF files of this "
                "architecture"
            )
        else:
            advice = (
                "check the spelling (owner/name) and the revision; without a network, or for a "
                "model that needs a login, download it first (hf download) or give a folder"
            )
        raise ModelNotFoundError(
            f"cannot load the model {source!r}: {first_line(error)}; {advice}"
        ) from error


def pickle_only(source: str) -> ModelNotFoundError:
    """Return the error for weights in a pickle."""
    return ModelNotFoundError(
        f"{source!r} has its weights only as a pickle (pytorch_model.bin), which can run any code "
        "when it is read; normscope reads safetensors. If you trust it, convert it once, with the "
        f'class that config.json names under "architectures": '
        f"AutoModel.from_pretrained({source!r}, use_safetensors=False).save_pretrained(folder), "
        "and the same for its tokenizer; then give that folder"
    )


def remote_code(source: str) -> ModelNotFoundError:
    """Return the error for a model that brings Python code of its own."""
    return ModelNotFoundError(
        f"{source!r} needs Python code that comes with it (trust_remote_code), and normscope never "
        "runs such code; load the model and its tokenizer yourself and pass them in"
    )


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, abridged, or its class if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{lines[0]:.400}".rstrip(".") if lines else type(error).__name__


def some(names: list[str], count: int) -> str:
    """Return the first names of a list, and how many more there are."""
    more = f", and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more


def _damaged(folder: Path) -> str:
    """Which of a folder's weight files cannot be read."""
    from safetensors import SafetensorError, safe_open

    for file in sorted(folder.glob("*.safetensors")):
        with file.open("rb") as opened:
            if opened.read(23) == b"version https://git-lfs":
                return f"{file.name} is a Git LFS pointer, not the file (run: git lfs pull)"
        try:
            with safe_open(str(file), framework="pt"):
                pass
        except SafetensorError:
            return f"{file.name} is cut short or is not a safetensors file"
    return "a file is cut short or is not a safetensors file"
