"""The accuracy question as tables: errors by family and by what a run asked for, baselines, constants, and what moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np

from simulator.printed_numbers import percent
from simulator.questions.accuracy import CONSTANT_SPEEDUP, Moved, Score, Scored, inside_by_family, log_ratio, score
from simulator.questions.engine_fit import CONSTANTS, UNFITTED, Fit
from simulator.questions.interval_fit import Covered
from simulator.questions.published_cases import PublishedCase, by, sources
from simulator.reports.tables import NOTHING

Table = tuple[str, list[str], list[list[str]]]
HEADER = ["runs", "median error", "90th percentile", "bias of R", "inside 80 % interval", "interval width", "wins", "losses"]


def accuracy_sentence(scored: Sequence[Scored]) -> str:
    """All runs in one line."""
    total = score(scored)
    sides = [
        f"{percent(share)} of {name}" for share, name in ((total.wins, "wins"), (total.losses, "losses")) if share is not None
    ]
    return (
        f"{total.cases} published runs: median error of R {percent(total.median)}, 90th percentile {percent(total.p90)}, sign "
        f"right in {' and '.join(sides)}, {percent(total.inside)} inside 80 % intervals {percent(total.width)} wide "
        f"({percent(inside_by_family(scored))} where each family counts once)."
    )


def accuracy_tables(shipped: Sequence[Scored], without: Sequence[Scored] | None) -> Iterator[Table]:
    """(title, header, rows): by family, by regime, and the formulas that people use instead."""
    best = without or shipped
    yield "By family", ["family", *HEADER, "published by"], with_sources(_rows(best, lambda case: case.family), best)
    for title, key in GROUPINGS.items():
        yield f"By {title}", [title, *HEADER], _rows(best, key)
    parts = {each.case.point.id: never_measured(each) for each in best}
    yield "By what was never measured", ["never measured", *HEADER], _rows(best, lambda case: parts[case.point.id])
    yield (
        "Beside other rules",
        ["rule", "median error", "90th percentile"],
        beside_rules(({"this model, family left out": without} if without else {}) | {"this model as shipped": shipped}),
    )


GROUPINGS: dict[str, Callable[[PublishedCase], str]] = {
    "method": lambda case: (
        case.point.method + (" tree" if case.point.tree_shape and "topk=1" not in case.point.tree_shape else "")
    ),
    "engine": lambda case: case.point.engine,
    "device": lambda case: case.point.hardware.removeprefix("NVIDIA ").removeprefix("GeForce "),
    "batch": lambda case: "1" if case.point.batch == 1 else "2 to 8" if case.point.batch <= 8 else "above 8",
}


def never_measured(scored: Scored) -> str:
    """The parts of a run that no measured run had, in words."""
    return ", ".join(scored.prediction.unmeasured) or "nothing"


def covered_table(found: Mapping[str, Covered]) -> Table:
    """Intervals of runs left out in each of the three ways, and of runs never seen."""
    words = {
        "family": "its family's runs (not those that row laws were set on by hand)",
        "engine": "its engine: that of an unknown one is taken",
        "kernels": "its kernels: runs of its weight format on its architecture, and row laws for it",
    }
    rows = [
        [
            words.get(name, f"{name} of the runs never seen, as first predicted"),
            str(each.runs),
            percent(each.inside),
            percent(each.by_family),
            percent(each.width),
        ]
        for name, each in found.items()
    ]
    header = ["left out of the model", "runs", "inside 80 % interval", "where each family counts once", "interval width"]
    return "Intervals of what was left out", header, rows


def constants_table(fit: Fit) -> Table:
    """What the fit on all families gives, beside what was believed before."""
    rows = []
    for constant, quantity in zip(CONSTANTS, fit.quantities().values(), strict=True):
        where = ", ".join(constant.engines) or "every device"
        prior = f"{constant.prior:.3g} (× or ÷ {np.exp(constant.prior_log_std):.1f})"
        rows.append([constant.name, where, f"{quantity.value:.3g}", f"{quantity.doubt:.2f}", prior])
    return "Fitted constants", ["constant", "where", "value", "std of its logarithm", "believed before"], rows


def moved_table(found: Sequence[Moved]) -> Table:
    """Runs that an older version predicted otherwise."""
    better = sum(each.better for each in found)
    rows = [
        [
            each.scored.case.point.id,
            f"{each.scored.case.measured_r:.2f}",
            f"{100 * each.old_error:+.1f} %",
            f"{100 * each.scored.error:+.1f} %",
            "better" if each.better else "worse",
        ]
        for each in found
    ]
    title = f"{len(found)} runs moved by 1 % or more: {better} for the better, {len(found) - better} for the worse"
    return title, ["run", "measured R", "error before", "error now", ""], rows


def accuracy_markdown(
    shipped: Sequence[Scored], without: Sequence[Scored], parts: Mapping[str, Covered], fit: Fit, figure: str
) -> str:
    """The part of docs/accuracy.md that is computed."""
    texts = [
        "With each run's family left out of the fit, the error of constants among runs that the model was built by "
        f"(for runs nobody had seen: Never seen while building): {accuracy_sentence(without)}",
        f"With the shipped constants, fitted on all families but {', '.join(UNFITTED)}: {accuracy_sentence(shipped)}",
        f"![Predicted against measured R]({figure})",
    ]
    for title, header, rows in (*accuracy_tables(shipped, without), covered_table(parts), constants_table(fit)):
        texts += [f"### {title}", markdown_table(header, rows)]
    return "\n\n".join(texts) + "\n"


def with_sources(rows: Sequence[Sequence[str]], scored: Sequence[Scored]) -> list[list[str]]:
    """Rows of families, each with who published its runs."""
    families = by([each.case for each in scored], lambda case: case.family)
    return [[*row, sources(scored[place].case for place in families[row[0]])] for row in rows]


def _rows(scored: Sequence[Scored], key: Callable[[PublishedCase], str]) -> list[list[str]]:
    groups = by([each.case for each in scored], key)
    return [[name or NOTHING, *_cells(score([scored[place] for place in places]))] for name, places in groups.items()]


def _cells(found: Score) -> list[str]:
    numbers = [found.median, found.p90, found.bias, found.inside, found.width, found.wins, found.losses]
    texts = [NOTHING if number is None else percent(number) for number in numbers]
    texts[2] = f"{100 * found.bias:+.1f} %"
    return [str(found.cases), *texts]


def beside_rules(models: Mapping[str, Sequence[Scored]]) -> list[list[str]]:
    """Errors of models by name, then of the formulas that people use instead, on the runs of the last model."""
    *_, last = models.values()
    rules = {name: [each.error for each in scored] for name, scored in models.items()} | {
        "textbook formula τ / (γc + 1)": [log_ratio(e.case.measured_speedup, e.prediction.textbook_speedup) for e in last],
        f"always {CONSTANT_SPEEDUP} ×": [log_ratio(each.case.measured_speedup, CONSTANT_SPEEDUP) for each in last],
    }
    return [
        [name, percent(float(np.median(np.abs(errors)))), percent(float(np.quantile(np.abs(errors), 0.9)))]
        for name, errors in rules.items()
    ]


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table as Markdown writes it, numbers to the right."""
    rule = ["---", *("--:" for _ in header[1:])]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (header, rule, *rows))
