"""The throughput ratio that a benchmark would report, prefills and waiting included."""

from __future__ import annotations

import math
from dataclasses import replace

from simulator.cost.deployment import Deployment
from simulator.cost.pricer import StepPricer
from simulator.cost.spread import Z80, RoundDoubt
from simulator.prediction.point import OperatingPoint
from simulator.prediction.question import DEFAULT_CONTEXT, DEFAULT_OUTPUT, Question


def speedup_interval(
    question: Question, pricer: StepPricer, tau: float, doubt: RoundDoubt, plain_s: float
) -> tuple[float, float, float]:
    """(speedup, low, high), of which lengths that nobody stated leave something open as well.

    Prompts dilute what the terms of rounds leave in doubt. What was never measured they do not: neither were they, beside it.
    """
    r, terms = doubt.r, doubt.terms
    ratios = r, r * terms.high, r * terms.low, min(r, 1.0)
    middle, low, high, most = (benchmark_speedup(question, pricer, tau, ratio, plain_s) for ratio in ratios)
    spread = _lengths_spread(question, pricer, tau, r, plain_s)
    prompts = _prompts_left_out(question, pricer, tau, r, plain_s)
    down = math.hypot(math.log(middle / low), Z80 * doubt.unmeasured.up)
    up = min(math.hypot(math.log(high / middle), Z80 * doubt.unmeasured.down), math.log(most / middle))
    down, up = math.hypot(down, spread, min(prompts, 0.0)), math.hypot(up, spread, max(prompts, 0.0))
    return middle, middle * math.exp(-down), middle * math.exp(up)


def _prompts_left_out(question: Question, pricer: StepPricer, tau: float, r: float, plain_s: float) -> float:
    """ln of what prompts and answers of middling lengths make of a speedup whose lengths are not known at all."""
    if not question.lengths_unknown:
        return 0.0
    prompt = question.prompt_tokens or DEFAULT_CONTEXT
    middling = replace(question, prompt_tokens=prompt, output_tokens=question.output_tokens or DEFAULT_OUTPUT)
    return math.log(benchmark_speedup(middling, pricer, tau, r, plain_s) * r / tau)


def _lengths_spread(question: Question, pricer: StepPricer, tau: float, r: float, plain_s: float) -> float:
    """Half the width of an 80 % interval of ln(speedup), from where a dataset's mean lengths may fairly fall."""
    if question.usual is None:
        return 0.0
    prompt, output = question.usual.prompt_tokens, question.usual.output_tokens

    prompts = [replace(question, prompt_tokens=tokens) for tokens in (prompt.low, prompt.high)]
    outputs = [replace(question, output_tokens=tokens) for tokens in (output.low, output.high)]

    def change(ends: list[Question]) -> float:
        low, high = (benchmark_speedup(end, pricer, tau, r, plain_s) for end in ends)
        return math.log(high / low) / 2

    return math.hypot(change(prompts), change(outputs))


def benchmark_speedup(question: Question, pricer: StepPricer, tau: float, r: float, plain_step_s: float) -> float:
    """Throughput ratio at constant batch: device time of one request without and with speculation.

    plain = prefill + (wait + (n-1)·step)/b;  speculative = prefill (draft's included) + (wait + (n-1)/τ·R·step)/b, where wait is
    the time outside of passes, in which only the request's own place in the batch is idle. Where a batch drafts on while prompts
    come in, these also pay for steps that hold both. Pipeline stages and data-parallel ranks take in prompts side by side.
    """
    if question.prompt_tokens is None or question.output_tokens is None:
        return tau / r
    tokens = max(question.output_tokens - 1, 0) / question.batch * plain_step_s
    wait_s = question.deployment.engine.prompt_overhead_s.value / question.batch
    side_by_side = _prompts_at_once(question.deployment)
    plain_prefill_s = wait_s + _plain_prefill_s(question, pricer) / side_by_side
    prefill_s = wait_s + _prefill_s(question, pricer, question.prompts_together) / side_by_side
    prefill_s += _beside_rounds_s(question, pricer, tau) / side_by_side
    return (plain_prefill_s + tokens) / (prefill_s + tokens * r / tau)


def _beside_rounds_s(question: Question, pricer: StepPricer, tau: float) -> float:
    """A prompt's share of what the steps take longer that hold prompts beside rounds; those that come in one round share it."""
    if question.batch == 1 or pricer.target.engine.prefill_first or question.prompts_together:
        return 0.0
    prompts_a_round = question.batch * tau / max((question.output_tokens or 1) - 1, 1)
    return pricer.beside_rounds_s * -math.expm1(-prompts_a_round) / prompts_a_round


def _plain_prefill_s(question: Question, pricer: StepPricer) -> float:
    """Of one prompt; where drafting keeps prompts apart, those of the batch share passes without it."""
    shared = question.prompts_together or question.deployment.engine.drafting_prompts_alone
    return _prefill_s(question, StepPricer(pricer.target), shared)


def _prefill_s(question: Question, pricer: StepPricer, shared: bool) -> float:
    """Of one prompt: alone, or its part of a pass that takes in as many of the batch as fit."""
    prompt, budget = question.prompt_tokens or 1, question.deployment.engine.max_num_batched_tokens
    together = min(question.batch, budget // prompt) if shared else 1
    if together < 2:
        return pricer.prefill_s(prompt, budget)
    return pricer.price((), ((prompt, 0),) * together, together).seconds / together


def _prompts_at_once(deployment: Deployment) -> int:
    beyond = deployment.parallelism
    return beyond.data_parallel_size * beyond.microbatches(beyond.pipeline_parallel_size, deployment.engine)


def measured_plain_step_s(point: OperatingPoint, question: Question, pricer: StepPricer) -> float | None:
    """The plain step that was measured, from a throughput too: b·(n/throughput - prefill)/(n-1)."""
    if point.plain_step_s is not None or point.plain_tokens_per_s is None:
        return point.plain_step_s
    n, prompt = question.output_tokens, question.prompt_tokens
    if n is None or n < 2 or prompt is None:
        return question.batch / point.plain_tokens_per_s
    prefill_s = _plain_prefill_s(question, pricer) / _prompts_at_once(question.deployment)
    prefill_s += question.deployment.engine.prompt_overhead_s.value / question.batch
    decode_s = n / point.plain_tokens_per_s - prefill_s
    return question.batch * decode_s / (n - 1) if decode_s > 0 else question.batch / point.plain_tokens_per_s
