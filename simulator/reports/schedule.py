"""A schedule in words, as a map, and as the settings that engines take."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.cost.spread import Estimate
from simulator.draft_policy import ByBatch
from simulator.draft_tree import Tree
from simulator.interchange.engine_settings import VARYING_GAMMA, NotExpressibleError, Snippet, snippets
from simulator.plots.words import interval
from simulator.printed_numbers import times
from simulator.questions.schedule import Range, ScheduleAnswer
from simulator.reports.best_for import best_for_schedule, tie_in_words
from simulator.reports.exports import setting_for
from simulator.reports.summary import SCHEMA_VERSION, csv_text, ending, plain_data
from simulator.simulation import TIE

# Engines that vary γ with the batch, or switch it off, by a setting.
ENGINES = ("vllm", "sglang", "trtllm")
Table = tuple[list[str], list[list[str]]]


def schedule_sentences(answer: ScheduleAnswer) -> tuple[str, ...]:
    """The verdict first: whether to vary γ, and what the simulation says of it."""
    fixed, fastest = (f"γ = {gamma}" if gamma else "no speculation" for gamma in (answer.best_fixed, answer.fastest_fixed))
    tie = [tie_in_words(fastest, fixed, chains=True)] if answer.best_fixed != answer.fastest_fixed else []
    best_for = best_for_schedule(answer)
    if answer.gain is None:
        always = answer.table[0][2]
        what = "no draft" if always == 0 else fixed if always == answer.best_fixed else f"one γ, within {100 * TIE:.0f} %,"
        first = f"No schedule needed: {what} is best at every batch, at a context of {answer.own_context:,} tokens."
        return (first, *tie, best_for)
    gain, better = answer.gain, answer.gain.value >= 1
    shown = gain if better else Estimate(1 / gain.value, 1 / gain.high, 1 / gain.low)
    held = (
        f"{answer.metric} {times(shown.value)} {'better' if better else 'worse'} than with {fastest} (80 % interval "
        f"{interval(shown)}), simulated on {len(answer.held_out_seeds)} seeds that chose neither"
    )
    if answer.needed:
        return (f"Vary γ with the batch: {held}.", _words(answer.table), best_for)
    why = "the table, chosen point by point, loses on these arrivals" if answer.worse else "what the table gains is below noise"
    return (f"No schedule needed: {why}: {held}.", *tie, best_for, f"For the record: {_words(answer.table)}")


def _words(table: tuple[Range, ...]) -> str:
    parts = [
        f"{'no drafts' if gamma == 0 else f'γ = {gamma}'} at batch {first}{f' to {last}' if last > first else ''}"
        for first, last, gamma in table
    ]
    return f"{', '.join(parts)}."


def schedule_map(answer: ScheduleAnswer) -> Table:
    """The smoothed γ by batch and context. In brackets: the KV cache does not hold that batch; with a star: past the largest
    captured graph."""
    cells = {(cell.context_tokens, cell.batch): cell for cell in answer.cells}
    rows = []
    for context in answer.contexts:
        row = [f"{context:,}" + (" (own)" if context == answer.own_context else "")]
        for batch in answer.batches:
            cell = cells[context, batch]
            text = ("off" if cell.num_speculative_tokens == 0 else str(cell.num_speculative_tokens)) + "*" * (
                cell.captured is False
            )
            row.append(text if cell.fits else f"({text})")
        rows.append(row)
    return ["context \\ batch", *map(str, answer.batches)], rows


def fixed_table(answer: ScheduleAnswer) -> Table:
    """What each fixed γ gains over none, on the scenario's own seed."""
    header = ["fixed γ", *("none" if gamma == 0 else str(gamma) for gamma, _ in answer.fixed_gains)]
    return header, [[f"{answer.metric}, gain", *(times(gain) for _, gain in answer.fixed_gains)]]


def schedule_snippets(answer: ScheduleAnswer) -> Iterator[tuple[str, tuple[Snippet, ...], str]]:
    """(engine, what to paste, why there is nothing) for each engine that takes such a setting: the table where it is worth it,
    else the best fixed γ."""
    for engine in ENGINES:
        try:
            yield engine, _snippets(answer, engine), ""
        except NotExpressibleError as reason:
            yield engine, (), str(reason)


def _snippets(answer: ScheduleAnswer, engine: str) -> tuple[Snippet, ...]:
    largest = max(gamma for _, _, gamma in answer.table)
    if not answer.needed:
        if answer.best_fixed == 0:
            raise NotExpressibleError("leave speculation off")
        return snippets(engine, setting_for(answer.scenario, Tree.chain(answer.best_fixed)))
    setting = setting_for(answer.scenario, Tree.chain(largest), ByBatch(table=answer.table))
    if engine == "trtllm":  # one γ, off above a batch
        on = [last for _, last, gamma in answer.table if gamma]
        off_above = on[-1] if answer.table[-1][2] == 0 else None
        gamma = answer.best_fixed or largest
        table = None if off_above is None else ((1, off_above, gamma),)
        setting = replace(setting, num_speculative_tokens=gamma, by_batch=table)
    return snippets(engine, setting)


def schedule_notes(answer: ScheduleAnswer) -> tuple[str, ...]:
    """How to read the map and the settings."""
    notes = [
        f"Each cell is within {100 * TIE:.0f} % of the most tokens per second: from the largest batch down the smallest such γ, "
        "kept for as long as it is one, so that few rows do. Off is a plain step beside the drafter."
    ]
    if any(cell.captured is False for cell in answer.cells):
        notes.append("*: the round is larger than the engine's largest captured graph and runs eagerly.")
    if any(not cell.fits for cell in answer.cells):
        notes.append("In brackets: the KV cache does not hold that batch.")
    if answer.needed:
        notes.append(f"{VARYING_GAMMA}.")
        notes.append("TensorRT-LLM takes one γ and the batch above which it is off (max_concurrency), not the table.")
    return tuple(notes)


def schedule_summary(answer: ScheduleAnswer) -> dict[str, Any]:
    """Everything that `schedule` says."""
    summary = {
        "schema_version": SCHEMA_VERSION,
        "verdict": {"needed": answer.needed, "sentence": " ".join(schedule_sentences(answer))},
        "own_context_tokens": answer.own_context,
        "table": answer.table,
        "best_fixed": answer.best_fixed,
        "fastest_fixed": answer.fastest_fixed,
        "metric": answer.metric,
        "fixed_gains": {str(gamma): gain for gamma, gain in answer.fixed_gains},
        "gain_over_best_fixed": answer.gain,
        "held_out_seeds": answer.held_out_seeds,
        "map": answer.cells,
        "settings": [
            {"engine": engine, "snippets": found, "reason": reason or None} for engine, found, reason in schedule_snippets(answer)
        ],
        **ending(answer.scenario, answer.warnings),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def schedule_csv(answer: ScheduleAnswer) -> str:
    """The map, one row for each batch and context."""
    return csv_text([plain_data(cell) for cell in answer.cells])
