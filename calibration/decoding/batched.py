"""Plain and speculative decoding of many sequences in one batch, each accepting as many drafts as it may.

A sequence draws from its own random streams, so that it writes what it would write alone; only rounding, which depends on
the batch, can turn a near tie. Sequences that end leave the batch.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Any

from calibration.decoding.counting import ForwardCounter, ForwardCountError, check_all_accounted_for
from calibration.decoding.drafters import BatchDraftSession, Drafter, Proposal
from calibration.decoding.generation import Round, check_request, until_end
from calibration.decoding.models import CausalModel, as_model
from calibration.decoding.phases import Phase, Phases, no_phases
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling
from calibration.decoding.speculation import accept, agreement


@dataclass(frozen=True)
class BatchGeneration:
    """Tokens and rounds of each sequence, in the order of the prompts, and the forward passes of the whole batch."""

    tokens: tuple[tuple[int, ...], ...]
    rounds: tuple[tuple[Round, ...], ...]
    target_forwards: int
    draft_forwards: int = 0


def plain_generate_batch(
    target: Any,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    eos_ids: Collection[int] = (),
    phases: Phases = no_phases,
) -> BatchGeneration:
    """As `plain_generate`, for all prompts at once."""
    model = as_model(target)
    loop = _BatchLoop(model, None, prompts, max_new_tokens, 0, sampling=sampling, seed=seed, eos_ids=eos_ids, phases=phases)
    done = loop.run()
    return BatchGeneration(done.tokens, tuple(() for _ in prompts), done.target_forwards)


def speculative_generate_batch(
    target: Any,
    drafter: Drafter,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
    k: int,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    eos_ids: Collection[int] = (),
    bonus: bool = True,
    phases: Phases = no_phases,
) -> BatchGeneration:
    """As `speculative_generate`, for all prompts at once: one forward pass of the target per round of the batch.

    Raises:
        DecodingError: the request or the pair makes no sense.
        ForwardCountError: a round did not cost exactly one forward pass of the target.
    """
    model = as_model(target)
    drafter.check(model)
    loop = _BatchLoop(
        model, drafter, prompts, max_new_tokens, k, sampling=sampling, seed=seed, eos_ids=eos_ids, phases=phases, bonus=bonus
    )
    return loop.run()


@dataclass
class _Sequence:
    """One sequence under way."""

    context: list[int]
    prompt_length: int
    streams: RandomStreams
    rounds: list[Round] = field(default_factory=list)

    @property
    def generated(self) -> int:
        return len(self.context) - self.prompt_length


class _BatchLoop:
    def __init__(
        self,
        target: CausalModel,
        drafter: Drafter | None,
        prompts: Sequence[Sequence[int]],
        max_new_tokens: int,
        k: int,
        *,
        sampling: Sampling,
        seed: int,
        eos_ids: Collection[int],
        phases: Phases,
        bonus: bool = True,
    ):
        for prompt in prompts:
            check_request(target, prompt, max_new_tokens, k if drafter else None)
        self.target, self.drafter, self.sampling, self.phases = target, drafter, sampling, phases
        self.max_new_tokens, self.k, self.eos_ids, self.bonus = max_new_tokens, k, eos_ids, bonus
        self.all = [_Sequence(list(p), len(p), RandomStreams(seed, index)) for index, p in enumerate(prompts)]
        self.active = list(self.all)
        self.cache = RaggedCache(target, len(prompts))
        self.target_calls = ForwardCounter([target.module])
        self.draft_calls = ForwardCounter(drafter.modules if drafter else ())
        self.target_forwards = self.draft_forwards = 0

    def run(self) -> BatchGeneration:
        session = (
            self.drafter.batch_session(
                self.target, self.cache, [s.streams for s in self.all], sampling=self.sampling, phases=self.phases
            )
            if self.drafter
            else None
        )
        try:
            if self.max_new_tokens and self.all:
                with self.target_calls, self.draft_calls:
                    self._verify([([], None)] * len(self.all), "prefill")
                    self._drop_ended(session)
                    while self.active:
                        self._round(session)
                        self._drop_ended(session)
        finally:
            if session is not None:
                session.close()
        shared = any(module is self.target.module for module in self.draft_calls.modules)
        check_all_accounted_for(self.target_calls, self.target_forwards, self.draft_forwards, shared)
        return BatchGeneration(
            tuple(tuple(s.context[s.prompt_length :]) for s in self.all),
            tuple(tuple(s.rounds) for s in self.all),
            self.target_forwards,
            self.draft_forwards,
        )

    def _round(self, session: BatchDraftSession | None) -> None:
        proposals: list[Proposal] = [([], None)] * len(self.active)
        if session is not None:
            wanted = [min(self.k, self.max_new_tokens - s.generated - int(self.bonus)) for s in self.active]
            before = self.draft_calls.forwards
            proposals = session.propose([s.context for s in self.active], wanted)
            self.draft_forwards += self.draft_calls.forwards - before
        accepted = self._verify(proposals, "verify" if session else "decode")
        for sequence, (drafts, _), count in zip(self.active, proposals, accepted, strict=True):
            sequence.rounds.append(Round(len(drafts), count))
        if session is not None:
            session.keep([len(s.context) - 1 for s in self.active])

    def _verify(self, proposals: Sequence[Proposal], phase: Phase) -> list[int]:
        """One forward pass over every sequence's new tokens and drafts; extends the contexts, returns accepted drafts."""
        fed = [len(drafts) if self.bonus else max(len(drafts) - 1, 0) for drafts, _ in proposals]
        rows = [
            [*sequence.context[held:], *drafts[:count]]
            for sequence, held, (drafts, _), count in zip(self.active, self.cache.lengths, proposals, fed, strict=True)
        ]
        before = self.target_calls.forwards
        with self.phases(phase, max(map(len, rows))):
            logits = self.cache.feed(rows, last=max(fed) + 1)
        passes = self.target_calls.forwards - before
        if passes != 1:
            raise ForwardCountError(f"a round must cost one forward pass of the target (counted {passes})")
        self.target_forwards += passes
        accepted = []
        with self.phases("sampling", max(fed) + 1):
            for index, (sequence, (drafts, probs)) in enumerate(zip(self.active, proposals, strict=True)):
                own = logits[index, -(fed[index] + 1) :]
                emitted = accept(own, drafts, probs, sampling=self.sampling, streams=sequence.streams)
                emitted = until_end(emitted, self.eos_ids)
                accepted.append(agreement(drafts, emitted))
                sequence.context += emitted
            self.cache.keep([len(sequence.context) - 1 for sequence in self.active])
        return accepted

    def _drop_ended(self, session: BatchDraftSession | None) -> None:
        going = [
            index
            for index, sequence in enumerate(self.active)
            if sequence.generated < self.max_new_tokens and sequence.context[-1] not in self.eos_ids
        ]
        if len(going) == len(self.active):
            return
        self.active = [self.active[index] for index in going]
        if going:
            self.cache.select(going)
            if session is not None:
                session.select(going)
