"""Acceptance traces of a real pair: one target generation and one teacher-forced draft pass per prompt.

Let x be the target's own output, p_t its distribution at position t and q_t the draft's, both given the true prefix. Then a
draft for position t is accepted with a_t = min(1, q_t(x_t) / p_t(x_t)), independently over t (the derivation is in
`simulator.acceptance.traces`): no γ, no simulated rounds, no repeated runs.

That holds where a draft depends on the text alone. What a look-up or a head proposes also depends on where its round
began, so for these every position begins a round of its own, `depth` drafts deep, and gets a row of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from calibration.decoding import (
    GREEDY,
    CausalModel,
    DecodingError,
    Drafter,
    DraftSession,
    LayerSkipDrafter,
    ModelDrafter,
    RandomStreams,
    Sampling,
)
from calibration.decoding.models import KeyValueCache
from calibration.decoding.sampling import choose
from calibration.decoding.speculation import resized

DEPTH = 16


@dataclass(frozen=True, slots=True)
class PromptTrace:
    """What one prompt gave. `acceptance` has one number per emitted token, or one row of `depth` numbers, at most one past
    the end of the output being 0; `proposed` how many drafts a round that starts there would have, None where always γ."""

    tokens: tuple[int, ...]
    acceptance: tuple[float, ...] | tuple[tuple[float, ...], ...]
    proposed: tuple[int, ...] | None
    prompt_sha256: str

    @property
    def output_sha256(self) -> str:
        return tokens_sha256(self.tokens)


def depends_on_round_start(drafter: Drafter) -> bool:
    """Whether a draft depends on where its round began, and not only on the text before it."""
    if isinstance(drafter, LayerSkipDrafter) and drafter.share_cache:
        return drafter.layers != tuple(range(len(drafter.layers)))
    return not isinstance(drafter, ModelDrafter)


def trace_prompt(
    target: CausalModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    *,
    sampling: Sampling = GREEDY,
    seed: int = 0,
    sequence: int = 0,
    eos_ids: Collection[int] = (),
    depth: int = DEPTH,
) -> PromptTrace:
    """The trace of one prompt; the same seed and sequence give the tokens that plain decoding gives.

    Raises DecodingError where the pair does not fit together, or a drafter whose drafts depend on the start of their round
    samples them: what it would have drafted is then no longer given by the text.
    """
    drafter.check(target)
    rows = _RoundRows(target, drafter, sampling, depth) if depends_on_round_start(drafter) else None
    tokens, target_probs = _generate(target, prompt_ids, max_new_tokens, sampling, RandomStreams(seed, sequence), eos_ids, rows)
    prompt_sha256 = tokens_sha256(prompt_ids)
    if rows is not None:
        acceptance, proposed = rows.acceptance(tokens)
        return PromptTrace(tuple(tokens), acceptance, proposed, prompt_sha256)
    if not isinstance(drafter, ModelDrafter):
        raise DecodingError(f"drafter {drafter.name}: must be a model to be traced in one pass")
    draft_probs = _teacher_forced(drafter, target.vocab_size, prompt_ids, tokens, drafter.sampling or sampling)
    return PromptTrace(tuple(tokens), tuple(np.minimum(1.0, draft_probs / target_probs).tolist()), None, prompt_sha256)


def _generate(
    target: CausalModel,
    prompt_ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    streams: RandomStreams,
    eos_ids: Collection[int],
    rows: _RoundRows | None,
) -> tuple[list[int], np.ndarray[tuple[int], np.dtype[np.float64]]]:
    """(tokens, probability of each under the target), as plain decoding emits them."""
    cache = target.new_cache()
    context, tokens, probabilities = list(prompt_ids), [], []
    if rows is not None:
        rows.begin(cache, prompt_ids)
    try:
        while len(tokens) < max_new_tokens and not (tokens and tokens[-1] in eos_ids):
            if rows is not None:
                rows.propose(context)
            logits = target(torch.tensor([context[cache.length :]]), cache, last=1)[0, -1]
            token = choose(logits, sampling, streams.emit)
            probabilities.append(float(sampling.probabilities(logits)[token]))
            tokens.append(token)
            context.append(token)
    finally:
        if rows is not None:
            rows.close()
    return tokens, np.array(probabilities)


def _teacher_forced(
    drafter: ModelDrafter, vocab_size: int, prompt_ids: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """The draft's probability of each token of the target's output, in one pass over the whole text."""
    text = torch.tensor([[*prompt_ids, *tokens][:-1]])
    logits = resized(drafter.model(text, drafter.model.new_cache(), last=len(tokens))[0], vocab_size)
    chosen = sampling.probabilities(logits).gather(-1, torch.tensor(tokens)[:, None].to(logits.device))
    return chosen[:, 0].double().cpu().numpy()


class _RoundRows:
    """A round begun at every position: what the drafter proposes there, held against what the target then emits."""

    def __init__(self, target: CausalModel, drafter: Drafter, sampling: Sampling, depth: int):
        own = getattr(drafter, "sampling", None) or sampling
        if drafter.modules and not own.greedy:
            raise DecodingError(
                f"drafter {drafter.name}: must draft greedily to be traced, since its drafts depend on the start of their round"
            )
        self.target, self.drafter, self.depth = target, drafter, depth
        self.session: DraftSession | None = None
        self.proposals: list[list[int]] = []

    def begin(self, cache: KeyValueCache, prompt_ids: Sequence[int]) -> None:
        self.session = self.drafter.session(self.target, cache)
        if self.drafter.modules and len(prompt_ids) > 1:
            # Heads draft from the target's states: it runs ahead to all but the last token, as before any round.
            self.target(torch.tensor([list(prompt_ids[:-1])]), cache, last=1)

    def propose(self, context: Sequence[int]) -> None:
        if self.session is None:
            raise RuntimeError("must begin first")
        drafts, _ = self.session.propose(context, self.depth)
        self.session.keep(len(context))
        self.proposals.append(list(drafts))

    def close(self) -> None:
        if self.session is not None:
            self.session.close()

    def acceptance(self, tokens: Sequence[int]) -> tuple[tuple[tuple[float, ...], ...], tuple[int, ...] | None]:
        """Rows of `depth` flags, 1 as long as drafts agree with the output, and the lengths of the proposals."""
        rows = []
        for start, drafts in enumerate(self.proposals):
            row = [0.0] * self.depth
            for index, (draft, token) in enumerate(zip(drafts, tokens[start:], strict=False)):
                if draft != token:
                    break
                row[index] = 1.0
            rows.append(tuple(row))
        lengths = tuple(len(drafts) for drafts in self.proposals)
        return tuple(rows), None if all(length == self.depth for length in lengths) else lengths


def tokens_sha256(tokens: Sequence[int]) -> str:
    """A text's fingerprint: it tells two apart without storing either."""
    return hashlib.sha256(np.asarray(tokens, dtype="<i4").tobytes()).hexdigest()
