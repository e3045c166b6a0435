"""An explanation as text and data: why a round costs what it costs, and what would flip the sign."""

from __future__ import annotations

from typing import Any

from simulator.cost.unmeasured import unmeasured
from simulator.plots.words import interval, ways_in_words
from simulator.printed_numbers import significant, times
from simulator.questions.explanation import Explanation
from simulator.reports.sensitivity import sensitivity_sentences, sensitivity_summary
from simulator.reports.summary import SCHEMA_VERSION, plain_data
from simulator.simulation import cause_in_words

NOTHING = "–"


def explanation_sentences(answer: Explanation) -> list[str]:
    """The verdict, R against τ, the two largest causes, what would flip the sign."""
    at = f"at batch {answer.batch} and context {answer.context_tokens:,.0f} tokens, {answer.shape.name}"
    r = f"a round costs R = {significant(answer.r.value)} plain steps ({interval(answer.r)})"
    if answer.speedup is None or answer.mean_acceptance_length is None:
        most = answer.shape.depth + 1
        wins = "wins where τ is above it" if answer.r.value <= most else f"cannot win: a round yields at most τ = {most}"
        first = f"{r[0].upper()}{r[1:]} {at}: speculation {wins}."
    else:
        said = {"win": "Speculation wins", "lose": "Speculation loses", "close": "Too close to call"}.get(
            answer.verdict, "Cannot be served so; if it could"
        )
        first = (
            f"{said} {at}: {r} and yields τ = {significant(answer.mean_acceptance_length)} tokens, "
            f"decode speedup {times(answer.speedup.value)} ({interval(answer.speedup)})."
        )
    causes = [f"{cause_in_words(name)} {share:+.2f}" for name, share in answer.cost.causes()[:2]]
    sentences = [first, *_why_this_one(answer), f"R - 1 comes mostly from {' and '.join(causes)} plain steps."]
    if answer.textbook_speedup is not None:
        sentences.append(f"The textbook formula, with verification taken as free, says {times(answer.textbook_speedup)}.")
    if not answer.shape.is_chain:
        sentences.append("A tree (steps/width/nodes) breaks even where τ is R; it has no single acceptance rate α*.")
    if answer.break_even_acceptance_rate is not None:
        sentences.append(f"It breaks even at an acceptance rate of α* = {answer.break_even_acceptance_rate:.2f}.")
    if answer.flips:
        changes = "; ".join(f"{flip.change} ({times(flip.speedup)})" for flip in answer.flips)
        sentences.append(f"The sign would flip with {changes}.")
    elif answer.speedup is not None:
        sentences.append("No other batch, context, γ or lighter engine among those tried flips the sign; only acceptance would.")
    if measured := _measured(answer):
        sentences.append(measured)
    return sentences


def _why_this_one(answer: Explanation) -> list[str]:
    """Which of several ways to draft is explained, and how to ask for another."""
    if not answer.among:
        return []
    flag = "--gamma or --tree-shape" if any(way.startswith("tree") for way in answer.among) else "--gamma"
    return [f"Of {ways_in_words(answer.among)} it is {answer.taken} that run names for this scenario; {flag} explains another."]


def _measured(answer: Explanation) -> str:
    """Where the coefficients of a calibrated device come from; "" for a device that was not measured with this program."""
    profile, mark = answer.deployment.hardware.profile, "measurements sha256:"
    measured = [source.removeprefix(mark)[:12] for source in profile.sources if source.startswith(mark)]
    with_what = [source for source in profile.sources if source.startswith("torch ")]
    if not measured:
        return ""
    return f"{profile.name} is as measured: {'; '.join([f'measurements sha256 {measured[0]}', *with_what])}."


def explanation_table(answer: Explanation) -> tuple[list[str], list[list[str]]]:
    """One plain step beside one round, term by term in ms."""
    rows = [
        [row.name, _ms(row.plain_s), _ms(row.round_s), f"{100 * row.share:.1f}", row.bound]
        for row in sorted(answer.rows, key=lambda row: -row.round_s)
        if row.plain_s > 0 or row.round_s > 0
    ]
    rows.append(["total", _ms(answer.cost.plain_step_s), _ms(answer.cost.round_s), "100.0", ""])
    return ["term", "plain step (ms)", "round (ms)", "share of round (%)", "bound"], rows


def doubt_table(answer: Explanation) -> tuple[list[str], list[list[str]]]:
    """The coefficients that move R most, with their source."""
    rows = [
        [
            doubt.name,
            NOTHING if doubt.quantity is None else f"{doubt.quantity.value:.3g}",
            "table" if doubt.quantity is None else doubt.quantity.source,
            f"{100 * doubt.moves_r:+.1f} %",
        ]
        for doubt in answer.doubts
    ]
    return ["most uncertain coefficient", "value (SI)", "source", "one standard deviation moves R by"], rows


def doubt_sentences(answer: Explanation) -> list[str]:
    """Why the assumed ones among these coefficients are taken to be what they are: those of one reason together."""
    reasons: dict[str, list[str]] = {}
    for doubt in answer.doubts:
        if doubt.quantity is not None and doubt.quantity.source == "assumed" and doubt.quantity.note:
            reasons.setdefault(doubt.quantity.note, []).append(doubt.name)
    return ["Assumed: " + "; ".join(f"{', '.join(names)} ({note})" for note, names in reasons.items()) + "."] if reasons else []


def _ms(seconds: float) -> str:
    return NOTHING if seconds == 0 else significant(1e3 * seconds)


def explanation_summary(answer: Explanation) -> dict[str, Any]:
    """The answer as JSON-able data; seconds, fractions."""
    speedup = answer.speedup
    summary = {
        "schema_version": SCHEMA_VERSION,
        "verdict": answer.verdict,
        "num_speculative_tokens": answer.num_speculative_tokens,
        "compared": list(answer.among),
        "tree": None if answer.shape.is_chain else answer.shape.name.removeprefix("tree "),
        "batch": answer.batch,
        "context_tokens": answer.context_tokens,
        "r": answer.r.value,
        "r_low": answer.r.low,
        "r_high": answer.r.high,
        "mean_acceptance_length": answer.mean_acceptance_length,
        "speedup": None if speedup is None else speedup.value,
        "speedup_low": None if speedup is None else speedup.low,
        "speedup_high": None if speedup is None else speedup.high,
        "break_even_acceptance_rate": answer.break_even_acceptance_rate,
        "textbook_speedup": answer.textbook_speedup,
        "sentence": " ".join(
            [*explanation_sentences(answer), *sensitivity_sentences(answer.sensitivity), *doubt_sentences(answer)]
        ),
        "plain_step_s": answer.cost.plain_step_s,
        "round_s": answer.cost.round_s,
        "terms": [
            {"name": row.name, "plain_s": row.plain_s, "round_s": row.round_s, "share": row.share, "bound": row.bound}
            for row in answer.rows
        ],
        "causes": [{"term": name, "plain_steps": share} for name, share in answer.cost.causes()],
        "uncertain": [
            {
                "name": doubt.name,
                "value": None if doubt.quantity is None else doubt.quantity.value,
                "source": "table" if doubt.quantity is None else doubt.quantity.source,
                "note": "" if doubt.quantity is None else doubt.quantity.note,
                "moves_r": doubt.moves_r,
            }
            for doubt in answer.doubts
        ],
        "flips": [{"change": flip.change, "speedup": flip.speedup} for flip in answer.flips],
        "sensitivity": sensitivity_summary(answer.sensitivity),
        "hardware_sources": list(answer.deployment.hardware.profile.sources),
        "warnings": list(answer.warnings),
        "unmeasured": list(unmeasured(answer.deployment).parts),
    }
    data: dict[str, Any] = plain_data(summary)
    return data
