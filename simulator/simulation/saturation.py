"""Saturation: what replicas finish that never run out of work."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from simulator.serving import AcceptancePath, serve
from simulator.serving.metrics import Window, load_in
from simulator.simulation.server import Server
from simulator.workload import Request, again, by_turns

# The fewest requests of the run that measures how many a second the replica can finish when work never runs out.
SATURATION_REQUESTS = 400
SATURATION_SPANS = 10
LONG_OUTPUT = 2000
# Requests come so much faster than they are roughly expected to be served, and again so much if that was not fast enough.
OVERLOAD = 1.5
LEAST_OVERLOAD_SHARE = 0.9


@dataclass(frozen=True, slots=True)
class Saturation:
    """Replicas that never run out of work: requests finished per second, one standard deviation of its logarithm by spans of
    time, and the share of busy time that prompts take."""

    per_s: float
    log_std: float
    prefill_share: float


def saturation_of(server: Server, requests: tuple[Request, ...], begun: Callable[[int, int], None] | None = None) -> Saturation:
    """How fast the deployment finishes requests while more always wait: all its replicas together, each of them full."""
    found = [(_saturated_replica(kind, requests, begun), count) for kind, count in server.kinds]
    per_s = sum(count * one.per_s for one, count in found)
    shares = [count * one.per_s / per_s for one, count in found]
    return Saturation(
        per_s,
        math.hypot(*(share * one.log_std for share, (one, _) in zip(shares, found, strict=True))),
        sum(share * one.prefill_share for share, (one, _) in zip(shares, found, strict=True)),
    )


def _saturated_replica(
    server: Server, requests: tuple[Request, ...], begun: Callable[[int, int], None] | None = None
) -> Saturation:
    """One replica that never runs out of work.

    The workload's requests, over and over, arriving evenly and faster than they can be served, so that no two start in
    step: requests that are all there from the start and equally long would end together too. Nobody gives up. Turns of
    sessions come in the order in which they would if answers took no time. Measured from the end of the first half to the
    admission of the last. `begun` is called with (requests begun, requests in all).
    """
    requests = tuple(r for r in by_turns(requests) if not server.rules.refusal(r.prompt_tokens, r.output_tokens))
    at_once = min(server.rules.max_num_seqs, _most_at_once(server, requests))
    mean_output = sum(request.output_tokens for request in requests) / len(requests)
    # Long answers give as many steps from fewer requests; enough are kept to fill the replica several times.
    total = max(2 * min(SATURATION_REQUESTS, round(SATURATION_REQUESTS * LONG_OUTPUT / mean_output)), 6 * at_once)
    done = 0

    def path(request: Request) -> AcceptancePath:
        nonlocal done
        done += 1
        if begun is not None and done <= total:
            begun(done, total)
        return server.path(request)

    rate_per_s = OVERLOAD * _rough_capacity(server, requests, at_once)
    found = _overloaded(server, requests, total, rate_per_s, path)
    while found.per_s > LEAST_OVERLOAD_SHARE * rate_per_s:
        rate_per_s *= OVERLOAD
        found = _overloaded(server, requests, total, rate_per_s, path)
    return found


def _rough_capacity(server: Server, requests: tuple[Request, ...], at_once: int) -> float:
    """Requests a second of a full replica, roughly: its rounds, and prompts in steps of their own, for mean lengths."""
    prompt = sum(request.prompt_tokens for request in requests) / len(requests)
    output = sum(request.output_tokens for request in requests) / len(requests)
    drafts = server.drafts(at_once)
    round_s = server.pricer.price([(round(prompt + output / 2), drafts)] * at_once, (), 0).seconds
    together = max(server.rules.max_num_batched_tokens // max(round(prompt), 1), 1)
    prompts_s = server.pricer.prefill_s(round(prompt) * together, server.rules.max_num_batched_tokens) / together
    rounds_s = output / server.mean_acceptance_length(drafts) * round_s / at_once
    return 1 / (prompts_s + rounds_s)


def _most_at_once(server: Server, requests: tuple[Request, ...]) -> int:
    """About how many requests the KV cache holds."""
    tokens = sum(request.prompt_tokens + request.output_tokens for request in requests) / len(requests)
    return int(server.rules.total_blocks * server.rules.block_tokens / tokens) + 1


def _overloaded(
    server: Server, requests: tuple[Request, ...], number: int, rate_per_s: float, path: Callable[[Request], AcceptancePath]
) -> Saturation:
    """How one replica does under this rate."""
    arriving = tuple(
        again(r, i, i // len(requests), i / rate_per_s) for i, r in zip(range(number), cycle(requests), strict=False)
    )
    result = serve(arriving, server.rules, server.pricer, path, server.live_policy(), readable=server.readable)
    ends = np.sort(result.records.column("finish_s"))
    start_s, end_s = float(ends[len(ends) // 2]), float(result.records.column("first_scheduled_s").max())
    if ((start_s < ends) & (ends <= end_s)).sum() < len(ends) / 5:
        start_s, end_s = 0.0, float(ends[-1])
    spans = np.histogram(ends, np.linspace(start_s, end_s, SATURATION_SPANS + 1))[0]
    share = load_in(result, Window(start_s, end_s, result.records[:0], "")).prefill_share
    log_std = float(spans.std(ddof=1) / spans.mean() / math.sqrt(SATURATION_SPANS))
    return Saturation(float(spans.sum()) / (end_s - start_s), log_std, share)
