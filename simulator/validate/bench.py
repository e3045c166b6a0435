"""One target with its drafters on one kind of prompts: traced, replayed, run for real, with single passes timed in between.

Real runs and timed passes are interleaved pass by pass: before a pass of a real run, the clock of the run stands still while
single passes are timed, as long as these have had less than their share of the time. What slows the machine down for a while
thus slows both, and what comes before a timed pass, and leaves the caches of the processor in its state, is what comes before a
real one: some other pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from calibration.decoding_pass import TARGET, DecodingPass, PassTable, Sample
from simulator.acceptance import TraceAcceptance
from simulator.questions.decoding_replay import Decoding, Drafting, Replay, TracedPrompt, UnitTimes, replay
from simulator.questions.local_validation import OTHER, DecodingTime
from simulator.validate.pass_plan import PassPlan

if TYPE_CHECKING:
    from calibration.decoding import Drafter, PhaseClock, Phases
    from calibration.decoding.phases import Phase
    from calibration.pairs import Pair
    from calibration.prompts import Prompt
    from calibration.tracing import PromptTrace

# Seconds of timed passes for each second of real runs.
SHARE = 1.0
PHASE_TERMS = {
    "prefill": "prefill", "decode": "decode", "draft_prefill": "draft prefill", "catch_up": "catch-up", "draft": "draft",
    "verify": "verify", "sampling": "sampling",
}  # fmt: skip
Totals = dict[str, float]


@dataclass(frozen=True)
class Way:
    """A way to decode: plain, or a drafter at a γ; with what its traces say, prompt by prompt."""

    decoding: Decoding
    drafter: Drafter | None
    prompts: tuple[TracedPrompt, ...]
    acceptance_rate: float = 0.0

    def one_draft_pass(self, sequences: int, masked: bool) -> DecodingPass:
        """What the independent-α formula takes drafting to be made of: a pass for each draft, or of all heads."""
        drafts = self.decoding.gamma if self.decoding.drafting == "heads" else 1
        return DecodingPass(self.decoding.drafter, sequences, masked, 1, drafts)


@dataclass
class Run:
    """Real decoding of all prompts once, one by one or in a batch: seconds by term, steps, and what it wrote."""

    terms: Totals = field(default_factory=dict)
    steps: int = 0
    tokens: int = 0
    rounds: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0
    rounds_equal: bool = True
    texts_equal: int = 0

    @property
    def time(self) -> DecodingTime:
        return DecodingTime(self.terms, self.steps)


class Bench:
    """Traces at construction. `run` decodes for real; `table` is filled along the way.

    name, kind: what target and prompts are called. ways: plain decoding first, then each drafter at its γ. runs: by way and
    whether in a batch, one a block.
    """

    def __init__(
        self,
        name: str,
        kind: str,
        pair: Pair,
        drafts: Sequence[tuple[Drafter, int]],
        prompts: Sequence[Prompt],
        max_new_tokens: int,
        batches: bool = True,
        progress: Callable[[], None] = lambda: None,
    ):
        from calibration.pass_timing import PassTimer
        from calibration.tracing import DEPTH, trace_prompt

        self.name, self.kind, self.pair, self.max_new_tokens = name, kind, pair, max_new_tokens
        self.ids = [pair.encode(prompt.text) for prompt in prompts]
        self.texts: list[tuple[int, ...]] = []
        self.ways: list[Way] = []
        traced: dict[str, tuple[TracedPrompt, ...]] = {}
        for drafter, gamma in drafts:
            if drafter.name not in traced:
                depth = max(DEPTH, *(each for other, each in drafts if other.name == drafter.name))
                traces = [
                    trace_prompt(pair.target, drafter, ids, max_new_tokens, eos_ids=pair.eos_ids, depth=depth) for ids in self.ids
                ]
                self.texts = [trace.tokens for trace in traces]
                traced[drafter.name] = tuple(
                    TracedPrompt(len(ids), max_new_tokens, _law(trace)) for ids, trace in zip(self.ids, traces, strict=True)
                )
                progress()
            known = traced[drafter.name]
            self.ways.append(Way(_decoding(pair, drafter, gamma), drafter, known, _mean_rate(known)))
        self.ways.insert(0, Way(Decoding(), None, self.ways[0].prompts))
        self.timer = PassTimer(pair.target, [drafter for drafter, _ in drafts], list(zip(self.ids, self.texts, strict=True)))
        self.table = PassTable()
        self.batches = (False, True) if batches else (False,)
        self.replays = {(way.decoding, batched): self._replays(way, batched) for way in self.ways for batched in self.batches}
        self.plan = PassPlan([each for replays in self.replays.values() for each in replays], self._formula_passes())
        self.block = 0
        self.runs: dict[tuple[int, bool], list[Run]] = {}

    def _replays(self, way: Way, batched: bool, times: PassTable | UnitTimes | None = None) -> list[Replay]:
        groups = [way.prompts] if batched else [(prompt,) for prompt in way.prompts]
        return [replay(group, way.decoding, times or UnitTimes(), batched) for group in groups]

    def _formula_passes(self) -> list[DecodingPass]:
        """What the independent-α formula takes every round to be made of, even where no round is."""
        found = []
        for way in self.ways[1:]:
            width = way.decoding.gamma + 1
            for masked in self.batches:
                sequences = len(self.ids) if masked else 1
                found.append(DecodingPass(TARGET, sequences, masked, width, width))
                if way.decoding.drafting != "search":
                    found.append(way.one_draft_pass(sequences, masked))
        return found

    # ------------------------------------------------------------------------------------------------------- prediction

    def predicted(self, way: Way, batched: bool, table: PassTable) -> DecodingTime:
        """All prompts, one by one or in a batch, as replayed at these times."""
        terms: Counter[str] = Counter()
        replays = self._replays(way, batched, table)
        for each in replays:
            terms.update(each.terms)
        return DecodingTime(dict(terms), sum(each.steps for each in replays))

    def pass_s(self, asked: DecodingPass) -> float:
        """A pass with its sampling, at the middle of the contexts in use."""
        return self.table.time(asked, self.plan.middle(asked)).seconds

    # ------------------------------------------------------------------------------------------------------ measurement

    def run(self, number: int, batched: bool) -> None:
        """Decodes every prompt for real, the way of this number, and holds rounds and texts against the replay."""
        way, run = self.ways[number], Run()
        replays = self.replays[way.decoding, batched]
        jobs = [list(range(len(self.ids)))] if batched else [[index] for index in range(len(self.ids))]
        for job, replayed in zip(jobs, replays, strict=True):
            self._decode(way, batched, job, replayed, run)
        self.runs.setdefault((number, batched), []).append(run)

    def _decode(self, way: Way, batched: bool, job: list[int], replayed: Replay, run: Run) -> None:
        clock = _interleaved_clock(self._time_some)
        wall, begin = time.perf_counter(), time.thread_time()
        tokens, rounds, forwards = self._generate(way, batched, job, clock)
        total_s = time.thread_time() - begin - clock.paused_s
        run.wall_s += time.perf_counter() - wall
        run.cpu_s += total_s + clock.paused_s
        totals = {PHASE_TERMS[phase]: seconds for phase, seconds in clock.totals().items()}
        totals[OTHER] = total_s - sum(totals.values())
        for name, seconds in totals.items():
            run.terms[name] = run.terms.get(name, 0.0) + seconds
        run.steps += forwards - 1
        run.tokens += sum(len(text) - 1 for text in tokens)
        equal = [text == self.texts[index] for text, index in zip(tokens, job, strict=True)]
        run.texts_equal += sum(equal)
        if way.drafter is not None:
            run.rounds += sum(map(len, rounds))
            # In a batch rounding differs, and can turn a near tie: a text that came out otherwise had other rounds.
            same = [(not ok and batched) or real == said for ok, real, said in zip(equal, rounds, replayed.rounds, strict=True)]
            run.rounds_equal &= all(same) and (batched or all(equal))
        else:
            run.rounds += run.tokens

    def _generate(
        self, way: Way, batched: bool, job: list[int], clock: Phases
    ) -> tuple[list[tuple[int, ...]], list[tuple[tuple[int, int], ...]], int]:
        """(tokens, rounds of (proposed, accepted), forward passes of the target)."""
        from calibration import decoding

        ids = [self.ids[index] for index in job]
        target, count, gamma = self.pair.target, self.max_new_tokens, way.decoding.gamma
        if batched:
            made = (
                decoding.plain_generate_batch(target, ids, count, eos_ids=self.pair.eos_ids, phases=clock)
                if way.drafter is None
                else decoding.speculative_generate_batch(
                    target, way.drafter, ids, count, gamma, eos_ids=self.pair.eos_ids, phases=clock
                )
            )
            rounds = [tuple((each.proposed, each.accepted) for each in own) for own in made.rounds]
            return list(made.tokens), rounds, made.target_forwards
        one = (
            decoding.plain_generate(target, ids[0], count, eos_ids=self.pair.eos_ids, phases=clock)
            if way.drafter is None
            else decoding.speculative_generate(target, way.drafter, ids[0], count, gamma, eos_ids=self.pair.eos_ids, phases=clock)
        )
        return [one.tokens], [tuple((each.proposed, each.accepted) for each in one.rounds)], one.target_forwards

    def _time_some(self, run_s: float) -> None:
        """Times passes until they have had their share of what runs have taken."""
        self.plan.owed_s += SHARE * run_s
        while self.plan.owed_s > 0:
            begin = time.thread_time()
            self.time_one()
            self.plan.owed_s -= time.thread_time() - begin

    def time_one(self) -> None:
        """One sample of the pass whose doubt weighs most on the predictions."""
        asked, context = self.plan.next()
        taken = self.timer.time(asked, context)
        self.table.add(asked, Sample(context, self.block, taken))
        self.plan.done(asked, context, taken.seconds)

    def warm_up(self) -> None:
        """Every pass once, not counted: the first moments of a process are not like the rest."""
        for asked, context in self.plan.counts:
            self.timer.time(asked, context)

    def finish_block(self) -> None:
        """Every pass has at least one sample in every block."""
        for asked, context in self.plan.counts:
            if not any(sample.block == self.block and sample.context == context for sample in self.table.samples.get(asked, [])):
                taken = self.timer.time(asked, context)
                self.table.add(asked, Sample(context, self.block, taken))
                self.plan.done(asked, context, taken.seconds)
        self.block += 1


def _decoding(pair: Pair, drafter: Drafter, gamma: int) -> Decoding:
    from calibration.decoding import HeadDrafter, LayerSkipDrafter, MedusaHeads, ModelDrafter

    if isinstance(drafter, HeadDrafter):
        return Decoding(gamma, "heads" if isinstance(drafter.head, MedusaHeads) else "recurrence", drafter.name)
    if not isinstance(drafter, ModelDrafter):
        return Decoding(gamma, "search", drafter.name)
    shared = isinstance(drafter, LayerSkipDrafter) and drafter.share_cache
    drafting: Drafting = "shared_cache" if shared else "own_cache"
    return Decoding(gamma, drafting, TARGET if drafter.model.module is pair.target.module else drafter.name)


def _law(trace: PromptTrace) -> TraceAcceptance:
    proposed = None if trace.proposed is None else np.array(trace.proposed)
    return TraceAcceptance(np.array(trace.acceptance, dtype=float), np.array([len(trace.tokens)]), proposed)


def _mean_rate(prompts: Sequence[TracedPrompt]) -> float:
    """α: the mean over positions of the probability that a first draft there is accepted, 0 where there is none."""
    rates = [float(rate) for prompt in prompts for rate in _first_drafts(prompt)]
    return sum(rates) / len(rates)


def _first_drafts(prompt: TracedPrompt) -> Sequence[float]:
    acceptance = prompt.trace.acceptance
    column: Sequence[float] = (acceptance if acceptance.ndim == 1 else acceptance[:, 0]).tolist()
    return column


def _interleaved_clock(between: Callable[[float], None]) -> _Interleaved:
    from calibration.decoding import PhaseClock

    return _Interleaved(PhaseClock(), between)


class _Interleaved:
    """A `PhaseClock` that stands still before each pass while `between` is called with the seconds run since the last call."""

    def __init__(self, clock: PhaseClock, between: Callable[[float], None]):
        self.clock, self.between = clock, between
        self.paused_s, self._since_s = 0.0, time.thread_time()

    def __call__(self, phase: Phase, tokens: int) -> AbstractContextManager[None]:
        if phase != "sampling":
            begin = time.thread_time()
            self.between(begin - self._since_s)
            self._since_s = time.thread_time()
            self.paused_s += self._since_s - begin
        return self.clock(phase, tokens)

    def totals(self) -> Mapping[str, float]:
        return self.clock.totals()
