"""How much hypothesis tries: little in `make test`, NORMSCOPE_DEEP times as much in a deep run."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, Phase, settings

DEPTH = int(os.environ.get("NORMSCOPE_DEEP", "1"))


def examples(count: int) -> settings:
    """So many examples, times the depth; the same ones each time unless the run is deep."""
    return settings(
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
