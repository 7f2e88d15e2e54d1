"""`normscope methods`: the methods that `normscope attribute --method` accepts."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from normscope.attribution.methods.table import methods as every_method
from normscope.cli.options import CommandArguments, CommonOptions, command, shared


@dataclass(frozen=True, kw_only=True)
class MethodsArguments(CommandArguments):
    """The options of `normscope methods`."""

    as_json: bool = shared(CommonOptions, "as_json")


@command
def methods(arguments: MethodsArguments) -> None:
    """List the methods of attribution and what they cost.

    A method with options is printed as it is written, with the defaults of its options:
    smoothgrad:samples=30,noise=0.15,seed=0,norm=l2. Options may be left out, and the first needs
    no name: rollout:attn_res_ln_n.

    \b
    Examples:
      normscope methods
      normscope attribute "The keys to the cabinet" --method attn_lrp
      normscope attribute "The keys to the cabinet" --method gradient_norm:l1
      normscope attribute "The keys" --method integrated_gradients:steps=20 --baseline mean

    \b
    Exit status:
      0 success, 1 unexpected error, 2 usage error, 130 Ctrl-C, 143 SIGTERM,
      129 SIGHUP
    """  # noqa: D301
    if arguments.as_json:
        print(json.dumps([asdict(method) for method in every_method()], indent=2))
    else:
        print(every_method())
