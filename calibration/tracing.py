"""Acceptance traces of a real pair: one target generation and one teacher-forced draft pass per prompt.

Let x be the target's own output, p_t its distribution at position t and q_t the draft's, both given the true prefix. Then a
draft for position t is accepted with a_t = min(1, q_t(x_t) / p_t(x_t)), independently over t (the derivation is in
`simulator.acceptance.traces`): no γ, no simulated rounds, no repeated runs.

That holds where a draft depends on the text alone. What a look-up or a head proposes also depends on where its round
began, so for these every position begins a round of its own, `depth` drafts deep, and gets a row of its own.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch

from calibration.decoding import (
    GREEDY,
    CausalModel,
    DecodingError,
    Drafter,
    LayerSkipDrafter,
    ModelDrafter,
    RandomStreams,
    Sampling,
)
from calibration.decoding.generation import check_request
from calibration.decoding.models import KeyValueCache
from calibration.decoding.sampling import choose, confidence
from calibration.decoding.speculation import resized

DEPTH = 16
Probabilities = npt.NDArray[np.float64]
Numbers = tuple[float, ...] | tuple[tuple[float, ...], ...]


@dataclass(frozen=True, slots=True)
class PromptTrace:
    """What one prompt gave, by emitted token: `acceptance`, a number or a row of `depth` numbers (0 past the end of the output);
    `proposed`, how many drafts a round that starts there would have, None where always as many as asked for; `confidence`, in the
    shape of `acceptance`, what the drafter gave its likeliest token, None where no model drafts.

    A confidence of one number is that of a draft after the true text: past its first mismatch a round would have drafted after a
    text of its own, which nobody saw. Rows hold the confidence of the drafts as they were made, 0 past the last.
    """

    tokens: tuple[int, ...]
    acceptance: Numbers
    proposed: tuple[int, ...] | None
    prompt_sha256: str
    confidence: Numbers | None = None

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
    """The trace of one prompt; the same seed gives the tokens that plain decoding gives.

    Raises DecodingError where the pair does not fit together, or a drafter whose drafts depend on the start of their round
    samples them: what it would have drafted is then no longer given by the text.
    """
    check_request(target, prompt_ids, max_new_tokens)
    stream = RandomStreams(seed, sequence).emit
    output = _Output(
        ended=lambda tokens: len(tokens) >= max_new_tokens or (bool(tokens) and tokens[-1] in eos_ids),
        choose=lambda logits, _: choose(logits, sampling, stream),
    )
    return _trace(target, drafter, prompt_ids, output, sampling, depth)


def trace_text(
    target: CausalModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    *,
    sampling: Sampling = GREEDY,
    depth: int = DEPTH,
) -> PromptTrace:
    """The trace of an output that is there already and was drawn from the target with this sampling: one pass of each model."""
    check_request(target, prompt_ids, len(tokens))
    if not tokens or (drafter.modules and depends_on_round_start(drafter)):
        output = _Output(ended=lambda done: len(done) == len(tokens), choose=lambda _, index: tokens[index])
        return _trace(target, drafter, prompt_ids, output, sampling, depth)
    drafter.check(target)
    if isinstance(drafter, ModelDrafter):
        target_probs, _ = _teacher_forced(target, target.vocab_size, prompt_ids, tokens, sampling)
        return _one_pass_trace(target, drafter, prompt_ids, tokens, target_probs, sampling)
    with closing(_RoundRows(target, drafter, target.new_cache(), prompt_ids, sampling, depth)) as rows:
        for length in range(len(tokens)):
            rows.propose([*prompt_ids, *tokens[:length]])
    acceptance, proposed = rows.acceptance(list(tokens))
    return PromptTrace(tuple(tokens), acceptance, proposed, tokens_sha256(prompt_ids), rows.confidence_rows())


@dataclass(frozen=True, slots=True)
class _Output:
    """Where an output comes from: whether it ends after these tokens, and its next token by the target's logits and its place."""

    ended: Callable[[Sequence[int]], bool]
    choose: Callable[[torch.Tensor, int], int]


def _trace(
    target: CausalModel,
    drafter: Drafter,
    prompt_ids: Sequence[int],
    output: _Output,
    sampling: Sampling,
    depth: int,
) -> PromptTrace:
    drafter.check(target)
    cache = target.new_cache()
    if depends_on_round_start(drafter):
        with closing(_RoundRows(target, drafter, cache, prompt_ids, sampling, depth)) as rows:
            tokens, _ = _walk(target, cache, prompt_ids, output, sampling, rows.propose)
        acceptance, proposed = rows.acceptance(tokens)
        return PromptTrace(tuple(tokens), acceptance, proposed, tokens_sha256(prompt_ids), rows.confidence_rows())
    if not isinstance(drafter, ModelDrafter):
        raise DecodingError(f"drafter {drafter.name}: must be a model to be traced in one pass")
    tokens, target_probs = _walk(target, cache, prompt_ids, output, sampling)
    return _one_pass_trace(target, drafter, prompt_ids, tokens, target_probs, sampling)


def _one_pass_trace(
    target: CausalModel,
    drafter: ModelDrafter,
    prompt_ids: Sequence[int],
    tokens: Sequence[int],
    target_probs: Probabilities,
    sampling: Sampling,
) -> PromptTrace:
    own = drafter.sampling or sampling
    draft_probs, confident = _teacher_forced(drafter.model, target.vocab_size, prompt_ids, tokens, own)
    acceptance = tuple(np.minimum(1.0, draft_probs / target_probs).tolist())
    return PromptTrace(tuple(tokens), acceptance, None, tokens_sha256(prompt_ids), tuple(confident.tolist()))


def _walk(
    target: CausalModel,
    cache: KeyValueCache,
    prompt_ids: Sequence[int],
    output: _Output,
    sampling: Sampling,
    before_each: Callable[[Sequence[int]], None] = lambda _: None,
) -> tuple[list[int], Probabilities]:
    """(tokens, probability of each under the target), one forward pass of the target per token as in plain decoding.

    `before_each` is handed the context before each of these passes.
    """
    context = list(prompt_ids)
    tokens: list[int] = []
    probabilities: list[float] = []
    while not output.ended(tokens):
        before_each(context)
        logits = target(torch.tensor([context[cache.length :]]), cache, last=1)[0, -1]
        token = output.choose(logits, len(tokens))
        probabilities.append(float(sampling.probabilities(logits)[token]))
        tokens.append(token)
        context.append(token)
    return tokens, np.array(probabilities)


def _teacher_forced(
    model: CausalModel, vocab_size: int, prompt_ids: Sequence[int], tokens: Sequence[int], sampling: Sampling
) -> tuple[Probabilities, Probabilities]:
    """A model's probability of each token of the target's output, and its confidence there, in one pass over the whole text."""
    text = torch.tensor([[*prompt_ids, *tokens][:-1]])
    logits = resized(model(text, model.new_cache(), last=len(tokens))[0], vocab_size)
    chosen = sampling.probabilities(logits).gather(-1, torch.tensor(tokens)[:, None].to(logits.device))
    return chosen[:, 0].double().cpu().numpy(), confidence(logits).double().cpu().numpy()


class _RoundRows:
    """A round begun at every position: what the drafter proposes there, held against what the target then emits."""

    def __init__(
        self,
        target: CausalModel,
        drafter: Drafter,
        cache: KeyValueCache,
        prompt_ids: Sequence[int],
        sampling: Sampling,
        depth: int,
    ):
        own = getattr(drafter, "sampling", None) or sampling
        if drafter.modules and not own.greedy:
            raise DecodingError(
                f"drafter {drafter.name}: must draft greedily to be traced, since its drafts depend on the start of their round"
            )
        self.depth, self.has_model = depth, bool(drafter.modules)
        self.session = drafter.session(target, cache)
        self.session.watch = self._watch
        self.proposals: list[list[int]] = []
        self.confidences: list[float] = []
        if drafter.modules and len(prompt_ids) > 1:
            # Heads draft from the target's states: it runs ahead to all but the last token, as before any round.
            target(torch.tensor([list(prompt_ids[:-1])]), cache, last=1)

    def propose(self, context: Sequence[int]) -> None:
        drafts, _ = self.session.propose(context, self.depth)
        self.session.keep(len(context))
        self.proposals.append(list(drafts))

    def _watch(self, logits: torch.Tensor) -> None:
        self.confidences.append(float(confidence(logits)))

    def close(self) -> None:
        self.session.close()

    def confidence_rows(self) -> tuple[tuple[float, ...], ...] | None:
        """Rows of `depth` confidences, one for each draft of a proposal; None where no model drafted."""
        if not self.has_model:
            return None
        each, rows = iter(self.confidences), []
        for drafts in self.proposals:
            row = [next(each) for _ in drafts]
            rows.append((*row, *[0.0] * (self.depth - len(row))))
        return tuple(rows)

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
