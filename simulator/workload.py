"""Who asks, when and for how much: requests, arrival processes, lengths, shipped workload profiles, service levels.

A workload is `arrivals` (a process) with either `requests` (a recorded trace or a profile derived from one) or `lengths`
(constants or distributions). Requests may share beginnings: a system prompt, the turns of a session, or what a trace says.
`requests_of` turns it into requests; equal seeds give equal requests, and asking for more
requests leaves the first ones as they were, except where `rate_per_s` rescales a trace or profile to its mean rate.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise, repeat
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, Tag, model_validator

from simulator import resources
from simulator.spec import Document, Location, Problem, Spec, SpecError, check, load_yaml

MAX_TOKENS = 10_000_000
"""Longest prompt or output accepted anywhere; sampled lengths are clipped to it."""

_DATASETS = "dataset_lengths"
_PROCESSES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # process: (keys it needs, keys it may have)
    "poisson": (("rate_per_s",), ()),
    "gamma": (("rate_per_s", "burstiness"), ()),
    "constant": (("rate_per_s",), ()),
    "closed_loop": (("users",), ("think_time_s",)),
    "trace": ((), ("rate_per_s", "rate_scale")),
}

Rate = Annotated[float, Field(ge=1e-6, le=1e6)]
Seconds = Annotated[float, Field(gt=0, le=1e9)]
Tokens = Annotated[int, Field(ge=1, le=MAX_TOKENS)]
Count = Annotated[int, Field(ge=1, le=10_000_000)]
Fraction = Annotated[float, Field(ge=0, le=1)]
NonNegative = Annotated[float, Field(ge=0)]
Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


Content = tuple[tuple[int, int], ...]
"""What the tokens of a request are, prompt and output: pieces of (text, tokens), each the beginning of a text that has a number.
Two requests share a prefix as far as their pieces agree."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `arrival_s` from the start of the run, its prompt and the tokens it will produce (both at least 1).

    content: what the tokens are, where requests share prefixes; None: like no other request. follows: the request whose answer
    its user reads for `think_time_s` before sending it; `arrival_s` is then that of the first turn of the session.
    """

    request_id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    content: Content | None = None
    follows: int | None = None
    think_time_s: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class PromptTexts:
    """The numbers of the texts that each prompt is made of, all in a row: those of prompt i end before `ends`[i].

    A text has `tokens` tokens, the last of a prompt as many as are left of it.
    """

    texts: Integers
    ends: Integers
    tokens: int

    def of(self, prompt: int) -> list[int]:
        begin = int(self.ends[prompt - 1]) if prompt else 0
        found: list[int] = self.texts[begin : self.ends[prompt]].tolist()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RequestTrace:
    """A recorded trace in order of arrival: three arrays of one length. `notes` say what reading it had to change.

    timed: False where the file holds no arrivals, and all are 0.
    prompt_texts: what prompts are made of, where the trace tells which of them begin alike.
    """

    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    source: str = ""
    notes: tuple[str, ...] = ()
    timed: bool = True
    prompt_texts: PromptTexts | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)


# ---------------------------------------------------------------------------------------------------- what a user states


class ArrivalSpec(Spec):
    """When requests arrive.

    poisson, constant: at `rate_per_s`. gamma: gaps with mean 1/`rate_per_s` and squared coefficient of variation `burstiness`
    (1 is Poisson). trace: as recorded, or as the profile says; `rate_scale` 2 makes everything happen in half the time,
    `rate_per_s` rescales so that the requests used have that mean rate. closed_loop: `users` send a request each at the start
    and the next one exactly `think_time_s` (default 0) after the last token of the one before.
    """

    process: Literal["poisson", "gamma", "constant", "closed_loop", "trace"]
    rate_per_s: Rate | None = None
    burstiness: Annotated[float, Field(ge=1e-4, le=1e4)] | None = None
    users: Count | None = None
    think_time_s: Annotated[float, Field(ge=0, le=1e6)] | None = None
    rate_scale: Rate | None = None

    @model_validator(mode="after")
    def _keys_go_with_process(self) -> ArrivalSpec:
        needed, possible = _PROCESSES[self.process]
        wrong = [f"process {self.process} needs {key}" for key in needed if getattr(self, key) is None]
        for key in self.model_fields_set - {"process", *needed, *possible}:
            takers = " or ".join(name for name, keys in _PROCESSES.items() if key in keys[0] + keys[1])
            wrong.append(f"{key} goes with process {takers}, not with process {self.process}")
        if self.process == "trace" and self.rate_per_s is not None and self.rate_scale is not None:
            wrong.append("rate_per_s and rate_scale exclude each other: give one")
        if wrong:
            raise ValueError("; ".join(sorted(wrong)))
        return self


class LognormalLengths(Spec):
    """Token counts whose logarithm is normal, given by their median and 90th percentile, rounded, at least 1."""

    distribution: Literal["lognormal"]
    median: Tokens
    p90: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> LognormalLengths:
        if self.p90 <= self.median:
            raise ValueError(f"p90 must be above median (got p90 {self.p90}, median {self.median})")
        return self

    @property
    def sigma(self) -> float:
        """Standard deviation of the logarithm."""
        return math.log(self.p90 / self.median) / NormalDist().inv_cdf(0.9)

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def sample(self, n: int, rng: np.random.Generator) -> Integers:
        return _whole(self.median * np.exp(self.sigma * rng.standard_normal(n)))


class UniformLengths(Spec):
    """Whole token counts from `low` to `high`, both included, equally likely."""

    distribution: Literal["uniform"]
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> UniformLengths:
        if self.high <= self.low:
            raise ValueError(f"high must be above low (got high {self.high}, low {self.low})")
        return self

    @property
    def mean(self) -> float:
        return (self.low + self.high) / 2

    def sample(self, n: int, rng: np.random.Generator) -> Integers:
        return self.low + np.floor(rng.random(n) * (self.high - self.low + 1)).astype(np.int64)


def _kind_of_length(value: object) -> object:
    if isinstance(value, dict):
        return value.get("distribution", "")
    return getattr(value, "distribution", "number")


Length = Annotated[
    Annotated[Tokens, Tag("number")] | Annotated[LognormalLengths, Tag("lognormal")] | Annotated[UniformLengths, Tag("uniform")],
    Discriminator(_kind_of_length),
]


class LengthsSpec(Spec):
    """Prompt and output tokens, drawn independently: a constant each, or ``{distribution: lognormal | uniform, …}``."""

    prompt: Length
    output: Length


class ColumnsSpec(Spec):
    """The names that a CSV trace has for its columns."""

    arrival_s: str = "arrival_s"
    prompt_tokens: str = "prompt_tokens"
    output_tokens: str = "output_tokens"


class TraceSpec(Spec):
    """`trace`: the id of a shipped workload profile, or the path of a trace or a profile. `columns`: a CSV trace's own names.
    `tokenizer`: the path of a tokenizer.json that counts the tokens of a trace of texts; left out, they are estimated."""

    trace: str
    columns: ColumnsSpec | None = None
    tokenizer: str | None = None


class SessionsSpec(Spec):
    """Requests come in sessions of `turns` requests: a number, or a distribution as of a length.

    The prompt of a turn is all that was said before, answers too, and `lengths.prompt` new tokens. It comes `think_time_s` after
    the answer to the turn before; first turns come as `arrivals` says, at a rate that makes `rate_per_s` requests of all turns.
    """

    turns: Length
    think_time_s: Annotated[float, Field(ge=0, le=1e6)]


class WorkloadSpec(Spec):
    """The `workload:` section of a scenario.

    `num_requests` may be left out only where a trace is read from a path: then all its requests are used, else the first ones.
    `shared_prefix_tokens`: every prompt begins with the same so many tokens (a system prompt), as far as it is long enough.
    `time_out_s`: a client gives up a request that is not answered whole so long after it was sent; it counts as missed.
    """

    arrivals: ArrivalSpec
    requests: TraceSpec | None = None
    lengths: LengthsSpec | None = None
    num_requests: Count | None = None
    shared_prefix_tokens: Tokens | None = None
    sessions: SessionsSpec | None = None
    time_out_s: Annotated[float, Field(ge=1e-3, le=1e6)] | None = None

    @model_validator(mode="after")
    def _sections_fit(self) -> WorkloadSpec:
        wrong = []
        if self.requests is not None and self.lengths is not None:
            wrong.append("requests and lengths exclude each other: give one")
        if self.requests is None and self.lengths is None:
            wrong.append("one of requests and lengths must be given")
        if self.arrivals.process == "trace" and self.requests is None:
            wrong.append("arrivals.process trace needs requests.trace")
        if self.num_requests is None and self.lengths is not None:
            wrong.append("lengths needs num_requests")
        if self.num_requests is None and self.arrivals.process == "closed_loop":
            wrong.append("arrivals.process closed_loop needs num_requests")
        if self.sessions is not None and self.requests is not None:
            wrong.append("sessions goes with lengths: the requests of a trace or profile are whole prompts already")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self


class ServiceLevel(Spec):
    """Upper limits in seconds on percentiles of time to first token, time per output token and end-to-end latency."""

    ttft_p50_s: Seconds | None = None
    ttft_p90_s: Seconds | None = None
    ttft_p95_s: Seconds | None = None
    ttft_p99_s: Seconds | None = None
    tpot_p50_s: Seconds | None = None
    tpot_p90_s: Seconds | None = None
    tpot_p95_s: Seconds | None = None
    tpot_p99_s: Seconds | None = None
    e2e_p50_s: Seconds | None = None
    e2e_p90_s: Seconds | None = None
    e2e_p95_s: Seconds | None = None
    e2e_p99_s: Seconds | None = None

    @model_validator(mode="after")
    def _states_something(self) -> ServiceLevel:
        if not self.limits():
            raise ValueError("must state at least one limit, such as ttft_p99_s")
        return self

    def limits(self) -> tuple[tuple[str, float, float], ...]:
        """(metric, percentile, seconds) of each stated limit: metric is ``ttft``, ``tpot`` or ``e2e``."""
        stated = ((name.split("_"), getattr(self, name)) for name in type(self).model_fields)
        return tuple((metric, float(percentile[1:]), limit) for (metric, percentile, _), limit in stated if limit is not None)


# ------------------------------------------------------------------------------------------------------------- profiles


class ProfileArrivals(Spec):
    """How requests of a profile arrive: a rate curve with random gaps on top.

    Requests are expected at `rate_per_s` times `relative_rates`[k] in the k-th window of `window_s` seconds; after the last
    window the curve starts over. Measured in expected requests, gaps have the quantiles `gap_quantiles` (at the profile's
    levels; their mean is taken as 1); left out, gaps are exponential. `tick_s` means that the recorder noted arrivals only
    every so many seconds, so that all requests of one tick arrive together.
    """

    rate_per_s: Rate
    window_s: Seconds
    relative_rates: Annotated[tuple[NonNegative, ...], Field(min_length=1)]
    gap_quantiles: tuple[NonNegative, ...] | None = None
    tick_s: Seconds | None = None

    def times_s(self, expected_requests: Floats) -> Floats:
        """Clock time at which that many requests are expected to have arrived."""
        per_window = np.asarray(self.relative_rates) / np.mean(self.relative_rates) * self.rate_per_s * self.window_s
        total = np.concatenate([[0.0], np.cumsum(per_window)])
        rounds, rest = np.divmod(expected_requests, total[-1])
        edges_s = np.arange(len(total)) * self.window_s
        time_s: Floats = rounds * edges_s[-1] + np.interp(rest, total, edges_s)
        return time_s if self.tick_s is None else np.floor(time_s / self.tick_s) * self.tick_s


class WorkloadProfile(Spec):
    """What a recorded trace was like, in numbers small enough to ship.

    `quantile_levels` are the levels of all quantiles in the file. `prompt_tokens` and `output_tokens` are the quantiles of
    the two lengths, interpolated between levels. `output_share_by_prompt` ties the two together: of the requests whose prompt
    ranks in the i-th of equally large groups, the share (on any scale) whose output ranks in the j-th. Lengths of successive
    requests are taken as independent.
    """

    title: str
    source: str
    citation: str
    licence: str
    changes: str
    quantile_levels: Annotated[tuple[Fraction, ...], Field(min_length=2)]
    arrivals: ProfileArrivals
    prompt_tokens: tuple[Tokens, ...]
    output_tokens: tuple[Tokens, ...]
    output_share_by_prompt: Annotated[tuple[tuple[NonNegative, ...], ...], Field(min_length=1)]

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadProfile:
        levels = self.quantile_levels
        wrong = []
        if levels[0] != 0 or levels[-1] != 1 or any(high <= low for low, high in pairwise(levels)):
            wrong.append("quantile_levels must rise from 0 to 1")
        gaps = self.arrivals.gap_quantiles
        quantiles = {"prompt_tokens": self.prompt_tokens, "output_tokens": self.output_tokens, "arrivals.gap_quantiles": gaps}
        for name, values in quantiles.items():
            if values is not None and (len(values) != len(levels) or any(high < low for low, high in pairwise(values))):
                wrong.append(f"{name} must hold one value for each of quantile_levels and never fall")
        if not sum(self.arrivals.relative_rates) > 0 or (gaps is not None and not sum(gaps) > 0):
            wrong.append("arrivals must have a relative rate and a gap above 0")
        groups = len(self.output_share_by_prompt)
        if any(len(row) != groups or not sum(row) > 0 for row in self.output_share_by_prompt):
            wrong.append("output_share_by_prompt must be square, with a share above 0 in each row")
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def sample_lengths(self, n: int, rng: np.random.Generator) -> tuple[Integers, Integers]:
        """(prompt tokens, output tokens) of n requests, by inverse transform of three uniform numbers a request."""
        uniform = rng.random((n, 3))
        share = np.asarray(self.output_share_by_prompt, dtype=float)
        up_to = np.cumsum(share / share.sum(axis=1, keepdims=True), axis=1)[:, :-1]
        row = (uniform[:, 0] * len(share)).astype(np.int64)
        column = (uniform[:, 1, None] >= up_to[row]).sum(axis=1)
        output_rank = (column + uniform[:, 2]) / len(share)
        return (
            _whole(np.interp(uniform[:, 0], self.quantile_levels, self.prompt_tokens)),
            _whole(np.interp(output_rank, self.quantile_levels, self.output_tokens)),
        )

    def sample_arrivals(self, n: int, rng: np.random.Generator) -> Floats:
        """Arrival times in seconds of n requests, the first at 0."""
        levels, quantiles = self.quantile_levels, self.arrivals.gap_quantiles
        if quantiles is None:
            gaps = rng.exponential(size=n)
        else:
            gaps = np.interp(rng.random(n), levels, quantiles) / np.trapezoid(quantiles, levels)
        times_s = self.arrivals.times_s(np.cumsum(gaps))
        first: Floats = times_s - times_s[0]
        return first


RequestSource = RequestTrace | WorkloadProfile


def profile_ids() -> tuple[str, ...]:
    """Ids of the shipped workload profiles."""
    return tuple(name for name in resources.ids("workload") if name != _DATASETS)


def load_workload_profile(name: str, where: str = "", key: str = "workload.requests.trace") -> WorkloadProfile:
    """A profile by id or path. Raises `SpecError`; `where` and `key` say whose mistake an unknown name is."""
    path = resources.file_of("workload", name)
    if path is None or path.stem == _DATASETS:
        raise resources.unknown(where, key, "workload profile", name, profile_ids())
    return _read_workload_profile(path)


@resources.once_per_file
def _read_workload_profile(path: str | Path) -> WorkloadProfile:
    return check(WorkloadProfile, load_yaml(path))


# ------------------------------------------------------------------------------------------------------------- requests


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


# The text that all prompts of a workload begin with; others have the numbers from 1 on.
SHARED_TEXT = 0


def content_of(shared_tokens: int, text: int, prompt_tokens: int, output_tokens: int) -> Content:
    """A prompt that begins as all do and goes on, with its answer, as a text of its own.

    >>> content_of(100, 7, 300, 50), content_of(100, 7, 80, 50)
    (((0, 100), (7, 250)), ((0, 80), (7, 50)))
    """
    shared = min(shared_tokens, prompt_tokens)
    own = (text, prompt_tokens - shared + output_tokens)
    return ((SHARED_TEXT, shared), own) if shared else (own,)


def by_turns(requests: Iterable[Request]) -> tuple[Request, ...]:
    """In the order in which requests would arrive if every answer took no time."""
    nominal_s: dict[int, float] = {}
    for request in requests:
        before_s = request.arrival_s if request.follows is None else nominal_s.get(request.follows, request.arrival_s)
        nominal_s[request.request_id] = before_s + request.think_time_s
    return tuple(sorted(requests, key=lambda request: (nominal_s[request.request_id], request.request_id)))


def again(request: Request, request_id: int, repetition: int, arrival_s: float) -> Request:
    """A request for itself, with an id and a time of its own; from repetition 1 on only the text that all share is known."""
    content = request.content
    if content is not None and repetition:
        content = tuple((text and text + (repetition << 64), tokens) for text, tokens in content)
    return replace(request, request_id=request_id, arrival_s=arrival_s, content=content, follows=None, think_time_s=0.0)


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
    times_s = _arrivals(spec.arrivals, len(begins), seed, None)
    if spec.arrivals.rate_per_s is not None:
        times_s = times_s * (sessions.turns if isinstance(sessions.turns, int) else sessions.turns.mean)
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


def mean_context_tokens(requests: Sequence[Request]) -> float:
    """Mean tokens cached per decoding sequence: each token of the outputs sees its own context.

    >>> mean_context_tokens([Request(0, 0.0, 100, 10), Request(1, 0.0, 400, 30)])
    337.5
    """
    tokens = sum(request.output_tokens for request in requests)
    return sum((r.prompt_tokens + r.output_tokens / 2) * r.output_tokens for r in requests) / tokens


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


def _arrivals(spec: ArrivalSpec, n: int, seed: int, source: RequestSource | None) -> Floats:
    """Arrival times in seconds, never falling."""
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
    times_s: Floats = np.cumsum(gaps) / spec.rate_per_s
    return times_s


def _rescaled(times_s: Floats, spec: ArrivalSpec) -> Floats:
    """Times from 0 on, compressed by `rate_scale` or to the mean rate `rate_per_s`, which counts gaps: (n - 1) / span."""
    if spec.rate_scale is not None:
        return times_s / spec.rate_scale
    if spec.rate_per_s is not None and times_s[-1] > 0:
        return times_s * float((len(times_s) - 1) / times_s[-1] / spec.rate_per_s)
    return times_s


def _stream(seed: int, name: bytes) -> np.random.Generator:
    return np.random.default_rng([seed, *name])


def _whole(tokens: Floats) -> Integers:
    return np.rint(np.clip(tokens, 1, MAX_TOKENS)).astype(np.int64)


# ------------------------------------------------------------------------------------------- usual lengths of benchmarks


class UsualTokens(Spec):
    """A usual mean number of tokens and the range in which a run's mean may fairly be expected (about 80 %)."""

    usual: Tokens
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> UsualTokens:
        if not self.low <= self.usual <= self.high:
            raise ValueError(f"must be low ≤ usual ≤ high (got {self.low}, {self.usual}, {self.high})")
        return self


class DatasetLengths(Spec):
    """Mean prompt and output tokens of a benchmark's requests.

    `confidence` is that of the weaker of the two: counted by a tokenizer, derived (from characters, say), or assumed.
    """

    prompt_tokens: UsualTokens
    output_tokens: UsualTokens
    source: str
    confidence: Literal["counted", "derived", "assumed"]


def usual_lengths(dataset: str) -> DatasetLengths | None:
    """Usual lengths of a benchmark dataset; case, spaces and punctuation of the name do not matter. None where it is not known.

    >>> usual_lengths("MT-Bench") == usual_lengths("mtbench")
    True
    """
    return _dataset_table().get(_letters(dataset))


def dataset_names() -> tuple[str, ...]:
    return tuple(_dataset_table())


@cache
def _dataset_table() -> dict[str, DatasetLengths]:
    path = resources.folder("workload") / f"{_DATASETS}.yaml"
    table: dict[str, DatasetLengths] = check(dict[str, DatasetLengths], load_yaml(path))
    return {_letters(name): lengths for name, lengths in table.items()}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
