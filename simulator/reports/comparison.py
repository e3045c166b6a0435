"""Alternatives side by side, as text and data."""

from __future__ import annotations

from typing import Any

from simulator.plots.words import interval, is_known
from simulator.printed_numbers import milliseconds, significant, times
from simulator.questions.comparison import Alternative, ComparedScenarios, MemoryTaken
from simulator.reports.summary import SCHEMA_VERSION, plain_data

_NOTHING = "–"


def comparison_sentence(answer: ComparedScenarios) -> str:
    """The fastest of all, with and without speculation, against the scenario without speculation."""
    found = []
    for row in answer.rows:
        if row.plain_tpot_s is not None:
            found.append((row.plain_tpot_s, f"{row.name} without speculation"))
            found.append((max(row.tpot_s), f"{row.name} with speculation"))
    if not found:
        return "No alternative could be served."
    seconds, name = min(found)
    open_ends = any(len(set(row.tpot_s)) > 1 for row in answer.rows)
    careful = ", by the end of each range with less acceptance" if open_ends else ""
    return (
        f"Fastest: {name}, {milliseconds(seconds)} per output token{careful}, {times(answer.base_tpot_s / seconds)} as fast as "
        f"the scenario without speculation ({milliseconds(answer.base_tpot_s)})."
    )


def comparison_table(answer: ComparedScenarios) -> tuple[list[str], list[list[str]]]:
    """One alternative a row: time per token without and with speculation, what that gains here and against the scenario."""
    rows = [_speed(row, answer.base_tpot_s) for row in answer.rows]
    header = [
        "by " + answer.axis,
        "γ",
        "τ",
        "R",
        "plain (ms)",
        "speculative (ms)",
        "gain",
        "80 %",
        "verdict",
        "vs. scenario plain",
    ]
    return header, rows


def _speed(row: Alternative, base_s: float) -> list[str]:
    if row.plain_tpot_s is None or row.gain is None or row.r is None:
        return [row.name, *[_NOTHING] * 9]
    return [
        row.name, str(row.num_speculative_tokens), range_of(row.mean_acceptance_lengths), significant(row.r),
        significant(1e3 * row.plain_tpot_s), range_of(tuple(1e3 * seconds for seconds in row.tpot_s)),
        times(row.gain.value), interval(row.gain), row.verdict,
        range_of(_over_base(row, base_s)) + "×",
    ]  # fmt: skip


def memory_table(answer: ComparedScenarios) -> tuple[list[str], list[list[str]]]:
    """What each alternative's speculation takes of the memory."""
    header = [
        "by " + answer.axis, "draft (GB)", "draft KV (kB/token)", "lookahead",
        "KV tokens, plain", "with drafts", "requests, plain", "with drafts",
    ]  # fmt: skip
    return header, [[row.name, *_memory(row.memory)] for row in answer.rows if row.memory is not None]


def _memory(memory: MemoryTaken) -> list[str]:
    return [
        significant(memory.draft_weight_bytes / 1e9) if memory.draft_weight_bytes else _NOTHING,
        significant(memory.draft_kv_bytes_per_token / 1e3) if memory.draft_kv_bytes_per_token else _NOTHING,
        str(memory.lookahead_tokens), f"{memory.kv_tokens_plain:,}", f"{memory.kv_tokens:,}",
        f"{memory.concurrency_plain:,}", f"{memory.concurrency:,}",
    ]  # fmt: skip


def comparison_notes(answer: ComparedScenarios) -> list[str]:
    """What could not be compared, and what the comparison takes for granted."""
    said = [*answer.scenario.warnings]
    said += [f"{row.name}: {words}" for row in answer.rows for words in (row.problem, *row.doubts, row.remark) if words]
    if any(row.gain is not None and not is_known(row.gain) for row in answer.rows):
        said.append("too few requests to tell: workload.num_requests of 30 and more give intervals")
    return [*said, *answer.notes]


def comparison_summary(answer: ComparedScenarios) -> dict[str, Any]:
    """The answer as JSON-able data; seconds, bytes, tokens."""
    summary = {
        "schema_version": SCHEMA_VERSION,
        "by": answer.axis,
        "sentence": comparison_sentence(answer),
        "base_tpot_s": answer.base_tpot_s,
        "rows": [
            {**plain_data(row), "verdict": row.verdict, "speedup_over_base": _over_base(row, answer.base_tpot_s)}
            for row in answer.rows
        ],
        "notes": comparison_notes(answer),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def _over_base(row: Alternative, base_s: float) -> tuple[float, ...]:
    """With speculation, against the scenario without: at the low and the high end of an open acceptance."""
    return tuple(base_s / seconds for seconds in row.tpot_s)


def range_of(values: tuple[float, ...]) -> str:
    """One number, or the lowest and the highest."""
    low, high = min(values), max(values)
    return significant(low) if significant(low) == significant(high) else f"{significant(low)}–{significant(high)}"
