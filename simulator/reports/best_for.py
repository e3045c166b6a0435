"""What a recommendation is best for: `run`, `capacity` and `schedule` answer different questions about γ, and each says which of
them decides what to set.

At the traffic that the scenario states it is `run`; where copies are filled it is `capacity`; a table by batch that pays takes
the place of either.
"""

from __future__ import annotations

import math

from simulator.plots.words import ways_in_words
from simulator.printed_numbers import significant
from simulator.questions.capacity import CapacityAnswer
from simulator.questions.schedule import ScheduleAnswer
from simulator.scenario import Scenario
from simulator.simulation import TIE, Comparison, SimulationResult, name_of_way

# From this share of what a server finishes queues and full batches decide which γ is best, no longer single answers.
FILLED = 0.5
FILLED_COPIES = "For filled copies set what capacity names"


def best_for_run(result: SimulationResult, taken: Comparison) -> str:
    """The traffic for which the verdict's way to draft is best, and among which."""
    scenario, share = result.scenario, result.plain.offered_share
    closed = scenario.file.workload.arrivals.users is not None
    filled = "" if closed or math.isinf(share) else f" ({100 * share:.0f} % of what a plain server finishes)"
    table = "where the load swings, schedule says whether a table by batch pays."
    elsewhere = (
        f"W{table[1:]}" if closed else f"{FILLED_COPIES}; {table}"
    )  # users who wait fill nothing: capacity is of open loops
    traffic, ways = f"{traffic_in_words(scenario)}{filled}", ways_compared(scenario)
    if taken.worth < 1:
        return f"Best at {traffic}: no speculation. {elsewhere}"
    if len(ways) == 1:
        others = ["schedule tries every γ"] * bool(scenario.gammas) + ["capacity says what filled copies carry"] * (not closed)
        return f"Asked about {ways[0]} alone, at {traffic}{': ' if others else ''}{', '.join(others)}."
    return f"Best at {traffic}: {_without_end(taken.variant.label)}, of {compared_in_words(scenario)}. {elsewhere}"


def best_for_capacity(answer: CapacityAnswer) -> list[str]:
    """The load at which what carries most is best, and whether the demand brings copies there; nothing where nothing drafts."""
    top = answer.drafting
    if top is None:
        return []
    drafts = top is answer.best
    named = _without_end(top.label) if drafts else "no speculation"
    of = f", of {compared_in_words(answer.scenario)}" if drafts and len(ways_compared(answer.scenario)) > 1 else ""
    best = f"Best for filled copies: {named}{of}."
    fleet = None if answer.best is None else answer.best.fleet
    load = 1.0 if fleet is None else fleet.load
    at = f"This demand fills them to {100 * load:.0f} %"
    return [f"{best} {at}: set {'it; at less traffic ' if load >= FILLED else ''}what run names."]


def best_for_schedule(answer: ScheduleAnswer) -> str:
    """What the table, or one γ, is best for; and of how many fewer `run` knows."""
    scenario, beside = answer.scenario, ""
    best = "the table" if answer.needed else "no speculation" if answer.best_fixed == 0 else f"γ = {answer.best_fixed}"
    tried = {gamma for gamma, _ in answer.fixed_gains if gamma}
    if not answer.needed and tried - {*scenario.gammas}:
        beside = f" (run knows {ways_in_words([f'γ = {gamma}' for gamma in scenario.gammas])} only)"
    of = f", of γ = 1 to {max(tried)}{beside}" if tried and not answer.needed else beside
    named = f"{answer.method}, {best}" if answer.others and not answer.off else best
    filled = "" if scenario.file.workload.arrivals.users is not None else f" {FILLED_COPIES}."
    return f"Best for {answer.metric} at {traffic_in_words(scenario)}: {named}{of}.{filled}"


def tie_in_words(larger: str, taken: str, chains: bool) -> str:
    """Why it is not the way to draft with the largest number that is taken."""
    kind = "the smaller γ" if chains else taken
    return f"{larger} gains less than {100 * TIE:.0f} % more: {kind} is taken, as it needs less memory and fewer rows."


def traffic_in_words(scenario: Scenario) -> str:
    """How fast requests come."""
    users, requests = scenario.file.workload.arrivals.users, scenario.requests()
    if users is not None:
        return f"{users:,} user{'s' if users > 1 else ''}"
    seconds = requests[-1].arrival_s - requests[0].arrival_s
    return "all requests at once" if seconds <= 0 else f"{significant((len(requests) - 1) / seconds)} requests per second"


def ways_compared(scenario: Scenario) -> list[str]:
    """Every way to draft that the scenario asks about, with its method where there are several."""
    return [
        f"{method}, {name_of_way(*way)}" if scenario.alternatives else name_of_way(*way)
        for method, one in scenario.methods
        for way in one.variants
    ]


def compared_in_words(scenario: Scenario) -> str:
    """The same in one phrase: ``γ = 2, 3 and 5``, of several methods ``EAGLE-3 with γ = 2 and 3; n-gram lookup with γ = 3``."""
    each = [(method, ways_in_words([name_of_way(*way) for way in one.variants])) for method, one in scenario.methods]
    return "; ".join(f"{method} with {ways}" for method, ways in each) if scenario.alternatives else each[0][1]


def _without_end(label: str) -> str:
    """A variant's label without the end of the measured acceptance that it runs at."""
    return label.partition(", τ = ")[0]
