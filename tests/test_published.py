"""Predictions held to published runs: bounds on every family, constants that are the fit's, and nothing carried over from a family
that is left out."""

from __future__ import annotations

import csv
import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from matplotlib.figure import Figure

from simulator import resources
from simulator.__main__ import main
from simulator.plots.accuracy import ENDS, accuracy_figure, draw_against
from simulator.prediction import Prediction
from simulator.questions.accuracy import Score, Scored, as_shipped, moved, score
from simulator.questions.engine_fit import CONSTANTS, UNFITTED, EngineFit, Fit
from simulator.questions.published_cases import PublishedCase, by, published_cases
from simulator.reports.accuracy import accuracy_tables
from simulator.validate.published import BEGIN, END, table
from simulator.whole_file import write_whole as write

# Median error of R of each family with the shipped constants, rounded up: loose enough for a better trade between families, tight
# enough to show a regression.
MEDIAN = {
    "SB Qwen3-30B-A3B-Instruct-2507": 0.06, "SB Qwen3-Coder-30B-A3B-Instruct": 0.08, "SB Llama-3.1-8B-Instruct": 0.06,
    "SB Qwen3-Next-80B-A3B-Instruct-FP8": 0.08, "SPB": 0.08, "ANG": 0.07, "VAA": 0.10, "VK": 0.05, "VFR": 0.15, "SGE": 0.10,
    "MOE": 0.12, "QMT": 0.12, "D2": 0.18, "D3": 0.12, "D4": 0.12, "D7": 0.08, "D10": 0.22,
}  # fmt: skip
# Nothing was set on these, or only the row law of their format by hand.
MEDIAN_UNFITTED = {"D5": 0.12, "D9": 0.15, "C13": 0.12, "C61": 0.45, "C65": 0.35, "C68": 0.35}


@pytest.fixture(scope="module")
def shipped() -> list[Scored]:
    return as_shipped()


@pytest.fixture(scope="module")
def fit_of_all() -> tuple[EngineFit, Fit]:
    fit = EngineFit(published_cases())
    return fit, fit.fit()


def of(scored: list[Scored], family: str) -> Score:
    return score([each for each in scored if each.case.family == family])


def test_every_case_is_cited_named_once_and_priced(shipped: list[Scored]) -> None:
    cases = published_cases()
    assert len({case.point.id for case in cases}) == len(cases) > 240
    assert all("#" in case.citation or "/" in case.citation for case in cases)
    assert {scored.prediction.status for scored in shipped} == {"ok"}


def test_every_family_has_its_bound() -> None:
    assert {*by(published_cases(), lambda case: case.family)} == {*MEDIAN, *MEDIAN_UNFITTED}
    assert {*MEDIAN_UNFITTED} == {*UNFITTED}


@pytest.mark.parametrize("family", [*MEDIAN, *MEDIAN_UNFITTED])
def test_the_median_error_of_each_family_stays_in_its_bound(family: str, shipped: list[Scored]) -> None:
    assert of(shipped, family).median < (MEDIAN | MEDIAN_UNFITTED)[family]


def test_all_together_signs_and_intervals(shipped: list[Scored]) -> None:
    total = score(shipped)
    assert total.median < 0.045
    assert total.p90 < 0.14
    assert total.wins is not None
    assert total.wins > 0.97
    assert total.losses is not None
    assert total.losses > 0.85
    assert 0.78 < total.inside < 0.93
    assert total.width < 0.3


def test_half_the_error_of_the_textbook_formula_and_of_a_constant(shipped: list[Scored]) -> None:
    textbook = [abs(math.log(s.case.measured_speedup / (s.prediction.textbook_speedup or math.nan))) for s in shipped]
    constant = [abs(math.log(each.case.measured_speedup / 1.4)) for each in shipped]
    assert score(shipped).median < 0.5 * min(np.median(textbook), np.median(constant))


def choices(shipped: list[Scored]) -> list[list[Scored]]:
    """Groups of runs that differ in γ, tree or method alone."""
    groups: dict[tuple[object, ...], list[Scored]] = {}
    for each in shipped:
        point = each.case.point
        free = {"id", "method", "num_speculative_tokens", "tree_shape", "mean_acceptance_length", "draft_model", "draft_params"}
        same = tuple(value for name, value in point.model_dump().items() if name not in free)
        head = () if each.case.family == "VK" else (point.method, point.draft_model)
        groups.setdefault((each.case.family, *head, *same), []).append(each)
    return [group for group in groups.values() if len(group) > 1]


def test_choosing_by_predicted_speedup_costs_little_and_orders_pairs(shipped: list[Scored]) -> None:
    groups = choices(shipped)
    assert len(groups) > 40
    regrets = []
    for group in groups:
        chosen = max(group, key=lambda each: each.prediction.speedup or 0.0)
        regrets.append(1 - chosen.case.measured_speedup / max(each.case.measured_speedup for each in group))
    assert np.mean(regrets) < 0.01
    pairs = [
        (
            math.log(a.case.measured_speedup / b.case.measured_speedup),
            math.log((a.prediction.speedup or 0) / (b.prediction.speedup or 0)),
        )
        for group in groups
        for a, b in combinations(group, 2)
    ]
    apart = [(measured > 0) == (predicted > 0) for measured, predicted in pairs if abs(measured) > math.log(1.05)]
    assert len(apart) > 200
    assert np.mean(apart) >= 0.96


def test_shipped_constants_are_near_the_fit(fit_of_all: tuple[EngineFit, Fit]) -> None:
    """Within a standard deviation: `validate --published --refit` brings them back where another change moved the fit."""
    _, fit = fit_of_all
    values = shipped_constants()
    stds = np.sqrt(np.diag(fit.covariance))
    for constant, value, std in zip(CONSTANTS, fit.log_values, stds, strict=True):
        assert abs(math.log(values[constant.id]) - value) < std, constant.id


def test_engines_say_what_their_measured_runs_had(fit_of_all: tuple[EngineFit, Fit]) -> None:
    from simulator.serving_engine import find_engine

    _, fit = fit_of_all
    assert {engine: find_engine(engine).measured for engine in fit.measured} == dict(fit.measured)


def shipped_constants() -> dict[str, float]:
    from simulator.hardware import find_hardware
    from simulator.serving_engine import find_engine

    found = {}
    for constant in CONSTANTS:
        holder = find_engine(constant.engines[0]) if constant.engines else find_hardware("a10").coefficients
        outer, _, inner = constant.name.partition(".")
        quantity = getattr(holder, outer)
        found[constant.id] = (quantity[inner] if inner else quantity).value
    return found


def test_doubt_shrinks_where_runs_speak_and_stays_where_none_do(fit_of_all: tuple[EngineFit, Fit]) -> None:
    _, of_all = fit_of_all
    stds = dict(zip([c.id for c in CONSTANTS], np.sqrt(np.diag(of_all.covariance)), strict=True))
    prior = {c.id: c.prior_log_std for c in CONSTANTS}
    assert all(stds[name] <= 1.15 * prior[name] for name in stds)
    assert stds["sglang_2025:round_overhead_s"] < 0.3 * prior["sglang_2025:round_overhead_s"]


def small(alter: float = 1.0) -> list[PublishedCase]:
    """A few runs of three families; measured speedups of one are altered."""
    chosen: list[PublishedCase] = []
    for family, factor in (("VK", 1.0), ("ANG", alter), ("MOE", 1.0)):
        cases = [case for case in published_cases() if case.family == family][:4]
        chosen += [replace(case, measured_speedup=case.measured_speedup * factor) for case in cases]
    return chosen


def test_a_family_that_is_left_out_leaves_no_trace() -> None:
    """Measured values of the family do not reach the fit; constants of engines that only it uses are the prior's."""
    found = EngineFit(small()).fit(without="ANG")
    altered = EngineFit(small(1.5)).fit(without="ANG")
    assert np.array_equal(found.log_values, altered.log_values)
    assert not np.allclose(EngineFit(small()).fit().log_values, EngineFit(small(1.5)).fit().log_values)
    values = found.quantities()
    for constant in CONSTANTS:
        if constant.engines == ("vllm",):
            assert values[constant.id].value == pytest.approx(constant.prior, rel=1e-3)
            assert values[constant.id].doubt == pytest.approx(constant.prior_log_std, rel=0.02)


def test_slopes_are_differences_over_the_cases_a_constant_concerns() -> None:
    fit = EngineFit(small())
    chosen = list(range(len(fit.cases)))
    slopes = fit.slopes(fit.prior, chosen)
    for column, constant in enumerate(CONSTANTS):
        moved_values = fit.prior.copy()
        moved_values[column] += 0.02
        full = (fit.errors(moved_values, chosen) - fit.errors(fit.prior, chosen)) / 0.02
        assert np.allclose(slopes[:, column], full, atol=1e-12), constant.id


def test_what_moved_is_told_with_its_direction(shipped: list[Scored]) -> None:
    chosen = shipped[:3]
    old = {
        each.case.point.id: (each.prediction.speedup or 0) * factor for each, factor in zip(chosen, (1.0, 1.2, 0.9), strict=True)
    }
    found = moved(chosen, old)
    assert [each.scored.case.point.id for each in found] == [chosen[1].case.point.id, chosen[2].case.point.id]
    assert all(each.better == (abs(each.scored.error) < abs(each.old_error)) for each in found)


def test_a_run_without_a_prediction_counts_as_wrong() -> None:
    case = published_cases()[0]
    nothing = Scored(case, Prediction(case.point.id, "unsupported", "because"))
    assert math.isinf(nothing.error)
    assert nothing.sign_right is False
    assert nothing.inside is False


def test_the_command_scores_writes_and_compares(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "p.csv"
    assert main(["validate", "--published", "--out", str(out), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert {part["title"] for part in told["tables"]} >= {"By family", "By method", "Beside other rules"}
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(published_cases())
    assert main(["validate", "--published", "--diff", str(out)]) == 0
    assert "0 runs moved" in capsys.readouterr().out
    assert main(["validate"]) == 2
    assert "--published" in capsys.readouterr().err
    assert main(["validate", "--published", "--diff", str(tmp_path / "none.csv")]) == 2


def test_the_table_of_runs_is_that_of_predict(shipped: list[Scored]) -> None:
    (row,) = csv.DictReader(table(shipped[:1]).splitlines())
    assert float(row["speedup"]) == pytest.approx(shipped[0].prediction.speedup, rel=1e-5)


def test_the_page_holds_what_is_computed_between_its_marks() -> None:
    page = (Path(__file__).parents[1] / "docs" / "accuracy.md").read_text(encoding="utf-8")
    assert (page.count(BEGIN), page.count(END)) == (1, 2)
    assert (Path(__file__).parents[1] / "docs" / "figures" / "accuracy.png").exists()


def test_the_figure_draws_every_run(shipped: list[Scored]) -> None:
    figure = accuracy_figure(shipped)
    drawn = [sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o") for axes in figure.axes]  # type: ignore[arg-type]
    assert drawn == [len(shipped)] * 3


def test_a_run_beyond_the_axes_is_marked_at_their_edge_and_said_to_be_beyond(shipped: list[Scored]) -> None:
    first = shipped[0].case
    far = replace(shipped[0], case=replace(first, measured_speedup=first.measured_speedup * first.measured_r / 7.5))
    axes = draw_against(Figure().subplots(), [far, *shipped[1:]])
    (marked,) = [line for line in axes.lines if line.get_marker() == "^"]
    assert list(marked.get_xdata()) == [ENDS[1]]  # type: ignore[arg-type]
    assert all(ENDS[0] <= value <= ENDS[1] for value in (*axes.get_xlim(), *axes.get_ylim(), *marked.get_ydata()))  # type: ignore[misc]
    assert [text.get_text() for text in axes.texts] == ["triangles: 1 run beyond the axes, R up to 7.50"]
    assert sum(len(line.get_xdata()) for line in axes.lines if line.get_marker() == "o") == len(shipped) - 1  # type: ignore[arg-type]
    assert not draw_against(Figure().subplots(), shipped).texts


def test_a_file_is_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_text("old")
    write(path, "new")
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_shipped_cases_lie_in_the_package_data() -> None:
    assert (resources.folder("published_cases") / "cases.csv").exists()


def test_shipped_correlations_are_those_of_the_fit(fit_of_all: tuple[EngineFit, Fit]) -> None:
    """`validate --published --refit` writes them beside the constants."""
    from simulator.serving_engine import find_engine

    _, fit = fit_of_all
    for engine in {engine for constant in CONSTANTS for engine in constant.engines}:
        shipped, found = find_engine(engine).correlations, fit.correlations(engine)
        for first, others in found.items():
            for second, value in others.items():
                assert shipped.get(first, {}).get(second, 0.0) == pytest.approx(value, abs=0.1), (engine, first, second)


def test_every_family_is_named_beside_its_code(shipped: list[Scored]) -> None:
    """The codes of families are short for who published the runs, which the tables say."""
    title, header, rows = next(accuracy_tables(shipped, None))
    assert (title, header[-1]) == ("By family", "published by")
    known: dict[str, str] = {}
    for each in shipped:
        known.setdefault(each.case.family, each.case.citation)
    assert {row[0] for row in rows} == {*known}
    for row in rows:
        assert len(row) == len(header)
        first = row[-1].split(",")[0].split("#")[0]
        assert first in known[row[0]]
