"""StepPlan: what one engine step runs."""

from __future__ import annotations

from dataclasses import dataclass, field

from simulator.serving.sequence import SequenceState


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
