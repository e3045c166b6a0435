"""Types of weights that are not understood: refused where they are typed, loudly said where a model's config.json holds them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from simulator.__main__ import main
from simulator.architecture import find_model, read_config, unread_weights
from simulator.interchange.engine_flags import parse_command
from simulator.number_format import FORMATS, find_format, nearest_format
from simulator.prediction import predict, predict_table
from simulator.scenario import Scenario, scenario_of
from simulator.spec import SpecError, parse_yaml

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16, "num_attention_heads": 32,
    "num_key_value_heads": 8, "head_dim": 64, "vocab_size": 128256, "tie_word_embeddings": True, "max_position_embeddings": 8192,
    "torch_dtype": "bfloat16",
}  # fmt: skip
# (quantization_config or dtype, what is said of it)
NOT_UNDERSTOOD: list[tuple[dict[str, Any], str]] = [
    ({"quantization_config": {"quant_method": "exl3", "bits": 3.5}}, "quant_method exl3"),
    ({"quantization_config": {"quant_method": "aqlm", "bits": 2}}, "quant_method aqlm, bits 2"),
    ({"quantization_config": {"quant_method": "gptq", "bits": 3}}, "quant_method gptq, bits 3"),
    ({"quantization_config": {"quant_algo": "W4A8_MXFP4_FP8"}}, "quant_algo W4A8_MXFP4_FP8"),
    ({"quantization_config": {"quant_method": "hqq", "modules_to_not_convert": ["mlp", "lm_head"]}}, "quant_method hqq"),
    (
        {
            "quantization_config": {
                "quant_method": "compressed-tensors",
                "config_groups": {"a": {"weights": {"type": "int", "num_bits": 2}}},
            }
        },
        "quant_method compressed-tensors, int 2",
    ),
    ({"quantization_config": {"anything": True}}, "a quantization without a method"),
    ({"torch_dtype": "float8_e4m3fn"}, "dtype float8_e4m3fn"),
]
# Configs that people write by hand, or tools that are none of those known.
ODDLY_WRITTEN: list[dict[str, Any]] = [
    *(
        {"quant_method": "compressed-tensors", "config_groups": {"a": group}}
        for group in (None, [], {"weights": None}, {"weights": "int4"}, {"weights": [4]}, {"weights": {"num_bits": [4]}},
                      {"weights": {"type": "float", "num_bits": 4, "group_size": [16]}})
    ),
    {"group_size": 64, "bits": [4]},
    {"quant_method": "hqq", "modules_to_not_convert": 5},
    {"quant_method": "gptq", "bits": {"all": 4}},
]  # fmt: skip
ASKED: dict[str, Any] = {"hardware": "h100_sxm", "engine": "vllm", "method": "ngram", "num_speculative_tokens": 3, "batch": 4}


def checkpoint(folder: Path, changes: dict[str, Any]) -> Path:
    """A folder as a checkpoint has it."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG | changes))
    return folder


@pytest.mark.parametrize("quantization", ODDLY_WRITTEN)
def test_a_quantization_that_is_oddly_written_is_said_not_to_be_understood(quantization, tmp_path):
    path = checkpoint(tmp_path / "model", {"quantization_config": quantization})
    assert read_config(path / "config.json").weights is None
    assert unread_weights(str(path))


def scenario(target: object, speculation: str = "{method: ngram, num_speculative_tokens: 3}") -> Scenario:
    text = f"""
hardware: h100_sxm
engine: vllm
target: {target}
speculation: {speculation}
acceptance: {{acceptance_rate: 0.6}}
workload: {{arrivals: {{process: poisson, rate_per_s: 5}}, lengths: {{prompt: 300, output: 60}}, num_requests: 30}}
"""
    return scenario_of(parse_yaml(text, "unread.yaml"))


@pytest.mark.parametrize(("changes", "said"), NOT_UNDERSTOOD)
def test_what_a_config_says_and_is_not_understood_is_warned_of_wherever_it_is_read(changes, said, tmp_path):
    folder = str(checkpoint(tmp_path / "model", changes))
    assert read_config(Path(folder) / "config.json").weights is None
    assert said in unread_weights(folder)
    (told,) = [text for text in predict(**ASKED, target_model=folder).warnings if "NOT UNDERSTOOD" in text]
    assert said in told
    assert "priced as bf16" in told
    assert "precision says otherwise" in told
    (told,) = [text for text in scenario(f"{{model: {folder}}}").warnings if "NOT UNDERSTOOD" in text]
    assert said in told
    assert "target.weights says otherwise" in told
    drafter = {**ASKED, "method": "draft_model", "target_model": "llama-3.1-8b", "draft_model": folder}
    (told,) = [text for text in predict(**drafter).warnings if "NOT UNDERSTOOD" in text]
    assert "drafter_weights says otherwise" in told
    drafts = scenario("{model: llama-3.1-8b}", f"{{method: draft_model, drafter: {folder}, num_speculative_tokens: 3}}")
    assert sum("NOT UNDERSTOOD" in text for text in drafts.warnings) == 1


@pytest.mark.parametrize(("changes", "said"), NOT_UNDERSTOOD[:2])
def test_a_type_that_is_said_beside_the_config_ends_the_warning(changes, said, tmp_path):
    folder = str(checkpoint(tmp_path / "model", changes))
    answer = predict(**ASKED, target_model=folder, precision="int4")
    assert not any("NOT UNDERSTOOD" in text for text in answer.warnings)
    assert answer.plain_step_s < predict(**ASKED, target_model=folder).plain_step_s
    assert not any("NOT UNDERSTOOD" in text for text in scenario(f"{{model: {folder}, weights: int4}}").warnings)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"torch_dtype": "auto"},
        {"torch_dtype": "torch.float16"},
        {"torch_dtype": None},
        {"quantization_config": {"quant_method": "fp8"}},
        {"quantization_config": {"quant_method": "awq", "bits": 4}},
    ],
)
def test_what_is_understood_or_not_said_gives_no_warning(changes, tmp_path):
    folder = str(checkpoint(tmp_path / "model", changes))
    assert unread_weights(folder) == ""
    assert not any("NOT UNDERSTOOD" in text for text in predict(**ASKED, target_model=folder).warnings)


@pytest.mark.parametrize(
    ("precision", "words"),
    [
        ("fp9", "and not fp9 (got 'fp9'); did you mean fp8?"),
        ("fp8, fp9 KV", "and not fp9 (got 'fp8, fp9 KV'); did you mean fp8?"),
        ("fp8, q4_0 KV", "must have a KV cache in one of bf16"),
        ("gptq_marlinn", "did you mean int4?"),
    ],
)
def test_a_typed_precision_that_is_not_known_is_refused_by_its_flag_and_in_a_table_row_alone(precision, words, tmp_path, capsys):
    flags = ["--hardware", "h100_sxm", "--target", "qwen3-8b", "--method", "ngram", "--num-speculative-tokens", "3"]
    for verb in ("predict", "explain"):
        assert main([verb, *flags, "--precision", precision]) == 2
        told = capsys.readouterr().err
        assert told.startswith("--precision: ")
        assert words in told
    table = tmp_path / "cases.csv"
    row = "h100_sxm,qwen3-8b,ngram,3,4"
    table.write_text(f'hardware,target_model,method,num_speculative_tokens,batch,precision\n{row},"{precision}"\n{row},fp8\n')
    refused, priced = predict_table(table)
    assert (refused.status, priced.status) == ("unsupported", "ok")
    assert words in refused.reason


@pytest.mark.parametrize(("written", "name"), [("awq", "int4"), ("FP8", "fp8"), ("bfloat16", "bf16")])
def test_another_spelling_in_a_scenario_is_told_the_one_that_is_taken(written, name):
    for target, speculation in (
        (f"{{model: qwen3-8b, weights: {written}}}", "{method: ngram, num_speculative_tokens: 3}"),
        ("{model: llama-3.1-8b}", f"{{method: eagle, num_speculative_tokens: 3, drafter_weights: {written}}}"),
    ):
        with pytest.raises(SpecError, match=rf"must be written as {name} \(got '{written}'\)"):
            scenario(target, speculation)


def test_flags_of_types_take_what_people_write_and_name_the_nearest(tmp_path, capsys):
    run = tmp_path / "run.log"
    run.write_text("vllm serve Qwen/Qwen3-8B\n")
    assert main(["import", str(run), "--hardware", "h100_sxm", "--precision", "fp9", "--out", str(tmp_path / "out")]) == 2
    assert "--precision: must be one of" in (told := capsys.readouterr().err)
    assert "did you mean fp8?" in told
    assert main(["compare", "quickstart", "--by", "quantize", "--values", "fp9"]) == 2
    assert "did you mean fp8?" in capsys.readouterr().err


@pytest.mark.parametrize("engine", ["vllm serve MODEL", "python -m sglang.launch_server --model-path MODEL"])
def test_types_of_a_server_command_are_read_as_people_write_them_or_said_not_to_be(engine):
    found = parse_command(f"{engine} --quantization gptq_marlin --kv-cache-dtype fp8_e5m2")
    assert (found.sections["target"]["weights"], found.sections["target"]["kv_cache"]) == ("int4", "fp8")
    found = parse_command(f"{engine} --quantization compressed-tensors --kv-cache-dtype turboquant3")
    assert {"weights", "kv_cache"}.isdisjoint(found.sections["target"])
    assert sum("NOT UNDERSTOOD" in note for note in found.notes) == 2
    assert not any("NOT UNDERSTOOD" in note for note in parse_command(f"{engine} --dtype auto --kv-cache-dtype auto").notes)


@pytest.mark.parametrize("name", ["Qwen/Qwen3-8B-EXL2", "Qwen3-8B-HQQ"])
def test_a_known_model_in_a_type_that_is_not_is_told_which_of_the_two_is_known(name):
    with pytest.raises(SpecError, match=f"Qwen3-8B is one, and {name.rpartition(chr(45))[2]} no known type of weights"):
        find_model(name)
    assert find_model("Qwen3-8B-AWQ") == find_model("Qwen3-8B")


def test_a_head_named_after_a_known_model_is_no_type_of_its_weights_and_the_heads_of_that_model_are_told():
    with pytest.raises(SpecError, match=r"known: yuhuili/EAGLE3-LLaMA3\.3-Instruct-70B") as raised:
        find_model("RedHatAI/Llama-3.3-70B-Instruct-speculator.eagle3", noun="drafter")
    assert "type of weights" not in str(raised.value)


@pytest.mark.parametrize("name", FORMATS)
def test_every_type_is_the_nearest_to_itself(name):
    assert find_format(name) == nearest_format(name) == name
