"""What moves a verdict, as text and data; the figure is in `plots`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from simulator.printed_numbers import significant, times
from simulator.questions.sensitivity import Change, Lever, Sensitivity

# Changes that move the answer by less are left out of the table.
SHOWN = 0.005


def sensitivity_table(answer: Sensitivity) -> tuple[list[str], list[list[str]]]:
    """One change a row, the lever with the longest reach first: what becomes of the speedup, or of R where acceptance is open."""
    open_acceptance = answer.speedup is None
    rows = [
        [change.change, _effect(change), *_after(change, open_acceptance)]
        for lever in answer.levers
        if lever.reach >= SHOWN
        for change in sorted(lever.changes, key=lambda change: -change.effect)
    ]
    if open_acceptance:
        return ["what if", "moves R by", "R"], rows
    return ["what if", "moves the speedup by", "speedup", "verdict"], rows


def _effect(change: Change) -> str:
    return f"{100 * change.effect:+.1f} %"


def _after(change: Change, open_acceptance: bool) -> list[str]:
    if open_acceptance or change.speedup is None:
        return [significant(change.r)]
    return [times(change.speedup), change.verdict]


def sensitivity_sentences(answer: Sensitivity) -> list[str]:
    """What a better draft is worth, what turns the verdict, and what was tried and moves little."""
    sentences = []
    better = answer.better_draft
    if better is not None and answer.mean_acceptance_length is not None and answer.speedup is not None:
        sentences.append(
            f"A better draft: from τ = {significant(answer.mean_acceptance_length)}, each further 0.1 token per round is worth "
            f"{0.1 * better.per_token:+.3f}× while the draft costs the same; with every draft accepted it would be "
            f"{times(better.most_speedup)} at τ = {significant(better.most_tokens)}; it breaks even at τ = "
            f"{significant(better.needed_tokens)}."
        )
    flips = "; ".join(f"{change.change} ({times(change.speedup)})" for change in answer.flips if change.speedup is not None)
    if flips:
        sentences.append(f"On the other side of 1 after: {flips}.")
    small = ", ".join(lever.name for lever in answer.levers if lever.reach < SHOWN)
    if small:
        sentences.append(f"Tried too, and moves it by less than {100 * SHOWN:g} %: {small}.")
    return sentences


def sensitivity_summary(answer: Sensitivity) -> dict[str, Any]:
    """The answer as JSON-able data; effects are fractions."""
    better = answer.better_draft
    return {
        "of": "r" if answer.speedup is None else "speedup",
        "levers": [_lever(lever) for lever in answer.levers],
        "better_draft": None if better is None else asdict(better),
        "flips": [change.change for change in answer.flips],
    }


def _lever(lever: Lever) -> dict[str, Any]:
    return {"name": lever.name, "reach": lever.reach, "changes": [asdict(change) for change in lever.changes]}
