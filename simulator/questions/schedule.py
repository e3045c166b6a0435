"""schedule: the γ to run at by batch and context, and whether varying it with the batch is worth a setting.

Point by point the best γ yields most tokens a second, τ(γ) over the seconds of a round; 0 is a plain step beside the resting
drafter. Ties within 3 % go to the smaller γ, and going down in batch a γ is kept for as long as it stays within 3 % of the
best, so that a table has few rows. What the table is worth is simulated: on the scenario's own arrivals, on seeds that chose
neither it nor the fixed γ it is held against.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, groupby

import numpy as np

from simulator.acceptance import AcceptanceLaw
from simulator.cost.spread import Estimate
from simulator.draft_policy import ByBatch, tokens_in
from simulator.draft_tree import Tree
from simulator.questions.break_even import BATCHES, contexts_around, own_context
from simulator.scenario import Scenario
from simulator.serving import ServingResult, paired_ratio, summarise
from simulator.serving.metrics import Value
from simulator.serving_engine import captured_rows
from simulator.simulation import LEAST_EFFECT, TIE, Progress, Server, chosen, require_served, verdict_of
from simulator.spec import SpecError
from simulator.speculation import drafts_at_once
from simulator.theory import student_t_quantile
from simulator.validity import standing_notes

LARGEST = 8
# Batches of a table are tried one by one up to so many, above that in equal steps.
EVERY_BATCH = 512
HELD_OUT = 5
PER_TOKEN = "mean time per output token"
Range = tuple[int, int, int]


@dataclass(frozen=True)
class ScheduleCell:
    """One batch and context: the smoothed γ, the γ of most tokens a second, and the gain of the smoothed one over no speculation.

    captured: its round runs as a captured graph (None for an engine without graphs). fits: the KV cache holds such a batch.
    """

    batch: int
    context_tokens: int
    num_speculative_tokens: int
    fastest: int
    speedup: float
    captured: bool | None
    fits: bool


@dataclass(frozen=True)
class ScheduleAnswer:
    """The map, the table at the workload's own context, and the simulated gain over the fastest fixed γ (0 = no speculation).

    best_fixed: the one to take, as `simulation.chosen` has it. gain: of `metric`, above 1 is better, mean over held-out seeds
    with its 80 % interval; None where the table holds one γ.
    fixed_gains: of each fixed γ over none on the scenario's own seed.
    """

    scenario: Scenario
    own_context: int
    cells: tuple[ScheduleCell, ...]
    table: tuple[Range, ...]
    best_fixed: int
    fastest_fixed: int
    fixed_gains: tuple[tuple[int, float], ...]
    metric: str
    gain: Estimate | None
    held_out_seeds: tuple[int, ...]
    warnings: tuple[str, ...]

    @property
    def needed(self) -> bool:
        """Whether the table certainly gains more than half a per cent over the fastest fixed γ."""
        return self.gain is not None and self.gain.low > 1 + LEAST_EFFECT

    @property
    def worse(self) -> bool:
        """Whether the table certainly loses as much."""
        return self.gain is not None and verdict_of(self.gain) == "lose"

    @property
    def contexts(self) -> tuple[int, ...]:
        return tuple(sorted({cell.context_tokens for cell in self.cells}))

    @property
    def batches(self) -> tuple[int, ...]:
        return tuple(sorted({cell.batch for cell in self.cells}))


def schedule(
    scenario: Scenario, contexts: tuple[int, ...] | None = None, *, held_out: int = HELD_OUT, progress: Progress | None = None
) -> ScheduleAnswer:
    """The schedule of a scenario whose acceptance is given and which drafts chains. Raises `SpecError` for others."""
    _check(scenario)
    warnings = list(standing_notes(scenario))
    prices = _Prices(scenario, warnings)
    own = own_context(scenario)
    shown = contexts or contexts_around(own, scenario.limits.max_model_len)
    batches = tuple(batch for batch in BATCHES if batch <= scenario.limits.max_num_seqs)
    tables = {context: _table(prices, scenario.limits.max_num_seqs, context) for context in {*shown, own}}
    table = tables[own]
    cells = tuple(cell for context in shown for cell in _cells(prices, batches, context, tables[context]))
    worth = _Worth(scenario, prices, progress)
    fixed = worth.fixed()
    fastest = max(fixed, key=lambda gamma: (fixed[gamma], -gamma))
    best = chosen([gamma for gamma in fixed if gamma], lambda gamma: fixed[gamma], lambda gamma: gamma) if fastest else 0
    seeds = tuple((scenario.file.seed + 1 + index) % 2**32 for index in range(held_out))
    varies = len({gamma for _, _, gamma in table}) > 1
    gain = worth.gain(table, fastest, seeds) if varies else None
    return ScheduleAnswer(
        scenario, own, cells, table, best or 0, fastest, tuple(sorted(fixed.items())), worth.metric, gain, seeds,
        tuple(dict.fromkeys(warnings)),
    )  # fmt: skip


def _check(scenario: Scenario) -> None:
    document = scenario.document
    if not scenario.gammas:
        must = "must draft chains: a schedule is of γ" if scenario.shapes else "must be given: a schedule is of a method's γ"
        raise SpecError([document.problem(("speculation",), must)])
    if scenario.file.acceptance is None:
        raise SpecError([document.problem(("acceptance",), "must be given: the best γ depends on it")])


class _Prices:
    """Tokens per second of every γ, by batch and context."""

    def __init__(self, scenario: Scenario, warnings: list[str]):
        self.scenario = scenario
        self.servers = dict(self._servers(warnings))
        self.gammas = (0, *self.servers)
        self._plain = Server.of(scenario)

    def _servers(self, warnings: list[str]) -> Iterator[tuple[int, Server]]:
        """A server for each γ that acceptance reaches and the drafter can give."""
        scenario, stated = self.scenario, max(self.scenario.gammas)
        drafter = scenario.deployment.drafter
        limit = None if drafter is None else drafts_at_once(drafter)[0]
        for gamma in range(1, min(max(stated, LARGEST), limit or 64) + 1):
            law = self._law(gamma)
            if law is None or (gamma > stated and law.extrapolated(gamma)):
                return
            if law.extrapolated(gamma):
                warnings.append(law.extrapolated(gamma))
            shape = Tree.chain(gamma)
            yield gamma, Server(scenario, scenario.deployed(shape), shape, law)

    def _law(self, gamma: int) -> AcceptanceLaw | None:
        try:
            resolved = self.scenario.acceptance(gamma)
        except SpecError:
            return None
        return None if resolved is None else resolved.law

    def tokens_per_s(self, gamma: int, batch: int, context: int) -> float:
        """Of one sequence among `batch`."""
        if gamma == 0:
            return 1 / self._resting.round_s(0, batch, context)
        server = self.servers[gamma]
        assert server.law is not None
        law = server.law.at_context(context)
        cost = server.pricer.round(gamma, batch, context, law.proposal_share(gamma))
        return law.mean_acceptance_length(gamma) / cost.round_s

    @property
    def _resting(self) -> Server:
        """A server whose drafter is there and drafts nothing."""
        return self.servers[min(self.servers)]

    def plain_tokens_per_s(self, batch: int, context: int) -> float:
        """The same without a drafter."""
        return 1 / self._plain.pricer.plain(batch, context).seconds

    def all(self, batch: int, context: int) -> dict[int, float]:
        return {gamma: self.tokens_per_s(gamma, batch, context) for gamma in self.gammas}


def _smallest(values: dict[int, float]) -> int:
    """Of the γ within 3 % of the best the smallest."""
    top = max(values.values())
    return min(gamma for gamma, value in values.items() if value >= (1 - TIE) * top)


def _table(prices: _Prices, largest_batch: int, context: int) -> tuple[Range, ...]:
    """Ranges of batches from 1 to the largest, each with its γ."""
    step = math.ceil(largest_batch / EVERY_BATCH)
    kept: int | None = None
    chosen: list[tuple[int, int]] = []
    for batch in range(largest_batch, 0, -step):
        values = prices.all(batch, context)
        if kept is None or values[kept] < (1 - TIE) * max(values.values()):
            kept = _smallest(values)
        chosen.append((batch, kept))
    ranges: list[Range] = []
    for gamma, group in groupby(reversed(chosen), key=lambda pair: pair[1]):
        last = [batch for batch, _ in group][-1]
        ranges.append((ranges[-1][1] + 1 if ranges else 1, last, gamma))
    return tuple(ranges)


def _cells(prices: _Prices, batches: tuple[int, ...], context: int, table: tuple[Range, ...]) -> Iterator[ScheduleCell]:
    """The table of one context at some batches."""
    scenario, engine = prices.scenario, prices.scenario.deployment.engine
    capacity = scenario.deployment.kv_tokens(scenario.limits.gpu_memory_utilization)
    for batch in batches:
        values, gamma = prices.all(batch, context), tokens_in(table, batch)
        rows = captured_rows(engine, batch * (1 + gamma), batch)
        yield ScheduleCell(
            batch=batch,
            context_tokens=context,
            num_speculative_tokens=gamma,
            fastest=max(values, key=lambda each: values[each]),
            speedup=values[gamma] / prices.plain_tokens_per_s(batch, context),
            captured=None if engine.graphs is None else rows is not None,
            fits=batch * scenario.deployment.held_tokens(context, gamma) <= capacity,
        )


class _Worth:
    """What fixed γ and tables are worth on the scenario's own arrivals."""

    def __init__(self, scenario: Scenario, prices: _Prices, progress: Progress | None):
        self.scenario, self.prices, self.progress = scenario, prices, progress
        self.metric, self.value = _metric(scenario)
        self._done = count(1)
        self._total = 1 + len(prices.servers) + 2 * HELD_OUT

    def fixed(self) -> dict[int, float]:
        """The gain of each fixed γ over none, on the scenario's own seed."""
        seed = self.scenario.file.seed
        plain = self._run(Server.of(self.scenario), seed)
        require_served(self.scenario, summarise(plain))
        if self.metric == PER_TOKEN and np.isnan(self.value(plain.records)).all():  # answers of one token have none
            self.metric, self.value = "mean end-to-end latency", lambda records: records.e2e_latency_s
        gains = {0: 1.0}
        for gamma, server in self.prices.servers.items():
            gains[gamma] = self._gain(self._run(server, seed), plain)
        return gains

    def gain(self, table: tuple[Range, ...], fixed: int, seeds: tuple[int, ...]) -> Estimate:
        """Of a table over a fixed γ: the mean over seeds, with Student's t."""
        largest = max(gamma for _, _, gamma in table)
        by_table = replace(self.prices.servers[largest], policy=ByBatch(table=table)) if largest else Server.of(self.scenario)
        alone = self.prices.servers[fixed] if fixed else Server.of(self.scenario)
        logs = [math.log(self._gain(self._run(by_table, seed), self._run(alone, seed))) for seed in seeds]
        mean, error = float(np.mean(logs)), float(np.std(logs, ddof=1)) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
        half = student_t_quantile(0.9, max(len(logs) - 1, 1)) * error
        return Estimate(math.exp(mean), math.exp(mean - half), math.exp(mean + half))

    def _run(self, server: Server, seed: int) -> ServingResult:
        scenario = replace(self.scenario, file=self.scenario.file.model_copy(update={"seed": seed}))
        result = replace(server, scenario=scenario).run(scenario.requests())
        if self.progress is not None:
            self.progress("held against fixed γ", next(self._done), self._total)
        return result

    def _gain(self, better: ServingResult, base: ServingResult) -> float:
        """Above 1 where the first run is the better one."""
        try:
            return paired_ratio(base.records, better.records, self.value).ratio
        except ValueError:
            must = "must let some requests finish at every γ and seed tried, or there is nothing to compare"
            raise SpecError([self.scenario.document.problem(("workload",), must)]) from None


def _metric(scenario: Scenario) -> tuple[str, Value]:
    """What is compared, and by which time of a request."""
    arrivals = scenario.file.workload.arrivals
    if arrivals.users is None:
        return PER_TOKEN, lambda records: records.tpot_s
    think_s = arrivals.think_time_s or 0.0
    return "output rate per user", lambda records: records.e2e_latency_s + think_s
