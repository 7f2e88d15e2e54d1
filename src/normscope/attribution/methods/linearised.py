"""Methods that are rows of the table of rules: one pass through the linearised network."""

from __future__ import annotations

from normscope.attribution.account import RowShares
from normscope.attribution.methods.call import MethodCall
from normscope.attribution.passes import explain
from normscope.linearisation.rules import rules_of


class Linearised:
    """Shares by Euler's identity, proved by their sum."""

    def shares(self, call: MethodCall) -> RowShares:
        """Return the shares of all sources and biases."""
        return explain(
            call.model,
            call.inputs,
            call.value,
            rules_of(call.chosen.name, call.gate),
            baseline_inputs=call.baseline,
            trace=call.trace,
            recompute=call.recompute,
        )
