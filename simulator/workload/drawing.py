"""A workload section turned into requests.

Equal seeds give equal requests, and asking for more requests leaves the first ones as they were, except where `rate_per_s`
rescales a trace or profile to its mean rate.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import repeat

import numpy as np

from simulator.spec import Document, Location, Problem, SpecError
from simulator.workload.changing_rate import diurnal_times_s, ramp_times_s
from simulator.workload.lengths import LognormalLengths, UniformLengths
from simulator.workload.profile import RequestSource, WorkloadProfile, load_workload_profile
from simulator.workload.quantities import MAX_TOKENS, Floats, Integers
from simulator.workload.request import Request, content_of
from simulator.workload.request_trace import PromptTexts, RequestTrace
from simulator.workload.section import ArrivalSpec, SessionsSpec, WorkloadSpec

DAY_S = 86_400.0


def source_problems(
    spec: WorkloadSpec, source: RequestSource | None, document: Document | None = None, location: Location = ()
) -> list[Problem]:
    """What can be judged only with the trace or profile at hand; places are those of `document` under `location`."""
    document = document or Document("workload", {})
    count = (*location, "num_requests")
    if isinstance(source, WorkloadProfile) and spec.num_requests is None:
        return [document.problem(count, "must be given: a workload profile has no number of requests of its own")]
    if not isinstance(source, RequestTrace):
        return []
    if not source.timed and spec.arrivals.process == "trace":
        must = f"must be poisson, gamma, constant or closed_loop: {source.source or 'the trace'} holds no arrival times"
        return [document.problem((*location, "arrivals", "process"), must, "trace")]
    n = spec.num_requests or len(source)
    if n > len(source):
        return [document.problem(count, f"must be at most {len(source)}, the requests of {source.source or 'the trace'}", n)]
    if source.prompt_texts is not None and spec.shared_prefix_tokens is not None:
        must = "must be left out: the trace says which prompts begin alike"
        return [document.problem((*location, "shared_prefix_tokens"), must, spec.shared_prefix_tokens)]
    rescaled = spec.arrivals.process == "trace" and spec.arrivals.rate_per_s is not None
    if rescaled and source.arrival_s[n - 1] == source.arrival_s[0]:
        return [document.problem((*location, "arrivals", "rate_per_s"), "must be left out: the requests all arrive at one time")]
    return []


def requests_of(spec: WorkloadSpec, seed: int, source: RequestSource | None = None) -> tuple[Request, ...]:
    """The requests of a workload in order of arrival, ids 0, 1, …; under a closed loop all have `arrival_s` 0.

    `source` is what `requests.trace` means; left out, a shipped profile of that name is loaded. Raises `SpecError`.
    """
    if spec.requests is None:
        source = None
    elif source is None:
        source = load_workload_profile(spec.requests.trace)
    problems = source_problems(spec, source)
    if problems:
        raise SpecError(problems)
    n = spec.num_requests or (len(source) if isinstance(source, RequestTrace) else 0)
    prompts, outputs = _lengths(spec, n, seed, source)
    if spec.sessions is not None:
        return _in_sessions(spec, spec.sessions, prompts, outputs, seed)
    times_s = _arrivals(spec.arrivals, n, seed, source)
    requests = map(Request, range(n), times_s.tolist(), prompts.tolist(), outputs.tolist())
    if not shares_prefixes(spec, source):
        return tuple(requests)
    if isinstance(source, RequestTrace) and source.prompt_texts is not None:
        return tuple(map(_recorded_content, requests, repeat(source.prompt_texts)))
    shared = spec.shared_prefix_tokens or 0
    return tuple(replace(r, content=content_of(shared, 1 + r.request_id, r.prompt_tokens, r.output_tokens)) for r in requests)


def shares_prefixes(spec: WorkloadSpec, source: RequestSource | None) -> bool:
    """Whether some prompts of a workload begin alike."""
    recorded = isinstance(source, RequestTrace) and source.prompt_texts is not None
    return recorded or spec.shared_prefix_tokens is not None or spec.sessions is not None


def _recorded_content(request: Request, recorded: PromptTexts) -> Request:
    """The prompt as the trace tells it, then an answer like no other."""
    pieces = [(1 + 2 * text, recorded.tokens) for text in recorded.of(request.request_id)]
    pieces[-1] = (pieces[-1][0], request.prompt_tokens - (len(pieces) - 1) * recorded.tokens)
    return replace(request, content=(*pieces, (2 + 2 * request.request_id, request.output_tokens)))


def _in_sessions(spec: WorkloadSpec, sessions: SessionsSpec, said: Integers, outputs: Integers, seed: int) -> tuple[Request, ...]:
    """Requests as turns: each prompt holds all that was said and answered before it in its session."""
    n = len(said)
    turns = _drawn(sessions.turns, n, _stream(seed, b"turns"))
    begins = np.concatenate([[0], np.cumsum(turns)])
    begins = begins[begins < n]
    turns_mean = sessions.turns if isinstance(sessions.turns, int) else sessions.turns.mean
    times_s = _arrivals(spec.arrivals, len(begins), seed, None, turns_mean)
    requests = []
    for session, (begin, end) in enumerate(zip(begins.tolist(), [*begins[1:].tolist(), n], strict=True)):
        before = 0
        for i in range(begin, end):
            prompt, output = min(before + int(said[i]), MAX_TOKENS), int(outputs[i])
            content = content_of(spec.shared_prefix_tokens or 0, 1 + session, prompt, output)
            follows, think_time_s = (i - 1, sessions.think_time_s) if i > begin else (None, 0.0)
            requests.append(Request(i, float(times_s[session]), prompt, output, content, follows, think_time_s))
            before = prompt + output
    return tuple(requests)


def lengths_by_law(spec: WorkloadSpec, n: int, source: RequestSource | None) -> tuple[Integers, Integers]:
    """(prompt tokens, output tokens) of n requests as the workload has them on the whole: one from each nth part of every
    distribution, in no order, so that means and tails are the law's. Not of a recorded trace, which has none."""
    rng = np.random.default_rng([0, *b"lengths by law"])
    shares = np.stack([(rng.permutation(n) + rng.random(n)) / n for _ in range(3)], axis=1)
    if isinstance(source, WorkloadProfile):
        return source.lengths_at(shares)
    assert spec.lengths is not None  # a trace is excluded
    found = [
        np.full(n, length, dtype=np.int64) if isinstance(length, int) else length.at(shares[:, column])
        for column, length in enumerate((spec.lengths.prompt, spec.lengths.output))
    ]
    return found[0], found[1]


def _lengths(spec: WorkloadSpec, n: int, seed: int, source: RequestSource | None) -> tuple[Integers, Integers]:
    if isinstance(source, RequestTrace):
        return source.prompt_tokens[:n], source.output_tokens[:n]
    if isinstance(source, WorkloadProfile):
        return source.sample_lengths(n, _stream(seed, b"lengths"))
    assert spec.lengths is not None  # WorkloadSpec allows no third case
    prompts = _drawn(spec.lengths.prompt, n, _stream(seed, b"prompt-lengths"))
    return prompts, _drawn(spec.lengths.output, n, _stream(seed, b"output-lengths"))


def _drawn(length: int | LognormalLengths | UniformLengths, n: int, rng: np.random.Generator) -> Integers:
    return np.full(n, length, dtype=np.int64) if isinstance(length, int) else length.sample(n, rng)


def _arrivals(spec: ArrivalSpec, n: int, seed: int, source: RequestSource | None, turns: float = 1.0) -> Floats:
    """Arrival times in seconds, never falling; of sessions of so many requests, the rates of which the section states."""
    rng = _stream(seed, b"arrivals")
    if spec.process == "closed_loop":
        return np.zeros(n)
    if spec.process == "trace":
        assert source is not None  # WorkloadSpec requires it
        if isinstance(source, RequestTrace):
            return _rescaled(source.arrival_s[:n] - source.arrival_s[0], spec)
        return _rescaled(source.sample_arrivals(n, rng), spec)
    if spec.process == "constant":
        gaps = np.concatenate([[0.0], np.ones(n - 1)])
    elif spec.process == "gamma":
        assert spec.burstiness is not None  # ArrivalSpec requires it
        gaps = rng.gamma(1 / spec.burstiness, spec.burstiness, size=n)
    else:
        gaps = rng.exponential(size=n)
    assert spec.rate_per_s is not None  # ArrivalSpec requires it
    unit_times: Floats = np.cumsum(gaps)
    if spec.end_rate_per_s is not None and spec.ramp_s is not None:
        return ramp_times_s(unit_times, spec.rate_per_s / turns, spec.end_rate_per_s / turns, spec.ramp_s)
    if spec.peak_rate_per_s is not None:
        period_s = DAY_S if spec.period_s is None else spec.period_s
        return diurnal_times_s(unit_times, spec.rate_per_s / turns, spec.peak_rate_per_s / turns, period_s)
    return unit_times / spec.rate_per_s * turns


def _rescaled(times_s: Floats, spec: ArrivalSpec) -> Floats:
    """Times from 0 on, compressed by `rate_scale` or to the mean rate `rate_per_s`, which counts gaps: (n - 1) / span."""
    if spec.rate_scale is not None:
        return times_s / spec.rate_scale
    if spec.rate_per_s is not None and times_s[-1] > 0:
        return times_s * float((len(times_s) - 1) / times_s[-1] / spec.rate_per_s)
    return times_s


def _stream(seed: int, name: bytes) -> np.random.Generator:
    return np.random.default_rng([seed, *name])
