"""compare: one thing of a scenario otherwise, served on the same requests: methods, the draft's devices, quantization, hardware.

Every alternative is simulated without and with speculation. One whose acceptance nobody stated runs at both ends of what is
measured for its method. What speculation takes of the memory stands beside what it gains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from simulator.cost.deployment import Deployment
from simulator.cost.spread import Estimate, Spread
from simulator.cost.uncertainty import UncertainPricer
from simulator.cost.unmeasured import unmeasured, unmeasured_note
from simulator.draft_tree import Tree
from simulator.questions.comparison_axes import AXES, changed
from simulator.scenario import NO_DRAFTER, Scenario, scenario_of
from simulator.serving import ServingResult, Summary, summarise
from simulator.simulation import (
    Progress,
    Server,
    batching_rules,
    chosen,
    paired_doubt,
    proposal_share,
    require_served,
    speculative_servers,
    verdict_of,
)
from simulator.spec import Problem, SpecError, nearest
from simulator.workload import Request

# More requests than this move no mean by a per cent.
MOST_REQUESTS = 1000


@dataclass(frozen=True)
class MemoryTaken:
    """What speculation takes, on the fullest device: bytes of the draft's weights and of its cached tokens, places that each
    running request keeps for drafts; and what is left of it: tokens in the KV cache, and how many mean requests it holds."""

    draft_weight_bytes: float
    draft_kv_bytes_per_token: float
    lookahead_tokens: int
    kv_tokens_plain: int
    kv_tokens: int
    concurrency_plain: int
    concurrency: int


@dataclass(frozen=True)
class Alternative:
    """One row, at the one of the scenario's γ and trees that `simulation.chosen` takes. Times are seconds per output token, means
    over requests; two where acceptance is open, at its low and high end.
    gain: time without over time with speculation, both of this alternative. unmeasured: what of it no measured run had, as
    `cost.unmeasured.Unmeasured.parts`, and remark: the same in words. doubts: of this alternative
    and not of the scenario as it is. problem: why it did not run, else ""."""

    name: str
    num_speculative_tokens: int = 0
    mean_acceptance_lengths: tuple[float, ...] = ()
    plain_tpot_s: float | None = None
    tpot_s: tuple[float, ...] = ()
    plain_tokens_per_s: float | None = None
    tokens_per_s: tuple[float, ...] = ()
    r: float | None = None
    gain: Estimate | None = None
    memory: MemoryTaken | None = None
    unmeasured: tuple[str, ...] = ()
    remark: str = ""
    doubts: tuple[str, ...] = ()
    problem: str = ""

    @property
    def verdict(self) -> str:
        return "" if self.gain is None else verdict_of(self.gain)


@dataclass(frozen=True)
class ComparedScenarios:
    """The answer. axis: what differs. base_tpot_s: of the scenario itself without speculation."""

    axis: str
    scenario: Scenario
    base_tpot_s: float
    rows: tuple[Alternative, ...]
    notes: tuple[str, ...]


def compare(scenario: Scenario, axis: str, values: Sequence[str] = (), progress: Progress | None = None) -> ComparedScenarios:
    """The scenario with other values of one thing, each on the same requests. values: what to try; left out, the usual ones.

    Raises `SpecError` for an unknown axis or value, and for a scenario without speculation.
    """
    if axis not in AXES:
        raise SpecError([Problem("--by", "", f"must be one of {', '.join(AXES)}", repr(axis), nearest(axis, AXES))])
    if not scenario.deployment.speculative:
        raise SpecError([scenario.document.problem(("speculation",), "must be given: compare is about speculation")])
    changes, notes = AXES[axis](scenario, values)
    base = _served(Server.of(scenario), _requests(scenario))
    require_served(scenario, base)
    if base.tpot_s is None:
        must = "must hold answers of more than one token: compare is about the time per output token"
        raise SpecError([scenario.document.problem(("workload",), must)])
    rows = []
    for number, (name, change) in enumerate(changes.items(), start=1):
        rows.append(_alternative(name, scenario, change))
        if progress is not None:
            progress(f"by {axis}", number, len(changes))
    return ComparedScenarios(axis, scenario, base.tpot_s.mean, tuple(rows), tuple(notes))


def _alternative(name: str, scenario: Scenario, change: Mapping[str, Any]) -> Alternative:
    try:
        other = scenario_of(changed(scenario.document, change))
        if not other.deployment.speculative:
            raise SpecError([Problem("", "", "drafts nothing")])
        return replace(_row(name, other), doubts=_doubts_of(other, scenario))
    except SpecError as error:
        return Alternative(name, problem="; ".join(dict.fromkeys(problem.must for problem in error.problems)))


def _doubts_of(other: Scenario, own: Scenario) -> tuple[str, ...]:
    """That its drafter is built from the target is said of all methods at once."""
    new = (warning for warning in other.warnings if warning not in own.warnings)
    return tuple(warning for warning in new if not warning.startswith(NO_DRAFTER))


def _row(name: str, scenario: Scenario) -> Alternative:
    requests = _requests(scenario)
    unaided = Server.of(scenario).run(requests)
    plain = summarise(unaided)
    tried: dict[Tree, list[_Served]] = {}
    for _, server in speculative_servers(scenario, []):
        result = server.run(requests)
        tried.setdefault(server.shape, []).append(_Served(server, result, summarise(result)))
    if plain.tpot_s is None or any(each.summary.tpot_s is None for runs in tried.values() for each in runs):
        raise SpecError([Problem("", "", "no request of it has a time per token: none fits, or all have one token")])
    before = plain.tpot_s.mean
    shape = chosen(tried, lambda each: before / max(_times(tried[each])), lambda each: each.nodes)
    assert shape is not None
    runs = tried[shape]
    times = _times(runs)
    server, last = runs[-1].server, runs[-1].summary
    batch = max(round(plain.load.mean_decode_sequences or 1), 1)
    context, law = plain.load.mean_context_tokens or 1.0, server.law
    assert law is not None
    pricer = UncertainPricer(server.deployment.replica(), float(law.conditional_rates(shape.depth).prod()))
    proposed = proposal_share(last)
    gains = [_gain(unaided, each, pricer.spread(shape.depth, batch, context)) for each in runs]
    if any(gain is None for gain in gains):
        raise SpecError([Problem("", "", "no request has a time per token both without and with speculation")])
    found = [gain for gain in gains if gain is not None]
    lowest, highest = min(gain.value for gain in found), max(gain.value for gain in found)
    return Alternative(
        name=name,
        num_speculative_tokens=shape.depth,
        mean_acceptance_lengths=tuple(each.summary.acceptance.mean_acceptance_length or 1.0 for each in runs),
        plain_tpot_s=before,
        tpot_s=times,
        plain_tokens_per_s=plain.output_tokens_per_s,
        tokens_per_s=tuple(each.summary.output_tokens_per_s for each in runs),
        r=pricer.base.round(shape.depth, batch, context, proposed).r,
        gain=Estimate(math.sqrt(lowest * highest), min(gain.low for gain in found), max(gain.high for gain in found)),
        memory=memory_taken(scenario, shape.depth),
        unmeasured=unmeasured(server.deployment).parts,
        remark="; ".join(unmeasured_note(server.deployment)),
    )


@dataclass(frozen=True)
class _Served:
    """One way to draft, and what came of it."""

    server: Server
    result: ServingResult
    summary: Summary


def _times(runs: Sequence[_Served]) -> tuple[float, ...]:
    return tuple(each.summary.tpot_s.mean for each in runs if each.summary.tpot_s is not None)


def _gain(plain: ServingResult, drafted: _Served, spread: Spread) -> Estimate | None:
    """In time per token on the same requests, with the doubt of requests, and of R as far as it is rounds that decode."""
    found = paired_doubt(plain, drafted.result, lambda records: records.tpot_s)
    if found is None:
        return None
    load = drafted.summary.load
    spread = spread.scaled(min(load.drafting_share / max(1 - load.prefill_share, 1e-9), 1.0))
    return replace(found, below=math.log(spread.high), above=-math.log(spread.low)).estimate


def memory_taken(scenario: Scenario, gamma: int) -> MemoryTaken:
    """What drafting γ tokens takes of the devices' memory, and how many of the scenario's mean requests fit before and after."""
    deployment, utilization = scenario.deployment, scenario.limits.gpu_memory_utilization
    plain = deployment.plain()
    requests = _requests(scenario)
    mean = sum(request.prompt_tokens + request.output_tokens for request in requests) / len(requests)
    lookahead = batching_rules(scenario, deployment, gamma).lookahead_slots(gamma)
    tokens, left = plain.kv_tokens(utilization), deployment.kv_tokens(utilization)
    return MemoryTaken(
        draft_weight_bytes=deployment.weight_bytes() - plain.weight_bytes(),
        draft_kv_bytes_per_token=deployment.kv_bytes_per_token() - plain.kv_bytes_per_token(),
        lookahead_tokens=lookahead,
        kv_tokens_plain=tokens,
        kv_tokens=left,
        concurrency_plain=_fitting(plain, tokens, plain.held_tokens(mean, 0)),
        concurrency=_fitting(deployment, left, deployment.held_tokens(mean + lookahead, gamma)),
    )


def _fitting(deployment: Deployment, tokens: int, each: float) -> int:
    """Requests of `each` tokens, in whole blocks, that so many places hold."""
    block = deployment.engine.block_tokens
    return int(tokens // (math.ceil(each / block) * block))


def _served(server: Server, requests: tuple[Request, ...]) -> Summary:
    return summarise(server.run(requests))


def _requests(scenario: Scenario) -> tuple[Request, ...]:
    return scenario.requests()[:MOST_REQUESTS]
