"""The break-even question as a page: up to which batch speculation wins, the acceptance it needs, the γ to run at."""

from __future__ import annotations

from collections.abc import Iterator

from simulator.plots.words import short_acceptance_source, speculation_name
from simulator.printed_numbers import significant, times
from simulator.questions.break_even import BreakEven, BreakEvenPoint
from simulator.questions.method_map import MethodMap
from simulator.reports.method_map import method_map_blocks
from simulator.reports.page import Fact, Page, Section, Table, Text, Tone, Verdict
from simulator.reports.run_page import BEST_GAMMA, BREAK_EVEN, BREAK_EVEN_LENGTH
from simulator.reports.sources import closing_sections, closing_words
from simulator.reports.tables import break_even_sentence, break_even_tables, rows_asked_for


def break_even_page(answer: BreakEven, methods: MethodMap | None = None) -> Page:
    """α* against batch for every γ, τ* for every tree, one table per context. methods: the best by batch and context."""
    scenario = answer.scenario
    trees = any(point.tree is not None for point in answer.points)
    reading = (
        "Speculation gains where the acceptance rate α is above the number shown. A dash: even accepting every draft would lose. "
        "In brackets: the KV cache does not hold that batch. Decode only, all sequences at the same context."
        + (" Rows of τ* show the tokens per round that a tree (steps/width/nodes) has to yield." if trees else "")
    )
    tables = [Table.of(header, rows, title) for title, header, rows in break_even_tables(answer)]
    sections = (
        Section("What it takes", (BREAK_EVEN, BREAK_EVEN_LENGTH, BEST_GAMMA)),
        *(() if methods is None else (Section("Best method by batch and context", method_map_blocks(methods)),)),
        Section("Break-even tables", (Text(reading), *tables)),
        *closing_sections(scenario, answer.warnings),
    )
    title = f"{scenario.name}: break-even acceptance of {speculation_name(scenario)}"
    asked = (
        f"Batches {answer.batches[0]} to {answer.batches[-1]} and contexts of "
        f"{', '.join(f'{context:,}' for context in answer.contexts)} tokens on {scenario.devices} under "
        f"{scenario.deployment.engine.name}. Acceptance: {short_acceptance_source(scenario)}."
    )
    return Page("break-even", title, asked, _verdict(answer, methods), sections, closing_words(scenario))


def _verdict(answer: BreakEven, methods: MethodMap | None) -> Verdict:
    sentence = break_even_sentence(answer, methods)
    shape, row = rows_asked_for(answer)
    if shape is None:
        return Verdict("break-even", "neutral", (sentence,), facts=tuple(_needs(_cheapest(answer))))
    wins = [point.batch for point in row if (point.speedup or 0.0) > 1]
    outcome, tone = _outcome(row)
    # Where the wins do not begin at batch 1 only the sentence says which they are.
    from_one = wins == [point.batch for point in row[: len(wins)]]
    number, number_is = (f"{max(wins)}", f"largest batch tried at which {shape.name} wins") if wins and from_one else ("", "")
    return Verdict(outcome, tone, (sentence,), number, number_is, facts=tuple(_needs(row)))


def _outcome(row: list[BreakEvenPoint]) -> tuple[str, Tone]:
    wins = [(point.speedup or 0.0) > 1 for point in row]
    if all(wins):
        sure = all((point.speedup_low or 0.0) > 1 for point in row)
        return "wins at every batch that fits", "good" if sure else "unsure"
    if not any(wins):
        return "loses at every batch that fits", "bad"
    # A mixture of experts may lose alone and win in company.
    return "wins at small batch" if wins == sorted(wins, reverse=True) else "wins at some batches", "unsure"


def _cheapest(answer: BreakEven) -> list[BreakEvenPoint]:
    """Without an acceptance: the first shape of the scenario at its own context."""
    asked = answer.scenario.shapes[0]
    own = [point for point in answer.points if point.context_tokens == answer.own_context and point.fits]
    return [point for point in own if point.shape == asked]


def _needs(row: list[BreakEvenPoint]) -> Iterator[Fact]:
    """What the smallest and the largest batch that fit need, beside what is yielded."""
    for point in dict.fromkeys((row[0], row[-1])) if row else ():
        rate, most = point.break_even_acceptance_rate, f"{point.shape.depth + 1} tokens"
        gained = "" if point.speedup is None else f"decode speedup {times(point.speedup)}"
        what = f"to break even at batch {point.batch}, {point.shape.name}"
        if point.r > point.shape.depth + 1:
            yield Fact("not possible", what, f"a round costs {significant(point.r)} plain steps and yields at most {most}")
        else:
            yield Fact(f"τ ≥ {significant(point.r)}" if rate is None else f"α ≥ {rate:.2f}", what, gained)
