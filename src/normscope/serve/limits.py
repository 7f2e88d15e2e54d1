"""Request rates per client."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable

CLIENTS = 1024  # clients remembered; beyond that, the longest inactive ones are forgotten


class RateLimit:
    """A token bucket for each client.

    Args:
        per_second: Requests per second in the long run.
        burst: Requests that may come at once.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        per_second: float | int,
        burst: float | int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.per_second, self.burst, self._clock = per_second, burst, clock
        # client -> (requests left, time at which that was so)
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, cost: float | int = 1.0) -> float:
        """Count a request and return 0.0 if it is allowed; else return the seconds to wait."""
        now = self._clock()
        left, then = self._buckets.pop(client, (self.burst, now))
        left = min(self.burst, left + (now - then) * self.per_second)
        allowed = left >= cost
        self._buckets[client] = (left - cost if allowed else left, now)
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (cost - left) / self.per_second
