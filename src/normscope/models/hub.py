"""Whether a model on the hub can be had: from the cache, over the network, or not at all.

huggingface_hub repeats a request that fails for half a minute. A machine without a network, or a
misspelt name on one, is recognised here at once.
"""

from __future__ import annotations

import difflib
import threading
import time

from normscope.errors import ModelNotFoundError
from normscope.models.default import DEFAULT_MODELS

SECONDS = 2.0  # time for the hub to respond
_REMEMBERED = 10.0  # seconds after which the hub is asked again

_last: tuple[float, str, str | None] | None = None  # time, address and reason of the last attempt


def only_cached(name: str, revision: str | None) -> bool:
    """Return whether only the cached files of a model can be read, since the hub is out of reach.

    Raises:
        ModelNotFoundError: the model is not in the cache either.
    """
    from huggingface_hub import constants

    reason = "HF_HUB_OFFLINE is set" if constants.HF_HUB_OFFLINE else unreachable()
    if reason is None:
        return False
    if not is_cached(name, revision):
        raise ModelNotFoundError(
            f"cannot load the model {name!r}: it is neither a folder nor in the local cache, and "
            f"{reason}; {_meant(name)}check the spelling (owner/name) and the revision; without a "
            "network, give a folder with the model in it, or download the model elsewhere first "
            "(hf download)"
        )
    return True


def _meant(name: str) -> str:
    """Return a question about the short name of a default model that is almost this one, or ""."""
    known = [model.alias for model in DEFAULT_MODELS.values()]
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.7)
    return f"did you mean {close[0]!r}? Otherwise, " if close else ""


def unreachable() -> str | None:
    """Return why the hub cannot be reached, in words, or None if it can."""
    from huggingface_hub import constants

    problem = _problem(constants.ENDPOINT)
    host = constants.ENDPOINT.partition("://")[2] or constants.ENDPOINT
    return None if problem is None else f"{host} cannot be reached ({problem})"


def is_cached(name: str, revision: str | None) -> bool:
    """Return whether the configuration of a model is in the hub's cache."""
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(name, "config.json", revision=revision), str)
    except HFValidationError:
        return False


def _problem(address: str) -> str | None:
    """Return why the hub cannot be reached, or None if it can."""
    global _last
    now = time.monotonic()
    if _last is None or _last[1] != address or now - _last[0] > _REMEMBERED:
        _last = now, address, _attempt(address)
    return _last[2]


def _attempt(address: str) -> str | None:
    problems: list[str | None] = []

    def ask() -> None:
        from huggingface_hub import get_session  # knows the user's proxies

        try:
            get_session().head(address, timeout=SECONDS)
        except Exception as error:
            problems.append(str(error) or type(error).__name__)
        else:
            problems.append(None)

    # In a thread, because looking up a host's name has no time limit.
    thread = threading.Thread(target=ask, name="normscope-hub", daemon=True)
    thread.start()
    thread.join(SECONDS)
    return problems[0] if problems else f"no response within {SECONDS:g} s"
