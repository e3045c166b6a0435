"""Scenarios: shipped ones load, names resolve, and every fault between sections has its message and line."""

from __future__ import annotations

import copy
import json
import re
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from simulator import resources
from simulator.__main__ import main
from simulator.number_format import WeightFormat
from simulator.prediction import predict
from simulator.scenario import ScenarioFile, load_scenario, scenario_of
from simulator.spec import Document, SpecError, parse_yaml

ROOT = Path(__file__).parents[1]
BASE = """\
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation:
  method: eagle3
  drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B
  num_speculative_tokens: 3
acceptance: {acceptance_rate: 0.7}
workload:
  arrivals: {process: poisson, rate_per_s: 4}
  lengths: {prompt: 300, output: 100}
  num_requests: 50
seed: 3
"""


DRAFT = "method: draft_model, drafter: meta-llama/Llama-3.2-1B-Instruct, num_speculative_tokens: 3"


def scenario(text: str = BASE, **changes: str):
    """BASE with whole top-level sections replaced; an empty text drops the section."""
    data = yaml.safe_load(text)
    for key, value in changes.items():
        data.pop(key, None)
        if value:
            data[key] = yaml.safe_load(value)
    return scenario_of(parse_yaml(yaml.safe_dump(data, sort_keys=False), "s.yaml"))


def message(**changes: str) -> str:
    with pytest.raises(SpecError) as caught:
        scenario(**changes)
    assert all(problem.where.startswith("s.yaml:") for problem in caught.value.problems), str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("name", resources.ids("scenario"))
def test_shipped_scenarios_load_and_name_the_schema(name):
    loaded = load_scenario(name)
    assert loaded.name == name
    text = (resources.folder("scenario") / f"{name}.yaml").read_text()
    assert text.startswith("# yaml-language-server: $schema=scenario.schema.json")


def test_the_shipped_schema_has_the_keys_of_the_printed_one_and_accepts_every_shipped_scenario(capsys):
    """Wording differs between versions of pydantic; keys must not."""
    assert main(["schema"]) == 0
    printed = json.loads(capsys.readouterr().out)
    path = resources.folder("scenario") / "scenario.schema.json"
    shipped = json.loads(path.read_text())
    keys = [
        {name: sorted(part.get("properties", {})) for name, part in (*s["$defs"].items(), ("", s))} for s in (printed, shipped)
    ]
    assert keys[0] == keys[1]
    validators = []
    for schema in (printed, shipped):
        kind = jsonschema.validators.validator_for(schema)
        kind.check_schema(schema)
        validators.append(kind(schema))
    for name in resources.ids("scenario"):
        content = yaml.safe_load((path.parent / f"{name}.yaml").read_text())
        for validator in validators:
            validator.validate(content)
            assert not validator.is_valid({**content, "unknown_key": 1})


def test_a_scenario_is_found_by_path_and_by_id(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(BASE)
    assert load_scenario(path).name == "mine"
    assert load_scenario("quickstart").name == "quickstart"
    with pytest.raises(SpecError, match="did you mean quickstart"):
        load_scenario("quickstrat")


def test_names_match_case_owner_and_suffixes():
    loaded = scenario(target="{model: llama-3.1-8b}", hardware="NVIDIA H100 SXM")
    assert loaded.deployment.target.name == "meta-llama/Llama-3.1-8B"
    assert loaded.deployment.hardware.profile_id == "h100_sxm"


def test_hardware_coefficients_are_overridden():
    loaded = scenario(hardware="{base: h100_sxm, memory_bandwidth_fraction: 0.5, flops_fraction: {bf16: 0.25}}")
    hardware = loaded.deployment.hardware
    assert hardware.bandwidth_bytes_per_s == 0.5 * hardware.profile.memory_bandwidth_bytes_per_s.value
    assert hardware.flops_per_s("bf16") == 0.25 * hardware.profile.peak_flops_per_s["bf16"].value
    assert hardware.coefficients.memory_bandwidth_fraction.source == "override"


def test_every_mistake_of_a_file_is_reported_at_once():
    text = message(
        hardware="h100_smx", engine="vlm", target="{model: meta-llama/Llama-3.1-8B-Instrct, weights: bf61}", seed="-1",
        workload="{arrivals: {process: poisson}, lengths: {prompt: 0, output: 10}, num_requests: 5, extra: 1}",
    )  # fmt: skip
    for part in (
        "did you mean h100_sxm",
        "did you mean vllm",
        "did you mean bf16",
        "seed: must be at least 0",
        "rate_per_s",
        "extra: unknown key",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"speculation": "{method: draft_model, drafter: Qwen/Qwen2.5-0.5B, num_speculative_tokens: 3}"}, "drafter tokenizer qwen"),
        ({"speculation": "{method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.3-Instruct-70B, num_speculative_tokens: 3}"}, "is a head for"),
        ({"speculation": "{method: eagle3, drafter: meta-llama/Llama-3.2-1B, num_speculative_tokens: 3}"}, "must be a draft head for method eagle3"),
        ({"speculation": "{method: draft_model, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}"}, "must be a whole model"),
        ({"speculation": "{method: draft_model, num_speculative_tokens: 3}"}, "must name its drafter"),
        ({"speculation": "{method: eagle3}"}, "exactly one of num_speculative_tokens and by_batch"),
        ({"speculation": "{method: ngram, drafter: x, num_speculative_tokens: 3}"}, "ngram has no drafter model"),
        ({"speculation": "{method: medussa, num_speculative_tokens: 3}"}, "did you mean medusa"),
        ({"speculation": "{method: layer_skip, num_speculative_tokens: 3}"}, "draft_layers must be given with method layer_skip"),
        ({"speculation": "{method: mtp, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: 3}"}, "must be a head for method mtp"),
        ({"speculation": "{method: ngram, draft_kv_tokens: 512, num_speculative_tokens: 3}"}, "goes with method sparse_kv only"),
        ({"speculation": "{method: none}"}, "acceptance: must be left out without speculation"),
        ({"speculation": ""}, "acceptance: must be left out without speculation"),
        ({"target": "{model: meta-llama/Llama-3.1-70B}", "speculation": "", "acceptance": ""}, "tensor_parallel_size 2 would fit"),
        ({"target": "{model: google/flan-t5-xl}"}, "encoder-decoder"),
        ({"target": "{model: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B}"}, "not a draft head"),
        ({"parallel": "{tensor_parallel_size: 3}"}, "must divide the 32 attention heads"),
        ({"parallel": "{draft_tensor_parallel_size: 2}", "speculation": "{method: ngram, num_speculative_tokens: 2}"}, "without a drafter model"),
        ({"limits": "{max_num_batched_tokens: 3}"}, "num_speculative_tokens + 1 = 4"),
        ({"limits": "{max_model_len: 1000000}"}, "the positions of"),
        ({"limits": "{gpu_memory_utilization: 80%}"}, "write 0.8"),
        ({"acceptance": "{mean_acceptance_length: 4.5}"}, "must be between 1 and 4"),
        ({"acceptance": "{acceptance_rate: 0.7, profile: llama31_8b_eagle3_mtbench}"}, "acceptance"),
        ({"acceptance": "{profile: llama31_8b_eagle3_mtbnch}"}, "did you mean llama31_8b_eagle3_mtbench"),
        ({"acceptance": "{acceptance_rates_per_position: [0.5, 0.8, 0.9]}"}, "acceptance_rates_per_position"),
        ({"workload": "{arrivals: {process: trace}, requests: {trace: azure_conv_2023}}"}, "num_requests: must be given"),
        ({"workload": "{arrivals: {process: trace}, requests: {trace: azure_cnv_2023}, num_requests: 5}"}, "did you mean azure_conv_2023"),
        ({"hardware": "{base: h100_sxm, memory_bandwidth_fraktion: 0.5}"}, "did you mean memory_bandwidth_fraction"),
        ({"hardware": "{base: h100_sxm, memory_bandwidth_fraction: 1.5}"}, "must be at most 1"),
        ({"hardware": "{base: a100_sxm_80gb, flops_fraction: {fp8: 0.5}}"}, "must be a type this device computes in"),
        ({"hardware": "[1]"}, "hardware"),
        ({"engine": ""}, "engine: must be given"),
        ({"acceptance": "{profile: llama31_8b_ngram_edits}"}, "must be a profile measured for method eagle3"),
        ({"acceptance": "{acceptance_rate: 0.7, proposal_rate: 0.5}"}, "proposal_rate: must be left out: eagle3 always proposes"),
        ({"speculation": "{method: medusa, drafter: FasterDecoding/medusa-vicuna-7b-v1.3, num_speculative_tokens: 9}", "target": "{model: lmsys/vicuna-7b-v1.3}"}, "the heads of drafter"),
        ({"speculation": "{method: eagle3, by_batch: [[1, 10, 0]]}"}, "must draft somewhere"),
        ({"target": "{model: " + "x" * 300 + ".yaml}"}, "must be a known target model"),
        ({"hardware": "{base: h100_sxm, memory_bandwidth_bytes_per_s: 1e-300}"}, "must be at least"),
        ({"service_level": "{}"}, "at least one limit"),
        ({"parallel": "{nodes: 2}"}, "nodes: must divide the 1 devices"),
        ({"parallel": "{pipeline_parallel_size: 33}"}, "at most 32, the layers of"),
        ({"parallel": "{pipeline_parallel_size: 2}", "engine": "sglang"}, "runs no method of speculation over pipeline stages"),
        ({"parallel": "{expert_parallel: true}"}, "has no experts"),
        ({"parallel": "{tensor_parallel_size: 2, expert_parallel: 2}"}, "expert_parallel: must be true or false"),
        ({"parallel": "{pipeline_paralel_size: 2}"}, "did you mean pipeline_parallel_size"),
        ({"parallel": "{data_parallel_size: 3, expert_parallel: true}", "target": "{model: Qwen/Qwen3-30B-A3B}", "speculation": "", "acceptance": ""}, "must share 128 experts evenly over 3 devices"),
        ({"parallel": "{tensor_parallel_size: 2, pipeline_parallel_size: 3, nodes: 2}"}, "must spread whole tensor-parallel groups evenly"),
        ({"speculation": "{method: eagle3, num_speculative_tokens: 3, draft_device: {hardware: rtx_4090, link_latency_s: 0.001}}"}, "draft_device goes with method draft_model"),
        ({"speculation": "{" + DRAFT + ", draft_device: {hardware: rtx_4091, link_latency_s: 0.001}}"}, "did you mean rtx_4090"),
        ({"speculation": "{" + DRAFT + ", draft_device: {hardware: rtx_4090}}"}, "link_latency_s: must be given"),
        ({"speculation": "{" + DRAFT + ", draft_device: {hardware: rtx_4090, link_latency_s: 0.001, tensor_parallel_size: 3}}"}, "speculation.draft_device.tensor_parallel_size: must divide the 32 attention heads"),
        ({"speculation": "{" + DRAFT + ", draft_device: {hardware: rtx_2080_ti, link_latency_s: 0.001}, drafter_weights: fp32}", "target": "{model: meta-llama/Llama-3.1-70B-Instruct}", "parallel": "{tensor_parallel_size: 4}", "limits": "{gpu_memory_utilization: 0.7}"}, "draft_device: must hold the drafter and a KV cache"),
        ({"speculation": "{" + DRAFT + ", draft_device: {hardware: rtx_4090, link_latency_s: 0.001}}", "parallel": "{draft_tensor_parallel_size: 2}"}, "must be left out where the draft has a device of its own"),
    ],
)  # fmt: skip
def test_cross_field_faults_have_a_message_with_file_and_line(changes, expected):
    assert expected in message(**changes)


def test_gamma_above_the_drafters_block_is_refused(tmp_path):
    model = tmp_path / "block.yaml"
    model.write_text(
        "{name: my-draft, kind: draft, family: llama, tokenizer: llama-3, hidden_size: 256, num_hidden_layers: 2, num_attention_heads: 4,"
        " num_key_value_heads: 4, head_dim: 64, intermediate_size: 512, vocab_size: 128256, block_size: 4}"
    )
    speculation = f"{{method: draft_model, drafter: {model}, num_speculative_tokens: [2, 5]}}"
    assert "must be at most 4, the block of drafter my-draft" in message(speculation=speculation)


def test_heterogeneous_vocabularies_padded_ones_and_reduced_heads_are_allowed():
    different = "{method: draft_model, drafter: Qwen/Qwen2.5-0.5B, num_speculative_tokens: 3, heterogeneous_vocabulary: true}"
    assert scenario(speculation=different).deployment.drafter.name == "Qwen/Qwen2.5-0.5B"
    padded = "{method: draft_model, drafter: Qwen/Qwen2.5-0.5B, num_speculative_tokens: 3}"
    assert scenario(speculation=padded, target="{model: Qwen/Qwen2.5-7B}").deployment.drafter.vocab_size != 152064
    assert scenario().deployment.drafter.draft_vocab_size == 32000


def test_yaml_1_1_traps_do_not_spring():
    loaded = scenario_of(parse_yaml(BASE.replace("rate_per_s: 4", "rate_per_s: 4e0"), "s.yaml"))
    assert loaded.file.workload.arrivals.rate_per_s == 4.0
    with pytest.raises(SpecError, match="must be true or false"):
        scenario_of(parse_yaml(BASE.replace("method: eagle3", "method: eagle3\n  heterogeneous_vocabulary: on"), "s.yaml"))


def test_a_head_without_a_name_is_built_from_the_target_and_said():
    loaded = scenario(speculation="{method: eagle3, num_speculative_tokens: 3}")
    assert loaded.deployment.drafter.num_hidden_layers == 1
    assert any("built from the target" in warning for warning in loaded.warnings)


# ------------------------------------------------------------------------------------------- mutated scenarios, by property

PATHS = [
    (*prefix, key)
    for prefix, keys in [
        ((), ["hardware", "engine", "target", "speculation", "acceptance", "workload", "seed"]),
        (("target",), ["model"]),
        (("speculation",), ["method", "drafter", "num_speculative_tokens"]),
        (("acceptance",), ["acceptance_rate"]),
        (("workload",), ["arrivals", "lengths", "num_requests"]),
        (("workload", "arrivals"), ["process", "rate_per_s"]),
        (("workload", "lengths"), ["prompt", "output"]),
    ]
    for key in keys
]
OPTIONAL = {("speculation",), ("speculation", "drafter"), ("acceptance",), ("seed",)}
NUMBERS = [
    path
    for path in PATHS
    if path[-1] in ("seed", "num_speculative_tokens", "acceptance_rate", "num_requests", "rate_per_s", "prompt", "output")
]
WRONG_TYPES = ["text", True, None, [], [[1]], {"a": 1}, ".nan"]
OUT_OF_RANGE = [-1, -0.5, 1e308, -1e308]


def mutate(path: tuple[str, ...], kind: str, choice: int) -> str:
    data = copy.deepcopy(yaml.safe_load(BASE))
    inner = data
    for key in path[:-1]:
        inner = inner[key]
    key = path[-1]
    if kind == "delete":
        del inner[key]
    elif kind == "rename":
        inner[key + "s"] = inner.pop(key)
    elif kind == "retype":
        inner[key] = WRONG_TYPES[choice % len(WRONG_TYPES)]
        if key in ("hardware", "engine", "model", "drafter", "method", "process") and inner[key] == "text":
            inner[key] = 5
        if path in OPTIONAL and inner[key] is None:
            inner[key] = []
    else:
        inner[key] = OUT_OF_RANGE[choice % len(OUT_OF_RANGE)]
    return yaml.safe_dump(data, sort_keys=False).replace("'.nan'", ".nan")


@settings(derandomize=True, max_examples=250, deadline=None)
@given(st.sampled_from(PATHS), st.sampled_from(["delete", "rename", "retype", "range"]), st.integers(0, 50))
def test_a_mutated_scenario_exits_with_2_and_names_file_and_line(tmp_path_factory, path, kind, choice):
    if (kind == "delete" and path in OPTIONAL - {("speculation",)}) or (kind == "range" and path not in NUMBERS):
        return
    file = tmp_path_factory.getbasetemp() / "mutated.yaml"
    file.write_text(mutate(path, kind, choice))
    code, shown = run_quietly(["run", str(file)])
    assert code == 2, shown
    assert "Traceback" not in shown
    assert shown.strip()
    assert all(line.startswith(f"{file}:") for line in shown.strip().splitlines()), shown


def run_quietly(arguments: list[str]) -> tuple[int, str]:
    """Exit code and what went to stderr."""
    from simulator import __main__ as command

    with command.err.capture() as capture:
        code = main(arguments)
    return code, capture.get()


def test_scenario_specs_state_no_default_that_hides_a_typing_mistake():
    assert ScenarioFile.model_config["extra"] == "forbid"
    with pytest.raises(SpecError, match="must be a mapping of sections"):
        scenario_of(Document("s.yaml", None, {(): 1}))


def test_relative_trace_paths_are_taken_from_the_scenarios_folder(tmp_path):
    (tmp_path / "mine.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,10,5\n1,20,6\n")
    path = tmp_path / "s.yaml"
    workload = "workload: {arrivals: {process: trace}, requests: {trace: mine.csv}}\n"
    path.write_text(BASE[: BASE.index("workload:")] + workload)
    assert len(load_scenario(path).source) == 2
    path.write_text(BASE[: BASE.index("workload:")] + workload.replace("mine", "none"))
    with pytest.raises(SpecError, match="must be the path of a file that exists"):
        load_scenario(Path(path))


def test_mtp_beyond_the_trained_depth_is_said():
    deepseek = {
        "target": "{model: deepseek-ai/DeepSeek-V3, weights: fp8}",
        "hardware": "h200_sxm",
        "parallel": "{tensor_parallel_size: 8}",
    }
    said = [
        any(
            "MTP module" in w
            for w in scenario(**deepseek, speculation=f"{{method: mtp, num_speculative_tokens: {gamma}}}").warnings
        )
        for gamma in (1, 2)
    ]
    assert said == [False, True]


# ------------------------------------------------------------------------------------------------------- stored weights


def mtp_on(weights: str):
    return scenario(
        target=f"{{model: Qwen/Qwen3.5-9B, weights: {weights}}}",
        speculation="{method: mtp, num_speculative_tokens: 1}",
        hardware="h200_sxm",
    )


@pytest.mark.parametrize("weights", get_args(WeightFormat))
def test_a_drafter_may_be_stored_in_every_type_that_a_target_may(weights):
    speculation = (
        f"{{method: draft_model, drafter: meta-llama/Llama-3.2-1B, drafter_weights: {weights}, num_speculative_tokens: 3}}"
    )
    assert scenario(speculation=speculation).deployment.drafter_weights == weights


def test_an_mtp_module_is_stored_as_its_checkpoint_and_other_drafters_in_16_bit():
    """Stated alike by scenarios and predict; said where it had to be assumed."""
    for weights in ("q4_k_m", "mlx4", "int4", "fp8"):
        loaded = mtp_on(weights)
        assert loaded.deployment.drafter_weights == weights
        assert any("the drafter's weights are taken as" in warning for warning in loaded.warnings)
        point = predict(hardware="h200_sxm", target="Qwen/Qwen3.5-9B", method="mtp", precision=weights, batch=1,
                        num_speculative_tokens=1, context_len=1000, engine="vllm")  # fmt: skip
        assert any(f"the drafter's weights are taken as {weights}" in warning for warning in point.warnings)
    assert mtp_on("nvfp4").deployment.drafter_weights == "bf16"
    head = scenario(target="{model: meta-llama/Llama-3.1-8B-Instruct, weights: int4}")
    assert head.deployment.drafter_weights == "bf16"
    assert not any("drafter's weights" in warning for warning in scenario().warnings)


def test_a_quantized_mtp_module_drafts_faster_than_a_wide_one():
    quantized, wide = (
        predict(hardware="rtx_4090", target="Qwen/Qwen3.5-9B", method="mtp", precision="int4", drafter_weights=weights, batch=1,
                num_speculative_tokens=2, context_len=1000, engine="vllm").draft_share
        for weights in ("int4", "bf16")
    )  # fmt: skip
    assert quantized < wide


@pytest.mark.parametrize(
    ("quantization", "stored"),
    [({"quant_method": "fp8"}, "fp8"), ({"quant_method": "awq", "bits": 4}, "int4"), ({"group_size": 64, "bits": 4}, "mlx4")],
)
def test_weights_left_out_are_what_config_json_says_and_a_contradiction_is_told(tmp_path, quantization, stored):
    config = {
        "model_type": "llama", "hidden_size": 2048, "num_hidden_layers": 16, "num_attention_heads": 32, "num_key_value_heads": 8,
        "intermediate_size": 8192, "vocab_size": 128256, "head_dim": 64, "quantization_config": quantization,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    changes = {"speculation": "{method: ngram, num_speculative_tokens: 3}"}
    loaded = scenario(target=f"{{model: {tmp_path}}}", **changes)
    assert loaded.deployment.weights == stored
    assert not any("config.json" in warning for warning in loaded.warnings)
    asked = scenario(target=f"{{model: {tmp_path}, weights: bf16}}", **changes)
    assert asked.deployment.weights == "bf16"
    assert any(f"stored as {stored}" in warning for warning in asked.warnings)
    point = {"hardware": "h100_sxm", "target": str(tmp_path), "method": "ngram", "batch": 1, "num_speculative_tokens": 3}
    steps = [predict(**point, precision=precision, context_len=100).plain_step_s for precision in (None, stored, "bf16")]
    assert steps[0] == steps[1] < steps[2]
    assert any(f"stored as {stored}" in warning for warning in predict(**point, precision="bf16", context_len=100).warnings)


# ------------------------------------------------------------------------------------------- what does not belong together


def test_a_drafter_and_an_acceptance_profile_of_another_target_are_told():
    other = scenario(
        target="{model: Qwen/Qwen3-8B}",
        speculation="{method: eagle3, num_speculative_tokens: 3}",
        acceptance="{profile: llama31_8b_eagle3_mtbench}",
    )
    assert any("was measured on meta-llama/Llama-3.1-8B-Instruct, not on Qwen/Qwen3-8B" in text for text in other.warnings)
    older = scenario(target="{model: meta-llama/Meta-Llama-3-8B-Instruct}")
    assert any("was trained for meta-llama/Llama-3.1-8B-Instruct" in text for text in older.warnings)
    own = scenario(acceptance="{profile: llama31_8b_eagle3_mtbench}")
    assert not any("trained for" in text or "measured on" in text for text in own.warnings)


@pytest.mark.parametrize("name", resources.ids("scenario"))
def test_no_shipped_scenario_mixes_models(name):
    assert not any("was trained for" in text or "was measured on" in text for text in load_scenario(name).warnings)


@pytest.mark.parametrize(
    ("speculation", "lines"),
    [
        ("num_speculative_tokens: 65", ["num_speculative_tokens: must be at most 64 (got 65)"]),
        ("num_speculative_tokens: []", ["num_speculative_tokens: must have at least 1 entry (got an empty list)"]),
        ("num_speculative_tokens: some", ["num_speculative_tokens: must be a whole number or a list (got 'some')"]),
        ("num_speculative_tokens: [0, 70]", ["[0]: must be at least 1 (got 0)", "[1]: must be at most 64 (got 70)"]),
        ("by_batch: [[1, 8, 3], [8, 9, 1]]", ["by_batch entries must not overlap"]),
    ],
)
def test_a_value_of_several_forms_gets_one_message_for_each_mistake(speculation, lines):
    shown = message(speculation=f"{{method: eagle3, {speculation}}}").splitlines()
    assert len(shown) == len(lines)
    for text, line in zip(lines, shown, strict=True):
        assert text in line


def test_the_page_of_keys_names_every_key_and_kind_of_the_schema():
    """Coefficients of a device and the numbers of a policy have pages of their own."""
    page = (ROOT / "docs" / "scenarios.md").read_text(encoding="utf-8")
    policies = (ROOT / "docs" / "planning.md").read_text(encoding="utf-8")
    named = {word for code in re.findall(r"`([^`]+)`", page) for word in re.findall(r"\w+", code)}
    schema = json.loads((ROOT / "scenarios" / "scenario.schema.json").read_text(encoding="utf-8"))
    for section, definition in schema["$defs"].items():
        keys = {*definition.get("properties", {})}
        if section == "ServiceLevel":
            assert {key.partition("_")[0] for key in keys} <= {name.partition("_")[0] for name in named}
        elif section == "PlanningSpec" or "kind" in keys:
            assert not [key for key in keys - {"kind"} if f"`{key}`" not in policies and key not in policies], section
        elif section != "HardwareOverride":
            assert not keys - named, section
            choices = [value.get("enum", []) for value in definition.get("properties", {}).values()]
            assert not {choice for some in choices for choice in some if isinstance(choice, str)} - named, section
    assert not {*schema["properties"]} - named
