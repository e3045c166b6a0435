"""Speculation: the method, its drafter, and how many tokens are drafted per round."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.architecture import ModelArchitecture
from simulator.spec import Spec

Method = Literal["none", "draft_model", "eagle", "eagle3", "ngram"]
METHODS: tuple[Method, ...] = ("none", "draft_model", "eagle", "eagle3", "ngram")
HEAD_METHODS: tuple[Method, ...] = ("eagle", "eagle3")
Gamma = Annotated[int, Field(ge=1, le=64)]
BatchRange = Annotated[tuple[int, int, int], Field(description="first batch, last batch, tokens drafted (0 = off)")]
# Later methods, known by name so that asking for one is answered and not taken for a typing mistake.
PLANNED = ("medusa", "hydra", "mtp", "suffix", "block", "layer_skip", "sparse_kv")


class Speculation(Spec):
    """The `speculation:` section.

    num_speculative_tokens: γ, or a list of them to compare. by_batch: γ by running batch instead, as
    ``[[first, last, γ], …]``; batches not covered run without drafts. drafter_weights: type of the draft's weights.
    heterogeneous_vocabulary: the engine maps between different tokenizers, so they may differ.
    """

    method: Method
    drafter: str | None = None
    drafter_weights: Literal["bf16", "fp16", "fp8", "fp32"] | None = None
    num_speculative_tokens: Gamma | Annotated[tuple[Gamma, ...], Field(min_length=1)] | None = None
    by_batch: Annotated[tuple[BatchRange, ...], Field(min_length=1)] | None = None
    heterogeneous_vocabulary: bool = False

    @model_validator(mode="after")
    def _consistent(self) -> Speculation:
        if self.method == "none":
            extra = [
                name
                for name in ("drafter", "drafter_weights", "num_speculative_tokens", "by_batch")
                if getattr(self, name) is not None
            ]
            if extra:
                raise ValueError(f"method none takes no {extra[0]}")
            return self
        if (self.num_speculative_tokens is None) == (self.by_batch is None):
            raise ValueError("must hold exactly one of num_speculative_tokens and by_batch")
        if self.method == "draft_model" and self.drafter is None:
            raise ValueError("method draft_model must name its drafter")
        if self.method == "ngram" and (self.drafter or self.drafter_weights):
            raise ValueError("method ngram has no drafter model: leave out drafter and drafter_weights")
        if self.heterogeneous_vocabulary and self.method != "draft_model":
            raise ValueError("heterogeneous_vocabulary applies to method draft_model only")
        for first, last, gamma in self.by_batch or ():
            if not (1 <= first <= last and 0 <= gamma <= 64):
                raise ValueError(
                    "by_batch entries must be [first, last, tokens] with 1 <= first <= last and 0 <= tokens <= 64 "
                    f"(got {[first, last, gamma]})"
                )
        return self

    @property
    def gammas(self) -> tuple[int, ...]:
        """Every γ to compare; for `by_batch` the largest one."""
        if self.by_batch is not None:
            return (max(gamma for _, _, gamma in self.by_batch),)
        given = self.num_speculative_tokens
        return () if given is None else (given,) if isinstance(given, int) else given

    def tokens_at(self, gamma: int, running: int) -> int:
        """Tokens drafted per sequence when `running` sequences decode; `gamma` where no table is given."""
        if self.by_batch is None:
            return gamma
        return next((tokens for first, last, tokens in self.by_batch if first <= running <= last), 0)


def tokenizer_problem(target: ModelArchitecture, drafter: ModelArchitecture) -> str | None:
    """Why a draft's tokens cannot be the target's: other tokenizer family, or vocabularies too different to be padding.

    Padded vocabularies of one family differ by up to a few hundred rows; a head's reduced `draft_vocab_size` maps into
    the target's vocabulary and is normal.
    """
    if drafter.kind == "draft_head":
        same = drafter.hidden_size == target.hidden_size or drafter.base_model is None
        return (
            None
            if same
            else f"is a head for {drafter.base_model} (width {drafter.hidden_size}), target has width {target.hidden_size}"
        )
    mine, theirs = drafter.tokenizer, target.tokenizer
    if mine and theirs and mine != theirs:
        return f"drafter tokenizer {mine} ({drafter.vocab_size}) differs from target tokenizer {theirs} ({target.vocab_size})"
    if not (mine and theirs) and abs(drafter.vocab_size - target.vocab_size) > 0.01 * target.vocab_size:
        return f"drafter vocabulary ({drafter.vocab_size}) differs from target vocabulary ({target.vocab_size})"
    return None
