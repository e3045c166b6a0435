"""Laws of measuring: the plan holds what decides, held-out cells are known beforehand, cells interleave, a kill costs nothing."""

from __future__ import annotations

import json
import math
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibration.measurement import Cell
from calibration.measurement_file import read_measurements
from simulator.__main__ import main
from simulator.calibrate.device_fit import fit_measurements
from simulator.calibrate.durations import Rates, call_seconds
from simulator.calibrate.models import SHAPES, Dimensions, chosen_models, default_models
from simulator.calibrate.pace import ProcessClock, measuring_s
from simulator.calibrate.plan import FIRST_RANK_SHARE, LEAST_ROUNDS, Plan, plan, visits_of
from simulator.calibrate.planned_cells import Target
from simulator.calibrate.repeats import repeated_ratios
from simulator.calibrate.session import measure
from simulator.calibrate.survey import Request, known_profile, prepare
from simulator.spec import SpecError

CPU = Target(
    "cpu", 32 * 2**20, 24 * 2**30, 1, ("fp32", "bf16"), ("fp32",), ("eager",), default_models("cpu", 24e9),
    {"decode": "flash_attention", "verify": "math"},
)  # fmt: skip
GPU = Target(
    "cuda", 50 * 2**20, 140 * 2**30, 2, ("bf16", "fp8"), ("bf16", "fp8"), ("eager", "cuda_graph", "compile"),
    default_models("cuda", 140e9), {"decode": "flash_attention", "verify": "efficient_attention"},
)  # fmt: skip
CPU_RATES = Rates(2e10, {"fp32": 5e10, "bf16": 5e10}, 1e-5)
GPU_RATES = Rates(4e12, {"bf16": 7e14, "fp8": 1.2e15}, 6e-6)
ROOMY = {"cpu": plan(CPU, CPU_RATES, 600.0), "cuda": plan(GPU, GPU_RATES, 600.0)}


def cells(planned: Plan, kind: str) -> list[Cell]:
    return [each.cell for each in planned.cells if each.cell.kind == kind]


# ----------------------------------------------------------------------------------------------------------------- plan


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_plan_covers_every_kind_of_work(device: str) -> None:
    kinds = {each.cell.kind for each in ROOMY[device].cells}
    everything = {
        "copy", "read", "triad", "gemm", "decode_attention", "verify_attention", "forward", "launch", "synchronize", "sampling",
        "kv_crop",
    }  # fmt: skip
    assert kinds == everything | ({"all_reduce"} if device == "cuda" else set())


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_memory_is_measured_inside_and_past_the_last_cache(device: str) -> None:
    cache = {"cpu": CPU, "cuda": GPU}[device].cache_bytes
    for kind in ("copy", "read", "triad"):
        sizes = [int(cell.inputs["bytes"]) for cell in cells(ROOMY[device], kind)]
        assert min(sizes) < cache / 4
        assert max(sizes) > 4 * cache


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_gemm_takes_two_weight_sizes_small_rows_one_by_one_and_rows_on_and_off_tile_edges(device: str) -> None:
    target = {"cpu": CPU, "cuda": GPU}[device]
    for dtype in target.gemm_dtypes:
        found = [cell.inputs for cell in cells(ROOMY[device], "gemm") if cell.inputs["dtype"] == dtype]
        sizes = sorted(int(each["n"]) * int(each["k"]) for each in found)
        assert sizes[-1] > 4 * sizes[0]
    main = [cell.inputs for cell in cells(ROOMY[device], "gemm") if cell.inputs["dtype"] == target.gemm_dtypes[0]]
    rows = {int(each["m"]) for each in main}
    assert set(range(1, 9)) <= rows
    assert {tile + 1 for tile in (16, 32, 64, 128, 256)} <= rows
    assert {16, 32, 64, 128, 256} <= rows
    assert any(math.log2(m) % 1 for m in rows if m > 257)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_verification_takes_2_to_16_rows_over_several_contexts_beside_decode_over_batch_and_context(device: str) -> None:
    verified = [cell.inputs for cell in cells(ROOMY[device], "verify_attention")]
    assert {2, 16} <= {int(each["rows"]) for each in verified} <= set(range(2, 17))
    assert len({each["context"] for each in verified}) >= 3
    decoded = [cell.inputs for cell in cells(ROOMY[device], "decode_attention")]
    assert len({each["batch"] for each in decoded}) >= 3
    assert len({each["context"] for each in decoded}) >= 3


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_whole_passes_take_every_verification_width_several_batches_and_contexts(device: str) -> None:
    target = {"cpu": CPU, "cuda": GPU}[device]
    passes = [cell.inputs for cell in cells(ROOMY[device], "forward")]
    main = next(iter(target.models))
    assert set(range(1, 10)) <= {int(each["rows"]) for each in passes if each["model"] == main}
    assert len({each["batch"] for each in passes}) >= 3
    assert len({each["context"] for each in passes}) >= 3
    assert {each["model"] for each in passes} == set(target.models)
    assert {each["mode"] for each in passes} == set(target.modes)
    assert {each["dtype"] for each in passes} == set(target.pass_dtypes)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_no_cell_is_both_fitted_and_held_out_and_checks_repeat_a_cell_that_is_not_a_check(device: str) -> None:
    by_split: dict[str, set[str]] = {"fit": set(), "held_out": set(), "check": set()}
    for each in ROOMY[device].cells:
        by_split[each.cell.split].add(json.dumps([each.cell.kind, each.cell.inputs], sort_keys=True))
    assert by_split["fit"]
    assert not by_split["fit"] & by_split["held_out"]
    assert by_split["check"] <= by_split["fit"] | by_split["held_out"]
    assert len({each.cell.key for each in ROOMY[device].cells}) == len(ROOMY[device].cells)


def test_a_matrix_and_a_model_are_held_out_whole() -> None:
    passes = cells(ROOMY["cpu"], "forward")
    assert {cell.split for cell in passes if cell.inputs["model"] == list(CPU.models)[-1]} == {"held_out"}
    down = Dimensions.of(SHAPES["llama-135m"]).matrices["down"]
    assert {cell.split for cell in cells(ROOMY["cpu"], "gemm") if (cell.inputs["n"], cell.inputs["k"]) == down} == {"held_out"}


def test_a_short_plan_keeps_what_decides_and_takes_more_as_time_allows() -> None:
    sizes = [len(plan(CPU, CPU_RATES, minutes).cells) for minutes in (1, 3, 10, 60)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]
    short = plan(CPU, CPU_RATES, 1)
    checked = [cell for cell in cells(short, "forward") if cell.split == "check"]
    assert sorted(cell.inputs["rows"] for cell in checked) == list(range(1, 10))
    assert {"fit", "held_out"} <= {cell.split for cell in cells(short, "gemm")}


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_a_first_round_cut_off_anywhere_leaves_some_of_everything_to_fit_and_to_judge(share: float) -> None:
    """A busy machine may take minutes for it."""
    essential = [planned for planned in plan(CPU, CPU_RATES, 3).cells if planned.rank <= 1]
    taken = [planned.cell for planned in essential[: round(share * len(essential))]]
    parts = ("gemm", "decode_attention", "verify_attention", "forward")
    assert {(kind, split) for kind in parts for split in ("fit", "held_out")} <= {(cell.kind, cell.split) for cell in taken}
    fitted = [cell.inputs for cell in taken if (cell.kind, cell.split) == ("gemm", "fit")]
    assert len({each["m"] for each in fitted}) >= 4
    assert len({(each["n"], each["k"]) for each in fitted}) >= 3


@given(st.floats(0.1, 60), st.floats(1, 3000), st.floats(1, 40), st.floats(0.5, 30))
def test_measuring_ends_so_that_fitting_ends_within_a_minute_after_the_minutes(
    minutes: float, wall_s: float, slowness: float, looking_cpu_s: float
) -> None:
    found = measuring_s(minutes, wall_s, wall_s / slowness, looking_cpu_s)
    assert 0.4 * 60 * minutes <= found <= 60 * minutes
    fitting_s = slowness * max(looking_cpu_s, 4)
    assert found + fitting_s <= 60 * minutes + 60 or found == pytest.approx(0.4 * 60 * minutes)


def test_a_round_of_the_optional_cells_can_be_repeated() -> None:
    for minutes in (5, 10, 30):
        assert plan(CPU, CPU_RATES, minutes).round_s * LEAST_ROUNDS <= 1.02 * minutes * 60


def test_a_model_that_does_not_fit_the_memory_is_left_out() -> None:
    small = replace(GPU, memory_bytes=20 * 2**30)
    assert "llama-8b" not in {cell.inputs["model"] for cell in cells(plan(small, GPU_RATES, 60), "forward")}


def test_the_same_device_gives_the_same_plan() -> None:
    assert plan(CPU, CPU_RATES, 3).hash == plan(CPU, CPU_RATES, 3).hash != plan(CPU, CPU_RATES, 1).hash


def test_an_8b_step_on_a_4_tb_per_s_device_is_estimated_at_its_bytes() -> None:
    cell = Cell(
        kind="forward",
        inputs={"model": "llama-8b", "batch": 1, "rows": 1, "context": 512, "dtype": "bf16", "mode": "cuda_graph"},
        split="fit",
    )
    no_operators = replace(GPU_RATES, operator_s=0.0)
    weights = 2 * (Dimensions.of(SHAPES["llama-8b"]).parameters - 128256 * 4096)
    assert call_seconds(cell, GPU.models, no_operators) == pytest.approx(weights / 4e12, rel=0.02)


# --------------------------------------------------------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("name", "published"), [("llama-8b", 8.03e9), ("llama-1b", 1.236e9), ("llama-3b", 3.213e9), ("llama-135m", 134.5e6)]
)
def test_shapes_have_their_published_size(name: str, published: float) -> None:
    assert Dimensions.of(SHAPES[name]).parameters == pytest.approx(published, rel=2e-3)


def test_known_names_and_local_folders_are_measured_beside_the_usual_models(tmp_path: Path) -> None:
    folder = tmp_path / "mine"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(SHAPES["llama-1b"]))
    configs, folders = chosen_models(["Qwen3-8B", str(folder)], "cuda", 140e9)
    assert list(configs)[:2] == ["Qwen3-8B", "mine"]
    assert folders == {"mine": folder}
    assert Dimensions.of(configs["mine"]) == Dimensions.of(SHAPES["llama-1b"])
    alone, _ = chosen_models(["llama-1b"], "cuda", 140e9)
    assert list(alone) == ["llama-1b", "llama-3b"] or len(alone) == 3


@pytest.mark.parametrize("name", ["no-such-model", "DeepSeek-V3"])
def test_models_that_cannot_be_built_are_refused(name: str) -> None:
    with pytest.raises(SpecError, match="--model"):
        chosen_models([name], "cpu", 24e9)


@pytest.mark.parametrize(
    ("driver_name", "profile"),
    [
        ("NVIDIA H200", "h200_sxm"), ("NVIDIA H100 80GB HBM3", "h100_sxm"), ("NVIDIA H100 PCIe", "h100_pcie"),
        ("NVIDIA A100-SXM4-80GB", "a100_sxm_80gb"), ("NVIDIA A100 80GB PCIe", "a100_pcie_80gb"), ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx_4090"), ("NVIDIA A40", "a40"), ("NVIDIA B200", "b200_sxm"), ("AMD EPYC", ""),
    ],
)  # fmt: skip
def test_names_that_drivers_give_find_their_datasheet(driver_name: str, profile: str) -> None:
    assert known_profile(driver_name) == profile


# -------------------------------------------------------------------------------------------------------------- commands

needs_torch = pytest.mark.skipif(
    not all(map(__import__("importlib.util").util.find_spec, ("torch", "transformers"))),
    reason="the calibrate extra is not installed",
)
TINY = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip


SCENARIO = """
hardware: {hardware}
engine: hf_eager
target: {{model: SmolLM2-135M, weights: fp32, kv_cache: fp32}}
speculation: {{method: ngram, num_speculative_tokens: 4}}
acceptance: {{acceptance_rate: 0.4}}
workload:
  arrivals: {{process: closed_loop, users: 1}}
  lengths: {{prompt: 64, output: 32}}
  num_requests: 10
seed: 1
"""


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """Flags that measure three tiny local models."""
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    flags = []
    for name, layers in (("tiny", 2), ("tinier", 1), ("other", 3)):
        config = transformers.AutoConfig.for_model(**(TINY | {"num_hidden_layers": layers}))
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path / name)
        flags += ["--model", str(tmp_path / name)]
    return flags


def test_the_documented_gpu_run_is_planned_without_a_gpu(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    document = (Path(__file__).parents[1] / "docs" / "calibrating.md").read_text()
    dry, real = re.findall(r"^python -m simulator\.calibrate (--device cuda .*)$", document, re.MULTILINE)
    assert set(real.split()) - {"--out", "hardware_profiles/h200_measured.yaml"} <= set(dry.split())
    flags = ["calibrate", *dry.split()]
    assert main([*flags, "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["models"] == ["llama-8b", "llama-1b", "llama-3b"]
    assert answer["kinds"]["forward"]["check"] >= 9
    assert 0 < answer["round_s"] < 8 * 60 / 2
    assert main(flags) == 0
    assert "rounds" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--device", "tpu"], "--device: must be one of"),
        (["--dtype", "fp64"], "--dtype: must be one of fp32"),
        (["--out", "profile.json"], "--out: must end in .yaml"),
        (["--refit", "nowhere.jsonl"], "nowhere.jsonl: no such file"),
        (["--refit", "a.jsonl", "--minutes", "3"], "--minutes: must be left out with --refit"),
        (["--hardware", "no_such_device", "--dry-run"], "--hardware"),
        (["--minutes", "0"], "--minutes"),
    ],
)
def test_mistakes_are_named_with_their_flag(flags: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    assert main(["calibrate", *flags]) == 2
    assert says in capsys.readouterr().err


def test_going_on_without_measurements_overwrites_no_profile(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    profile = tmp_path / "cpu.yaml"
    profile.write_text("precious: 1\n")
    assert main(["calibrate", "--device", "cpu", "--resume", "--out", str(profile)]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert "cpu.jsonl is not there" in said
    assert profile.read_text() == "precious: 1\n"


def run(folder: Path, *flags: str) -> subprocess.Popen[str]:
    root = Path(__file__).parents[1]
    return subprocess.Popen(
        [sys.executable, "-m", "simulator.calibrate", "--device", "cpu", "--out", str(folder / "cpu.yaml"), *flags],
        env=os.environ | {"PYTHONPATH": str(root)}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a parent in the background would have it ignored
    )  # fmt: skip


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    for _ in range(3000):
        if path.exists() and path.read_bytes().count(b"\n") >= count:
            return
        if process.poll() is not None:
            raise AssertionError(process.communicate()[1])
        time.sleep(0.1)
    raise AssertionError("no measurements within five minutes")


@needs_torch
def test_a_kill_at_any_moment_loses_nothing_and_an_interrupt_says_how_to_go_on(
    tmp_path: Path, tiny: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "cpu.jsonl"
    killed = run(tmp_path, "--minutes", "5", *tiny)
    wait_for_lines(path, 20, killed)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    before = path.read_bytes()
    whole = before[: before.rindex(b"\n") + 1]
    assert not (tmp_path / "cpu.yaml").exists()

    interrupted = run(tmp_path, "--resume", *tiny)
    # Until matrices are measured too, without which there is nothing to fit.
    wait_for_lines(path, 50, interrupted)
    interrupted.send_signal(signal.SIGINT)
    _, said = interrupted.communicate(timeout=200)
    assert interrupted.returncode == 130
    assert f"kept in {path}" in said
    assert "--resume" in said
    assert "Traceback" not in said

    total = (read_measurements(path, unfinished=True).elapsed_s + 8) / 60
    finished = run(tmp_path, "--minutes", str(total), "--resume", *tiny)
    shown, said = finished.communicate(timeout=400)
    assert finished.returncode == 0, said
    assert path.read_bytes().startswith(whole)
    file = read_measurements(path)
    assert file.finished
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert Counter(record["record"] for record in records)["resumed"] == 2
    moments = [record["at_s"] for record in records if record["record"] in ("visit", "resumed")]
    assert moments == sorted(moments)
    assert file.elapsed_s <= round(total * 60, 3)  # moments are kept to a millisecond
    assert file.sha256 in shown
    profile = tmp_path / "cpu.yaml"
    assert file.sha256 in profile.read_text()

    # The file replays to the byte; and neither measurements nor a profile are overwritten.
    assert main(["calibrate", "--refit", str(path), "--out", str(tmp_path / "again.yaml")]) == 0
    assert (tmp_path / "again.yaml").read_bytes() == profile.read_bytes()
    assert main(["calibrate", "--device", "cpu", "--out", str(profile), *tiny]) == 2
    assert "--resume" in capsys.readouterr().err
    assert read_measurements(path) == file

    # The profile answers every question, and says where it comes from.
    scenario = tmp_path / "scenario.yaml"
    scenario.write_text(SCENARIO.format(hardware=profile))
    capsys.readouterr()
    for command in (["run"], ["break-even"], ["explain"]):
        assert main([*command, str(scenario)]) == 0
    assert f"measurements sha256 {file.sha256[:12]}" in " ".join(capsys.readouterr().out.split())
    flags = ["--target", "SmolLM2-135M", "--method", "ngram", "--num-speculative-tokens", "4", "--context-len", "256"]
    assert main(["predict", "--hardware", str(profile), "--engine", "hf_eager", "--precision", "fp32", *flags]) == 0

    # More minutes, those before counted too, add repetitions to a finished file; fewer are refused.
    assert main(["calibrate", "--resume", "--minutes", "0.1", "--out", str(profile), *tiny]) == 2
    assert "--minutes: must be more than the" in capsys.readouterr().err
    finished_bytes = path.read_bytes()
    extended = run(tmp_path, "--minutes", str(total + 0.1), "--resume", *tiny)
    _, said = extended.communicate(timeout=400)
    assert extended.returncode == 0, said
    assert path.read_bytes().startswith(finished_bytes)
    longer = read_measurements(path)
    assert longer.finished
    assert longer.minutes == pytest.approx(total + 0.1)
    assert sum(len(each.seconds) for each in longer.measurements) > sum(len(each.seconds) for each in file.measurements)
    assert f"for {longer.minutes:g} min" in profile.read_text()


class _TickingClock(ProcessClock):
    """A second passes from look to look, all of it this process's."""

    ticks = count()

    @property
    def wall_s(self) -> float:
        return float(next(self.ticks))

    @property
    def cpu_s(self) -> float:
        return 1e9


def _is_small(cell: Cell) -> bool:
    return cell.kind == "gemm" and int(cell.inputs["n"]) * int(cell.inputs["k"]) <= 128 * 64 and int(cell.inputs["m"]) <= 8


@needs_torch
def test_cells_interleave_over_the_whole_run_and_those_that_decide_get_their_share_of_it(tmp_path: Path, tiny: list[str]) -> None:
    session = prepare(Request(device="cpu", models=tuple(tiny[1::2])))
    cheap = tuple(
        each
        for each in session.plan.cells
        if each.rank == 0 or each.cell.kind in ("launch", "sampling", "kv_crop") or _is_small(each.cell)
    )
    deciding = {each.cell.key for each in cheap if each.rank == 0}
    others = len(cheap) - len(deciding)
    # A clock that ticks once a look, two a visit: three and a half rounds of the others.
    minutes = 2 * 3.5 * others / (1 - FIRST_RANK_SHARE) / 60
    session = replace(session, plan=replace(session.plan, cells=cheap), minutes=minutes, clock=_TickingClock())
    file = measure(session, tmp_path / "a.jsonl", False, lambda kind, number, used_s: None, lambda visit: None)
    records = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()[1:-1]]
    visited = [(Cell(**each["cell"]).key, each["round"]) for each in records]
    share = sum(key in deciding for key, _ in visited)
    a_round = sum(visits_of(each) for each in cheap if each.rank == 0)
    assert a_round == len(deciding) + 4  # the pass of one row, and its second measurement, thrice
    assert share == pytest.approx(FIRST_RANK_SHARE * len(visited), abs=a_round)
    for measured in file.measurements:
        assert {0, 1, 2} <= set(measured.rounds)
    orders = [[key for key, at in visited if at == number and key not in deciding] for number in (1, 2)]
    assert sorted(orders[0]) == sorted(orders[1])
    assert orders[0] != orders[1]
    # Cells that decide are compared with one another: their rounds are taken in one go, and lie apart over the whole run.
    places = {key: [at for at, (visit, _) in enumerate(visited) if visit == key] for key in deciding}
    assert all(spots[-1] - spots[0] > len(visited) / 2 for spots in places.values())
    second = [at for at, (key, number) in enumerate(visited) if number == 1 and key in deciding]
    assert second[-1] - second[0] == a_round - 1
    where, ratios = repeated_ratios(file, fit_measurements(file))
    assert where.startswith("tiny fp32, eager")
    assert [ratio.num_speculative_tokens for ratio in ratios] == list(range(1, 9))
    assert all(ratio.first > 0.5 for ratio in ratios)
