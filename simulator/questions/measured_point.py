"""One imported run as a point that an engine's constants can be fitted to: measured time per token, and what the model says.

The model's answer is a simulation of the run's own traffic under some engine. Between simulations it is scaled by the price of a
plain step or a round at the simulated mean batch and context, which is smooth in the constants and costs microseconds.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

from simulator.interchange.observed import ObservedRun
from simulator.questions.server_check import own_traffic
from simulator.scenario import Scenario
from simulator.serving import summarise
from simulator.serving_engine import ServingEngine
from simulator.simulation import Server
from simulator.spec import Problem, SpecError
from simulator.workload import Request

# Requests to simulate, in all and for each user: more of them move no mean by a per cent.
FEW_REQUESTS, TURNS = 100, 5


@dataclass(frozen=True)
class Anchor:
    """One simulation of a point: its time per token, and at which mean batch and context; seconds, tokens."""

    time_per_token_s: float
    batch: int
    context: float
    prefill_share: float
    step_s: float


@dataclass(frozen=True)
class MeasuredPoint:
    """A run and the scenario of its own traffic. field: of the run's file, from which the time per token was taken."""

    run: ObservedRun
    scenario: Scenario
    time_per_token_s: float
    field: str

    @property
    def speculative(self) -> bool:
        return self.run.speculative

    @property
    def gamma(self) -> int:
        """The most drafts that a round accepts; 0 of a plain run."""
        return self.scenario.shapes[0].depth if self.speculative else 0

    def anchored(self, engine: ServingEngine) -> Anchor:
        """Simulates the run under an engine."""
        deployment = replace(self.scenario.deployment, engine=engine)
        result = replace(self._server, deployment=deployment).run(self._requests)
        summary = summarise(result)
        load = summary.load
        if self.field == _THROUGHPUT:
            seconds = (self.scenario.file.workload.arrivals.users or 1) / summary.output_tokens_per_s
        else:
            assert summary.tpot_s is not None
            seconds = summary.tpot_s.mean
        batch, context = max(round(load.mean_decode_sequences or 1), 1), load.mean_context_tokens or 1.0
        return Anchor(seconds, batch, context, load.prefill_share, self._step_s(engine, batch, context))

    def predicted_s(self, engine: ServingEngine, anchor: Anchor) -> float:
        """Time per token under another engine: the decoding part of the anchor moves with the price of a step or a round."""
        change = self._step_s(engine, anchor.batch, anchor.context) / anchor.step_s
        return anchor.time_per_token_s * (anchor.prefill_share + (1 - anchor.prefill_share) * change)

    def _step_s(self, engine: ServingEngine, batch: int, context: float) -> float:
        pricer = self._server.pricer.with_engine(engine)
        if not self.speculative:
            return pricer.plain(batch, context).seconds
        law, shape = self._server.law, self._server.shape
        proposals = 1.0 if law is None else law.proposal_share(shape.depth)
        return pricer.round(shape.depth, batch, context, proposals).round_s

    @cached_property
    def _server(self) -> Server:
        return Server.of(self.scenario, self.scenario.shapes[0] if self.speculative else None)

    @cached_property
    def _requests(self) -> tuple[Request, ...]:
        users = self.scenario.file.workload.arrivals.users or FEW_REQUESTS
        enough = max(FEW_REQUESTS, TURNS * users)
        return self.scenario.requests()[:enough]


_THROUGHPUT = "output_tokens_per_s"


def measured_point(run: ObservedRun, scenario: Scenario) -> MeasuredPoint:
    """The run as a point of this scenario's server. Raises `SpecError` where it holds no time per token or no traffic."""
    own = own_traffic(scenario, run if run.speculative else None, None if run.speculative else run)
    tpot = run.value("tpot_mean_s")
    if tpot:
        return MeasuredPoint(run, own, float(tpot), "tpot_mean_s")
    rate, users = run.value(_THROUGHPUT), own.file.workload.arrivals.users
    if rate and users is not None:
        return MeasuredPoint(run, own, users / float(rate), _THROUGHPUT)
    must = "must hold the mean time per output token (TPOT), or the throughput of a fixed number of users"
    raise SpecError([Problem(run.where, "", must)])
