"""A capacity answer in words, as a table and as data."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simulator.cost.spread import Estimate
from simulator.planning import BUSY_POWER_SHARE, IDLE_POWER_SHARE, Fleet
from simulator.plots.words import drafting_name, interval
from simulator.printed_numbers import significant, times
from simulator.questions.capacity import CapacityAnswer, CapacityRow
from simulator.questions.sustained import FIRST, LoadPoint
from simulator.reports.best_for import best_for_capacity, tie_in_words
from simulator.reports.exports import exports_of, no_setting
from simulator.reports.summary import SCHEMA_VERSION, csv_text, ending, plain_data
from simulator.scenario import Scenario
from simulator.simulation import Server

NOTHING = "–"
Table = tuple[list[str], list[list[str]]]


def capacity_sentences(answer: CapacityAnswer) -> tuple[str, ...]:
    """The verdict first, then the fleet, what limits, and how it was found."""
    best, plain = answer.best, answer.plain
    if best is None:
        assert plain.sustained is not None
        assert plain.saturation is not None
        least = 100 * plain.sustained.points[0].rate_per_s / plain.saturation.value
        limit = plain.sustained.limited_by
        return (
            f"No rate keeps the service level: {limit} is exceeded even at {significant(least, 1)} % of what it finishes at "
            "most.",
        )
    found = [_verdict(answer), *_fleets(answer)]
    limited = best.sustained.limited_by if best.sustained is not None else ""
    within = _level(answer)
    number = f"{answer.repetitions} repetition{'s' if answer.repetitions > 1 else ''}"
    if answer.repetitions > FIRST:
        number = f"{FIRST} repetitions, or {answer.repetitions} where these do not tell,"
    method = (
        f"{number} of {answer.requests:,} requests at each rate, the same requests for every variant; warm-up left out; 80 % "
        "intervals by batch means."
    )
    point = None if best.sustained is None else best.sustained.at_rate
    if point is not None and point.weighted:
        method += " Requests are weighted by the known law of the waits for so few slots."
    return (*found, f"Limited by {limited}{within}.", *_tie(answer), *best_for_capacity(answer), method)


def before_the_search(scenario: Scenario) -> list[str]:
    """What the answer will lack, known before it is searched for."""
    if not scenario.deployment.speculative:
        return ["no speculation is asked for: only the rate without it is searched for, and no setting can follow"]
    reasons = {method: no_setting(one) for method, one in scenario.methods}
    return [f"no setting for {method} will follow: {reason}" for method, reason in reasons.items() if reason]


def _verdict(answer: CapacityAnswer) -> str:
    plain, top = answer.plain, answer.drafting
    if top is None or top.gain is None or plain.rate_per_s is None:
        best = answer.best
        assert best is not None
        bounds = _bounds(best)
        alone = "" if len(answer.rows) == 1 else "; no other variant keeps the level"
        return f"{_sentence_case(best.label)} carries {_rate(best)} requests per second{bounds}{alone}."
    gain = top.gain
    how = drafting_name(answer.scenario, top.label)
    change = f"{_rate(top)} requests per second instead of {_rate(plain)}: {times(gain.value)} (80 % interval {interval(gain)})"
    if top.verdict == "close":
        return f"Too close to call: {how}, carries {change}."
    return f"Speculation {'wins' if top.verdict == 'win' else 'loses'} capacity: {how}, carries {change}."


def _tie(answer: CapacityAnswer) -> list[str]:
    """Why it is not the row that carries most that is taken."""
    top = answer.drafting
    if top is None or top.rate_per_s is None or answer.scenario.file.acceptance is None:
        return []
    taken, rate = top.server.shape, top.rate_per_s
    more = [row for row in answer.rows[1:] if (row.rate_per_s or 0.0) > rate and row.server.shape.nodes > taken.nodes]
    if not more:
        return []
    other = max(more, key=lambda row: row.rate_per_s or 0.0)
    chains = taken.is_chain and other.server.shape.is_chain and not answer.scenario.alternatives
    return [tie_in_words(other.label, top.label, chains)]


def _fleets(answer: CapacityAnswer) -> list[str]:
    planning, shown = answer.planning, []
    rows = [row for row in (answer.best, answer.plain) if row is not None and row.fleet is not None]
    for row in dict.fromkeys(rows):
        fleet = row.fleet
        assert fleet is not None
        text = f"{devices_in_words(fleet.devices)} ({fleet.copies:,} × {row.devices}{_at_low_end(row, answer)}) with {row.label}"
        if fleet.cost_per_hour is not None:
            text += f", {significant(fleet.cost_per_hour)} per hour"
        shown.append(text)
    if not shown:
        return []
    head_room = f"{100 * planning.head_room:.0f} % head-room"
    return [f"For {significant(answer.demand_per_s)} requests per second with {head_room}: {'; '.join(shown)}."]


def _at_low_end(row: CapacityRow, answer: CapacityAnswer) -> str:
    """The copies that the low end of the rate's interval asks for, where they are more."""
    assert row.fleet is not None
    rate = None if row.sustained is None else row.sustained.rate
    copies = 0 if rate is None else answer.planning.copies(answer.demand_per_s, rate.low)
    return f"; {copies:,} × {row.devices} at the low end of its rate" if copies > row.fleet.copies else ""


def devices_in_words(devices: int) -> str:
    """``1 device``, ``12 devices``."""
    return f"{devices:,} device{'s' if devices > 1 else ''}"


def _level(answer: CapacityAnswer) -> str:
    level = answer.scenario.file.service_level
    if level is None:
        return " (no service level is stated)"
    names = {"ttft": "TTFT", "tpot": "TPOT", "e2e": "end-to-end"}
    stated = [f"{names[metric]} p{percentile:.0f} ≤ {limit:g} s" for metric, percentile, limit in level.limits()]
    if answer.planning.good_share is not None:
        stated.append(f"{100 * answer.planning.good_share:g} % of requests within all limits")
    return f" (service level: {', '.join(stated)})"


def _rate(row: CapacityRow) -> str:
    return NOTHING if row.rate_per_s is None else significant(row.rate_per_s)


def _bounds(row: CapacityRow) -> str:
    rate = row.sustained.rate if row.sustained is not None else None
    return "" if rate is None else f" (80 % interval {interval(rate)})"


def _sentence_case(text: str) -> str:
    """γ is a symbol and stays as it is."""
    return text if text.startswith("γ") else text[:1].upper() + text[1:]


# --------------------------------------------------------------------------------------------------------------- table


def capacity_tables(answer: CapacityAnswer) -> tuple[Table, ...]:
    """(header, rows) twice, a row for each variant: rates by means and by simulation; the fleet for the demand, if any."""
    rates = ["variant", "by means", "simulated", "80 %", "gain", "verdict", "limited by"]
    priced = answer.planning.price_per_gpu_hour is not None
    fleets = ["variant", "copies", "devices", "load (%)", "J/token", *(["per hour", "per M tokens"] if priced else [])]
    planned = [row for row in answer.rows if row.fleet is not None]
    found: tuple[Table, ...] = ((rates, [_rates(row) for row in answer.rows]),)
    return (*found, (fleets, [_fleet(row, priced) for row in planned])) if planned else found


def _rates(row: CapacityRow) -> list[str]:
    rate = None if row.sustained is None else row.sustained.rate
    return [
        row.label,
        NOTHING if row.analytic is None else significant(row.analytic.rate_per_s),
        significant(rate.value) if rate is not None else "left out" if row.sustained is None else "none",
        NOTHING if rate is None else interval(rate),
        NOTHING if row.gain is None else times(row.gain.value),
        row.verdict or NOTHING,
        NOTHING if row.sustained is None else row.sustained.limited_by,
    ]


def _fleet(row: CapacityRow, priced: bool) -> list[str]:
    fleet = row.fleet
    assert fleet is not None
    costs = (fleet.cost_per_hour, fleet.cost_per_million_tokens) if priced else ()
    joules = NOTHING if fleet.energy_per_token_j is None else interval(Estimate(*fleet.energy_per_token_j))
    return [row.label, f"{fleet.copies:,}", f"{fleet.devices:,}", f"{100 * fleet.load:.0f}", joules, *map(_number, costs)]


def _number(value: float | None) -> str:
    return NOTHING if value is None else significant(value)


def capacity_notes(answer: CapacityAnswer) -> tuple[str, ...]:
    """What the numbers mean and do not; then why a run may be too short to tell."""
    notes = ["Rates are requests per second of one copy. By means: no queues and no spread between requests, so mostly too high."]
    level = answer.scenario.file.service_level
    if level is not None and {metric for metric, _, _ in level.limits()} == {"tpot"}:
        notes.append(
            "The level limits the time per token alone, and not waiting: fewer requests at once (limits.max_num_seqs) keep it at "
            "higher rates, at the cost of the wait."
        )
    if any(row.fleet is not None and row.fleet.energy_per_token_j is not None for row in answer.rows):
        busy, idle = ([f"{100 * share:.0f}" for share in shares] for shares in (BUSY_POWER_SHARE, IDLE_POWER_SHARE))
        notes.append(
            f"J/token is an estimate, not a measurement: a device draws {busy[1]} to {busy[2]} % of its TDP while busy and "
            f"{idle[1]} to {idle[2]} % while idle."
        )
    return tuple(notes)


def capacity_doubts(answer: CapacityAnswer) -> tuple[str, ...]:
    """Why runs may be too short to tell: each reason once, with the variants that it holds for."""
    simulated = [row for row in answer.rows if row.sustained is not None]
    reasons: dict[str, list[str]] = {}
    for row in simulated:
        for doubt in () if row.sustained is None else row.sustained.doubts:
            reasons.setdefault(doubt, []).append(row.label)
    everywhere = len(simulated) if len(simulated) > 1 else 0
    return tuple(
        f"{'every variant' if len(labels) == everywhere else '; '.join(labels)}: {doubt}" for doubt, labels in reasons.items()
    )


def settings_server(answer: CapacityAnswer) -> Server | None:
    """What to set: the way to draft that carries most, where it carries at least as much as none."""
    top = answer.drafting
    return None if top is None or top is not answer.best else top.server


def leave_off(answer: CapacityAnswer) -> str:
    """What is said instead of settings."""
    if answer.best is None:
        return "Nothing keeps the service level as it is: no setting is recommended."
    return "Leave speculation off: it carries no more." if len(answer.rows) > 1 else "The scenario asks for no speculation."


# ---------------------------------------------------------------------------------------------------------------- data


def capacity_summary(answer: CapacityAnswer) -> dict[str, Any]:
    """Everything that `capacity` says, verdict first. Same scenario and seed, same content."""
    best = answer.best
    summary = {
        "schema_version": SCHEMA_VERSION,
        "verdict": {
            "sentence": " ".join(capacity_sentences(answer)),
            "best": None if best is None else best.label,
            "doubts": capacity_doubts(answer),
        },
        "service_level": answer.scenario.file.service_level and answer.scenario.file.service_level.model_dump(exclude_none=True),
        "planning": answer.planning.model_dump(exclude_none=True),
        "own_rate_per_s": answer.own_rate_per_s,
        "demand_per_s": answer.demand_per_s,
        "mean_prompt_tokens": answer.mean_prompt_tokens,
        "mean_output_tokens": answer.mean_output_tokens,
        "requests": answer.requests,
        "repetitions": answer.repetitions,
        "variants": [_variant(row) for row in answer.rows],
        "exports": _exports(answer),
        "notes": capacity_notes(answer),
        **ending(answer.scenario, answer.warnings),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def _exports(answer: CapacityAnswer) -> dict[str, Any]:
    """The snippets for each engine, or what is said instead."""
    server = settings_server(answer)
    if server is None:
        return {"engines": [], "remark": leave_off(answer)}
    found, said = exports_of(server)
    return {"engines": found, "remark": said}


def _variant(row: CapacityRow) -> dict[str, Any]:
    sustained = row.sustained
    return {
        "label": row.label,
        "method": row.server.deployment.method,
        "devices": row.devices,
        "by_means": row.analytic,
        "saturation_per_s": row.saturation,
        "simulated": sustained is not None,
        "rate_per_s": None if sustained is None else sustained.rate,
        "limited_by": None if sustained is None else sustained.limited_by,
        "gain": row.gain,
        "verdict": row.verdict,
        "fleet": None if row.fleet is None else {**asdict(row.fleet), "energy_per_token_j": _joules(row.fleet)},
        "doubts": () if sustained is None else sustained.doubts,
        "points": [] if sustained is None else [_point(point) for point in sustained.points],
    }


def _joules(fleet: Fleet) -> Estimate | None:
    return None if fleet.energy_per_token_j is None else Estimate(*fleet.energy_per_token_j)


def _point(point: LoadPoint) -> dict[str, Any]:
    return {
        "rate_per_s": point.rate_per_s,
        "sustained": point.sustained,
        "exceeded": {each.limit.name: {"share": each.share, "standard_error": each.standard_error} for each in point.exceeded},
        "ttft_s": point.ttft_s,
        "tpot_s": point.tpot_s,
        "e2e_latency_s": point.e2e_latency_s,
        "good_share": point.good_share,
        "weighted": point.weighted,
        "repetitions": point.repetitions,
        "output_tokens_per_s": point.output_tokens_per_s,
        "busy_fraction": point.busy_fraction,
        "mean_batch": point.mean_batch,
        "preemptions": point.preemptions,
    }


def capacity_csv(answer: CapacityAnswer) -> str:
    """One row for each variant and simulated rate: the latency-against-rate curves."""
    rows = []
    for row in answer.rows:
        for point in () if row.sustained is None else row.sustained.points:
            cells: dict[str, Any] = {"variant": row.label, "rate_per_s": point.rate_per_s, "sustained": point.sustained}
            for name in ("ttft_s", "tpot_s", "e2e_latency_s"):
                found = getattr(point, name)
                for statistic in ("mean", "p50", "p90", "p95", "p99"):
                    cells[f"{name.removesuffix('_s')}_{statistic}_s"] = None if found is None else getattr(found, statistic)
            cells |= {"good_share": point.good_share, "mean_batch": point.mean_batch, "busy_fraction": point.busy_fraction}
            rows.append(cells)
    return csv_text(rows)
