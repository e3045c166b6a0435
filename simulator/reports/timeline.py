"""A run to look at: the Trace Event Format (JSON) that Perfetto and chrome://tracing open.

One process for each variant, or for each of its replicas. Its track of steps shows what the engine did and for how long, its
counters the load, and each request has a track of its own: queued, prompt, KV transfer where there is one, answer. Times are
microseconds of simulated time.
Source: "Trace Event Format", the Chromium project; ph X complete, b/e nestable async, C counter, M metadata, i instant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from itertools import islice, repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.serving import RequestRecord, ServingResult, StepRecord
from simulator.simulation import SimulationResult, Variant

# What a viewer still handles with ease; a longer run is shown up to here.
MOST_STEPS = 50_000
STEPS_TRACK = 1
Event = dict[str, Any]


def timeline(result: SimulationResult) -> str:
    """The plain run and every speculative one as one JSON document."""
    variants = (result.plain, *(comparison.variant for comparison in result.comparisons))
    events: list[Event] = []
    processes = 1
    for variant in variants:
        events += variant_events(variant, processes)
        processes += variant.result.replicas
    cut = [variant.label for variant in variants if len(variant.result.steps) > MOST_STEPS]
    about = {"scenario": result.scenario.name, "shown_steps_at_most": MOST_STEPS, "cut_short": cut}
    head = json.dumps({"displayTimeUnit": "ms", "otherData": about}, ensure_ascii=False)
    body = ",\n".join(json.dumps(event, ensure_ascii=False, allow_nan=False) for event in events)
    return f'{head[:-1]}, "traceEvents": [\n{body}\n]}}\n'


def variant_events(variant: Variant, process: int) -> Iterator[Event]:
    """All events of one run; its replicas are processes from `process` on."""
    run = variant.result
    for replica in range(run.replicas):
        name = f"{variant.label}{_role(run, replica)}"
        yield {"ph": "M", "pid": process + replica, "name": "process_name", "args": {"name": name}}
        yield {"ph": "M", "pid": process + replica, "tid": STEPS_TRACK, "name": "thread_name", "args": {"name": "engine steps"}}
    end_s, shown = 0.0, dict[tuple[int, str], Event]()
    for step, own in islice(zip(run.steps, _processes(run.replica_of_step, process), strict=False), MOST_STEPS):
        end_s = max(end_s, step.start_s + step.seconds)
        yield _step_event(step, own)
        for name, values in _load(step).items():
            if shown.get((own, name)) != values:
                shown[own, name] = values
                yield {"ph": "C", "pid": own, "name": name, "ts": 1e6 * step.start_s, "args": values}
    transfers = {} if run.transfers is None else run.transfers.spans_s()
    for record, own in zip(run.records, _processes(run.replica_of_request, process), strict=False):
        if record.arrival_s <= end_s:
            yield from _request_events(record, own, transfers.get(record.request_id))


def _role(run: ServingResult, replica: int) -> str:
    """What a replica is called beside its variant."""
    decoding = run.replicas - run.prefill_replicas
    if not run.prefill_replicas:
        return "" if decoding == 1 else f", replica {replica + 1} of {decoding}"
    if replica < decoding:
        return f", decode instance {replica + 1} of {decoding}"
    return f", prefill instance {replica - decoding + 1} of {run.prefill_replicas}"


def _processes(replicas: NDArray[np.int32] | None, process: int) -> Iterable[int]:
    """The process of each step or request."""
    return repeat(process) if replicas is None else (process + replicas).tolist()


def _step_event(step: StepRecord, process: int) -> Event:
    parts = ["prefill"] if step.prefill_sequences else []
    if step.decode_sequences:
        parts.append("draft and verify" if step.drafted else "decode")
    told = (
        "decode_sequences", "context_tokens", "drafted", "accepted", "emitted", "prefill_sequences", "prefill_tokens", "preempted"
    )  # fmt: skip
    return {
        "ph": "X", "pid": process, "tid": STEPS_TRACK, "name": " + ".join(parts), "cat": "step", "ts": 1e6 * step.start_s,
        "dur": 1e6 * step.seconds, "args": {name: getattr(step, name) for name in told},
    }  # fmt: skip


def _load(step: StepRecord) -> dict[str, Event]:
    return {"requests": {"running": step.running, "waiting": step.waiting}, "KV blocks": {"used": step.used_blocks}}


def _request_events(record: RequestRecord, process: int, transfer_s: tuple[float, float] | None) -> Iterator[Event]:
    """Begin and end of each part of a request's life, as nested parts of one track. transfer_s: when its prompt was computed, and
    when its cache had come where it is decoded."""
    track = {"pid": process, "tid": STEPS_TRACK, "cat": "request", "id": record.request_id}
    told = {"prompt_tokens": record.prompt_tokens, "output_tokens": record.output_tokens}
    over_s = record.finish_s if record.cancelled_s is None else record.cancelled_s
    if over_s is None:
        yield {**track, "ph": "i", "s": "p", "name": f"rejected: {record.rejected}", "ts": 1e6 * record.arrival_s, "args": told}
        return
    told |= {name: getattr(record, name) for name in ("rounds", "drafted", "accepted", "preemptions")}
    name = f"request {record.request_id}" + ("" if record.cancelled_s is None else ", given up")
    yield {**track, "ph": "b", "name": name, "ts": 1e6 * record.arrival_s, "args": told}
    parts = ("queued", "prompt", "answer") if transfer_s is None else ("queued", "prompt", "KV transfer", "answer")
    reached = (record.first_scheduled_s, *((record.first_token_s,) if transfer_s is None else transfer_s))
    marks = (record.arrival_s, *(over_s if time_s is None else min(time_s, over_s) for time_s in reached), over_s)
    for part, begin_s, until_s in zip(parts, marks, marks[1:], strict=False):
        if until_s > begin_s:
            yield {**track, "ph": "b", "name": part, "ts": 1e6 * begin_s}
            yield {**track, "ph": "e", "name": part, "ts": 1e6 * until_s}
    yield {**track, "ph": "e", "name": name, "ts": 1e6 * over_s}
