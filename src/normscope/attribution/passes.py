"""One pass forward and one back through the linearised network: shares, and their proof."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from normscope.attribution.diagnosis import diagnose
from normscope.attribution.recomputation import recomputed, worth_recomputing
from normscope.capture.active import ACTIVE
from normscope.capture.layers import layers_of
from normscope.engine.given import row_count
from normscope.engine.judge import judge_shares, share_bound
from normscope.errors import InputError, UnsupportedModelError
from normscope.foundation.interrupts import shielded
from normscope.linearisation.network import Network, Source, networks_kept, running
from normscope.linearisation.operators import inner
from normscope.linearisation.rules import Rules
from normscope.linearisation.running import (
    dual_level,
    refuse_without_gradients,
    visible_attention,
)
from normscope.linearisation.structure import Structure, structure_of
from normscope.linearisation.trace import Trace, Tracer
from normscope.models.completeness import made_up, refuse_made_up
from normscope.models.running import accepted_by, evaluating

Explained = Callable[[Any], Tensor]  # the model's output -> scalars, (row, step)
Place = tuple[str, str]  # stack and part of a source

CHECK_EVERY = 64  # batches of a model after the first, of which one is checked by replay
CHECK_TOKENS = 8192  # batches with more positions are not replayed

_CHECKED: WeakKeyDictionary[nn.Module, set[Rules]] = WeakKeyDictionary()


@dataclass(frozen=True)
class SourceShares:
    """The shares of one kind of source.

    Attributes:
        stack: "" for a model with one stack of layers, else "encoder", "decoder", ….
        part: "word", "position", "token_type", or "state" for states that enter the first layer.
        shares: (row, step, position).
    """

    stack: str
    part: str
    shares: np.ndarray


@dataclass(frozen=True)
class RowShares:
    """The shares of all rows of a batch.

    Attributes:
        value: (row, step): the outputs explained; for differences, y(input) − y(baseline).
        bias: (row, step): the share of biases and other constants.
        error: (row, step): the gap of value, shares and bias, relative to their sizes; NaN for
            scores that are no shares.
        sources: the shares of the sources.
        trace: the shares inside the model, if asked for.
        lens: (row, step, layer): the values of the logit lens, if asked for.
    """

    value: np.ndarray
    bias: np.ndarray
    error: np.ndarray
    sources: list[SourceShares]
    trace: Trace | None = None
    lens: np.ndarray | None = None


def explain(
    model: nn.Module,
    inputs: Mapping[str, Any],
    value: Explained,
    rules: Rules,
    *,
    baseline_inputs: Mapping[str, Any] | None = None,
    trace: bool = False,
    recompute: bool | str = "auto",
) -> RowShares:
    """Return the share of every source in scalars of a model's output.

    Args:
        model: an unmodified model.
        inputs: keyword arguments of its forward pass, on its device.
        value: returns the scalars, (row, step), given the model's output. It runs in the linearised
            network too, and must treat rows independently. If it has an attribute ``scale``, (row,
            step), gaps are judged relative to numbers of that size, which cancel in the scalars.
        rules: the method.
        baseline_inputs: for differences of two inputs, the baseline of each row; what they lack is
            the same as in ``inputs``.
        trace: whether to read the shares inside the model.
        recompute: whether to compute the states of a layer again in the backward pass, instead of
            keeping them; "auto" does so on a GPU if they would not fit.

    Raises:
        ExactnessError: the shares do not add up; the message names the operation.
        UnsupportedModelError: the model does something that has no rule.
    """
    if rules.difference:
        inputs = pairs(inputs, baseline_inputs or {})
    setup = Setup(model, inputs, value, rules, trace)
    setup.refuse()
    with setup.prepared():
        refuse_made_up(model, setup.made_up(), "this output")
        again = worth_recomputing(model, inputs) if recompute == "auto" else bool(recompute)
        try:
            shares, network = setup.shares(again)
        except torch.OutOfMemoryError:
            if again or recompute != "auto":
                raise
            torch.cuda.empty_cache()
            again = True
            shares, network = setup.shares(again)
        if setup.rows > 1 and not setup.gaps(shares).max() <= share_bound(
            network.dtypes, rules.difference
        ):
            # A batch may be laid out in a way that hides whose row a bias belongs to.
            shares, network = setup.shares(again, row_by_row=True)
        judge_shares(
            type(model).__name__,
            setup.gaps(shares),
            network.dtypes,
            difference=rules.difference,
            explain_gap=lambda: diagnose(setup.network(), setup.forward),
        )
        setup.check(shares, network)
    return shares


def pairs(inputs: Mapping[str, Any], baseline: Mapping[str, Any]) -> dict[str, Any]:
    """Return a batch of twice as many rows: the inputs, then their baselines."""
    return {
        name: torch.cat([tensor, baseline.get(name, tensor)])
        if isinstance(tensor, Tensor) and tensor.dim()
        else tensor
        for name, tensor in inputs.items()
    }


def _size(sources: Iterable[np.ndarray], bias: np.ndarray) -> np.ndarray:
    """Return the size of shares (row, step, position) and biases together, (row, step)."""
    size: np.ndarray = sum((np.abs(shares).sum(-1) for shares in sources), np.abs(bias))
    return size


@dataclass(frozen=True)
class Setup:
    """What one call explains, and how."""

    model: nn.Module
    inputs: Mapping[str, Any]
    value: Explained
    rules: Rules
    trace: bool = False
    kind: Callable[[Structure, Rules, int], Network] = Network

    @property
    def rows(self) -> int:
        """The number of rows of the batch."""
        return row_count(self.inputs)

    def network(self) -> Network:
        """Return a network that has not run."""
        return self.kind(structure_of(self.model), self.rules, self.rows)

    def refuse(self) -> None:
        """Raise an error where no gradient can be computed, or another pass is running."""
        if running() or ACTIVE.get():
            raise InputError(
                "an attribution cannot run inside another attribution or inside a capture of the "
                "same thread; leave that context first"
            )
        refuse_without_gradients(self.model)

    @shielded
    def prepared(self) -> Iterator[None]:
        """Allow gradients; put the model into evaluation mode, with attention that is seen."""
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode(False))
            stack.enter_context(torch.enable_grad())
            stack.enter_context(evaluating(self.model))
            stack.enter_context(visible_attention(self.model))
            yield

    @shielded
    def hooked(self, network: Network, recompute: bool = False) -> Iterator[None]:
        """Let a network see the model's modules, also in a backward pass that recomputes them."""
        with ExitStack() as stack:
            stack.enter_context(networks_kept())
            stack.enter_context(network.structure.watched(network))
            if network.tracer is not None:
                for handle in network.tracer.hooks():
                    stack.callback(handle.remove)
            if recompute:
                stack.enter_context(recomputed(network))
            yield

    def run(self, network: Network) -> Tensor:
        """Run the model as a linearised network, and return the scalars."""
        given = self._given(network)  # sources are leaves, made before the mode sees functions
        try:
            with network:
                return self.value(self.model(**given))
        finally:
            if network.tracer is not None:
                network.tracer.finish_forward()

    def forward(self, network: Network) -> Tensor:
        """Run the model without a backward pass."""
        with self.hooked(network):
            return self.run(network)

    def _given(self, network: Network) -> dict[str, Any]:
        given = {
            name: t.clone() if isinstance(t, Tensor) and t.is_inference() else t
            for name, t in self.inputs.items()
        }
        for name in ("inputs_embeds", "decoder_inputs_embeds"):
            if isinstance(given.get(name), Tensor):
                two = network.structure.two_sided
                stack = "" if not two else "decoder" if "decoder" in name else "encoder"
                given[name] = network.source(stack, "word", given[name])
        if "use_cache" in accepted_by(self.model):
            given.setdefault("use_cache", False)
        return given

    def plain(self) -> Tensor:
        """Run the model itself, and return the scalars."""
        with torch.no_grad():
            return self.value(self.model(**self._accepted()))

    def _accepted(self) -> dict[str, Any]:
        given = dict(self.inputs)
        if "use_cache" in accepted_by(self.model):
            given.setdefault("use_cache", False)
        return given

    def made_up(self) -> list[str]:
        """Return the parameters that no file had and that the scalars depend on."""
        if not (names := made_up(self.model)):
            return []
        tensors = [*self.model.named_parameters(), *self.model.named_buffers()]
        given = {name: tensor.detach() for name, tensor in tensors}
        leaves = {n: tensor.requires_grad_() for n, tensor in given.items() if n in names}
        values = self.value(functional_call(self.model, given, (), self._accepted()))
        if not values.requires_grad:
            return []
        slopes = torch.autograd.grad(values.sum(), [*leaves.values()], allow_unused=True)
        return [name for name, slope in zip(leaves, slopes, strict=True) if slope is not None]

    def shares(self, recompute: bool, row_by_row: bool = False) -> tuple[RowShares, Network]:
        """Run forward, and back for every step."""
        network = self.network()
        network.ledger.unresolved = row_by_row
        if self.trace:
            network.tracer = Tracer(network, layers_of(self.model))
        with self.hooked(network, recompute):
            return _Account(network, self.run(network)).shares(), network

    def gaps(self, shares: RowShares) -> np.ndarray:
        """Return the gaps to be judged, (row, step and cut)."""
        size = _size((source.shares for source in shares.sources), shares.bias)
        gaps = [shares.error * self._relief(size)]
        if shares.trace is not None:
            for cut in shares.trace.cuts:
                gaps.append(cut.error * self._relief(_size(cut.shares.values(), cut.bias)))
            for layer in shares.trace.layers:
                parts = (layer.heads_error, layer.feed_forward_error)
                gaps += [gap for gap in parts if gap is not None]
        return np.concatenate(gaps, axis=1)

    def _relief(self, size: np.ndarray) -> np.ndarray | float:
        """Return by how much shares are smaller than numbers that cancel in the value."""
        scale = getattr(self.value, "scale", None)
        if scale is None:
            return 1.0
        larger = np.maximum(size, scale)
        return size / np.where(larger > 0, larger, 1)

    def check(self, shares: RowShares, network: Network) -> None:
        """Compare some batches with the model itself, and with components pushed forwards."""
        positions = sum(source.leaf.shape[:-1].numel() for source in network.sources[:1])
        checked = _CHECKED.setdefault(self.model, set())
        due = self.rules not in checked or random.random() < 1 / CHECK_EVERY
        if not due or positions > CHECK_TOKENS or "tangent" in vars(self.rules).values():
            return
        size = _size((source.shares for source in shares.sources), shares.bias)
        gap = np.maximum(self._output_gap(shares, network), self._replay_gap(shares, network))
        gap = gap / np.where(size > 0, size, 1) * self._relief(size)
        judge_shares(
            type(self.model).__name__,
            gap,
            network.dtypes,
            difference=self.rules.difference,
            explain_gap=lambda: "components pushed forwards differ from shares computed backwards",
        )
        checked.add(self.rules)

    def _output_gap(self, shares: RowShares, network: Network) -> np.ndarray:
        own = self.plain().double()
        rows = network.explained_rows
        own = own[:rows] - own[rows:] if self.rules.difference else own
        return np.abs(own.cpu().numpy() - shares.value)

    def _replay_gap(self, shares: RowShares, network: Network) -> np.ndarray:
        """Push the component of one random position of every row forwards."""
        chosen = {}
        draw = random.Random(0)
        replay = self.network()

        def component(source: Source) -> Tensor:
            leaf = source.leaf.detach()
            tangent = torch.zeros_like(leaf)
            rows = replay.explained_rows
            if len(leaf) % replay.rows == 0 and leaf.dim() in (2, 3):
                # The patches of a row's images may follow each other, without an axis of rows.
                states = leaf.reshape(replay.rows, -1, leaf.shape[-1])
                change = states[:rows] - states[rows:] if self.rules.difference else states
                place = (source.stack, source.part)
                if place not in chosen:
                    chosen[place] = draw.randrange(states.shape[1])
                pushed = tangent.view(states.shape)
                pushed[:rows, chosen[place]] = change[:, chosen[place]]
            return tangent

        replay.components = component
        with dual_level():
            values = self.forward(replay)
            pushed = forward_ad.unpack_dual(values).tangent
        expected = np.zeros_like(shares.value)
        for source in shares.sources:
            if (source.stack, source.part) in chosen:
                expected += source.shares[:, :, chosen[(source.stack, source.part)]]
        if pushed is None:
            return np.zeros_like(expected)
        found = pushed[: len(expected)].detach().double().cpu().numpy()
        return np.abs(found - expected)


class _Account:
    """The backward passes of one network, and what they add up to."""

    def __init__(self, network: Network, values: Tensor) -> None:
        if not values.requires_grad:
            raise UnsupportedModelError(
                f"this output of {network.structure.kind} depends on its inputs only through what "
                f'the method "{network.rules.name}" holds fixed (attention weights, the scales of '
                "norms, gates), or not at all, so nothing of it has a share"
            )
        self.network, self.values = network, values
        self.rows = network.explained_rows
        self.leaves = [source.leaf for source in network.sources]

    def shares(self) -> RowShares:
        steps = self.values.shape[1]
        passes = [self._step(step, last=step + 1 == steps) for step in range(steps)]
        values = self.values.detach().double()
        if self.network.rules.difference:
            values = values[: self.rows] - values[self.rows :]
        places = list(dict.fromkeys(place for shares, _ in passes for place in shares))
        stacked = {
            place: torch.stack([self._at(shares, place, passes) for shares, _ in passes], 1)
            for place in places
        }
        biases = [bias for _, bias in passes]
        zeros = torch.zeros(self.rows, dtype=torch.float64, device=values.device)
        bias = torch.stack([sum(by_cut.values(), zeros) for by_cut in biases], 1)
        total = sum((s.sum(-1) for s in stacked.values()), bias)
        size = sum((s.abs().sum(-1) for s in stacked.values()), bias.abs())
        error = (values - total).abs() / torch.where(size > 0, size, 1)
        result = RowShares(
            values.cpu().numpy(),
            bias.cpu().numpy(),
            error.cpu().numpy(),
            [SourceShares(*place, shares.cpu().numpy()) for place, shares in stacked.items()],
        )
        tracer = self.network.tracer
        if tracer is None:
            return result
        by_stack: dict[str, Tensor] = {}
        for (stack, _), shares in stacked.items():
            by_stack[stack] = by_stack[stack] + shares if stack in by_stack else shares
        return replace(result, trace=tracer.result(values, by_stack, biases))

    @staticmethod
    def _at(shares: dict[Place, Tensor], place: Place, passes: Any) -> Tensor:
        if place in shares:
            return shares[place]
        return torch.zeros_like(next(other[place] for other, _ in passes if place in other))

    def _step(self, step: int, last: bool) -> tuple[dict[Place, Tensor], dict[int, Tensor]]:
        ledger = self.network.ledger
        explained = self.values[: self.rows, step]
        if self.network.tracer is not None:
            self.network.tracer.step = step
        if not ledger.unresolved:
            shares = self._back(explained.sum(), keep=not last or self.rows > 1)
            if not ledger.unresolved:
                return shares, dict(ledger.bias)
            self._forget(step)
        # Rows are mixed somewhere, so that only a pass for each row tells whose a bias is.
        ledger.rows = 1
        total: dict[Place, Tensor] = {}
        biases = []
        for row in range(self.rows):
            for place, part in self._back(explained[row], keep=True).items():
                total[place] = total[place] + part if place in total else part
            biases.append(dict(ledger.bias))
        cuts = sorted({cut for by_cut in biases for cut in by_cut})
        zero = torch.zeros(1, dtype=torch.float64, device=self.values.device)
        return total, {cut: torch.cat([b.get(cut, zero) for b in biases]) for cut in cuts}

    def _forget(self, step: int) -> None:
        if self.network.tracer is not None:
            self.network.tracer.forget(step)

    def _back(self, scalar: Tensor, keep: bool) -> dict[Place, Tensor]:
        self.network.ledger.clear()
        grads = torch.autograd.grad(scalar, self.leaves, retain_graph=keep, allow_unused=True)
        shares: dict[Place, Tensor] = {}
        for source, grad in zip(self.network.sources, grads, strict=True):
            if grad is not None:
                place = (source.stack, source.part)
                products = self._products(source.leaf.detach(), grad)
                shares[place] = shares[place] + products if place in shares else products
        for place, constants in self.network.ledger.positions.items():
            products = self._by_row(constants)
            shares[place] = shares[place] + products if place in shares else products
        return {place: products.to(self.values.device) for place, products in shares.items()}

    def _products(self, leaf: Tensor, grad: Tensor) -> Tensor:
        """Return the shares of a source, (row, position)."""
        if self.network.rules.difference:
            half = len(leaf) // 2
            leaf, grad = leaf[:half].double() - leaf[half:].double(), grad[:half]
        return self._by_row(inner(leaf, grad).sum(-1))

    def _by_row(self, products: Tensor) -> Tensor:
        """Return (row, position); positions of several choices follow each other."""
        if products.dim() == 1:
            return products[None]
        in_rows = products.shape[0] % self.rows == 0
        return products.reshape(self.rows, -1) if in_rows else products.flatten(1).T
