"""Files that should not hurt, and files that are our own: nothing hostile breaks a reader, and what was written is read the same."""

from __future__ import annotations

import json
import re
import tracemalloc
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.interchange import observed
from simulator.interchange.detection import read_files
from simulator.interchange.imported import Settings, measured
from simulator.questions.server_check import check_server
from simulator.scenario import scenario_of
from simulator.spec import SpecError, parse_yaml
from tests.test_interchange import (
    FORMAT_OF,
    SOME,
    faults,
    sglang_log_new,
    trtllm,
    vllm_bench,
    vllm_log_2025,
    vllm_log_current,
    vllm_log_v0,
)

SCENARIO = """
hardware: h100_sxm
engine: trtllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
workload: {arrivals: {process: closed_loop, users: 4}, lengths: {prompt: 500, output: 200}, num_requests: 60}
"""


@pytest.mark.parametrize("name", FORMAT_OF)
@pytest.mark.parametrize("number", ["9" * 5000, "1e999", "-5", "nan"])
def test_any_number_of_a_file_may_be_absurd(name: str, number: str, tmp_path: Path) -> None:
    """Read or refused, with a message; never a traceback."""
    write, format = FORMAT_OF[name]
    text, path = write(SOME), tmp_path / "file"
    for found in list(re.finditer(r"\d+(\.\d+)?", text))[:40]:
        path.write_text(text[: found.start()] + number + text[found.end() :])
        try:
            read_files([path], format, draft_tokens=4)
        except SpecError as error:
            assert str(error)


def test_a_file_in_utf_16_is_read(tmp_path: Path) -> None:
    for text in (vllm_bench(SOME), vllm_log_current(SOME)):
        (tmp_path / "file").write_bytes(text.encode("utf-16"))
        (run,) = read_files([tmp_path / "file"]).runs
        assert run.mean_acceptance_length == pytest.approx(SOME.length, abs=0.01)


def test_logs_of_two_generations_are_refused(tmp_path: Path) -> None:
    assert "log of one server" in faults(tmp_path, vllm_log_v0(SOME) + vllm_log_2025(SOME))


def test_a_restart_of_a_counter_is_said(tmp_path: Path) -> None:
    less = (
        vllm_log_v0(SOME)
        .replace("emitted tokens: 2170", "emitted tokens: 2100")
        .replace("draft tokens: 3000", "draft tokens: 2700")
    )
    (tmp_path / "log").write_text(vllm_log_v0(SOME) + less)
    (run,) = read_files([tmp_path / "log"]).runs
    assert any("started anew 1 times" in note for note in run.notes)


def test_a_json_file_that_would_fill_the_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observed, "MAX_JSON_BYTES", 2**20)
    assert "must be at most 1 MiB" in faults(tmp_path, json.dumps([json.loads(vllm_bench(SOME))] * 2000))


def test_a_million_decode_lines_cost_no_memory(tmp_path: Path) -> None:
    path = tmp_path / "log"
    with path.open("w") as file:
        for _ in range(100):
            file.write(sglang_log_new(SOME) * 200)
    tracemalloc.start()
    (run,) = read_files([path]).runs
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert run.mean_acceptance_length == pytest.approx(SOME.length, abs=1e-3)
    assert peak < 2**20  # twenty thousand lines; a list of them would take ten


@pytest.mark.parametrize("name", FORMAT_OF)
def test_measured_runs_are_read_again_with_the_same_numbers(name: str, tmp_path: Path) -> None:
    write, format = FORMAT_OF[name]
    (tmp_path / "file").write_text(write(SOME))
    runs = read_files([tmp_path / "file"], format, draft_tokens=4).runs
    again = tmp_path / "measured.yaml"
    again.write_text(measured(runs, Settings(hardware="h100_sxm")))
    read = read_files([again]).runs
    assert [run.counters for run in read] == [run.counters for run in runs]
    for one, other in zip(read, runs, strict=True):
        assert (one.format, one.notes) == (other.format, other.notes)
        assert one.readings.keys() == other.readings.keys()
        for key, reading in one.readings.items():
            same = other.readings[key]
            assert reading.value == (pytest.approx(same.value, rel=1e-11) if not isinstance(same.value, str) else same.value)
            assert (reading.field, reading.conversion) == (same.field, same.conversion)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("schema_version: 2\nruns: [{format: a, where: b, readings: {}}]", "schema_version: must be 1"),
        ("schema_version: 1\nruns: []", "runs: must be a list"),
        ("schema_version: 1\nruns: [{format: a}]", "must have format, where and readings"),
        (
            "schema_version: 1\nruns: [{format: a, where: b, readings: {x: {value: true, field: f, conversion: c}}}]",
            "must have a value",
        ),
        (
            "schema_version: 1\nruns: [{format: a, where: b, readings: {counters: {value: {drafts: 1}}}}]",
            "whole numbers of drafts",
        ),
    ],
)
def test_a_measured_file_that_was_changed_badly_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "measured.yaml").write_text("# Imported by specsim: values in SI units\n" + text)
    with pytest.raises(SpecError, match=words):
        read_files([tmp_path / "measured.yaml"])


def test_an_import_that_fails_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "cut.json").write_text(vllm_bench(SOME)[:300])
    assert main(["import", str(tmp_path / "cut.json"), "--out", str(tmp_path / "out")]) == 2
    assert "must be JSON" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_statistics_without_traffic_are_checked_term_by_term_on_the_scenarios_own(tmp_path: Path) -> None:
    (tmp_path / "stats").write_text(trtllm(SOME))
    answer = check_server(read_files([tmp_path / "stats"]).runs, scenario_of(parse_yaml(SCENARIO, "server.yaml")))
    rows = {row.quantity: row for row in answer.rows}
    assert rows["one round"].measured == pytest.approx(0.008)
    assert rows["drafting, share of a round"].measured == pytest.approx(0.2)
    assert 0 < rows["drafting, share of a round"].predicted.value < 0.5
    assert any("holds no traffic" in doubt for doubt in answer.doubts)
