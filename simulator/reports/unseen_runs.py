"""The runs never seen while building as tables: what was first predicted for them beside what is predicted now."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from simulator.printed_numbers import percent
from simulator.questions.accuracy import Score, Scored, inside_by_family, score
from simulator.questions.published_cases import PublishedCase, by
from simulator.questions.unseen_runs import CHOICES, FIRST_VERSION, LaterSet, choices, later_sets, priced
from simulator.reports.accuracy import GROUPINGS, Table, beside_rules, markdown_table, never_measured, with_sources
from simulator.reports.tables import NOTHING

COLUMNS = ["median error", "90th percentile", "bias of R", "inside 80 % interval"]

ORDINALS = {2: "Second", 3: "Third", 4: "Fourth", 5: "Fifth", 6: "Sixth", 7: "Seventh", 8: "Eighth", 9: "Ninth"}

CHOICE_HEADER = [
    "runs that differ in", "pairs 5 % apart", "in order, first / now", "lost by choosing, first / now", "most lost, first / now",
]  # fmt: skip


def unseen_sentences(first: Sequence[Scored], now: Sequence[Scored]) -> list[str]:
    """All runs in one line for the version that saw them first, and one for this version."""
    return [
        f"First score, by version {FIRST_VERSION}, before anything was changed: {_sentence(first)}",
        f"This version, improved with these runs in sight: {_sentence(now)}",
    ]


def unseen_tables(first: Sequence[Scored], now: Sequence[Scored]) -> Iterator[Table]:
    """(title, header, rows): errors by what was run, by who ran it, and by batch."""
    parts = {each.case.point.id: never_measured(each) for each in priced(now)}
    groups: dict[str, Callable[[PublishedCase], str]] = {
        "engine and method": lambda case: f"{case.point.engine} {GROUPINGS['method'](case)}",
        "what was never measured": lambda case: parts.get(case.point.id, NOTHING),
        "family": lambda case: case.family,
        "batch": GROUPINGS["batch"],
    }
    for title, key in groups.items():
        header, rows = _compared(title), _rows(first, now, key)
        if title == "family":
            header, rows = [*header, "published by"], with_sources(rows, first)
        yield f"Never seen, by {title}", header, rows
    yield "Never seen, choosing by predicted speedup", CHOICE_HEADER, [_choice(first, now, what) for what in CHOICES]
    yield (
        "Never seen, beside other rules",
        ["rule", "median error", "90th percentile"],
        beside_rules({"this model, first": priced(first), "this model, now": priced(now)}),
    )


def later_sentences() -> list[str]:
    """Each later set in one line: its one score, or that it waits for it."""
    return [_later_sentence(later) for later in later_sets()]


def _later_sentence(later: LaterSet) -> str:
    kept = later.scored()
    if kept is None:
        families = len(by(later.cases, lambda case: case.family))
        return f"{_name(later)}: {len(later.cases)} runs of {families} families, not predicted yet."
    return f"{_name(later)}, first score, by version {kept[0]}: {_sentence(kept[1])}"


def later_tables() -> Iterator[Table]:
    """As `unseen_tables`, of each later set: its one score beside what is predicted now; nothing of a set that waits for it."""
    for later in later_sets():
        kept = later.scored()
        if kept is not None:
            yield from _tables_of(_name(later), kept[1], later.predicted())


def _name(later: LaterSet) -> str:
    return f"{ORDINALS[later.number]} set" if later.number in ORDINALS else f"Set {later.number}"


def _tables_of(name: str, first: Sequence[Scored], now: Sequence[Scored]) -> Iterator[Table]:
    groups: dict[str, Callable[[PublishedCase], str]] = {
        "engine and method": lambda case: f"{case.point.engine} {GROUPINGS['method'](case)}",
        "family": lambda case: case.family,
        "batch": GROUPINGS["batch"],
    }
    yield f"{name}, all runs", _compared("runs of"), _rows(first, now, lambda _: name)
    for title, key in groups.items():
        header, rows = _compared(title), _rows(first, now, key)
        if title == "family":
            header, rows = [*header, "published by"], with_sources(rows, first)
        yield f"{name}, by {title}", header, rows


def _compared(title: str) -> list[str]:
    return [title, "runs", *(f"{name}, first / now" for name in COLUMNS)]


def unseen_markdown(first: Sequence[Scored], now: Sequence[Scored]) -> str:
    """The computed part of the page's section."""
    parts = [*unseen_sentences(first, now), *later_sentences()]
    for title, header, rows in (*unseen_tables(first, now), *later_tables()):
        parts += [f"### {title}", markdown_table(header, rows)]
    return "\n\n".join(parts) + "\n"


def _sentence(scored: Sequence[Scored]) -> str:
    answered = priced(scored)
    total = score(answered)
    families = by([each.case for each in answered], lambda case: case.family).values()
    middle = float(np.median([score([answered[place] for place in places]).median for places in families]))
    refused = len(scored) - len(answered)
    sides = [f"{percent(s)} of {name}" for s, name in ((total.wins, "wins"), (total.losses, "losses")) if s is not None]
    return (
        f"{len(answered)} runs of {len(families)} families: median error of R {percent(total.median)} (median over families "
        f"{percent(middle)}), 90th percentile {percent(total.p90)}, sign right in {' and '.join(sides)}, {percent(total.inside)} "
        f"inside 80 % intervals {percent(total.width)} wide ({percent(inside_by_family(answered))} where each family counts once)"
        f"{f'; {refused} more refused' if refused else ''}."
    )


def _rows(first: Sequence[Scored], now: Sequence[Scored], key: Callable[[PublishedCase], str]) -> list[list[str]]:
    rows = []
    for name, places in by([each.case for each in first], key).items():
        sides = [_cells([side[place] for place in places]) for side in (first, now)]
        pairs = zip(*sides, strict=True)
        rows.append([name, str(len(places)), *(f"{one.removesuffix(' %')} / {other}" for one, other in pairs)])
    return rows


def _choice(first: Sequence[Scored], now: Sequence[Scored], differ_in: str) -> list[str]:
    one, other = choices(first, differ_in), choices(now, differ_in)
    pairs = ((one.right, other.right), (one.loss, other.loss), (one.worst, other.worst))
    return [differ_in, str(other.pairs), *(f"{percent(a).removesuffix(' %')} / {percent(b)}" for a, b in pairs)]


def _cells(scored: Sequence[Scored]) -> list[str]:
    answered = priced(scored)
    if not answered:
        return ["refused", *[NOTHING] * (len(COLUMNS) - 1)]
    found: Score = score(answered)
    return [percent(found.median), percent(found.p90), f"{100 * found.bias:+.1f} %", percent(found.inside)]
