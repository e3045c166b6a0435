"""Drafting with a second model, or with the target itself."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from calibration.decoding.drafters import BatchDraftSession, Drafter, DraftSession, Proposal
from calibration.decoding.models import CausalModel, KeyValueCache, as_model
from calibration.decoding.phases import Phase, Phases, no_phases
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling, choose_draft
from calibration.decoding.speculation import check_vocabulary, draft_speculate, resized


class ModelDrafter(Drafter):
    """A second, smaller model with the target's tokenizer.

    `sampling` is the draft's own, where it differs from the target's (many engines draft greedily). `same_tokenizer`
    vouches for models of one tokenizer whose vocabularies are only padded to different sizes.
    """

    def __init__(self, model: Any, *, name: str = "", sampling: Sampling | None = None, same_tokenizer: bool = False):
        self.model = as_model(model)
        self.name = name or self.model.name
        self.sampling = sampling
        self.same_tokenizer = same_tokenizer

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        return (self.model.module,)

    def check(self, target: CausalModel) -> None:
        check_vocabulary(target, self.model, self.same_tokenizer)

    def session(
        self,
        target: CausalModel,
        target_cache: KeyValueCache,  # noqa: ARG002  this draft keeps its own
        *,
        sampling: Sampling = GREEDY,
        streams: RandomStreams | None = None,
        phases: Phases = no_phases,
    ) -> DraftSession:
        own = self.sampling or sampling
        return ModelSession(self.model, self.model.new_cache(), target.vocab_size, own, streams or RandomStreams(), phases)

    def batch_session(
        self,
        target: CausalModel,
        target_cache: RaggedCache,  # noqa: ARG002
        streams: Sequence[RandomStreams],
        *,
        sampling: Sampling = GREEDY,
        phases: Phases = no_phases,
    ) -> BatchDraftSession:
        cache = RaggedCache(self.model, len(streams))
        return ModelBatchSession(cache, target.vocab_size, self.sampling or sampling, streams, phases)


class SelfDrafter(ModelDrafter):
    """The target drafts for itself, with a cache of its own: every draft is accepted, and every draft costs a full pass."""

    def __init__(self, target: Any, *, name: str = "self", sampling: Sampling | None = None):
        super().__init__(target, name=name, sampling=sampling)


class ModelSession(DraftSession):
    """Drafts with a model and a cache."""

    def __init__(
        self,
        model: CausalModel,
        cache: KeyValueCache,
        vocab_size: int,
        sampling: Sampling,
        streams: RandomStreams,
        phases: Phases,
    ):
        self.model, self.cache, self.vocab_size = model, cache, vocab_size
        self.sampling, self.streams, self.phases = sampling, streams, phases

    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        return draft_speculate(
            self.model,
            context_ids,
            k,
            cache=self.cache,
            sampling=self.sampling,
            streams=self.streams,
            vocab_size=self.vocab_size,
            phases=self.phases,
            watch=self.watch,
        )

    def keep(self, length: int) -> None:
        with self.phases("sampling", 0):
            self.cache.crop_to(min(self.cache.length, length))


class ModelBatchSession(BatchDraftSession):
    """Drafts for a batch with a model and its own cache."""

    def __init__(
        self,
        cache: RaggedCache,
        vocab_size: int,
        sampling: Sampling,
        streams: Sequence[RandomStreams],
        phases: Phases,
    ):
        self.cache, self.vocab_size, self.sampling = cache, vocab_size, sampling
        self.streams, self.phases = list(streams), phases

    def propose(self, contexts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Proposal]:
        tokens: list[list[int]] = [[] for _ in contexts]
        distributions: list[list[torch.Tensor]] = [[] for _ in contexts]
        empty = not any(self.cache.lengths)
        rows = [list(context[held:]) for context, held in zip(contexts, self.cache.lengths, strict=True)]
        for step in range(max(wanted)):
            rows = [row if step < count else [] for row, count in zip(rows, wanted, strict=True)]
            width = max(map(len, rows))
            first: Phase = "draft_prefill" if empty else "catch_up" if width > 1 else "draft"
            with self.phases("draft" if step else first, width):
                logits = resized(self.cache.feed(rows, last=1)[:, -1], self.vocab_size)
            with self.phases("sampling", 1):
                for index, row in enumerate(rows):
                    if row:
                        token = choose_draft(logits[index], self.sampling, self.streams[index], distributions[index])
                        tokens[index].append(token)
            rows = [drafts[-1:] for drafts in tokens]
        return [(t, torch.stack(p) if p else None) for t, p in zip(tokens, distributions, strict=True)]

    def keep(self, lengths: Sequence[int]) -> None:
        with self.phases("sampling", 0):
            self.cache.keep(lengths)

    def select(self, sequences: Sequence[int]) -> None:
        self.cache.select(sequences)
        self.streams = [self.streams[index] for index in sequences]
