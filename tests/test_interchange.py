"""Engines' files read into one form: the same counters give the same τ whatever wrote them, and a bad file is said to be bad.

Every fixture is written here from the engines' field lists; no file of anyone else's is used.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.__main__ import main
from simulator.acceptance import read_profile
from simulator.interchange import measured_file
from simulator.interchange.detection import FORMATS, format_of, read_files
from simulator.interchange.observed import ObservedRun
from simulator.interchange.request_traces import read_request_trace
from simulator.scenario import load_scenario
from simulator.spec import SpecError

# ----------------------------------------------------------------------------------------------------------- the formats


class Counts:
    """Rounds of γ drafts by how many were accepted: `ended[n]` rounds accepted exactly n."""

    def __init__(self, ended: list[int]):
        self.ended = ended
        self.gamma, self.rounds = len(ended) - 1, sum(ended)
        self.accepted = sum(n * count for n, count in enumerate(ended))
        self.survived = [sum(ended[depth:]) for depth in range(1, len(ended))]

    @property
    def drafted(self) -> int:
        return self.gamma * self.rounds

    @property
    def length(self) -> float:
        return 1 + self.accepted / self.rounds

    @property
    def rates(self) -> list[float]:
        return [count / self.rounds for count in self.survived]


def vllm_bench(c: Counts, **changes: Any) -> str:
    output = c.accepted + c.rounds + 8
    run = {
        "date": "20260801-101010", "backend": "vllm", "model_id": "some/model", "num_prompts": 8, "request_rate": "inf",
        "burstiness": 1.0, "max_concurrency": 4, "duration": 12.5, "completed": 8, "failed": 0, "total_input_tokens": 4096,
        "total_output_tokens": output, "request_throughput": 0.64, "output_throughput": output / 12.5,
        "mean_ttft_ms": 31.0, "p99_ttft_ms": 44.0, "mean_tpot_ms": 4.1, "mean_itl_ms": 9.2,
        "spec_decode_acceptance_rate": 100 * c.accepted / c.drafted, "spec_decode_acceptance_length": c.length,
        "spec_decode_num_drafts": c.rounds, "spec_decode_draft_tokens": c.drafted, "spec_decode_accepted_tokens": c.accepted,
        "spec_decode_per_position_acceptance_rates": c.rates,
    }  # fmt: skip
    return json.dumps({**run, **changes})


def prometheus(c: Counts, scale: int = 1) -> str:
    labels = 'engine="0",model_name="some/model"'
    values = {"drafts": c.rounds, "draft_tokens": c.drafted, "accepted_tokens": c.accepted}
    rows = [f"vllm:spec_decode_num_{name}_total{{{labels}}} {scale * value}.0" for name, value in values.items()]
    rows += [
        f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{{labels},position="{i}"}} {scale * count}.0'
        for i, count in enumerate(c.survived)
    ]
    return "\n".join(["# HELP vllm:spec_decode_num_drafts_total Rounds.", *rows, "process_open_fds 12.0", ""])


def vllm_log_current(c: Counts) -> str:
    positions = ", ".join(f"{rate:.3f}" for rate in c.rates)
    return (
        f"(APIServer pid=1) INFO 08-01 10:10:10 [metrics.py:101] SpecDecoding metrics: Mean acceptance length: {c.length:.2f}, "
        f"Accepted throughput: 46.40 tokens/s, Drafted throughput: 82.79 tokens/s, Accepted: {c.accepted} tokens, "
        f"Drafted: {c.drafted} tokens, Per-position acceptance rate: {positions}, "
        f"Avg Draft acceptance rate: {100 * c.accepted / c.drafted:.1f}%\n"
    )


def vllm_log_2025(c: Counts) -> str:
    positions = ", ".join(f"{rate:.3f}" for rate in c.rates)
    return (
        f"INFO 05-01 10:10:10 [metrics.py:61] SpecDecoding metrics: Draft acceptance rate: {100 * c.accepted / c.drafted:.1f}%, "
        f"Mean acceptance length: {c.length:.2f}, Accepted: {c.accepted} tokens, Drafted: {c.drafted} tokens, "
        f"Per-position acceptance rate: {positions}\n"
    )


def vllm_log_v0(c: Counts) -> str:
    emitted = c.accepted + c.rounds
    return (
        f"INFO 01-05 10:10:10 metrics.py:477] Speculative metrics: Draft acceptance rate: 0.655, System efficiency: "
        f"{emitted / (c.rounds * (c.gamma + 1)):.3f}, Number of speculative tokens: {c.gamma}, Number of accepted tokens: "
        f"{c.accepted + 7}, Number of draft tokens: {c.drafted}, Number of emitted tokens: {emitted}.\n"
    )


def sglang_line(c: Counts, rate: float) -> str:
    return (
        f"[2026-08-01 10:10:10 TP0] Decode batch, #running-req: 4, #token: 3211, token usage: 0.02, accept len: {c.length:.4f}, "
        f"accept rate: {rate:.4f}, cuda graph: True, gen throughput (token/s): 178.86, #queue-req: 0\n"
    )


def sglang_log_old(c: Counts) -> str:
    return sglang_line(c, c.length / (c.gamma + 1))


def sglang_log_new(c: Counts) -> str:
    return sglang_line(c, c.accepted / c.drafted)


def sglang_bench(c: Counts, **changes: Any) -> str:
    server = {
        "model_path": "some/model", "tp_size": 2, "speculative_algorithm": "EAGLE3", "speculative_num_steps": c.gamma,
        "speculative_eagle_topk": 1, "speculative_num_draft_tokens": c.gamma + 1,
    }  # fmt: skip
    run = {
        "backend": "sglang", "request_rate": float("inf"), "max_concurrency": 4, "server_info": server, "duration": 10.0,
        "completed": 8, "total_input_tokens": 4096, "total_output_tokens": c.accepted + c.rounds, "request_throughput": 0.8,
        "output_throughput": 200.0, "mean_e2e_latency_ms": 900.0, "mean_ttft_ms": 30.0, "mean_tpot_ms": 4.0, "concurrency": 3.4,
        "accept_length": c.length,
    }  # fmt: skip
    return json.dumps({**run, **changes}) + "\n"


def sglang_responses(c: Counts) -> str:
    info = {
        "spec_verify_ct": c.rounds, "spec_num_correct_drafts": c.accepted, "spec_num_proposed_drafts": c.drafted,
        "spec_correct_drafts_histogram": c.ended,
    }  # fmt: skip
    return json.dumps({"text": "…", "meta_info": info}) + "\n"


def trtllm(c: Counts) -> str:
    stats = {
        "numDraftTokens": c.drafted,
        "numAcceptedTokens": c.accepted,
        "numRequestsWithDraftTokens": c.rounds,
        "draftOverhead": 0.2,
    }
    batch = {"numContextRequests": 0, "numGenRequests": c.rounds}
    return json.dumps([{"iter": 1, "iterLatencyMS": 8.0, "inflightBatchingStats": batch, "specDecodingStats": stats}])


def llamacpp_log(c: Counts) -> str:
    generated = c.accepted + c.rounds
    return (
        "prompt eval time =     161.86 ms /    33 tokens (    4.90 ms per token,   203.88 tokens per second)\n"
        f"       eval time = {generated * 10.0:10.2f} ms / {generated:5d} tokens (   10.00 ms per token,   100.00 tokens per second)\n"
        f"draft acceptance rate = {c.accepted / c.drafted:.5f} ({c.accepted:5d} accepted / {c.drafted:5d} generated)\n"
    )


def llamacpp_tool(c: Counts) -> str:
    return f"n_draft   = {c.gamma}\nn_predict = {c.accepted + c.rounds}\nn_drafted = {c.drafted}\nn_accept  = {c.accepted}\n"


def llamacpp_responses(c: Counts) -> str:
    generated = c.accepted + c.rounds
    timings = {"predicted_n": generated, "predicted_ms": 10.0 * generated, "draft_n": c.drafted, "draft_n_accepted": c.accepted}
    return json.dumps({"content": "…", "timings": timings}) + "\n"


def specdec_bench(c: Counts) -> str:
    joint = {str(depth + 1): rate for depth, rate in enumerate([1.0, *c.rates])}
    return json.dumps({"Joint_Acceptance_Rate": joint, "Conditional_Acceptance_Rate": {}, "Average_AL": c.length * 1.05})


FORMAT_OF: dict[str, tuple[Callable[[Counts], str], str]] = {
    "vllm_bench": (vllm_bench, "vllm-bench"),
    "prometheus": (prometheus, "prometheus"),
    "vllm_log_current": (vllm_log_current, "vllm-log"),
    "vllm_log_2025": (vllm_log_2025, "vllm-log"),
    "vllm_log_v0": (vllm_log_v0, "vllm-log"),
    "sglang_log_old": (sglang_log_old, "sglang-log"),
    "sglang_log_new": (sglang_log_new, "sglang-log"),
    "sglang_bench": (sglang_bench, "sglang-bench"),
    "sglang_responses": (sglang_responses, "sglang-responses"),
    "trtllm": (trtllm, "trtllm-stats"),
    "llamacpp_log": (llamacpp_log, "llamacpp-log"),
    "llamacpp_tool": (llamacpp_tool, "llamacpp-log"),
    "llamacpp_responses": (llamacpp_responses, "llamacpp-responses"),
    "specdec_bench": (specdec_bench, "specdec-bench"),
}
SOME = Counts([380, 270, 150, 200])


def runs_of(paths: list[Path], *words: Any, **options: Any) -> tuple[ObservedRun, ...]:
    return read_files(paths, *words, **options).runs


def length_of(run: ObservedRun) -> float:
    return run.counters.mean_acceptance_length if run.counters is not None else float(run.value("mean_acceptance_length"))


def read_one(folder: Path, text: str, **options: Any) -> ObservedRun:
    path = folder / "file"
    path.write_text(text)
    (run,) = runs_of([path], **options)
    return run


def faults(folder: Path, text: str, **options: Any) -> str:
    with pytest.raises(SpecError) as raised:
        read_one(folder, text, **options)
    return str(raised.value)


# -------------------------------------------------------------------------------------------------------- one truth, many


@pytest.mark.parametrize("name", FORMAT_OF)
def test_every_format_is_recognised_and_every_known_one_is_here(name: str, tmp_path: Path) -> None:
    write, expected = FORMAT_OF[name]
    path = tmp_path / "file"
    path.write_text(write(SOME))
    assert format_of(path) == expected
    assert {known for _, known in FORMAT_OF.values()} == set(FORMATS) - {measured_file.FORMAT}


@given(ended=st.lists(st.integers(0, 400), min_size=2, max_size=9).filter(lambda ended: sum(ended[1:]) > 20 and ended[0] > 0))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_same_counters_give_the_same_length_in_every_format(ended: list[int], tmp_path: Path) -> None:
    counts = Counts(ended)
    for name, (write, _) in FORMAT_OF.items():
        options = {"draft_tokens": counts.gamma + 1} if name.startswith("sglang_log") else {}
        run = read_one(tmp_path, write(counts), **options)
        # Logs print two decimals (the log lines here four); everything else is exact.
        assert length_of(run) == pytest.approx(counts.length, rel=1e-4 if "log" in name else 1e-12), name
        rates = run.value("acceptance_rates_per_position")
        if rates is not None:
            assert rates == pytest.approx(counts.rates, abs=6e-4), name


@pytest.mark.parametrize("older", [True, False])
def test_what_sglang_divides_by_is_told_from_the_lines(older: bool, tmp_path: Path) -> None:
    run = read_one(tmp_path, (sglang_log_old if older else sglang_log_new)(SOME), draft_tokens=4)
    assert ("older release" in run.notes[0]) == older
    neither = read_one(tmp_path, sglang_line(SOME, 0.9), draft_tokens=4)
    assert "neither" in neither.notes[0]


def test_a_rate_alone_does_not_tell_its_meaning(tmp_path: Path) -> None:
    line = "Decode batch, #running-req: 4, #token: 3211, accept rate: 0.54, gen throughput (token/s): 178.86\n"
    assert "accept len" in faults(tmp_path, line, draft_tokens=4)


def test_periods_weigh_by_their_rounds(tmp_path: Path) -> None:
    other = Counts([10, 20, 30, 40])
    run = read_one(tmp_path, vllm_log_current(SOME) + vllm_log_current(other))
    assert length_of(run) == pytest.approx(1 + (SOME.accepted + other.accepted) / (SOME.rounds + other.rounds), rel=1e-9)
    assert run.value("acceptance_rates_per_position")[0] == pytest.approx((620 + 90) / 1100, abs=1e-3)


def test_a_period_without_drafts_is_left_out_and_said(tmp_path: Path) -> None:
    empty = vllm_log_current(SOME).replace("length: 2.17", "length: nan").replace("Drafted: 3000", "Drafted: 0")
    run = read_one(tmp_path, vllm_log_current(SOME) + empty)
    assert length_of(run) == pytest.approx(SOME.length)
    assert "left out" in run.notes[0]


@pytest.mark.parametrize(
    "line",
    [
        "INFO 08-01 10:10:10 [loggers.py:118] Engine {rank:03d}: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: "
        "{tokens:.1f} tokens/s, Running: {running} reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%",
        "[2025-08-01 10:10:10 DP{rank} TP0] Decode batch, #running-req: {running}, #token: 900, token usage: 0.01, cuda graph: True, "
        "gen throughput (token/s): {tokens:.2f}, #queue-req: 0",
    ],
    ids=["vLLM", "SGLang"],
)
def test_ranks_that_log_a_line_each_are_one_server(tmp_path: Path, line: str) -> None:
    seen = [(0, 4, 100.0), (1, 6, 150.0), (0, 8, 200.0), (1, 6, 150.0)]
    run = read_one(tmp_path, "\n".join(line.format(rank=rank, running=running, tokens=tokens) for rank, running, tokens in seen))
    assert run.value("concurrency_mean") == pytest.approx(6 + 6)
    assert run.value("output_tokens_per_s") == pytest.approx(150 + 150)


def test_of_several_engines_behind_one_page_what_runs_adds_up_and_what_each_shows_does_not(tmp_path: Path) -> None:
    page = tmp_path / "metrics.txt"
    page.write_text(
        "".join(
            f'sglang:num_running_reqs{{model_name="m",dp_rank="{rank}"}} {running}\n'
            f'sglang:spec_num_steps{{model_name="m",dp_rank="{rank}"}} 3\n'
            f'sglang:spec_accept_length{{model_name="m",dp_rank="{rank}"}} {length}\n'
            for rank, running, length in ((0, 5, 2.5), (1, 7, 2.7))
        )
    )
    (run,) = runs_of([page])
    assert run.value("running") == 12
    assert run.value("num_speculative_tokens") == 3
    assert run.value("mean_acceptance_length") == pytest.approx(2.6)


def test_two_pages_are_their_difference(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    warmup = Counts([500, 10, 10, 10])
    both = Counts([a + b for a, b in zip(warmup.ended, SOME.ended, strict=True)])
    before.write_text(prometheus(warmup))
    after.write_text(prometheus(both))
    (run,) = runs_of([before, after])
    assert run.counters is not None
    assert run.counters.mean_acceptance_length == SOME.length
    assert run.value("acceptance_rates_per_position") == pytest.approx(SOME.rates)
    with pytest.raises(SpecError, match="restarted"):
        runs_of([after, before])


def test_llamacpp_counts_rounds_without_a_proposal(tmp_path: Path) -> None:
    # 100 tokens, 20 accepted of 30 drafted: 80 passes, at most 30 of which had a proposal.
    run = read_one(tmp_path, "n_predict = 100\nn_drafted = 30\nn_accept = 20\n")
    assert run.counters is not None
    assert run.counters.mean_acceptance_length == pytest.approx(100 / 80)
    assert run.counters.rounds_without_draft == 50


# ------------------------------------------------------------------------------------------------- units and conversions


def test_units_become_si_and_say_how(tmp_path: Path) -> None:
    run = read_one(tmp_path, vllm_bench(SOME))
    assert run.value("ttft_mean_s") == pytest.approx(0.031)
    assert run.value("tpot_mean_s") == pytest.approx(0.0041)
    assert run.value("draft_acceptance_rate") == pytest.approx(SOME.accepted / SOME.drafted)  # the file has percent
    assert run.readings["draft_acceptance_rate"].conversion.startswith("percent / 100")
    assert run.value("num_speculative_tokens") == 3
    # Little's law: requests per second times (TTFT + TPOT · (tokens - 1)).
    tokens = (SOME.accepted + SOME.rounds + 8) / 8
    assert run.value("concurrency_mean") == pytest.approx(0.64 * (0.031 + 0.0041 * (tokens - 1)))


def test_sglang_says_its_own_settings(tmp_path: Path) -> None:
    run = read_one(tmp_path, sglang_bench(SOME))
    assert (run.value("num_speculative_tokens"), run.value("tensor_parallel_size")) == (3, 2)
    server = {
        "speculative_algorithm": "EAGLE3",
        "speculative_num_steps": 3,
        "speculative_eagle_topk": 4,
        "speculative_num_draft_tokens": 16,
    }
    tree = read_one(tmp_path, sglang_bench(SOME, server_info=server))
    assert tree.value("num_speculative_tokens") is None
    assert tree.value("tree_shape") == "steps=3,topk=4,draft_tokens=16"


# ------------------------------------------------------------------------------------------- impossible and contaminated


def test_a_length_above_what_gamma_allows_is_refused(tmp_path: Path) -> None:
    assert "at most γ + 1 = 2" in faults(tmp_path, llamacpp_responses(Counts([1, 1, 1, 90])), num_speculative_tokens=1)


def test_two_words_on_gamma_must_agree(tmp_path: Path) -> None:
    assert "must be 5" in faults(tmp_path, vllm_bench(SOME), num_speculative_tokens=5)


def test_no_drafts_is_no_speculation(tmp_path: Path) -> None:
    none = vllm_bench(SOME, spec_decode_num_drafts=0, spec_decode_draft_tokens=0, spec_decode_accepted_tokens=0)
    assert "speculation was not running" in faults(tmp_path, none)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"spec_decode_accepted_tokens": 9999}, "counters"),
        ({"mean_tpot_ms": float("nan")}, "finite"),
        ({"mean_tpot_ms": -1.0}, "at least 0"),
        ({"completed": 0}, "above 0"),
        ({"spec_decode_per_position_acceptance_rates": [62.0, 35.0, 20.0]}, "fractions"),
        ({"spec_decode_num_drafts": 3.5}, "whole number"),
        ({"duration": "12"}, "must be a number"),
    ],
)
def test_impossible_values_are_refused_by_name(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    assert said in faults(tmp_path, vllm_bench(SOME, **changes))


def test_mixed_draft_lengths_and_other_traffic_are_said(tmp_path: Path) -> None:
    mixed = read_one(tmp_path, vllm_bench(SOME, spec_decode_draft_tokens=2000, spec_decode_acceptance_rate=58.5))
    assert any("mixed" in note for note in mixed.notes)
    others = read_one(tmp_path, vllm_bench(SOME, total_output_tokens=900, output_throughput=72.0))
    assert any("other traffic" in note for note in others.notes)
    assert not read_one(tmp_path, vllm_bench(SOME)).notes


# ---------------------------------------------------------------------------------------------------------- files written


def detailed() -> str:
    draw = random.Random(3)
    outputs = [draw.randint(50, 300) for _ in range(40)]
    return vllm_bench(
        SOME, completed=40, total_output_tokens=sum(outputs), input_lens=[draw.randint(100, 900) for _ in range(40)],
        output_lens=outputs, itls=[[0.01] * (n // 2) for n in outputs], start_times=[100.0 + 0.7 * i for i in range(40)],
        spec_decode_num_drafts=1000, request_rate=1.4,
    )  # fmt: skip


def test_an_import_becomes_profile_trace_and_scenario(tmp_path: Path) -> None:
    path, out = tmp_path / "run.json", tmp_path / "out"
    path.write_text(detailed())
    words = [
        "--hardware",
        "h100_sxm",
        "--engine",
        "vllm",
        "--target",
        "meta-llama/Llama-3.1-8B-Instruct",
        "--method",
        "eagle3",
        "--json",
    ]
    assert main(["import", str(path), *words, "--out", str(out)]) == 0
    profile = read_profile(out / "acceptance.yaml")
    assert profile.law().mean_acceptance_length(3) == pytest.approx(SOME.length)
    trace = read_request_trace(out / "requests.csv")
    assert len(trace) == 40
    assert trace.arrival_s[-1] == pytest.approx(0.7 * 39)
    loaded = load_scenario(out / "scenario.yaml")
    assert loaded.gammas == (3,)
    acceptance = loaded.acceptance(3)
    assert acceptance is not None
    assert acceptance.law.mean_acceptance_length(3) == pytest.approx(SOME.length)


def test_what_the_file_does_not_hold_is_asked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = tmp_path / "log", tmp_path / "out"
    path.write_text(vllm_log_v0(SOME))
    assert main(["import", str(path), "--out", str(out)]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "acceptance.yaml: needs --method, --target" in text
    assert [each.name for each in out.iterdir()] == ["measured.yaml"]


def test_appended_runs_and_sweep_folders_give_every_run(tmp_path: Path) -> None:
    both = tmp_path / "both.json"
    both.write_text(vllm_bench(SOME) + "\n" + vllm_bench(Counts([1, 2, 3, 4])))
    assert [round(length_of(run), 6) for run in runs_of([both])] == [2.17, 3.0]
    (tmp_path / "sweep" / "a").mkdir(parents=True)
    (tmp_path / "sweep" / "a" / "run.json").write_text(vllm_bench(SOME))
    (tmp_path / "sweep" / "summary.json").write_text('{"note": "not a run"}')
    assert len(runs_of([tmp_path / "sweep"])) == 1


# -------------------------------------------------------------------------------------------------------------- hostility


@pytest.mark.parametrize("name", FORMAT_OF)
def test_a_file_cut_anywhere_is_read_or_refused_with_a_place(name: str, tmp_path: Path) -> None:
    text = FORMAT_OF[name][0](SOME)
    for cut in range(0, len(text), max(1, len(text) // 40)):
        try:
            read_one(tmp_path, text[:cut], draft_tokens=4)
        except SpecError as error:
            assert str(tmp_path / "file") in str(error)


@pytest.mark.parametrize(
    "text",
    [
        "",
        " \n",
        "[" * 100_000,
        "{" * 50,
        '{"a": ' * 5000 + "1" + "}" * 5000,
        "\x00" * 64,
        "7" * 10_000,
        "[" + "9" * 6000 + "]",
        "{}",
        "[]",
    ],
)
def test_nonsense_is_refused_in_one_message(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "file"
    path.write_text(text)
    assert main(["import", str(path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    message = capsys.readouterr().err
    assert "Traceback" not in message
    assert len(message) < 600


@given(junk=st.binary(max_size=300), where=st.integers(0, 400), name=st.sampled_from(sorted(FORMAT_OF)))
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_bytes_put_into_a_file_never_break_a_reader(junk: bytes, where: int, name: str, tmp_path: Path) -> None:
    text = FORMAT_OF[name][0](SOME).encode()
    path = tmp_path / "file"
    path.write_bytes(text[:where] + junk + text[where:])
    try:
        for run in runs_of([path], FORMAT_OF[name][1], draft_tokens=4):
            assert not run.speculative or 1 <= length_of(run) < 1e4
    except SpecError:
        pass


def test_a_million_lines_are_read_in_bounded_memory(tmp_path: Path) -> None:
    import tracemalloc

    path = tmp_path / "log"
    with path.open("w") as file:
        for _ in range(50):
            file.write("x" * 200_000 + "\n" + "INFO nothing to see\n" * 2000)
        file.write(vllm_log_current(SOME))
    tracemalloc.start()
    (run,) = runs_of([path])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert length_of(run) == pytest.approx(SOME.length)
    assert peak < 8 * 2**20


def test_an_unknown_format_name_is_met_with_the_nearest(tmp_path: Path) -> None:
    assert "did you mean vllm-bench?" in faults(tmp_path, vllm_bench(SOME), format="vllm_bench")


SAME = Counts([100, 80, 60, 160])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"spec_decode_acceptance_rate": 95.0}, "95.0 % of the drafts accepted and its counters give 56.7 %"),
        ({"output_throughput": 9000.0}, "output_throughput is 9,000 tokens/s"),
        ({"mean_tpot_ms": 900.0}, "need .* requests at once .* max_concurrency is 4"),
        ({"completed": 100, "request_throughput": 8.0, "mean_tpot_ms": 0.1}, "the client held back"),
    ],
)
def test_what_cannot_be_of_one_run_is_said(changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    """Totals against rates, and Little's law against the users stated."""
    path = tmp_path / "run.json"
    path.write_text(vllm_bench(SAME, **changes))
    (run,) = read_files([path]).runs
    assert any(re.search(words, note) for note in run.notes)


def test_a_run_that_fits_together_has_no_such_note(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(vllm_bench(SAME, total_input_tokens=800, mean_ttft_ms=5000.0))
    (run,) = read_files([path]).runs
    assert not run.notes


def test_rates_by_position_that_rise_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(vllm_bench(SAME, spec_decode_per_position_acceptance_rates=[0.4, 0.55, 0.75]))
    with pytest.raises(SpecError, match="must fall"):
        read_files([path])


def test_a_rate_that_llama_cpp_prints_beside_other_counters_is_said(tmp_path: Path) -> None:
    path = tmp_path / "llama.txt"
    path.write_text("n_predict = 200\nn_drafted = 400\nn_accept = 120\naccept = 80.000%\n")
    (run,) = read_files([path]).runs
    assert any("prints 80.0 %" in note and "give 30.0 %" in note for note in run.notes)


def test_a_file_given_twice_is_one_run_too_many(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(vllm_bench(SAME))
    with pytest.raises(SpecError, match="must be given once"):
        read_files([path, tmp_path / ".." / tmp_path.name / "run.json"])
