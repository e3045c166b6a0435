"""The variants of a run side by side: a row for each metric, a column for each variant, all as text."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from simulator.cost.spread import Estimate
from simulator.draft_policy import Fixed
from simulator.plots.words import interval
from simulator.printed_numbers import significant, times
from simulator.serving.metrics import Distribution
from simulator.simulation import Comparison, SimulationResult, Variant

# The verdict's metric in few letters.
SHORT_METRICS = {
    "mean time per output token": "TPOT",
    "mean end-to-end latency": "end-to-end",
    "output rate per user": "output per user",
}
NOTHING = "–"
Table = tuple[list[str], list[list[str]]]


@dataclass(frozen=True, slots=True)
class Column:
    """One variant of the table; `comparison` is None for the run without speculation. named: the method stands in its
    heading."""

    variant: Variant
    comparison: Comparison | None = None
    closed_loop: bool = False
    named: bool = False


Cell = Callable[[Column], str | float | None]


def run_table(result: SimulationResult, columns: int = 100) -> Table:
    """(header, rows) of all variants.

    Where they would need more than so many characters those of the γ that the verdict is about are kept, then the best, in their
    order, and the header says so. The two ends of an open acceptance stay together.
    """
    best = result.best
    chosen = None if best is None else best.variant.drafting
    gains: dict[object, float] = {}  # of each way to draft, at its worse end
    for each in result.comparisons:
        gains[each.variant.drafting] = min(each.worth, gains.get(each.variant.drafting, math.inf))
    ranked = sorted(gains, key=lambda drafting: (drafting != chosen, -gains[drafting]))
    for count in range(len(ranked), 0, -1):
        header, rows = _table(result, [each for each in result.comparisons if each.variant.drafting in ranked[:count]])
        if count == 1 or width(header, rows) <= columns:
            return header, rows
    return _table(result, [])


def width(header: list[str], rows: list[list[str]]) -> int:
    """Characters of the table with two between columns."""
    return sum(max(map(len, column)) + 2 for column in zip(header, *rows, strict=True))


def _table(result: SimulationResult, shown: list[Comparison]) -> Table:
    closed = result.scenario.file.workload.arrivals.users is not None
    several = bool(result.scenario.alternatives)
    columns = [Column(result.plain, None, closed), *(Column(c.variant, c, closed, several) for c in shown)]
    missing = len(result.comparisons) - len(shown)
    title = f"best {len(shown)} of {len(result.comparisons)}" if missing else "per variant"
    rows = [
        [name, *(_text(cell, column) for column in columns)]
        for name, cell in (*_verdict_rows(result), *_ROWS, *_graph_rows(columns))
    ]
    known = [row for row in rows if any(text != NOTHING for text in row[1:])]
    return [title, *(_heading(column) for column in columns)], known


def _verdict_rows(result: SimulationResult) -> list[tuple[str, Cell]]:
    """What the verdict is about, with its gain where no other row holds it."""
    if not result.comparisons:
        return []
    metric = result.comparisons[0].metric.partition(" (")[0]  # in brackets: why it is not another one
    metric = SHORT_METRICS.get(metric, metric)
    rows: list[tuple[str, Cell]] = [(f"verdict ({metric})", _verdict)]
    if metric not in ("TPOT", "end-to-end"):
        rows += _gain_rows(metric, lambda c: c.gain)
    return rows


def _graph_rows(columns: list[Column]) -> list[tuple[str, Cell]]:
    """How many steps run as captured graphs, where not all of them do."""
    shares = [column.variant.graph_share for column in columns]
    if all(share is None or share > 0.9995 for share in shares):
        return []
    return [("steps as captured graphs (%)", lambda column: _percent(column.variant.graph_share))]


def _percent(share: float | None) -> float | None:
    return None if share is None else 100 * share


def _without_drafts(variant: Variant) -> float | None:
    """Of a policy that may rest."""
    return None if isinstance(variant.policy, Fixed) else _percent(variant.off_share)


def _heading(column: Column) -> str:
    """Short enough for several columns: ``γ = 3``, ``γ = 3 low`` at an end of the measured band, ``γ ≤ 5`` by batch, ``tree
    5/4/8`` (steps, width, nodes)."""
    if column.comparison is None:
        return "no spec."
    label = column.variant.label
    end = " low" if "(low end)" in label else " high" if "(high end)" in label else ""
    shape = column.variant.shape
    name = (column.variant.policy.short(shape.steps) if shape.is_chain else shape.name) + end
    return f"{column.variant.method} {name}" if column.named else name


def _text(cell: Cell, column: Column) -> str:
    found = cell(column)
    return NOTHING if found is None else found if isinstance(found, str) else significant(found)


def _gain_rows(name: str, estimate: Callable[[Comparison], Estimate | None]) -> list[tuple[str, Cell]]:
    """A gain and, below it, its interval."""

    def shown(column: Column, show: Callable[[Estimate], str]) -> str | None:
        found = None if column.comparison is None else estimate(column.comparison)
        return None if found is None else show(found)

    return [
        (f"{name} gain", lambda column: shown(column, lambda found: times(found.value))),
        ("  80 % interval", lambda column: shown(column, interval)),
    ]


def _statistic(latency: str, statistic: str, scale: float = 1.0) -> Cell:
    """One statistic of a latency of the summary, in the unit that `scale` gives."""

    def number(column: Column) -> float | None:
        distribution: Distribution | None = getattr(column.variant.summary, latency)
        return None if distribution is None else scale * float(getattr(distribution, statistic))

    return number


def _verdict(column: Column) -> str | None:
    return None if column.comparison is None else column.comparison.verdict


def _offered_load(column: Column) -> float | None:
    """Arriving requests against what a saturated replica finishes; None in a closed loop, which offers what is served."""
    share = column.variant.offered_share
    return None if column.closed_loop or math.isinf(share) else 100 * share


def _shared_prefixes(column: Column) -> float | None:
    """Hits of the prefix cache; None where there is none."""
    rate = column.variant.summary.prefix_hit_rate
    return 100 * rate if rate else None


def _prefill_busy(column: Column) -> float | None:
    load = column.variant.summary.prefill_load
    return None if load is None else load.busy_fraction


def _count(number: int) -> str | None:
    return f"{number:,}" if number else None


def _compared(value: Callable[[Comparison], float | None]) -> Cell:
    return lambda column: None if column.comparison is None else value(column.comparison)


_ROWS: tuple[tuple[str, Cell], ...] = (
    *_gain_rows("TPOT", lambda c: c.tpot),
    *_gain_rows("end-to-end", lambda c: c.e2e),
    *_gain_rows("capacity", lambda c: c.capacity),
    ("TPOT mean (ms)", _statistic("tpot_s", "mean", 1e3)),
    ("TPOT p99 (ms)", _statistic("tpot_s", "p99", 1e3)),
    ("TTFT mean (ms)", _statistic("ttft_s", "mean", 1e3)),
    ("TTFT p99 (ms)", _statistic("ttft_s", "p99", 1e3)),
    ("end-to-end mean (s)", _statistic("e2e_latency_s", "mean")),
    ("goodput (req/s)", lambda column: column.variant.summary.goodput_per_s),
    ("output (tokens/s)", lambda column: column.variant.summary.output_tokens_per_s),
    ("saturated (req/s)", lambda column: column.variant.saturation.per_s),
    ("  prefill share then (%)", lambda column: 100 * column.variant.saturation.prefill_share),
    ("  offered load (% of it)", _offered_load),
    ("decode batch, mean", lambda column: column.variant.summary.load.mean_decode_sequences),
    ("τ, tokens per round", _compared(lambda c: c.mean_acceptance_length)),
    ("R, break-even τ", _compared(lambda c: c.r.value)),
    ("α*, break-even", _compared(lambda c: c.break_even_acceptance_rate)),
    ("textbook speedup (×)", _compared(lambda c: c.textbook_speedup)),
    ("prefill instances busy (%)", lambda column: _percent(_prefill_busy(column))),
    ("KV transfer, mean (ms)", _statistic("kv_transfer_s", "mean", 1e3)),
    ("  of it waiting (ms)", _statistic("kv_transfer_wait_s", "mean", 1e3)),
    ("prefill share at this load (%)", lambda column: 100 * column.variant.summary.load.prefill_share),
    ("KV cache (k tokens)", lambda column: column.variant.kv_blocks * column.variant.deployment.engine.block_tokens / 1e3),
    (
        "steps without drafts (%)",
        _compared(lambda c: None if isinstance(c.variant.policy, Fixed) else _percent(c.variant.off_share)),
    ),
    ("prefix cache hits (% of tokens)", _shared_prefixes),
    ("preemptions", lambda column: f"{column.variant.summary.preemptions:,}"),
    ("  moved to the host", lambda column: _count(column.variant.summary.swaps)),
    ("rejected on arrival", lambda column: _count(sum(column.variant.summary.rejected.values()))),
    ("given up by clients", lambda column: _count(column.variant.summary.cancelled)),
)
