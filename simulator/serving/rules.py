"""BatchingRules: the limits of an engine's steps, in vLLM's words."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal


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
    guaranteed no-evict, under which nothing is ever preempted). There is room then for rounds of `most_drafts`, or of what is
    drafted now where that is more.
    `prefix_caching`: blocks are found again by requests with the same beginning. Of what is found, the last `recomputed_blocks`
    are computed all the same (vLLM under drafters that read the target's states, which are not kept); with `recomputes_draft`
    the drafter takes in all of the prompt, as its own cache keeps nothing.
    `state_blocks`: blocks that every sequence holds beside those of its tokens, for recurrent states and for windows beside a
    compressed cache.
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
    most_drafts: int = 0
    prefix_caching: bool = False
    recomputed_blocks: int = 0
    recomputes_draft: bool = False
    state_blocks: int = 0
    host_blocks: int = 0
    host_block_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "total_blocks", "block_tokens"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1 (got {getattr(self, name)})")
        for name in ("watermark_blocks", "most_drafts", "recomputed_blocks", "state_blocks", "host_blocks", "host_block_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must be at least 0 (got {getattr(self, name)})")

    def held_tokens(self, tokens: float) -> float:
        """Tokens whose room a sequence of so many takes, its states included."""
        return tokens + self.state_blocks * self.block_tokens

    def refusal(self, prompt_tokens: int, output_tokens: int) -> str:
        """Why such a request can never be served, or "" if it can. The same with and without speculation."""
        cached = prompt_tokens + output_tokens - 1  # the last token is emitted, never fed back
        if prompt_tokens + output_tokens > self.max_model_len:
            return "longer than max_model_len"
        if self.held_tokens(cached) > self.total_blocks * self.block_tokens:
            return "larger than the KV cache"
        # After a preemption the prompt to recompute holds all tokens emitted so far.
        if not self.chunked_prefill and cached > self.max_num_batched_tokens:
            return "longer than max_num_batched_tokens without chunked prefill"
        return ""
