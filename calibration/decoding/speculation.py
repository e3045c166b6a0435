"""One round of speculative decoding: the draft proposes, the target verifies with one forward pass.

Leviathan et al. 2023, "Fast Inference from Transformers via Speculative Decoding", algorithm 1. Batch 1; `batched` holds
the same for many sequences. Both functions feed what their cache does not hold yet, so an empty cache takes the prompt
along with the round, and a draft that has not seen its own last token catches up on it. A model is a `CausalModel` or a
Hugging Face one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from calibration.decoding.errors import DecodingError
from calibration.decoding.models import CausalModel, KeyValueCache, as_model
from calibration.decoding.phases import Phase, Phases, no_phases
from calibration.decoding.sampling import (
    GREEDY,
    RandomStreams,
    Sampling,
    Watch,
    acceptance_probability,
    choose_draft,
    draw,
    residual_probabilities,
)


def draft_speculate(
    draft_model: Any,
    context_ids: Sequence[int],
    k: int,
    *,
    cache: KeyValueCache | None = None,
    sampling: Sampling = GREEDY,
    streams: RandomStreams | None = None,
    vocab_size: int | None = None,
    phases: Phases = no_phases,
    watch: Watch | None = None,
) -> tuple[list[int], torch.Tensor | None]:
    """`k` draft tokens after `context_ids`, and the distributions they were drawn from, shape (k, vocabulary).

    The distributions are None where the draft is greedy: then each was certain of its token. The cache must hold a true
    prefix of the context; it ends up with the context and all drafts but the last, which no pass has fed. `vocab_size` is
    the target's, where the two models pad one tokenizer's vocabulary differently.
    """
    model = as_model(draft_model)
    cache = model.new_cache() if cache is None else cache
    streams = streams or RandomStreams()
    tokens: list[int] = []
    distributions: list[torch.Tensor] = []
    pending = list(context_ids[cache.length :])
    first: Phase = "draft_prefill" if cache.length == 0 else "catch_up" if len(pending) > 1 else "draft"
    for step in range(k):
        with phases(first if step == 0 else "draft", len(pending)):
            logits = model(torch.tensor([pending]), cache, last=1)[0, -1]
        with phases("sampling", 1):
            tokens.append(choose_draft(resized(logits, vocab_size), sampling, streams, distributions, watch))
        pending = tokens[-1:]
    return tokens, torch.stack(distributions) if distributions else None


def target_verify(
    target_model: Any,
    context_ids: Sequence[int],
    draft_tokens: Sequence[int],
    draft_probs: torch.Tensor | None = None,
    *,
    cache: KeyValueCache | None = None,
    sampling: Sampling = GREEDY,
    streams: RandomStreams | None = None,
    bonus: bool = True,
    phases: Phases = no_phases,
) -> list[int]:
    """The tokens this round emits: the accepted drafts, then one of the target's own. One forward pass of the target.

    After a rejection the last token comes from the residual distribution; after full acceptance it is the bonus token,
    or nothing where `bonus` is off. The cache ends up with the context and the accepted drafts, without the last token.
    """
    model = as_model(target_model)
    cache = model.new_cache() if cache is None else cache
    streams = streams or RandomStreams()
    # Without bonus nobody asks what follows the last draft, so it is not fed.
    fed = len(draft_tokens) if bonus else max(len(draft_tokens) - 1, 0)
    pending = [*context_ids[cache.length :], *draft_tokens[:fed]]
    with phases("verify", len(pending)):
        logits = model(torch.tensor([pending]), cache, last=fed + 1)[0]
    with phases("sampling", fed + 1):
        emitted = accept(logits, draft_tokens, draft_probs, sampling=sampling, streams=streams)
        cache.crop_to(min(cache.length, len(context_ids) + agreement(draft_tokens, emitted)))
    return emitted


def accept(
    logits: torch.Tensor,
    draft_tokens: Sequence[int],
    draft_probs: torch.Tensor | None,
    *,
    sampling: Sampling,
    streams: RandomStreams,
) -> list[int]:
    """The tokens emitted, by the target's logits after each position, shape (positions, vocabulary).

    A position more than there are drafts yields the bonus token.
    """
    if sampling.greedy:
        # A point mass: the rule comes down to equality, whatever the draft thought.
        chosen = logits.argmax(-1).tolist()
        return chosen[: agreement(draft_tokens, chosen) + 1]
    target_probs = sampling.probabilities(logits)
    for index, token in enumerate(draft_tokens):
        draft = None if draft_probs is None else draft_probs[index].to(target_probs)
        if streams.accept.random() >= acceptance_probability(target_probs[index], draft, token):
            correction = draw(residual_probabilities(target_probs[index], draft, token), streams.emit)
            return [*draft_tokens[:index], correction]
    own = [draw(target_probs[-1], streams.emit)] if len(logits) > len(draft_tokens) else []
    return [*draft_tokens, *own]


def agreement(draft_tokens: Sequence[int], emitted: Sequence[int]) -> int:
    """How many drafts a round accepted, by what it emitted: a rejected token is never emitted in its own place."""
    for index, (draft, token) in enumerate(zip(draft_tokens, emitted, strict=False)):
        if draft != token:
            return index
    return min(len(draft_tokens), len(emitted))


def resized(logits: torch.Tensor, vocab_size: int | None) -> torch.Tensor:
    """Logits over another width of the same vocabulary: what is missing cannot be drawn."""
    width = logits.shape[-1]
    if vocab_size is None or width == vocab_size:
        return logits
    if width > vocab_size:
        return logits[..., :vocab_size]
    return torch.nn.functional.pad(logits, (0, vocab_size - width), value=-torch.inf)


def check_vocabulary(target: CausalModel, draft: CausalModel, same_tokenizer: bool) -> None:
    """Raises DecodingError where the models count different vocabularies and nobody vouches for one tokenizer."""
    if draft.vocab_size != target.vocab_size and not same_tokenizer:
        raise DecodingError(
            f"draft model {draft.name} has a vocabulary of {draft.vocab_size} tokens and target {target.name} one of "
            f"{target.vocab_size}: verification compares the two token by token, so both must use one tokenizer; choose a "
            "draft of the target's family, prompt lookup or a part of the target, or say that only the padding differs"
        )
