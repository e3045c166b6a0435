"""Laws of the sweep: every cell once, whoever computes it; what is finished survives a kill; a bad cell fails alone."""

from __future__ import annotations

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import sweep as sweeping
from simulator.__main__ import main
from simulator.prediction import predict
from simulator.questions.break_even import break_even
from simulator.questions.steady_load import steady_batch
from simulator.reports.summary import csv_text
from simulator.scenario import scenario_of
from simulator.simulation import plain_load
from simulator.spec import Document, SpecError, parse_yaml
from simulator.sweep import answers, cells, ledger, workers
from simulator.sweep.keys import known_keys, with_value
from tests.test_scenario import run_quietly

SCENARIO = """
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 2}
acceptance: {acceptance_rate: 0.6}
workload:
  arrivals: {process: poisson, rate_per_s: 10}
  lengths: {prompt: 300, output: 20}
  num_requests: 40
limits: {max_model_len: 4096}
seed: 7
"""


def document(text: str = SCENARIO) -> Document:
    return parse_yaml(text, "chat.yaml")


def grid(question: str = "predict", *axes: str, text: str = SCENARIO) -> cells.Grid:
    axes = axes or ("batch=1,8", "speculation.num_speculative_tokens=1..3")
    return sweeping.grid_of(document(text), question, [*map(sweeping.read_axis, axes)], sweeping.keys_of_question(question))


def table(result: sweeping.SweepResult) -> str:
    columns, rows = sweeping.table_of(result)
    return csv_text(rows, columns)


# ------------------------------------------------------------------------------------------------------------------- axes


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine=vllm,sglang", ["vllm", "sglang"]),
        ("seed=1..4", [1, 2, 3, 4]),
        ("seed=8..2:-2", [8, 6, 4, 2]),
        ("batch=1..100:x3", [1, 3, 9, 27, 81]),
        ("acceptance.acceptance_rate=0.1..0.5:0.1", [0.1, 0.2, 0.3, 0.4, 0.5]),
        ("batch=1..3,16,64..256:x4", [1, 2, 3, 16, 64, 256]),
        ("speculation.by_batch=[[1, 8, 4], [9, 256, 0]],[[1, 256, 2]]", [((1, 8, 4), (9, 256, 0)), ((1, 256, 2),)]),
        ("acceptance=null,{acceptance_rate: 0.5}", [None, {"acceptance_rate": 0.5}]),
    ],
)
def test_values_are_lists_and_ranges_of_what_yaml_writes(text: str, expected: list[object]) -> None:
    assert [entry[0] for entry in sweeping.read_axis(text).values] == expected


def test_keys_with_commas_change_together() -> None:
    axis = sweeping.read_axis("target.model,speculation.drafter=[A,a],[B,b]")
    assert list(axis.settings()) == [
        {"target.model": "A", "speculation.drafter": "a"},
        {"target.model": "B", "speculation.drafter": "b"},
    ]


@settings(max_examples=60, derandomize=True, deadline=None)
@given(st.integers(1, 999), st.integers(1, 40), st.integers(1, 4))
def test_steps_of_a_range_are_the_decimals_that_were_written(start: int, count: int, places: int) -> None:
    step = 10.0**-places
    first, last = start * step, (start + count) * step
    values = [entry[0] for entry in sweeping.read_axis(f"seed={first:.{places}f}..{last:.{places}f}:{step:.{places}f}").values]
    assert values == [round((start + index) * step, places) for index in range(count + 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("engine", "must be a key and its values"),
        ("engine=", "must be a key and its values"),
        ("engine=[a", "must be YAML"),
        ("engine=a,a", "must hold each value once"),
        ("batch=8..1:x2", "must rise from above 0 by a factor above 1"),
        ("batch=1..8:-1", "must have a step that leads from the first to the last"),
        ("batch=1..1000000000", "must be at most"),
        ("a,b=1,2", "must have lists of 2 values"),
    ],
)
def test_a_wrong_axis_is_one_clear_message(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        sweeping.read_axis(text)


# ------------------------------------------------------------------------------------------------------------------- keys


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("workload.arrivals.rate_per_sec", "workload.arrivals.rate_per_s"),
        ("rate_per_s", "workload.arrivals.rate_per_s"),
        ("bach", "batch"),
        ("speculation.num_speculative_token", "speculation.num_speculative_tokens"),
    ],
)
def test_an_unknown_key_is_refused_with_the_nearest_name(key: str, near: str) -> None:
    with pytest.raises(SpecError, match=f"{key}: unknown key of a scenario; did you mean {near}"):
        grid("predict", f"{key}=1,2")


def test_every_section_of_a_scenario_can_be_swept_and_the_sweep_itself_cannot() -> None:
    keys = known_keys()
    assert {"hardware", "hardware.memory_bandwidth_fraction", "parallel.tensor_parallel_size", "limits.max_num_seqs"} <= set(keys)
    assert {"acceptance.conditional_acceptance_rates", "service_level.ttft_p99_s", "seed"} <= set(keys)
    assert not any(key.startswith("sweep") for key in keys)


def test_a_batch_goes_with_predict_only_and_a_key_is_set_once() -> None:
    with pytest.raises(SpecError, match="goes with --question predict only"):
        grid("run", "batch=1,2")
    with pytest.raises(SpecError, match="seed: must be set once"):
        grid("predict", "seed=1,2", "seed=3")


def test_setting_a_key_makes_its_sections_and_null_takes_it_out() -> None:
    assert with_value({"a": 1}, "limits.max_num_seqs", 8) == {"a": 1, "limits": {"max_num_seqs": 8}}
    assert with_value({"a": 1, "acceptance": {"acceptance_rate": 0.5}}, "acceptance", None) == {"a": 1}


# ------------------------------------------------------------------------------------------------------------------ cells


def test_the_grid_is_every_combination_in_order_with_names_of_their_own() -> None:
    found = grid().cells
    assert [tuple(cell.settings.values()) for cell in found] == [(b, g) for b in (1, 8) for g in (1, 2, 3)]
    assert len({cell.name for cell in found}) == len(grid()) == 6


def test_a_cells_name_follows_all_that_its_answer_depends_on(tmp_path: Path) -> None:
    one = grid().cells[0].name
    assert grid().cells[0].name == one
    assert grid(text=SCENARIO.replace("seed: 7", "seed: 8")).cells[0].name != one
    assert grid("break-even", "speculation.num_speculative_tokens=1..3").cells[0].name != one
    trace = tmp_path / "trace.csv"
    traced = SCENARIO.replace("lengths: {prompt: 300, output: 20}", f"requests: {{trace: {trace}}}")
    names = []
    for prompt in (10, 11):
        trace.write_text(f"arrival_s,prompt_tokens,output_tokens\n0,{prompt},5\n")
        names.append(grid(text=traced).cells[0].name)
    assert names[0] != names[1]


# ---------------------------------------------------------------------------------------------------------------- answers


def test_a_cell_of_predict_is_the_break_even_point_and_the_prediction_there() -> None:
    own = scenario_of(document(SCENARIO.replace("num_speculative_tokens: 2", "num_speculative_tokens: [1, 2, 3]")))
    points = {
        (point.batch, point.num_speculative_tokens): point
        for point in break_even(own, gammas=(1, 2, 3), batches=(1, 8), contexts=(310,)).points
    }
    rows = [row for outcome in sweeping.sweep(grid(), jobs=1).outcomes for row in outcome.rows]
    assert len(rows) == len(points) == 6
    for row in rows:
        point = points[row["batch_size"], row["gamma"]]
        assert row["context_tokens"] == 310
        for name in ("r", "r_low", "speedup", "speedup_high", "break_even_acceptance_rate"):
            assert row[name] == pytest.approx(getattr(point, name), rel=1e-4), name
        alone = predict(
            hardware="h100_sxm", engine="vllm", target_model="meta-llama/Llama-3.1-8B-Instruct", method="eagle3",
            draft_model="yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", num_speculative_tokens=row["gamma"], batch=row["batch_size"],
            context_len=310, acceptance_rate=0.6,
        )  # fmt: skip
        assert (row["r"], row["verdict"]) == (pytest.approx(alone.r, rel=1e-5), alone.verdict)


@pytest.mark.parametrize("rate", [2, 15, 30])
def test_the_batch_of_a_load_from_means_is_near_the_simulated_one(rate: float) -> None:
    text = SCENARIO.replace("rate_per_s: 10", f"rate_per_s: {rate}").replace("output: 20", "output: 200")
    scenario = scenario_of(document(text.replace("num_requests: 40", "num_requests: 1500")))
    simulated = plain_load(scenario).mean_decode_sequences
    assert simulated is not None
    assert steady_batch(scenario) == pytest.approx(simulated, rel=0.08, abs=0.6)


def test_more_than_can_be_served_fills_the_server_and_a_closed_loop_holds_its_users() -> None:
    flood = SCENARIO.replace("rate_per_s: 10", "rate_per_s: 100000") + "\n"
    assert steady_batch(scenario_of(document(flood.replace("limits: {", "limits: {max_num_seqs: 32, ")))) == 32
    closed = SCENARIO.replace("process: poisson, rate_per_s: 10", "process: closed_loop, users: 12").replace(
        "output: 20", "output: 500"
    )
    assert steady_batch(scenario_of(document(closed))) == 12


def test_a_simulated_cell_has_a_row_for_each_variant() -> None:
    result = sweeping.sweep(grid("run", "workload.arrivals.rate_per_s=5,20"), jobs=1)
    assert [row["variant"] for outcome in result.outcomes for row in outcome.rows] == ["no speculation", "γ = 2"] * 2
    slow, fast = (outcome.rows[0]["mean_decode_batch"] for outcome in result.outcomes)
    assert fast > slow


def test_a_bad_cell_says_why_and_the_others_are_answered() -> None:
    result = sweeping.sweep(grid("predict", "batch=1", "engine=vllm,no_such_engine,sglang"), jobs=1)
    assert [bool(outcome.rows) for outcome in result.outcomes] == [True, False, True]
    assert "must be a known engine profile" in result.outcomes[1].failed
    (failure,) = result.failures
    assert (failure.reason, failure.first, failure.cells) == (result.outcomes[1].failed, result.grid.cells[1], 1)
    rows = list(csv.DictReader(io.StringIO(table(result))))
    assert [row["engine"] for row in rows] == ["vllm", "no_such_engine", "sglang"]
    assert [bool(row["failed"]) for row in rows] == [False, True, False]


SWEPT = (
    SCENARIO
    + """sweep:
  question: predict
  set:
    batch: [0, 2]
    speculation.num_speculative_tokens: [2, 99]
"""
)


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_failed_cell_names_its_key_and_the_line_or_flag_that_set_it(tmp_path: Path, jobs: int) -> None:
    path = tmp_path / "swept.yaml"
    path.write_text(SWEPT, encoding="utf-8")
    code, shown = run_quietly(["sweep", str(path), "--jobs", str(jobs)])
    assert code == 3
    assert f"{path}:16: batch: must be at least 1 (got 0)" in shown
    assert f"{path}:17: speculation.num_speculative_tokens: must be at most 64 (got 99)" in shown
    assert "first at batch=0, speculation.num_speculative_tokens=2" in shown
    code, shown = run_quietly(["sweep", str(path), "--set", "batch=0,4", "--jobs", str(jobs)])
    assert (code, "--set: batch: must be at least 1 (got 0)" in shown) == (3, True)


def test_a_key_that_changes_no_answer_is_told() -> None:
    result = sweeping.sweep(grid("predict", "batch=1,8", "seed=1,2", "speculation.num_speculative_tokens=1,2"), jobs=1)
    assert sweeping.idle_keys(result) == ["seed"]


POLICIES = """[{kind: fixed}, {kind: by_batch, table: [[1, 8, 4], [9, 64, 1]]}, {kind: off_above, batch: 32},
  {kind: goodput_optimal}, {kind: acceptance_window, least: 2.5}, {kind: by_context, table: [[0, 1000, 2], [1001, 9000, 4]]}]"""


@pytest.mark.parametrize("question", ["predict", "break-even"])
def test_every_policy_has_a_row_of_what_it_drafts_there(question: str) -> None:
    text = SCENARIO.replace("num_speculative_tokens: 2}", f"num_speculative_tokens: 3, policy: {POLICIES}}}")
    asked = grid(question, "limits.max_num_seqs=128", *(["batch=1,8,64,128"] if question == "predict" else []), text=text)
    rows = [row for outcome in sweeping.sweep(asked, jobs=1).outcomes for row in outcome.rows]
    assert rows
    own = rows[0]["context_tokens"]
    drafted: dict[str, dict[int, int]] = {}
    for row in rows:
        if row.get("policy") and row["context_tokens"] in (own, 310):
            drafted.setdefault(row["policy"], {})[row["batch_size"]] = row["gamma"]
    assert {b: drafted["γ by batch, up to 4"][b] for b in (1, 8, 64, 128)} == {1: 4, 8: 4, 64: 1, 128: 0}
    assert {b: drafted["γ = 3, off above batch 32"][b] for b in (1, 64)} == {1: 3, 64: 0}
    goodput = [drafted["goodput-optimal, γ ≤ 3"][b] for b in (1, 8, 64, 128)]
    assert goodput == sorted(goodput, reverse=True)
    assert drafted["γ by context, up to 4"][8] == 2
    assert drafted["γ = 3, off below τ = 2.5"][8] == 0  # 1 + 0.6 + 0.36 + 0.216 = 2.18
    best = max((row for row in rows if row["batch_size"] == 128), key=lambda row: row["speedup"])
    resting = [row for row in rows if row.get("policy") and row["gamma"] == 0 and row["batch_size"] == 128]
    assert all(0.9 < row["speedup"] < 1 < best["speedup"] for row in resting)
    # A resting drafter takes something for sure, and perhaps several times what it is priced at.
    assert all(row["speedup_low"] < row["speedup"] <= row["speedup_high"] < 1 for row in resting)


def test_a_policy_without_acceptance_is_refused_where_its_answer_would_depend_on_it() -> None:
    text = SCENARIO.replace("num_speculative_tokens: 2}", "num_speculative_tokens: 3, policy: {kind: goodput_optimal}}")
    result = sweeping.sweep(grid("predict", "acceptance=null", text=text), jobs=1)
    assert "acceptance: must be given: what a policy gains depends on it" in result.outcomes[0].failed


def test_a_key_below_a_list_is_to_be_set_as_a_whole() -> None:
    text = SCENARIO.replace("num_speculative_tokens: 2}", f"num_speculative_tokens: 3, policy: {POLICIES}}}")
    with pytest.raises(SpecError, match=r"speculation.policy.batch: must be set as a whole, speculation.policy=…"):
        grid("run", "speculation.policy.batch=8,16", text=text)


def test_a_fault_of_the_moment_is_told_and_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*args: object) -> list[answers.Row]:
        raise MemoryError("no room")

    with monkeypatch.context() as patch:
        patch.setattr(workers, "answered", no_memory)
        assert all("MemoryError" in outcome.failed for outcome in sweeping.sweep(grid(), tmp_path, jobs=1).outcomes)
    again = sweeping.sweep(grid(), tmp_path, jobs=1)
    assert again.resumed == 0
    assert not again.failures


# ----------------------------------------------------------------------------------------------------------- same answers


def test_the_answers_are_the_same_bytes_whatever_the_number_of_workers(tmp_path: Path) -> None:
    files = []
    for jobs in (1, 2):
        folder = tmp_path / str(jobs)
        folder.mkdir()
        sweeping.write_tables(sweeping.sweep(grid(), folder, jobs=jobs), folder)
        files.append([(folder / name).read_bytes() for name in ("cells.csv", "cells.parquet")])
    assert files[0] == files[1]


def test_the_answers_are_the_same_on_a_cluster(tmp_path: Path) -> None:
    distributed = pytest.importorskip("distributed", reason="Dask is not installed (extra `cluster`)")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, host="127.0.0.1") as cluster:
        there = sweeping.sweep(grid(), cluster=cluster.scheduler_address)
    assert table(there) == table(sweeping.sweep(grid(), jobs=1))


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:9", "nonsense"])
def test_a_cluster_that_is_not_there_is_the_users_mistake(address: str) -> None:
    with pytest.raises(SpecError, match="--cluster"):
        sweeping.sweep(grid(), cluster=address)


def test_parquet_holds_what_csv_holds(tmp_path: Path) -> None:
    result = sweeping.sweep(grid("predict", "batch=1,8", "engine=vllm,no_such_engine"), jobs=1)
    sweeping.write_tables(result, tmp_path)
    rows = pyarrow.parquet.read_table(tmp_path / "cells.parquet").to_pylist()
    texts = list(csv.DictReader((tmp_path / "cells.csv").open(encoding="utf-8")))
    assert len(rows) == len(texts) == 4
    for row, text in zip(rows, texts, strict=True):
        assert list(row) == list(text)
        assert row["batch"] == int(text["batch"])
        assert (row["speedup"] is None) == (text["speedup"] == "")
        assert row["speedup"] is None or row["speedup"] == pytest.approx(float(text["speedup"]), rel=1e-5)


# ----------------------------------------------------------------------------------------------------------------- ledger


def test_only_what_is_missing_is_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = sweeping.sweep(grid(), tmp_path, jobs=1)
    asked: list[str] = []
    real = workers.answered
    monkeypatch.setattr(workers, "answered", lambda *args: asked.append("cell") or real(*args))
    again = sweeping.sweep(grid(), tmp_path, jobs=1)
    assert (asked, again.resumed) == ([], 6)
    assert table(again) == table(whole)
    wider = grid("predict", "batch=1,8", "speculation.num_speculative_tokens=1..4")
    assert sweeping.sweep(wider, tmp_path, jobs=1).resumed == 6
    assert len(asked) == 2


@pytest.mark.parametrize("keep", [0, 1, 250, -1, -20])
def test_a_line_cut_short_anywhere_costs_only_its_own_cell(tmp_path: Path, keep: int) -> None:
    whole = table(sweeping.sweep(grid(), tmp_path, jobs=1))
    path = tmp_path / "cells.jsonl"
    content = path.read_bytes()
    start = content[:-1].rfind(b"\n") + 1
    cut = start + keep if keep >= 0 else len(content) + keep
    path.write_bytes(content[:cut])
    again = sweeping.sweep(grid(), tmp_path, jobs=1)
    assert again.resumed == 5
    assert table(again) == whole
    assert all(json.loads(line)["cell"] for line in path.read_text(encoding="utf-8").splitlines())


def test_a_worker_that_is_ended_is_told_and_what_is_kept_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "_chunk", ended)
    with pytest.raises(SpecError, match="a worker was ended"):
        sweeping.sweep(grid(), tmp_path, jobs=2)
    assert (tmp_path / "cells.jsonl").exists()


def ended(*args: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_full_disk_is_one_clear_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, ledger.opened(tmp_path / "cells.jsonl") as kept:
        patch.setattr(os, "write", full)
        with pytest.raises(SpecError, match="--out: cannot be written: No space left on device"):
            kept.add(ledger.Outcome("a", []), {})


def test_two_sweeps_never_write_one_file_at_a_time(tmp_path: Path) -> None:
    with ledger.opened(tmp_path / "cells.jsonl"), pytest.raises(SpecError, match="no other sweep is writing"):
        sweeping.sweep(grid(), tmp_path, jobs=1)


KILLED_CELLS = 200
# Long prompts, answers of two tokens and nothing drafted: the cheapest cells to simulate.
CHEAP = """
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
workload:
  arrivals: {process: poisson, rate_per_s: 10}
  lengths: {prompt: 3000, output: 2}
  num_requests: 8
"""


def test_a_killed_sweep_goes_on_where_it_was_and_ends_with_the_same_files(tmp_path: Path) -> None:
    """200 simulated cells on two processes, killed at a random moment; then the rest, and the same bytes as without a kill."""
    (tmp_path / "cheap.yaml").write_text(CHEAP, encoding="utf-8")
    flags = ["--set", f"seed=1..{KILLED_CELLS}", "--jobs", "2", "--json"]
    command = [sys.executable, "-m", "simulator", "sweep", str(tmp_path / "cheap.yaml"), *flags, "--out"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    out, kept = tmp_path / "killed", tmp_path / "killed" / "cells.jsonl"
    # Drawn anew each time; pytest shows what is printed where the test fails, and FROM_SEED=… draws it again.
    seed = int(os.environ.get("FROM_SEED") or random.SystemRandom().randrange(2**32))
    chance = random.Random(seed)
    cells, further_s = chance.randrange(1, KILLED_CELLS - 20), chance.uniform(0, 0.1)
    print(f"FROM_SEED={seed}: killed {further_s:.3f} s after {cells} cells")
    process = subprocess.Popen([*command, str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment)
    until = time.monotonic() + 240
    while (not kept.exists() or kept.read_bytes().count(b"\n") < cells) and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    time.sleep(further_s)
    process.send_signal(signal.SIGKILL)
    assert process.wait(60) == -signal.SIGKILL
    before = kept.read_bytes().count(b"\n")
    assert cells <= before < KILLED_CELLS
    assert not (out / "cells.csv").exists()
    found = json.loads(subprocess.run([*command, str(out)], capture_output=True, env=environment, check=True, timeout=400).stdout)
    assert len(found["cells"]) == KILLED_CELLS
    assert kept.read_bytes().count(b"\n") == KILLED_CELLS
    lines = [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
    assert len({line["cell"] for line in lines}) == KILLED_CELLS
    whole = tmp_path / "whole"
    whole.mkdir()
    sweeping.write_tables(sweeping.sweep(grid("run", f"seed=1..{KILLED_CELLS}", text=CHEAP), jobs=1), whole)
    for name in ("cells.csv", "cells.parquet"):
        assert (out / name).read_bytes() == (whole / name).read_bytes()


def test_a_thousand_analytic_cells_take_less_than_ten_seconds_of_one_core() -> None:
    wide = grid(
        "predict", "batch=1..512:x2", "context_len=512..8192:x2", "speculation.num_speculative_tokens=1..5",
        "hardware=h100_sxm,a100_sxm_80gb,l40s,h200_sxm",
    )  # fmt: skip
    assert len(wide) == 1000
    began = time.process_time()
    result = sweeping.sweep(wide, jobs=1)
    spent_s = time.process_time() - began
    assert not result.failures
    assert spent_s < 10, spent_s


# ---------------------------------------------------------------------------------------------------------------- command


@pytest.fixture
def chat(tmp_path: Path) -> Path:
    path = tmp_path / "chat.yaml"
    block = "sweep: {question: predict, set: {batch: 1..8:x2, speculation.num_speculative_tokens: [1, 2]}}\n"
    path.write_text(SCENARIO + block, encoding="utf-8")
    return path


def test_the_block_of_a_scenario_is_swept_and_a_flag_replaces_its_key(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", str(chat), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["question"], found["keys"], len(found["cells"])) == (
        "predict", ["batch", "speculation.num_speculative_tokens"], 8,
    )  # fmt: skip
    assert main(["sweep", str(chat), "--set", "batch=16", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [cell["set"]["batch"] for cell in found["cells"]] == [16, 16]


def test_the_other_verbs_answer_a_scenario_with_a_sweep_as_it_stands(chat: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", str(chat), "--batch", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_speculative_tokens"] == 2


def test_the_console_shows_a_headline_a_table_and_where_the_rest_is(
    chat: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert main(["sweep", str(chat), "--set", "batch=1..50", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert text.splitlines()[0].startswith("100 cells; the best of each cell: 100 win.")
    assert "60 more rows" in text
    assert f"All 100 rows of 22 columns: {out}/cells.csv" in " ".join(text.split())
    assert all(len(line) <= 100 for line in text.splitlines() if str(out) not in line)
    assert main(["sweep", str(chat), "--set", "batch=1..50", "--out", str(out)]) == 0
    assert "100 kept from before" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--question", "predct"], "did you mean predict?"),
        (["--out", "/dev/null/x"], "--out: must be a directory that can be written"),
        (["--set", "nonsense"], "must be a key and its values"),
        (["--set", "bathc=1", "--set", "engin=vllm"], "did you mean batch?"),
        (["--jobs", "2", "--cluster", "tcp://127.0.0.1:9"], "--jobs: must be left out with --cluster"),
        (["--set", "engine=nothing_known"], "8 × failed, first at"),
    ],
)
def test_a_wrong_command_is_exit_code_two_and_one_message(chat: Path, flags: list[str], said: str) -> None:
    code, shown = run_quietly(["sweep", str(chat), *flags])
    assert code == 2
    assert said in shown
    assert "Traceback" not in shown


def test_exit_code_three_says_that_some_cells_have_no_answer(chat: Path, tmp_path: Path) -> None:
    """And two that none has: a script can tell a hole in a grid from a mistake in all of it."""
    some = ["sweep", str(chat), "--set", "batch=1", "--set", "engine=vllm,nothing_known"]
    code, shown = run_quietly([*some, "--out", str(tmp_path / "out")])
    assert code == 3
    assert "must be a known engine profile" in shown
    assert (tmp_path / "out" / "cells.csv").read_text().count("must be a known engine profile") >= 1
    assert run_quietly([*some, "--out", str(tmp_path / "out")])[0] == 3  # kept failures fail again
    assert run_quietly([*some[:-1], "engine=vllm"])[0] == 0
    assert run_quietly([*some[:-1], "engine=nothing_known"])[0] == 2


def test_a_wrong_block_is_told_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text(SCENARIO + "sweep:\n  sett: {batch: [1, 2]}\n", encoding="utf-8")
    code, shown = run_quietly(["sweep", str(path)])
    assert code == 2
    assert "bad.yaml:13" in shown
    assert "did you mean set?" in shown


def test_a_capacity_cell_has_the_rate_of_each_variant() -> None:
    text = SCENARIO + "service_level: {tpot_p90_s: 0.05}\n"
    result = sweeping.sweep(grid("capacity", "seed=7", text=text), jobs=1)
    assert [row["variant"] for row in result.outcomes[0].rows] == ["no speculation", "γ = 2"]
    assert all(row["rate_per_s"] > 0 for row in result.outcomes[0].rows)


def test_a_run_loads_no_library_of_sweeps_and_pages(chat: Path) -> None:
    code = (
        "import sys; from simulator.__main__ import main; main(['run', sys.argv[1], '--json']); "
        "print([m for m in ('joblib', 'jinja2', 'distributed', 'matplotlib') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(chat)], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_cell_whose_ends_of_open_acceptance_disagree_is_no_win(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "open.yaml"
    path.write_text(
        "hardware: l40s\nengine: vllm\ntarget: {model: meta-llama/Llama-3.1-8B-Instruct}\n"
        "speculation: {method: ngram, num_speculative_tokens: 4}\n"
        "workload: {arrivals: {process: closed_loop, users: 4}, lengths: {prompt: 300, output: 60}, num_requests: 24}\n"
    )
    assert main(["sweep", str(path), "--set", "seed=1"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first == "1 cell; the best of each cell: 1 depending on acceptance."


def test_what_gains_are_gains_in_is_said_where_it_is_not_the_time_per_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "chat.yaml"
    for level, said in (("", False), ("service_level: {tpot_p90_s: 0.05}\n", True)):
        path.write_text(SCENARIO + level)
        assert main(["sweep", str(path), "--set", "workload.arrivals.rate_per_s=2,4"]) == 0
        assert ("Gains and verdicts are about goodput." in capsys.readouterr().out) == said
