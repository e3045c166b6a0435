"""Is the model right about this server, and is the benchmark a fair one? Imported runs against a simulation of their own traffic.

The scenario says what was served on what; its workload and acceptance are replaced by those of the runs. Nothing is fitted.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from simulator.architecture import find_model
from simulator.cost.spread import Z80, Estimate, Spread
from simulator.cost.uncertainty import STEP_NOISE_STD, UncertainPricer
from simulator.interchange.engine_settings import NotExpressibleError, Setting, Snippet, forced_acceptance
from simulator.interchange.imported import acceptance_section, holds_traffic, workload_section
from simulator.interchange.observed import ObservedRun
from simulator.scenario import ALTERNATIVES, Scenario, scenario_of
from simulator.simulation import Comparison, Progress, SimulationResult, simulate
from simulator.spec import Document, Problem, SpecError
from simulator.validity import unlikely_acceptance

FEWEST_REQUESTS = 20
# Names of benchmark data sets that hold no text.
MEANINGLESS = ("random", "generated-shared-prefix")
TIME_PER_TOKEN = "time per output token"
DRAFT_SHARE = "drafting, share of a round"
GAIN = "gain in time per token"


@dataclass(frozen=True)
class Compared:
    """One quantity, measured and predicted; in seconds, tokens per second, or a ratio. `part` of the pair: which run."""

    quantity: str
    part: str
    measured: float
    predicted: Estimate

    @property
    def error(self) -> float:
        """predicted / measured - 1."""
        return self.predicted.value / self.measured - 1

    @property
    def inside(self) -> bool:
        return self.predicted.low <= self.measured <= self.predicted.high


@dataclass(frozen=True)
class ServerCheck:
    """rows: quantities that both sides have. doubts: what is wrong or unsure about the benchmark itself. recipe: how to force
    acceptance on the engine, so that timing alone is compared; None where it cannot."""

    scenario: Scenario
    result: SimulationResult
    rows: tuple[Compared, ...]
    doubts: tuple[str, ...]
    recipe: Snippet | None

    @property
    def measured_gain(self) -> float | None:
        """Time per output token without over with speculation, as measured; None without such a pair."""
        return next((row.measured for row in self.rows if row.quantity == GAIN), None)

    @property
    def verdict(self) -> str:
        """In one sentence, about the ratio where both runs are there, else about the time per token: time to first token and
        throughput hold the client and the network too."""
        ratios = [row for row in self.rows if row.part == "ratio"]
        judged = ratios or [row for row in self.rows if row.quantity == TIME_PER_TOKEN] or list(self.rows)
        outside = [row for row in judged if not row.inside]
        if not outside:
            return "the model agrees with this server: " + "; ".join(f"{row.quantity} {100 * row.error:+.0f} %" for row in judged)
        worst = max(outside, key=lambda row: abs(math.log1p(row.error)))
        advice = "look at the doubts about the benchmark first" if self.doubts else "fit-engine can fit its constants"
        return (
            f"the model is off: {worst.quantity} is predicted {100 * worst.error:+.0f} % from what was measured, outside its "
            f"80 % interval; {advice}"
        )


def check_server(runs: Sequence[ObservedRun], scenario: Scenario, progress: Progress | None = None) -> ServerCheck:
    """Simulates the traffic of the runs and compares. Raises `SpecError` where the runs hold no traffic or do not go together."""
    scenario.require_one_server("check-server")
    speculative = [run for run in runs if run.speculative]
    plain = [run for run in runs if not run.speculative]
    for kind, found in (("with", speculative), ("without", plain)):
        if len(found) > 1:
            raise SpecError([Problem(found[1].where, "", f"must be the only run {kind} acceptance: check one pair at a time")])
    if not speculative and not plain:
        raise SpecError([Problem("FILES", "", "must hold at least one run")])
    own = own_traffic(scenario, speculative[0] if speculative else None, plain[0] if plain else None)
    result = simulate(own, progress)
    traffic = (plain or speculative)[0]
    comparison = result.comparisons[0] if speculative else None
    rows = [
        *_rows("without", plain, result.plain.summary, Spread.even(_step_std(own))),
        *_terms(speculative, comparison, _step_std(own)),
    ]
    if comparison is not None:
        rows += _rows("with", speculative, comparison.variant.summary, _r_spread(comparison).widened(_step_std(own)))
        if plain:
            rows += _ratios(plain[0], speculative[0], comparison)
    doubts = [*_doubts(own, speculative, plain, comparison)]
    doubts += [warning for warning in result.warnings if warning not in (*own.warnings, *doubts)]
    if not holds_traffic(traffic):
        doubts.insert(0, f"{traffic.where} holds no traffic: the scenario's own was simulated, and must be what was served")
    return ServerCheck(own, result, tuple(rows), tuple(doubts), _recipe(own, speculative))


def own_traffic(scenario: Scenario, speculative: ObservedRun | None, plain: ObservedRun | None) -> Scenario:
    """The scenario with the acceptance of the runs, and their workload where they hold one; without its alternatives, of which
    nothing was measured."""
    data: dict[str, Any] = {key: value for key, value in scenario.document.data.items() if key != ALTERNATIVES}
    traffic = plain or speculative
    assert traffic is not None
    if holds_traffic(traffic):
        data["workload"] = _frozen(workload_section(traffic))
    if speculative is None:
        data.pop("speculation", None)
        data.pop("acceptance", None)
    else:
        if "speculation" not in data:
            raise SpecError([scenario.document.problem(("speculation",), "must be given: a run has acceptance in it")])
        gamma = speculative.value("num_speculative_tokens")
        section = {key: value for key, value in data["speculation"].items() if key not in ("by_batch", "policy")}
        if "tree" not in section:
            known = scenario.gammas
            if gamma is None and len(known) != 1:
                raise SpecError([Problem("--num-speculative-tokens", "", "must be given: neither file nor scenario says one γ")])
            section["num_speculative_tokens"] = int(gamma) if gamma is not None else known[0]
        data["speculation"], data["acceptance"] = section, _frozen(acceptance_section(speculative))
    return scenario_of(Document(scenario.document.source, data, scenario.document.lines))


def _frozen(value: Any) -> Any:
    """As a document holds it: lists are tuples."""
    if isinstance(value, dict):
        return {key: _frozen(each) for key, each in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def _rows(part: str, runs: Sequence[ObservedRun], summary: Any, spread: Spread) -> Iterator[Compared]:
    """The latencies and the throughput of one run. Throughput at a stated rate is the rate's, and says nothing."""
    for run in runs:
        for name, words, found in (
            ("tpot_mean_s", TIME_PER_TOKEN, summary.tpot_s),
            ("ttft_mean_s", "time to first token", summary.ttft_s),
            ("e2e_latency_mean_s", "end-to-end latency", summary.e2e_latency_s),
        ):
            measured = run.value(name)
            if measured and found is not None:
                yield Compared(words, part, measured, Estimate.lognormal(found.mean, spread))
        measured = run.value("output_tokens_per_s")
        if measured and run.value("request_rate_per_s") is None:
            yield Compared(
                "output tokens per second", part, measured, Estimate.lognormal(summary.output_tokens_per_s, spread.inverse())
            )


def _terms(runs: Sequence[ObservedRun], comparison: Comparison | None, log_std: float) -> Iterator[Compared]:
    """Parts of a round that an engine's statistics hold: its seconds, and drafting as a share of it."""
    for run in runs:
        assert comparison is not None
        cost = comparison.round
        if (seconds := run.value("step_s")) is not None:
            yield Compared("one round", "with", seconds, Estimate.lognormal(cost.round_s, _r_spread(comparison).widened(log_std)))
        if share := run.value("draft_share"):
            yield Compared(DRAFT_SHARE, "with", share, Estimate.lognormal(cost.draft_share, _r_spread(comparison).inverse()))


def _ratios(plain: ObservedRun, speculative: ObservedRun, comparison: Comparison) -> Iterator[Compared]:
    """The gain in time per token, and R as the two runs imply it."""
    before, after = plain.value("tpot_mean_s"), speculative.value("tpot_mean_s")
    if not before or not after or comparison.tpot is None:
        return
    spread = _r_spread(comparison)
    yield Compared(GAIN, "ratio", before / after, Estimate.lognormal(comparison.tpot.value, spread.inverse()))
    counts = speculative.counters
    length = counts.mean_acceptance_length if counts else speculative.value("mean_acceptance_length")
    implied = comparison.mean_acceptance_length / comparison.tpot.value
    yield Compared("R, with the share of prompts", "ratio", length * after / before, Estimate.lognormal(implied, spread))


def _r_spread(comparison: Comparison) -> Spread:
    r = comparison.r
    return Spread(math.log(r.value / r.low) / Z80, math.log(r.high / r.value) / Z80)


def _step_std(scenario: Scenario) -> float:
    """One standard deviation of ln of a plain step: coefficients, and what stacks differ by."""
    deployment = scenario.deployment
    if not deployment.speculative:
        return 2 * STEP_NOISE_STD
    return UncertainPricer(deployment).plain_step_std(1, 1, 1024)


def _doubts(
    scenario: Scenario, speculative: Sequence[ObservedRun], plain: Sequence[ObservedRun], comparison: Comparison | None
) -> Iterator[str]:
    """What makes the benchmark say little, or something else than it seems to."""
    for run in (*plain, *speculative):
        yield from run.notes
        yield from _prompts_without_meaning(run)
        yield from of_another_server(run, scenario)
        if (run.value("completed") or FEWEST_REQUESTS) < FEWEST_REQUESTS:
            yield f"{run.where}: {run.value('completed'):.0f} requests are few: chance alone moves means by tens of percent"
        if run.value("tpot_mean_s") is None and run.value("itl_mean_s") is not None:
            yield f"{run.where}: only ITL is there; it is the time between bursts under speculation and no time per token"
    for name, words in (("prompt_tokens_mean", "prompts"), ("output_tokens_mean", "outputs")):
        sizes = [run.value(name) for run in (*plain[:1], *speculative[:1]) if run.value(name)]
        if len(sizes) == 2 and abs(sizes[0] / sizes[1] - 1) > 0.05:
            yield f"the {words} of the two runs differ ({sizes[0]:.0f} and {sizes[1]:.0f} tokens): they are not the same traffic"
    if speculative and comparison is not None:
        yield from unlikely_acceptance(scenario.deployment.method, comparison.shape, speculative[0].mean_acceptance_length)


def of_another_server(run: ObservedRun, scenario: Scenario) -> Iterator[str]:
    """Where a file says that it is of another model, or of another number of devices, than the scenario."""
    name, target = run.value("target_model"), scenario.deployment.target
    try:
        known = find_model(name).name if isinstance(name, str) else target.name
    except SpecError:  # the path of a server's own disk
        known = target.name
    if known != target.name:
        yield f"{run.where}: measured on {known}, and the scenario serves {target.name}"
    size = run.value("tensor_parallel_size")
    if size is not None and int(size) != scenario.deployment.tensor_parallel_size:
        own = scenario.deployment.tensor_parallel_size
        yield f"{run.where}: measured at tensor_parallel_size {size:.0f}, and the scenario has {own}"


def _prompts_without_meaning(run: ObservedRun) -> Iterator[str]:
    """Prompts of random tokens, and answers that were not allowed to end."""
    dataset = run.value("dataset")
    if isinstance(dataset, str) and dataset.startswith(MEANINGLESS):
        yield (
            f"{run.where}: dataset {dataset} is random tokens: acceptance on it says nothing of real text, and timing should be "
            "compared with the acceptance forced"
        )
    outputs = run.requests.output_tokens if run.requests is not None else ()
    if len(outputs) >= FEWEST_REQUESTS and len(set(outputs)) == 1:
        yield (
            f"{run.where}: every answer has {outputs[0]} tokens: they were not allowed to end (ignore_eos), and what follows an "
            "end accepts otherwise than text"
        )


def _recipe(scenario: Scenario, speculative: Sequence[ObservedRun]) -> Snippet | None:
    if not speculative:
        return None
    rates = speculative[0].value("acceptance_rates_per_position")
    deployment, spec = scenario.deployment, scenario.file.speculation
    if rates is None or spec is None:
        return None
    setting = Setting(spec.method, len(rates), spec.drafter, deployment.draft_tensor_parallel_size)
    try:
        return forced_acceptance(scenario.file.engine.partition("_")[0], setting, [round(rate, 4) for rate in rates])
    except NotExpressibleError:
        return None
