"""Settings written for engines hold only keys that those engines take, and read back as the same settings."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from simulator.__main__ import main
from simulator.draft_policy import tokens_in
from simulator.draft_tree import Tree
from simulator.interchange import trtllm_config
from simulator.interchange.detection import read_files
from simulator.interchange.engine_flags import parse_command
from simulator.interchange.engine_settings import (
    ENGINES,
    FIELDS,
    NotExpressibleError,
    PromptsApart,
    Setting,
    forced_acceptance,
    snippets,
)
from simulator.reports.exports import setting_of
from simulator.scenario import load_scenario
from simulator.spec import SpecError
from simulator.speculation import METHODS
from tests.test_simulation import BASE, scenario

NAMED = ("draft_model", "eagle", "eagle3", "medusa", "block")
COMMAND = {"vllm": "vllm serve meta/target ", "sglang": "python -m sglang.launch_server --model-path meta/target "}


def methods() -> list[str]:
    return [method for method in METHODS if method != "none"]


@st.composite
def some_settings(draw: st.DrawFn) -> Setting:
    method = draw(st.sampled_from(methods()))
    gamma = draw(st.integers(1, 12))
    tree = by_batch = None
    if method in ("eagle", "eagle3") and draw(st.booleans()):
        width = draw(st.integers(2, 8))
        tree = Tree(nodes=draw(st.integers(width, 32)), steps=draw(st.integers(1, 6)), width=width)
    elif draw(st.booleans()):
        cut = draw(st.integers(1, 64))
        by_batch = ((1, cut, gamma), (cut + 1, 512, draw(st.integers(0, gamma))))
    return Setting(
        method, gamma, "owner/drafter" if method in NAMED else None, draw(st.sampled_from([None, 1, 2])), by_batch, tree,
        max_num_seqs=draw(st.sampled_from([None, 16, 256])),
    )  # fmt: skip


def same_drafts(found: list[list[int]], table: tuple[tuple[int, int, int], ...]) -> None:
    """γ at every batch that the table speaks of."""
    for batch in range(1, table[-1][1] + 1):
        assert tokens_in(tuple((a, b, c) for a, b, c in found), batch) == tokens_in(table, batch)


def as_vllm_runs(rows: list[list[int]], batch: int, most: int) -> int:
    """γ that vLLM 0.26 drafts: a batch that the list leaves out has the γ of the row before it."""
    assert rows[0][0] == 1
    assert all(before[1] < after[0] for before, after in pairwise(rows))
    return min([tokens for first, _, tokens in rows if first <= batch][-1], most)


@given(
    ends=st.lists(st.integers(1, 300), min_size=2, max_size=8, unique=True).map(sorted),
    gammas=st.lists(st.integers(1, 7), min_size=4, max_size=4),
)
def test_engines_that_carry_a_row_on_are_told_where_drafting_stops(ends: list[int], gammas: list[int]) -> None:
    """Rows with gaps, before the first and after the last: what vLLM and SGLang do is what the scenario says."""
    rows = [(first, last, gamma) for first, last, gamma in zip(ends[::2], ends[1::2], gammas, strict=False)]
    drafts = {**BASE["speculation"], "by_batch": rows}
    del drafts["num_speculative_tokens"]
    asked = scenario(speculation=drafts, limits={"max_num_seqs": 256})
    if rows[0][0] > 256:
        return
    setting = setting_of(asked)
    (vllm,) = snippets("vllm", setting)
    config = json.loads(shlex.split(vllm.text)[1])
    adaptive = {int(batch): row["candidate_steps"][0] for batch, row in json.loads(snippets("sglang", setting)[1].text).items()}
    read = parse_command(COMMAND["vllm"] + vllm.text).sections["speculation"]["by_batch"]
    for batch in range(1, 257):
        meant = tokens_in(tuple(rows), batch)
        table = config["num_speculative_tokens_per_batch_size"]
        assert as_vllm_runs(table, batch, config["num_speculative_tokens"]) == meant
        assert adaptive[max(first for first in adaptive if first <= batch)] == meant
        assert tokens_in(tuple((a, b, c) for a, b, c in read), batch) == meant


@pytest.mark.parametrize(
    ("table", "expected"),
    [
        ([[1, 16, 3], [64, 128, 2]], {1: 3, 40: 3, 63: 3, 64: 2, 5000: 2}),
        ({"1-16": 3, "64-128": 9}, {16: 3, 17: 3, 100: 5}),
        ([[1, 8, 5], [9, 16, 0]], {8: 5, 9: 0, 17: 0}),
    ],
)
def test_a_vllm_table_is_read_as_vllm_runs_it(table: object, expected: dict[int, int]) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": table}
    found = parse_command(f"{COMMAND['vllm']} --speculative-config '{json.dumps(config)}'").sections["speculation"]["by_batch"]
    rows = tuple((first, last, gamma) for first, last, gamma in found)
    assert {batch: tokens_in(rows, batch) for batch in expected} == expected


@pytest.mark.parametrize("table", [3, [], [[1, 2]], [[2, 8, 3]], [["a", 2, 3]], [[1, 8, 3], [8, 9, 1]], {"x": 3}, [None]])
def test_a_vllm_table_that_vllm_refuses_is_refused(table: object) -> None:
    config = {"method": "ngram", "num_speculative_tokens": 5, "num_speculative_tokens_per_batch_size": table}
    with pytest.raises(SpecError, match="num_speculative_tokens_per_batch_size"):
        parse_command(f"{COMMAND['vllm']} --speculative-config '{json.dumps(config)}'")


@pytest.mark.parametrize("engine", ENGINES)
def test_instances_that_compute_prompts_are_started_as_such(engine: str) -> None:
    apart = PromptsApart(instances=2, tensor_parallel_size=4, decode_tensor_parallel_size=8)
    alone = Setting("ngram", 3)
    speculation, *instances = snippets(engine, replace(alone, prompts_apart=apart))
    assert speculation.text == snippets(engine, alone)[0].text
    if engine in ("trtllm", "llamacpp"):
        assert not instances
        assert f"none of {engine}'s settings" in speculation.notes[-1]
        return
    prefill, decode = (shlex.split(each.text, comments=True) for each in instances)
    assert [prefill[1], decode[1]] == ["4", "8"]
    assert "2 instances that compute prompts" in instances[0].text
    if engine == "vllm":
        configs = [json.loads(words[words.index("--kv-transfer-config") + 1]) for words in (prefill, decode)]
        assert [config["kv_role"] for config in configs] == ["kv_producer", "kv_consumer"]
        assert {config["kv_connector"] for config in configs} == {"NixlConnector"}
        keys = {key for config in configs for key in config}
    else:
        assert [words[words.index("--disaggregation-mode") + 1] for words in (prefill, decode)] == ["prefill", "decode"]
        keys = set()
    assert keys | {word for word in (*prefill, *decode) if word.startswith("--")} <= FIELDS[engine]


def test_a_scenario_with_prompts_on_instances_of_their_own_exports_them() -> None:
    asked = load_scenario("disaggregated_prefill")
    assert asked.prefill is not None
    setting = setting_of(asked)
    assert setting.prompts_apart == PromptsApart(asked.prefill.instances, asked.prefill.tensor_parallel_size, 1)
    assert len(snippets("vllm", setting)) == 3
    assert setting_of(load_scenario("quickstart"), gamma=3).prompts_apart is None


def written_keys(engine: str, text: str, file: str) -> set[str]:
    if engine == "trtllm":
        return set(yaml.safe_load(text)["speculative_config"])
    if file == "adaptive.json":
        return set()
    words = shlex.split(text)
    if engine == "vllm":
        assert words[0] == "--speculative-config"
        return set(json.loads(words[1]))
    return {word for word in words if word.startswith("--")}


@given(setting=some_settings(), engine=st.sampled_from(ENGINES))
def test_only_keys_that_the_engine_takes_are_written(setting: Setting, engine: str) -> None:
    try:
        found = snippets(engine, setting)
    except NotExpressibleError:
        return
    for snippet in found:
        assert written_keys(engine, snippet.text, snippet.file) <= FIELDS[engine]


@given(setting=some_settings())
def test_vllm_and_sglang_settings_read_back(setting: Setting) -> None:
    for engine, start in COMMAND.items():
        try:
            found = snippets(engine, setting)[0]
        except NotExpressibleError:
            continue
        sections = parse_command(start + found.text).sections
        assert sections["target"] == {"model": "meta/target"}
        speculation: dict[str, Any] = sections["speculation"]
        assert speculation["method"] == setting.method
        assert speculation.get("drafter") == setting.drafter
        if engine == "sglang":  # Not told, it takes 48 sequences at a time once it speculates.
            assert sections["limits"]["max_num_seqs"] == (setting.max_num_seqs or 48)
        if setting.tree is not None:
            tree = setting.tree
            assert speculation["tree"] == {"steps": tree.steps, "topk": tree.width, "draft_tokens": tree.nodes}
        elif setting.by_batch is not None and engine == "vllm":
            same_drafts(speculation["by_batch"], setting.by_batch)
        else:
            assert speculation["num_speculative_tokens"] == setting.num_speculative_tokens


@given(setting=some_settings())
def test_tensorrt_llm_settings_read_back(setting: Setting, tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        found = snippets("trtllm", setting)[0]
    except NotExpressibleError:
        return
    path = tmp_path_factory.mktemp("trtllm") / "config.yaml"
    path.write_text(found.text)
    speculation = trtllm_config.read(path).sections["speculation"]
    assert speculation["method"] == setting.method
    if setting.by_batch is not None:
        on = [row for row in setting.by_batch if row[2]]
        assert speculation["by_batch"] == [[1, on[-1][1], setting.num_speculative_tokens]]
    elif setting.tree is None:
        assert speculation["num_speculative_tokens"] == setting.num_speculative_tokens


@pytest.mark.parametrize(
    ("engine", "setting", "reason"),
    [
        ("vllm", Setting("layer_skip", 4), "no layer_skip"),
        ("vllm", Setting("eagle3", 4, "a/b", tree=Tree(8, 3, 4)), "chains"),
        ("trtllm", Setting("ngram", 4, by_batch=((1, 8, 4), (9, 64, 2))), "no γ by batch"),
        ("llamacpp", Setting("ngram", 4, by_batch=((1, 8, 4),)), "no γ by batch"),
        ("sglang", Setting("mtp", 3, by_batch=((1, 8, 3),)), "EAGLE3 chains only"),
        ("vllm", Setting("eagle3", 4), "name its drafter"),
    ],
)
def test_what_an_engine_cannot_do_is_said(engine: str, setting: Setting, reason: str) -> None:
    with pytest.raises(NotExpressibleError, match=reason):
        snippets(engine, setting)


def test_forced_acceptance_is_the_same_acceptance_in_each_engines_count() -> None:
    setting, rates = Setting("eagle3", 3, "a/b"), [0.62, 0.35, 0.2]
    config = json.loads(shlex.split(forced_acceptance("vllm", setting, rates).text)[1])
    assert (config["rejection_sample_method"], config["synthetic_acceptance_rates"]) == ("synthetic", rates)
    assert "SGLANG_SIMULATE_ACC_LEN=2.17 " in forced_acceptance("sglang", setting, rates).text  # bonus counted
    assert forced_acceptance("trtllm", setting, rates).text.endswith("=1.17")  # drafts only
    with pytest.raises(NotExpressibleError):
        forced_acceptance("llamacpp", setting, rates)


def test_a_serve_command_becomes_a_scenario(tmp_path: Path) -> None:
    script = tmp_path / "serve.sh"
    script.write_text(
        "#!/bin/sh\nexport A=1\nvllm serve meta-llama/Llama-3.1-8B-Instruct --port 8000 -tp 2 \\\n"
        "  --max-num-seqs=64 --max-model-len 16384 --gpu-memory-utilization 0.85 --kv-cache-dtype fp8 \\\n"
        '  --speculative-config \'{"method": "eagle3", "model": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}\'\n'
        "echo done\n"
    )
    server = read_files([script]).server
    assert server is not None
    assert server.sections["limits"] == {"max_num_seqs": 64, "max_model_len": 16384, "gpu_memory_utilization": 0.85}
    out = tmp_path / "out"
    words = ["--hardware", "h100_sxm", "--workload", "azure_conv_2023", "--rate-per-s", "4", "--json", "--out", str(out)]
    assert main(["import", str(script), *words]) == 0
    loaded = load_scenario(out / "scenario.yaml")
    deployment = loaded.deployment
    assert (deployment.tensor_parallel_size, deployment.kv_cache, deployment.method) == (2, "fp8", "eagle3")
    assert (loaded.limits.max_num_seqs, loaded.gammas) == (64, (3,))


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("vllm serve", "name a model"),
        ("vllm serve m -tp two", "whole number"),
        ("vllm serve m --speculative-config '{bad'", "JSON object"),
        ('vllm serve m --speculative-config \'{"method": "custom_class"}\'', "method priced here"),
        ("vllm serve 'm", "command line"),
        ("sglang.launch_server --model-path m --speculative-algorithm UNO", "algorithm priced here"),
    ],
)
def test_a_command_that_cannot_be_read_is_refused_by_its_flag(command: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        parse_command(command, "serve.sh:1")


def test_flags_that_would_change_the_price_are_said() -> None:
    notes = parse_command("vllm serve m --enable-lora --port 80 --cpu-offload-gb 4").notes
    assert notes == ["--cpu-offload-gb is not priced", "--enable-lora is not priced"]


def test_export_prints_what_to_paste(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", "quickstart", "--gamma", "3"]) == 0
    words = shlex.split(capsys.readouterr().out)
    config = json.loads(words[1])
    assert (config["method"], config["num_speculative_tokens"]) == ("eagle3", 3)
    assert main(["export", "quickstart"]) == 2
    assert "--gamma" in capsys.readouterr().err
    assert main(["export", "quickstart", "--gamma", "3", "--engine", "vlm"]) == 2
    assert "did you mean vllm?" in capsys.readouterr().err


def test_a_drafter_that_engines_must_be_told_is_asked_for_where_it_stands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    speculation = {"method": "eagle3", "num_speculative_tokens": 3}
    path = tmp_path / "s.yaml"
    path.write_text(yaml.safe_dump({**BASE, "speculation": speculation, "acceptance": {"acceptance_rate": 0.6}}))
    assert main(["export", str(path)]) == 2
    said = capsys.readouterr().err
    assert "speculation.drafter: must be given" in said
    assert "--engine" not in said
    assert main(["schedule", str(path)]) == 0
    told = capsys.readouterr().out
    assert told.count("must name its drafter") == 1
    assert "No setting for vllm, sglang, trtllm" in told
