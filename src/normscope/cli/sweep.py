"""Every model type of the installed transformers: what is exact for it, and what is refused.

Each type is built small and checked in a process that may be killed, so that one that hangs or
runs out of memory stops no other.
"""

from __future__ import annotations

import copy
import multiprocessing
import os
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, Literal

from normscope.errors import ExactnessError, NormscopeError

Status = Literal["exact", "refused", "wrong", "raised"]
STATUSES: tuple[Status, ...] = ("exact", "refused", "wrong", "raised")

BOUND = 1e-10  # the largest relative error, in float64, that counts as a proof
SECONDS = 180.0  # for one type, on a busy machine
MEMORY = 10 * 2**30  # bytes of address space; torch alone takes four


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
        modality: what it reads: "text", "image", "image + text", ….
        missing: why it was not checked, or "".
        verdicts: by the name of the check; empty if it was not checked.
    """

    name: str
    model: str = ""
    modality: str = ""
    missing: str = ""
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)


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
                    worker.give(waiting.pop())
            wait([worker.connection for worker in workers if worker.name], timeout=1.0)
            for worker in workers:
                if (report := worker.report(seconds)) is not None:
                    yield report
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that checks one type at a time, and is replaced when it ends or takes too long."""

    def __init__(self) -> None:
        self.name, self._begun = "", 0.0
        self._start()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.connection, there = context.Pipe()
        self._process = context.Process(target=_answer, args=(there,), daemon=True)
        self._process.start()
        there.close()

    def give(self, name: str) -> None:
        """Send the name of a type to be checked."""
        self.name, self._begun = name, time.monotonic()
        with suppress(OSError):  # it has ended: `report` says so
            self.connection.send(name)

    def report(self, seconds: float) -> TypeReport | None:
        """Return what was found, or None if the check is still running."""
        if not self.name:
            return None
        reason = ""
        try:
            if self.connection.poll():
                report: TypeReport = self.connection.recv()
                self.name = ""
                return report
            if time.monotonic() - self._begun > seconds:
                reason = f"it took longer than {seconds:g} s"
        except (EOFError, OSError):
            self._process.join()
            reason = f"its process ended with status {self._process.exitcode}"
        if not reason:
            return None
        report = TypeReport(self.name, missing=reason)
        self.stop()
        self.name = ""
        self._start()
        return report

    def stop(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.join()
        self.connection.close()


def _answer(connection: Connection) -> None:
    """Check the types whose names come through a connection; runs in a process of its own."""
    import torch
    from transformers.utils import logging

    with suppress(ImportError, ValueError, OSError):  # where the system has no such limit
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):  # some modules print when they are imported
        os.dup2(nowhere, stream)
    warnings.simplefilter("ignore")
    logging.set_verbosity_error()
    torch.set_num_threads(1)
    with suppress(EOFError, KeyboardInterrupt, BrokenPipeError):
        while True:
            connection.send(check_type(connection.recv()))


def check_type(name: str) -> TypeReport:
    """Build a small model of one type, run it, and check it."""
    import torch

    from normscope.models.random_inputs import modality_of, random_inputs
    from normscope.models.shrinking import model_class, shrunken_model

    kind, step = "", "built"
    try:
        if (cls := model_class(name)) is None:
            return TypeReport(name, missing="a part of other types, without a model of its own")
        kind = cls.__name__
        model = shrunken_model(name)
        step = "run on random inputs"
        inputs = random_inputs(model)
        with torch.no_grad():
            copy.deepcopy(model)(**inputs)
    except Exception as error:
        return TypeReport(name, kind, missing=f"cannot be {step}: {_named(error)}")
    checks = {"attention": _attention, "layer": _layer, "attribute": _attribute}
    verdicts = {check: judged(function, model, inputs) for check, function in checks.items()}
    return TypeReport(name, kind, modality_of(inputs), verdicts=verdicts)


def judged(check: Callable[[Any, Any], float], model: Any, inputs: Mapping[str, Any]) -> Verdict:
    """Return the verdict of one check, of a copy of a model.

    A copy, because some models cast their own modules when they run.
    """
    try:
        return Verdict("exact", check(copy.deepcopy(model), inputs))
    except ExactnessError as error:
        return Verdict("wrong", reason=_message(error))
    except NormscopeError as error:
        return Verdict("refused", reason=_message(error))
    except Exception as error:
        return Verdict("raised", reason=_named(error))


def _message(error: BaseException) -> str:
    return " ".join(str(error).split())


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {_message(error)}"


def _bound(model: Any) -> float | None:
    """Return the bound for a float64 model; None, which leaves it to the dtype, for others."""
    return BOUND if str(model.dtype) == "torch.float64" else None


def _attention(model: Any, inputs: Mapping[str, Any]) -> float:
    from normscope.testing import check_architecture

    try:
        return check_architecture(model, inputs, bound=_bound(model)).worst
    except ExactnessError:  # some norms between heads and projection round to float32
        with _precision(model):
            return check_architecture(model, inputs, bound=_bound(model)).worst


def _layer(model: Any, inputs: Mapping[str, Any]) -> float:
    from normscope.testing import check_layers

    with _precision(model):
        return max(check_layers(model, inputs, bound=_bound(model)).values())


def _attribute(model: Any, inputs: Mapping[str, Any]) -> float:
    from normscope.attribution.passes import explain
    from normscope.linearisation.rules import rules_of

    def shares() -> float:
        return float(explain(model, inputs, one_entry(inputs), rules_of("frozen")).error.max())

    try:
        with _precision(model):
            return shares()
    except ExactnessError:  # a constant that rounds to float32: judged by the bound of float32
        return shares()


def _precision(model: Any) -> Any:
    from contextlib import nullcontext

    from normscope.testing import FullPrecision

    return nullcontext() if _bound(model) is None else FullPrecision()


def one_entry(inputs: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a function from a model's output to one of its numbers for each row.

    Where an output has positions, that is a number of the last real one; else the largest.
    """
    mask = inputs.get("decoder_attention_mask", inputs.get("attention_mask"))
    rows = len(next(iter(inputs.values())))

    def entry(output: Any) -> Any:
        states = _in_rows(_states(output), rows)
        if states.dim() != 3:
            flat = states.flatten(1)
            return flat.gather(1, flat.detach().abs().argmax(1, keepdim=True))
        column = min(1, states.shape[-1] - 1)
        real = (states.detach() != 0).any(-1).long()  # models fill up sequences with zeros
        if mask is not None and mask.shape == states.shape[:2]:
            real = real * mask
        last = real.cumsum(1).argmax(1)
        return states[range(len(states)), last][:, column : column + 1]

    return entry


def _in_rows(states: Any, rows: int) -> Any:
    """Return states with an axis of rows, where the patches or frames of all rows are joined."""
    if states.dim() == 1:
        return states.unflatten(0, (rows, -1))
    if len(states) == rows:
        return states
    if states.dim() > 2 and len(states) % rows == 0:  # the frames of all rows
        return states.unflatten(0, (rows, -1)).flatten(1, -2)
    if states.dim() > 2 and len(states) == 1:
        states = states[0]
    return states.unflatten(0, (rows, -1))


def _states(output: Any) -> Any:
    """Return the first floating-point tensor of an output, one with known names before others."""
    for name in ("logits", "logits_per_image", "last_hidden_state", "audio_values"):
        states: Any = getattr(output, name, None)
        if hasattr(states, "dim"):
            return states.diagonal()[:, None] if name == "logits_per_image" else states
    return next(_floats(output))


def _floats(output: Any) -> Iterator[Any]:
    """Yield every floating-point tensor of an output."""
    if hasattr(output, "dim"):
        yield from [output] * output.is_floating_point()
    elif isinstance(output, Mapping | list | tuple):
        for part in output.values() if isinstance(output, Mapping) else output:
            yield from _floats(part)
