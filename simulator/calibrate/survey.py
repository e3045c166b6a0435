"""Before measuring: what is asked, what the device is and can, and the plan that follows. A resumed run's from its file."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from calibration.measurement import Header, MeasurementFile
from simulator.calibrate.durations import Rates
from simulator.calibrate.models import Dimensions, chosen_models
from simulator.calibrate.pace import ProcessClock
from simulator.calibrate.plan import Plan, plan
from simulator.calibrate.planned_cells import Target
from simulator.extra import not_installed
from simulator.hardware import find_hardware
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from calibration.device import Device

# An operator of a model in Python takes several times the smallest one.
_OPERATORS_OF_A_MODULE = 4.0
# Hugging Face loops take 0.64 to 0.88 ms a layer (engine_profiles/hf_eager.yaml) over thirty operators.
_GPU_OPERATOR_S = 2.4e-5
_GPU_CACHE_BYTES = 50 * 2**20


@dataclass(frozen=True)
class Request:
    """What a calibration is asked for. device: cpu, cuda, mps or auto. dtypes: of whole passes, the main one first; empty = usual
    ones. models: names or folders; empty = usual ones. hardware: profile with the device's datasheet peaks, "" = by its name."""

    device: str = "auto"
    dtypes: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    minutes: float = 5.0
    threads: int = 1
    hardware: str = ""
    seed: int = 1


@dataclass(frozen=True)
class Session:
    """A device looked at and a plan made for it. device: None in a dry run for one that is not here. folders: of local models.
    clock: since looking began, which the minutes count from. looking_cpu_s: what loading PyTorch and looking took."""

    minutes: float
    plan: Plan
    header: Header
    folders: Mapping[str, Path]
    device: Device | None = None
    clock: ProcessClock = field(default_factory=ProcessClock)
    looking_cpu_s: float = 0.0


def prepare(request: Request, dry: bool = False) -> Session:
    """Looks at the device for a few seconds and plans. Raises `SpecError` for a device, type or model that is not there.

    dry: a device that is not here is planned for by the datasheet of `request.hardware`.
    """
    clock = ProcessClock()
    try:
        device = _device(request.device, request.threads)
    except SpecError:
        if not (dry and request.hardware):
            raise
        return _planned_from_datasheet(request)
    session = _looked_at(request, device)
    return replace(session, clock=clock, looking_cpu_s=clock.cpu_s)


def resumed(file: MeasurementFile, request: Request, given: Mapping[str, object]) -> Session:
    """The session that a file of measurements belongs to. `given`: fields of `request` that the user stated, which must agree;
    other minutes than before are the new total."""
    header = file.header
    stored = {
        "device": header.device, "dtypes": header.pass_dtypes, "threads": header.threads, "hardware": header.peaks,
        "seed": header.seed,
    }  # fmt: skip
    for name, value in given.items():
        if name == "hardware":
            value = find_hardware(request.hardware, "--hardware", "").profile_id
        if name in stored and value not in (stored[name], "auto"):
            flag = {"dtypes": "--dtype"}.get(name, f"--{name}")
            raise SpecError(
                [Problem(flag, "", f"must be as in the file of measurements ({stored[name]}), or left out", repr(value))]
            )
    clock = ProcessClock()
    device = _device(header.device, header.threads)
    versions = _versions()
    for name, here, before in (
        ("device", device.facts.name, header.device_name), ("driver", device.facts.driver, header.driver),
        ("torch", versions[0], header.torch), ("transformers", versions[1], header.transformers),
    ):  # fmt: skip
        if here != before:
            raise SpecError(
                [Problem("--resume", "", f"must go on with the same {name}: measured with {before!r}, here is {here!r}")]
            )
    configs, folders = (
        chosen_models(request.models, header.device, header.memory_bytes) if request.models else (header.models, {})
    )
    if {name: dict(config) for name, config in configs.items()} != header.models:
        raise SpecError([Problem("--model", "", f"must be as in the file of measurements: {', '.join(header.models)}")])
    again = plan(_target(header), _rates(header), header.minutes)
    if again.hash != header.plan:
        raise SpecError([Problem("--resume", "", "must go on with the version of this program that planned the measurements")])
    minutes = float(request.minutes if "minutes" in given else file.minutes)
    return Session(minutes, again, header, folders, device, clock, clock.cpu_s)


def _device(kind: str, threads: int) -> Device:
    """Raises `SpecError` where PyTorch is not installed or has no such device."""
    from importlib.util import find_spec

    missing = [name for name in ("torch", "transformers", "accelerate") if find_spec(name) is None]
    if missing:
        raise not_installed("calibrate", missing)
    from calibration.device import Device, UnsupportedError, best_kind

    try:
        return Device(best_kind() if kind == "auto" else kind, threads)
    except UnsupportedError as error:
        hint = "a dry run can plan for it by the datasheet of a profile: --dry-run --hardware h200_sxm"
        raise SpecError([Problem("--device", "", f"{error}; {hint}", repr(kind))]) from None


def device_name(request: Request) -> str:
    """The name of the device that `request` means."""
    return _device(request.device, request.threads).facts.name


def _versions() -> tuple[str, str]:
    from calibration.visits import versions

    return versions()


def _dtypes(asked: tuple[str, ...], kind: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(of GEMM, of whole passes)."""
    passes = asked or (("fp32",) if kind == "cpu" else ("bf16",))
    also = ("fp32", "bf16") if kind == "cpu" else ("bf16", "fp8") if kind == "cuda" else ("bf16", "fp32")
    return (*passes, *(dtype for dtype in also if dtype not in passes)), passes


def _modes(kind: str) -> tuple[str, ...]:
    return ("eager", "cuda_graph", "compile") if kind == "cuda" else ("eager",)


def _looked_at(request: Request, device: Device) -> Session:
    from calibration.visits import backends, probe

    facts, kind = device.facts, device.kind
    configs, folders = chosen_models(request.models, kind, facts.memory_bytes)
    gemm_dtypes, pass_dtypes = _dtypes(request.dtypes, kind)
    for dtype in request.dtypes:
        if device.refusal(dtype):
            raise SpecError([Problem("--dtype", "", f"must be a type that {facts.name} computes in", repr(dtype))])
    gemm_dtypes = tuple(dtype for dtype in gemm_dtypes if not device.refusal(dtype))
    found = probe(device, gemm_dtypes)
    main = Dimensions.of(next(iter(configs.values())))
    attention_dtype = next((dtype for dtype in pass_dtypes if dtype != "fp8"), "bf16")
    torch_version, transformers_version = _versions()
    header = Header(
        device=kind,
        device_name=facts.name,
        device_count=facts.count,
        driver=facts.driver,
        torch=torch_version,
        transformers=transformers_version,
        compute_capability=facts.compute_capability,
        memory_bytes=facts.memory_bytes,
        cache_bytes=facts.cache_bytes,
        compute_units=facts.compute_units,
        dtypes=gemm_dtypes,
        pass_dtypes=pass_dtypes,
        modes=_modes(kind),
        backends=backends(device, main.heads, main.kv_heads, main.head_dim, attention_dtype),
        threads=device.threads,
        load_average=load_average(),
        clock=device.clock,
        started=datetime.now(UTC).isoformat(timespec="seconds"),
        minutes=request.minutes,
        seed=request.seed,
        peaks=find_hardware(request.hardware, "--hardware", "").profile_id if request.hardware else known_profile(facts.name),
        rates={
            "bandwidth_bytes_per_s": found.bandwidth_bytes_per_s,
            "operator_s": found.operator_s * _OPERATORS_OF_A_MODULE,
            "wall_factor": found.wall_factor,
            **{f"flops_per_s.{dtype}": value for dtype, value in found.flops_per_s.items()},
        },
        plan="",
        models={name: dict(config) for name, config in configs.items()},
    )
    return _session(header, folders, device)


def _planned_from_datasheet(request: Request) -> Session:
    """A plan for a device that is not here, by the peaks and coefficients of its profile."""
    hardware = find_hardware(request.hardware, "--hardware", "")
    kind = "cuda" if request.device == "auto" else request.device
    configs, folders = chosen_models(request.models, kind, hardware.memory_bytes)
    gemm_dtypes, pass_dtypes = _dtypes(request.dtypes, kind)
    known = tuple(dtype for dtype in gemm_dtypes if dtype in hardware.profile.peak_flops_per_s)
    header = Header(
        device=kind,
        device_name=hardware.name,
        device_count=1,
        driver="",
        torch="",
        transformers="",
        memory_bytes=int(hardware.memory_bytes),
        cache_bytes=_GPU_CACHE_BYTES,
        compute_units=hardware.profile.compute_units,
        dtypes=known,
        pass_dtypes=pass_dtypes,
        modes=_modes(kind),
        backends={"decode": "unknown", "verify": "unknown"},
        threads=request.threads,
        load_average=0.0,
        clock="device",
        started="",
        minutes=request.minutes,
        seed=request.seed,
        peaks=hardware.profile_id,
        rates={
            "bandwidth_bytes_per_s": hardware.bandwidth_bytes_per_s,
            "operator_s": _GPU_OPERATOR_S,
            "wall_factor": 1.0,
            **{f"flops_per_s.{dtype}": hardware.flops_per_s(dtype) for dtype in known},
        },
        plan="",
        models={name: dict(config) for name, config in configs.items()},
    )
    return _session(header, folders, None)


def _session(header: Header, folders: Mapping[str, Path], device: Device | None) -> Session:
    planned = plan(_target(header), _rates(header), header.minutes)
    return Session(header.minutes, planned, header.model_copy(update={"plan": planned.hash}), folders, device)


def _target(header: Header) -> Target:
    return Target(
        header.device, header.cache_bytes, header.memory_bytes, header.device_count, header.dtypes, header.pass_dtypes,
        header.modes, header.models, header.backends,
    )  # fmt: skip


def _rates(header: Header) -> Rates:
    prefix = "flops_per_s."
    flops = {name.removeprefix(prefix): value for name, value in header.rates.items() if name.startswith(prefix)}
    return Rates(header.rates["bandwidth_bytes_per_s"], flops, header.rates["operator_s"], header.rates["wall_factor"])


def load_average() -> float:
    """Of the last minute; 0 where the system tells none."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else 0.0


def known_profile(device_name: str) -> str:
    """Id of the shipped profile that a driver's name of a device means, "" where there is none.

    >>> known_profile("NVIDIA H100 80GB HBM3"), known_profile("NVIDIA A100-SXM4-80GB"), known_profile("Some CPU")
    ('h100_sxm', 'a100_sxm_80gb', '')
    """
    for name in (device_name, *(device_name.replace(old, new) for old, new in _DRIVER_NAMES if old in device_name)):
        try:
            return find_hardware(name).profile_id
        except SpecError:
            continue
    return ""


# How drivers spell what profiles call otherwise.
_DRIVER_NAMES = (
    (" 80GB HBM3", " SXM"), ("-SXM4-80GB", " SXM 80GB"), ("-SXM4-40GB", " SXM 40GB"), (" 80GB PCIe", " PCIe 80GB"),
    ("-PCIE-40GB", " PCIe 40GB"), (" Blackwell Server Edition", ""), (" Blackwell Workstation Edition", ""),
)  # fmt: skip
