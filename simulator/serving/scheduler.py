"""What the next engine step runs: continuous batching as in vLLM V1, without a clock.

Running sequences come first, in the order of their admission, each decoding one with 1 + drafts tokens of the step's
token budget; then waiting prompts, first come first served, cut into chunks that fill what is left of the budget.
When KV blocks run out, the sequence admitted last loses its blocks and computes its tokens again later, or has them moved to
the host and back. A prompt whose beginning is in the prefix cache starts behind it.

Where prompts are computed elsewhere (`disaggregation`), blocks are reserved for a prompt as it would be admitted; once its cache
has come it runs as soon as there is a slot.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from simulator.serving.kv_cache import KVCache
from simulator.serving.prefix_cache import NOTHING, Match, Run, block_runs
from simulator.workload import Request

if TYPE_CHECKING:
    from simulator.serving.booking import Booking


class AcceptancePath(Protocol):
    """One request's fate: how many drafts are proposed and accepted from each position of its output."""

    def accepted(self, position: int, drafted: int, /) -> int: ...
    def proposed(self, position: int, num_speculative_tokens: int, /) -> int: ...


def one_slot_per_draft(num_speculative_tokens: int) -> int:
    """KV slots kept ahead of a sequence by engines whose drafter writes to the cache: one for every draft to come."""
    return num_speculative_tokens


def no_lookahead(num_speculative_tokens: int) -> int:  # noqa: ARG001
    """KV slots kept ahead when drafts need no cache (n-gram look-up)."""
    return 0


Admission = Literal["first_chunk", "whole_prompt", "whole_request"]


@dataclass(frozen=True, slots=True)
class BatchingRules:
    """Limits of a step, in vLLM's words. Raises ValueError where a limit is below what any step needs.

    `prefill_first`: prompts get a step of their own before any decoding (vLLM V0, SGLang), instead of sharing it.
    `chunked_prefill` False: a prompt is taken whole or not at all.
    `watermark_blocks`: blocks that admitting a prompt leaves free, unless nothing runs.
    `admission`: what must find room beside what was promised before: a prompt's first chunk (earlier vLLM V1, which can
    thrash on long prompts), the whole prompt (vLLM's `scheduler_reserve_full_isl`), or prompt and output (TensorRT-LLM's
    guaranteed no-evict, under which nothing is ever preempted).
    `prefix_caching`: blocks are found again by requests with the same beginning. Of what is found, the last `recomputed_blocks`
    are computed all the same (vLLM under drafters that read the target's states, which are not kept); with `recomputes_draft`
    the drafter takes in all of the prompt, as its own cache keeps nothing.
    `host_blocks`: blocks of preempted sequences that the host has room for, 0 to compute them again instead; `host_block_s`:
    seconds to move one there, or back.
    """

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    total_blocks: int
    block_tokens: int = 16
    lookahead_slots: Callable[[int], int] = one_slot_per_draft
    prefill_first: bool = False
    chunked_prefill: bool = True
    watermark_blocks: int = 0
    admission: Admission = "first_chunk"
    prefix_caching: bool = False
    recomputed_blocks: int = 0
    recomputes_draft: bool = False
    host_blocks: int = 0
    host_block_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "total_blocks", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        for name in ("watermark_blocks", "recomputed_blocks", "host_blocks", "host_block_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 (got {getattr(self, name)})")

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str:
        """Why such a request can never be served, or "" if it can. The same with and without speculation."""
        cached = prompt_tokens + output_tokens - 1  # the last token is emitted, never fed back
        if prompt_tokens + output_tokens > self.max_model_len:
            return "longer than max_model_len"
        if cached > self.total_blocks * self.block_tokens:
            return "larger than the KV cache"
        # After a preemption the prompt to recompute holds all tokens emitted so far.
        if not self.chunked_prefill and cached > self.max_num_batched_tokens:
            return "longer than max_num_batched_tokens without chunked prefill"
        return ""


class SequenceState:
    """A request in the engine. `computed` tokens are in its KV cache; those below `prefill_tokens` are computed as a prompt.

    `swapped_blocks`: blocks that the host keeps for it. `runs`: its text by blocks, where prefixes are cached. `ended`: finished
    or given up.
    """

    __slots__ = (
        "accepted",
        "arrival_s",
        "booking",
        "cached_tokens",
        "cancelled_s",
        "computed",
        "draft_rounds",
        "drafted",
        "emission_s",
        "emission_tokens",
        "emitted",
        "ended",
        "first_scheduled_s",
        "kv_tokens",
        "longest_output",
        "output_tokens",
        "path",
        "preemptions",
        "prefill_tokens",
        "prompt_tokens",
        "request_id",
        "rounds",
        "runs",
        "swapped_blocks",
        "swaps",
    )

    def __init__(self, request: Request, arrival_s: float, path: AcceptancePath, max_model_len: int, runs: tuple[Run, ...] = ()):
        self.request_id = request.request_id
        self.prompt_tokens = self.prefill_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.longest_output = max_model_len - request.prompt_tokens
        self.arrival_s = arrival_s
        self.path = path
        self.first_scheduled_s: float | None = None
        self.computed = self.emitted = self.kv_tokens = 0
        self.rounds = self.draft_rounds = self.drafted = self.accepted = self.preemptions = 0
        self.emission_s = array("d")
        self.emission_tokens = array("i")
        self.booking: Booking | None = None  # its future, in the engine that books
        self.runs = runs
        self.cached_tokens = self.swaps = self.swapped_blocks = 0
        self.cancelled_s: float | None = None
        self.ended = False

    @property
    def decoding(self) -> bool:
        """Whether its prompt is computed."""
        return self.computed >= self.prefill_tokens > 0

    def accept(self, drafts: int, position: int) -> int:
        """Accepted drafts of a round after `position` emitted tokens. Raises ValueError for more than were drafted."""
        if not drafts:
            return 0
        accepted = self.path.accepted(position, drafts)
        if not 0 <= accepted <= drafts:
            raise ValueError(f"an acceptance path must accept 0 to {drafts} of {drafts} drafts (got {accepted})")
        return accepted

    def emit(self, tokens: int, now_s: float) -> bool:
        """Adds a burst of tokens; True if it was the last."""
        self.emitted += tokens
        self.emission_s.append(now_s)
        self.emission_tokens.append(tokens)
        return self.emitted == self.output_tokens


@dataclass(slots=True)
class StepPlan:
    """One step: `decode[i]` = (context tokens, drafts) of `decoding[i]`; `prefill[i]` = (new tokens, context) of `prompts[i]`.

    Context tokens are those in the KV cache before the step.
    """

    budget: int  # tokens not yet given away
    num_speculative_tokens: int
    lookahead_slots: int
    decoding: list[SequenceState] = field(default_factory=list)
    decode: list[tuple[int, int]] = field(default_factory=list)
    prompts: list[SequenceState] = field(default_factory=list)
    prefill: list[tuple[int, int]] = field(default_factory=list)
    prompts_finished: int = 0
    preempted: int = 0
    running: int = 0  # these three as the step starts
    waiting: int = 0
    used_blocks: int = 0
    booked: int = 0  # decoding sequences that stand on the timeline instead of in `decoding`
    moved_blocks: int = 0  # to the host and back from it
    draft_prefill: list[tuple[int, int]] | None = None  # `prefill` for the drafter, where that differs
    slots_may_change: bool = False  # what the next waiting prompt would need depends on what the prefix cache keeps

    def add_prompt(self, sequence: SequenceState, new_tokens: int, draft_lacks: int = 0) -> None:
        """`draft_lacks`: tokens before the new ones that the drafter has not computed."""
        self.prompts.append(sequence)
        if draft_lacks and self.draft_prefill is None:
            self.draft_prefill = list(self.prefill)
        self.prefill.append((new_tokens, sequence.computed))
        if self.draft_prefill is not None:
            self.draft_prefill.append((new_tokens + draft_lacks, sequence.computed - draft_lacks))
        self.prompts_finished += sequence.computed + new_tokens == sequence.prefill_tokens
        self.budget -= new_tokens


class Scheduler:
    """Queues, KV blocks and the plan of the next step.

    `num_speculative_tokens(running)` is asked once a step with the number of running sequences before new ones are admitted.
    """

    def __init__(self, rules: BatchingRules, num_speculative_tokens: Callable[[int], int]):
        self.rules = rules
        self.num_speculative_tokens = num_speculative_tokens
        self.kv = KVCache(rules.total_blocks, rules.block_tokens, rules.prefix_caching)
        self.running: list[SequenceState] = []
        self.waiting: deque[SequenceState] = deque()
        self.cancelled: list[SequenceState] = []  # given up, and still here
        # Prompts computed elsewhere: without blocks here, with blocks and on the way (from here too), and with their cache.
        self.offered: deque[SequenceState] = deque()
        self.in_transit: dict[int, SequenceState] = {}
        self.landed: deque[SequenceState] = deque()
        self.reserved: list[tuple[SequenceState, int]] = []  # since last looked at, and tokens found cached
        self.freed: list[int] = []  # in transit, and their blocks are not needed here any more
        self.free_host_blocks = rules.host_blocks
        self._moved_blocks = 0

    def sequence(self, request: Request, now_s: float, path: AcceptancePath) -> SequenceState:
        """A request that arrives now, in no queue yet."""
        return SequenceState(request, now_s, path, self.rules.max_model_len, self._runs(request))

    def _runs(self, request: Request) -> tuple[Run, ...]:
        """The text of a request by blocks, where prefixes are cached."""
        return block_runs(request.content, self.rules.block_tokens) if self.rules.prefix_caching and request.content else ()

    def cached_tokens(self, request: Request) -> int:
        """Tokens of a prompt that the prefix cache holds."""
        most_blocks = (request.prompt_tokens - 1) // self.rules.block_tokens
        return self.kv.find(self._runs(request), most_blocks).blocks * self.rules.block_tokens

    def plan(self) -> StepPlan | None:
        """The next step, its KV blocks reserved; None if no request is here. Raises RuntimeError if it could do nothing."""
        if self.landed or self.freed:
            self._settle_transfers()
        if not (self.running or self.waiting or self.offered):
            return None
        self.kv.now += 1
        self._moved_blocks = 0
        plan = self._begin_plan()
        if self.rules.prefill_first:
            self._schedule_running(plan, decode=False)
            self._admit(plan)
            if not plan.prefill:
                self._schedule_running(plan, decode=True)
        else:
            self._schedule_running(plan, decode=True)
            self._admit(plan)
        if not (plan.decode or plan.prefill or plan.booked):
            if self.in_transit:
                return None  # what is under way will go on, or free its blocks
            raise RuntimeError(f"no progress with {len(self.running)} running, {len(self.waiting)} waiting requests")
        self.kv.check()
        plan.moved_blocks = self._moved_blocks
        plan.running, plan.waiting, plan.used_blocks = len(self.running), self.num_waiting, self.kv.used_blocks
        return plan

    @property
    def num_waiting(self) -> int:
        """Requests that are here and do not run."""
        return len(self.waiting) + len(self.offered) + len(self.in_transit) + len(self.landed)

    @property
    def _alone(self) -> bool:
        """Whether nothing holds blocks."""
        return not (self.running or self.in_transit or self.landed)

    @property
    def outstanding(self) -> int:
        """Requests that wait or run, without those that were given up."""
        gone = sum(not sequence.ended for sequence in self.cancelled)
        return len(self.running) + self.num_waiting - gone

    def _begin_plan(self) -> StepPlan:
        """A plan with nothing in it yet."""
        num_drafts = self.num_speculative_tokens(len(self.running))
        return StepPlan(self.rules.max_num_batched_tokens, num_drafts, self.rules.lookahead_slots(num_drafts))

    def finish(self, sequences: list[SequenceState]) -> None:
        """Lets sequences go that have emitted their last token."""
        for sequence in sequences:
            self._release(sequence)
            sequence.ended = True
        self.running = [sequence for sequence in self.running if not sequence.ended]

    def drop_cancelled(self) -> list[SequenceState]:
        """Lets sequences go whose clients gave up. Returns them."""
        here = [sequence for sequence in self.cancelled if not sequence.ended]
        self.cancelled = [sequence for sequence in here if sequence.request_id in self.in_transit]
        dropped = [sequence for sequence in here if sequence.request_id not in self.in_transit]
        for sequence in dropped:
            sequence.ended = True
            if sequence in self.offered:
                self.offered.remove(sequence)
            elif sequence in self.landed:
                self.landed.remove(sequence)
                self._release(sequence)
            elif self.kv.blocks_of(sequence.request_id):
                self.running.remove(sequence)
                self._release(sequence)
            else:
                self.waiting.remove(sequence)
                self.free_host_blocks += sequence.swapped_blocks
        return dropped

    def _release(self, sequence: SequenceState) -> None:
        """Takes back a sequence's blocks; the prefix cache keeps those that are full."""
        self.kv.publish(sequence.request_id, sequence.runs, sequence.computed)
        self.kv.release(sequence.request_id)

    def _schedule_running(self, plan: StepPlan, decode: bool, index: int = 0) -> None:
        """Gives each running sequence from `index` on its tokens, oldest first; without `decode` unfinished prompts only."""
        running, max_model_len = self.running, self.rules.max_model_len
        lookahead = plan.lookahead_slots
        while index < len(running) and plan.budget > 0:
            sequence = running[index]
            index += 1
            computed = sequence.computed
            is_prompt = computed < sequence.prefill_tokens
            if not (is_prompt or decode):
                continue
            new_tokens = self._wanted(plan, sequence)
            slots = min(computed + new_tokens + lookahead, max_model_len)
            if slots > sequence.kv_tokens:
                slots = self._make_room(plan, sequence, slots)
                if slots == 0:
                    return
                new_tokens = min(new_tokens, slots - computed)
            if is_prompt:
                plan.add_prompt(sequence, new_tokens)
                self.kv.publish(sequence.request_id, sequence.runs, computed + new_tokens)
            else:
                plan.decoding.append(sequence)
                plan.decode.append((computed, new_tokens - 1))
                plan.budget -= new_tokens

    def _wanted(self, plan: StepPlan, sequence: SequenceState) -> int:
        """Tokens that a running sequence is given: what is left of its prompt, or one and its drafts; no more than the budget."""
        if sequence.computed < sequence.prefill_tokens:
            return min(sequence.prefill_tokens - sequence.computed, plan.budget)
        if plan.num_speculative_tokens == 0:
            return 1
        emitted = sequence.emitted
        proposed = sequence.path.proposed(emitted, plan.num_speculative_tokens)
        return 1 + min(proposed, plan.budget - 1, sequence.longest_output - emitted - 1)

    def _make_room(self, plan: StepPlan, sequence: SequenceState, slots: int) -> int:
        """Gets `sequence` KV slots, preempting from the youngest down to itself. Returns the slots it got; 0 if it went.

        A sequence left alone takes what there is, first giving up its lookahead, then drafts: `refusal` made sure
        that its next token fits.
        """
        while not self.kv.grow(sequence.request_id, slots):
            if len(self.running) == 1 and not (self.in_transit or self.landed):
                slots = self.kv.room_tokens(sequence.request_id)
                continue
            youngest = self.running.pop()
            self._preempt(youngest)
            plan.preempted += 1
            if youngest is sequence:
                return 0
        sequence.kv_tokens = self.kv.blocks_of(sequence.request_id) * self.rules.block_tokens
        return slots

    def _preempt(self, sequence: SequenceState) -> None:
        """Back to the head of the queue. What it emitted stays emitted, and is recomputed as part of its prompt.

        Unless the host has room for its blocks: then it goes on where it was.
        """
        blocks = self.kv.blocks_for(sequence.computed)
        self._release(sequence)
        sequence.kv_tokens = 0
        if blocks <= self.free_host_blocks:
            self.free_host_blocks -= blocks
            self._moved_blocks += blocks
            sequence.swapped_blocks = blocks
            sequence.swaps += 1
        else:
            sequence.prefill_tokens = sequence.prompt_tokens + sequence.emitted
            sequence.computed = 0
        sequence.preemptions += 1
        self.waiting.appendleft(sequence)

    def _admit(self, plan: StepPlan) -> None:
        """Starts waiting prompts in order while slots, budget and blocks last; none in a step that had to preempt."""
        while self.waiting and not plan.preempted and plan.budget > 0 and len(self.running) < self.rules.max_num_seqs:
            sequence = self.waiting[0]
            if not (self._swap_in(plan, sequence) if sequence.swapped_blocks else self._start(plan, sequence)):
                return
        while self.offered and not (self.waiting or plan.preempted) and self._reserve(plan, self.offered[0]):
            self.offered.popleft()

    def _start(self, plan: StepPlan, sequence: SequenceState) -> bool:
        """Starts a prompt behind what the prefix cache holds of it; False if it must wait."""
        rules, kv = self.rules, self.kv
        found = self._found(sequence)
        cached = found.blocks * rules.block_tokens
        new_tokens = min(sequence.prefill_tokens - cached, plan.budget)
        if cached + new_tokens < sequence.prefill_tokens and not rules.chunked_prefill:
            return False
        slots = min(cached + new_tokens + plan.lookahead_slots, rules.max_model_len)
        alone = self._alone
        if alone:
            slots = min(slots, kv.room_tokens(sequence.request_id, found))
        elif not self._has_room(plan, sequence, found):
            return False
        if not kv.admit(sequence.request_id, slots, found, 0 if alone else rules.watermark_blocks):
            plan.slots_may_change = found.unreferenced > 0
            return False
        sequence.computed = cached
        sequence.cached_tokens += cached
        self._run(sequence)
        plan.add_prompt(sequence, new_tokens, cached if rules.recomputes_draft else 0)
        kv.publish(sequence.request_id, sequence.runs, cached + new_tokens)
        return True

    def _swap_in(self, plan: StepPlan, sequence: SequenceState) -> bool:
        """Brings a sequence back from the host, which goes on in this step; False if it must wait."""
        rules, kv = self.rules, self.kv
        slots = min(sequence.computed + self._wanted(plan, sequence) + plan.lookahead_slots, rules.max_model_len)
        if self._alone:
            slots = min(slots, kv.room_tokens(sequence.request_id))
        elif kv.blocks_for(slots) + self._promised(plan) + rules.watermark_blocks > kv.free_blocks:
            return False
        kv.grow(sequence.request_id, slots)
        self.free_host_blocks += sequence.swapped_blocks
        self._moved_blocks += sequence.swapped_blocks
        sequence.swapped_blocks = 0
        self._run(sequence)
        Scheduler._schedule_running(self, plan, not rules.prefill_first, len(self.running) - 1)
        return True

    def _reserve(self, plan: StepPlan, sequence: SequenceState) -> bool:
        """Keeps blocks for a prompt that another engine computes, behind what is found of it; False if it must wait.

        Lookahead is taken as it runs (vllm-project/vllm#46694).
        """
        rules, kv, found, alone = self.rules, self.kv, self._found(sequence), self._alone
        if not alone and not self._has_room(plan, sequence, found):
            return False
        if not kv.admit(sequence.request_id, sequence.prompt_tokens, found, 0 if alone else rules.watermark_blocks):
            plan.slots_may_change |= found.unreferenced > 0
            return False
        self.in_transit[sequence.request_id] = sequence
        self.reserved.append((sequence, found.blocks * rules.block_tokens))
        return True

    def land(self, sequence: SequenceState, computed: int) -> None:
        """The cache of `computed` tokens of a prompt has come, for the next plan to see."""
        del self.in_transit[sequence.request_id]
        sequence.computed = computed
        self.landed.append(sequence)

    def hand_over(self, sequences: list[SequenceState]) -> None:
        """Prompts are computed, for another engine to go on with them: they hold their blocks until `let_go`."""
        self.in_transit |= {sequence.request_id: sequence for sequence in sequences}
        self.running = [sequence for sequence in self.running if sequence.request_id not in self.in_transit]

    def let_go(self, sequence: SequenceState) -> None:
        """One that was handed over has come, or one whose cache should come will not: its blocks are free at the next plan."""
        del self.in_transit[sequence.request_id]
        self.freed.append(sequence.request_id)

    def _settle_transfers(self) -> None:
        """Frees blocks of transfers that are over; what has come can be found, and runs in its order while there are slots."""
        for request_id in self.freed:
            self.kv.release(request_id)
        self.freed.clear()
        stay: deque[SequenceState] = deque()
        for sequence in self.landed:
            if sequence.ended:
                self._release(sequence)
                continue
            self.kv.publish(sequence.request_id, sequence.runs, sequence.computed)
            if len(self.running) < self.rules.max_num_seqs:
                self._join(sequence)
            else:
                stay.append(sequence)
        self.landed = stay

    def _join(self, sequence: SequenceState) -> None:
        """A sequence whose cache has come runs."""
        self.running.append(sequence)
        sequence.kv_tokens = self.kv.blocks_of(sequence.request_id) * self.rules.block_tokens

    def _run(self, sequence: SequenceState) -> None:
        """Takes the first of the queue among the running."""
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.kv_tokens = self.kv.blocks_of(sequence.request_id) * self.rules.block_tokens

    def _found(self, sequence: SequenceState) -> Match:
        """What the prefix cache holds of a prompt. Its last token is computed in any case, for there is nothing to emit else."""
        if not sequence.runs:
            return NOTHING
        found = self.kv.find(sequence.runs, (sequence.prefill_tokens - 1) // self.rules.block_tokens)
        less = self.rules.recomputed_blocks
        return self.kv.find(sequence.runs, max(found.blocks - less, 0)) if less and found.blocks else found

    def _has_room(self, plan: StepPlan, sequence: SequenceState, found: Match) -> bool:
        """Whether the pool holds what the admission rule asks for, beside what running sequences were promised."""
        if self.rules.admission == "first_chunk":
            return True
        wanted = self.kv.blocks_for(self._promise(plan, sequence)) - found.blocks + found.unreferenced
        return wanted + self._promised(plan) + self.rules.watermark_blocks <= self.kv.free_blocks

    def _promised(self, plan: StepPlan) -> int:
        """Blocks that running sequences were promised by the admission rule and do not hold yet."""
        if self.rules.admission == "first_chunk":
            return 0
        promised = 0
        for running in self._admitted_for():
            missing = self.kv.blocks_for(self._promise(plan, running)) - self._held(plan, running)
            if missing > 0:
                promised += missing
        return promised

    def _admitted_for(self) -> Iterable[SequenceState]:
        """Sequences that may have been promised more than they hold."""
        return (*self.running, *self.in_transit.values(), *self.landed) if self.in_transit or self.landed else self.running

    def _held(self, plan: StepPlan, sequence: SequenceState) -> int:  # noqa: ARG002
        """Blocks that a running sequence reads."""
        return self.kv.blocks_of(sequence.request_id)

    def _promise(self, plan: StepPlan, sequence: SequenceState) -> int:
        """KV slots a sequence is admitted for."""
        if self.rules.admission == "whole_request":
            longest = sequence.prompt_tokens + sequence.output_tokens + plan.lookahead_slots + plan.num_speculative_tokens
            return min(longest, self.rules.max_model_len)
        unfinished = sequence.computed < sequence.prefill_tokens
        return min(sequence.prefill_tokens + plan.lookahead_slots, self.rules.max_model_len) if unfinished else 0
