"""Acceptance dumps by position: `specdec_bench` of NVIDIA's Model Optimizer, its metric file and its speculation profile.

The metric file is keyed by acceptance *length*, bonus token included: the joint rate at length 2 is the survival of draft 1. Its
`Average_AL` weighs each request alike, the rates weigh each round alike; only the rates are used.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

from simulator.acceptance.rates import AcceptanceCounters
from simulator.interchange.observed import Collector, ObservedRun, Reading, json_objects
from simulator.spec import Problem, SpecError

FORMAT = "specdec-bench"


def is_dump(value: object) -> bool:
    """Whether a JSON value is a metric file or a speculation profile of specdec_bench."""
    return isinstance(value, dict) and ("Joint_Acceptance_Rate" in value or "marginal_accept_rates" in value)


def read(path: str | Path) -> Iterator[ObservedRun]:
    """One run a JSON value. Raises `SpecError`."""
    for line, value in json_objects(path):
        where = f"{path}:{line}"
        if not is_dump(value):
            must = "must hold Joint_Acceptance_Rate (specdec_bench) or marginal_accept_rates (its speculation profile)"
            raise SpecError([Problem(where, "", must)])
        yield _metric(value, where) if "Joint_Acceptance_Rate" in value else _profile(value, where)


def _metric(values: Mapping[str, Any], where: str) -> ObservedRun:
    found, counters, notes = Collector(where), None, []
    histogram = _by_length(found, values.get("Acceptance_Length_Histogram") or {}, "Acceptance_Length_Histogram")
    if histogram:
        rounds, longest = sum(histogram.values()), max(histogram)
        accepted = sum(count * (length - 1) for length, count in histogram.items())
        rates = tuple(sum(c for length, c in histogram.items() if length > depth) / rounds for depth in range(1, longest))
        _rates(found, rates, "Acceptance_Length_Histogram", "rounds longer than i, over rounds")
        found.derived("mean_acceptance_length", 1 + accepted / rounds, "Acceptance_Length_Histogram", "per round, bonus included")
        counters_fit = rounds == int(rounds) and accepted == int(accepted) and longest > 1
        if counters_fit:
            counters = AcceptanceCounters(int(rounds), int(rounds) * (longest - 1), int(accepted))
            notes.append("drafts per round are taken as the longest seen; the file does not hold γ")
    else:
        joint = _by_length(found, values["Joint_Acceptance_Rate"], "Joint_Acceptance_Rate")
        rates = _survival(joint)
        _rates(found, rates, "Joint_Acceptance_Rate", "by length with the bonus token, so that length 2 is draft 1")
        found.derived("mean_acceptance_length", 1 + sum(rates), "Joint_Acceptance_Rate", "1 + the sum, per round")
    mean = values.get("Average_AL")
    length = found.readings["mean_acceptance_length"].value if "mean_acceptance_length" in found.readings else None
    if isinstance(mean, (int, float)) and length and abs(mean / length - 1) > 0.02:
        notes.append(f"Average_AL {mean:.2f} weighs requests alike; rounds weigh alike in τ = {length:.2f}, which is used")
    found.raise_problems()
    return ObservedRun(FORMAT, where, found.readings, counters, None, tuple(notes))


def _survival(joint: Mapping[int, float]) -> tuple[float, ...]:
    """Survival by draft from rates by length; a length that never ended a round has the rate of the next one."""
    if not joint:
        return ()
    rates, later = [], 0.0
    for length in range(max(joint), 1, -1):
        later = joint.get(length, later)
        rates.append(later)
    return tuple(reversed(rates))


def _profile(values: Mapping[str, Any], where: str) -> ObservedRun:
    found, notes = Collector(where), []
    if values.get("measured") is False:
        found.problem("measured", "must be true: this profile is a stub that nothing was measured for", False)
    rates = values.get("marginal_accept_rates")
    if not isinstance(rates, list) or not rates or not all(isinstance(rate, (int, float)) for rate in rates):
        reason = values.get("vectors_unavailable_reason")
        found.problem("marginal_accept_rates", f"must be a list of rates{f' ({reason})' if reason else ''}", rates)
    else:
        _rates(found, tuple(float(rate) for rate in rates), "marginal_accept_rates", "unconditional, as printed")
        found.derived("num_speculative_tokens", len(rates), "marginal_accept_rates", "its length")
    found.number(values, "mean_accept_length", "mean_acceptance_length", conversion="bonus token included, per round")
    found.raise_problems()
    for key, ours in (("method", "algorithm"), ("target_model", "target_model")):
        if isinstance(values.get(key), str):
            found.readings[ours] = Reading(values[key], key, where)
    if values.get("accept_length_model") == "measured_per_k":
        notes.append("the profile holds for its own γ only, as it says itself (measured_per_k)")
    return ObservedRun(FORMAT, where, found.readings, None, None, tuple(notes))


def _by_length(found: Collector, values: object, key: str) -> dict[int, float]:
    """Numbers by acceptance length (≥ 1); JSON keys are text."""
    if not isinstance(values, dict):
        found.problem(key, "must be a mapping from acceptance length to a number", values)
        return {}
    result = {}
    for length, value in values.items():
        good = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value) and value >= 0
        whole = str(length).isdecimal() and len(str(length)) < 5
        if not whole or not 1 <= int(length) <= 1024 or not good:
            found.problem(key, "must have whole lengths from 1 on and finite numbers", f"{length}: {value}"[:60])
        else:
            result[int(length)] = float(value)
    return result


def _rates(found: Collector, rates: tuple[float, ...], field: str, conversion: str) -> None:
    if not all(math.isfinite(rate) and 0 <= rate <= 1 for rate in rates):
        found.problem(field, "must be probabilities from 0 to 1", list(rates))
    elif any(later > before + 1e-9 for before, later in pairwise(rates)):
        found.problem(field, "must never rise: these are conditional rates or by another key", list(rates))
    elif rates:
        found.readings["acceptance_rates_per_position"] = Reading(rates, field, found.where, conversion)
