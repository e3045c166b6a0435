"""Saturation: what replicas finish that never run out of work."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle

import numpy as np

from simulator.cost.pricer import StepPricer
from simulator.serving import AcceptanceByPosition, BatchingRules, ServingResult, serve
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


# Instances that compute prompts and are busy so much of their time set the pace.
FULL = 0.97


@dataclass(frozen=True, slots=True)
class Saturation:
    """Replicas that never run out of work: requests finished per second, one standard deviation of its logarithm by spans of
    time, and the shares of busy time that prompts take (all, where instances that compute prompts alone set the pace) and that
    the decoding of steps with drafts does."""

    per_s: float
    log_std: float
    prefill_share: float
    drafting_share: float


@dataclass(frozen=True)
class _Together:
    """Replicas that are saturated together. at_once: about how many requests they decode at once; rough_per_s: about how many
    they finish a second."""

    server: Server
    at_once: int
    rough_per_s: float
    run: Callable[[tuple[Request, ...], Callable[[Request], AcceptanceByPosition]], ServingResult]


def saturation_of(server: Server, requests: tuple[Request, ...], begun: Callable[[int, int], None] | None = None) -> Saturation:
    """How fast the deployment finishes requests while more always wait: all its replicas together, each of them full."""
    if server.prefill is not None:
        return _saturated(_disaggregated(server, requests), requests, begun)
    found = [(_saturated(_replica(kind, requests), requests, begun), count) for kind, count in server.kinds]
    per_s = sum(count * one.per_s for one, count in found)
    shares = [count * one.per_s / per_s for one, count in found]
    return Saturation(
        per_s,
        math.hypot(*(share * one.log_std for share, (one, _) in zip(shares, found, strict=True))),
        sum(share * one.prefill_share for share, (one, _) in zip(shares, found, strict=True)),
        sum(share * one.drafting_share for share, (one, _) in zip(shares, found, strict=True)),
    )


def _replica(server: Server, requests: tuple[Request, ...]) -> _Together:
    """One replica: the others do the same."""

    def run(arriving: tuple[Request, ...], path: Callable[[Request], AcceptanceByPosition]) -> ServingResult:
        return serve(arriving, server.rules, server.pricer, path, server.live_policy(), readable=server.readable)

    at_once = _at_once(server.rules, requests)
    prompt_s = _prompt_s(server.pricer, server.rules, requests, at_once)
    return _Together(server, at_once, 1 / (prompt_s + _rounds_s(server, requests, at_once)), run)


def _disaggregated(server: Server, requests: tuple[Request, ...]) -> _Together:
    """All of them, as the slower side holds up the other."""
    prefill = server.prefill
    assert prefill is not None
    sizes = [(kind, _at_once(kind.rules, requests), count) for kind, count in server.kinds]
    decoded_per_s = sum(count / _rounds_s(kind, requests, at_once) for kind, at_once, count in sizes)
    engine = prefill.engines[0]
    waiting = _at_once(engine.rules, requests)
    computed_per_s = len(prefill.engines) / _prompt_s(server.prefill_pricer, engine.rules, requests, waiting)

    def run(arriving: tuple[Request, ...], path: Callable[[Request], AcceptanceByPosition]) -> ServingResult:
        return server.serve(arriving, path, by_load=True)

    at_once = sum(at_once * count for _, at_once, count in sizes)
    return _Together(server, at_once, min(decoded_per_s, computed_per_s), run)


def _saturated(these: _Together, requests: tuple[Request, ...], begun: Callable[[int, int], None] | None = None) -> Saturation:
    """Replicas that never run out of work.

    The workload's requests, over and over, arriving evenly and faster than they can be served, so that no two start in
    step: requests that are all there from the start and equally long would end together too. Nobody gives up. Turns of
    sessions come in the order in which they would if answers took no time. Measured from the end of the first half to the
    admission of the last. `begun` is called with (requests begun, requests in all).
    """
    server = these.server
    requests = tuple(r for r in by_turns(requests) if not server.refusal(r))
    mean_output = sum(request.output_tokens for request in requests) / len(requests)
    # Long answers give as many steps from fewer requests; enough are kept to fill the replicas several times.
    total = max(2 * min(SATURATION_REQUESTS, round(SATURATION_REQUESTS * LONG_OUTPUT / mean_output)), 6 * these.at_once)
    done = 0

    def path(request: Request) -> AcceptanceByPosition:
        nonlocal done
        done += 1
        if begun is not None and done <= total:
            begun(done, total)
        return server.path(request)

    rate_per_s = OVERLOAD * these.rough_per_s
    found = _overloaded(these, requests, total, rate_per_s, path)
    while found.per_s > LEAST_OVERLOAD_SHARE * rate_per_s:
        rate_per_s *= OVERLOAD
        found = _overloaded(these, requests, total, rate_per_s, path)
    return found


def _mean(requests: Sequence[Request]) -> tuple[float, float]:
    """Mean tokens of prompts and answers."""
    count = len(requests)
    return sum(r.prompt_tokens for r in requests) / count, sum(r.output_tokens for r in requests) / count


def _rounds_s(server: Server, requests: Sequence[Request], at_once: int) -> float:
    """A request's part of the rounds of so many, roughly, for mean lengths."""
    prompt, output = _mean(requests)
    drafts = server.drafts(at_once)
    round_s = server.pricer.price([(round(prompt + output / 2), drafts)] * at_once, (), 0).seconds
    return output / server.mean_acceptance_length(drafts) * round_s / at_once


def _prompt_s(pricer: StepPricer, rules: BatchingRules, requests: Sequence[Request], waiting: int) -> float:
    """A prompt in steps of its own and its like, roughly, for mean lengths."""
    prompt = max(round(_mean(requests)[0]), 1)
    return pricer.prefill_s_each(prompt, rules.max_num_batched_tokens, waiting)


def _at_once(rules: BatchingRules, requests: Sequence[Request]) -> int:
    """About how many requests the slots and the KV cache hold."""
    return min(rules.max_num_seqs, int(rules.total_blocks * rules.block_tokens / rules.held_tokens(sum(_mean(requests)))) + 1)


def _overloaded(
    these: _Together,
    requests: tuple[Request, ...],
    number: int,
    rate_per_s: float,
    path: Callable[[Request], AcceptanceByPosition],
) -> Saturation:
    """How they do under this rate."""
    arriving = tuple(
        again(r, i, i // len(requests), i / rate_per_s) for i, r in zip(range(number), cycle(requests), strict=False)
    )
    result = these.run(arriving, path)
    ends = np.sort(result.records.column("finish_s"))
    # Where prompts are computed apart, what is decoded is admitted as its cache comes.
    admitted_s = result.records.column("first_scheduled_s") if result.transfers is None else result.transfers.column("landed_s")
    start_s, end_s = float(ends[len(ends) // 2]), float(admitted_s.max())
    if ((start_s < ends) & (ends <= end_s)).sum() < len(ends) / 5:
        start_s, end_s = 0.0, float(ends[-1])
    # What ends as the time begins was work of before.
    spans = np.histogram(ends[ends > start_s], np.linspace(start_s, end_s, SATURATION_SPANS + 1))[0]
    window = Window(start_s, end_s, result.records[:0], "")
    load = load_in(result, window)
    prefill_share, drafting_share = load.prefill_share, load.drafting_share
    if result.prefill_replicas and load_in(result, window, prefill=True).busy_fraction > FULL:
        prefill_share, drafting_share = 1.0, 0.0
    log_std = float(spans.std(ddof=1) / spans.mean() / math.sqrt(SATURATION_SPANS))
    return Saturation(float(spans.sum()) / (end_s - start_s), log_std, prefill_share, drafting_share)
