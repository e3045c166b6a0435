"""A comparison as a page: the fastest, times and gains of each alternative, the memory that speculation takes."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.plots.comparison import AXIS_WORDS, served
from simulator.plots.words import interval, short_name, speculation_name
from simulator.printed_numbers import times
from simulator.questions.comparison import ComparedScenarios
from simulator.reports.comparison import comparison_notes, comparison_sentence, comparison_table, memory_table, range_of
from simulator.reports.page import Bullets, Fact, Figure, Page, Section, Table, Text, Verdict
from simulator.reports.sources import closing_sections, closing_words

TIMES = Figure(
    "comparison", "Mean time per output token of each alternative, without and with speculation, the gain's interval as a bar"
)


def comparison_page(answer: ComparedScenarios) -> Page:
    """The report of a comparison."""
    scenario, deployment = answer.scenario, answer.scenario.deployment
    header, memory = memory_table(answer)
    by = AXIS_WORDS[answer.axis]
    reading = "Gain: time without over time with speculation, of the same alternative, with its 80 % interval. Above 1 is better."
    notes = [note for note in comparison_notes(answer) if note not in scenario.warnings]
    sections = (
        Section("Time per output token", (TIMES, Table.of(*comparison_table(answer)), Text(reading))),
        *((Section("Memory taken", (Table.of(header, memory),)),) if memory else ()),
        *((Section("Mind", (Bullets(tuple(notes)),)),) if notes else ()),
        *closing_sections(scenario, scenario.warnings),
    )
    asked = (
        f"{short_name(deployment.target.name)} with {speculation_name(scenario)} on {scenario.devices} under "
        f"{deployment.engine.name}, otherwise by {by}. Every alternative serves the same requests."
    )
    verdict = Verdict(f"compared by {by}", "neutral", (comparison_sentence(answer),), facts=tuple(_facts(answer)))
    return Page("compare", f"{scenario.name}: compared by {by}", asked, verdict, sections, closing_words(scenario))


def _facts(answer: ComparedScenarios) -> Iterator[Fact]:
    for row in served(answer)[:4]:
        assert row.gain is not None
        bounds = f"gain {times(row.gain.value)} ({interval(row.gain)})"
        yield Fact(f"{range_of(tuple(1e3 * seconds for seconds in row.tpot_s))} ms", f"per output token, {row.name}", bounds)
