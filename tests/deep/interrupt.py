"""Interrupt passes at every kind of moment, and see that the model is as it was each time.

    python -m tests.deep.interrupt --count 10000 --seed 1

Half of the interrupts come from a timer, at a random time of the call. The others come at a chosen
step: Python's tracing counts the lines of the call, and in files that change and restore something
each single instruction, and SIGINT is raised there. It is raised below Python, so that the
interpreter handles it at its next check for signals, as one from the keyboard.
"""

from __future__ import annotations

import argparse
import ctypes
import functools
import random
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import torch

import normscope
from normscope.capture import installation
from normscope.capture.active import ACTIVE
from normscope.capture.interface import LOCK
from normscope.errors import ExactnessError
from normscope.foundation import progress
from normscope.foundation.torch_settings import torch_settings
from normscope.linearisation.network import running
from normscope.measures.statistics import StatisticSettings
from normscope.models.architectures import randomize_
from normscope.testing import check_untouched, random_inputs
from normscope.text import tokens
from tests.deep import record
from tests.helpers.tiny import tokenizer

# Of these files each instruction is a moment, of other files of normscope each line.
FINE = (
    *("foundation/interrupts", "foundation/torch_settings", "foundation/progress"),
    *("capture/__init__", "capture/installation", "capture/layers", "capture/interface"),
    *("capture/watch", "models/running", "text/tokens", "engine/run", "attribution/api"),
    *("attribution/passes", "attribution/recomputation", "linearisation/structure"),
    *("linearisation/network", "alignment/gradients", "corpus/checkpoint", "foundation/files"),
    *("contextlib", "torch/autograd/grad_mode", "torch/autograd/forward_ad", "torch/overrides"),
    *("torch/autograd/graph", "torch/amp/autocast_mode", "torch/utils/_contextlib"),
    *("torch/utils/checkpoint",),
)
SETTINGS = torch_settings()
Call = Callable[[], Any]


# ------------------------------------------------------------------------------- what is called


def _sizes(layers: int = 2) -> dict[str, Any]:
    ids = {"vocab_size": 60, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2}
    return ids | {
        "hidden_size": 16, "num_hidden_layers": layers, "num_attention_heads": 2,
        "intermediate_size": 20, "max_position_embeddings": 64,
    }  # fmt: skip


def _model(name: str) -> Any:
    """A tiny random model in training mode, so that this too has to be restored."""
    import transformers

    sizes = _sizes()
    if name == "T5ForConditionalGeneration":
        names = {"hidden_size": "d_model", "num_hidden_layers": "num_layers"}
        names |= {"num_attention_heads": "num_heads", "intermediate_size": "d_ff"}
        sizes = {names.get(key, key): value for key, value in sizes.items()}
        del sizes["max_position_embeddings"]
        sizes |= {"d_kv": 8, "decoder_start_token_id": 1}
    kind = name.removesuffix("ForCausalLM").removesuffix("ForConditionalGeneration")
    config = getattr(transformers, kind.removesuffix("Model") + "Config")(**sizes)
    model = getattr(transformers, name)(config).double().train()
    randomize_(model)
    return model


@dataclass
class Scenario:
    """A call, and what it must leave alone."""

    model: Any
    call: Call
    tokenizer: Any = None
    cleanup: Call = lambda: None


def _analyses() -> dict[str, Callable[[], Scenario]]:
    text = "the cat sat on the mat"

    def bert(**options: Any) -> Scenario:
        model, own = _model("BertModel"), tokenizer()
        return Scenario(model, lambda: normscope.analyze(model, own, text, **options), own)

    def inputs(name: str, **options: Any) -> Scenario:
        model = _model(name)
        given = random_inputs(model)
        return Scenario(model, lambda: normscope.analyze_inputs(model, given, **options))

    return {
        "analyze": bert,
        "layers": lambda: bert(maps=["attn_n", "attn_res_ln_n", "atb_ff_res_ln"]),
        "eager": lambda: inputs("LlamaForCausalLM", attention="eager"),
        "fused": lambda: inputs("LlamaForCausalLM", attention="fused"),
        "two stacks": lambda: inputs("T5ForConditionalGeneration"),
        "watched": lambda: inputs("MPNetModel"),
    }


def _others() -> dict[str, Callable[[], Scenario]]:
    def attribute(**options: Any) -> Scenario:
        model, own = _model("LlamaForCausalLM"), tokenizer()
        text = "the cat sat on"
        return Scenario(model, lambda: normscope.attribute(model, own, text, **options), own)

    def align(**options: Any) -> Scenario:
        model, own = _model("T5ForConditionalGeneration"), tokenizer(pair=False)
        sides = ["the cat sat"], ["a dog ran over"]
        how: dict[str, Any] = {"layer": 1, "head": "sum", "reading": "awi"} | options
        return Scenario(model, lambda: normscope.align(*sides, model, own, **how), own)

    def corpus() -> Scenario:
        model, own = _model("BertModel"), tokenizer()
        rows = ["the cat sat on the mat", "a dog ran", "not every day"]
        home = tempfile.TemporaryDirectory()
        options: dict[str, Any] = {"tokenizer": own, "progress": True, "restart": True}
        options["settings"] = StatisticSettings(masking=0.0, replicates=2)

        def call() -> None:
            normscope.corpus(model, rows, ["mixing"], output=home.name, **options)

        return Scenario(model, call, own, home.cleanup)

    return {
        "frozen": attribute,
        "secant": lambda: attribute(baseline="the"),
        "trace": lambda: attribute(trace=True),
        "recompute": lambda: attribute(recompute=True, trace=True),
        "generate": lambda: attribute(generate=2),
        "align": align,
        "saliency": lambda: align(method="saliency", layer="auto", head="auto", reading="auto"),
        "corpus": corpus,
    }


def scenarios() -> dict[str, Callable[[], Scenario]]:
    """What is interrupted, by name."""
    return _analyses() | _others()


# ---------------------------------------------------------------------------------- the moments


class Steps:
    """A tracer that counts the steps of a call, and raises SIGINT at one of them.

    Args:
        at: the number of that step; None raises nothing and notes all steps.
    """

    def __init__(self, at: int | None = None) -> None:
        self.at, self.count = at, 0
        self.places: list[tuple[CodeType, int]] = []
        # Looking up a missing key calls these without an instruction of the kind "call", after
        # which the interpreter would look for signals here, in the tracer.
        self.end: Any = defaultdict(functools.partial(sys.settrace, None))
        self.alarm: Any = defaultdict(
            functools.partial(ctypes.pythonapi.PyErr_SetInterruptEx, int(signal.SIGINT))
        )

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Trace the frames of files that are of interest."""
        how = _how(frame.f_code)
        if how is None:
            return None
        frame.f_trace_opcodes = how == "opcode"
        return self.step

    def step(self, frame: FrameType, event: str, argument: Any) -> Any:
        """Count a step."""
        if event == _how(frame.f_code):
            if self.at is None:
                self.places.append((frame.f_code, frame.f_lasti))
            elif self.count == self.at:
                self.end[0]
                self.alarm[0]
                return None
            self.count += 1
        return self.step


@functools.cache
def _how(code: CodeType) -> str | None:
    name = code.co_filename.replace("\\", "/").removesuffix(".py")
    if name.endswith(FINE):
        return "opcode"
    return "line" if "/normscope/" in name else None


def moments(places: list[tuple[CodeType, int]], count: int, draw: random.Random) -> list[int]:
    """Choose steps: half of them in any place equally often, half at any time equally often."""
    by_place: dict[tuple[CodeType, int], list[int]] = defaultdict(list)
    for number, place in enumerate(places):
        by_place[place].append(number)
    every = list(by_place.values())
    draw.shuffle(every)
    chosen = [draw.choice(every[index % len(every)]) for index in range(count // 2)]
    return chosen + [draw.randrange(len(places)) for _ in range(count - len(chosen))]


# -------------------------------------------------------------------------------- the interrupts


@dataclass
class Tally:
    """What became of the interrupts."""

    interrupted: int = 0
    finished: int = 0  # the call was over, or the exception was lost in a place that ignores them
    left: Counter[str] = field(default_factory=Counter)

    def of(self, scenario: Scenario, start: Call, stop: Call) -> None:
        """Interrupt one call, and note what has been left."""
        try:
            with check_untouched(scenario.model, scenario.tokenizer):
                try:
                    start()
                    scenario.call()
                finally:
                    stop()
            self.finished += 1
        except KeyboardInterrupt:
            self.interrupted += 1
        except ExactnessError as error:
            self.interrupted += 1
            self.left[str(error)] += 1
        except Exception as error:  # something of an earlier call that no check sees
            self.left[f"{type(error).__name__}: {error}"] += 1
            traceback.print_exc(limit=-4)
        if remains := _remains():
            self.left[f"after the traceback was freed: {remains}"] += 1


def _remains() -> str:
    """Return what is open, locked or installed although no call is running."""
    locks: tuple[Any, Any] = LOCK, tokens._LOCK
    states: dict[str, Any] = {
        "recorders": ACTIVE.get(),
        "networks": running(),
        "installations": len(installation._INSTALLED),
        "lock of configurations": locks[0]._is_owned(),
        "lock of tokenizers": locks[1]._is_owned(),
        "display": progress.is_shown(),
        "settings of torch": torch_settings() != SETTINGS,
    }
    return ", ".join(name for name, state in states.items() if state)


def _raise(*_: Any) -> None:
    raise KeyboardInterrupt


def interrupt(scenario: Scenario, count: int, draw: random.Random) -> Tally:
    """Interrupt a call as often as is asked for, at steps and at times."""
    tally = Tally()
    for _ in range(3):  # what is kept from call to call, and what a model sets in its first pass
        scenario.call()
    try:  # what changes when a traceback is freed shows in the end
        with check_untouched(scenario.model, scenario.tokenizer):
            _interrupt(scenario, count, draw, tally)
    except ExactnessError as error:
        tally.left[f"later: {error}"] += 1
    return tally


def _interrupt(scenario: Scenario, count: int, draw: random.Random, tally: Tally) -> None:
    noting = Steps()
    sys.settrace(noting.called)
    scenario.call()
    sys.settrace(None)
    begun = time.perf_counter()
    scenario.call()
    seconds = time.perf_counter() - begun
    for at in moments(noting.places, count // 2, draw):
        tracer = Steps(at)
        tally.of(
            scenario,
            functools.partial(sys.settrace, tracer.called),
            functools.partial(sys.settrace, None),
        )
    for _ in range(count - count // 2):
        delay = max(1e-6, draw.random() * seconds)
        tally.of(
            scenario,
            functools.partial(signal.setitimer, signal.ITIMER_REAL, delay),
            functools.partial(signal.setitimer, signal.ITIMER_REAL, 0),
        )


def main() -> int:
    """Interrupt the calls that were asked for; the exit status is 1 if anything was left."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=10_000, help="interrupts of all calls")
    parser.add_argument("--seed", type=int, help="default: one that was not used before")
    parser.add_argument("--only", nargs="+", choices=scenarios(), help="calls to interrupt")
    parser.add_argument("--record", action="store_true", help="add what was done to runs.jsonl")
    arguments = parser.parse_args()
    seed = record.next_seed("interrupts") if arguments.seed is None else arguments.seed
    torch.set_num_threads(1)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in background jobs
    signal.signal(signal.SIGALRM, _raise)
    chosen = arguments.only or list(scenarios())
    total = Tally()
    parts: dict[str, int] = {}
    for name in chosen:
        scenario = scenarios()[name]()
        draw = random.Random(f"{seed} {name}")
        tally = interrupt(scenario, -(-arguments.count // len(chosen)), draw)
        scenario.cleanup()
        left = sum(tally.left.values())
        print(
            f"{name}: {tally.interrupted} interrupted, {tally.finished} finished before, "
            f"{left} left something",
            flush=True,
        )
        for what, times in tally.left.most_common(10):
            print(f"  {times} times: {what}", flush=True)
        parts[name] = tally.interrupted
        total.interrupted += tally.interrupted
        total.finished += tally.finished
        total.left += tally.left
    print(f"seed {seed}: {total.interrupted} interrupts, {sum(total.left.values())} left something")
    if arguments.record:
        record.append("interrupts", seed, parts, sum(total.left.values()))
    return 1 if total.left else 0


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[2]))
    sys.exit(main())
