"""A schedule as a page: whether to vary γ with the batch, the map, what to paste into each engine."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.plots.words import batches_in_words, short_name, speculation_name
from simulator.printed_numbers import times
from simulator.questions.schedule import ScheduleAnswer
from simulator.reports.exports import engine_of, snippet_blocks
from simulator.reports.page import Block, Fact, Figure, Page, Section, Table, Text, Verdict
from simulator.reports.schedule import (
    fixed_table,
    fixed_title,
    gain_in_words,
    methods_table,
    schedule_map,
    schedule_notes,
    schedule_sentences,
    schedule_snippets,
)
from simulator.reports.sources import closing_sections, closing_words

MAP = Figure(
    "schedule", "The number of speculative tokens to run at over batch and context, with the decode speedup of each cell"
)


def schedule_page(answer: ScheduleAnswer) -> Page:
    """The report of a schedule."""
    scenario, deployment = answer.scenario, answer.scenario.deployment
    outcome = "vary γ with the batch" if answer.needed else "leave speculation off" if answer.off else "no schedule needed"
    if answer.others and not answer.off:
        outcome = f"{answer.method}, {outcome}"
    number = times(answer.gain.value) if answer.gain is not None and answer.needed else ""
    fixed = "no speculation" if answer.fastest_fixed == 0 else f"γ = {answer.fastest_fixed}"
    verdict = Verdict(
        outcome, "good" if answer.needed else "neutral", schedule_sentences(answer), number,
        f"better {answer.metric} than with {fixed} alone, simulated on seeds that chose neither" if number else "",
        answer.gain if number else None, tuple(_facts(answer)),
    )  # fmt: skip
    maps = [Table.of(*schedule_map(each), each.method) for each in answer.methods]
    sections = (
        Section("Settings to use", tuple(_settings(answer))),
        *([Section("Methods beside each other", (Table.of(*methods_table(answer)),))] if answer.others else []),
        Section("Best γ by batch and context", (MAP, *maps, *map(Text, schedule_notes(answer)))),
        Section("What each fixed γ gains", (Table.of(*fixed_table(answer), fixed_title(answer)),)),
        *closing_sections(scenario, answer.remarks),
    )
    asked = (
        f"{short_name(deployment.target.name)} with {speculation_name(scenario)} on {scenario.devices} "
        f"under {deployment.engine.name}."
    )
    return Page("schedule", f"{scenario.name}: {outcome}", asked, verdict, sections, closing_words(scenario))


def _facts(answer: ScheduleAnswer) -> Iterator[Fact]:
    if answer.needed:
        for first, last, gamma in answer.table:
            yield Fact("off" if gamma == 0 else f"γ = {gamma}", f"at batch {batches_in_words(first, last)}")
    else:
        gained = "" if answer.off else f"{answer.metric}, {gain_in_words(answer.over_none)} against none"
        yield Fact("off" if answer.best_fixed == 0 else f"γ = {answer.best_fixed}", "at every batch", gained)


def _settings(answer: ScheduleAnswer) -> Iterator[Block]:
    for engine, found, reason in schedule_snippets(answer):
        if reason:
            yield Text(f"{engine}: {reason}.")
        yield from snippet_blocks(found, engine_of(answer.scenario))
