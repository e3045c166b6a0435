"""check-server against servers that we make up: our own simulation agrees with itself, a slower server is noticed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from simulator.__main__ import main
from simulator.interchange import vllm_bench
from simulator.interchange.observed import ObservedRun, Reading
from simulator.questions.server_check import ServerCheck, check_server
from simulator.scenario import Scenario, scenario_of
from simulator.simulation import SimulationResult, Variant, simulate
from simulator.spec import SpecError, parse_yaml

RATES = (0.7, 0.45, 0.3)
TEXT = """
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}
acceptance: {acceptance_rates_per_position: [0.7, 0.45, 0.3]}
workload:
  arrivals: {process: closed_loop, users: 8}
  lengths: {prompt: 500, output: 200}
  num_requests: 80
seed: 11
"""


@cache
def scenario(text: str = TEXT) -> Scenario:
    return scenario_of(parse_yaml(text, "server.yaml"))


@cache
def served() -> SimulationResult:
    return simulate(scenario())


@dataclass(frozen=True)
class Server:
    """A made-up server: our simulation of another seed, with its times stretched."""

    plain: float = 1.0
    speculative: float = 1.0

    def bench(self, with_speculation: bool, **changes: Any) -> dict[str, Any]:
        variant: Variant = served().comparisons[0].variant if with_speculation else served().plain
        slower, summary = self.speculative if with_speculation else self.plain, variant.summary
        assert summary.tpot_s is not None
        assert summary.ttft_s is not None
        per_s = summary.output_tokens_per_s / slower
        run: dict[str, Any] = {
            "model_id": "m", "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 8, "duration": 80 * 200 / per_s,
            "completed": 80, "failed": 0, "total_input_tokens": 80 * 500, "total_output_tokens": 80 * 200,
            "request_throughput": per_s / 200, "output_throughput": per_s, "mean_ttft_ms": 1000 * slower * summary.ttft_s.mean,
            "mean_tpot_ms": 1000 * slower * summary.tpot_s.mean,
        }  # fmt: skip
        if with_speculation:
            rounds = 6000
            accepted = round(rounds * sum(RATES))
            run |= {
                "spec_decode_num_drafts": rounds, "spec_decode_draft_tokens": 3 * rounds, "spec_decode_accepted_tokens": accepted,
                "spec_decode_acceptance_length": 1 + accepted / rounds, "spec_decode_per_position_acceptance_rates": list(RATES),
                "spec_decode_acceptance_rate": 100 * accepted / (3 * rounds),
            }  # fmt: skip
        return run | changes

    def run(self, with_speculation: bool, **changes: Any) -> ObservedRun:
        return vllm_bench.run(self.bench(with_speculation, **changes), "bench.json:1")


def check(server: Server, **changes: Any) -> ServerCheck:
    other_seed = scenario(TEXT.replace("seed: 11", "seed: 12"))
    return check_server([server.run(False), server.run(True, **changes)], other_seed)


def test_our_own_server_is_agreed_with() -> None:
    answer = check(Server())
    assert len(answer.rows) == 8
    assert all(row.inside for row in answer.rows), answer.rows
    assert all(abs(row.error) < 0.06 for row in answer.rows if row.quantity != "time to first token"), answer.rows
    assert answer.verdict.startswith("the model agrees")
    assert not answer.doubts
    assert answer.recipe is not None
    assert '"synthetic_acceptance_rates": [0.7, 0.45, 0.3]' in answer.recipe.text


def test_a_server_whose_rounds_are_slow_is_noticed_by_the_ratio_alone() -> None:
    answer = check(Server(speculative=1.4))
    off = {(row.quantity, row.part) for row in answer.rows if not row.inside}
    assert ("gain in time per token", "ratio") in off
    assert not any(part == "without" for _, part in off)
    assert answer.verdict.startswith("the model is off")
    (gain,) = (row for row in answer.rows if row.quantity == "gain in time per token")
    assert gain.error == pytest.approx(0.4, abs=0.05)


def test_a_machine_that_is_slow_as_a_whole_moves_no_ratio() -> None:
    answer = check(Server(plain=1.6, speculative=1.6))
    assert all(row.inside for row in answer.rows if row.part == "ratio")
    assert not any(row.inside for row in answer.rows if row.quantity == "time per output token")


def test_acceptance_far_below_every_measurement_is_doubted() -> None:
    answer = check(
        Server(), spec_decode_accepted_tokens=300, spec_decode_acceptance_length=1.05,
        spec_decode_per_position_acceptance_rates=[0.05, 0.0, 0.0], spec_decode_acceptance_rate=100 * 300 / 18000,
    )  # fmt: skip
    assert any("random-token prompts" in doubt for doubt in answer.doubts)


def test_few_requests_and_other_lengths_are_doubted() -> None:
    answer = check(Server(), completed=8, total_input_tokens=8 * 900, total_output_tokens=8 * 200)
    assert any("8 requests are few" in doubt for doubt in answer.doubts)
    assert any("not the same traffic" in doubt for doubt in answer.doubts)


def test_one_run_alone_is_checked_by_its_times() -> None:
    answer = check_server([Server().run(False)], scenario(TEXT.replace("seed: 11", "seed: 12")))
    assert {row.part for row in answer.rows} == {"without"}
    assert all(row.inside for row in answer.rows)
    far_client = check_server([Server().run(False, mean_ttft_ms=400.0)], answer.scenario)
    assert not all(row.inside for row in far_client.rows)
    assert far_client.verdict.startswith("the model agrees")


def test_a_run_of_another_model_or_other_devices_is_doubted() -> None:
    other = replace(Server().run(True, model_id="Qwen/Qwen3-8B"), readings={
        **Server().run(True, model_id="Qwen/Qwen3-8B").readings, "tensor_parallel_size": Reading(2, "tp_size", "here")
    })  # fmt: skip
    doubts = " ".join(check_server([other], scenario()).doubts)
    assert "measured on Qwen/Qwen3-8B" in doubts
    assert "tensor_parallel_size 2, and the scenario has 1" in doubts
    assert not any("measured on" in doubt for doubt in check(Server(), model_id="/disk/of/the/server").doubts)


def test_two_runs_of_a_kind_are_refused() -> None:
    with pytest.raises(SpecError, match="one pair at a time"):
        check_server([Server().run(False), Server().run(False)], scenario())


def test_from_two_files_to_a_verdict_in_one_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = []
    for with_speculation in (False, True):
        path = tmp_path / f"{with_speculation}.json"
        path.write_text(json.dumps(Server().bench(with_speculation)))
        names.append(str(path))
    (tmp_path / "server.yaml").write_text(TEXT)
    assert main(["check-server", *names, "--scenario", str(tmp_path / "server.yaml"), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["verdict"].startswith("the model agrees")
    assert document["recipe"]["engine"] == "vllm"


def test_the_commands_of_the_readme_lead_from_two_files_to_settings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    readme = (Path(__file__).resolve().parent.parent / "README.md").read_text()
    (block,) = (part for part in re.findall(r"```sh\n(.*?)```", readme, re.S) if "specsim import" in part)
    monkeypatch.chdir(tmp_path)
    for name, with_speculation in (("plain", False), ("speculative", True)):
        Path(f"{name}.json").write_text(json.dumps(Server().bench(with_speculation, model_id="meta-llama/Llama-3.1-8B-Instruct")))
    for line in block.replace("\\\n", " ").strip().splitlines():
        words = line.partition(" #")[0].split()
        assert words[0] == ".venv/bin/specsim"
        assert main(words[1:]) == 0, capsys.readouterr().err
    assert "--speculative-config" in capsys.readouterr().out
