"""Laws of the reports: the verdict comes first, numbers are finite and sourced, files are whole, same seed same bytes."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import math
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from simulator import resources
from simulator.cost.spread import Estimate
from simulator.plots.words import provenance
from simulator.prediction import Prediction, predict
from simulator.printed_numbers import significant, times
from simulator.questions.break_even import BreakEven, break_even
from simulator.reports import files, verdict
from simulator.reports.break_even_page import break_even_page
from simulator.reports.files import prepare_directory, to_json, write_break_even, write_run
from simulator.reports.known import known
from simulator.reports.markdown import markdown
from simulator.reports.run_page import run_page
from simulator.reports.summary import break_even_csv, break_even_summary, plain_data, run_summary
from simulator.reports.tables import break_even_tables, prediction_rows, prediction_sentence
from simulator.reports.variants import run_table, width
from simulator.reports.verdict import headline, verdict_sentence
from simulator.scenario import Scenario, scenario_of
from simulator.simulation import Comparison, SimulationResult, simulate
from simulator.spec import SpecError, parse_yaml

SCENARIO = """
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: [2, 4]}
acceptance: {acceptance_rate: 0.6}
workload:
  arrivals: {process: poisson, rate_per_s: 10}
  lengths: {prompt: 600, output: {distribution: lognormal, median: 60, p90: 150}}
  num_requests: 60
limits: {max_model_len: 16384}
service_level: {tpot_p99_s: 0.02}
seed: 7
"""
OPEN = SCENARIO.replace("acceptance: {acceptance_rate: 0.6}\n", "")
PLAIN = re.sub(r"(?m)^speculation:.*\n", "", OPEN)
WITHOUT_LEVEL = SCENARIO.replace("service_level: {tpot_p99_s: 0.02}\n", "")


def scenario(text: str = SCENARIO) -> Scenario:
    return scenario_of(parse_yaml(text, "/somewhere/private/chat.yaml"))


@pytest.fixture(scope="module")
def results() -> dict[str, SimulationResult]:
    texts = {"stated": SCENARIO, "open": OPEN, "plain": PLAIN, "no level": WITHOUT_LEVEL}
    return {name: simulate(scenario(text)) for name, text in texts.items()}


@pytest.fixture(scope="module")
def result(results: dict[str, SimulationResult]) -> SimulationResult:
    return results["no level"]


@pytest.fixture(scope="module")
def answer() -> BreakEven:
    return break_even(scenario(), batches=(1, 16, 256), contexts=(512, 8192))


KINDS = ("stated", "open", "plain", "no level")


def with_gain(result: SimulationResult, gain: Estimate, verdict: str, metric: str) -> tuple[Comparison, SimulationResult]:
    """The first comparison with another outcome, alone in its result."""
    changed = dataclasses.replace(result.comparisons[0], gain=gain, verdict=verdict, metric=metric)  # type: ignore[arg-type]
    return changed, dataclasses.replace(result, comparisons=(changed,))


def markdown_of(result: SimulationResult) -> str:
    return markdown(run_page(result), {})


def numbers(value: Any) -> list[float]:
    if isinstance(value, dict):
        return [number for item in value.values() for number in numbers(item)]
    if isinstance(value, list):
        return [number for item in value for number in numbers(item)]
    return [value] if isinstance(value, float) else []


# --------------------------------------------------------------------------------------------------------------- verdict


def test_a_win_is_said_with_its_size_its_interval_and_its_settings(result: SimulationResult) -> None:
    chosen, only = with_gain(result, Estimate(1.62, 1.5, 1.75), "win", "mean time per output token")
    said = verdict_sentence(chosen, only)
    assert said.startswith(
        "Speculation wins: mean time per output token 1.62× shorter (80 % interval 1.50–1.75) with EAGLE-3, γ = 2."
    )
    assert f"textbook formula, with verification taken as free, says {times(chosen.textbook_speedup)}" in said
    assert f"R = {significant(chosen.r.value)}" in said
    assert all(cause in said for cause in chosen.causes)


def test_a_loss_in_time_is_said_as_longer_with_the_interval_turned_round(result: SimulationResult) -> None:
    chosen, only = with_gain(result, Estimate(0.5, 0.4, 0.8), "lose", "mean end-to-end latency")
    said = verdict_sentence(chosen, only)
    assert said.startswith("Speculation loses: mean end-to-end latency 2.00× longer (80 % interval 1.25–2.50)")


def test_a_rate_is_said_as_a_factor_of_the_plain_rate(result: SimulationResult) -> None:
    chosen, only = with_gain(result, Estimate(0.8, 0.7, 0.9), "lose", "goodput")
    assert "goodput 0.800× that of no speculation (80 % interval 0.700–0.900)" in verdict_sentence(chosen, only)


def test_a_close_call_gives_no_direction(result: SimulationResult) -> None:
    _, only = with_gain(result, Estimate(1.02, 0.95, 1.1), "close", "mean time per output token")
    first = headline(only)[0]
    assert first.startswith("Too close to call")
    assert "0.950–1.10, contains 1" in first
    assert not re.search(r"\b(wins|loses|shorter|longer)\b", first)


def test_an_interval_on_one_side_of_1_is_not_said_to_contain_it(result: SimulationResult) -> None:
    chosen, only = with_gain(result, Estimate(2.3, 2.1, 2.5), "close", "mean end-to-end latency (no request meets it)")
    assert "contains" not in verdict_sentence(chosen, only)


def test_a_lone_variant_is_shown_however_long_the_reason_of_its_metric(result: SimulationResult) -> None:
    reason = "mean end-to-end latency (goodput rises from none to 5.79 requests per second)"
    _, only = with_gain(result, Estimate(2.3, 2.1, 2.5), "win", reason)
    header, rows = run_table(dataclasses.replace(only, comparisons=only.comparisons[:1]))
    assert len(header) == 3
    assert rows[0][0] == "verdict (end-to-end)"


def test_an_interval_from_too_few_requests_is_called_unknown(result: SimulationResult) -> None:
    chosen, only = with_gain(result, Estimate(1.3, 1e-21, 5e21), "close", "mean time per output token")
    assert "too few requests to tell" in verdict_sentence(chosen, only)
    assert run_summary(only)["comparisons"][0]["gain"] == {"value": 1.3, "low": None, "high": None}


def test_where_no_acceptance_wins_the_verdict_says_so(result: SimulationResult) -> None:
    chosen = dataclasses.replace(result.comparisons[0], break_even_acceptance_rate=None)
    assert "no acceptance could repay it" in verdict_sentence(chosen, result)


@pytest.mark.parametrize(
    ("verdicts", "expected"), [(("lose", "win"), "depends"), (("win", "win"), "win"), (("close", "close"), "close")]
)
def test_open_acceptance_is_judged_at_both_ends_of_its_band(
    results: dict[str, SimulationResult], verdicts: tuple[str, str], expected: str
) -> None:
    low, high = results["open"].comparisons[:2]
    ends = (
        dataclasses.replace(low, gain=Estimate(0.9, 0.8, 1.1), verdict=verdicts[0]),  # type: ignore[arg-type]
        dataclasses.replace(high, gain=Estimate(1.9, 1.8, 2.1), verdict=verdicts[1]),  # type: ignore[arg-type]
    )
    judged = dataclasses.replace(results["open"], comparisons=ends)
    assert verdict.answer(judged) == expected
    first = headline(judged)[0]
    assert ("depends on acceptance" in first) == (expected == "depends")
    assert expected == "depends" or "At either end of the measured acceptance" in first
    if expected == "depends":
        assert "Measure acceptance on this traffic first" in markdown_of(judged)


def test_without_speculation_nothing_is_judged(results: dict[str, SimulationResult]) -> None:
    assert verdict.answer(results["plain"]) == "none"
    assert "verdict" not in run_table(results["plain"])[1][0][0]


# ----------------------------------------------------------------------------------------------------------------- table


@pytest.mark.parametrize("kind", KINDS)
def test_the_table_has_a_cell_for_every_variant_and_fits_the_console(results: dict[str, SimulationResult], kind: str) -> None:
    header, rows = run_table(results[kind])
    assert len(header) == 2 + len(results[kind].comparisons)
    assert all(len(row) == len(header) for row in rows)
    assert width(header, rows) <= 100


def test_of_too_many_variants_the_best_are_shown_and_the_header_says_so(result: SimulationResult) -> None:
    base = result.comparisons[0]
    many = tuple(
        dataclasses.replace(
            base,
            gain=Estimate(1 + gamma / 100, 1, 2),
            variant=dataclasses.replace(base.variant, gamma=gamma, label=f"γ = {gamma}"),
        )
        for gamma in range(1, 17)
    )
    header, rows = run_table(dataclasses.replace(result, comparisons=many))
    assert width(header, rows) <= 100
    shown = header[2:]
    assert header[0] == f"best {len(shown)} of 16"
    assert shown == [f"γ = {gamma}" for gamma in range(17 - len(shown), 17)]


def test_the_table_shows_what_the_summaries_hold(result: SimulationResult) -> None:
    _, rows = run_table(result)
    table = {row[0]: row[1:] for row in rows}
    plain, chosen = result.plain.summary, result.comparisons[0]
    assert plain.tpot_s is not None
    assert table["TPOT mean (ms)"][0] == significant(1e3 * plain.tpot_s.mean)
    assert table["R, break-even τ"] == ["–", *(significant(c.r.value) for c in result.comparisons)]
    assert table["saturated (req/s)"][1] == significant(chosen.variant.saturation.per_s)


# --------------------------------------------------------------------------------------------------------------- summary


@pytest.mark.parametrize("kind", KINDS)
def test_a_summary_is_json_with_the_verdict_first_and_finite_numbers(results: dict[str, SimulationResult], kind: str) -> None:
    text = to_json(run_summary(results[kind]))
    data = json.loads(text)
    assert list(data)[:2] == ["schema_version", "verdict"]
    assert data["schema_version"] == 1
    assert data["verdict"]["answer"] == verdict.answer(results[kind])
    assert numbers(data)
    assert all(math.isfinite(number) for number in numbers(data))
    assert len(data["variants"]) == 1 + len(data["comparisons"]) == 1 + len(results[kind].comparisons)


def test_a_summary_names_the_source_of_every_constant_and_the_versions(result: SimulationResult) -> None:
    data = run_summary(result)
    constants = data["provenance"]["constants"]
    assert len(constants) == len(provenance(result.scenario))
    assert all(constant["source"] for constant in constants)
    assert set(data["versions"]) == {"simulator", "python", "numpy", "simpy"}
    assert data["provenance"]["acceptance"] == "stated in the scenario"


def test_gains_in_a_summary_are_those_of_its_variants(results: dict[str, SimulationResult]) -> None:
    data = run_summary(results["stated"])
    plain, first = data["variants"][:2]
    found = data["comparisons"][0]
    assert found["capacity_gain"]["value"] == pytest.approx(
        first["saturated_requests_per_s"] / plain["saturated_requests_per_s"], rel=1e-4
    )
    assert found["goodput_gain"] == pytest.approx(first["goodput_per_s"] / plain["goodput_per_s"], rel=1e-4)
    assert found["decode_speedup"] == pytest.approx(
        found["mean_acceptance_length"] / found["round_cost_ratio"]["value"], rel=1e-4
    )
    assert plain["acceptance"] is None
    assert first["acceptance"]["drafted_tokens"] > 0
    assert "unmet_limits" in plain


@pytest.mark.parametrize("kind", ["stated", "plain"])
def test_no_directory_of_the_machine_is_reported(results: dict[str, SimulationResult], kind: str) -> None:
    text = to_json(run_summary(results[kind])) + markdown_of(results[kind])
    assert "/somewhere" not in text
    assert str(Path(resources.__file__).parent.parent) not in text
    assert "chat.yaml" in text


def test_what_is_not_finite_becomes_null() -> None:
    assert plain_data({"a": math.inf, "b": (math.nan, 1.23456789), "c": None}) == {"a": None, "b": [None, 1.23457], "c": None}


# -------------------------------------------------------------------------------------------------------------- markdown


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_begins_with_the_verdict_and_holds_sources_and_seed(results: dict[str, SimulationResult], kind: str) -> None:
    text = markdown(run_page(results[kind]), {"load": "figures/load.png"})
    said = headline(results[kind])[0]
    assert 0 < text.index(said) < text.index("## Numbers") < text.index("figures/load.png")
    assert re.search(r"!\[[^\]]{20,}\]\(figures/load\.png\)", text)
    assert "## Where the numbers come from" in text
    assert "| step_overhead_s |" in text
    assert "Seed 7." in text


def test_settings_are_given_for_a_win_and_none_for_a_loss(result: SimulationResult) -> None:
    _, win = with_gain(result, Estimate(1.6, 1.5, 1.7), "win", "goodput")
    _, loss = with_gain(result, Estimate(0.6, 0.5, 0.7), "lose", "goodput")
    assert "num_speculative_tokens: 2\n" in markdown_of(win)
    assert "Leave speculation off for this workload." in markdown_of(loss)


def test_a_doubtful_gain_beside_a_certain_loss_is_no_recommendation(result: SimulationResult) -> None:
    chosen, close = with_gain(result, Estimate(1.02, 0.9, 1.2), "close", "goodput")
    worse = dataclasses.replace(close, comparisons=(dataclasses.replace(chosen, capacity=Estimate(0.7, 0.6, 0.8)),))
    assert "capacity certainly gets worse" in markdown_of(worse)


def test_rows_of_markdown_tables_have_as_many_cells_as_their_header(result: SimulationResult) -> None:
    for block in markdown_of(result).split("\n\n"):
        if block.startswith("| "):
            assert len({len(re.findall(r"(?<!\\)\|", line)) for line in block.splitlines()}) == 1


# ------------------------------------------------------------------------------------------------------------ break-even


def test_the_csv_has_a_row_for_every_point_and_blanks_where_nothing_can_be_said(answer: BreakEven) -> None:
    hopeless = dataclasses.replace(answer.points[0], break_even_acceptance_rate=None)
    rows = list(csv.DictReader(io.StringIO(break_even_csv(dataclasses.replace(answer, points=(hopeless, *answer.points[1:]))))))
    assert len(rows) == len(answer.points)
    assert rows[0]["break_even_acceptance_rate"] == ""
    for row, point in zip(rows[1:], answer.points[1:], strict=True):
        assert (int(row["num_speculative_tokens"]), int(row["batch"])) == (point.num_speculative_tokens, point.batch)
        assert float(row["break_even_acceptance_length"]) == pytest.approx(point.r, rel=1e-5)
        assert row["fits_kv_cache"] == str(point.fits).lower()


def test_break_even_is_told_as_json_and_as_a_table_for_each_context(answer: BreakEven) -> None:
    data = json.loads(to_json(break_even_summary(answer)))
    assert len(data["points"]) == len(answer.points)
    assert len(data["best"]) == len(answer.best)
    text = markdown(break_even_page(answer), {"break_even": "figures/break_even.png"})
    for context in answer.contexts:
        assert f"α* at context {context:,} tokens" in text
    tables = list(break_even_tables(answer))
    assert all(len(row) == len(header) == 1 + len(answer.batches) for _, header, rows in tables for row in rows)
    assert tables[1][2][2][3].startswith("(")


# -------------------------------------------------------------------------------------------------------------- one point


def test_a_prediction_says_its_verdict_and_without_acceptance_its_break_even() -> None:
    fields: dict[str, Any] = {
        "hardware": "h100_sxm", "engine": "vllm", "target_model": "meta-llama/Llama-3.1-8B-Instruct", "method": "eagle3",
        "num_speculative_tokens": 3, "batch": 4, "context_len": 1024,
    }  # fmt: skip
    known, unknown = predict(**fields, mean_acceptance_length=2.5), predict(**fields)
    assert prediction_sentence(known).startswith(f"Speculation wins: speedup {times(known.speedup or 0)}")
    assert f"τ = {significant(unknown.r or 0)}" in prediction_sentence(unknown)
    names = [row[0] for row in prediction_rows(known)]
    assert "speedup" in names
    assert "speedup" not in [row[0] for row in prediction_rows(unknown)]
    assert all(len(row) == 3 for row in prediction_rows(known))
    assert prediction_sentence(Prediction("", "unsupported", "trees")) == "Not supported: trees"


# ----------------------------------------------------------------------------------------------------------------- files


@pytest.fixture(scope="module")
def written(result: SimulationResult, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, tuple[Path, ...]]:
    """(a folder in which there was something, what a run wrote into it)."""
    out = tmp_path_factory.mktemp("new") / "out"
    out.mkdir(parents=True)
    (out / "notes.txt").write_text("mine")
    (out / "report.md").write_text("old")
    return out, write_run(result, out)


def test_a_run_is_written_whole_and_other_files_are_left_alone(
    result: SimulationResult, written: tuple[Path, tuple[Path, ...]]
) -> None:
    out, files_written = written
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    figures = {
        f"figures/{name}.png" for name in ("speedup", "round", "tornado", "rates", "latency", "load", "break_even", "best_gamma")
    }
    vectors = {name.replace(".png", ".svg") for name in figures}
    pages = {"notes.txt", "report.html", "report.md", "summary.json"}
    assert names == pages | {"records.parquet", "break_even.csv"} | figures | vectors
    assert {str(path.relative_to(out)) for path in files_written} == names - {"notes.txt"}
    assert (out / "notes.txt").read_text() == "mine"
    linked = re.findall(r"\]\((figures/\w+\.png)\)", (out / "report.md").read_text(encoding="utf-8"))
    assert set(linked) == figures
    assert json.loads((out / "summary.json").read_text(encoding="utf-8")) == run_summary(result)


def test_same_seed_same_bytes(written: tuple[Path, tuple[Path, ...]], tmp_path: Path) -> None:
    write_run(simulate(scenario(WITHOUT_LEVEL)), tmp_path)
    ones, twos = (
        {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
        for folder in (written[0], tmp_path)
    )
    del ones[Path("notes.txt")]
    assert ones == twos


def test_records_have_a_row_for_each_request_and_variant_with_units_in_their_names(
    result: SimulationResult, tmp_path: Path
) -> None:
    files._write_records(tmp_path / "records.parquet", result)
    table = pyarrow.parquet.read_table(tmp_path / "records.parquet")
    assert table.num_rows == len(result.requests) * (1 + len(result.comparisons))
    assert {"arrival_s", "ttft_s", "tpot_s", "e2e_latency_s", "drafted_tokens", "accepted_tokens"} <= set(table.column_names)
    rows = [row for row in table.to_pylist() if row["variant"] == "no speculation"]
    assert [row["finish_s"] for row in rows] == [record.finish_s for record in result.plain.result.records]


@pytest.mark.parametrize("inside", ["", "below"])
def test_a_path_that_cannot_be_a_directory_is_the_users_mistake(result: SimulationResult, tmp_path: Path, inside: str) -> None:
    (tmp_path / "file").write_text("mine")
    path = tmp_path / "file" / inside
    for write in (lambda: write_run(result, path), lambda: prepare_directory(path)):
        with pytest.raises(SpecError, match=r"--out: must be a directory that can be written"):
            write()
    assert (tmp_path / "file").read_text() == "mine"


def test_a_disk_that_fills_up_leaves_the_old_report(
    result: SimulationResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "report.md").write_text("old")

    def fail(*args: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "run_figures", lambda *each: ())
    monkeypatch.setattr(files, "break_even_figures", lambda answer: ())
    monkeypatch.setattr(files, "_write_records", fail)
    with pytest.raises(SpecError, match="--out: cannot be written: No space left on device"):
        write_run(result, tmp_path)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("report.md", "old")]


def test_the_break_even_answer_is_written_as_table_data_and_figures(answer: BreakEven, tmp_path: Path) -> None:
    written = {str(path.relative_to(tmp_path)) for path in write_break_even(answer, tmp_path)}
    figures = {f"figures/{name}.{kind}" for name in ("break_even", "best_gamma") for kind in ("png", "svg")}
    assert written == {"report.html", "report.md", "break_even.json", "break_even.csv"} | figures


def test_a_run_without_speculation_is_written_without_break_even(results: dict[str, SimulationResult], tmp_path: Path) -> None:
    written = {str(path.relative_to(tmp_path)) for path in write_run(results["plain"], tmp_path)}
    figures = {f"figures/{name}.{kind}" for name in ("rates", "latency", "load") for kind in ("png", "svg")}
    assert written == {"report.html", "report.md", "summary.json", "records.parquet"} | figures


# ----------------------------------------------------------------------------------------------------------------- known


@pytest.mark.parametrize("kind", list(resources.KINDS))
def test_every_kind_of_shipped_data_is_listed_with_the_same_columns(kind: str) -> None:
    entries = known(kind)
    assert len({tuple(entry) for entry in entries}) <= 1
    assert len({entry["id"] for entry in entries}) == len(entries)
    json.dumps(entries, allow_nan=False)
