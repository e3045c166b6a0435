"""Laws of imports: flags that would say nothing are refused, files that say a thing are not asked for it, odd counts are told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from simulator.__main__ import main
from simulator.interchange import trtllm_config
from simulator.interchange.detection import read_files
from simulator.interchange.engine_flags import parse_command
from simulator.scenario import load_scenario
from simulator.spec import SpecError
from tests.test_interchange import SOME, sglang_bench, sglang_log_new, vllm_log_v0

TREE = {
    "model_path": "meta-llama/Llama-3.1-8B-Instruct", "tp_size": 1, "speculative_algorithm": "EAGLE3", "speculative_num_steps": 3,
    "speculative_eagle_topk": 4, "speculative_num_draft_tokens": 8,
    "speculative_draft_model_path": "lmsys/SGLang-EAGLE3-Llama-3.1-8B-Instruct-SpecForge",
}  # fmt: skip


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(vllm_log_v0(SOME))
    return path


@pytest.mark.parametrize(
    "flags",
    [["--target", "x"], ["--precision", "fp8"], ["--sampler", "greedy"], ["--workload", "azure_conv_2023"], ["--engine", "vllm"]],
)
def test_what_is_said_for_files_that_are_not_written_is_refused(flags, log, tmp_path, capsys):
    assert main(["import", str(log), *flags]) == 2
    assert capsys.readouterr().err.startswith(f"{flags[0]}: goes with --out")
    assert main(["import", str(log), *flags, "--out", str(tmp_path / "out")]) == 0


def test_counts_of_drafts_that_no_file_takes_are_refused(log, tmp_path, capsys):
    assert main(["import", str(log), "--draft-tokens", "4"]) == 2
    assert capsys.readouterr().err.startswith("--draft-tokens: goes with a log of SGLang only")
    ours = tmp_path / "sglang.log"
    ours.write_text(sglang_log_new(SOME))
    assert main(["import", str(ours), "--draft-tokens", str(SOME.gamma + 1)]) == 0
    plain = tmp_path / "plain.json"
    plain.write_text(json.dumps({"duration": 1, "completed": 2, "total_output_tokens": 9, "mean_ttft_ms": 1}))
    assert main(["import", str(plain), "--num-speculative-tokens", "3"]) == 2
    assert "no run of these files has acceptance in it" in capsys.readouterr().err


def test_json_says_what_was_written_and_what_was_left_out_and_why(log, tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["import", str(log), "--out", str(out), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["written"] == [str(out / "measured.yaml")]
    assert any(reason.startswith("acceptance.yaml: needs --method") for reason in found["left_out"])
    assert main(["import", str(log), "--json"]) == 0
    assert "written" not in json.loads(capsys.readouterr().out)


def test_method_drafter_and_tree_that_a_file_holds_are_not_asked_for(tmp_path):
    path, out = tmp_path / "run.jsonl", tmp_path / "out"
    path.write_text(sglang_bench(SOME, server_info=TREE))
    assert main(["import", str(path), "--hardware", "h100_sxm", "--engine", "sglang", "--out", str(out)]) == 0
    loaded = load_scenario(out / "scenario.yaml")
    assert [shape.name for shape in loaded.shapes] == ["tree 3/4/8"]
    assert loaded.deployment.method == "eagle3"
    assert loaded.deployment.drafter.name == TREE["speculative_draft_model_path"]
    path.write_text(sglang_bench(SOME, server_info=TREE | {"speculative_eagle_topk": 1, "speculative_num_draft_tokens": 4}))
    assert main(["import", str(path), "--method", "eagle", "--out", str(out)]) == 0
    profile = (out / "acceptance.yaml").read_text()
    assert "method: eagle\n" in profile
    assert f"drafter: {TREE['speculative_draft_model_path']}\n" in profile


@pytest.mark.parametrize(
    ("text", "format", "words"),
    [
        ("eval time = 5.00 ms / 0 runs\n", "llamacpp-log", "must hold counters of llama.cpp"),
        ('{"predicted_n": 0, "predicted_ms": 3.0}\n', "llamacpp-responses", "must hold counters of llama.cpp"),
        (
            "SpecDecoding metrics: Mean acceptance length: 3.00, Accepted: 1 tokens, Drafted: 1 tokens, "
            "Per-position acceptance rate: 1.0, 1.0, 0.5, 0.1\n",
            "vllm-log",
            "drafts: must be above 0",
        ),
    ],
)
def test_counts_of_nothing_are_one_message(text, format, words, tmp_path):
    path = tmp_path / "run"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        read_files([path], format)


def test_a_request_without_an_answer_does_not_end_the_others(tmp_path):
    path = tmp_path / "run"
    path.write_text("eval time = 5.00 ms / 0 runs\neval time = 50.00 ms / 10 runs\n")
    (run,) = read_files([path]).runs
    assert run.value("tpot_mean_s") == pytest.approx(0.005)


def test_every_way_to_share_a_model_is_read_from_a_command():
    ours = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "data_parallel_size": 3, "expert_parallel": True}
    sglang = "python -m sglang.launch_server --model-path MODEL --disable-radix-cache"
    assert parse_command(f"{sglang} --tp-size 4 --pp-size 2 --dp-size 3 --ep-size 4").sections["parallel"] == ours
    assert parse_command(f"{sglang} --tp 4 --pp 2 --dp 3 --ep 4").sections["limits"] == {"prefix_caching": False}
    vllm = "vllm serve MODEL -tp 4 -pp 2 -dp 3 --enable-expert-parallel"
    assert parse_command(f"{vllm} --no-enable-prefix-caching").sections == {
        "target": {"model": "MODEL"}, "parallel": ours, "limits": {"prefix_caching": False},
    }  # fmt: skip
    attention = parse_command(f"{sglang} --tp 8 --dp 8 --enable-dp-attention")
    assert attention.sections["parallel"] == {"tensor_parallel_size": 8}
    assert "--enable-dp-attention is not priced" in attention.notes


def test_a_tensorrt_llm_configuration_gives_its_devices_and_its_cache(tmp_path):
    path = tmp_path / "config.yaml"
    text = "tensor_parallel_size: 4\npipeline_parallel_size: 2\nmoe_expert_parallel_size: 4\nkv_cache_config: {dtype: CACHE}\n"
    path.write_text(text.replace("CACHE", "fp8"))
    found = trtllm_config.read(path)
    assert found.sections == {
        "parallel": {"tensor_parallel_size": 4, "pipeline_parallel_size": 2, "expert_parallel": True},
        "target": {"kv_cache": "fp8"},
    }
    path.write_text(text.replace("CACHE", "nvfp4"))
    found = trtllm_config.read(path)
    assert "target" not in found.sections
    assert found.notes == [
        "NOT UNDERSTOOD: kv_cache_config.dtype nvfp4; say target.kv_cache in the scenario, which prices 16 bits otherwise"
    ]
