"""Prices of a schedule: the γ of most tokens a second at each batch and context, and the table of few rows made of them.

Point by point the best γ yields most tokens a second, τ(γ) over the seconds of a round; 0 is a plain step beside the resting
drafter. Ties within 3 % go to the smaller γ, and going down in batch a γ is kept for as long as it stays within 3 % of the best,
so that a table has few rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby

from simulator.acceptance import AcceptanceLaw
from simulator.draft_policy import tokens_in
from simulator.draft_tree import Tree
from simulator.scenario import Scenario
from simulator.serving_engine import captured_rows
from simulator.simulation import TIE, Server
from simulator.spec import SpecError
from simulator.speculation import drafts_at_once

LARGEST = 8
# Batches of a table are tried one by one up to so many, above that in equal steps.
EVERY_BATCH = 512
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


class SchedulePrices:
    """Tokens per second of every γ of one method, by batch and context. `warnings` takes what was doubtful on the way."""

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


def table_at(prices: SchedulePrices, largest_batch: int, context: int) -> tuple[Range, ...]:
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


def cells_at(prices: SchedulePrices, batches: tuple[int, ...], context: int, table: tuple[Range, ...]) -> Iterator[ScheduleCell]:
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
