"""Whole generations, plain and speculative, of one sequence; every round recorded and every forward pass counted."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from calibration.decoding.counting import ForwardCounter, ForwardCountError, check_all_accounted_for
from calibration.decoding.drafters import Drafter, DraftSession
from calibration.decoding.errors import DecodingError
from calibration.decoding.models import CausalModel, KeyValueCache, as_model
from calibration.decoding.phases import Phases, no_phases
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling, choose
from calibration.decoding.speculation import agreement, target_verify


@dataclass(frozen=True, slots=True)
class Round:
    """What one round proposed and how many of it were accepted and emitted."""

    proposed: int
    accepted: int


@dataclass(frozen=True)
class Generation:
    """The tokens after the prompt, the rounds they came in, and the forward passes they cost.

    `target_forwards` counts prefill and verification, `draft_forwards` what the drafter ran, also where both are passes of
    the same model. Plain decoding has no rounds.
    """

    tokens: tuple[int, ...]
    rounds: tuple[Round, ...]
    target_forwards: int
    draft_forwards: int = 0


def plain_generate(
    target: Any,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    eos_ids: Collection[int] = (),
    phases: Phases = no_phases,
) -> Generation:
    """One token per forward pass, until `max_new_tokens` or a token of `eos_ids`, which is emitted."""
    model = as_model(target)
    check_request(model, prompt_ids, max_new_tokens)
    cache, streams = model.new_cache(rewinds=False), RandomStreams(seed)
    tokens: list[int] = []
    with ForwardCounter([model.module]) as counter:
        while len(tokens) < max_new_tokens and not (tokens and tokens[-1] in eos_ids):
            tokens.append(_next_token(model, [*prompt_ids, *tokens], cache, sampling, streams, phases))
    return Generation(tuple(tokens), (), counter.forwards)


def speculative_generate(
    target: Any,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    k: int,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    eos_ids: Collection[int] = (),
    bonus: bool = True,
    prefill: bool = True,
    phases: Phases = no_phases,
) -> Generation:
    """Drafts of at most `k` tokens, each verified by one forward pass of the target.

    As in serving, the target first runs over the prompt, which yields the first token; with `prefill` off the prompt is part of
    the first verification. No draft goes past the token budget, with or without the bonus token.

    Raises:
        DecodingError: the request or the pair makes no sense.
        ForwardCountError: a round did not cost exactly one forward pass of the target.
    """
    model = as_model(target)
    check_request(model, prompt_ids, max_new_tokens, k)
    drafter.check(model)
    loop = _SpeculativeLoop(model, drafter, prompt_ids, sampling=sampling, seed=seed, bonus=bonus, phases=phases)
    return loop.run(max_new_tokens, k, eos_ids, prefill)


class _SpeculativeLoop:
    """One speculative generation under way."""

    def __init__(
        self,
        target: CausalModel,
        drafter: Drafter,
        prompt_ids: Sequence[int],
        *,
        sampling: Sampling,
        seed: int,
        bonus: bool,
        phases: Phases,
    ):
        self.target, self.drafter, self.sampling, self.bonus, self.phases = target, drafter, sampling, bonus, phases
        self.streams, self.cache = RandomStreams(seed), target.new_cache()
        self.context, self.prompt_length = list(prompt_ids), len(prompt_ids)
        self.rounds: list[Round] = []
        self.target_calls = ForwardCounter([target.module])
        self.draft_calls = ForwardCounter(drafter.modules)
        self.target_forwards = self.draft_forwards = 0

    def run(self, max_new_tokens: int, k: int, eos_ids: Collection[int], prefill: bool) -> Generation:
        session = self.drafter.session(self.target, self.cache, sampling=self.sampling, streams=self.streams, phases=self.phases)
        end = self.prompt_length + max_new_tokens
        try:
            with self.target_calls, self.draft_calls:
                if prefill and max_new_tokens:
                    self.context.append(self._prefill())
                while len(self.context) < end and not self._ended(eos_ids):
                    self._round(session, min(k, end - len(self.context) - int(self.bonus)), eos_ids)
        finally:
            session.close()
        shared = any(module is self.target.module for module in self.drafter.modules)
        check_all_accounted_for(self.target_calls, self.target_forwards, self.draft_forwards, shared)
        return Generation(
            tuple(self.context[self.prompt_length :]), tuple(self.rounds), self.target_forwards, self.draft_forwards
        )

    def _ended(self, eos_ids: Collection[int]) -> bool:
        return len(self.context) > self.prompt_length and self.context[-1] in eos_ids

    def _prefill(self) -> int:
        before = self.target_calls.forwards
        token = _next_token(self.target, self.context, self.cache, self.sampling, self.streams, self.phases)
        self.target_forwards += self.target_calls.forwards - before
        return token

    def _round(self, session: DraftSession, k: int, eos_ids: Collection[int]) -> None:
        before = self.draft_calls.forwards
        draft_tokens, draft_probs = session.propose(self.context, k) if k else ([], None)
        self.draft_forwards += self.draft_calls.forwards - before
        before = self.target_calls.forwards
        emitted = target_verify(
            self.target,
            self.context,
            draft_tokens,
            draft_probs,
            cache=self.cache,
            sampling=self.sampling,
            streams=self.streams,
            bonus=self.bonus,
            phases=self.phases,
        )
        passes = self.target_calls.forwards - before
        if passes != 1:
            raise ForwardCountError(f"a round must cost one forward pass of the target (counted {passes})")
        self.target_forwards += passes
        emitted = until_end(emitted, eos_ids)
        accepted = agreement(draft_tokens, emitted)
        self.rounds.append(Round(len(draft_tokens), accepted))
        self.context += emitted
        session.keep(len(self.context) - 1)


def _next_token(
    model: CausalModel,
    context: Sequence[int],
    cache: KeyValueCache,
    sampling: Sampling,
    streams: RandomStreams,
    phases: Phases,
) -> int:
    """One forward pass over what the cache lacks of the context; the token that follows."""
    pending = list(context[cache.length :])
    with phases("decode" if cache.length else "prefill", len(pending)):
        logits = model(torch.tensor([pending]), cache, last=1)[0, -1]
    with phases("sampling", 1):
        return choose(logits, sampling, streams.emit)


def until_end(tokens: Sequence[int], eos_ids: Collection[int]) -> list[int]:
    """The tokens up to the first that ends the sequence, itself included."""
    for index, token in enumerate(tokens):
        if token in eos_ids:
            return list(tokens[: index + 1])
    return list(tokens)


def check_request(model: CausalModel, prompt_ids: Sequence[int], max_new_tokens: int, k: int | None = None) -> None:
    """Raises DecodingError for an empty prompt, tokens outside the vocabulary, a negative budget, or no drafts to verify."""
    if not len(prompt_ids):
        raise DecodingError("prompt_ids: must hold at least one token")
    if not 0 <= min(prompt_ids) <= max(prompt_ids) < model.vocab_size:
        raise DecodingError(
            f"prompt_ids: must be tokens from 0 to {model.vocab_size - 1} (got {min(prompt_ids)} to {max(prompt_ids)})"
        )
    if max_new_tokens < 0:
        raise DecodingError(f"max_new_tokens: must be at least 0 (got {max_new_tokens})")
    if k is not None and k < 1:
        raise DecodingError(f"k: must be at least 1 (got {k})")
