"""How many sequences decode at once in the long run, from means alone: the operating point without a simulation.

Little's law with the time per token at that very batch: B = λ (n - 1) t(B) / (1 - ρ), where n is the mean output, t the plain
step and ρ = λ · (seconds that a prompt adds) the share of time that prompts take. In a closed loop λ follows from the users.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from simulator.cost.round import StepPricer
from simulator.questions.break_even import own_context
from simulator.scenario import Scenario
from simulator.simulation import batching_rules
from simulator.theory import increasing_root
from simulator.workload import requests_of


def steady_batch(scenario: Scenario, context: float | None = None) -> int:
    """Mean sequences that decode on the whole deployment without speculation, at least 1; the most that fit where more arrive
    than can be served."""
    plain = scenario.deployment.plain()
    replicas = plain.independent_replicas
    requests = requests_of(scenario.file.workload, scenario.file.seed, scenario.source)
    prompt = float(np.mean([request.prompt_tokens for request in requests]))
    output = float(np.mean([request.output_tokens for request in requests]))
    rules, pricer = batching_rules(scenario, plain), plain.replica().pricer(0.0)
    held = rules.total_blocks * rules.block_tokens / (prompt + output / 2)
    most = max(min(rules.max_num_seqs, held), 1.0)
    length = context or own_context(scenario)

    @cache
    def step_s(sequences: int) -> float:
        return pricer.plain(sequences, length).seconds

    @cache
    def prompt_s(sequences: int) -> float:
        """Seconds that a prompt adds: all of its passes where it runs alone, else what it adds to a step of these sequences."""
        if rules.prefill_first or not rules.chunked_prefill:
            return StepPricer(pricer.target).prefill_s(round(prompt), rules.max_num_batched_tokens)
        chunk = max(min(round(prompt), rules.max_num_batched_tokens - sequences), 1)
        mixed = pricer.price(((round(length), 0),) * sequences, ((chunk, 0),), 1).seconds
        return (mixed - step_s(sequences)) * prompt / chunk

    def decoding_s(batch: float) -> float:
        """Seconds that a request decodes beside others, prompts aside; between whole batches in proportion."""
        low = max(int(batch), 1)
        return max(output - 1, 0.0) * (step_s(low) + max(batch - low, 0.0) * (step_s(low + 1) - step_s(low)))

    arrivals = scenario.file.workload.arrivals
    if arrivals.users is not None:
        users, think_s = arrivals.users / replicas, arrivals.think_time_s or 0.0

        def spare(batch: float) -> float:
            """Those who decode, think or wait for their prompt at this batch, less the users that there are."""
            each_s = max(decoding_s(batch), 1e-12)
            added_s = prompt_s(max(round(batch), 1))
            rate_per_s = batch / (each_s + batch * added_s)  # a token takes longer by the prompts that arrive meanwhile
            return batch + rate_per_s * (think_s + added_s) - users
    else:
        span_s = requests[-1].arrival_s - requests[0].arrival_s
        rate_per_s = (len(requests) - 1) / span_s / replicas if span_s > 0 else np.inf

        def spare(batch: float) -> float:
            """This batch, less the one that the load makes at its speed."""
            busy = rate_per_s * prompt_s(max(round(batch), 1))
            return batch - rate_per_s * decoding_s(batch) / (1 - busy) if busy < 1 else -1.0

    return max(round(replicas * increasing_root(spare, 0.0, most)), 1)
