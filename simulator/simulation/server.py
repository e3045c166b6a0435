"""Server: one way to serve a scenario's requests, ready to run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from simulator.acceptance import AcceptanceLaw, band_for
from simulator.cost.deployment import Deployment
from simulator.cost.parallelism import share
from simulator.cost.pricer import StepPricer
from simulator.cost.step_scale import AS_PRICED, StepScale
from simulator.draft_policy import FIXED, AcceptanceWindow, BatchTable, ByContext, GoodputOptimal, PolicySpec, tokens_in
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.serving import AcceptanceByPosition, BatchingRules, Engine, Prefill, ServingResult, serve_on_replicas
from simulator.serving.policies import DraftPolicy, live_policy, table_of
from simulator.simulation.batching import batching_rules, prefill_rules
from simulator.simulation.choice import TIE
from simulator.simulation.paths import Paths
from simulator.spec import SpecError
from simulator.workload import Request, mean_context_tokens


class _NoDrafts:
    """The acceptance path of a run without speculation."""

    def accepted(self, position: int, drafted: int, /) -> int:  # noqa: ARG002
        return 0

    def proposed(self, position: int, num_speculative_tokens: int, /) -> int:  # noqa: ARG002
        return 0


_NO_DRAFTS = _NoDrafts()


@dataclass(frozen=True)
class Server:
    """Serves the scenario's requests under one deployment, shape of draft and acceptance law (None = no speculation).

    method: the name that the scenario's methods are told apart by.
    """

    scenario: Scenario
    deployment: Deployment
    shape: Tree
    law: AcceptanceLaw | None
    readable: bool = False
    policy: PolicySpec = FIXED
    method: str = ""
    _paths: dict[AcceptanceLaw, Paths] = field(default_factory=dict, repr=False, compare=False)
    _round_s: dict[tuple[int, int, int], float] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, scenario: Scenario, shape: Tree | None = None) -> Server:
        """The server at one chain or tree of a scenario whose acceptance is given; None is no speculation."""
        resolved = scenario.acceptance(shape.steps, shape) if shape is not None else None
        if shape is None or resolved is None:
            return cls(scenario, scenario.deployment.plain(), Tree.chain(0), None)
        return cls(scenario, scenario.deployed(shape), shape, resolved.law)

    @property
    def drafting(self) -> tuple[str, Tree, PolicySpec]:
        """The method, the shape and the policy that drafts it: what the two ends of an acceptance band have in common."""
        return self.method, self.shape, self.policy

    @cached_property
    def rules(self) -> BatchingRules:
        return batching_rules(self.scenario, self.deployment, self.shape.nodes - 1)

    @cached_property
    def pricer(self) -> StepPricer:
        full = float(self.law.conditional_rates(self.shape.depth).prod()) if self.law is not None else 0.0
        # While a policy that looks is off, text is searched all the same: it may be on again any moment.
        # It asks a copy, so that no reference cycle keeps the server and the paths of its requests.
        return replace(self.deployment.replica().pricer(full), drafts_at=None if self.policy.looks else replace(self).drafts)

    @cached_property
    def paths(self) -> Paths | None:
        """The acceptance of each request; None without speculation. Servers of one scenario under one law have it in common."""
        if self.law is None:
            return None
        return self._paths.setdefault(self.law, Paths(self.law, self.scenario.file.seed))

    def path(self, request: Request) -> AcceptanceByPosition:
        return _NO_DRAFTS if self.paths is None else self.paths.of(request)

    def live_policy(self) -> DraftPolicy:
        """The policy at work, fresh: nothing seen yet."""
        if self.law is None:
            return DraftPolicy(lambda _: 0)
        return live_policy(self.policy, self.shape.nodes - 1, self._of_rank, self.round_s)

    def _of_rank(self, running: int) -> int:
        return share(running, self.deployment.replica().parallelism.data_parallel_size)

    def round_s(self, drafts: int, running: int, context_tokens: float) -> float:
        """Seconds of a round of `running` sequences at equal context, or of a step without drafts beside a resting drafter."""
        key = (drafts, running, round(context_tokens))
        found = self._round_s.get(key)
        if found is None:
            found = self._round_s[key] = self.pricer.price([(key[2], drafts)] * running, (), 0).seconds
        return found

    def drafts(self, running: int, context_tokens: float | None = None) -> int:
        """γ while so many sequences run: of a policy that looks, what it comes to at the law's acceptance and at a context, the
        workload's mean where left out."""
        law = self.law
        if law is None:
            return 0
        context = self.mean_context_tokens if context_tokens is None and self.policy.looks else context_tokens or 0.0
        if isinstance(self.policy, ByContext):
            return tokens_in(self.policy.table, round(context))
        if isinstance(self.policy, GoodputOptimal):
            rates = self.tokens_per_s(running, context)
            return rates.index(max(rates))
        if isinstance(self.policy, AcceptanceWindow) and self.mean_acceptance_length(self.shape.steps) < self.policy.least:
            return 0
        return table_of(self.policy, self.shape.nodes - 1, self._of_rank)(running)

    def batch_table(self) -> BatchTable:
        """γ by running sequences of one rank, 1 to all that may run, at the workload's mean context: from the largest batch down
        the smallest γ within a tie of most tokens a second, kept as long as it is one."""
        ranks, kept = self.deployment.replica().parallelism.data_parallel_size, -1
        found: list[tuple[int, int, int]] = []
        for running in range(self.scenario.limits.max_num_seqs, 0, -1):
            rates = self.tokens_per_s(running * ranks, self.mean_context_tokens)
            least = (1 - TIE) * max(rates)
            if kept < 0 or rates[kept] < least:
                kept = next(gamma for gamma, rate in enumerate(rates) if rate >= least)
                found.append((running, running, kept))
            found[-1] = (running, found[-1][1], kept)
        return tuple(reversed(found))

    def tokens_per_s(self, running: int, context_tokens: float) -> list[float]:
        """Of each sequence, at every γ from none to the largest."""
        rounded = float(f"{context_tokens:.1e}")
        gammas = range(self.shape.steps + 1)
        return [self.mean_acceptance_length(gamma) / self.round_s(gamma, running, rounded) for gamma in gammas]

    @cached_property
    def mean_context_tokens(self) -> float:
        """Of the scenario's own requests while they decode."""
        return mean_context_tokens(self.scenario.requests())

    def mean_acceptance_length(self, drafts: int) -> float:
        """τ of a round of so many drafts a sequence, by the law; 1 of a plain step."""
        if self.law is None or drafts == 0:
            return 1.0
        return self.law.mean_acceptance_length(drafts if self.shape.is_chain else self.shape.depth)

    def run(
        self, requests: tuple[Request, ...], begun: Callable[[], None] | None = None, scale: StepScale = AS_PRICED
    ) -> ServingResult:
        """Every request to its end, as the scenario's arrivals say. `begun` is called as each request arrives."""

        def path(request: Request) -> AcceptanceByPosition:
            if begun is not None:
                begun()
            return self.path(request)

        workload = self.scenario.file.workload
        arrivals = workload.arrivals
        return self.serve(
            requests, path, scale, users=arrivals.users if arrivals.process == "closed_loop" else None,
            think_time_s=arrivals.think_time_s or 0.0, time_out_s=workload.time_out_s,
        )  # fmt: skip

    def serve(
        self,
        requests: tuple[Request, ...],
        path: Callable[[Request], AcceptanceByPosition],
        scale: StepScale = AS_PRICED,
        *,
        users: int | None = None,
        think_time_s: float = 0.0,
        time_out_s: float | None = None,
        by_load: bool = False,
    ) -> ServingResult:
        """Every request to its end on all replicas, however they arrive. by_load: whatever the routers of the scenario, each goes
        where the fewest are."""
        engines = [kind.engine(scale) for kind, count in self.kinds for _ in range(count)]
        expect = {} if self.paths is None else {"expect": self.paths.expect}
        router, prefill = self.scenario.file.parallel.router or "round_robin", self.prefill
        if by_load:
            router, prefill = "least_outstanding", None if prefill is None else prefill._replace(router="least_outstanding")
        return serve_on_replicas(
            requests, engines, path, router=router, prefill=prefill, users=users, think_time_s=think_time_s,
            time_out_s=time_out_s, readable=self.readable, **expect,
        )  # fmt: skip

    def refusal(self, request: Request) -> str:
        """Why no replica can ever serve a request; "" where one can."""
        prompt, output = request.prompt_tokens, request.output_tokens
        computed = "" if self.prefill is None else self.prefill.engines[0].rules.refusal(prompt, 1)
        return self.rules.refusal(prompt, output) or computed

    @cached_property
    def prefill(self) -> Prefill | None:
        """Instances that compute prompts for the replicas, where there are any."""
        instances = self.scenario.prefill
        if instances is None:
            return None
        rules = prefill_rules(self.scenario, instances, instances.deployment(self.deployment))
        engine = Engine(rules, self.prefill_pricer, lambda _: 0)
        return Prefill([engine] * instances.instances, instances.transfer(self.deployment), instances.router)

    @cached_property
    def prefill_pricer(self) -> StepPricer:
        """Prices of the instances that compute prompts; of the replicas where these do."""
        instances = self.scenario.prefill
        return self.pricer if instances is None else instances.deployment(self.deployment).pricer()

    def engine(self, scale: StepScale = AS_PRICED) -> Engine:
        """One replica, with a policy of its own."""
        pricer = self.pricer if scale == AS_PRICED else replace(self.pricer, scale=scale)
        return Engine(self.rules, pricer, self.live_policy())

    @property
    def kinds(self) -> tuple[tuple[Server, int], ...]:
        """(server of one kind of devices, its replicas)."""
        return ((self, self.deployment.independent_replicas), *self._further_kinds)

    @cached_property
    def _further_kinds(self) -> list[tuple[Server, int]]:
        one = self.deployment.replica()
        return [(replace(self, deployment=replace(one, hardware=other)), n) for other, n in self.scenario.further_hardware]


def speculative_servers(scenario: Scenario, warnings: list[str], readable: bool = False) -> list[tuple[str, Server]]:
    """(label, server) of every way of drafting that the scenario compares, its alternatives' too; where acceptance is open, one
    for each end of a sourced band, which `warnings` then say. The label names the method where there are several."""
    paths: dict[AcceptanceLaw, Paths] = {}
    return [
        (f"{method}, {label}" if scenario.alternatives else label, replace(server, _paths=paths))
        for method, one in scenario.methods
        for label, server in _servers(one, method, warnings, readable)
    ]


def _servers(scenario: Scenario, method: str, warnings: list[str], readable: bool) -> Iterator[tuple[str, Server]]:
    """The same of one method."""
    for shape, policy in scenario.variants:
        for label, law in _laws(scenario, shape, policy, warnings):
            yield label, Server(scenario, scenario.deployed(shape), shape, law, readable, policy, method)


def name_of_way(shape: Tree, policy: PolicySpec) -> str:
    """A shape and the policy that drafts it, as they stand in a sentence."""
    return policy.label(shape.steps) if shape.is_chain else shape.name


def _laws(scenario: Scenario, shape: Tree, policy: PolicySpec, warnings: list[str]) -> list[tuple[str, AcceptanceLaw]]:
    """(label, acceptance law) of each run of this shape under this policy."""
    speculation = scenario.file.speculation
    assert speculation is not None
    name = name_of_way(shape, policy)
    resolved = scenario.acceptance(shape.steps, shape)
    if resolved is not None:
        return [(name, resolved.law)]
    band = band_for(speculation.method, shape.steps, None if shape.is_chain else shape)
    if band is None:
        what = f"method {speculation.method}" if shape.is_chain else f"{shape.name} with method {speculation.method}"
        must = f"must be given: no measured acceptance of {what} is shipped"
        raise SpecError([scenario.document.problem(("acceptance",), must)])
    warnings.append(
        f"acceptance is left open: {name} runs at the lowest and highest τ measured for {speculation.method}, "
        f"{band.low:.2f} ({band.low_source}) and {band.high:.2f} ({band.high_source})"
    )
    ends = (("low", band.low, band.low_law), ("high", band.high, band.high_law))
    return [(f"{name}, τ = {tau:.2f} ({end} end)", law) for end, tau, law in ends]
