"""The analytic answer to a capacity question: mean values, without queueing and without spread between requests.

With b sequences decoding, a request takes (O - 1)/τ rounds of T(b) shared by b, and one prompt of its own:

    rate(b) = b / (rounds · T(b) + b · prompt_s)        TPOT(b) = b / (rate(b) · (O - 1))        (Little's law)

Where prompts are computed on instances of their own, each finishes a prompt in its own time, and rounds share nothing with them:

    rate(b) = min(b · replicas / (rounds · T(b)), instances / prompt_s)

It says where a simulation should look and which variants are not worth one; percentiles and queues are the simulation's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from simulator.cost.pricer import StepPricer
from simulator.serving import BatchingRules, KVTransfer
from simulator.simulation import Server
from simulator.workload import Request, ServiceLevel, mean_context_tokens

# Prompts whose price is taken, evenly from the shortest to the longest.
PROMPTS = 12


@dataclass(frozen=True, slots=True)
class MeanLoad:
    """Means at a batch: requests a second, seconds per token, to the first token and end to end."""

    batch: int
    rate_per_s: float
    tpot_s: float
    ttft_s: float
    e2e_s: float


@dataclass(frozen=True)
class PromptsElsewhere:
    """Instances that compute prompts, so many for one replica that decodes, and how caches come from there."""

    pricer: StepPricer
    rules: BatchingRules
    transfer: KVTransfer
    instances: float

    def prompt_s(self, tokens: int) -> float:
        """Its part of the steps that take in so many as fit, or of its own."""
        return self.pricer.prefill_s_each(tokens, self.rules.max_num_batched_tokens, self.rules.max_num_seqs)

    def way_s(self, tokens: float) -> float:
        """From the end of a prompt to its cache's coming, with nothing in the way."""
        transfer = self.transfer
        link_s = tokens * transfer.token_s + transfer.sequence_s
        if transfer.kind != "after_prompt":  # all but the last chunk, or layer, has gone
            parts = math.ceil(tokens / self.rules.max_num_batched_tokens)
            link_s /= parts * (transfer.layers if transfer.kind == "by_layer" else 1)
        return link_s + transfer.latency_s


@dataclass(frozen=True)
class MeanModel:
    """One replica, by means. drafts: tokens drafted at a batch; tau: tokens per round of so many drafts. elsewhere: the part of
    the instances that compute prompts that works for this replica, None where it computes them itself."""

    pricer: StepPricer
    rules: BatchingRules
    requests: Sequence[Request]
    drafts: Callable[[int], int]
    tau: Callable[[int], float]
    elsewhere: PromptsElsewhere | None = None

    @cached_property
    def _prompts(self) -> tuple[int, ...]:
        lengths = np.sort([request.prompt_tokens for request in self.requests])
        places = (np.arange(PROMPTS) + 0.5) / PROMPTS * len(lengths)
        return tuple(int(length) for length in lengths[places.astype(int)])

    @cached_property
    def decoded_tokens(self) -> float:
        """Mean output tokens after the first, which the prompt gives."""
        return float(np.mean([request.output_tokens for request in self.requests])) - 1

    @cached_property
    def context_tokens(self) -> int:
        """Mean tokens cached per decoding sequence."""
        return max(round(mean_context_tokens(self.requests)), 1)

    @cached_property
    def largest_batch(self) -> int:
        """Sequences that the limits and the KV cache let decode at once."""
        tokens = self.context_tokens + self.rules.lookahead_slots(self.drafts(1)) + self.rules.block_tokens / 2
        fitting = int(self.rules.total_blocks * self.rules.block_tokens / self.rules.held_tokens(tokens))
        return max(min(self.rules.max_num_seqs, fitting), 1)

    def at(self, batch: int) -> MeanLoad:
        """The means while `batch` sequences of each replica decode."""
        drafts = self.drafts(batch)
        decode = [(self.context_tokens, drafts)] * batch if self.decoded_tokens > 0 else []
        round_s = self.pricer.price(decode, (), 0).seconds if decode else 0.0
        rounds = self.decoded_tokens / self.tau(drafts) if decode else 0.0
        if self.elsewhere is not None:
            return self._at_apart(self.elsewhere, batch, rounds, round_s)
        prompt_s = float(np.mean([self._prompt_s(decode, round_s, tokens, batch) for tokens in self._prompts]))
        rate_per_s = batch / (rounds * round_s + batch * prompt_s)
        # A request arrives in the middle of a step, and its prompt shares the next with the decoding sequences.
        ttft_s = (0.5 if self.rules.prefill_first else 1.5) * round_s + prompt_s
        tpot_s = batch / rate_per_s / self.decoded_tokens if decode else 0.0
        return MeanLoad(batch, rate_per_s, tpot_s, ttft_s, ttft_s + self.decoded_tokens * tpot_s)

    def _at_apart(self, elsewhere: PromptsElsewhere, batch: int, rounds: float, round_s: float) -> MeanLoad:
        """The same where prompts are computed elsewhere: a cache comes in the middle of a round, and an engine that makes the
        first token of the prompt's last takes a round for it."""
        prompt_s = float(np.mean([elsewhere.prompt_s(tokens) for tokens in self._prompts]))
        more = 0 if elsewhere.transfer.makes_first_token else 1
        rate_per_s = elsewhere.instances / prompt_s
        if rounds + more and round_s:
            rate_per_s = min(rate_per_s, batch / ((rounds + more) * round_s))
        tpot_s = rounds * round_s / self.decoded_tokens if rounds else 0.0
        ttft_s = prompt_s + elsewhere.way_s(float(np.mean(self._prompts))) + more * 1.5 * round_s
        return MeanLoad(batch, rate_per_s, tpot_s, ttft_s, ttft_s + self.decoded_tokens * tpot_s)

    def _prompt_s(self, decode: list[tuple[int, int]], round_s: float, tokens: int, batch: int) -> float:
        """What one prompt adds to the steps that take it in; where nothing decodes, its part of a step of many."""
        room = max(self.rules.max_num_batched_tokens - sum(1 + drafted for _, drafted in decode), 1)
        if not decode and (together := min(room // tokens, batch)) > 1:
            return self.pricer.price((), ((tokens, 0),) * together, together).seconds / together
        added_s = 0.0
        for before in range(0, tokens, room):
            new = min(room, tokens - before)
            added_s += self.pricer.price(decode, ((new, before),), int(before + new == tokens)).seconds - round_s
        return added_s

    def within(self, level: ServiceLevel | None) -> MeanLoad | None:
        """The largest load whose means meet the limits; None where not even one sequence does."""
        if self._meets(full := self.at(self.largest_batch), level):
            return full
        low, high = 0, self.largest_batch  # `low` meets, `high` does not
        found = None
        while high - low > 1:
            middle = (low + high) // 2
            load = self.at(middle)
            if self._meets(load, level):
                low, found = middle, load
            else:
                high = middle
        return found

    @staticmethod
    def _meets(load: MeanLoad, level: ServiceLevel | None) -> bool:
        if level is None:
            return True
        reached = {"ttft": load.ttft_s, "tpot": load.tpot_s, "e2e": load.e2e_s}
        return all(reached[metric] <= limit_s for metric, _, limit_s in level.limits())


def mean_model(server: Server, requests: Sequence[Request]) -> MeanModel:
    """One replica of a server, to which these requests come."""
    prefill, elsewhere = server.prefill, None
    if prefill is not None:
        replicas = sum(count for _, count in server.kinds)
        instances = len(prefill.engines) / replicas
        elsewhere = PromptsElsewhere(server.prefill_pricer, prefill.engines[0].rules, prefill.transfer, instances)
    return MeanModel(server.pricer, server.rules, requests, server.drafts, server.mean_acceptance_length, elsewhere)


def mean_load(server: Server, requests: Sequence[Request]) -> MeanLoad | None:
    """The largest load of all replicas whose means meet the service level, None where not even one sequence at a time does.

    Of several kinds each carries what it can; where they take turns, as much as the slowest.
    """
    level = server.scenario.file.service_level
    found = [(mean_model(kind, requests).within(level), count) for kind, count in server.kinds]
    able = [(load, count) for load, count in found if load is not None]
    in_turn = server.scenario.file.parallel.router in (None, "round_robin")
    if not able or (in_turn and len(able) < len(found)):
        return None
    least = min(load.rate_per_s for load, _ in able)
    rate_per_s = sum(count * (least if in_turn else load.rate_per_s) for load, count in able)
    return replace(able[0][0], rate_per_s=rate_per_s)
