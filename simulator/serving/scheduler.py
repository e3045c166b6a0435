"""What the next engine step runs: continuous batching as in vLLM V1, without a clock.

Running sequences come first, in the order of their admission, each decoding one with 1 + drafts tokens of the step's
token budget; then waiting prompts, first come first served, cut into chunks that fill what is left of the budget.
When KV blocks run out, the sequence admitted last loses its blocks and computes its tokens again later, or has them moved to
the host and back. A prompt whose beginning is in the prefix cache starts behind it.

Where prompts are computed elsewhere (`disaggregation`), blocks are reserved for a prompt as it would be admitted; once its cache
has come it runs as soon as there is a slot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from simulator.serving.kv_cache import KVCache
from simulator.serving.plan import StepPlan
from simulator.serving.prefix_cache import NOTHING, Match, Run, block_runs
from simulator.serving.rules import BatchingRules
from simulator.serving.sequence import AcceptanceByPosition, SequenceState
from simulator.workload import Request


class Scheduler:
    """Queues, KV blocks and the plan of the next step.

    `num_speculative_tokens(running)` is asked once a step with the number of running sequences before new ones are admitted.
    """

    def __init__(self, rules: BatchingRules, num_speculative_tokens: Callable[[int], int]):
        self.rules = rules
        self.num_speculative_tokens = num_speculative_tokens
        self.kv = KVCache(rules.total_blocks, rules.block_tokens, rules.prefix_caching, rules.state_blocks)
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
        self._preempted_before = self._moved_blocks = 0  # for the next step to tell of and to pay

    def sequence(self, request: Request, now_s: float, path: AcceptanceByPosition) -> SequenceState:
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
            self.settle_transfers()
        if not (self.running or self.waiting or self.offered):
            return None
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
            if plan.preempted:  # what was preempted, or has come in its place, starts where it can
                self._preempted_before += plan.preempted
                return self.plan()
            if self.in_transit:
                return None  # what is under way will go on, or free its blocks
            raise RuntimeError(f"no progress with {len(self.running)} running, {len(self.waiting)} waiting requests")
        self.kv.check()
        plan.preempted += self._preempted_before
        plan.moved_blocks = self._moved_blocks
        self._preempted_before = self._moved_blocks = 0
        plan.running, plan.waiting, plan.used_blocks = len(self.running), self.num_waiting, self.kv.used_blocks
        return plan

    @property
    def num_waiting(self) -> int:
        """Requests that are here and do not run."""
        waiting = len(self.waiting)
        if self.offered or self.in_transit or self.landed:
            waiting += len(self.offered) + len(self.in_transit) + len(self.landed)
        return waiting

    @property
    def _alone(self) -> bool:
        """Whether nothing holds blocks."""
        return not (self.running or self.in_transit or self.landed)

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
        sequence.kv_tokens = self.kv.tokens_of(sequence.request_id)
        return slots

    def _preempt(self, sequence: SequenceState) -> None:
        """Back to the head of the queue. What it emitted stays emitted, and is recomputed as part of its prompt.

        Unless the host has room for its blocks: then it goes on where it was.
        """
        blocks = self.kv.blocks_for(sequence.computed) if sequence.computed else 0
        self._release(sequence)
        sequence.kv_tokens = 0
        if 0 < blocks <= self.free_host_blocks:
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

    def settle_transfers(self) -> None:
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
        sequence.kv_tokens = self.kv.tokens_of(sequence.request_id)

    def _run(self, sequence: SequenceState) -> None:
        """Takes the first of the queue among the running."""
        self.waiting.popleft()
        self.running.append(sequence)
        sequence.kv_tokens = self.kv.tokens_of(sequence.request_id)

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
        if self.rules.admission == "whole_request":
            promises = self._whole_requests(plan, self._admitted_for())
            # None ever holds more than it was promised.
            return sum([self.kv.blocks_for(slots) for slots in promises]) - self.kv.read_blocks
        promised = 0
        for running in self._admitted_for():
            missing = self.kv.blocks_for(self._promise(plan, running)) - self.kv.blocks_of(running.request_id)
            if missing > 0:
                promised += missing
        return promised

    def _admitted_for(self) -> Iterable[SequenceState]:
        """Sequences that may have been promised more than they hold."""
        return (*self.running, *self.in_transit.values(), *self.landed) if self.in_transit or self.landed else self.running

    def _promise(self, plan: StepPlan, sequence: SequenceState) -> int:
        """KV slots a sequence is admitted for."""
        if self.rules.admission == "whole_request":
            return self._whole_requests(plan, (sequence,))[0]
        unfinished = sequence.computed < sequence.prefill_tokens
        return min(sequence.prefill_tokens + plan.lookahead_slots, self.rules.max_model_len) if unfinished else 0

    def _whole_requests(self, plan: StepPlan, sequences: Iterable[SequenceState]) -> list[int]:
        """KV slots of each to its end."""
        drafts = max(plan.num_speculative_tokens, self.rules.most_drafts)
        beyond, most = self.rules.lookahead_slots(drafts) + drafts, self.rules.max_model_len
        return [min(sequence.prompt_tokens + sequence.output_tokens + beyond, most) for sequence in sequences]
