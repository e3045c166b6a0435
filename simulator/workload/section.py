"""WorkloadSpec: the `workload:` section of a scenario.

A workload is `arrivals` (a process) with either `requests` (a recorded trace or a profile derived from one) or `lengths`
(constants or distributions). Requests may share beginnings: a system prompt, the turns of a session, or what a trace says.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.spec import Spec
from simulator.workload.lengths import Length, LengthsSpec
from simulator.workload.quantities import Count, Rate, Seconds, Tokens

_PROCESSES: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {  # process: (keys it needs, keys it may have)
    "poisson": (("rate_per_s",), ()),
    "gamma": (("rate_per_s", "burstiness"), ()),
    "constant": (("rate_per_s",), ()),
    "ramp": (("rate_per_s", "end_rate_per_s", "ramp_s"), ()),
    "diurnal": (("rate_per_s", "peak_rate_per_s"), ("period_s",)),
    "closed_loop": (("users",), ("think_time_s",)),
    "trace": ((), ("rate_per_s", "rate_scale")),
}


class ArrivalSpec(Spec):
    """When requests arrive.

    poisson, constant: at `rate_per_s`. gamma: gaps with mean 1/`rate_per_s` and squared coefficient of variation `burstiness`
    (1 is Poisson). ramp: Poisson, its rate going evenly from `rate_per_s` to `end_rate_per_s` in `ramp_s` seconds, to stay there.
    diurnal: Poisson, its rate swinging about `rate_per_s` as a cosine, from its lowest at the start to `peak_rate_per_s` half a
    `period_s` (default a day) later. trace: as recorded, or as the profile says; `rate_scale` 2 makes everything happen in half
    the time, `rate_per_s` rescales so that the requests used have that mean rate. closed_loop: `users` send a request each at the
    start and the next one exactly `think_time_s` (default 0) after the last token of the one before.
    """

    process: Literal["poisson", "gamma", "constant", "ramp", "diurnal", "closed_loop", "trace"]
    rate_per_s: Rate | None = None
    burstiness: Annotated[float, Field(ge=1e-4, le=1e4)] | None = None
    end_rate_per_s: Rate | None = None
    ramp_s: Seconds | None = None
    peak_rate_per_s: Rate | None = None
    period_s: Seconds | None = None
    users: Count | None = None
    think_time_s: Annotated[float, Field(ge=0, le=1e6)] | None = None
    rate_scale: Rate | None = None

    @property
    def changes(self) -> bool:
        """Whether the rate changes with time as a course that is stated."""
        return self.process in ("ramp", "diurnal")

    @model_validator(mode="after")
    def _keys_go_with_process(self) -> ArrivalSpec:
        needed, possible = _PROCESSES[self.process]
        wrong = [f"process {self.process} needs {key}" for key in needed if getattr(self, key) is None]
        for key in self.model_fields_set - {"process", *needed, *possible}:
            takers = " or ".join(name for name, keys in _PROCESSES.items() if key in keys[0] + keys[1])
            wrong.append(f"{key} goes with process {takers}, not with process {self.process}")
        if self.process == "diurnal" and self.rate_per_s is not None and self.peak_rate_per_s is not None:
            mean, peak = self.rate_per_s, self.peak_rate_per_s
            if not mean < peak <= 2 * mean:
                wrong.append(f"peak_rate_per_s must be above rate_per_s, the mean, and at most twice as much (got {peak:g})")
        if self.process == "ramp" and self.rate_per_s is not None and self.rate_per_s == self.end_rate_per_s:
            wrong.append("end_rate_per_s must differ from rate_per_s: a steady rate is process poisson")
        if self.process == "trace" and self.rate_per_s is not None and self.rate_scale is not None:
            wrong.append("rate_per_s and rate_scale exclude each other: give one")
        if wrong:
            raise ValueError("; ".join(sorted(wrong)))
        return self


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
