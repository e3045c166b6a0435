"""The timeline is valid Trace Event Format, and tells of the run what the records tell."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any

import jsonschema
import pytest

from simulator.__main__ import main
from simulator.reports.timeline import timeline
from simulator.scenario import scenario_of
from simulator.simulation import SimulationResult, simulate
from simulator.spec import parse_yaml
from tests.test_scenario import BASE, run_quietly

NUMBERS = {"type": "object", "additionalProperties": {"type": "number"}}
TIME = {"type": "number", "minimum": 0}
# What the format demands of each kind of event ("Trace Event Format", the Chromium project).
KINDS: dict[str, dict[str, Any]] = {
    "M": {"required": ["name", "pid", "args"], "properties": {"args": {"required": ["name"]}}},
    "X": {"required": ["name", "cat", "pid", "tid", "ts", "dur"], "properties": {"ts": TIME, "dur": TIME, "args": NUMBERS}},
    "C": {"required": ["name", "pid", "ts", "args"], "properties": {"ts": TIME, "args": NUMBERS}},
    "b": {"required": ["name", "cat", "id", "pid", "tid", "ts"], "properties": {"ts": TIME}},
    "e": {"required": ["name", "cat", "id", "pid", "tid", "ts"], "properties": {"ts": TIME}},
    "i": {"required": ["name", "pid", "tid", "ts", "s"], "properties": {"ts": TIME, "s": {"enum": ["g", "p", "t"]}}},
}
SCHEMA = {
    "type": "object",
    "required": ["traceEvents", "displayTimeUnit"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "traceEvents": {
            "type": "array",
            "items": {
                "required": ["ph"],
                "properties": {"ph": {"enum": list(KINDS)}, "name": {"type": "string"}, "pid": {"type": "integer"}},
                "allOf": [{"if": {"properties": {"ph": {"const": kind}}}, "then": rule} for kind, rule in KINDS.items()],
            },
        },
    },
}


@pytest.fixture(scope="module")
def result() -> SimulationResult:
    return simulate(scenario_of(parse_yaml(BASE, "small.yaml")))


@pytest.fixture(scope="module")
def events(result: SimulationResult) -> list[dict[str, Any]]:
    document = json.loads(timeline(result))
    jsonschema.validate(document, SCHEMA)
    return document["traceEvents"]


def test_steps_fill_the_busy_time_and_never_overlap(result: SimulationResult, events: list[dict[str, Any]]) -> None:
    steps = [event for event in events if event["ph"] == "X" and event["pid"] == 1]
    assert len(steps) == len(result.plain.result.steps)
    assert sum(step["dur"] for step in steps) == pytest.approx(1e6 * sum(result.plain.result.term_seconds.values()))
    ends = [step["ts"] + step["dur"] for step in steps]
    assert all(start["ts"] >= end - 1e-3 for start, end in zip(steps[1:], ends, strict=False))


def test_every_request_has_a_track_whose_parts_end_in_order(result: SimulationResult, events: list[dict[str, Any]]) -> None:
    open_parts: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "b":
            open_parts[event["pid"], event["id"]].append(event)
        elif event["ph"] == "e":
            begun = open_parts[event["pid"], event["id"]].pop()
            assert begun["name"] == event["name"]
            assert begun["ts"] <= event["ts"]
    runs = 1 + len(result.comparisons)
    assert len(open_parts) == runs * len(result.requests)
    assert not any(open_parts.values())


def test_each_replica_is_a_process_with_tracks_of_its_own() -> None:
    text = BASE.replace("engine: vllm", "engine: vllm\nparallel: {data_parallel_size: 2, router: least_outstanding}")
    result = simulate(scenario_of(parse_yaml(text, "two.yaml")))
    document = json.loads(timeline(result))
    jsonschema.validate(document, SCHEMA)
    names = {event["pid"]: event["args"]["name"] for event in document["traceEvents"] if event["name"] == "process_name"}
    assert len(names) == 2 * (1 + len(result.comparisons))
    assert names[1] == "no speculation, replica 1 of 2"
    for process in names:
        steps = [event for event in document["traceEvents"] if event["ph"] == "X" and event["pid"] == process]
        ends = [step["ts"] + step["dur"] for step in steps]
        assert steps
        assert all(start["ts"] >= end - 1e-3 for start, end in zip(steps[1:], ends, strict=False))
    assert result.plain.result.replica_of_request is not None
    begun = [event["pid"] for event in document["traceEvents"] if event["ph"] == "b" and event["name"].startswith("request ")]
    assert begun[: len(result.requests)] == (1 + result.plain.result.replica_of_request).tolist()


def test_instances_that_compute_prompts_are_processes_and_their_transfers_parts_of_requests() -> None:
    text = BASE.replace("engine: vllm", "engine: vllm\nparallel: {disaggregated_prefill: {instances: 2}}")
    result = simulate(scenario_of(parse_yaml(text, "apart.yaml")))
    document = json.loads(timeline(result))
    jsonschema.validate(document, SCHEMA)
    events = document["traceEvents"]
    names = [event["args"]["name"] for event in events if event["name"] == "process_name"][:3]
    roles = ["decode instance 1 of 1", "prefill instance 1 of 2", "prefill instance 2 of 2"]
    assert names == [f"no speculation, {role}" for role in roles]
    assert result.plain.result.transfers is not None
    moved = {kind: [event["ts"] for event in events if event["ph"] == kind and event["name"] == "KV transfer"] for kind in "be"}
    landed = 1e6 * result.plain.result.transfers.column("landed_s")
    assert sorted(moved["e"][: len(landed)]) == pytest.approx(sorted(landed))
    assert all(begin < end for begin, end in zip(moved["b"], moved["e"], strict=True))


def test_run_writes_a_timeline_or_says_why_not(tmp_path, capsys) -> None:
    scenario, written = tmp_path / "small.yaml", tmp_path / "timeline.json"
    scenario.write_text(BASE)
    assert main(["run", str(scenario), "--timeline", str(written), "--json"]) == 0
    jsonschema.validate(json.loads(written.read_text()), SCHEMA)
    code, shown = run_quietly(["run", str(scenario), "--timeline", str(tmp_path / "none" / "timeline.json")])
    assert (code, "--timeline: must be a file that can be written" in shown) == (2, True)
