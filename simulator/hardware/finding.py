"""A device by name: ids, names, aliases, paths, and names with a memory."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

from simulator import resources
from simulator.hardware.defaults import filled
from simulator.hardware.device import Hardware
from simulator.hardware.profile import HardwareProfile
from simulator.hardware.profile_problems import profile_problems
from simulator.spec import SpecError, check, load_yaml


@cache
def names() -> dict[str, str]:
    """Every accepted spelling (id, name, alias; normalised) → profile id."""
    found: dict[str, str] = {}
    for profile_id in resources.ids("hardware"):
        data = load_yaml(resources.folder("hardware") / f"{profile_id}.yaml").data
        for name in (profile_id, data["name"], *(data.get("aliases") or ())):
            found.setdefault(_key(name), profile_id)
    return found


_BRANDS = re.compile(r"\b(nvidia|geforce|tesla|amd|instinct|radeon|intel|apple|google|aws)\b")
_MEMORY = re.compile(r"(.+)-(\d+)-?gb")


def _key(name: str) -> str:
    """A name as it is compared: no case, remarks in brackets, brands, spaces nor hyphens."""
    return _BRANDS.sub("", resources.normalised(name)).replace("-", "")


def find_hardware(name: str, where: str = "", key: str = "hardware") -> Hardware:
    """A device by id, path, name or alias, or one of these and its memory. Raises `SpecError` naming the nearest known one."""
    path = resources.file_of("hardware", name)
    if path is not None:
        return _load(path)
    if _key(name) in names():
        return _shipped(names()[_key(name)])
    found = _with_memory(name)
    if found is None:
        raise resources.unknown(where, key, "hardware profile", name, resources.ids("hardware"))
    return found


def _shipped(profile_id: str) -> Hardware:
    return _load(resources.folder("hardware") / f"{profile_id}.yaml")


def _with_memory(name: str) -> Hardware | None:
    """The device of a name like ``M3 Ultra 96GB``, with that memory; None for a device or a capacity that does not exist."""
    split = _MEMORY.fullmatch(resources.normalised(name))
    if split is None or _key(split[1]) not in names():
        return None
    hardware = _shipped(names()[_key(split[1])])
    profile = hardware.profile
    asked = int(split[2]) * 2**30
    # Vendors count GB or GiB, and a driver may report less: 8 % apart at most.
    fits = [size for size in (profile.memory_bytes.value, *profile.memory_bytes_options) if abs(size / asked - 1) < 0.08]
    if not fits:
        return None
    memory = profile.memory_bytes.model_copy(update={"value": fits[0]})
    return replace(hardware, profile=profile.model_copy(update={"memory_bytes": memory}))


@resources.once_per_file
def _load(path: str | Path) -> Hardware:
    document = load_yaml(path)
    profile: HardwareProfile = check(HardwareProfile, document)
    problems = list(profile_problems(profile, document))
    if problems:
        raise SpecError(problems)
    return filled(profile, Path(path).name.removesuffix(".yaml"))
