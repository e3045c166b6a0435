"""The readable engine: plan → price → advance the clock → accept → commit, one SimPy timeout a step.

SimPy owns the clock; planning, pricing and acceptance know nothing of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import simpy

from simulator.serving.instant import Instant
from simulator.serving.plan import StepPlan
from simulator.serving.policies import DraftPolicy
from simulator.serving.record import EngineStatistics, Integers, RequestRecord, RequestRecords, StepRecord, StepRecords
from simulator.serving.rules import BatchingRules
from simulator.serving.scheduler import Scheduler
from simulator.serving.sequence import AcceptanceByPosition, SequenceState
from simulator.workload import Request


class StepPrice(Protocol):
    """The price of a step: `terms` are its named parts, which sum to `seconds`."""

    @property
    def seconds(self) -> float: ...
    @property
    def terms(self) -> tuple[tuple[str, float], ...]: ...


class PricesSteps(Protocol):
    """Prices a step from what it computes; must change neither list."""

    def price(self, decode: Sequence[tuple[int, int]], prefill: Sequence[tuple[int, int]], prompts_finished: int) -> StepPrice:
        """`decode`: (tokens in the KV cache before the step, drafts verified) per decoding sequence, drafts 0 for a plain row.
        `prefill`: (new tokens, tokens in the KV cache before) per chunk. `prompts_finished`: chunks that yield a first token.
        Where the drafter computes other tokens of the prompts, `draft_prefill` is told too, as `prefill`.
        """


class PricedStep(NamedTuple):
    """The price of a step that is put together here."""

    seconds: float
    terms: tuple[tuple[str, float], ...]


class Transfers(Protocol):
    """Takes prompts that this engine computes to another, or the other way. Each is told at once, and acts when all that happens
    at that time on any engine has happened."""

    def computed(self, sequence: SequenceState, start_s: float, done: bool) -> None:
        """A chunk of a prompt was computed in the step that began then; with `done` the last."""

    def reserved(self, sequence: SequenceState, cached_tokens: int) -> None:
        """Blocks are kept here for a prompt, of which so many tokens are here already."""

    def dropped(self, sequence: SequenceState) -> None:
        """One that was given up has left this engine."""


class Replica:
    """One engine in simulated time, with what it has done so far.

    `request_done` is called with its id as each request finishes; `arrived` with each that is queued. `next_arrival_s` tells
    when the next one comes, where that is known. `instant`: the order of what happens at one time, where that matters to other
    replicas. `transfers`: where prompts are computed and decoded on engines of their own; `hands_over`: this one computes
    prompts, and `makes_first_token` too. `outstanding`: requests that are here, without those that were given up.
    """

    transfers: Transfers | None = None
    hands_over = makes_first_token = False

    def __init__(
        self,
        env: simpy.Environment,
        rules: BatchingRules,
        pricer: PricesSteps,
        paths: Callable[[Request], AcceptanceByPosition],
        num_speculative_tokens: Callable[[int], int],
        instant: Instant | None = None,
    ):
        self.instant = instant
        self.env, self.rules, self.pricer, self.paths = env, rules, pricer, paths
        self.scheduler = Scheduler(rules, num_speculative_tokens)
        self.outstanding = 0
        self.records = RequestRecords()
        self._steps = StepRecords()
        self.request_done: Callable[[int], None] = lambda _: None
        self.arrived: Callable[[SequenceState], None] = lambda _: None
        self.next_arrival_s: Callable[[], float] = lambda: math.inf
        self._policy = num_speculative_tokens if isinstance(num_speculative_tokens, DraftPolicy) else None
        self._last_gamma: int | None = None  # of the last step that decoded
        self._start()

    def _start(self) -> None:
        """Lets the engine run from now on."""
        self._arrival = self.env.event()
        self.env.process(self._serve())

    @property
    def steps(self) -> StepRecords:
        """Every step so far."""
        return self._steps

    def statistics(self) -> EngineStatistics:
        """How many events the run took."""
        return EngineStatistics(len(self._steps), len(self._steps), len(self._steps))

    @property
    def used_blocks(self) -> int:
        """KV blocks that sequences hold now."""
        return self.scheduler.kv.used_blocks

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a prompt that the prefix cache holds now."""
        return self.scheduler.cached_tokens(request)

    def submit(self, request: Request) -> bool:
        """Queues a request that arrives now; False if it can never be served, which is recorded."""
        if refusal := self.refusal(request, request.output_tokens):
            return self.refuse(request, refusal)
        sequence = self.sequence(request)
        self.arrived(sequence)
        self.queue(sequence)
        return True

    def refusal(self, request: Request, output_tokens: int) -> str:
        """Why a request can never be served here for so much of its output; "" if it can."""
        prompt = request.prompt_tokens
        if prompt < 1 or output_tokens < 1:
            raise ValueError(
                f"request {request.request_id} must have prompt and output tokens (got {prompt} and {output_tokens})"
            )
        return self.rules.refusal(prompt, output_tokens)

    def refuse(self, request: Request, refusal: str) -> Literal[False]:
        """Records that a request that arrives now can never be served."""
        prompt, output = request.prompt_tokens, request.output_tokens
        self.records.append(RequestRecord(request.request_id, self.env.now, prompt, output, rejected=refusal))
        return False

    def sequence(self, request: Request) -> SequenceState:
        """A request that arrives now, in no queue yet."""
        return self.scheduler.sequence(request, self.env.now, self.paths(request))

    def queue(self, sequence: SequenceState) -> None:
        """Queues a request that has arrived."""
        self.outstanding += 1
        self.scheduler.waiting.append(sequence)
        self._look_up()

    def offer(self, sequence: SequenceState) -> None:
        """Blocks are wanted here for a prompt that another engine computes."""
        self.outstanding += 1
        self.scheduler.offered.append(sequence)
        self._look_up()

    def land(self, sequence: SequenceState, first_token: bool) -> None:
        """The cache of a prompt has come, with its first token or for this engine to make that of the prompt's last."""
        self.scheduler.land(sequence, sequence.prompt_tokens - (not first_token))
        if first_token and sequence.cancelled_s is None and sequence.emit(1, self.env.now):
            sequence.ended = True
            self._record(sequence, self.env.now)
        self._look_up()

    def let_go(self, sequence: SequenceState) -> None:
        """The blocks of a prompt that was handed over, or whose cache will not come, are not needed any more."""
        self.outstanding -= sequence.cancelled_s is None
        self.scheduler.let_go(sequence)
        self._look_up()

    def give_up(self, sequence: SequenceState) -> None:
        """The client of a request that is here goes away now; the engine lets it go at the end of the step in progress."""
        sequence.cancelled_s = self.env.now
        self.outstanding -= 1
        self.scheduler.cancelled.append(sequence)
        self._look_up()

    def _look_up(self) -> None:
        """A request has joined the queue, or is given up."""
        if not self._arrival.triggered:
            self._arrival.succeed()

    def _serve(self) -> Generator[simpy.Event, None, None]:
        """The engine's loop: a step after another while there is work. It ends with the simulation."""
        while True:
            if self.instant is not None and not self.instant.nothing_follows:
                yield self.instant.steps_begin()
            plan = self._plan()
            if plan is None:
                self._arrival = self.env.event()
                yield self._arrival
                continue
            cost = self._swapped(plan, self.pricer.price(plan.decode, plan.prefill, plan.prompts_finished, **told(plan)))
            cost = self._switched(cost, self._switches(plan))
            if not 0 < cost.seconds < math.inf:
                raise ValueError(f"a step must take a positive, finite time (got {cost.seconds} s)")
            start_s = self.env.now
            yield self.env.timeout(cost.seconds)
            accepted = accept(plan)
            emitted = self._commit(plan, accepted, start_s)
            self._steps.append(step_record(plan, start_s, cost.seconds, sum(accepted), emitted), cost.terms)
            self._tell(plan, sum(accepted))

    def _switches(self, plan: StepPlan) -> bool:
        """Whether a step decodes at another γ than the last one that did, under a policy that pays for it."""
        if self._policy is None or not self._policy.switch_s or not (plan.decode or plan.booked):
            return False
        changed = self._last_gamma not in (None, plan.num_speculative_tokens)
        self._last_gamma = plan.num_speculative_tokens
        return changed

    def _switched(self, cost: StepPrice, switches: bool) -> StepPrice:
        """The price with what a change of γ takes."""
        if not switches or self._policy is None:
            return cost
        switch_s = self._policy.switch_s
        return PricedStep(cost.seconds + switch_s, (*cost.terms, ("draft_switch", switch_s)))

    def _tell(self, plan: StepPlan, accepted: int) -> None:
        """Lets a policy that looks know of a step planned sequence by sequence."""
        if self._policy is not None and self._policy.looks_in < math.inf and plan.decode:
            context, drafting = sum(context for context, _ in plan.decode), sum(drafts > 0 for _, drafts in plan.decode)
            self._policy.done(1, plan.num_speculative_tokens, len(plan.decode), context, drafting, accepted)

    def _plan(self) -> StepPlan | None:
        """The next step, without those that were given up."""
        if self.scheduler.cancelled:
            for sequence in self.scheduler.drop_cancelled():
                self.records.add(sequence, math.nan)
                if self.transfers is not None:
                    self.transfers.dropped(sequence)
        plan = self.scheduler.plan()
        if self.transfers is not None:
            for sequence, cached_tokens in self.scheduler.reserved:
                self.transfers.reserved(sequence, cached_tokens)
            self.scheduler.reserved.clear()
        return plan

    def _swapped(self, plan: StepPlan, cost: StepPrice) -> StepPrice:
        """The price with what moving blocks to the host and back takes."""
        if not plan.moved_blocks:
            return cost
        swap_s = plan.moved_blocks * self.rules.host_block_s
        return PricedStep(cost.seconds + swap_s, (*cost.terms, ("swap", swap_s)))

    def _commit(self, plan: StepPlan, accepted: list[int], start_s: float) -> int:
        """Moves every sequence of the step on, and lets the finished ones go. Returns the tokens emitted."""
        now_s = self.env.now
        finished = []
        total = 0
        for sequence, (new_tokens, _) in zip(plan.prompts, plan.prefill, strict=True):
            if sequence.first_scheduled_s is None:
                sequence.first_scheduled_s = start_s
            sequence.computed += new_tokens
            if not self.hands_over and sequence.computed == sequence.prefill_tokens:
                total += 1
                if sequence.emit(1, now_s):
                    finished.append(sequence)
        for sequence, (_, drafts), accepted_drafts in zip(plan.decoding, plan.decode, accepted, strict=True):
            sequence.rounds += 1
            if drafts:
                sequence.draft_rounds += 1
                sequence.drafted += drafts
                sequence.accepted += accepted_drafts
            tokens = min(accepted_drafts + 1, sequence.output_tokens - sequence.emitted)
            sequence.computed += tokens
            total += tokens
            if sequence.emit(tokens, now_s):
                finished.append(sequence)
        if finished:
            self.scheduler.finish(finished)
            for sequence in finished:
                self._record(sequence, now_s)
        return total + (self._hand_over(plan, start_s) if self.hands_over else 0)

    def _hand_over(self, plan: StepPlan, start_s: float) -> int:
        """Tells where prompts go on of what was computed. Returns the first tokens that were made."""
        assert self.transfers is not None
        done = [s for s in plan.prompts if s.computed == s.prefill_tokens and s.cancelled_s is None]
        self.scheduler.hand_over(done)
        for sequence in plan.prompts:
            self.transfers.computed(sequence, start_s, sequence.request_id in self.scheduler.in_transit)
        for sequence in done:
            sequence.computed = 0
        return len(done) if self.makes_first_token else 0

    def _record(
        self, sequence: SequenceState, finish_s: float, first_round: int = -1, burst_tokens: Integers | None = None
    ) -> None:
        """A sequence has emitted its last token."""
        self.records.add(sequence, finish_s, first_round, burst_tokens)
        if sequence.cancelled_s is None:
            self.outstanding -= 1
            self.request_done(sequence.request_id)


def told(plan: StepPlan) -> dict[str, Any]:
    """What a pricer is told beside the sequences and prompts, where there is more to tell."""
    return {} if plan.draft_prefill is None else {"draft_prefill": plan.draft_prefill}


def accept(plan: StepPlan) -> list[int]:
    """Accepted drafts of each decoding sequence."""
    return [sequence.accept(drafts, sequence.emitted) for sequence, (_, drafts) in zip(plan.decoding, plan.decode, strict=True)]


def step_record(plan: StepPlan, start_s: float, seconds: float, accepted: int, emitted: int) -> StepRecord:
    """The row of a step that has been carried out."""
    drafted = sum([drafts for _, drafts in plan.decode])
    return StepRecord(
        start_s=start_s,
        seconds=seconds,
        decode_sequences=len(plan.decode),
        context_tokens=sum([context for context, _ in plan.decode]),
        rows=len(plan.decode) + drafted,
        drafted=drafted,
        accepted=accepted,
        emitted=emitted,
        prefill_sequences=len(plan.prefill),
        prefill_tokens=sum([new_tokens for new_tokens, _ in plan.prefill]),
        prompts_finished=plan.prompts_finished,
        preempted=plan.preempted,
        running=plan.running,
        waiting=plan.waiting,
        used_blocks=plan.used_blocks,
    )
