"""What `compare` tries: other values of one thing of a scenario, as changes of its document."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from simulator.acceptance import band_for
from simulator.hardware import find_hardware
from simulator.number_format import FORMATS, find_format
from simulator.scenario import ALTERNATIVES, Scenario
from simulator.spec import Document, Problem, SpecError, nearest
from simulator.speculation import HEAD_FAMILIES, METHODS, MODELLESS_METHODS

Changes = dict[str, dict[str, Any]]
_QUANTIZED = ("own", "fp8", "int4")


def changed(document: Document, change: Mapping[str, Any]) -> Document:
    """The document with sections merged, without its alternatives; None takes a key or a section away."""
    data = {key: value for key, value in document.data.items() if key != ALTERNATIVES}
    for section, keys in change.items():
        if keys is None or not isinstance(keys, Mapping):
            data[section] = keys
        else:
            old = data.get(section)
            merged = {**(old if isinstance(old, Mapping) else {}), **keys}
            data[section] = {key: value for key, value in merged.items() if value is not None}
        if data[section] is None:
            del data[section]
    return Document(document.source, data, document.lines)


def _unknown(noun: str, name: str, names: Sequence[str]) -> SpecError:
    return SpecError([Problem("--values", "", f"must be a {noun} ({', '.join(names)})", repr(name), nearest(name, names))])


def _methods(scenario: Scenario, values: Sequence[str]) -> tuple[Changes, Iterator[str]]:
    """The scenario's own method as it is; others with a head built from the target, and acceptance as measured elsewhere."""
    spec = scenario.file.speculation
    assert spec is not None
    gammas = tuple(sorted({shape.depth for shape in scenario.shapes}))
    known = [name for name in METHODS if name != "none" and (name in HEAD_FAMILIES or name in MODELLESS_METHODS)]
    asked = list(values) or [name for name in known if band_for(name, gammas[0]) is not None and _has(scenario, name)]
    for name in asked:
        if name not in METHODS or name == "none":
            raise _unknown("method", name, METHODS[1:])
    changes: Changes = {f"{spec.method} (own)": {}}
    for name in asked:
        if name != spec.method:
            section = dict.fromkeys(type(spec).model_fields) | {
                "method": name,
                "num_speculative_tokens": gammas if len(gammas) > 1 else gammas[0],
            }
            changes[name] = {"speculation": section, "acceptance": None, "parallel": {"draft_tensor_parallel_size": None}}
    note = (
        f"other methods draft γ = {', '.join(map(str, gammas))} by a head of the usual shape built from the target, and run at "
        "the lowest and the highest acceptance measured for their method on any model: ranges, not predictions for this text"
    )
    return changes, iter([note] if len(changes) > 1 else [])


def _has(scenario: Scenario, method: str) -> bool:
    """MTP needs a target that was trained with modules for it; suffix trees and n-grams need nothing."""
    return method != "mtp" or bool(scenario.deployment.target.num_nextn_predict_layers)


def _draft_sizes(scenario: Scenario, values: Sequence[str]) -> tuple[Changes, Iterator[str]]:
    """The draft on one device, on the target's, and on powers of two between."""
    own = scenario.deployment.tensor_parallel_size
    if scenario.deployment.separate_drafter is None or scenario.deployment.remote_draft is not None:
        must = "must have a drafter beside the target to compare its tensor parallelism"
        raise SpecError([scenario.document.problem(("speculation",), must)])
    asked = list(values) or [str(2**power) for power in range(own.bit_length()) if 2**power <= own]
    for value in asked:
        if not value.isdecimal() or not 1 <= int(value[:3]) <= 64:
            raise SpecError([Problem("--values", "", "must be numbers of devices from 1 to 64", repr(value))])
    return {f"draft on {size}": {"parallel": {"draft_tensor_parallel_size": int(size)}} for size in asked}, iter(())


def _weights(scenario: Scenario, values: Sequence[str]) -> tuple[Changes, Iterator[str]]:
    """Types of the target's weights, each without and with speculation."""
    known = [name for name in FORMATS if name not in ("fp32",)]
    asked = []
    for value in values or _QUANTIZED:
        found = scenario.deployment.weights if value == "own" else find_format(value)
        if found not in known:
            raise _unknown("type of weights", value, known)
        asked.append(found)
    note = (
        "quality and acceptance are taken as equal: types of weights change the text a little, and a head trained on the wide "
        "target may accept less under a narrow one"
    )
    return {name: {"target": {"weights": name}} for name in dict.fromkeys(asked)}, iter([note])


def _devices(scenario: Scenario, values: Sequence[str]) -> tuple[Changes, Iterator[str]]:
    """The scenario's own device and others."""
    if not values:
        raise SpecError([Problem("--values", "", "must be given: devices to compare with, such as h200_sxm,b200_sxm")])
    own = scenario.deployment.hardware.profile_id
    found = {find_hardware(name, "", "--values").profile_id: name for name in values}
    return {f"{own} (own)": {}} | {id: {"hardware": name} for id, name in found.items() if id != own}, iter(())


AXES: dict[str, Callable[[Scenario, Sequence[str]], tuple[Changes, Iterator[str]]]] = {
    "method": _methods,
    "draft-tp": _draft_sizes,
    "quantize": _weights,
    "hardware": _devices,
}
