"""Laws of the pages: a number, its interval, its words and the advice beside it say the same."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from functools import cache

import pytest

from simulator.__main__ import main
from simulator.cost.spread import Estimate
from simulator.interchange.engine_settings import PromptsApart, Setting, snippets
from simulator.kernel_switches import KernelSwitches
from simulator.plots.tornado import tornado_figure
from simulator.printed_numbers import significant, times
from simulator.questions.break_even import BreakEven, break_even
from simulator.questions.capacity import capacity
from simulator.questions.comparison import ComparedScenarios, compare
from simulator.questions.explanation import Explanation, explain
from simulator.questions.schedule import ScheduleAnswer, schedule
from simulator.reports.break_even_page import break_even_page
from simulator.reports.capacity_page import capacity_page
from simulator.reports.comparison import comparison_summary
from simulator.reports.comparison_page import comparison_page
from simulator.reports.explanation import explanation_summary
from simulator.reports.explanation_page import explanation_page
from simulator.reports.exports import setting_files
from simulator.reports.files import to_json
from simulator.reports.html import html
from simulator.reports.page import Code
from simulator.reports.run_page import run_page
from simulator.reports.schedule_page import schedule_page
from simulator.reports.summary import csv_text
from simulator.reports.tables import break_even_tables
from simulator.simulation import simulate
from tests.test_reports import OPEN, SCENARIO, WITHOUT_LEVEL, scenario, with_gain

FEW = WITHOUT_LEVEL.replace("num_requests: 60", "num_requests: 3")
# An interval that nothing is known of.
UNKNOWN = Estimate(1.2, 0.0, math.inf)


@cache
def breaks_even(text: str = SCENARIO) -> BreakEven:
    return break_even(scenario(text), batches=(1, 16, 256))


@cache
def compared(text: str = FEW, axis: str = "quantize", values: tuple[str, ...] = ("bf16", "fp8")) -> ComparedScenarios:
    return compare(scenario(text), axis, values)


@cache
def explained() -> Explanation:
    return explain(scenario(), 2, batch=4, context=600)


@cache
def scheduled() -> ScheduleAnswer:
    return schedule(scenario(FEW))


def test_a_loss_in_time_has_the_interval_of_the_number_that_is_told() -> None:
    result = simulate(scenario(FEW))
    chosen, only = with_gain(result, Estimate(0.5, 0.4, 0.8), "lose", "mean time per output token")
    told = run_page(only).verdict
    assert (told.number, told.number_is.split()[0]) == ("2.00×", "longer")
    assert told.interval == Estimate(2.0, 1.25, 2.5)
    assert run_page(with_gain(result, Estimate(2.0, 1.5, 3.0), "win", chosen.metric)[1]).verdict.interval == Estimate(
        2.0, 1.5, 3.0
    )


def test_an_interval_that_nothing_is_known_of_is_not_drawn() -> None:
    page = explanation_page(explained())
    unknown = replace(page, verdict=replace(page.verdict, interval=UNKNOWN))
    assert '<div class="interval">' in html(page, {})
    assert '<div class="interval">' not in html(unknown, {})


def test_ends_of_an_open_acceptance_of_which_one_is_unknown_have_no_bar() -> None:
    result = simulate(
        scenario(OPEN.replace("service_level: {tpot_p99_s: 0.02}\n", "").replace("num_requests: 60", "num_requests: 3"))
    )
    low, high = (each for each in result.comparisons if each.variant.shape == result.comparisons[0].variant.shape)
    ends = (replace(low, gain=UNKNOWN, verdict="close"), replace(high, gain=Estimate(1.4, 1.3, 1.5), verdict="win"))
    told = run_page(replace(result, comparisons=ends)).verdict
    assert told.outcome == "it depends on acceptance"
    assert told.interval is None


def test_few_requests_leave_json_without_infinity_and_with_what_is_known() -> None:
    answer = compared()
    row = replace(answer.rows[0], gain=UNKNOWN)
    data = json.loads(to_json(comparison_summary(replace(answer, rows=(row, *answer.rows[1:])))))
    assert data["rows"][0]["gain"] == {"value": 1.2, "low": None, "high": None}
    assert data["rows"][1]["plain_tpot_s"] > 0
    changed = replace(explained(), r=Estimate(1.2, 1.1, math.inf))
    assert json.loads(to_json(explanation_summary(changed)))["r_high"] is None


def test_numbers_of_a_summary_have_six_digits() -> None:
    for data in (comparison_summary(compared()), explanation_summary(explained())):
        for text in json.dumps(data).replace(",", " ").replace("}", " ").replace("]", " ").split():
            digits = text.partition("e")[0].replace(".", "").lstrip("-0").rstrip("0")
            assert not digits.isdecimal() or "." not in text or len(digits) <= 6


def test_a_label_with_a_comma_stays_one_cell() -> None:
    rows = [{"variant": 'EAGLE-3, γ = 2, "low"', "rate_per_s": 1.25}, {"variant": "plain", "rate_per_s": None}]
    read = list(csv.DictReader(io.StringIO(csv_text(rows))))
    assert [row["variant"] for row in read] == [row["variant"] for row in rows]
    assert [row["rate_per_s"] for row in read] == ["1.25", ""]
    assert csv_text([], ["a", "b"]) == "a,b\n"


def test_what_no_acceptance_repays_is_not_given_a_number_to_reach() -> None:
    answer = breaks_even()
    points = tuple(
        replace(point, r=point.shape.depth + 1.5, break_even_acceptance_rate=None, speedup=0.5) if point.batch == 1 else point
        for point in answer.points
    )
    facts = break_even_page(replace(answer, points=points)).verdict.facts
    assert facts[0].value == "not possible"
    assert "yields at most" in facts[0].remark
    assert all("≥" in fact.value for fact in facts[1:])


@pytest.mark.parametrize(
    ("wins_at", "outcome"),
    [((1, 16, 256), "wins at every batch that fits"), ((1, 16), "wins at small batch"), ((256,), "wins at some batches")],
)
def test_a_win_in_company_is_not_called_one_at_small_batch(wins_at: tuple[int, ...], outcome: str) -> None:
    answer = breaks_even()
    points = tuple(replace(each, speedup=1.5 if each.batch in wins_at else 0.8, fits=True) for each in answer.points)
    told = break_even_page(replace(answer, points=points)).verdict
    assert told.outcome == outcome
    assert told.number == (str(max(wins_at)) if 1 in wins_at else "")


def test_a_batch_that_does_not_fit_is_in_brackets_in_every_row() -> None:
    for _, _, rows in break_even_tables(breaks_even()):
        for column in range(1, len(rows[0])):
            assert len({row[column].startswith("(") for row in rows}) == 1


def test_a_page_names_the_source_of_acceptance_in_a_line_and_in_full_at_its_end() -> None:
    text = SCENARIO.replace("{acceptance_rate: 0.6}", "{profile: llama31_8b_eagle3_mtbench}")
    page = break_even_page(break_even(scenario(text), batches=(1,), contexts=(512,)))
    assert "llama31_8b_eagle3_mtbench" in page.asked
    assert len(page.asked) < 300


def test_what_cannot_be_served_or_never_wins_is_not_called_a_break_even() -> None:
    answer = explained()
    assert answer.verdict == "win"
    outcomes = {
        "speculation wins": answer,
        "cannot be served so": replace(answer, verdict=""),
        "what it takes to break even": replace(answer, verdict="", speedup=None, mean_acceptance_length=None),
        "loses at any acceptance": replace(
            answer, verdict="", speedup=None, mean_acceptance_length=None, r=Estimate(3.5, 3.2, 3.9)
        ),
    }
    for outcome, changed in outcomes.items():
        page = explanation_page(changed)
        assert page.verdict.outcome == outcome
        assert page.title.endswith(outcome)
        assert ("why " in page.title) == bool(changed.verdict)


def test_a_fact_of_an_open_acceptance_shows_the_range_that_its_gain_is_of() -> None:
    answer = compared()
    row = replace(answer.rows[0], tpot_s=(0.0076, 0.0030), gain=Estimate(1.63, 0.84, 3.0))
    fact = comparison_page(replace(answer, rows=(row,))).verdict.facts[0]
    assert fact.value == "3.00–7.60 ms"
    assert "gain 1.63×" in fact.remark


def test_a_comparison_is_named_in_words_and_not_by_its_flag() -> None:
    page = comparison_page(compared())
    assert page.title.endswith("compared by type of weights")
    assert "quantize" not in page.title + page.asked + page.verdict.outcome


@pytest.mark.parametrize(("demand", "set_it"), [(0.5, False), (100.0, True)])
def test_the_advice_about_a_demand_is_what_the_sentences_say(demand: float, set_it: bool) -> None:
    page = capacity_page(capacity(scenario(WITHOUT_LEVEL + f"planning: {{demand_per_s: {demand}}}\n"), repetitions=1))
    said = " ".join(page.verdict.sentences)
    assert ("set it;" in said) is set_it
    assert page.verdict.advice.startswith("Serve with") is set_it
    assert ("set what run names" in page.verdict.advice) is not set_it
    settings = next(section for section in page.sections if section.title == "Settings to use")
    assert any("for filled copies" in getattr(block, "text", "") for block in settings.blocks) is (
        not set_it and page.verdict.tone == "good"
    )


def test_every_row_of_a_table_by_batch_is_a_fact_and_a_single_batch_no_range() -> None:
    answer = scheduled()
    table = ((1, 1, 5), (2, 8, 4), (9, 16, 3), (17, 64, 2), (65, 256, 0))
    changed = replace(answer, table=table, gain=Estimate(1.1, 1.05, 1.2))
    assert changed.needed
    page = schedule_page(changed)
    assert [fact.name for fact in page.verdict.facts] == ["at batch 1", *(f"at batch {a} to {b}" for a, b, _ in table[1:])]
    assert "1 × " not in page.asked


def test_a_caption_speaks_of_the_dashed_line_only_where_there_is_one() -> None:
    moved = explained().sensitivity
    far, near = (replace(moved, speedup=Estimate(value, value, value)) for value in (6.0, 1.02))
    assert "Dashed" not in tornado_figure(far).get_label()
    assert "Dashed" in tornado_figure(near).get_label()
    assert len(tornado_figure(near).axes[0].lines) == 1 + len(tornado_figure(far).axes[0].lines)


def test_uncertain_coefficients_are_named_with_their_unit_as_the_sentence_below_names_them(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["explain", "quickstart", "--gamma", "3", "--batch", "4"]) == 0
    told = capsys.readouterr().out
    assert "draft_step_overhead_s.default" in told
    assert "draft step, default" not in told


def test_the_least_rate_that_fails_is_told_without_an_exponent() -> None:
    assert [significant(value, 1) for value in (12.5, 3.0, 0.25)] == ["10", "3", "0.2"]
    assert times(1.0) == "1.00×"


def test_settings_of_one_command_line_do_not_replace_each_other() -> None:
    setting = Setting(
        "eagle3",
        3,
        "a/b",
        prompts_apart=PromptsApart(2, 4, 8),
        kernels=KernelSwitches(attention_backend="triton", deterministic=True),
    )
    for engine in ("vllm", "sglang"):
        found = snippets(engine, setting)
        (text,) = setting_files(found).values()
        assert len(found) > 1
        assert all(snippet.text.strip() in text for snippet in found)
    table = Setting("eagle3", 3, "a/b", by_batch=((1, 8, 3), (9, 64, 0)))
    assert set(setting_files(snippets("sglang", table))) == {"sglang_flags.txt", "sglang_adaptive.json"}


def test_settings_of_another_engine_are_said_not_to_be_simulated_on_every_page() -> None:
    page = schedule_page(scheduled())
    about = [block.about for section in page.sections for block in section.blocks if isinstance(block, Code)]
    assert about[0] == "For vllm, on the command line:"
    assert all("(not the engine simulated)" in text for text in about[1:])
