"""The files of a model in a folder or on the hub, checked before transformers opens them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PureWindowsPath
from typing import Any

from normscope.errors import ModelNotFoundError
from normscope.models.failures import some

WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
ADAPTERS = ("adapter_config.json", "adapter_model.safetensors")


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model in a folder or on the hub."""

    location: str
    revision: str | None
    cached: bool  # read the hub's cache only

    @property
    def arguments(self) -> dict[str, Any]:
        """The keyword arguments with which transformers finds them, and never runs their code."""
        return {
            "revision": self.revision,
            "local_files_only": self.cached,
            "trust_remote_code": False,  # set, so that config.json cannot ask for its own class
        }

    def find(self, name: str) -> Path | None:
        """Return where a file is, downloaded if need be; None if there is none of this name."""
        from transformers.utils.hub import cached_file

        found = cached_file(
            self.location,
            name,
            revision=self.revision,
            local_files_only=self.cached,
            _raise_exceptions_for_gated_repo=False,
            _raise_exceptions_for_missing_entries=False,
            _raise_exceptions_for_connection_errors=not self.cached,
        )
        return None if found is None else Path(found)


def check_weight_files(files: ModelFiles, config: Any, *, strict: bool) -> None:
    """Raise an error if a model's files name weights that may not be read, or are not its own.

    Args:
        files: the files.
        config: the configuration among them.
        strict: also refuse an adapter beside the weights.

    Raises:
        ModelNotFoundError: an index names a pickle or a file outside of the folder; there is an
            adapter.
    """
    named = str(getattr(config, "transformers_weights", None) or INDEX)
    if not named.endswith((".safetensors", ".safetensors.index.json")):
        raise ModelNotFoundError(
            f"config.json of {files.location!r} says that the weights are in {named!r} "
            "(transformers_weights), which is not safetensors and is not read; save the model "
            "again with save_pretrained()"
        )
    if named.endswith(".json") and (index := files.find(named)) is not None:
        _shards(files.location, index)
    adapters = [name for name in ADAPTERS if files.find(name) is not None] if strict else []
    if adapters:
        raise ModelNotFoundError(
            f"{files.location!r} has an adapter beside the model's own weights "
            f"({', '.join(adapters)}), which may or may not be meant to be applied; merge it into "
            "the model (merge_and_unload() of PEFT) and save that, or remove it. To load the model "
            "as transformers does (with the adapter only if PEFT is installed), use strict=False "
            "(--no-strict)"
        )


def check_numbers(files: ModelFiles, config: Any) -> None:
    """Raise an error if weights of a model that is not quantised are stored as integers.

    transformers reads them as if they were the weights themselves.

    Raises:
        ModelNotFoundError: some are.
    """
    from safetensors import safe_open

    named = str(getattr(config, "transformers_weights", None) or WEIGHTS)
    paths = [files.find(named)]
    if paths == [None] or named.endswith(".json"):
        index = files.find(named if named.endswith(".json") else INDEX)
        paths = [] if index is None else [*map(files.find, _shards(files.location, index))]
    found: list[str] = []
    for path in filter(None, paths):
        with safe_open(str(path), framework="pt") as opened:
            keys = [key for key in list(opened.keys()) if key.endswith(".weight")]
            kinds = {key: opened.get_slice(key).get_dtype() for key in keys}
        found += [f"{key} ({kind})" for key, kind in kinds.items() if kind[0] in "IU"]
    if found:
        raise ModelNotFoundError(
            f"the weights of {files.location!r} are quantised, and what would turn their integers "
            f"into numbers is not known, because config.json has no quantization_config that "
            f"transformers knows: {some(sorted(found), 4)}; save the model dequantised, or with "
            "its quantization_config. To use the integers as they are, use strict=False "
            "(--no-strict)"
        )


def _shards(location: str, index: Path) -> list[str]:
    """Return the files that an index names, if they are safetensors in the model's folder."""
    try:
        shards = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
        # Windows's rules, because they know the separators and roots of all systems.
        paths = {shard: PureWindowsPath(shard) for shard in shards}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelNotFoundError(
            f"{index.name} of {location!r} is not an index of weights ({error!r}); save the model "
            "again"
        ) from error
    if outside := [name for name, path in paths.items() if path.anchor or ".." in path.parts]:
        raise ModelNotFoundError(
            f"{index.name} of {location!r} names files outside of the model's folder: "
            f"{some(outside, 3)}; they are not read. Put the model's files into one folder, and "
            "their names without a path into the index"
        )
    if others := [name for name in shards if not name.endswith(".safetensors")]:
        raise ModelNotFoundError(
            f"{index.name} of {location!r} names files that are not safetensors: "
            f"{some(others, 3)}; they may be pickles, which can run any code, and are not read. "
            "Save the model again with save_pretrained()"
        )
    return shards
