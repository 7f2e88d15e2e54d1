"""Request rates per client."""

from __future__ import annotations

from normscope.serve.limits import CLIENTS, RateLimit


def test_rate_limit() -> None:
    now = [0.0]
    rate = RateLimit(2.0, 4, lambda: now[0])
    assert [rate.wait("a") for _ in range(4)] == [0.0] * 4
    assert rate.wait("a") == 0.5
    assert rate.wait("b") == 0.0
    now[0] = 0.5
    assert rate.wait("a") == 0.0
    assert rate.wait("a", cost=3) == 1.5
    now[0] = 100.0
    assert [rate.wait("a") > 0 for _ in range(5)] == [False] * 4 + [True]
    for number in range(3 * CLIENTS):
        rate.wait(str(number))
    assert len(rate._buckets) == CLIENTS
