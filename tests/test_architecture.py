"""Laws of model shapes: published sizes, cached bytes, and names that resolve to one model each."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from simulator import resources
from simulator.architecture import (
    ModelArchitecture,
    eagle_head,
    find_model,
    model_problems,
    models,
    unsupported,
)
from simulator.spec import Document, SpecError, load_yaml

SHARED = Path(__file__).parents[2] / "shared"
MODELS = tuple(dict.fromkeys(models().values()))
GIB = 2**30
# The published totals of these include a vision encoder, which the text decoder does not have.
WITH_VISION_ENCODER = {"google/gemma-3-4b-it": 0.42e9, "google/gemma-3-12b-it": 0.42e9, "google/gemma-3-27b-it": 0.42e9}


@pytest.mark.parametrize("model", [model for model in MODELS if model.total_params], ids=lambda model: model.name)
def test_counted_parameters_match_the_published_total(model: ModelArchitecture) -> None:
    assert model.total_params
    published = model.total_params - WITH_VISION_ENCODER.get(model.name, 0.0)
    assert model.parameter_count == pytest.approx(published, rel=0.02)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_fields_of_a_model_agree_with_each_other(model: ModelArchitecture) -> None:
    assert not model_problems(model, Document("", {}))
    assert model.sources
    assert bool(model.total_params) == bool(model.total_params_source)
    assert (model.kind == "draft_head") == (model.fc_input_size is not None)


@pytest.mark.parametrize("head", [model for model in MODELS if model.kind == "draft_head"], ids=lambda model: model.name)
def test_a_draft_head_belongs_to_a_known_target_of_its_vocabulary(head: ModelArchitecture) -> None:
    assert head.base_model
    base = resources.normalised(head.base_model)
    if base in unsupported():
        return
    target = find_model(head.base_model)
    assert head.vocab_size == target.vocab_size
    assert head.fc_input_size == (3 if head.family == "eagle3" else 2) * target.hidden_size


def test_a_name_means_one_model() -> None:
    owner: dict[str, str] = {}
    for model in MODELS:
        for name in (model.name, *model.aliases):
            assert owner.setdefault(resources.normalised(name), model.name) == model.name
    assert not owner.keys() & unsupported().keys()


@pytest.mark.parametrize(
    ("name", "per_token"), [("Llama-3.1-8B", 131072), ("Llama-2-7b", 524288), ("Qwen2.5-7B", 57344), ("Llama-3.1-70B", 327680)]
)
def test_cached_bytes_per_token_are_the_known_ones(name: str, per_token: int) -> None:
    assert find_model(name).kv_bytes_per_token("bf16") == per_token
    assert find_model(name).kv_bytes_per_token("fp8") == per_token / 2


def test_an_eagle_head_adds_one_layer_of_cache() -> None:
    target, head = find_model("Llama-3.1-8B"), find_model("yuhuili/EAGLE-LLaMA3.1-Instruct-8B")
    per_token = target.kv_bytes_per_token("bf16") + head.kv_bytes_per_token("bf16")
    assert per_token == 135168
    # The KV cache size that vLLM logs for this pair on an 80 GB device: blocks of 16 tokens.
    assert int(51.63 * GIB / (16 * per_token)) * 16 == 410128


def test_kv_heads_are_replicated_once_devices_outnumber_them() -> None:
    model = find_model("Llama-3.1-8B")
    assert model.kv_bytes_per_token("bf16", 8) == model.kv_bytes_per_token("bf16", 16) == model.kv_bytes_per_token("bf16") / 8


def test_quantized_layers_leave_embedding_and_head_in_16_bit() -> None:
    model = find_model("Llama-3.1-8B")
    layers = model.num_hidden_layers * model.layer_parameters
    assert model.weight_bytes("bf16") - model.weight_bytes("fp8") == layers
    assert model.weight_bytes("bf16") == 2 * model.parameter_count


def test_sliding_layers_are_counted_from_the_pattern() -> None:
    assert find_model("google/gemma-3-4b-it").sliding_layers == 29
    assert find_model("google/gemma-2-9b").sliding_layers == 21
    assert find_model("mistralai/Mistral-7B-v0.1").sliding_layers == 32
    assert find_model("Phi-3-mini-128k-instruct").sliding_layers == 0


@pytest.mark.parametrize("name", ["Llama-3.1-8B", "Qwen/Qwen3-8B", "vicuna-7b-v1.3"])
@pytest.mark.parametrize("method", ["eagle", "eagle3"])
def test_a_head_built_from_its_target_has_the_shape_of_the_published_one(name: str, method: str) -> None:
    built = eagle_head(find_model(name), method)
    same_target = [
        model
        for model in MODELS
        if model.family == method and model.base_model and resources.normalised(model.base_model) == resources.normalised(name)
    ]
    if not same_target:
        pytest.skip("no published head of this method for this target")
    assert built.parameter_count == pytest.approx(same_target[0].parameter_count, rel=0.02)


@pytest.mark.parametrize(
    ("draft", "target"),
    [
        ("Llama-3.2-1B-Instruct", "Llama-3.3-70B-Instruct"), ("Llama-3.2-3B", "Llama-3.1-8B"), ("Qwen2.5-0.5B", "Qwen2.5-72B"),
        ("Qwen3-0.6B", "Qwen3-32B"), ("double7/vicuna-68m", "vicuna-7b-v1.3"), ("turboderp/Qwama-0.5B-Instruct", "Llama-3-70B"),
    ],
)  # fmt: skip
def test_customary_drafts_share_their_targets_tokenizer(draft: str, target: str) -> None:
    assert find_model(draft).tokenizer == find_model(target).tokenizer is not None


def test_an_unsupported_model_is_refused_with_its_reason() -> None:
    with pytest.raises(SpecError, match="Qwen3-30B-A3B has mixture-of-experts layers, not supported yet"):
        find_model("Qwen/Qwen3-30B-A3B", "cases.csv:2", "target_model")


def test_an_unknown_model_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(SpecError, match=r"did you mean meta-llama/Llama-3\.1-8B\?"):
        find_model("meta-llama/Llama-3.1-9B")


def test_a_model_file_is_checked_for_faults_between_fields(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    shape = load_yaml(resources.folder("model") / "dense.yaml").data["models"][0] | {"aliases": [], "sources": []}
    path.write_text(json.dumps(shape | {"num_key_value_heads": 5, "layer_pattern": "FS"}))
    with pytest.raises(SpecError) as caught:
        find_model(str(path))
    text = str(caught.value)
    assert "num_key_value_heads: must divide num_attention_heads (32) (got 5)" in text
    assert "layer_pattern: must have one letter per layer (32) (got 2)" in text
    path.write_text(json.dumps(shape))
    assert find_model(str(path)).hidden_size == 4096


def test_every_collected_dense_model_and_head_is_known() -> None:
    path = SHARED / "data" / "model_shapes.json"
    if not path.is_file():
        pytest.skip("no collected shapes")
    for entry in json.loads(path.read_text())["models"]:
        name = resources.normalised(entry["name"])
        assert name in models() or name in unsupported(), entry["name"]
        if name in models():
            assert models()[name].parameter_count == pytest.approx(entry["computed_params"], rel=0.02)


def test_models_of_the_prediction_cases_are_known() -> None:
    path = SHARED / "data" / "prediction_cases.csv"
    if not path.is_file():
        pytest.skip("no prediction cases")
    with path.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    for name in {row[key] for row in rows for key in ("target_model", "draft_model")} - {""}:
        assert resources.normalised(name) in models() | unsupported(), name
