"""Break-even by batch, and one prediction, as text for the console and for Markdown."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from simulator.cost.spread import Estimate
from simulator.draft_tree import Tree
from simulator.plots.words import interval
from simulator.prediction import NO_VERDICT, Prediction
from simulator.printed_numbers import milliseconds, significant, times
from simulator.questions.break_even import BreakEven, BreakEvenPoint
from simulator.questions.method_map import MethodMap
from simulator.simulation import cause_in_words

NOTHING = "–"


def break_even_tables(answer: BreakEven) -> Iterator[tuple[str, list[str], list[list[str]]]]:
    """(title, header, rows) for each context: α* for every γ and τ* for every tree against batch, then the best of them where
    acceptance is stated.

    In brackets: the KV cache does not hold that batch. A dash: even accepting every draft would lose.
    """
    for context in answer.contexts:
        trees = {point.tree is not None for point in answer.points}
        what = "Break-even acceptance length τ*" if trees == {True} else "Break-even acceptance rate α*"
        title = f"{what}{', of trees length τ*,' if len(trees) == 2 else ''} at context {context:,} tokens"
        yield title, ["batch", *map(str, answer.batches)], _context_rows(answer, context)


def break_even_notes(answer: BreakEven) -> list[str]:
    """How to read the tables, as far as they need it."""
    notes = []
    if any(not point.fits for point in answer.points):
        notes.append("In brackets: the KV cache does not hold that batch.")
    if any(_needed(point) == NOTHING for point in answer.points):
        notes.append("A dash: even accepting every draft would lose.")
    return notes


def break_even_sentence(answer: BreakEven, methods: MethodMap | None = None) -> str:
    """Up to which batch the scenario's acceptance wins at its own context, for the best γ of those asked for; beside a map of
    several methods, of which of them that is."""
    said = _break_even_sentence(answer)
    return said if methods is None else f"{methods.scenario.methods[0][0]} alone: {said[0].lower()}{said[1:]}"


def _break_even_sentence(answer: BreakEven) -> str:
    shape, row = rows_asked_for(answer)
    if shape is None:
        return "No acceptance is stated: speculation wins where the acceptance is above the numbers below."
    sure = [point.batch for point in row if (point.speedup_low or 0.0) > 1]
    likely = [point.batch for point in row if (point.speedup or 0.0) > 1]
    where = f"at the workload's mean context of {answer.own_context:,} tokens, {shape.name}"
    if not likely:
        return f"Speculation loses at every batch that fits, {where}."
    tried = [point.batch for point in row]
    reach = _batches(likely, tried, "batch ") + (", the largest that fits" if likely[-1] == tried[-1] else "")
    certain = f" (certain {_batches(sure, tried)})" if sure and sure != likely else "" if sure else " (nowhere certain)"
    return f"Speculation wins {reach}{certain}, {where}, batches tried in powers of two."


def _batches(some: list[int], tried: list[int], word: str = "") -> str:
    """``up to 16`` where it is every one up to there, else ``at 1 and 4 to 16``: a mixture of experts may lose alone and win in
    company, and kernels change at certain numbers of rows."""
    if some == tried[: len(some)]:
        return f"up to {word}{some[-1]}"
    runs: list[list[int]] = []
    for before, batch in zip([0, *tried], tried, strict=False):
        if batch in some:
            if runs and runs[-1][-1] == before:
                runs[-1].append(batch)
            else:
                runs.append([batch])
    *others, last = [part for run in runs for part in ([f"{run[0]} to {run[-1]}"] if len(run) > 2 else map(str, run))]
    return f"at {word}{', '.join(others)}{' and ' if others else ''}{last}"


def rows_asked_for(answer: BreakEven) -> tuple[Tree | None, list[BreakEvenPoint]]:
    """Of the shapes that the scenario compares the one with the largest speedup at its own context, and its points that fit;
    (None, []) where acceptance is left open."""
    rows: dict[Tree, list[BreakEvenPoint]] = {}
    for point in answer.points:
        own = point.context_tokens == answer.own_context and point.fits and point.speedup is not None
        if own and point.shape in answer.scenario.shapes:
            rows.setdefault(point.shape, []).append(point)
    if not rows:
        return None, []
    shape = max(rows, key=lambda each: max(point.speedup or 0.0 for point in rows[each]))
    return shape, rows[shape]


def _context_rows(answer: BreakEven, context: int) -> list[list[str]]:
    points = {(point.shape, point.batch): point for point in answer.points if point.context_tokens == context}
    rows, chains = [], any(shape.is_chain for shape, _ in points)
    for shape in dict.fromkeys(shape for shape, _ in points):
        row = [shape.name if shape.is_chain else f"{shape.name}, τ*" if chains else shape.name.removeprefix("tree ")]
        for batch in answer.batches:
            row.append(_bracketed(_needed(points[shape, batch]), points[shape, batch].fits))
        rows.append(row)
    best = {cell.batch: cell for cell in answer.best if cell.context_tokens == context}
    if best:
        rows.append(
            [
                "best γ" if all(shape.is_chain for shape, _ in points) else "best",
                *(_bracketed(best[batch].name, best[batch].fits) for batch in answer.batches),
            ]
        )
        rows.append(["speedup", *(_bracketed(times(best[batch].speedup), best[batch].fits) for batch in answer.batches)])
    for label in dict.fromkeys(choice.label for choice in answer.policies):
        drafted = [each for each in answer.policies if (each.label, each.context_tokens) == (label, context)]
        rows.append([label, *(str(each.num_speculative_tokens or "off") for each in drafted)])
        rows.append(["speedup", *(times(each.speedup) for each in drafted)])
    return rows


def _bracketed(text: str, fits: bool) -> str:
    return text if fits else f"({text})"


def _needed(point: BreakEvenPoint) -> str:
    """α* of a chain, τ* of a tree; a dash where even accepting every draft would lose."""
    if point.tree is not None:
        return NOTHING if point.r > point.shape.depth + 1 else significant(point.r)
    rate = point.break_even_acceptance_rate
    return NOTHING if rate is None else f"{rate:.2f}"


def prediction_sentence(answer: Prediction) -> str:
    """The answer at one operating point; without acceptance the break-even is the answer."""
    if answer.status != "ok":
        return f"Not supported: {answer.reason}"
    if answer.speedup is None or answer.speedup_low is None or answer.speedup_high is None:
        served = not any(warning.startswith(NO_VERDICT) for warning in answer.warnings)
        so = "Speculation wins" if served else "It cannot be served so; if it could, speculation would win"
        return f"{so} {_from(answer)}."
    bounds = interval(Estimate(answer.speedup, answer.speedup_low, answer.speedup_high))
    shown = f"speedup {times(answer.speedup)} (80 % interval {bounds})"
    if not answer.verdict:
        return f"It cannot be served so; if it could: {shown}; speculation wins {_from(answer)}."
    if answer.verdict == "close":
        return f"Too close to call: {shown}; speculation wins {_from(answer)}."
    return f"Speculation {'wins' if answer.verdict == 'win' else 'loses'}: {shown}; it wins {_from(answer)}."


def _from(answer: Prediction) -> str:
    rate, length = answer.break_even_acceptance_rate, answer.break_even_acceptance_length or 0.0
    if length > (answer.largest_acceptance_length or math.inf):
        return f"at no acceptance: it would take τ = {significant(length)}"
    at = "" if rate is None else f", α* = {rate:.2f}"
    return f"from τ = {significant(length)} tokens per round{at}"


def prediction_rows(answer: Prediction) -> list[list[str]]:
    """(quantity, value, 80 % interval) of one operating point; what cannot be said is left out."""
    rows = [
        _row("speedup", answer.speedup, answer.speedup_low, answer.speedup_high, times),
        _row("τ, tokens per round", answer.mean_acceptance_length),
        _row("R, round in plain steps = break-even τ", answer.r, answer.r_low, answer.r_high),
        _row("α*, break-even acceptance rate", answer.break_even_acceptance_rate),
        _row("plain step", answer.plain_step_s, show=milliseconds),
        _row("round", answer.round_s, show=milliseconds),
        _row("verification in plain steps", answer.verification_cost_ratio),
        _row("drafting, share of a round (%)", None if answer.draft_share is None else 100 * answer.draft_share),
        _row("textbook formula (verification free)", answer.textbook_speedup, show=times),
        ["mostly bound by", answer.bound or NOTHING, ""],
    ]
    rows += [[f"R - 1 from {cause_in_words(name)}", f"{share:+.2f}", ""] for name, share in answer.causes[:2]]
    return [row for row in rows if row[1] != NOTHING]


def _row(
    name: str,
    value: float | None,
    low: float | None = None,
    high: float | None = None,
    show: Callable[[float], str] = significant,
) -> list[str]:
    bounds = "" if low is None or high is None or value is None else interval(Estimate(value, low, high))
    return [name, NOTHING if value is None else show(value), bounds]
