"""A capacity answer as a page: the rate that is carried, the devices for the demand, latency against rate."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.plots.words import devices_of, drafting_name, interval, short_name, speculation_name
from simulator.printed_numbers import significant, times
from simulator.questions.capacity import CapacityAnswer, CapacityRow
from simulator.reports.best_for import FILLED
from simulator.reports.capacity import (
    capacity_doubts,
    capacity_notes,
    capacity_sentences,
    capacity_tables,
    devices_in_words,
    leave_off,
    settings_server,
)
from simulator.reports.exports import settings_blocks
from simulator.reports.page import Block, Fact, Page, Section, Table, Text, Tone, Verdict
from simulator.reports.run_page import BY_RATE
from simulator.reports.sources import closing_sections, closing_words


def capacity_page(answer: CapacityAnswer) -> Page:
    """The report of a capacity question."""
    scenario, deployment = answer.scenario, answer.scenario.deployment
    rates, *fleets = (Table.of(*table) for table in capacity_tables(answer))
    notes = [Text(note) for note in capacity_notes(answer)]
    sections = [
        Section("Settings to use", tuple(_settings(answer))),
        Section("Rates that are carried", (BY_RATE, rates, *notes)),
        *(Section(f"Devices for {significant(answer.demand_per_s)} requests per second", (table,)) for table in fleets),
        *closing_sections(scenario, (*capacity_doubts(answer), *answer.warnings)),
    ]
    drafts = f" and {speculation_name(scenario)}" if deployment.speculative else ""
    asked = (
        f"{short_name(deployment.target.name)}{drafts} on {devices_of(deployment)} under {deployment.engine.name}; "
        f"{answer.mean_prompt_tokens:,.0f} prompt and {answer.mean_output_tokens:,.0f} output tokens on average. Each variant "
        "serves the same requests at every rate."
    )
    verdict = _verdict(answer)
    title = f"{scenario.name}: {verdict.outcome}"
    return Page("capacity", title, asked, verdict, tuple(sections), closing_words(scenario))


def _settings(answer: CapacityAnswer) -> Iterator[Block]:
    """What to paste into a server, and how many of it."""
    server, best = settings_server(answer), answer.best
    if server is None:
        yield Text(leave_off(answer))
        return
    if best is None or best is answer.plain or best.verdict == "close":
        yield Text("No gain is certain; the settings below are those that carry most of all that drafts.")
    elif not _filled(best):
        yield Text("These are for filled copies; at this demand set what run names.")
    yield from settings_blocks(server)


def _verdict(answer: CapacityAnswer) -> Verdict:
    sentences, best = capacity_sentences(answer), answer.best
    if best is None:
        return Verdict("no rate keeps the service level", "bad", sentences)
    top = answer.drafting or best
    outcome, tone = _outcome(answer, top)
    rate = significant(top.rate_per_s or 0.0)
    number, number_is = rate, f"requests per second with {top.label}"
    if top.gain is not None and answer.plain.rate_per_s is not None:
        how = drafting_name(answer.scenario, top.label)
        number = times(top.gain.value)
        number_is = f"the requests per second that are carried without speculation: {rate} with {how}"
    return Verdict(outcome, tone, sentences, number, number_is, top.gain, tuple(_facts(answer, top)), _advice(answer, best))


def _advice(answer: CapacityAnswer, best: CapacityRow) -> str:
    """How many devices, and with which setting: what carries most is not what is quickest on copies that are hardly filled."""
    if best.fleet is None:
        return ""
    devices, named = f"{devices_in_words(best.fleet.devices)} for this demand", _name(answer, best)
    if answer.drafting is None or _filled(best):
        return f"Serve with {named}: {devices}."
    return f"{devices}, filled to {100 * best.fleet.load:.0f} %: set what run names. Filled copies carry most with {named}."


def _filled(best: CapacityRow) -> bool:
    """Whether the demand, where there is one, fills copies so far that what carries most is what to set."""
    return best.fleet is None or best.fleet.load >= FILLED


def _name(answer: CapacityAnswer, row: CapacityRow) -> str:
    return row.label if row is answer.plain else drafting_name(answer.scenario, row.label)


def _outcome(answer: CapacityAnswer, top: CapacityRow) -> tuple[str, Tone]:
    if top.verdict == "win":
        return "speculation raises capacity", "good"
    if top.verdict == "lose":
        return "speculation lowers capacity", "bad"
    if top.verdict == "close":
        return "no certain difference in capacity", "unsure"
    return ("capacity without speculation", "neutral") if top is answer.plain else ("only speculation keeps the level", "good")


def _facts(answer: CapacityAnswer, top: CapacityRow) -> Iterator[Fact]:
    if answer.plain.rate_per_s is not None and top is not answer.plain:
        rate = answer.plain.sustained.rate if answer.plain.sustained is not None else None
        yield Fact(significant(answer.plain.rate_per_s), "requests/s without speculation", "" if rate is None else interval(rate))
    if top.sustained is not None and top.sustained.rate is not None:
        bounds = f"{interval(top.sustained.rate)}, limited by {top.sustained.limited_by}"
        yield Fact(significant(top.sustained.rate.value), f"requests/s with {top.label}", bounds)
    for row in dict.fromkeys((top, answer.plain)):
        if row.fleet is not None:
            cost = row.fleet.cost_per_million_tokens
            priced = "" if cost is None else f"{significant(cost)} per million tokens"
            yield Fact(f"{row.fleet.devices:,}", f"devices for {significant(answer.demand_per_s)}/s with {row.label}", priced)
