"""compare: rows are what the changed scenario would say itself, and memory is what the engine's log says."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

import pytest

from simulator import load_scenario
from simulator.__main__ import main
from simulator.questions.comparison import Alternative, ComparedScenarios, compare, memory_taken
from simulator.scenario import Scenario, scenario_of
from simulator.simulation import simulate
from simulator.spec import SpecError, parse_yaml

TEXT = """
hardware: h100_sxm
engine: vllm
parallel: {tensor_parallel_size: TP}
target: {model: meta-llama/Llama-3.1-8B-Instruct, weights: WEIGHTS}
speculation: {method: METHOD, num_speculative_tokens: 3}
acceptance: {acceptance_rate: 0.65}
workload:
  arrivals: {process: closed_loop, users: 6}
  lengths: {prompt: 400, output: 120}
  num_requests: 48
seed: 5
"""


@cache
def scenario(method: str = "eagle", tensor_parallel_size: int = 1, weights: str = "bf16") -> Scenario:
    text = TEXT.replace("TP", str(tensor_parallel_size)).replace("METHOD", method).replace("WEIGHTS", weights)
    return scenario_of(parse_yaml(text, "compared.yaml"))


@cache
def compared(axis: str, values: tuple[str, ...] = (), tensor_parallel_size: int = 1) -> ComparedScenarios:
    return compare(scenario("eagle", tensor_parallel_size), axis, values)


def row(answer: ComparedScenarios, name: str) -> Alternative:
    (found,) = (each for each in answer.rows if each.name.startswith(name))
    return found


def test_a_row_is_what_the_changed_scenario_says_itself() -> None:
    found = row(compared("quantize", ("bf16", "fp8")), "fp8")
    own = simulate(scenario(weights="fp8"))
    (comparison,) = own.comparisons
    assert own.plain.summary.tpot_s is not None
    assert comparison.variant.summary.tpot_s is not None
    assert found.plain_tpot_s == own.plain.summary.tpot_s.mean
    assert found.tpot_s == (comparison.variant.summary.tpot_s.mean,)
    assert found.r == pytest.approx(comparison.round.r)
    assert found.verdict == comparison.verdict


def test_the_scenario_itself_is_the_first_row_of_methods_and_others_are_ranges() -> None:
    answer = compared("method", ("ngram", "eagle3"))
    assert [each.name for each in answer.rows] == ["eagle (own)", "ngram", "eagle3"]
    assert len(answer.rows[0].tpot_s) == 1
    for other in answer.rows[1:]:
        low, high = other.mean_acceptance_lengths
        assert low < high
        assert other.tpot_s[0] > other.tpot_s[1]
        assert other.gain is not None
        assert other.gain.low < other.gain.value < other.gain.high
    assert any("ranges, not predictions" in note for note in answer.notes)


def test_methods_take_the_memory_of_their_drafters() -> None:
    """n-gram takes none; EAGLE a layer's cache: 32 layers hold 32/33 of the tokens' bytes (vllm-project/vllm#19996)."""
    answer = compared("method", ("ngram", "eagle3"))
    nothing, layer = row(answer, "ngram").memory, row(answer, "eagle (own)").memory
    assert nothing is not None
    assert layer is not None
    assert (nothing.draft_weight_bytes, nothing.draft_kv_bytes_per_token, nothing.lookahead_tokens) == (0, 0, 0)
    assert nothing.kv_tokens == nothing.kv_tokens_plain
    assert layer.draft_kv_bytes_per_token == 2 * 8 * 128 * 2
    assert layer.lookahead_tokens == 3
    assert layer.concurrency < layer.concurrency_plain
    left_bytes = layer.kv_tokens * 33 * layer.draft_kv_bytes_per_token
    assert left_bytes + layer.draft_weight_bytes == pytest.approx(
        layer.kv_tokens_plain * 32 * layer.draft_kv_bytes_per_token, rel=1e-3
    )


def test_tokens_and_concurrency_follow_the_log_of_an_engine() -> None:
    """51.63 GiB hold 410,128 tokens of Llama-3.1-8B with an EAGLE layer, which is 410128 // 528 requests of 520 + 3 tokens."""
    memory = memory_taken(scenario(), 3)
    per_token = 32 * 4096 + memory.draft_kv_bytes_per_token
    assert int(51.63 * 2**30 // (16 * per_token)) * 16 == 410128
    assert memory.concurrency == memory.kv_tokens // 528
    assert memory.concurrency_plain == memory.kv_tokens_plain // 528


def test_the_draft_on_fewer_devices_reduces_less_and_leaves_less_room() -> None:
    answer = compared("draft-tp", (), 4)
    assert [each.name for each in answer.rows] == ["draft on 1", "draft on 2", "draft on 4"]
    rooms = [each.memory.kv_tokens for each in answer.rows if each.memory is not None]
    assert rooms == sorted(rooms)
    assert len({each.plain_tpot_s for each in answer.rows}) == 1
    assert len({each.tpot_s for each in answer.rows}) == 3


def test_quantizing_makes_a_plain_step_shorter_and_speculation_worth_less_of_it() -> None:
    """Two by two: both alone help, and together they help less than the product."""
    answer = compared("quantize", ("bf16", "int4"))
    wide, narrow = answer.rows
    assert wide.plain_tpot_s is not None
    assert narrow.plain_tpot_s is not None
    assert narrow.plain_tpot_s < wide.plain_tpot_s
    assert wide.gain is not None
    assert narrow.gain is not None
    assert 1 < narrow.gain.value < wide.gain.value
    assert narrow.tpot_s[0] < wide.tpot_s[0]
    assert narrow.memory is not None
    assert wide.memory is not None
    assert narrow.memory.kv_tokens > wide.memory.kv_tokens


def test_hardware_is_compared_on_the_same_requests_and_what_does_not_fit_says_so() -> None:
    answer = compared("hardware", ("h200_sxm", "rtx_3060_12gb"))
    assert [each.name for each in answer.rows] == ["h100_sxm (own)", "h200_sxm", "rtx_3060_12gb"]
    own, faster, small = answer.rows
    assert faster.plain_tpot_s is not None
    assert own.plain_tpot_s is not None
    assert faster.plain_tpot_s < own.plain_tpot_s == answer.base_tpot_s
    assert small.gain is None
    assert "must fit in memory" in small.problem


@pytest.mark.parametrize(
    ("axis", "values", "words"),
    [
        ("methods", (), "did you mean method?"),
        ("hardware", (), "must be given"),
        ("hardware", ("h2000",), "must be a known hardware profile"),
        ("method", ("eagel",), "did you mean eagle?"),
        ("quantize", ("fp9",), "type of weights"),
        ("draft-tp", ("many",), "numbers of devices"),
    ],
)
def test_wrong_questions_are_one_message(axis: str, values: tuple[str, ...], words: str) -> None:
    with pytest.raises(SpecError, match=words.replace("?", r"\?")):
        compare(scenario(), axis, values)


def test_methods_without_a_drafter_have_no_devices_of_it_to_compare() -> None:
    with pytest.raises(SpecError, match="must have a drafter beside the target"):
        compare(scenario("ngram"), "draft-tp")


def test_the_tables_fit_and_json_holds_all(tmp_path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "compared.yaml"
    path.write_text(scenario().document.source and TEXT.replace("TP", "1").replace("METHOD", "eagle").replace("WEIGHTS", "bf16"))
    assert main(["compare", str(path), "--by", "quantize", "--values", "bf16,int4"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("Fastest: int4 with speculation")
    assert all(len(line.rstrip()) <= 100 for line in printed.splitlines())
    assert main(["compare", str(path), "--by", "quantize", "--values", "bf16,int4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert [each["name"] for each in document["rows"]] == ["bf16", "int4"]
    assert load_scenario(path).name == "compared"


def test_r_counts_rounds_without_a_proposal_as_a_run_does() -> None:
    """n-gram drafting finds nothing in many rounds, which then cost less."""
    text = TEXT.replace("TP", "1").replace("METHOD", "ngram").replace("WEIGHTS", "bf16")
    asked = scenario_of(parse_yaml(text.replace("{acceptance_rate: 0.65}", "{profile: llama31_8b_ngram_edits}"), "n.yaml"))
    (comparison,) = simulate(asked).comparisons
    (own, *_) = compare(asked, "quantize", ("bf16",)).rows
    assert own.r == pytest.approx(comparison.round.r)


@pytest.mark.parametrize(
    ("lengths", "words"),
    [("{prompt: 600000, output: 10}", "48 longer than max_model_len"), ("{prompt: 400, output: 1}", "more than one token")],
)
def test_what_has_no_time_per_token_is_told(lengths: str, words: str) -> None:
    text = TEXT.replace("TP", "1").replace("METHOD", "eagle").replace("WEIGHTS", "bf16")
    asked = scenario_of(parse_yaml(text.replace("{prompt: 400, output: 120}", lengths), "c.yaml"))
    with pytest.raises(SpecError, match=words):
        compare(asked, "quantize", ("fp8",))


def test_where_nothing_could_be_served_there_is_no_empty_table(tmp_path, capsys) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(TEXT.replace("TP", "1").replace("METHOD", "eagle").replace("WEIGHTS", "bf16"))
    assert main(["compare", str(path), "--by", "draft-tp", "--values", "2"]) == 0
    shown = capsys.readouterr().out
    assert "No alternative could be served" in shown
    assert "requests, plain" not in shown


def test_the_figure_shows_each_alternative_with_its_interval_and_the_page_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from matplotlib.figure import Figure

    from simulator.plots.comparison import comparison_title, draw_comparison, served

    answer = compared("quantize")
    axes = draw_comparison(Figure().subplots(), served(answer))
    assert [label.get_text() for label in axes.get_yticklabels()] == [row.name for row in served(answer)]
    assert axes.get_xlabel() == "mean time per output token (ms)"
    bars = [line.get_xdata() for line in axes.lines if line.get_linewidth() == 6]
    for row, (low, high) in zip(served(answer), bars, strict=True):
        assert low == pytest.approx(1e3 * row.plain_tpot_s / row.gain.high)
        assert high == pytest.approx(1e3 * row.plain_tpot_s / row.gain.low)
    fastest = min(served(answer), key=lambda row: min(row.plain_tpot_s, max(row.tpot_s)))
    assert fastest.name in comparison_title(answer)
    path = tmp_path / "s.yaml"
    path.write_text(TEXT.replace("TP", "1").replace("METHOD", "eagle").replace("WEIGHTS", "bf16"))
    assert main(["compare", str(path), "--by", "quantize", "--out", str(tmp_path / "out")]) == 0
    assert "Report and figure:" in capsys.readouterr().out
    written = {each.name for each in (tmp_path / "out").rglob("*") if each.is_file()}
    assert written == {"report.html", "report.md", "comparison.json", "comparison.png", "comparison.svg"}
