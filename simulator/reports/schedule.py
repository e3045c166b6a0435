"""A schedule in words, as a map, and as the settings that engines take."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from simulator.cost.spread import Estimate
from simulator.draft_policy import ByBatch
from simulator.draft_tree import Tree
from simulator.interchange.engine_settings import ENGINES as EXPRESSIBLE
from simulator.interchange.engine_settings import VARYING_GAMMA, NotExpressibleError, Snippet, snippets
from simulator.plots.words import batches_in_words, interval
from simulator.printed_numbers import times
from simulator.questions.schedule import ScheduleAnswer
from simulator.questions.schedule_prices import Range
from simulator.reports.best_for import best_for_schedule, tie_in_words
from simulator.reports.exports import engine_of, setting_for
from simulator.reports.summary import SCHEMA_VERSION, csv_text, ending, plain_data
from simulator.simulation import TIE, verdict_of

# Engines that vary γ with the batch, or switch it off, by a setting; llama.cpp takes one γ only.
ENGINES = ("vllm", "sglang", "trtllm")
Table = tuple[list[str], list[list[str]]]


def schedule_sentences(answer: ScheduleAnswer) -> tuple[str, ...]:
    """The verdict first: which method, of several, and whether to vary its γ; what the simulation says of it."""
    return (*_method_sentences(answer), *_own_sentences(answer))


def _own_sentences(answer: ScheduleAnswer) -> tuple[str, ...]:
    fixed, fastest = (f"γ = {gamma}" if gamma else "no speculation" for gamma in (answer.best_fixed, answer.fastest_fixed))
    tie = [tie_in_words(fastest, fixed, chains=True)] if answer.best_fixed != answer.fastest_fixed else []
    if answer.off:
        return (_off(answer), *_remark(answer), best_for_schedule(answer))
    beside = (*_over_none(answer), *tie, *_remark(answer), best_for_schedule(answer))
    if answer.gain is None:
        always = answer.table[0][2]
        what = fixed if always == answer.best_fixed else f"one γ, within {100 * TIE:.0f} %,"
        first = f"No schedule needed: {what} is best at every batch, at a context of {answer.own_context:,} tokens."
        return (first, *beside)
    gain, alone = _told(answer.gain, answer), f"{fastest} alone" if answer.fastest_fixed else fastest
    if answer.needed:
        return (
            f"Vary γ with the batch: {answer.metric} {gain} than with {alone}{_within(answer)}.",
            _words(answer.table),
            *beside,
        )
    what = "the table, chosen point by point, loses" if answer.worse else "what the table gains is below noise"
    first = f"No schedule needed: {what}: {answer.metric} {gain} than with {alone}{_within(answer)}."
    return (first, *beside, f"For the record: {_words(answer.table)}")


def _off(answer: ScheduleAnswer) -> str:
    """That nothing drafted gains, and what comes nearest; a table that varies γ too."""
    gain = gain_in_words(answer.over_none)
    table = "" if answer.gain is None else f", and γ by batch {_told(answer.gain, answer)} than none"
    best = f"of every fixed γ the best, γ = {answer.nearest}, comes to {gain} in {answer.metric}"
    return f"Leave speculation off: {best} on {len(answer.held_out_seeds)} seeds that did not choose it{table}."


def _within(answer: ScheduleAnswer) -> str:
    """How many requests a gain in goodput is."""
    if answer.within is None:
        return ""
    table, fixed, requests = answer.within
    return f": {table:,} instead of {fixed:,} of {requests:,} requests are within the service level"


def _told(gain: Estimate, answer: ScheduleAnswer) -> str:
    """``1.08× better (80 % interval 1.05–1.11, simulated on 5 seeds that chose neither)``, whichever way it went: ``no better``
    where that would be 1.00×."""
    value, low, high = (1 / each if each > 0 else math.inf for each in (gain.value, gain.high, gain.low))
    same = times(max(gain.value, value)) == times(1.0)
    better = gain.value >= 1 or same
    shown = gain if better else Estimate(value, low, high)
    seeds = f"simulated on {len(answer.held_out_seeds)} seeds that chose neither"
    way = "no better" if same else f"{times(shown.value)} {'better' if better else 'worse'}"
    return f"{way} (80 % interval {interval(shown)}, {seeds})"


def _over_none(answer: ScheduleAnswer) -> list[str]:
    if answer.off:
        return []
    return [f"Against no speculation, on those seeds: {setting_in_words(answer)} gains {gain_in_words(answer.over_none)}."]


def gain_in_words(gain: Estimate) -> str:
    """A gain over no speculation with its interval."""
    return f"{times(gain.value)} ({interval(gain)})" if math.isfinite(gain.value) else "all of it: none has any"


def _remark(answer: ScheduleAnswer) -> list[str]:
    return [f"{answer.remark[0].upper()}{answer.remark[1:]}: judged by {answer.metric}."] if answer.remark else []


def _method_sentences(answer: ScheduleAnswer) -> list[str]:
    """Which of several methods, and how sure that is."""
    if not answer.others:
        return []
    if answer.off:
        return [f"No method gains in {answer.metric}: leave speculation off."]
    assert answer.lead is not None
    other = answer.others[0]
    runner_up = "no speculation" if other.off else f"{other.method}, {setting_in_words(other)}"
    lead, told = verdict_of(answer.lead), _told(answer.lead, answer)
    first = {
        "win": f"Draft with {answer.method}: {answer.metric} {told} than with the next, {runner_up}.",
        "close": f"Draft with {answer.method}, which is hardly told apart from {runner_up}: {answer.metric} {told}.",
        "lose": f"Draft with {other.method}: {answer.method}, best on the scenario's own seed, has {answer.metric} {told}.",
    }[lead]
    return [first]


def setting_in_words(answer: ScheduleAnswer) -> str:
    """What a method comes to."""
    return "γ by batch" if answer.needed else "off" if answer.best_fixed == 0 else f"γ = {answer.best_fixed}"


def methods_table(answer: ScheduleAnswer) -> Table:
    """A row for each method, best first: the setting, what it gains over none, and what its table gains over one γ."""
    gained = ["gain", "80 %", "table over one γ", "80 %"]
    rows = []
    for each in answer.methods:
        found = ("1.00×", "–") if each.off else (_value(each.over_none), interval(each.over_none))
        table = ("–", "–") if each.gain is None else (_value(each.gain), interval(each.gain))
        rows.append([each.method, setting_in_words(each), *found, *table])
    return ["method", "setting", *gained], rows


def _value(gain: Estimate) -> str:
    return times(gain.value) if math.isfinite(gain.value) else "from 0"


def _words(table: tuple[Range, ...]) -> str:
    parts = [
        f"{'no drafts' if gamma == 0 else f'γ = {gamma}'} at batch {batches_in_words(first, last)}"
        for first, last, gamma in table
    ]
    return f"{', '.join(parts)}."


def schedule_tables(answer: ScheduleAnswer) -> list[tuple[str, list[str], list[list[str]]]]:
    """(title, header, rows): the methods beside each other where there are several, the map of each, and each fixed γ."""
    beside = [(f"Each method at its best against none, in {answer.metric}", *methods_table(answer))]
    maps = [(f"γ to run at, {each.method}", *schedule_map(each)) for each in answer.methods]
    return [*(beside if answer.others else []), *maps, (fixed_title(answer), *fixed_table(answer))]


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


def fixed_title(answer: ScheduleAnswer) -> str:
    """What the table of fixed γ holds."""
    seed = answer.scenario.file.seed
    return f"Gain (×) of each fixed γ in {answer.metric} at seed {seed}, which chose among them and flatters the best"


def fixed_table(answer: ScheduleAnswer) -> Table:
    """What each fixed γ gains over none, a row for each method."""
    gammas = sorted({gamma for each in answer.methods for gamma, _ in each.fixed_gains})
    rows = []
    for each in answer.methods:
        gains = {gamma: f"{gain:.2f}" if math.isfinite(gain) else "∞" for gamma, gain in each.fixed_gains}
        rows.append([each.method, *(gains.get(gamma, "–") for gamma in gammas)])
    return ["method \\ γ", *("none" if gamma == 0 else str(gamma) for gamma in gammas)], rows


def schedule_snippets(answer: ScheduleAnswer) -> Iterator[tuple[str, tuple[Snippet, ...], str]]:
    """(engine, what to paste, why there is nothing) for the scenario's own engine, then for each other that takes such a setting:
    the table where it is worth it, else the best fixed γ."""
    own = engine_of(answer.scenario)
    first = [own] if own in EXPRESSIBLE else []
    for engine in dict.fromkeys([*first, *ENGINES]):
        try:
            yield engine, _snippets(answer, engine), ""
        except NotExpressibleError as reason:
            yield engine, (), str(reason)


def _snippets(answer: ScheduleAnswer, engine: str) -> tuple[Snippet, ...]:
    largest = max(gamma for _, _, gamma in answer.table)
    if not answer.needed or engine not in ENGINES:
        if answer.best_fixed == 0:
            raise NotExpressibleError("it has no γ by batch: leave speculation off" if answer.needed else "leave speculation off")
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
    if answer.off and any(gamma for _, _, gamma in answer.table):
        notes.append("Without a drafter at all, which takes memory and time even while it rests, a plain step is quicker still.")
    if any(cell.captured is False for cell in answer.cells):
        notes.append("*: the round is larger than the engine's largest captured graph and runs eagerly.")
    if any(not cell.fits for cell in answer.cells):
        notes.append("In brackets: the KV cache does not hold that batch.")
    if answer.needed:
        notes.append(f"{VARYING_GAMMA}.")
        notes.append("TensorRT-LLM takes one γ and the batch above which it is off (max_concurrency), not the table.")
        if engine_of(answer.scenario) not in ENGINES and answer.best_fixed:
            notes.append(f"{answer.scenario.deployment.engine.name} takes one γ, not the table: the best fixed one.")
    notes += [f"Without a schedule: {name}, whose {why}." for name, why in answer.left_out]
    return tuple(notes)


def schedule_summary(answer: ScheduleAnswer) -> dict[str, Any]:
    """Everything that `schedule` says."""
    summary = {
        "schema_version": SCHEMA_VERSION,
        "verdict": {"needed": answer.needed, "sentence": " ".join(schedule_sentences(answer))},
        **_method_summary(answer),
        "lead_over_next": answer.lead,
        "other_methods": [_method_summary(each) for each in answer.others],
        "left_out": [{"method": name, "reason": why} for name, why in answer.left_out],
        "held_out_seeds": answer.held_out_seeds,
        "notes": schedule_notes(answer),
        **ending(answer.scenario, answer.remarks),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def _method_summary(answer: ScheduleAnswer) -> dict[str, Any]:
    return {
        "method": answer.method,
        "setting": setting_in_words(answer),
        "own_context_tokens": answer.own_context,
        "table": answer.table,
        "best_fixed": answer.best_fixed,
        "fastest_fixed": answer.fastest_fixed,
        "metric": answer.metric,
        "remark": answer.remark or None,
        "fixed_gains_at_own_seed": {str(gamma): gain for gamma, gain in answer.fixed_gains},
        "gain_over_best_fixed": answer.gain,
        "gain_over_no_speculation": answer.over_none,
        "within_service_level": answer.within,
        "map": answer.cells,
        "engine_settings": [
            {"engine": engine, "snippets": found, "reason": reason or None} for engine, found, reason in schedule_snippets(answer)
        ],
    }


def schedule_csv(answer: ScheduleAnswer) -> str:
    """The map, one row for each method, batch and context."""
    return csv_text([{"method": each.method, **plain_data(cell)} for each in answer.methods for cell in each.cells])
