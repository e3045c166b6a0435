"""The answer in words: what the console prints first and what a report begins with."""

from __future__ import annotations

import math
from typing import Literal

from simulator.cost.spread import Estimate
from simulator.plots.words import drafting_name, interval, is_known
from simulator.printed_numbers import significant, times
from simulator.reports.best_for import best_for_run, tie_in_words
from simulator.serving.metrics import good_share
from simulator.serving.record import RequestRecords
from simulator.simulation import Comparison, SimulationResult, room_in_words

Answer = Literal["win", "lose", "close", "depends", "none"]
# Metrics whose gain means a larger number; of the others a gain means shorter.
RATES = ("goodput", "output rate per user")


# ----------------------------------------------------------------------------------------------------------- sentences


def answer(result: SimulationResult) -> Answer:
    """The verdict of the whole run: `depends` where acceptance is open and the ends of its measured band disagree."""
    verdicts = {other.verdict for other in ends(result)}
    chosen = subject(result)
    return "depends" if len(verdicts) > 1 else "none" if chosen is None else chosen.verdict


def subject(result: SimulationResult) -> Comparison | None:
    """What the verdict is about: the best variant; of one with open acceptance the end of the band that gains less."""
    return min(ends(result), key=lambda other: other.worth, default=result.best)


def ends(result: SimulationResult) -> tuple[Comparison, ...]:
    """Where acceptance is open, both ends of the measured band of the best γ or tree; otherwise none."""
    best = result.best
    if best is None or best.variant.scenario.file.acceptance is not None:
        return ()
    return tuple(other for other in result.comparisons if other.variant.drafting == best.variant.drafting)


def headline(result: SimulationResult) -> tuple[str, ...]:
    """The verdict of the whole run as sentences, the answer first."""
    chosen, both = subject(result), ends(result)
    if chosen is None:
        return ("No speculation is asked for: the run shows the workload without it.",)
    best_for = best_for_run(result, chosen)
    if answer(result) == "depends":
        sides = "; ".join(f"at τ = {significant(other.mean_acceptance_length)} {_changed(other)}" for other in both)
        rest = f"What follows is for τ = {significant(chosen.mean_acceptance_length)}."
        return (f"It depends on acceptance, which the scenario leaves open: {sides}.", rest, *_reasons(chosen), best_for)
    first = _outcome(chosen, result)
    first = f"At either end of the measured acceptance: {first[0].lower()}{first[1:]}" if both else first
    return (first, *_within_the_level(chosen, result), *_tie(chosen, result), *_reasons(chosen), *_worse(chosen), best_for)


def _within_the_level(chosen: Comparison, result: SimulationResult) -> list[str]:
    """That goodput can hardly rise, where all requests, or all but a few, are within the service level already."""
    level = result.scenario.file.service_level
    if level is None or not chosen.nothing_to_gain:
        return []
    share = good_share(RequestRecords.of(result.plain.result.records), level)
    within = f"Without speculation {100 * share:.1f} % of the requests are within the service level"
    named = "; the quickest that keeps the level is named" if len(result.comparisons) > 1 else ""
    return [f"{within}: goodput has {room_in_words(share)} to gain. Judge by the time per output token{named}."]


def _tie(chosen: Comparison, result: SimulationResult) -> list[str]:
    """Why the chosen γ or tree is not the one with the largest number."""
    taken = chosen.variant.shape
    larger = [c for c in result.comparisons if c.worth > chosen.worth and c.variant.shape.nodes > taken.nodes]
    if not larger or chosen.variant.scenario.file.acceptance is None:
        return []
    other = max(larger, key=lambda c: c.worth).variant
    chains = other.shape.is_chain and taken.is_chain and not result.scenario.alternatives
    return [tie_in_words(other.label, chosen.variant.label, chains)]


def _worse(comparison: Comparison) -> list[str]:
    worse = gets_worse(comparison) if comparison.verdict == "win" else []
    return [f"Mind that {' and '.join(worse)} certainly gets worse."] if worse else []


def verdict_sentence(comparison: Comparison, result: SimulationResult) -> str:
    """Win, lose or too close to call, by how much; what else changed; why; the textbook formula's answer beside ours."""
    return " ".join((_outcome(comparison, result), *_reasons(comparison)))


def _reasons(comparison: Comparison) -> tuple[str, ...]:
    return (_beside(comparison), _why(comparison), _needed(comparison), _textbook(comparison))


def _outcome(comparison: Comparison, result: SimulationResult) -> str:
    how = f"with {drafting_name(result.scenario, comparison.variant.label)}"
    if comparison.verdict != "close":
        return f"Speculation {'wins' if comparison.verdict == 'win' else 'loses'}: {_changed(comparison)} {how}."
    factor = f"Too close to call: the gain in {comparison.metric} is {times(comparison.gain.value)} {how}"
    needed = comparison.requests_to_tell
    if not is_known(comparison.gain):
        more = "" if needed is None else f"; about {needed:,} would do"
        return f"{factor}, from too few requests to tell ({len(result.requests):,}){more}."
    bounds = interval(comparison.gain)
    if comparison.gain.low <= 1 <= comparison.gain.high:
        more = "" if needed is None else f"; about {needed:,} requests instead of {len(result.requests):,} would tell"
        return f"{factor}, and its 80 % interval, {bounds}, contains 1{more}."
    return f"{factor} (80 % interval {bounds}), and that decides nothing."


def _changed(comparison: Comparison) -> str:
    """``mean time per output token 1.62× shorter (80 % interval 1.50–1.75)``, whichever way it went."""
    gain, metric = comparison.gain, comparison.metric
    better = gain.value >= 1
    if metric not in RATES:
        shown = gain if better else inverse(gain)
        return f"{metric} {times(shown.value)} {'shorter' if better else 'longer'} (80 % interval {interval(shown)})"
    return f"{metric} {times(gain.value)} that of no speculation (80 % interval {interval(gain)})"


def inverse(gain: Estimate) -> Estimate:
    """The same told of its reciprocal: longer instead of shorter."""
    return Estimate(1 / gain.value, 1 / gain.high, 1 / gain.low)


def _beside(comparison: Comparison) -> str:
    """The other gains: latency, goodput and capacity do not move together."""
    others = [(name, gain) for name, gain in _gains(comparison) if not comparison.metric.endswith(name)]
    shown = [f"{name} {times(gain.value)} ({interval(gain)})" for name, gain in others]
    if comparison.goodput is not None and comparison.metric != "goodput":
        shown.append(f"goodput {times(comparison.goodput)}")
    return f"Beside it (above 1 = better): {', '.join(shown)}."


def _gains(comparison: Comparison) -> list[tuple[str, Estimate]]:
    gains = (
        ("time per output token", comparison.tpot),
        ("end-to-end latency", comparison.e2e),
        ("capacity", comparison.capacity),
    )
    return [(name, gain) for name, gain in gains if gain is not None]


def gets_worse(comparison: Comparison) -> list[str]:
    """What speculation makes worse for certain, in words."""
    return [name for name, gain in _gains(comparison) if gain.high < 1]


def _why(comparison: Comparison) -> str:
    return f"Causes: {'; '.join(comparison.causes)}." if comparison.causes else "No single cause stands out."


def _needed(comparison: Comparison) -> str:
    """τ beside R, which is its break-even."""
    r, shape, tau = comparison.r, comparison.shape, significant(comparison.mean_acceptance_length)
    given = "acceptance left open" if comparison.variant.scenario.file.acceptance is None else "acceptance as given"
    text = f"A round costs R = {significant(r.value)} plain steps ({interval(r)}) and yields τ = {tau} tokens ({given})"
    rate = comparison.break_even_acceptance_rate
    remark = f" ({comparison.remark})" if comparison.remark else ""
    if rate is not None:
        return f"{text}; it breaks even at an acceptance rate of α* = {rate:.2f}{remark}."
    if not shape.is_chain and r.value <= shape.depth + 1:
        return f"{text}; it breaks even where τ is R: a tree has no single acceptance rate α*."
    return f"{text}; with {shape.name} no acceptance could repay it while decoding at batch {comparison.batch}{remark}."


def _textbook(comparison: Comparison) -> str:
    textbook, decode = times(comparison.textbook_speedup), times(comparison.mean_acceptance_length / comparison.r.value)
    batch = comparison.variant.summary.load.mean_decode_sequences or 1.0
    said = f"The textbook formula, with verification taken as free, says {textbook}; τ/R says {decode}"
    if comparison.tpot is None or 0.9 < batch / comparison.batch < 1.1 or _agree(comparison):
        return f"{said}."
    return f"{said} at the batch of {comparison.batch} without speculation; with it {significant(batch)} decode at once."


def _agree(comparison: Comparison) -> bool:
    """Whether τ/R and the simulated gain in time per token are within a tenth of each other."""
    decode = comparison.mean_acceptance_length / comparison.r.value
    return comparison.tpot is not None and abs(math.log(comparison.tpot.value / decode)) < 0.1
