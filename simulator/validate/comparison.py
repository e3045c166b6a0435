"""From a bench that has run to its cases: predicted, measured, and the independent-α formula beside them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from calibration.decoding_pass import TARGET, DecodingPass
from simulator.questions.local_validation import Compared, DecodingTime, LocalCase, noise_floors
from simulator.theory import mean_acceptance_length, textbook_speedup
from simulator.validate.bench import Bench, Run, Way


def compare(bench: Bench) -> Iterator[LocalCase]:
    """Every drafter, alone and in a batch, beside plain decoding."""
    of_blocks = [bench.table.of_blocks([block]) for block in range(bench.block)]
    for batched in bench.batches:
        plain = _compared(bench, bench.ways[0], batched, bench.runs[0, batched])
        for number, way in enumerate(bench.ways[1:], start=1):
            assert way.drafter is not None
            runs = bench.runs[number, batched]
            speculative = _compared(bench, way, batched, runs)
            errors = tuple(
                (
                    bench.predicted(bench.ways[0], batched, table).total_s / bench.runs[0, batched][block].time.total_s - 1,
                    bench.predicted(way, batched, table).total_s / runs[block].time.total_s - 1,
                )
                for block, table in enumerate(of_blocks)
            )
            independent_s, textbook = _independent(bench, way, batched, plain.predicted, runs[0].tokens)
            yield LocalCase(
                target=bench.name,
                draft=way.drafter.name,
                gamma=way.decoding.gamma,
                batch=len(bench.ids) if batched else 1,
                kind=bench.kind,
                mean_acceptance_length=runs[0].tokens / max(runs[0].rounds, 1),
                plain=plain,
                speculative=speculative,
                acceptance_rate=way.acceptance_rate,
                independent_s=independent_s,
                textbook_speedup=textbook,
                rounds_equal=all(run.rounds_equal for run in runs),
                texts=(sum(run.texts_equal for run in runs), len(runs) * len(bench.ids)),
                block_errors=errors,
            )


def _compared(bench: Bench, way: Way, batched: bool, runs: Sequence[Run]) -> Compared:
    terms: dict[str, float] = {}
    for run in runs:
        for name, seconds in run.terms.items():
            terms[name] = terms.get(name, 0.0) + seconds / len(runs)
    return Compared(bench.predicted(way, batched, bench.table), DecodingTime(terms, runs[0].steps))


def _independent(bench: Bench, way: Way, batched: bool, plain: DecodingTime, tokens: int) -> tuple[float, float]:
    """(total seconds, speedup with free verification) by τ = (1 - α^(γ+1)) / (1 - α): every round drafts γ and verifies γ + 1."""
    decoding, together = way.decoding, len(bench.ids) if batched else 1
    tau = mean_acceptance_length(way.acceptance_rate, decoding.gamma)
    if decoding.drafting == "search":
        draft_s = together * bench.pass_s(DecodingPass(decoding.drafter, 1, False, decoding.gamma, 0))
        drafts_s, cost_coefficient = draft_s, draft_s / plain.step_s / decoding.gamma
    else:
        draft_s = bench.pass_s(way.one_draft_pass(together, batched))
        drafts_s = draft_s if decoding.drafting == "heads" else decoding.gamma * draft_s
        cost_coefficient = drafts_s / decoding.gamma / plain.step_s
    width = decoding.gamma + 1
    verify_s = bench.pass_s(DecodingPass(TARGET, together, batched, width, width))
    total_s = plain.terms["prefill"] + tokens / together / tau * (drafts_s + verify_s)
    return total_s, textbook_speedup(tau, decoding.gamma, cost_coefficient)


def with_floors(cases: Sequence[LocalCase]) -> Iterator[LocalCase]:
    """The noise floor of each target's cases."""
    for target in dict.fromkeys(case.target for case in cases):
        own = [case for case in cases if case.target == target]
        total, speedup = noise_floors(own)
        yield from (replace(case, total_floor=total, speedup_floor=speedup) for case in own)
