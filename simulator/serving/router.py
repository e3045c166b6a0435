"""Which of several replicas a request goes to, decided as it arrives from what the replicas are doing then.

All but `round_robin` look at every request for itself, a later turn of a session too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from simulator.serving.replica import Replica
from simulator.workload import Request

RouterName = Literal["round_robin", "least_outstanding", "least_kv", "prefix_aware"]
Choose = Callable[[Sequence[Replica], Request], int]

# Defaults of the cache-aware policy of the routers of vLLM and SGLang (--cache-threshold, --balance-abs-threshold and
# --balance-rel-threshold): a replica must hold more than this share of the prompt; and while the busiest replica has so many
# requests more, and so many times as many, as the idlest, load alone decides.
LEAST_SHARE_CACHED = 0.3
MOST_REQUESTS_APART = 64
MOST_TIMES_APART = 1.5


def least_outstanding(replicas: Sequence[Replica], request: Request) -> int:  # noqa: ARG001
    """The replica with the fewest requests that wait or run; of equal ones the first."""
    outstanding = [replica.outstanding for replica in replicas]
    return outstanding.index(min(outstanding))


def least_kv(replicas: Sequence[Replica], request: Request) -> int:  # noqa: ARG001
    """The replica that has the smallest share of its KV blocks in use; of equal ones that with the fewest requests, or the first.

    Requests that wait hold no blocks yet, as in the gauge that engines report.
    """
    load = [(replica.used_blocks / replica.rules.total_blocks, replica.outstanding) for replica in replicas]
    return load.index(min(load))


def prefix_aware(replicas: Sequence[Replica], request: Request) -> int:
    """The replica whose prefix cache holds most of the prompt, where that is much of it and load is not lopsided; else the one
    with the fewest requests, which also decides between equal ones."""
    outstanding = [replica.outstanding for replica in replicas]
    fewest, most = min(outstanding), max(outstanding)
    lopsided = most - fewest > MOST_REQUESTS_APART and most > MOST_TIMES_APART * fewest
    if request.content is not None and not lopsided:
        cached = [replica.cached_tokens(request) for replica in replicas]
        longest = max(cached)
        if longest > LEAST_SHARE_CACHED * request.prompt_tokens:
            fewest = min(count for count, tokens in zip(outstanding, cached, strict=True) if tokens == longest)
            return next(i for i, tokens in enumerate(cached) if tokens == longest and outstanding[i] == fewest)
    return outstanding.index(fewest)


CHOICES: dict[RouterName, Choose] = {
    "least_outstanding": least_outstanding,
    "least_kv": least_kv,
    "prefix_aware": prefix_aware,
}


class InTurn:
    """`round_robin` for engines that requests reach one by one: sessions in turn, as each first comes."""

    def __init__(self) -> None:
        self._replica_of: dict[int, int] = {}
        self._begun = 0

    def __call__(self, replicas: Sequence[Replica], request: Request) -> int:
        place = self._replica_of.get(request.follows) if request.follows is not None else None
        if place is None:
            place, self._begun = self._begun % len(replicas), self._begun + 1
        self._replica_of[request.request_id] = place
        return place


def in_turn(requests: Sequence[Request], replicas: int) -> list[list[Request]]:
    """The requests of each replica under `round_robin`: sessions in turn, and a request that belongs to none is one.

    All turns of a session go to one replica, which has its prefix.
    """
    dealt: list[list[Request]] = [[] for _ in range(replicas)]
    replica_of: dict[int, int] = {}
    begun = 0
    for request in requests:
        if request.follows not in replica_of:
            replica_of[request.request_id] = begun % replicas
            begun += 1
        else:
            replica_of[request.request_id] = replica_of[request.follows]
        dealt[replica_of[request.request_id]].append(request)
    return dealt
