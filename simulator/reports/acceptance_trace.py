"""The summary of an acceptance trace, as sentences, tables and JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from simulator.acceptance import Confidence, LengthAt, TraceSummary

Table = tuple[str, tuple[str, ...], list[tuple[str, ...]]]
_READ_AT = 4
NOTHING = "–"


def trace_sentence(summary: TraceSummary) -> str:
    """α and τ with their basis."""
    at = min(summary.lengths, key=lambda each: abs(each.num_speculative_tokens - _READ_AT))
    proposals = "" if summary.proposal_share == 1 else f", a proposal in {100 * summary.proposal_share:.0f} % of the rounds"
    return (
        f"α = {summary.acceptance_rate:.3f} over {summary.tokens} tokens of {summary.prompts} prompt"
        f"{'s' * (summary.prompts > 1)}{proposals};"
        f" τ = {at.mean_acceptance_length:.2f} at γ = {at.num_speculative_tokens}"
        f" ({_bounds(at, 2, '80 % interval over prompts ') or 'one prompt says nothing of others'})."
    )


def _bounds(at: LengthAt, digits: int, before: str = "") -> str:
    """The interval, "" where there is none."""
    return "" if at.low is None or at.high is None else f"{before}{at.low:.{digits}f} to {at.high:.{digits}f}"


def trace_tables(summary: TraceSummary) -> Iterator[Table]:
    """(title, header, rows) of τ by γ, rates by depth, kinds of text, differences and runs, and fitted laws."""
    yield (
        "Tokens per round, bonus included, over all rounds",
        ("γ", "τ", "80 % interval", "accepted / drafted"),
        [
            (
                str(at.num_speculative_tokens),
                f"{at.mean_acceptance_length:.3f}",
                _bounds(at, 3) or NOTHING,
                f"{at.draft_acceptance_rate:.3f}",
            )
            for at in summary.lengths
        ],
    )
    yield (
        f"By draft position, over rounds with a proposal at γ = {len(summary.conditional_rates)}",
        ("position", "survival", "conditional"),
        [
            (str(depth), f"{survival:.3f}", f"{conditional:.3f}")
            for depth, (survival, conditional) in enumerate(
                zip(summary.survival_rates, summary.conditional_rates, strict=True), start=1
            )
        ],
    )
    if summary.by_category:
        yield (
            "By kind of text",
            ("category", "τ", "80 % interval", "γ"),
            [
                (name, f"{at.mean_acceptance_length:.3f}", _bounds(at, 3) or NOTHING, str(at.num_speculative_tokens))
                for name, at in summary.by_category.items()
            ],
        )
    yield "Between and within prompts", ("quantity", "value"), _differences(summary)
    if summary.confidence is not None:
        yield _confidence_table(summary.confidence)
    yield "Laws fitted to this trace, and their error on its τ", _LAW_HEADER, list(_law_rows(summary))


def _differences(summary: TraceSummary) -> list[tuple[str, ...]]:
    spread, runs = summary.spread, summary.runs
    return [
        ("α by prompt: lowest, median, highest", f"{spread.lowest:.3f}, {spread.median:.3f}, {spread.highest:.3f}"),
        ("its standard deviation", f"{spread.standard_deviation:.3f}"),
        ("of it beyond chance", f"{spread.beyond_chance:.3f}"),
        ("accepted in a row from any position", f"{runs.mean_length:.2f}"),
        ("the same if positions were independent", f"{runs.mean_length_if_independent:.2f}"),
        ("correlation of neighbours, all text", f"{runs.neighbour_correlation:+.3f}"),
        ("correlation of neighbours, within prompts", f"{runs.neighbour_correlation_within_prompts:+.3f}"),
        *_confidence_rows(summary.confidence),
    ]


def _confidence_rows(confidence: Confidence | None) -> list[tuple[str, ...]]:
    if confidence is None:
        return []
    means = (confidence.mean, confidence.where_accepted, confidence.where_rejected)
    text = ", ".join(NOTHING if mean is None else f"{mean:.3f}" for mean in means)
    return [("the draft's confidence: mean, accepted, rejected", text)]


def _confidence_table(confidence: Confidence) -> Table:
    approximate = " (drafts and their rate: approximate)" if confidence.approximate else ""
    return (
        f"Drafting that stops below a confidence, γ ≤ {confidence.num_speculative_tokens}{approximate}",
        ("confidence at least", "drafts per round", "τ", "accepted / drafted"),
        [
            (
                f"{at.threshold:.1f}" if at.threshold else "any",
                f"{at.drafts_per_round:.2f}",
                f"{at.mean_acceptance_length:.3f}",
                f"{at.draft_acceptance_rate:.3f}",
            )
            for at in confidence.stopping
        ],
    )


_LAW_HEADER = ("law, best first", "mean |error| γ ≤ 3", "γ > 3", "worst", "parameters")


def _law_rows(summary: TraceSummary) -> Iterator[tuple[str, ...]]:
    deepest = summary.lengths[-1].num_speculative_tokens
    for fitted in summary.laws:
        count, worst = fitted.worst
        yield (
            fitted.name,
            f"{100 * fitted.mean_error(1, 3):.1f} %",
            f"{100 * fitted.mean_error(4, deepest):.1f} %" if deepest > 3 else "",
            f"{100 * worst:+.1f} % at γ = {count}",
            fitted.parameters,
        )


def trace_json(summary: TraceSummary) -> dict[str, Any]:
    """The same numbers as a JSON object."""
    return {
        "prompts": summary.prompts,
        "tokens": summary.tokens,
        "acceptance_rate": summary.acceptance_rate,
        "proposal_share": summary.proposal_share,
        "acceptance_rates_per_position": summary.survival_rates.tolist(),
        "conditional_acceptance_rates": summary.conditional_rates.tolist(),
        "mean_acceptance_lengths": [asdict(at) for at in summary.lengths],
        "by_category": {name: asdict(at) for name, at in summary.by_category.items()},
        "between_prompts": asdict(summary.spread),
        "runs": asdict(summary.runs),
        "confidence": None if summary.confidence is None else asdict(summary.confidence),
        "laws": [
            {
                "name": each.name,
                "parameters": each.parameters,
                "errors": {str(count): error for count, error in each.errors.items()},
            }
            for each in summary.laws
        ],
    }
