"""Read attention of any form by probes: α is how a module's heads respond to its values.

Attention in windows, blocks or several streams multiplies pieces of its weights with pieces of its
values, in a way of its own. Whatever it does is linear in the values, because the weights come from
queries and keys. So the module is run again with other values:

    u_ihc = Σ_j α_ij^h v_jhc:     with v_jhc = 1 where j = base + c, else 0,  u_ihc = α_i,base+c^h

One run gives the weights of as many keys as a head has numbers. Values are the products with
parameters on which the heads depend linearly; where the module's own output projection is inside
it, the heads are what that projection reads, otherwise they are the module's output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from normscope.capture.follow import NotFollowed
from normscope.errors import UnsupportedModelError
from normscope.foundation.shapes import Float
from normscope.foundation.torch_settings import LeavableMode, without_grad

LARGEST = 2**33  # bytes of the weights of one layer
_PRODUCTS = ("linear", "einsum", "addmm", "matmul", "__matmul__")
# Attributes of attention modules that say how many numbers a head has.
_SIZES = ("attention_head_size", "head_dim", "d_head", "key_value_proj_dim", "head_size")


@dataclass(frozen=True, eq=False)
class ProbedAttention:
    """The weights and the values of one attention call, and what its projection made of them."""

    weights: Float[Tensor, "batch head query key"]
    value: Float[Tensor, "batch head key head_size"]
    mixed: Float[Tensor, "batch query head e"]  # the heads' output
    # Where the values are of several kinds, side by side, 1 for the kind that a query reads.
    kind: Float[Tensor, "batch query head head_size"] | None
    output: Float[Tensor, "batch query out"] | None  # None: the projection follows the module
    weight: Float[Tensor, "features out"] | None
    bias: Float[Tensor, " out"] | None
    projection: str  # its path in the module
    extra: int  # positions, the last ones, that are not among those of the first values
    read: Tensor  # what the values were made of
    batch_axis: int  # its axis of the batch

    def is_batch_first(self, states: Tensor | None) -> bool:
        """Return whether states of the module have the batch as their first axis."""
        batch, _, queries, _ = self.weights.shape
        if states is None or states.shape[:2] not in ((batch, queries), (queries, batch)):
            return True
        if batch != queries:
            return states.shape[0] == batch
        alike = states.shape == self.read.shape and torch.equal(states, self.read)
        return (self.batch_axis == 0) == alike


@dataclass(frozen=True, eq=False)
class _Product:
    """A product with a parameter that ran in the module."""

    func: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    read: Tensor
    parameter: nn.Parameter
    output: Tensor

    @property
    def features(self) -> tuple[int, int]:
        """How many of the last axes of input and output are features, not positions."""
        if getattr(self.func, "__name__", "") != "einsum":
            return 1, 1
        inputs, result = self.args[0].replace(" ", "").split("->")
        parts = inputs.split(",")
        operands = _operands(self.args[1:])
        at = next(k for k, operand in enumerate(operands) if operand is self.parameter)
        ours, other = parts[at], parts[1 - at]
        contracted = sum(letter not in result for letter in other)
        return contracted, sum(letter in ours and letter not in other for letter in result)

    def applied(self, states: Tensor) -> Tensor:
        """Apply the product to another input."""

        def swapped(value: Any) -> Any:
            if value is self.read:
                return states
            return type(value)(map(swapped, value)) if isinstance(value, list | tuple) else value

        kwargs = {name: swapped(value) for name, value in self.kwargs.items()}
        result: Tensor = self.func(*map(swapped, self.args), **kwargs)
        return result


def _operands(args: Sequence[Any]) -> list[Any]:
    flat: list[Any] = []
    for arg in args:
        flat += arg if isinstance(arg, list | tuple) else [arg]
    return flat


class _ProbeRun(LeavableMode):
    """One run of a module in which the results of some products are replaced."""

    def __init__(self, replaced: Mapping[int, Tensor]) -> None:
        super().__init__()
        self.replaced = replaced
        self.products: list[_Product] = []
        self.output: Tensor | None = None

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function; note or replace its result if it is a product."""
        output = func(*args, **(kwargs or {}))
        if getattr(func, "__name__", "") not in _PRODUCTS or not isinstance(output, Tensor):
            return output
        tensors = [x for x in _operands([*args, *(kwargs or {}).values()]) if isinstance(x, Tensor)]
        parameters = [x for x in tensors if isinstance(x, nn.Parameter) and x.dim() > 1]
        states = [x for x in tensors if not isinstance(x, nn.Parameter)]
        if len(parameters) != 1 or len(states) != 1:
            return output
        output = self.replaced.get(len(self.products), output)
        self.products.append(
            _Product(func, args, kwargs or {}, states[0], parameters[0], output.clone())
        )
        return output


class _Prober:
    """An attention module with the arguments of one call, to be run again with other values."""

    def __init__(self, module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        self.module = module
        self.args = [None if _is_cache(value) else value for value in args]
        self.kwargs = {k: None if _is_cache(value) else value for k, value in kwargs.items()}
        self.base = self.run({})

    def run(self, replaced: Mapping[int, Tensor]) -> _ProbeRun:
        """Run the module; nothing else sees it."""
        from normscope.capture.active import unseen  # it knows recorders, which know probes

        mode = _ProbeRun(replaced)
        with unseen(), mode:
            output = type(self.module).forward(self.module, *self.args, **self.kwargs)
        mode.output = first_tensor(output)
        return mode

    def node(self, run: _ProbeRun, place: int) -> Tensor:
        """Return the input of a product, or the module's output for place −1."""
        if place < 0:
            assert run.output is not None
            return run.output
        if len(run.products) != len(self.base.products):
            raise NotFollowed
        return run.products[place].read

    def ends(self, product: int) -> tuple[list[int], bool]:
        """Return where the heads are, for values made by this product; none if it makes no values.

        These are the products' inputs that depend on it, or the module's output, provided that they
        depend on it linearly. Also return whether the module's output does.
        """
        made = self.base.products[product].output
        none, twice = (self.run({product: factor * made}) for factor in (0, 2))
        later = range(product + 1, len(self.base.products))

        def changed(place: int) -> bool:
            return not torch.equal(self.node(none, place), self.node(self.base, place))

        def linear(place: int) -> bool:
            least, most = self.node(none, place), self.node(twice, place)
            middle = self.node(self.base, place)
            return _is_small(most - 2 * middle + least, most.abs() + least.abs())

        places = [place for place in later if changed(place)] or [p for p in (-1,) if changed(p)]
        return (places, linear(-1)) if all(map(linear, places)) else ([], False)


@without_grad
def probe(
    module: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], output: Any
) -> ProbedAttention:
    """Return weights and values of an attention call that has just run, by running it again.

    Raises:
        NotFollowed: its heads do not depend linearly on values that could be found.
        UnsupportedModelError: the weights are too large.
    """
    try:
        prober = _Prober(module, args, kwargs)
    except (TypeError, ValueError, RuntimeError, AttributeError):
        raise NotFollowed from None
    real, again = first_tensor(output), prober.base.output
    if real is None or again is None or real.shape != again.shape:
        raise NotFollowed
    if not _is_small(real - again, real.abs()):
        raise NotFollowed  # it changes from call to call
    ends = {k: prober.ends(k) for k in range(len(prober.base.products))}
    # A norm after the projection, inside the module, lets its output depend on nothing linearly.
    whole = {k: places for k, (places, linear) in ends.items() if places and linear}
    known = whole or {k: places for k, (places, _) in ends.items() if places}
    inside = {k: places for k, places in known.items() if places[0] >= 0}
    values = inside or known
    if not values:
        raise NotFollowed
    places = sorted({place for listed in values.values() for place in listed})
    none = prober.run({k: torch.zeros_like(prober.base.products[k].output) for k in values})
    for place in places:
        if not _is_small(prober.node(none, place), prober.node(prober.base, place).abs()):
            raise NotFollowed  # something is added to the heads
    return _Reading(prober, list(values), places).attention()


class _Reading:
    """The weights of a module whose values and heads are known."""

    def __init__(self, prober: _Prober, values: Sequence[int], places: Sequence[int]) -> None:
        self.prober, self.values, self.places = prober, values, list(places)
        self.products = [prober.base.products[k] for k in values]
        self.trailing = [product.features[1] for product in self.products]
        self.batch_axis, self.end_axis = self._axes()
        self.made = [self._by_position(k) for k in range(len(values))]
        self.heads = [self._heads(prober.base, place) for place in self.places]
        self._in_order()
        self.features = self.heads[0].shape[-1]
        self.size = self._head_size()
        self.columns = [self._columns(k) for k in range(len(values))]

    # ---- layouts

    def _lead(self, k: int) -> torch.Size:
        made = self.products[k].output
        return made.shape[: made.dim() - self.trailing[k]]

    def _end_lead(self, run: _ProbeRun, place: int) -> Tensor:
        """The heads' output at a place, with its features as one axis."""
        states = self.prober.node(run, place)
        features = 1 if place < 0 else self.prober.base.products[place].features[0]
        return states.flatten(states.dim() - features)

    def _axes(self) -> tuple[int, int]:
        """Return which axis is the batch's, in the values and in the heads' output."""
        fits = []
        made, lead = self.products[0].output, self._lead(0)
        if any(len(self._lead(k)) != 2 for k in range(len(self.values))):
            raise NotFollowed
        for axis in (0, 1):
            one = torch.zeros_like(made)
            one.select(axis, 0).fill_(1)
            run = self._replaced({0: one})
            ends = [self._end_lead(run, place).abs().amax(dim=-1) for place in self.places]
            for end_axis in (0, 1):
                apart = all(
                    end.shape[end_axis] == lead[axis]
                    and not end.narrow(end_axis, 1, lead[axis] - 1).any()
                    for end in ends
                )
                if apart:
                    fits.append((lead[axis] > 1, axis, end_axis))
        if not fits:
            raise NotFollowed
        return max(fits, key=lambda fit: fit[0])[1:]

    def _by_position(self, k: int) -> Float[Tensor, "batch position features"]:
        made = self.products[k].output
        return made.flatten(2).movedim(self.batch_axis, 0)

    def _heads(self, run: _ProbeRun, place: int) -> Float[Tensor, "batch query features"]:
        states = self._end_lead(run, place).movedim(self.end_axis, 0)
        return states.flatten(1, -2)

    def _in_order(self) -> None:
        """Put the heads of several streams in the order of their values."""
        keys, queries = ([x.shape[1] for x in xs] for xs in (self.made, self.heads))
        if len(keys) == len(queries) > 1 and len(set(keys)) == len(keys):
            if sorted(keys) != sorted(queries):
                raise NotFollowed
            order = [queries.index(key) for key in keys]
            self.places = [self.places[k] for k in order]
            self.heads = [self.heads[k] for k in order]
        elif len(queries) > 1 and len(keys) > 1:
            raise NotFollowed

    def _replaced(self, values: Mapping[int, Tensor]) -> _ProbeRun:
        """Run with some values as given, by number, and the others zero."""
        zero = {k: torch.zeros_like(self.products[n].output) for n, k in enumerate(self.values)}
        return self.prober.run(zero | {self.values[n]: made for n, made in values.items()})

    def _respond(self, k: int, values: Float[Tensor, "batch position features"]) -> Tensor:
        """Return the heads' output for values of one kind, the others being zero."""
        like = self.products[k].output
        made = values.movedim(0, self.batch_axis).reshape(like.shape).contiguous()
        run = self._replaced({k: made})
        return torch.cat([self._heads(run, place) for place in self.places], dim=1)

    # ---- heads

    def _head_size(self) -> int:
        for name in _SIZES:
            size = getattr(self.prober.module, name, None)
            if isinstance(size, int) and size > 0 and self.features % size == 0:
                return size
        raise NotFollowed

    def _columns(self, k: int) -> Tensor:
        """Return which number of the values each number of the heads comes from; −1 if none."""
        made = self.made[k]
        ones = self._respond(k, torch.ones_like(made)).flatten(0, 1)
        numbered = torch.arange(1, made.shape[2] + 1, device=made.device).to(made)
        response = self._respond(k, numbered.expand_as(made)).flatten(0, 1)
        row = ones.abs().argmax(dim=0, keepdim=True)
        weight, sums = ones.gather(0, row)[0], response.gather(0, row)[0]
        column = (sums / weight).nan_to_num(0).round().long() - 1
        column[weight == 0] = -1
        whole = column.view(-1, self.size)
        steps = whole - whole[:, :1] == torch.arange(self.size, device=made.device)
        if not bool((steps | (whole < 0)).all()) or bool(
            ((whole < 0).any(1) != (whole < 0).all(1)).any()
        ):
            raise NotFollowed
        return column

    def _alpha(self, k: int) -> Float[Tensor, "batch head query key"]:
        """Return the weights of the keys of one kind of values."""
        made, columns = self.made[k], self.columns[k]
        batch, keys, _ = made.shape
        queries = sum(heads.shape[1] for heads in self.heads)
        count = self.features // self.size
        self._check_size(batch * count * queries * keys * made.element_size(), queries, keys)
        alpha = made.new_zeros((batch, count, queries, keys))
        fed = columns >= 0
        component = torch.arange(self.features, device=made.device) % self.size
        for base in range(0, keys, self.size):
            number = min(self.size, keys - base)
            chosen = fed & (component < number)
            values = torch.zeros_like(made)
            values[:, base + component[chosen], columns[chosen]] = 1
            heads = self._respond(k, values).unflatten(-1, (count, self.size))
            alpha[..., base : base + number] = heads[..., :number].transpose(1, 2)
        return alpha

    def _check_size(self, size: int, queries: int, keys: int) -> None:
        if size > LARGEST:
            raise UnsupportedModelError(
                f"the attention weights of {type(self.prober.module).__name__} for {queries} "
                f"queries and {keys} keys would take {size / 2**30:.0f} GiB for each layer: its "
                "windows are written into a map of all pairs. Give shorter texts, or fewer at a "
                "time"
            )

    def _value(self, k: int) -> Float[Tensor, "batch head key head_size"]:
        value = self.made[k][..., self.columns[k].clamp_min(0)]
        return value.unflatten(-1, (-1, self.size)).transpose(1, 2)

    # ---- the whole

    def attention(self) -> ProbedAttention:
        """Return weights and values in the form of plain attention."""
        alphas = [self._alpha(k) for k in range(len(self.values))]
        values = [self._value(k) for k in range(len(self.values))]
        kind, extra = None, 0
        parameters = [product.parameter for product in self.products]
        if len(values) == 1:
            alpha, value = alphas[0], values[0]
        elif all(parameter is parameters[0] for parameter in parameters):
            alpha, value = torch.cat(alphas, dim=3), torch.cat(values, dim=2)
            extra = sum(made.shape[1] for made in self.made[1:])
        else:
            alpha, value, kind = self._kinds(alphas, values)
        mixed = torch.cat(self.heads, dim=1).unflatten(-1, (-1, self.size))
        output, weight, bias, name = self._projection()
        read = self.products[0].read
        if extra and alpha.shape[2] == alpha.shape[3]:
            real = self._real(extra)
            alpha, value, mixed = alpha[:, :, real][..., real], value[:, :, real], mixed[:, real]
            output = None if output is None else output[:, real]
        return ProbedAttention(
            alpha, value, mixed, kind, output, weight, bias, name, extra, read, self.batch_axis
        )

    def _real(self, extra: int) -> Tensor:
        """Return the positions that are not filled with zeros at either end of the tokens.

        Windows that are staggered between layers are filled up where they begin and end.
        """
        read = self.products[0].read
        filled = read.movedim(self.batch_axis, 0).eq(0).flatten(2).all(dim=2).all(dim=0)
        inside = torch.nonzero(~filled).flatten()
        real = torch.arange(len(filled) + extra, device=read.device)
        kept = (real >= inside[0]) & (real <= inside[-1]) | (real >= len(filled))
        return real[kept]

    def _kinds(
        self, alphas: Sequence[Tensor], values: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Join values of several kinds, of which each query and head reads one."""
        if len({alpha.shape for alpha in alphas}) > 1:
            raise NotFollowed
        read = torch.stack([alpha.abs().sum(dim=-1) > 0 for alpha in alphas])  # kind batch head q
        if int(read.sum(dim=0).max()) > 1:
            raise NotFollowed
        alpha = torch.stack(list(alphas)).sum(dim=0)
        fed = torch.stack([columns.view(-1, self.size)[:, 0] >= 0 for columns in self.columns])
        if int(fed.sum(dim=0).max()) == 1:  # heads of different kinds
            value = torch.where(fed[0].view(-1, 1, 1), values[0], values[-1])
            if len(values) > 2:
                raise NotFollowed
            return alpha, value, None
        chosen = read.permute(1, 3, 2, 0).to(alpha.dtype)  # batch query head kind
        return alpha, torch.cat(list(values), dim=-1), chosen.repeat_interleave(self.size, dim=-1)

    def _projection(self) -> tuple[Tensor | None, Tensor | None, Tensor | None, str]:
        """Return the output of the projection inside the module, its weight, bias and path."""
        if self.places[0] < 0:
            return None, None, None, ""
        products = [self.prober.base.products[place] for place in self.places]
        first = products[0]
        if any(product.parameter is not first.parameter for product in products):
            raise NotFollowed
        outputs = []
        for product in products:
            made = product.output.movedim(self.end_axis, 0)
            outputs.append(made.flatten(product.read.dim() - product.features[0]).flatten(1, -2))
        count = first.features[0]
        feature_shape = first.read.shape[first.read.dim() - count :]
        lead = first.read.dim() - count
        shape = (*(1,) * (lead - 1), self.features, *feature_shape)
        eye = torch.eye(self.features, dtype=first.read.dtype, device=first.read.device)
        bias = first.applied(torch.zeros_like(eye).view(shape)).reshape(self.features, -1)[0]
        weight = first.applied(eye.view(shape)).reshape(self.features, -1) - bias
        name = next(
            path.rpartition(".")[0] or path
            for path, parameter in self.prober.module.named_parameters()
            if parameter is first.parameter
        )
        return torch.cat(outputs, dim=1), weight, bias, name


def first_tensor(output: Any) -> Tensor | None:
    """Return the first tensor of what a module returned."""
    if isinstance(output, Tensor):
        return output
    parts = output.values() if isinstance(output, Mapping) else output
    if not isinstance(parts, Mapping) and not hasattr(parts, "__iter__"):
        return None
    return next((part for part in parts if isinstance(part, Tensor)), None)


def _is_cache(value: Any) -> bool:
    return type(value).__name__.endswith("Cache")


def _is_small(gap: Tensor, size: Tensor) -> bool:
    """Whether a gap is rounding, relative to the largest number."""
    rounding = torch.finfo(gap.dtype).eps ** 0.75 * float(size.max())
    return bool((gap.abs() <= rounding).all())
