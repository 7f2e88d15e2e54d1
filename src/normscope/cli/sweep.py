"""Every model type of the installed transformers: what is exact for it, and what is refused.

Each type is built small and checked by itself in a process that may be killed, so that one that hangs
or runs out of memory stops no other.
"""

from __future__ import annotations

import copy
import multiprocessing
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

import torch
from torch import Tensor

from normscope.errors import ExactnessError, NormscopeError

Status = Literal["exact", "refused", "wrong", "raised"]
# What is checked of every type.
ASPECTS = ("attention", "layer", "attribute")

BOUND = 1e-10  # the largest relative error, in float64, that counts as a proof
SECONDS = 60.0  # for one type
MEMORY = 8 * 2**30  # bytes of address space, beyond those of the imported libraries


@dataclass(frozen=True)
class Verdict:
    """What one check of a type gave.

    Attributes:
        status: "exact"; "refused" by one of normscope's errors; "wrong" if parts do not add up or
            outputs are not the model's own; "raised" for any other error.
        error: the largest relative gap, if it is exact.
        reason: the message of the error.
    """

    status: Status
    error: float | None = None
    reason: str = ""


@dataclass(frozen=True)
class TypeReport:
    """What was found for one model type.

    Attributes:
        name: transformers' name of the type.
        model: the class that was built.
        inputs: the names of the inputs.
        missing: why it was not checked, or "".
        verdicts: by the name of the check.
        seconds: how long it took.
    """

    name: str
    model: str = ""
    inputs: tuple[str, ...] = ()
    missing: str = ""
    verdicts: dict[str, Verdict] | None = None
    seconds: float = 0.0


def sweep(
    names: Sequence[str], *, processes: int = 2, seconds: float = SECONDS
) -> Iterator[TypeReport]:
    """Check model types, several at a time; yields each report as soon as it is there."""
    waiting = list(reversed(names))
    workers = [_Worker() for _ in range(min(processes, len(names)))]
    try:
        while waiting or any(worker.name for worker in workers):
            for worker in workers:
                if not worker.name and waiting:
                    worker.give(waiting.pop(), seconds)
            wait([worker.connection for worker in workers if worker.name], timeout=1.0)
            for worker in workers:
                if (report := worker.report()) is not None:
                    yield report
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that checks one type at a time, and is replaced when it ends or takes too long."""

    def __init__(self) -> None:
        self.name, self.begun, self.seconds = "", 0.0, SECONDS
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self.process = context.Process(target=_answer, args=(there,), daemon=True)
        self.process.start()
        there.close()

    def give(self, name: str, seconds: float) -> None:
        self.name, self.begun, self.seconds = name, time.monotonic(), seconds
        with suppress(OSError):  # it has ended: `report` says so
            self.connection.send(name)

    def report(self) -> TypeReport | None:
        """Return what was found, or None if the check is still running."""
        if not self.name:
            return None
        taken = time.monotonic() - self.begun
        try:
            if self.connection.poll():
                report: TypeReport = self.connection.recv()
                self.name = ""
                return report
            reason = f"it took longer than {self.seconds:g} s" if taken > self.seconds else ""
        except (EOFError, OSError):
            self.process.join()
            reason = f"its process ended with status {self.process.exitcode}"
        if not reason:
            return None
        report = TypeReport(self.name, missing=reason, seconds=taken)
        self.stop()
        self.name = ""
        self._start()
        return report

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


def _answer(connection: Connection) -> None:
    """Check the types whose names come through a connection; runs in a process of its own."""
    import transformers

    _limit_memory()
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    with suppress(EOFError, KeyboardInterrupt):
        while True:
            connection.send(check_type(connection.recv()))


def _limit_memory() -> None:
    """Let a huge allocation fail, where the system can."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def check_type(name: str) -> TypeReport:
    """Build a small model of one type and check it."""
    from normscope.models.random_inputs import random_inputs
    from normscope.models.shrinking import model_class, shrunken_model

    begun = time.monotonic()
    cls = model_class(name)
    if cls is None:
        return TypeReport(name, missing="no model of its own: a part of other types")
    kind = cls.__name__
    try:
        model = shrunken_model(name)
    except Exception as error:
        return TypeReport(name, kind, missing=f"not built: {_text(error)}")
    try:
        inputs = random_inputs(model)
        with torch.no_grad():
            copy.deepcopy(model)(**inputs)
    except Exception as error:
        return TypeReport(name, kind, missing=f"not fed: {_text(error)}")
    verdicts = {aspect: judged(_CHECKS[aspect], model, inputs) for aspect in ASPECTS}
    return TypeReport(name, kind, tuple(inputs), "", verdicts, time.monotonic() - begun)


def judged(check: Callable[[Any, Any], float], model: Any, inputs: dict[str, Tensor]) -> Verdict:
    """Return the verdict of one check."""
    try:
        # A copy, because some models cast their own modules when they run.
        return Verdict("exact", check(copy.deepcopy(model), inputs))
    except ExactnessError as error:
        return Verdict("wrong", reason=_line(error))
    except NormscopeError as error:
        return Verdict("refused", reason=_line(error))
    except Exception as error:
        return Verdict("raised", reason=_text(error))


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _text(error: BaseException) -> str:
    return f"{type(error).__name__}: {_line(error)}"


def _attention(model: Any, inputs: dict[str, Tensor]) -> float:
    from normscope.testing import check_architecture

    return check_architecture(model, inputs, bound=BOUND).worst


def _layer(model: Any, inputs: dict[str, Tensor]) -> float:
    from normscope.testing import FullPrecision, check_layers

    with FullPrecision():
        return max(check_layers(model, inputs, bound=BOUND).values())


def _attribute(model: Any, inputs: dict[str, Tensor]) -> float:
    from normscope.attribution.passes import explain
    from normscope.linearisation.rules import rules_of
    from normscope.testing import FullPrecision

    with FullPrecision():
        shares = explain(model, inputs, value_of(inputs), rules_of("frozen"))
    return float(shares.error.max())


_CHECKS = {"attention": _attention, "layer": _layer, "attribute": _attribute}


def value_of(inputs: dict[str, Tensor]) -> Callable[[Any], Tensor]:
    """Explain one entry of the output, at the last real position where it has positions."""
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))

    def value(output: Any) -> Tensor:
        states = _states(output)
        if states.dim() == 2:
            return states[:, 1:2]
        if states.dim() > 3:
            return states.flatten(1)[:, 1:2]
        if mask is None or mask.shape != states.shape[:2]:
            return states[:, -1, 1:2]
        last = (mask * torch.arange(mask.shape[1])).argmax(1)
        return states[torch.arange(len(states)), last][:, 1:2]

    return value


def _states(output: Any) -> Tensor:
    for name in ("logits", "logits_per_image", "last_hidden_state"):
        if isinstance(states := getattr(output, name, None), Tensor):
            return states.diagonal()[:, None] if name == "logits_per_image" else states
    given = output if isinstance(output, tuple) else output.to_tuple()
    return next(t for t in given if isinstance(t, Tensor) and t.is_floating_point())
