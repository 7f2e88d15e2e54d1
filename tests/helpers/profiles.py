"""How much hypothesis tries: little in `make test`, NORMSCOPE_DEEP times as much in a deep run."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable
from functools import wraps
from typing import Any

from hypothesis import HealthCheck, Phase, settings

DEPTH = int(os.environ.get("NORMSCOPE_DEEP", "1"))
TRIED: Counter[str] = Counter()  # examples that this process has run to their end, by test


def examples(count: int) -> Callable[[Any], Any]:
    """So many examples, times the depth; the same ones each time unless the run is deep."""
    profile = settings(
        max_examples=count * DEPTH,
        deadline=None,
        derandomize=DEPTH == 1,
        database=None,
        print_blob=True,
        # Shrinking whole models takes minutes, and the first example found says enough.
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=[
            HealthCheck.function_scoped_fixture,
            HealthCheck.too_slow,
            HealthCheck.data_too_large,
        ],
    )

    def counted(test: Any) -> Any:
        inner = test.hypothesis.inner_test

        @wraps(inner)
        def run(*arguments: Any, **values: Any) -> None:
            inner(*arguments, **values)
            TRIED[inner.__name__] += 1

        test.hypothesis.inner_test = run
        return profile(test)

    return counted
