"""What is shipped, a flat mapping for each entry: for `list` and for whoever looks for a name."""

from __future__ import annotations

from collections.abc import Callable

from simulator import resources
from simulator.acceptance import shipped_profiles
from simulator.architecture import models
from simulator.hardware import find_hardware
from simulator.serving_engine import find_engine
from simulator.speculation import METHOD_NAMES
from simulator.workload import load_workload_profile, profile_ids

Entry = dict[str, str | int | float]


def known(kind: str) -> list[Entry]:
    """Entries of one kind (a key of `resources.KINDS`); `id` is the name that scenarios use, units end their key.

    TFLOP_per_s: peak in 16 bit. measured: how many efficiency coefficients are fitted or measured on the device.
    """
    return _KNOWN[kind]()


def _hardware() -> list[Entry]:
    entries: list[Entry] = []
    for name in resources.ids("hardware"):
        device = find_hardware(name)
        given = [quantity for quantity in device.profile.coefficients.values() if not isinstance(quantity, dict)]
        entries.append(
            {
                "id": name,
                "name": device.name,
                "memory_GiB": round(device.memory_bytes / 2**30),
                "TB_per_s": round(device.profile.memory_bandwidth_bytes_per_s.value / 1e12, 2),
                "TFLOP_per_s": round(device.profile.peak_flops_per_s[device.wide_dtype].value / 1e12),
                "measured": sum(quantity.source in ("fitted", "measured") for quantity in given),
                "aliases": ", ".join(device.profile.aliases),
            }
        )
    return entries


def _engines() -> list[Entry]:
    found = {name: find_engine(name) for name in resources.ids("engine")}
    return [{"id": name, "name": engine.name, "versions": engine.versions} for name, engine in found.items()]


def _models() -> list[Entry]:
    distinct = dict.fromkeys(models().values())
    found = sorted(distinct, key=lambda model: (model.kind == "draft_head", model.name.casefold()))
    return [
        {
            "id": model.name,
            "kind": model.kind,
            "family": model.family,
            "parameters_B": round(model.parameter_count / 1e9, 3),
            "aliases": ", ".join(model.aliases),
        }
        for model in found
    ]


def _acceptance() -> list[Entry]:
    specs = {name: profile.spec for name, profile in shipped_profiles().items()}
    return [
        {"id": name, "method": METHOD_NAMES.get(spec.method, spec.method), "description": spec.description}
        for name, spec in specs.items()
    ]


def _workloads() -> list[Entry]:
    found = {name: load_workload_profile(name) for name in profile_ids()}
    return [{"id": name, "title": profile.title, "licence": profile.licence.split(" (")[0]} for name, profile in found.items()]


def _scenarios() -> list[Entry]:
    return [{"id": name, "question": _question(name)} for name in resources.ids("scenario")]


def _question(name: str) -> str:
    """The comment at the head of a scenario says what it asks; a line for editors does not count."""
    lines = (resources.folder("scenario") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()
    head = lines[: next((index for index, line in enumerate(lines) if not line.startswith("#")), len(lines))]
    comments = (line.removeprefix("#").strip() for line in head)
    return " ".join(comment for comment in comments if not comment.startswith("yaml-language-server"))


_KNOWN: dict[str, Callable[[], list[Entry]]] = {
    "hardware": _hardware,
    "engine": _engines,
    "model": _models,
    "acceptance": _acceptance,
    "workload": _workloads,
    "scenario": _scenarios,
}
