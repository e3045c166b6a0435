"""Laws of the figures: what the tables hold, and that every figure says what it shows, in which unit, and from where."""

from __future__ import annotations

import math
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import matplotlib
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from simulator import theory
from simulator.plots import best_gamma, rates, rounds, speedup, style, tornado, traffic
from simulator.plots import break_even as break_even_plots
from simulator.plots import figures as page_figures
from simulator.plots.words import provenance, source_counts
from simulator.prediction import OperatingPoint
from simulator.printed_numbers import milliseconds, significant
from simulator.questions.break_even import BestGamma, BreakEven, BreakEvenPoint, break_even
from simulator.questions.capacity import capacity
from simulator.questions.explanation import explain, explain_point
from simulator.questions.load_curve import load_curve
from simulator.questions.sensitivity import sensitivity
from simulator.scenario import Scenario, scenario_of
from simulator.simulation import SimulationResult, simulate
from simulator.spec import Document, parse_yaml

SCENARIO = """
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance: {acceptance_rate: 0.6}
workload:
  arrivals: {process: poisson, rate_per_s: 10}
  lengths: {prompt: 600, output: {distribution: lognormal, median: 60, p90: 150}}
  num_requests: 80
limits: {max_model_len: 16384}
seed: 7
"""


def scenario(text: str = SCENARIO) -> Scenario:
    return scenario_of(parse_yaml(text, "chat.yaml"))


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return simulate(scenario())


@pytest.fixture(scope="module")
def plain_result() -> SimulationResult:
    without = re.sub(r"(?m)^(speculation|acceptance):.*\n", "", SCENARIO)
    return simulate(scenario(without))


@pytest.fixture(scope="module")
def answer() -> BreakEven:
    return break_even(scenario(), batches=(1, 16, 256), contexts=(512, 8192))


@pytest.fixture(scope="module")
def figures(result: SimulationResult, answer: BreakEven) -> dict[str, Figure]:
    return dict([*page_figures.run_figures(result), *page_figures.break_even_figures(answer)])


NAMES = ("speedup", "round", "latency", "load", "break_even", "best_gamma")


def points_of(line: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in np.asarray(line.get_xydata())]


def texts(figure: Figure) -> str:
    return "\n".join(text.get_text() for axes in figure.axes for text in axes.texts)


# ------------------------------------------------------------------------------------------------------ every figure


def test_a_run_with_speculation_has_every_figure(figures: dict[str, Figure]) -> None:
    assert tuple(figures) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_axis_labels_state_their_unit(figures: dict[str, Figure], name: str) -> None:
    labels = [label for axes in figures[name].axes for label in (axes.get_xlabel(), axes.get_ylabel()) if label]
    assert labels
    assert all(re.search(r"\(.+\)", label) for label in labels), labels


@pytest.mark.parametrize("name", NAMES)
def test_the_caption_names_scenario_device_engine_seed_and_sources(figures: dict[str, Figure], name: str) -> None:
    caption = " ".join(figures[name].get_supxlabel().split())
    for part in ("Scenario chat, seed 7", "EAGLE-3", "NVIDIA H100 SXM (constants:", "vLLM V1", "fitted", "assumed"):
        assert part in caption
    assert "Acceptance: stated in the scenario" in caption


@pytest.mark.parametrize("name", NAMES)
def test_a_title_states_a_finding_with_a_number_and_fits_on_the_slide(figures: dict[str, Figure], name: str) -> None:
    title = figures[name].get_suptitle()
    assert re.search(r"\d", title)
    assert all(len(line) <= style.TITLE_COLUMNS for line in title.split("\n"))
    assert title.count("\n") <= 1


@pytest.mark.parametrize("name", NAMES)
def test_a_saved_figure_is_one_slide_drawn_without_warnings(figures: dict[str, Figure], name: str, tmp_path: Path) -> None:
    style.save(figures[name], tmp_path / "figure.png")
    assert [path.name for path in tmp_path.iterdir()] == ["figure.png"]
    width, height = (int.from_bytes((tmp_path / "figure.png").read_bytes()[at : at + 4], "big") for at in (16, 20))
    assert (width, height) == (1600, 900)


def test_a_figure_that_fails_leaves_the_old_file_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "figure.png").write_bytes(b"old")

    def fail(self: Figure, *args: object, **kwargs: object) -> None:
        raise RuntimeError("no")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(RuntimeError):
        style.save(Figure(), tmp_path / "figure.png")
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("figure.png", b"old")]


def test_drawing_leaves_the_settings_of_matplotlib_alone(result: SimulationResult) -> None:
    before = dict(matplotlib.rcParams)
    speedup.speedup_figure(result)
    assert dict(matplotlib.rcParams) == before


def test_importing_plots_and_reports_imports_neither_matplotlib_nor_pyarrow() -> None:
    code = (
        "import sys, simulator.reports.files, simulator.reports.server_fit\n"  # all pages, all figures
        "print([m for m in ('matplotlib', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_ticks_of_a_logarithmic_axis_are_plain_numbers() -> None:
    axes = Figure().subplots()
    axes.set(xscale="log", xlim=(0.5, 300))
    style.plain_numbers(axes.xaxis, (1, 2, 4, 256))
    assert [axes.xaxis.get_major_formatter()(tick) for tick in axes.get_xticks()] == ["1", "2", "4", "256"]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.lists(st.floats(0, 1), min_size=1, max_size=8), st.floats(0.01, 0.12))
def test_spread_labels_keep_their_order_their_distance_and_their_bounds(positions: list[float], gap: float) -> None:
    placed = style.spread(positions, gap, 0.0, 1.0)
    order = sorted(range(len(positions)), key=lambda index: positions[index])
    rising = [placed[index] for index in order]
    assert all(after - before >= gap - 1e-9 for before, after in pairwise(rising))
    assert min(placed) >= -1e-9
    assert max(placed) <= 1 + 1e-9


# ------------------------------------------------------------------------------------------------------ words and numbers


@settings(max_examples=200, derandomize=True, deadline=None)
@given(st.floats(1e-9, 1e9))
def test_three_significant_digits_are_right_to_half_a_percent_and_have_no_exponent(value: float) -> None:
    shown = significant(value)
    assert "e" not in shown
    assert float(shown.replace(",", "")) == pytest.approx(value, rel=0.005001)


def test_milliseconds_carry_their_unit() -> None:
    assert milliseconds(0.01234) == "12.3 ms"


def test_provenance_lists_every_constant_of_device_and_engine_once() -> None:
    constants = provenance(scenario())
    names = [(constant.holder, constant.name) for constant in constants]
    assert len(set(names)) == len(names)
    assert {"memory_bandwidth_fraction", "flops_fraction.bf16", "memory_bandwidth_bytes_per_s"} <= {
        n for h, n in names if h == "hardware"
    }
    assert {"round_overhead_s", "draft_step_overhead_s.default"} <= {n for h, n in names if h == "engine"}
    assert not any(name.startswith("all_reduce") for _, name in names)


def test_provenance_of_several_devices_holds_the_all_reduce_in_use() -> None:
    wide = provenance(scenario(SCENARIO + "parallel: {tensor_parallel_size: 4}\n"))
    assert "all_reduce.custom.4.alpha_s" in {constant.name for constant in wide}


def test_an_overridden_coefficient_is_counted_as_an_override() -> None:
    changed = SCENARIO.replace("hardware: h100_sxm", "hardware: {base: h100_sxm, memory_bandwidth_fraction: 0.5}")
    assert "1 override" in source_counts(provenance(scenario(changed)), "hardware")


# ------------------------------------------------------------------------------------------------------------ break-even


def point(gamma: int, batch: int, rate: float | None, fits: bool = True) -> BreakEvenPoint:
    r = gamma + 1.5 if rate is None else theory.mean_acceptance_length(rate, gamma)
    return BreakEvenPoint(gamma, batch, 512, r, r / 1.1, r * 1.1, rate, None, None, None, None, fits)


def test_every_panel_has_one_line_for_each_gamma(figures: dict[str, Figure], answer: BreakEven) -> None:
    for axes, context in zip(figures["break_even"].axes, answer.contexts, strict=True):
        assert f"{context:,} tokens" in axes.get_title(loc="left")
        lines = [str(line.get_label()) for line in axes.lines if str(line.get_label()).startswith("γ")]
        assert lines == [f"γ = {gamma}" for gamma in range(1, 9)]


def test_lines_hold_the_break_even_rates_of_the_batches_that_fit(figures: dict[str, Figure], answer: BreakEven) -> None:
    line = next(line for line in figures["break_even"].axes[1].lines if line.get_label() == "γ = 3")
    expected = {
        p.batch: p.break_even_acceptance_rate
        for p in answer.points
        if (p.context_tokens, p.num_speculative_tokens, p.fits) == (8192, 3, True)
    }
    assert dict(points_of(line)) == pytest.approx(expected)
    assert 256 not in expected


def test_batches_that_the_kv_cache_cannot_hold_are_marked_in_that_panel_only(figures: dict[str, Figure]) -> None:
    short, long = ({text.get_text() for text in axes.texts} for axes in figures["break_even"].axes)
    assert "beyond the KV cache" not in short
    assert "beyond the KV cache" in long


def test_a_line_ends_with_a_cross_where_no_acceptance_wins_at_the_next_batch() -> None:
    points = [point(1, 1, 0.4), point(1, 2, 0.9), point(1, 4, None), point(2, 1, 0.3), point(2, 2, 0.5), point(2, 4, 0.7)]
    axes = break_even_plots.draw_break_even(Figure().subplots(), points, 2)
    crosses = [points_of(line) for line in axes.lines if line.get_marker() == "x"]
    assert [cross for cross in crosses if cross] == [[(2, 0.9)]]


def test_a_gamma_that_never_wins_is_named() -> None:
    points = [point(1, 1, None), point(1, 2, None), point(2, 1, 0.3), point(2, 2, 0.5)]
    axes = break_even_plots.draw_break_even(Figure().subplots(), points, 2)
    assert "no α wins with γ = 1" in {text.get_text() for text in axes.texts}


@settings(max_examples=50, derandomize=True, deadline=None)
@given(st.integers(1, 8), st.floats(0.05, 0.95))
def test_the_shaded_interval_holds_the_break_even_rate(gamma: int, rate: float) -> None:
    low, high = break_even_plots.interval_of(point(gamma, 1, rate))
    assert 0 <= low <= rate + 1e-9
    assert rate - 1e-9 <= high <= 1


def test_the_scenarios_acceptance_is_drawn_as_the_alpha_that_gives_its_length(answer: BreakEven) -> None:
    assert break_even_plots.acceptance_band(answer) == pytest.approx((0.6, 0.6))


def test_open_acceptance_is_drawn_as_the_methods_measured_band() -> None:
    opened = break_even(scenario(SCENARIO.replace("acceptance: {acceptance_rate: 0.6}\n", "")), batches=(1,), contexts=(512,))
    band = break_even_plots.acceptance_band(opened)
    assert band is not None
    assert 0 < band[0] < band[1] <= 1
    assert not opened.best
    with pytest.raises(ValueError, match="states its acceptance"):
        best_gamma.best_gamma_map(opened)


def test_the_map_names_gamma_and_speedup_in_each_cell_and_hatches_what_does_not_fit() -> None:
    cells = (BestGamma(1, 512, 3, 1.62, True), BestGamma(8, 512, 0, 0.91, True), BestGamma(64, 512, 2, 1.2, False))
    axes = best_gamma.draw_best_gamma(Figure().subplots(), cells)
    assert [text.get_text() for text in axes.texts] == ["γ = 3", "1.62×", "off", "0.910×", "γ = 2", "1.20×"]
    hatched = [patch for patch in axes.patches if isinstance(patch, Rectangle) and patch.get_hatch()]
    assert [patch.get_x() for patch in hatched] == [1.5]
    assert [tick.get_text() for tick in axes.get_xticklabels()] == ["1", "8", "64"]


# ------------------------------------------------------------------------------------------------------------- one round


def test_the_speedup_line_crosses_one_at_r_and_the_textbook_never_lies_below_it(result: SimulationResult) -> None:
    comparison = speedup.best_of(result)
    table = speedup.speedup_table(comparison)
    assert np.interp(comparison.r.value, table.mean_acceptance_length, table.speedup) == pytest.approx(1)
    assert (table.low < table.speedup).all()
    assert (table.speedup < table.high).all()
    assert comparison.round.verification_cost_ratio >= 1
    assert (table.textbook >= table.speedup).all()


def test_the_break_even_is_marked_at_r(figures: dict[str, Figure], result: SimulationResult) -> None:
    comparison = speedup.best_of(result)
    axes = figures["speedup"].axes[0]
    assert [(comparison.r.value, 0), (comparison.r.value, 1)] in [points_of(line) for line in axes.lines]
    assert f"R = {significant(comparison.r.value)}" in texts(figures["speedup"])
    assert f"τ = {significant(comparison.mean_acceptance_length)} as simulated" in texts(figures["speedup"])


def test_bars_sum_to_plain_step_round_and_round_per_token(result: SimulationResult) -> None:
    comparison = speedup.best_of(result)
    plain, one_round, per_token = rounds.round_table(comparison.round, comparison.mean_acceptance_length)
    assert plain.seconds == pytest.approx(comparison.round.plain_step_s)
    assert one_round.seconds == pytest.approx(comparison.r.value * plain.seconds)
    assert per_token.seconds == pytest.approx(one_round.seconds / comparison.mean_acceptance_length)
    assert all(seconds >= 0 for bar in (plain, one_round, per_token) for _, seconds in bar.terms)


def test_figures_of_a_comparison_need_speculation(plain_result: SimulationResult) -> None:
    for draw in (speedup.speedup_figure, rounds.round_figure):
        with pytest.raises(ValueError, match="needs a scenario with speculation"):
            draw(plain_result)


def test_a_run_without_speculation_still_shows_latency_and_load(plain_result: SimulationResult) -> None:
    shown = dict(page_figures.run_figures(plain_result))
    assert list(shown) == ["latency", "load"]
    assert "Acceptance" not in shown["load"].get_supxlabel()


# --------------------------------------------------------------------------------------------------------------- traffic


@pytest.mark.parametrize("latency", ["tpot_s", "e2e_latency_s"])
def test_distributions_rise_and_their_medians_are_the_summarys(result: SimulationResult, latency: str) -> None:
    value: Callable[..., float | None] = lambda record: getattr(record, latency)  # noqa: E731
    for variant, _, _ in traffic.variants(result):
        values = traffic.latency_table(variant, value)
        assert (np.diff(values) >= 0).all()
        assert float(np.median(values)) == pytest.approx(getattr(variant.summary, latency).p50)


def test_load_over_time_conserves_sequence_seconds(result: SimulationResult) -> None:
    for variant, _, _ in traffic.variants(result):
        steps = variant.result.steps
        seconds = steps.column("seconds")
        end_s = float((steps.column("start_s") + seconds).max())
        table = traffic.load_table(variant, end_s)
        spent = float(steps.column("running") @ seconds)
        assert table.running.sum() * end_s / len(table.running) == pytest.approx(spent)
        assert ((table.kv_used >= 0) & (table.kv_used <= 1)).all()
        assert not math.isnan(float(table.waiting.sum()))


# ------------------------------------------------------------------------------------- what moves a verdict, and capacity


def test_the_longest_bar_is_on_top_and_bars_end_at_their_effect() -> None:
    found = sensitivity(scenario(), batch=8, context=700)
    levers = tornado.shown_levers(found)
    axes = tornado.draw_tornado(Figure().subplots(), levers)
    widths: dict[int, list[float]] = {}
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        widths.setdefault(round(patch.get_y() + patch.get_height() / 2), []).append(patch.get_width())
    reaches = [max(map(abs, widths[row])) for row in range(len(levers))]
    assert reaches == sorted(reaches, reverse=True)
    assert reaches == pytest.approx([100 * lever.reach for lever in levers])
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first row is the highest
    title = tornado.tornado_figure(found).get_suptitle()
    assert re.search(r"\d", title)


def test_rates_are_drawn_as_simulated_with_the_service_level_as_a_line() -> None:
    level = SCENARIO + "service_level: {tpot_p90_s: 0.012}\n"
    answer = capacity(scenario(level.replace("num_requests: 80", "num_requests: 60")), repetitions=1)
    figure = rates.rates_figure(answer)
    (axes,) = figure.axes
    for shown in rates.lines_of(answer):
        line = next(line for line in axes.lines if line.get_label() == shown.name)
        expected = [(point.rate_per_s, 1e3 * point.tpot_s.p90) for point in shown.points if point.tpot_s is not None]
        assert np.asarray(points_of(line)) == pytest.approx(np.asarray(expected))
        assert len(expected) > 3
    assert any(list(np.asarray(line.get_ydata())) == [12.0, 12.0] for line in axes.lines)
    assert "service level 12 ms" in texts(figure)
    assert "(ms)" in axes.get_ylabel()


def test_a_long_name_in_the_legend_narrows_no_panel_of_the_latencies(result: SimulationResult) -> None:
    best = result.comparisons[0]
    named = replace(best, variant=replace(best.variant, label=f"γ = 3, τ = 3.66 (low end), {'a long name ' * 6}"))
    figure = traffic.latency_figure(replace(result, comparisons=(named,)))
    figure.draw_without_rendering()
    left, right = (axes.get_position() for axes in figure.axes)
    assert left.width == pytest.approx(right.width, rel=0.02)
    assert right.x0 - left.x1 < 0.1


def test_a_long_name_in_the_legend_narrows_no_panel_of_the_rates() -> None:
    answer = capacity(scenario(SCENARIO.replace("num_requests: 80", "num_requests: 60")), repetitions=1)
    renamed = [replace(line, name=f"{line.name}, a name that is longer than a panel is wide") for line in rates.lines_of(answer)]
    figure = style.new_figure("Requests per second", "caption")
    rates._draw_panels(figure, rates.panels(answer.scenario), renamed)
    FigureCanvasAgg(figure).draw()
    first, second = (axes.get_position() for axes in figure.axes)
    assert second.x0 - first.x1 < 0.15
    assert first.width == pytest.approx(second.width, rel=0.01)


def test_an_explained_round_is_the_one_of_the_explanation() -> None:
    answer = explain(scenario(), batch=4, context=700)
    plain, one_round, per_token = rounds.round_table(answer.cost, answer.mean_acceptance_length)
    assert one_round.seconds / plain.seconds == pytest.approx(answer.r.value)
    assert answer.speedup is not None
    assert plain.seconds / per_token.seconds == pytest.approx(answer.speedup.value)
    assert len(rounds.round_table(answer.cost, None)) == 2


def test_no_two_terms_of_a_round_look_alike_however_many_exchange_over_nodes() -> None:
    """A mixture over stages, ranks and nodes has more terms on the device than the palette has blues."""
    point = OperatingPoint(
        hardware="h100_sxm", engine="vllm", target_model="Qwen/Qwen3-235B-A22B", precision="bf16", method="eagle3",
        num_speculative_tokens=3, batch=64, context_len=8192, tensor_parallel_size=4, pipeline_parallel_size=4,
        data_parallel_size=2, expert_parallel=True, nodes=4, mean_acceptance_length=2.5,
    )  # fmt: skip
    answer = explain_point(point, Document("", point.model_dump(exclude_none=True)))
    bars, host = rounds.round_table(answer.cost, answer.mean_acceptance_length), rounds.host_terms(answer.cost)
    names = list(dict.fromkeys(name for bar in bars for name, _ in bar.terms))
    assert len([name for name in names if not name.startswith("draft") and name not in {rounds.OTHER, *host}]) > 6
    assert len(set(rounds.term_colours(names, host).values())) == len(names)
    rounds.draw_round(Figure().subplots(), bars, host)


def test_latency_rises_with_the_rate_and_the_own_rate_is_marked(result: SimulationResult) -> None:
    curve = load_curve(result)
    assert curve is not None
    assert len(curve.lines) == 2
    for _, points in curve.lines:
        waits = [point.ttft_s.mean for point in points if point.ttft_s is not None]
        assert waits[-1] > waits[0]
    figure = rates.load_curve_figure(curve)
    own = (len(result.requests) - 1) / (result.requests[-1].arrival_s - result.requests[0].arrival_s)
    assert all(any(points_of(line)[0][0] == pytest.approx(own) for line in axes.lines) for axes in figure.axes)
    assert "requests per second" in figure.get_suptitle()


def test_users_who_wait_for_their_answers_have_no_rate() -> None:
    closed = SCENARIO.replace("process: poisson, rate_per_s: 10", "process: closed_loop, users: 4")
    assert load_curve(simulate(scenario(closed.replace("num_requests: 80", "num_requests: 20")))) is None
