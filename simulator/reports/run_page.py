"""A run as a page: the verdict, what to set, the numbers, why, where it turns, the load, the sources."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.cost.spread import Estimate
from simulator.plots.words import drafting_name, interval, is_known, short_name, speculation_name
from simulator.printed_numbers import milliseconds, significant, times
from simulator.questions.method_map import MethodMap
from simulator.questions.sensitivity import Sensitivity
from simulator.reports.exports import settings_blocks
from simulator.reports.method_map import method_map_blocks
from simulator.reports.page import Block, Bullets, Fact, Figure, Page, Section, Table, Text, Tone, Verdict
from simulator.reports.sensitivity import sensitivity_sentences
from simulator.reports.sources import closing_sections, closing_words
from simulator.reports.variants import run_table
from simulator.reports.verdict import RATES, Answer, answer, ends, gets_worse, headline, inverse, subject
from simulator.scenario import Scenario
from simulator.simulation import Comparison, SimulationResult, speculative_servers, verdict_of

OUTCOMES: Mapping[Answer, tuple[str, Tone]] = {
    "win": ("speculation wins", "good"),
    "lose": ("speculation loses", "bad"),
    "close": ("too close to call", "unsure"),
    "depends": ("it depends on acceptance", "unsure"),
    "none": ("no speculation", "neutral"),
}
SPEEDUP = Figure("speedup", "Decode speedup against mean acceptance length, with the break-even R and the simulated run marked")
ROUND = Figure("round", "Milliseconds of one plain step beside one speculative round, by part")
TORNADO = Figure("tornado", "Change of the speedup when one thing is otherwise: a bar for each, the longest on top")
LATENCY = Figure("latency", "Distributions of time per output token and of end-to-end latency, with and without speculation")
BY_RATE = Figure("rates", "Latency against request rate without and with speculation, with the service level as a line")
LOAD = Figure("load", "Running sequences, waiting requests and KV cache use over simulated time")
BREAK_EVEN = Figure(
    "break_even", "Break-even acceptance rate against batch, for each number of speculative tokens and each context"
)
BREAK_EVEN_LENGTH = Figure(
    "break_even_length", "Break-even acceptance length against batch, for each tree and chain of the scenario and each context"
)
BEST_GAMMA = Figure("best_gamma", "Best number of speculative tokens over batch and context")


def run_page(result: SimulationResult, moved: Sensitivity | None = None, methods: MethodMap | None = None) -> Page:
    """The report of a run. moved: what moves its verdict; methods: the best of them by batch and context."""
    scenario, chosen = result.scenario, subject(result)
    outcome, tone = OUTCOMES[answer(result)]
    verdict = Verdict(outcome, tone, headline(result)) if chosen is None else _verdict(result, chosen)
    sections = [Section("Numbers", (Table.of(*run_table(result)), Text(_reading(result))))]
    if chosen is not None:
        sections.insert(0, Section("Settings to use", tuple(_settings(result, chosen))))
        sections += [
            Section("Why", (Bullets(tuple(_reasons(chosen))), ROUND, SPEEDUP, *_moved(moved))),
            *_best_methods(methods),
            Section("Where it turns", (BREAK_EVEN, BREAK_EVEN_LENGTH, BEST_GAMMA)),
        ]
    sections += [Section("Under load", (BY_RATE, LATENCY, LOAD)), *closing_sections(scenario, result.warnings)]
    return Page("run", f"{scenario.name}: {outcome}", _asked(result), verdict, tuple(sections), closing_words(scenario))


def _verdict(result: SimulationResult, chosen: Comparison) -> Verdict:
    outcome, tone = OUTCOMES[answer(result)]
    number, number_is, gain = _number(result, chosen)
    return Verdict(outcome, tone, headline(result), number, number_is, gain, tuple(_facts(chosen)), advice(result, chosen))


def _number(result: SimulationResult, chosen: Comparison) -> tuple[str, str, Estimate | None]:
    """(the gain in large type, what it is, the interval to draw); of open acceptance from one end of the band to the other."""
    how = f"with {speculation_name(chosen.variant.scenario)}, {chosen.variant.shape.name}"
    if answer(result) == "depends":
        low, *_, high = sorted((end.gain for end in ends(result)), key=lambda gain: gain.value)
        return (
            f"{times(low.value)} to {times(high.value)}",
            f"gain in {chosen.metric} {how}, by acceptance",
            Estimate(low.value, low.low, high.high) if is_known(low) and is_known(high) else None,
        )
    gain, known = chosen.gain, chosen.gain if is_known(chosen.gain) else None
    if chosen.metric in RATES:
        return times(gain.value), f"the {chosen.metric} of no speculation, {how}", known
    if gain.value >= 1:
        return times(gain.value), f"shorter {chosen.metric} {how}", known
    return times(1 / gain.value), f"longer {chosen.metric} {how}", known and inverse(known)


def _facts(chosen: Comparison) -> Iterator[Fact]:
    tau, r = chosen.mean_acceptance_length, chosen.r
    yield Fact(significant(tau), "tokens per round, τ", f"it breaks even at R = {significant(r.value)} ({interval(r)})")
    if chosen.break_even_acceptance_rate is not None:
        yield Fact(f"{chosen.break_even_acceptance_rate:.2f}", "break-even acceptance rate, α*", f"at batch {chosen.batch}")
    yield Fact(times(chosen.e2e.value), "end-to-end latency", f"{interval(chosen.e2e)}, above 1 is shorter")
    yield Fact(times(chosen.capacity.value), "capacity when saturated", interval(chosen.capacity))


def _best_methods(methods: MethodMap | None) -> Iterator[Section]:
    if methods is not None:
        yield Section("Best method by batch and context", method_map_blocks(methods))


def _moved(moved: Sensitivity | None) -> Iterator[Block]:
    if moved is not None:
        yield TORNADO
        yield from (Text(sentence) for sentence in sensitivity_sentences(moved))


def _asked(result: SimulationResult) -> str:
    scenario = result.scenario
    deployment, workload = scenario.deployment, scenario.file.workload
    lengths = f"lengths of {workload.requests.trace}" if workload.requests else "lengths stated in the scenario"
    drafts = f" and {speculation_name(scenario)}" if deployment.speculative else ""
    process = workload.arrivals.process.replace("_", " ")
    return (
        f"{len(result.requests):,} requests ({process} arrivals, {lengths}) for "
        f"{short_name(deployment.target.name)}{drafts} on {scenario.devices} under {deployment.engine.name}. "
        + "".join(f"{sentence} " for sentence in _in_common(scenario))
        + "Every variant serves the same requests with the same randomness."
    )


def _in_common(scenario: Scenario) -> Iterator[str]:
    """What requests share, and how long their clients wait."""
    workload, limits = scenario.file.workload, scenario.limits
    kept = "and the prefix cache keeps them" if limits.prefix_caching else "and are computed each time"
    if workload.sessions is not None:
        yield f"Turns of a session say again all that was said before, {workload.sessions.think_time_s:g} s after the answer."
    if workload.shared_prefix_tokens is not None:
        yield f"All prompts begin with the same {workload.shared_prefix_tokens:,} tokens, {kept}."
    if workload.time_out_s is not None:
        yield f"Clients give up after {workload.time_out_s:g} s."
    if limits.swap_space_bytes:
        yield f"Preempted sequences move to {significant(limits.swap_space_bytes / 1e9)} GB of each device's host memory."


def _reading(result: SimulationResult) -> str:
    summary = result.plain.summary
    text = (
        "Gains above 1× are improvements; intervals hold 80 %. Capacity: requests per second finished when all wait at once. "
        f"{summary.note}"
    )
    rejected = ", ".join(f"{count:,} {reason}" for reason, count in summary.rejected.items())
    return text + (f" Rejected on arrival: {rejected}." if rejected else "")


def _reasons(comparison: Comparison) -> list[str]:
    cost = comparison.round
    parts = (
        f"at batch {comparison.batch} and context {comparison.context:,.0f} a plain step takes {milliseconds(cost.plain_step_s)}",
        f"one round {milliseconds(cost.round_s)}",
        f"{milliseconds(cost.draft_s)} of it drafting",
        f"verification is {times(cost.verification_cost_ratio)} a plain step",
    )
    return [*comparison.causes, ", ".join(parts), f"most of a round is bound by {cost.bound}"]


def advice(result: SimulationResult, chosen: Comparison) -> str:
    """What to do, in a sentence."""
    found, worse = answer(result), " and ".join(gets_worse(chosen))
    if found == "depends":
        least = significant(chosen.r.value)
        return f"Measure acceptance on this traffic first: decoding gains from τ = {least} tokens per round."
    if found == "lose":
        return "Leave speculation off for this workload."
    if found == "close" and worse:
        return f"Leave speculation off: the gain in {chosen.metric} is not certain, and {worse} certainly gets worse."
    on = f"Turn it on: {drafting_name(result.scenario, chosen.variant.label)}."
    if worse:
        return f"{on} Mind that {worse} gets worse."
    if found == "close" and chosen.nothing_to_gain and chosen.tpot is not None and verdict_of(chosen.tpot) == "win":
        return f"{on} Goodput has hardly room to rise, but time per output token is certainly shorter."
    return on if found == "win" else "No gain is certain; the settings below are those with the largest one."


def _settings(result: SimulationResult, chosen: Comparison) -> Iterator[Block]:
    """What to write into the engine's configuration, where speculation gains."""
    said = advice(result, chosen)
    if said.startswith(("Leave", "Measure")):
        yield Text(said)
        return
    servers = dict(speculative_servers(result.scenario, []))
    yield from settings_blocks(servers[chosen.variant.label])
