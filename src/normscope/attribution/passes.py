"""One pass forward and one back through the linearised network: shares, and their proof."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from normscope.attribution.account import Account, Axes, NoSourcesError, RowShares
from normscope.attribution.diagnosis import diagnose, failure
from normscope.attribution.recomputation import recomputed, worth_recomputing
from normscope.capture.active import ACTIVE
from normscope.capture.layers import layers_of
from normscope.engine.given import row_count
from normscope.engine.judge import judge_shares, share_bound
from normscope.errors import InputError, NormscopeError
from normscope.foundation.interrupts import shielded
from normscope.linearisation.custom_functions import taken_apart
from normscope.linearisation.network import Network, Source, networks_kept, running
from normscope.linearisation.rules import Rules
from normscope.linearisation.running import (
    copies_saved,
    dual_level,
    refuse_without_gradients,
    visible_attention,
)
from normscope.linearisation.structure import Structure, structure_of
from normscope.linearisation.trace import Tracer
from normscope.models.completeness import made_up, refuse_made_up
from normscope.models.left_padding import refuse_nan_of_padding, rows_padded_left
from normscope.models.running import accepted_by, evaluating

Explained = Callable[[Any], Tensor]  # the model's output -> scalars, (row, step)

CHECK_EVERY = 64  # batches of a model after the first, of which one is checked by replay
CHECK_TOKENS = 8192  # batches with more positions are not replayed

_CHECKED: WeakKeyDictionary[nn.Module, set[Rules]] = WeakKeyDictionary()


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
    with setup.prepared(), setup.named_failures():
        refuse_made_up(model, setup.made_up(), "this output")
        if setup.padded_left:
            refuse_nan_of_padding(model, inputs, setup.plain())
        again = worth_recomputing(model, inputs) if recompute == "auto" else bool(recompute)
        try:
            shares, account = setup.shares(again)
        except NoSourcesError:
            setup = replace(setup, from_inputs=True)
            shares, account = setup.shares(again)
        except torch.OutOfMemoryError:
            if again or recompute != "auto":
                raise
            torch.cuda.empty_cache()
            again = True
            shares, account = setup.shares(again)
        dtypes = account.network.dtypes
        if setup.rows > 1 and not setup.gaps(shares).max() <= share_bound(dtypes, rules.difference):
            # A batch may be laid out in a way that hides whose row a bias belongs to.
            shares, account = setup.shares(again, row_by_row=True)
        judge_shares(
            type(model).__name__,
            setup.gaps(shares),
            dtypes,
            difference=rules.difference,
            explain_gap=lambda: diagnose(setup.network(), setup.forward),
        )
        setup.check(shares, account)
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


def _input_source(network: Network, name: str, values: Tensor) -> Tensor:
    """Make an input a source, whose positions are pixels or samples, channels together."""
    if values.dim() < 3:
        return network.source("", name, values.unsqueeze(-1)).squeeze(-1)
    return network.source("", name, values.movedim(1, -1)).movedim(-1, 1)


@dataclass(frozen=True)
class Setup:
    """What one call explains, and how."""

    model: nn.Module
    inputs: Mapping[str, Any]
    value: Explained
    rules: Rules
    trace: bool = False
    from_inputs: bool = False  # whether the sources are the model's inputs, such as pixels
    kind: Callable[[Structure, Rules, int], Network] = Network

    @property
    def padded_left(self) -> bool:
        """Whether padding may have queries without a key: a mask of float64 is -inf in float32."""
        dtypes = {parameter.dtype for parameter in self.model.parameters()}
        return torch.float64 in dtypes and bool(rows_padded_left(self.inputs))

    @property
    def rows(self) -> int:
        """The number of rows of the batch."""
        return row_count(self.inputs)

    def network(self) -> Network:
        """Return a network that has not run."""
        network = self.kind(structure_of(self.model), self.rules, self.rows)
        network.padded_left = self.padded_left
        return network

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
            stack.enter_context(taken_apart(self.model, running))
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
            with network, self._same_draws():
                network.keeps_gradients = True
                output = self.model(**given)
                network.keeps_gradients = False
                return self.value(output)
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
        if self.from_inputs:
            for name, t in given.items():
                if (
                    isinstance(t, Tensor)
                    and t.is_floating_point()
                    and t.dim()
                    and not t.requires_grad
                ):
                    given[name] = _input_source(network, name, t)
        if "use_cache" in accepted_by(self.model):
            given.setdefault("use_cache", False)
        return given

    def plain(self) -> Tensor:
        """Run the model itself, and return the scalars."""
        with torch.no_grad(), self._same_draws():
            return self.value(self.model(**self._accepted()))

    @contextmanager
    def _same_draws(self) -> Iterator[None]:
        """Let every pass draw the same random numbers, and leave torch's generators as they are."""
        devices = {p.device.index for p in self.model.parameters() if p.is_cuda}
        with torch.random.fork_rng(sorted(devices)):
            yield

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

    @contextmanager
    def named_failures(self) -> Iterator[None]:
        """Say where a model that runs by itself fails as a linearised network."""
        try:
            yield
        except (NormscopeError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            self.plain()  # raises, where it is the model or the function of its output that fails
            raise failure(type(self.model).__name__, error) from error

    def shares(self, recompute: bool, row_by_row: bool = False) -> tuple[RowShares, Account]:
        """Run forward, and back for every step."""
        try:
            return self._shares(recompute, row_by_row)
        except RuntimeError as error:
            if "modified by an inplace operation" not in str(error):
                raise
        with copies_saved():  # the model writes into states that a backward pass needs
            return self._shares(recompute, row_by_row)

    def _shares(self, recompute: bool, row_by_row: bool) -> tuple[RowShares, Account]:
        network = self.network()
        network.ledger.unresolved = row_by_row
        if self.trace:
            network.tracer = Tracer(network, layers_of(self.model))
        with self.hooked(network, recompute):
            account = Account(network, self.run(network))
            return account.shares(), account

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

    def check(self, shares: RowShares, account: Account) -> None:
        """Compare some batches with the model itself, and with components pushed forwards."""
        network = account.network
        positions = sum(source.leaf.shape[:-1].numel() for source in network.sources[:1])
        checked = _CHECKED.setdefault(self.model, set())
        due = self.rules not in checked or random.random() < 1 / CHECK_EVERY
        if not due or positions > CHECK_TOKENS or "tangent" in vars(self.rules).values():
            return
        size = _size((source.shares for source in shares.sources), shares.bias)
        gap = np.maximum(self._output_gap(shares, network), self._replay_gap(shares, account))
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

    def _replay_gap(self, shares: RowShares, account: Account) -> np.ndarray:
        """Push the component of one random position of every row and source forwards."""
        draw = random.Random(0)
        replay = self.network()
        expected = np.zeros_like(shares.value)

        def component(source: Source) -> Tensor:
            number = len(replay.sources) - 1
            read = [by_source.get(number) for by_source in account.read]
            axes, known = next((each for each in read if each is not None), (None, None))
            if axes is None or known is None:
                return torch.zeros_like(source.leaf)
            position = draw.randrange(known.shape[1])
            for step, each in enumerate(read):
                if each is not None:
                    expected[:, step] += each[1][:, position].cpu().numpy()
            return self._at(source.leaf.detach(), axes, position)

        replay.components = component
        with dual_level():
            values = self.forward(replay)
            pushed = forward_ad.unpack_dual(values).tangent
        found = np.zeros_like(expected)
        if pushed is not None:
            found = pushed[: len(expected)].detach().double().cpu().numpy()
        return np.abs(found - expected)

    def _at(self, leaf: Tensor, axes: Axes, position: int) -> Tensor:
        """Return the component of one position of every row of a source; of baselines, none."""
        component = torch.zeros(leaf.shape, dtype=leaf.dtype, device=leaf.device)
        if axes == "positions first":
            component[position] = leaf[position]
            return component
        rows = 1 if axes == "unknown" else self.rows
        states, pushed = (t.reshape(rows, -1, leaf.shape[-1]) for t in (leaf, component))
        pushed[:, position] = states[:, position]
        if self.rules.difference:
            half = rows // 2
            pushed[:half, position] -= states[half:, position]
            pushed[half:] = 0
        return component
