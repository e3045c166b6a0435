"""What a profile leaves out: defaults by kind of device, marked *assumed*, so that they widen the interval accordingly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from simulator import resources
from simulator.hardware.assumed_all_reduce import assumed_all_reduce
from simulator.hardware.coefficients import Coefficients
from simulator.hardware.device import Hardware
from simulator.hardware.profile import HardwareProfile, Kind
from simulator.hardware.quantity import RELATIVE_STD, Quantity
from simulator.spec import check, load_yaml

# 0.031 µs per token at 2.52 GHz, 0.022 at 2.6 GHz; boost clocks: about 2.5 GHz from compute capability 8.9 on, 1.4 to 1.7 before.
_WALK_CYCLES_PER_TOKEN = 68.0
_CLOCK_HZ_FROM_8_9 = 2.5e9
_CLOCK_HZ = 1.5e9


@dataclass(frozen=True, slots=True)
class KindDefaults:
    """What a profile of one kind of device leaves out, why it is so, and how sure: one standard deviation of ln(value)."""

    values: Mapping[str, float]
    note: str
    fraction_std: float = RELATIVE_STD["assumed"]
    time_std: float = RELATIVE_STD["assumed"]

    def quantity(self, name: str) -> Quantity:
        std = self.time_std if name.endswith("_s") else self.fraction_std
        if name in ("attention_tile_rows", "host_time_factor"):
            std = 0.0  # how kernels are built, not how fast they run; engines' launch times hold the doubt of hosts
        return Quantity(value=self.values[name], source="assumed", note=self.note, relative_std=std)


# Without any calibration (docs/model.md): 20 µs a layer over about seven kernels, 0.80 of bandwidth, 0.65 of FLOP/s, p = 3.
_GPU: dict[str, float] = {
    "memory_bandwidth_fraction": 0.80, "flops_fraction": 0.65, "gemm_overhead_s": 3e-6, "gemm_smoothness": 3.0,
    "gemm_tile_rows": 64.0, "gemm_least_tile_rows": 0.0, "gemm_fill_k": 0.0, "gemm_wave_power": 0.0,
    "gemm_walk_s_per_k": 0.0, "gemm_walk_longest_s": 5e-6, "attention_overhead_s": 10e-6, "attention_bandwidth_fraction": 0.75,
    "attention_flops_fraction": 0.5, "attention_wave_s": 2.7e-6, "attention_tile_rows": 64.0,
    "walk_overhead_s": 3e-6, "walk_row_s_per_token": 0.0, "walk_fixed_s": 4.5e-6, "walk_copy_s_per_byte": 0.0,
    "walk_copy_free_bytes": 0.0, "elementwise_overhead_s": 2.5e-6, "host_time_factor": 1.0,
}  # fmt: skip
DEFAULTS: Mapping[Kind, KindDefaults] = {
    "gpu": KindDefaults(_GPU, "no measurement of this device: class default"),
    # Weights read per token × tokens/s over datasheet bandwidth, batch 1: GB10 0.60-0.69 (FP8), M3 Ultra 0.62-0.81 (mlx-lm,
    # 4 bit), M5 Pro 0.81 (vllm-metal, bf16), Strix Halo 0.76-0.81 (llama.cpp, Q4_K_M): docs/model.md. Command buffers of Metal
    # and Vulkan are no captured graphs.
    "unified": KindDefaults(
        _GPU | {"memory_bandwidth_fraction": 0.75, "attention_bandwidth_fraction": 0.70, "gemm_overhead_s": 5e-6},
        "class default of unified memory: published batch-1 decode of four devices reaches 0.60 to 0.81 of the bandwidth",
        time_std=0.4,
    ),
    # One Zen 3 core: GEMM at 0.46-0.60 of peak; a sum of bytes and arithmetic fits its forward times better than their maximum.
    # Two Zen 5 sockets under llama.cpp, 16 bit, read 0.41-0.74 of their bandwidth. An operator costs from 5 µs (barrier of a
    # thread pool) to 60 µs (eager PyTorch: 0.65 ms a layer over eleven). Rows and copies of a walk: PyTorch on one Zen 5 core.
    "cpu": KindDefaults(
        _GPU
        | {
            "memory_bandwidth_fraction": 0.65, "flops_fraction": 0.5, "gemm_overhead_s": 20e-6, "gemm_smoothness": 1.0,
            "gemm_tile_rows": 16.0, "attention_overhead_s": 20e-6, "attention_bandwidth_fraction": 0.55,
            "attention_flops_fraction": 0.3, "attention_tile_rows": 1.0, "walk_overhead_s": 20e-6,
            "walk_row_s_per_token": 8e-9, "walk_copy_s_per_byte": 8e-11, "walk_copy_free_bytes": 6e6,
            "elementwise_overhead_s": 20e-6,
        },
        "class default of CPUs: one measured core, published decode of two sockets; operators between C++ and eager PyTorch",
        fraction_std=0.25,
        time_std=0.7,
    ),
    # A compiled program has no launches; tiles are those of a 128-row systolic array; blocks queue on few large cores, so that a
    # wave is a hundredth of a GPU's.
    "accelerator": KindDefaults(
        _GPU
        | {
            "memory_bandwidth_fraction": 0.75, "flops_fraction": 0.55, "gemm_overhead_s": 2e-6, "gemm_tile_rows": 128.0,
            "attention_wave_s": 3e-8, "walk_fixed_s": 5e-8, "elementwise_overhead_s": 1e-6,
        },
        "class default of accelerators: no public kernel table; a compiled program of 128-row tiles",
        fraction_std=0.25,
        time_std=0.7,
    ),
}  # fmt: skip
# Experts and recurrent states: the same on every device where its profile says nothing else (published_cases/layer_kinds.yaml).
LAYER_KINDS = (
    "expert_bandwidth_fraction", "expert_overhead_s", "expert_row_correlation", "expert_popularity_shape",
    "grouped_routing_correlation", "state_overhead_s", "state_row_s",
)  # fmt: skip


def filled(profile: HardwareProfile, profile_id: str) -> Hardware:
    """The profile with every coefficient that it leaves out assumed."""
    if not profile.all_reduce:
        profile = profile.model_copy(update={"all_reduce": assumed_all_reduce(profile)})
    return Hardware(profile_id, profile, _complete(profile))


def _complete(profile: HardwareProfile) -> Coefficients:
    given = profile.coefficients
    defaults = DEFAULTS[profile.kind]
    flops = given.get("flops_fraction", {})
    assert isinstance(flops, dict)
    filled: dict[str, object] = {name: defaults.quantity(name) for name in defaults.values}
    filled |= _layer_kinds()
    filled |= {"walk_s_per_token": _assumed_walk(profile), **given}
    filled["flops_fraction"] = {
        dtype: flops.get(dtype) or defaults.quantity("flops_fraction") for dtype in profile.peak_flops_per_s
    }
    return Coefficients.model_validate(filled)


@cache
def _layer_kinds() -> dict[str, Quantity]:
    """Coefficients of routed experts and recurrent layers, as fitted on published runs."""
    found: dict[str, Quantity] = check(dict[str, Quantity], load_yaml(resources.folder("published_cases") / "layer_kinds.yaml"))
    return {name: found[name] for name in LAYER_KINDS}


def _assumed_walk(profile: HardwareProfile) -> Quantity:
    """A lone block waits for its loads: 57 to 78 cycles per cached token on the two devices measured (RTX PRO 6000, RTX 4090)."""
    capability = tuple(int(part) for part in (profile.compute_capability or "0").split("."))
    clock_hz = _CLOCK_HZ_FROM_8_9 if capability >= (8, 9) else _CLOCK_HZ
    return Quantity(
        value=_WALK_CYCLES_PER_TOKEN / clock_hz,
        source="assumed",
        note="cycles per token of the measured devices at the usual clock of this generation",
        relative_std=0.25,
    )
