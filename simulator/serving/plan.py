"""StepPlan: what one engine step runs."""

from __future__ import annotations

from simulator.serving.sequence import SequenceState


class StepPlan:
    """One step: `decode[i]` = (context tokens, drafts) of `decoding[i]`; `prefill[i]` = (new tokens, context) of `prompts[i]`.

    Context tokens are those in the KV cache before the step. budget: tokens not yet given away. booked: decoding sequences that
    stand on the timeline instead of in `decoding`. moved_blocks: to the host and back from it. draft_prefill: `prefill` for the
    drafter, where that differs. slots_may_change: what the next waiting prompt would need depends on what the prefix cache keeps.
    running, waiting, used_blocks: as the step starts.
    """

    __slots__ = (
        "booked", "budget", "decode", "decoding", "draft_prefill", "lookahead_slots", "moved_blocks", "num_speculative_tokens",
        "preempted", "prefill", "prompts", "prompts_finished", "running", "slots_may_change", "used_blocks", "waiting",
    )  # fmt: skip

    def __init__(self, budget: int, num_speculative_tokens: int, lookahead_slots: int):
        self.budget, self.num_speculative_tokens, self.lookahead_slots = budget, num_speculative_tokens, lookahead_slots
        self.decoding: list[SequenceState] = []
        self.decode: list[tuple[int, int]] = []
        self.prompts: list[SequenceState] = []
        self.prefill: list[tuple[int, int]] = []
        self.draft_prefill: list[tuple[int, int]] | None = None
        self.prompts_finished = self.preempted = self.booked = self.moved_blocks = 0
        self.running = self.waiting = self.used_blocks = 0
        self.slots_may_change = False

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
