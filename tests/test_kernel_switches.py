"""What a server is started with: attention kernels, deterministic kernels, graphs and overlap, each with its price."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from simulator.__main__ import main
from simulator.architecture import find_model
from simulator.cost.deployment import Deployment
from simulator.cost.forward_pass import ForwardPass, uniform_pass
from simulator.engine_start import started
from simulator.hardware import Quantity, find_hardware
from simulator.interchange.engine_flags import parse_command, read_command
from simulator.kernel_switches import KernelSwitches
from simulator.prediction import OperatingPoint, predict, predict_table
from simulator.prediction.resolving import resolve
from simulator.scenario import load_scenario
from simulator.serving_engine import find_engine
from simulator.spec import Document, SpecError

POINT: dict[str, Any] = {
    "hardware": "h100_sxm", "engine": "sglang", "target_model": "Qwen/Qwen3-8B", "method": "eagle3", "num_speculative_tokens": 3,
    "batch": 8, "precision": "bf16", "context_len": 8000, "tensor_parallel_size": 1,
}  # fmt: skip
SCENARIO = {
    "hardware": "h100_sxm", "engine": "sglang", "target": {"model": "Qwen/Qwen3-8B"},
    "speculation": {"method": "eagle3", "num_speculative_tokens": 3}, "acceptance": {"mean_acceptance_length": 2.5},
    "workload": {"num_requests": 40, "arrivals": {"process": "poisson", "rate_per_s": 4},
                 "lengths": {"prompt": 256, "output": 64}},
}  # fmt: skip


def deployment(**changes: Any) -> Deployment:
    point = OperatingPoint(**(POINT | changes))
    return resolve(point, Document("", point.model_dump(exclude_none=True))).deployment


def plain_s(of: Deployment, batch: int, context: float) -> float:
    return of.plain().pricer().plain(batch, context).seconds


def with_switches(of: Deployment, longest: int | None = None, **switches: Any) -> Deployment:
    return replace(of, engine=started(of.engine, KernelSwitches(**switches), longest))


# ------------------------------------------------------------------------------------------------------------- each binds


@pytest.mark.parametrize(
    ("engine", "hardware", "switches"),
    [
        ("sglang", "h100_sxm", {"attention_backend": "triton"}),
        ("vllm", "h200_sxm", {"attention_backend": "triton"}),
        ("vllm", "a100_sxm_80gb", {"attention_backend": "flashinfer"}),
        ("sglang", "h100_sxm", {"attention_backend": "fa3", "deterministic": True}),
        ("vllm", "rtx_4090", {"attention_backend": "flash_attn", "deterministic": True}),
        ("sglang", "h100_sxm", {"graphs": "none"}),
        ("vllm", "h100_sxm", {"graphs": "piecewise"}),
        ("sglang", "h200_sxm", {"overlap": False}),
        ("vllm", "h200_sxm", {"overlap": False}),
    ],
)
def test_every_switch_changes_the_answer(engine: str, hardware: str, switches: dict[str, Any]) -> None:
    usual, switched = (predict(**(POINT | {"engine": engine, "hardware": hardware} | more)) for more in ({}, switches))
    assert (usual.status, switched.status) == ("ok", "ok")
    assert (switched.plain_step_s, switched.round_s) != pytest.approx((usual.plain_step_s, usual.round_s), rel=0.01)


def test_a_scenario_starts_its_engine_as_it_says(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        yaml.safe_dump(SCENARIO | {"kernels": {"attention_backend": "triton", "deterministic": True}}), encoding="utf-8"
    )
    engine = load_scenario(path).deployment.engine
    assert engine.attention_regime(load_scenario(path).deployment.hardware) == "serial_walk"
    assert engine.longest_context == 40960  # Qwen3's positions
    path.write_text(
        yaml.safe_dump(SCENARIO | {"kernels": {"graphs": "none"}, "limits": {"max_model_len": 4096}}), encoding="utf-8"
    )
    engine = load_scenario(path).deployment.engine
    assert (engine.graphs, engine.longest_context) == (None, 4096)


def test_a_table_may_state_switches(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    head = "hardware,engine,target_model,method,num_speculative_tokens,batch,attention_backend,deterministic,overlap"
    row = "h100_sxm,sglang,Qwen/Qwen3-8B,eagle3,3,8"
    path.write_text(f"{head}\n{row},,,\n{row},triton,true,\n{row},,,false\n{row},tritton,,\n", encoding="utf-8")
    usual, triton, alone, wrong = predict_table(path)
    assert len({usual.r, triton.r, alone.r}) == 3
    assert (wrong.status, "did you mean triton" in wrong.reason) == ("unsupported", True)


# ------------------------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("engine", "kernels", "said"),
    [
        ("sglang", {"attention_backend": "fa4"}, "must be one of fa3, flashinfer, triton"),
        ("llamacpp", {"attention_backend": "triton"}, "only one is known"),
        ("sglang", {"deterministic": True}, "deterministic needs attention_backend"),
        ("trtllm", {"deterministic": True, "attention_backend": "triton"}, "nothing is known of such kernels"),
        ("sglang", {"graphs": "piecewise"}, "captures whole steps"),
        ("hf_eager", {"graphs": "none"}, "captures none"),
        ("llamacpp", {"overlap": False}, "is not known"),
        ("sglang", {"atention_backend": "fa3"}, "atention_backend"),
    ],
)
def test_a_switch_that_an_engine_lacks_is_refused_by_line(
    engine: str, kernels: dict[str, Any], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump(SCENARIO | {"engine": engine, "kernels": kernels}, sort_keys=False), encoding="utf-8")
    assert main(["run", str(path)]) == 2
    shown = " ".join(capsys.readouterr().err.split())
    assert said in shown
    assert "kernels" in shown


@pytest.mark.parametrize(("engine", "unchanged"), [("vllm", True), ("llamacpp", False)])
def test_overlap_that_changes_no_round_of_the_method_is_said(engine: str, unchanged: bool, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    speculation = {"speculation": {"method": "ngram", "num_speculative_tokens": 3}, "acceptance": {"acceptance_rate": 0.5}}
    path.write_text(yaml.safe_dump(SCENARIO | speculation | {"engine": engine, "kernels": {"overlap": True}}), encoding="utf-8")
    asked = {"hardware": "h100_sxm", "target": "llama-3.1-8b", "num_speculative_tokens": 3, "method": "ngram", "engine": engine}
    said = f"overlap: true changes no round of ngram, which {find_engine(engine).name} does not prepare ahead"
    for warnings in (load_scenario(path).remarks, predict(**asked, batch=4, overlap=True).warnings):
        assert any(said in text for text in warnings) is unchanged
    assert not any("overlap: true" in text for text in predict(**asked, batch=4).warnings)


def test_what_a_profile_was_started_with_must_be_among_its_choices(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("based_on: sglang\nschema_version: 1\nstarted_with: {attention_backend: fa9}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="choices"):
        find_engine(str(path))


# ------------------------------------------------------------------------------------------------------------------ laws


def test_tiles_of_one_size_take_as_long_for_one_row_as_for_all_of_them() -> None:
    """Below 9.0 deterministic matrices are tiles of 128 rows."""
    tiled = with_switches(deployment(hardware="rtx_4090"), attention_backend="flashinfer", deterministic=True)
    layers = [tiled.target_cost().layer_gemms(rows).seconds for rows in (1, 17, 128, 129)]
    assert layers[0] == pytest.approx(layers[2], rel=0.02)
    assert layers[1] == pytest.approx(layers[2], rel=0.02)
    assert layers[3] > 1.1 * layers[2]  # some of its matrices need another wave
    assert layers[0] > deployment(hardware="rtx_4090").target_cost().layer_gemms(1).seconds


@pytest.mark.parametrize("backend", ["fa3", "flashinfer", "triton"])
@pytest.mark.parametrize("hardware", ["h100_sxm", "a100_sxm_80gb"])
@pytest.mark.parametrize("batch", [1, 16, 256])
def test_nothing_gets_cheaper_by_being_deterministic(backend: str, hardware: str, batch: int) -> None:
    usual = with_switches(deployment(hardware=hardware), attention_backend=backend)
    same = with_switches(deployment(hardware=hardware), 40960, attention_backend=backend, deterministic=True)
    for context in (300, 20000):
        assert plain_s(same, batch, context) >= 0.999 * plain_s(usual, batch, context)
        assert same.pricer().round(3, batch, context).round_s >= 0.999 * usual.pricer().round(3, batch, context).round_s


def test_a_grid_as_wide_as_the_longest_context_is_paid_by_every_sequence() -> None:
    of = {
        longest: with_switches(deployment(), longest, attention_backend="triton", deterministic=True) for longest in (256, 40960)
    }
    added = {batch: plain_s(of[40960], batch, 1000) - plain_s(of[256], batch, 1000) for batch in (8, 32)}
    assert added[32] == pytest.approx(4 * added[8], rel=1e-6)
    assert added[8] == pytest.approx(36 * 8 * 8 * 159 * of[256].engine.choices.attention_backends["triton"].idle_block_s.value)  # type: ignore[union-attr]


def test_the_longest_sequence_is_stated_where_kernels_depend_on_it() -> None:
    same = {"attention_backend": "triton", "deterministic": True}
    usual, longer = (predict(**(POINT | same | more)) for more in ({}, {"max_model_len": 200_000}))
    assert longer.plain_step_s > 1.02 * usual.plain_step_s
    assert longer.round_s == pytest.approx(usual.round_s, rel=0.01)  # only single rows have such a grid: those of drafts
    with pytest.raises(SpecError, match="max-model-len: must be left out"):
        predict(**(POINT | {"attention_backend": "triton", "max_model_len": 200_000}))


def test_a_block_of_128_rows_takes_as_long_for_two_of_them() -> None:
    """By the one-stage kernel; of the usual one, whose blocks have 64, rows beyond them start another."""
    usual = with_switches(deployment(), 40960, attention_backend="triton")
    same = with_switches(deployment(), 40960, attention_backend="triton", deterministic=True)

    def attention_s(of: Deployment, rows: int) -> float:
        asked = uniform_pass(4, rows, 8000, None)
        return of.target_cost().attention.term(asked).seconds

    assert attention_s(same, 2) == pytest.approx(attention_s(same, 128))
    assert attention_s(same, 129) > 1.3 * attention_s(same, 128)
    assert attention_s(usual, 65) > 1.3 * attention_s(usual, 64)
    assert all(attention_s(same, rows) > attention_s(usual, rows) for rows in (2, 64, 128, 200))


def test_what_other_kernels_run_was_never_measured() -> None:
    assert predict(**(POINT | {"attention_backend": "fa3"})).unmeasured == predict(**POINT).unmeasured
    assert "kernels" in " ".join(predict(**(POINT | {"attention_backend": "triton"})).unmeasured)


# ------------------------------------------------------------------------------------------------- what others published


def test_pieces_wait_for_the_host_where_a_step_is_short() -> None:
    """vllm-project/vllm#49986: a schedule of γ pinned to 0 gives up whole graphs. Qwen3-4B at six sequences took 7.84 ms a step
    instead of 4.29, which the time of a piece was taken from; Gemma 4 31B, whose steps are long, but 6.6 % more at two."""
    small = deployment(hardware="h100_nvl", engine="vllm", target_model="Qwen/Qwen3-4B")
    large = deployment(hardware="h100_nvl", engine="vllm", target_model="google/gemma-4-31B-it", precision="fp8")
    whole, pieces = (plain_s(of, 6, 400) for of in (small, with_switches(small, graphs="piecewise")))
    assert (1e3 * whole, 1e3 * pieces) == (pytest.approx(4.29, rel=0.1), pytest.approx(7.84, rel=0.1))
    assert plain_s(with_switches(large, graphs="piecewise"), 2, 400) / plain_s(large, 2, 400) == pytest.approx(1.066, abs=0.03)


@pytest.mark.parametrize("hardware", ["h100_sxm", "rtx_4090"])
@pytest.mark.parametrize(("batch", "context"), [(1, 500), (16, 500), (128, 8000)])
def test_nothing_makes_kernels_launched_one_by_one_quicker_than_pieces_nor_pieces_than_whole_graphs(
    hardware: str, batch: int, context: int
) -> None:
    point = POINT | {"engine": "vllm", "hardware": hardware, "batch": batch, "context_len": context}
    whole, pieces, none = (predict(**(point | more)) for more in ({}, {"graphs": "piecewise"}, {"graphs": "none"}))
    assert whole.plain_step_s < pieces.plain_step_s <= none.plain_step_s
    assert whole.round_s < pieces.round_s <= none.round_s


def test_the_kernel_that_splits_caches_for_single_rows_alone_turns_a_gain_into_a_loss() -> None:
    """vllm-project/vllm#52049, #53930: Gemma 4 31B in 4 bit with one draft a round on an A100. By FlashInfer it gains 35 % at
    30,000 tokens; by Triton, which gives up splits once a sequence brings two rows, it loses 28 %, and 61 % at 50,000."""
    point = {
        "hardware": "a100_sxm_80gb", "engine": "vllm", "target_model": "google/gemma-4-31B-it", "precision": "int4", "batch": 1,
        "draft_model": "google/gemma-4-31B-it-assistant", "method": "mtp", "num_speculative_tokens": 1,
        "mean_acceptance_length": 1.8,
    }  # fmt: skip
    gain = {
        (backend, context): predict(**(point | {"attention_backend": backend, "context_len": context})).speedup
        for backend in ("triton", "flashinfer")
        for context in (30000, 50000)
    }
    assert gain["flashinfer", 30000] > 1.2
    assert gain["triton", 30000] == pytest.approx(0.72, abs=0.2)
    assert gain["triton", 50000] == pytest.approx(0.39, abs=0.15)


@pytest.mark.parametrize(
    ("backend", "measured"), [("flashinfer", (30.85, 43.99)), ("fa3", (34.70, 44.14)), ("triton", (36.91, 57.25))]
)
def test_deterministic_kernels_take_about_what_sglang_says(backend: str, measured: tuple[float, float]) -> None:
    """256 requests of 1,024 tokens in and out of Qwen3-8B on an H200 (SGLang, September 2025, when all matrices ran in tiles). The
    time of an idle block is from this table; the tiles' rate is in the middle of six figures, and misses half of what they added here."""
    of = deployment(hardware="h200_sxm")
    choices = of.engine.choices
    assert choices.deterministic is not None
    tiled = choices.deterministic.model_copy(update={"tiles_below_compute_capability": "99"})
    of = replace(of, engine=of.engine.model_copy(update={"choices": choices.model_copy(update={"deterministic": tiled})}))

    def seconds(**switches: Any) -> float:
        pricer = with_switches(of, 40960, attention_backend=backend, **switches).plain().pricer()
        return 256 * pricer.prefill_s_each(1024, 8192, 256) + 1024 * pricer.plain(256, 1536).seconds

    usual, same = seconds(), seconds(deterministic=True)
    assert usual == pytest.approx(measured[0], rel=0.25)
    assert same == pytest.approx(measured[1], rel=0.3)
    assert 0.25 < (same - usual) / (measured[1] - measured[0]) < 1.2


def test_deterministic_rounds_of_a_block_drafter_grow_with_sequences_and_contexts_as_measured() -> None:
    """Olmo-3 32B on an H200 under SGLang's Triton kernels, 200,000 tokens admitted. The walk is in part from the last time of a round;
    of plain steps and of rounds at few tokens nothing is (public index files 54925138298, 54951609387, 56034655336)."""
    of = deployment(
        hardware="h200_sxm", target_model="allenai/Olmo-3-1125-32B", method="block", num_speculative_tokens=7,
        attention_backend="triton", deterministic=True, max_model_len=200_000,
    ).pricer()  # fmt: skip
    rounds = {(13, 768): 57, (8, 768): 46, (16, 3586): 157}
    for (sequences, context), measured_ms in rounds.items():
        assert 1e3 * of.round(7, sequences, context).round_s == pytest.approx(measured_ms, rel=0.15)
    for sequences, measured_ms in {1: 20.5, 12: 25.4, 16: 28.4, 48: 50.2}.items():
        assert 1e3 * of.plain(sequences, 768).seconds == pytest.approx(measured_ms, rel=0.22)


def test_overlap_is_worth_what_the_threads_that_added_it_measured() -> None:
    """Rounds of Llama 3.1 8B took 12.1 ms without it and 11.0 with (sgl-project/sglang#11398), plain steps of a model of 2 ms on an
    RTX 5090 2.74 and 2.01 (#38131)."""
    eagle = deployment(target_model="meta-llama/Llama-3.1-8B-Instruct", method="eagle", num_speculative_tokens=5, batch=1)
    alone = with_switches(eagle, overlap=False)
    assert plain_s(alone, 1, 500) - plain_s(eagle, 1, 500) == pytest.approx(0.74e-3, rel=0.1)
    added = alone.pricer().round(5, 1, 500).round_s - eagle.pricer().round(5, 1, 500).round_s
    assert added == pytest.approx(1.5e-3, rel=0.2)


def test_a_release_that_overlaps_when_asked_pays_for_rounds_alone() -> None:
    older, newer = deployment(engine="sglang_0_5_10"), deployment(engine="sglang")
    assert plain_s(older, 8, 500) == plain_s(newer, 8, 500)
    added = older.pricer().round(3, 8, 500).round_s - newer.pricer().round(3, 8, 500).round_s
    assert added == pytest.approx(1.7e-3, rel=0.1)
    unasked = with_switches(older, overlap=False).pricer().round(3, 8, 500)
    assert unasked.round_s == pytest.approx(older.pricer().round(3, 8, 500).round_s, rel=0.01)
    assert unasked.plain_step_s > newer.pricer().round(3, 8, 500).plain_step_s


# ---------------------------------------------------------------------------------------------------- engines' own words


@pytest.mark.parametrize(
    ("command", "kernels"),
    [
        ("sglang serve m --enable-deterministic-inference --attention-backend triton",
         {"attention_backend": "triton", "deterministic": True}),
        ("python -m sglang.launch_server --model-path m --disable-cuda-graph --disable-overlap-schedule",
         {"graphs": "none", "overlap": False}),
        ("sglang serve m --prefill-attention-backend fa3 --decode-attention-backend triton", {"attention_backend": "fa3"}),
        ("sglang serve m --prefill-attention-backend fa3 --decode-attention-backend triton --speculative-attention-mode decode",
         {"attention_backend": "triton"}),
        ("vllm serve m --enforce-eager --attention-backend TRITON_ATTN", {"attention_backend": "triton", "graphs": "none"}),
        ("VLLM_BATCH_INVARIANT=1 VLLM_ATTENTION_BACKEND=FLASHINFER vllm serve m",
         {"attention_backend": "flashinfer", "deterministic": True}),
        ("vllm serve m --no-async-scheduling --compilation-config '{\"cudagraph_mode\": \"PIECEWISE\"}'",
         {"graphs": "piecewise", "overlap": False}),
        ("vllm serve m -O.cudagraph_mode=PIECEWISE", {"graphs": "piecewise"}),
        ("vllm serve m --compilation-config '{\"cudagraph_mode\": \"FULL_AND_PIECEWISE\"}'", None),
        ("VLLM_BATCH_INVARIANT=0 vllm serve m", None),
    ],
)  # fmt: skip
def test_commands_say_which_kernels_run(command: str, kernels: dict[str, Any] | None) -> None:
    command = command.replace("sglang serve m", "sglang serve --model-path m")
    assert parse_command(command).sections.get("kernels") == kernels


def test_variables_exported_before_a_command_are_read(tmp_path: Path) -> None:
    path = tmp_path / "serve.sh"
    path.write_text("#!/bin/sh\nexport VLLM_BATCH_INVARIANT=1\nvllm serve m\n", encoding="utf-8")
    found = read_command(path)
    assert found.sections["kernels"] == {"attention_backend": "flash_attn", "deterministic": True}
    assert any("flash_attn is taken" in note for note in found.notes)


def test_unknown_attention_kernels_are_said() -> None:
    found = parse_command("vllm serve m --attention-backend TREE_ATTN")
    assert "kernels" not in found.sections
    assert any("TREE_ATTN" in note for note in found.notes)


@pytest.mark.parametrize(
    ("engine", "kernels"),
    [
        ("sglang", {"attention_backend": "triton", "deterministic": True, "overlap": False}),
        ("sglang", {"graphs": "none"}),
        ("vllm", {"attention_backend": "flashinfer", "graphs": "piecewise"}),
        ("vllm", {"graphs": "none", "overlap": False}),
        ("sglang", {"overlap": True}),
        ("vllm", {"overlap": True}),
    ],
)
def test_what_is_exported_is_read_again(
    engine: str, kernels: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    pair = {"target": {"model": "meta-llama/Llama-3.1-8B-Instruct"}, "speculation": {
        "method": "eagle3", "drafter": "yuhuili/EAGLE3-LLaMA3.1-Instruct-8B", "num_speculative_tokens": 3}}  # fmt: skip
    path.write_text(yaml.safe_dump(SCENARIO | pair | {"engine": engine, "kernels": kernels}), encoding="utf-8")
    assert main(["export", str(path)]) == 0
    start = {"sglang": "sglang serve --model-path m", "vllm": "vllm serve m"}[engine]
    assert parse_command(f"{start} {capsys.readouterr().out}").sections["kernels"] == kernels


def test_heads_of_several_widths_get_the_kernel_that_takes_them_all() -> None:
    """vLLM serves Gemma 4 (heads of 256 and 512) with Triton in every layer (vllm-project/vllm#38887); other models and engines,
    and servers that are told, do not."""
    mixed = deployment(engine="vllm", target_model="google/gemma-4-31B-it")
    told = deployment(engine="vllm", target_model="google/gemma-4-31B-it", attention_backend="triton")
    assert mixed.engine == told.engine
    point = {"hardware": "a100_sxm_80gb", "engine": "vllm", "method": "mtp", "num_speculative_tokens": 3}
    point |= {"batch": 1, "context_len": 4000}
    unasked, other = (
        predict(**point, target_model="google/gemma-4-31B-it", **chosen) for chosen in ({}, {"attention_backend": "flash_attn"})
    )
    assert unasked.round_s is not None
    assert other.round_s is not None
    assert unasked.round_s < other.round_s
    assert any("attention_backend triton" in warning for warning in unasked.warnings)
    assert not any("attention_backend" in warning for warning in other.warnings)
    for engine, model in (("vllm", "Qwen/Qwen3-8B"), ("vllm", "google/gemma-3-27b-it"), ("sglang", "google/gemma-4-31B-it")):
        assert deployment(engine=engine, target_model=model).engine == find_engine(engine)


def test_a_scenario_starts_with_them_too(tmp_path: Path) -> None:
    file = tmp_path / "gemma.yaml"
    changes = {"engine": "vllm", "target": {"model": "google/gemma-4-31B-it"}}
    file.write_text(yaml.safe_dump(SCENARIO | changes))
    scenario = load_scenario(file)
    assert scenario.deployment.engine.started_with.attention_backend == "triton"
    assert any("attention_backend triton" in warning for warning in scenario.warnings)


def rounds_with(engine: str, hardware: str, backend: str, **changes: Any) -> Deployment:
    return deployment(engine=engine, hardware=hardware, attention_backend=backend, context_len=200, batch=1, **changes)


@pytest.mark.parametrize(
    ("engine", "hardware", "pieces"),
    [
        ("vllm", "rtx_3090", True), ("vllm", "h100_sxm", True), ("vllm", "b200_sxm", False), ("vllm", "gb10", False),
        ("vllm_0_25", "gb10", True), ("sglang", "rtx_3090", False),
    ],
)  # fmt: skip
def test_flashinfers_own_kernels_are_captured_for_single_rows_alone(engine: str, hardware: str, pieces: bool) -> None:
    """vllm-project/vllm#54992, #49547: under speculation vLLM replays pieces and launches drafts kernel by kernel."""
    own = rounds_with(engine, hardware, "flashinfer")
    cost = own.target_cost()
    several = cost.price(uniform_pass(1, 4, 200, None))
    assert ("graph_pieces" in [term.name for term in several.terms]) == pieces
    assert "graph_pieces" not in [term.name for term in cost.price(uniform_pass(1, 1, 200, None)).terms]
    draft = own.draft_cost()
    assert draft is not None
    assert draft.captured != pieces
    if engine != "sglang":
        other = rounds_with(engine, hardware, "flash_attn").target_cost().price(uniform_pass(1, 4, 200, None))
        assert "graph_pieces" not in [term.name for term in other.terms]


def test_pieces_show_where_a_step_is_short() -> None:
    """36 layers take the host 7.6 ms: more than a 4B in 8 bit takes an H100, less than an 8B in 16 takes an RTX 3090."""
    point = {"engine": "vllm", "method": "eagle3", "num_speculative_tokens": 3, "batch": 1, "context_len": 200}
    short, long = (
        [predict(**point, **where, attention_backend=backend).round_s or 0.0 for backend in ("flash_attn", "flashinfer")]
        for where in (
            {"hardware": "h100_sxm", "target_model": "Qwen/Qwen3-4B", "precision": "fp8"},
            {"hardware": "rtx_3090", "target_model": "Qwen/Qwen3-8B", "precision": "bf16"},
        )
    )
    assert short[1] > 1.3 * short[0]
    assert long[1] < 1.1 * long[0]


def test_round_graphs_are_of_known_backends(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    rules = "[{from_compute_capability: '0', whole: false}]"
    file.write_text(f"based_on: vllm\nschema_version: 1\nround_graphs: {{fa9: {rules}}}\n", encoding="utf-8")
    with pytest.raises(SpecError, match="round_graphs names backends"):
        find_engine(str(file))


def test_a_prompt_reads_its_own_keys_and_values_too() -> None:
    """However fast blocks walk, a chunk takes the memory time of all that it attends to, which it has just written itself."""
    engine, hardware = find_engine("llamacpp"), find_hardware("rtx_4090")
    none = {name: Quantity(value=0.0, source="assumed") for name in ("walk_s_per_token", "walk_fixed_s", "walk_row_s_per_token")}
    quick = replace(hardware, coefficients=hardware.coefficients.model_copy(update=none))
    cost = Deployment(quick, engine, find_model("meta-llama/Llama-3.1-8B")).target_cost().attention
    cost = replace(cost, kernels=cost.kernels._replace(regime="serial_walk", packs_heads=False, unsplit=True))
    group, tokens = cost.groups[0], 8192
    stream_s = group.count * tokens * group.kv_elements_per_token * 2.0 / quick.attention_bandwidth_bytes_per_s
    alone, after = (cost.term(ForwardPass(0, 0, 0.0, 0.0, 0.0, ((new, tokens - new),))).seconds for new in (tokens, 1024))
    assert alone >= stream_s * (1 - 1e-9)
    assert alone == pytest.approx(after, rel=1e-6)
