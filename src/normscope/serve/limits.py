"""How often a client may ask: buckets that fill with time and are emptied by requests."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

CLIENTS = 1024  # whose buckets are remembered; beyond that, the longest silent are forgotten


class Rate:
    """`burst` requests at once, and `per_second` in the long run, for each client."""

    def __init__(
        self,
        per_second: float | int,
        burst: float | int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.per_second, self.burst, self._clock = per_second, burst, clock
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # what is left, when

    def wait(self, client: str, cost: float | int = 1.0) -> float:
        """0 if the client may ask now, and it is counted; else seconds until it may."""
        now = self._clock()
        left, then = self._buckets.pop(client, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.per_second)
        allowed = left >= cost
        self._buckets[client] = (left - cost if allowed else left, now)
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (cost - left) / self.per_second
