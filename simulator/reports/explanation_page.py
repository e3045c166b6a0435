"""An explanation as a page: R against τ, the round term by term, what moves the verdict, what is unsure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from simulator.plots.words import devices_of, interval, short_name
from simulator.printed_numbers import significant, times
from simulator.questions.explanation import Explanation
from simulator.reports.explanation import doubt_sentences, doubt_table, explanation_sentences, explanation_table
from simulator.reports.page import Bullets, Fact, Page, Section, Table, Text, Tone, Verdict
from simulator.reports.run_page import ROUND, TORNADO
from simulator.reports.sensitivity import sensitivity_sentences, sensitivity_table
from simulator.reports.summary import versions

OUTCOMES: Mapping[str, tuple[str, Tone]] = {
    "win": ("speculation wins", "good"),
    "lose": ("speculation loses", "bad"),
    "close": ("too close to call", "unsure"),
    "": ("what it takes to break even", "neutral"),
}
NEVER_WINS: tuple[str, Tone] = ("loses at any acceptance", "bad")
NOT_SERVED: tuple[str, Tone] = ("cannot be served so", "bad")


def explanation_page(answer: Explanation, name: str = "") -> Page:
    """The report of an explanation. name: of its scenario, "" for an operating point from flags."""
    deployment, moved = answer.deployment, answer.sensitivity
    outcome, tone = _outcome(answer)
    first, *others = explanation_sentences(answer)
    number, number_is = f"R = {significant(answer.r.value)}", "plain steps a round costs: the tokens it must yield to break even"
    if answer.speedup is not None:
        number, number_is = times(answer.speedup.value), f"decode speedup with {deployment.method_name}, {answer.shape.name}"
    verdict = Verdict(outcome, tone, (first, *others), number, number_is, answer.speedup, tuple(_facts(answer)))
    sections = [
        Section("One round beside one plain step", (ROUND, Table.of(*explanation_table(answer)))),
        Section(
            "What moves the verdict",
            (TORNADO, Table.of(*sensitivity_table(moved)), *(Text(sentence) for sentence in sensitivity_sentences(moved))),
        ),
        Section("What is least certain", (Table.of(*doubt_table(answer)), *map(Text, doubt_sentences(answer)))),
    ]
    if answer.warnings:
        sections.append(Section("Warnings", (Bullets(answer.warnings),)))
    asked = (
        f"{short_name(deployment.target.name)} with {deployment.method_name} on {devices_of(deployment)} under "
        f"{deployment.engine.name}, at batch {answer.batch} and {answer.context_tokens:,.0f} tokens of context. Decode only."
    )
    used = ", ".join(f"{package} {number}" for package, number in versions().items())
    whose = name or short_name(deployment.target.name)
    title = f"{whose}: {'why ' if answer.verdict else ''}{outcome}"
    return Page("explain", title, asked, verdict, tuple(sections), f"Versions: {used}.")


def _outcome(answer: Explanation) -> tuple[str, Tone]:
    if answer.speedup is not None and not answer.verdict:
        return NOT_SERVED
    return NEVER_WINS if answer.speedup is None and answer.r.value > answer.shape.depth + 1 else OUTCOMES[answer.verdict]


def _facts(answer: Explanation) -> Iterator[Fact]:
    if answer.mean_acceptance_length is not None:
        yield Fact(significant(answer.mean_acceptance_length), "tokens per round, τ", "as measured or stated")
    yield Fact(significant(answer.r.value), "break-even, R", interval(answer.r))
    if answer.break_even_acceptance_rate is not None:
        yield Fact(f"{answer.break_even_acceptance_rate:.2f}", "break-even acceptance rate, α*")
    if answer.textbook_speedup is not None:
        yield Fact(times(answer.textbook_speedup), "by the textbook formula", "verification taken as free")
