"""Drafting heads on a batch with ragged acceptance: each sequence's hidden states by the slots of the target's cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from calibration.decoding.drafters import BatchDraftSession, Proposal
from calibration.decoding.heads import EagleHead, EagleModel, MedusaHeads
from calibration.decoding.models import CausalModel
from calibration.decoding.phases import Phase, Phases
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import RandomStreams, Sampling, choose_draft


class _HeadBatchSession(BatchDraftSession):
    """Collects the target's hidden states, shape (batch, slots of its cache, width)."""

    def __init__(
        self,
        head: Any,
        target: CausalModel,
        target_cache: RaggedCache,
        sampling: Sampling,
        streams: Sequence[RandomStreams],
        phases: Phases,
    ):
        self.head, self.target, self.target_cache = head, target, target_cache
        self.sampling, self.streams, self.phases = sampling, list(streams), phases
        self.features: Any = None
        self.tap = target.tap_hidden(self._receive)

    def _receive(self, hidden: torch.Tensor) -> None:
        self.features = hidden if self.features is None else torch.cat([self.features, hidden], dim=1)

    def keep(self, lengths: Sequence[int]) -> None:  # noqa: ARG002  the target's cache has been cut already
        self.features = self.features[:, : self.target_cache.places.shape[1]]

    def select(self, sequences: Sequence[int]) -> None:
        self.features = self.features[list(sequences)]
        self.streams = [self.streams[index] for index in sequences]

    def close(self) -> None:
        self.tap.remove()

    def of_tokens(self, index: int, first: int) -> torch.Tensor:
        """Hidden states of one sequence's tokens from `first` on, shape (tokens, width)."""
        states: torch.Tensor = self.features[index, self.target_cache.places[index] >= first]
        return states


class MedusaBatchSession(_HeadBatchSession):
    """One pass of all heads over the last hidden state of every sequence."""

    head: MedusaHeads

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Proposal]:
        if not max(wanted):
            return [([], None)] * len(contexts)
        last = torch.stack([self.of_tokens(index, len(context) - 2)[-1] for index, context in enumerate(contexts)])
        with self.phases("draft", 1):
            logits = self.head(last)
        found: list[Proposal] = []
        with self.phases("sampling", len(logits)):
            for index, count in enumerate(wanted):
                distributions: list[torch.Tensor] = []
                rows = logits[:count, index]
                tokens = [choose_draft(row, self.sampling, self.streams[index], distributions) for row in rows]
                found.append((tokens, torch.stack(distributions) if distributions else None))
        return found


class EagleBatchSession(_HeadBatchSession):
    """A recurrence for every sequence, over one masked cache of the head's own."""

    head: EagleHead

    def __init__(
        self,
        head: EagleHead,
        target: CausalModel,
        target_cache: RaggedCache,
        sampling: Sampling,
        streams: Sequence[RandomStreams],
        phases: Phases,
    ):
        super().__init__(head, target, target_cache, sampling, streams, phases)
        self.model: Any = EagleModel(head, target)
        self.cache = RaggedCache(self.model, len(streams))

    @torch.inference_mode()
    def propose(self, contexts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Proposal]:
        tokens: list[list[int]] = [[] for _ in contexts]
        distributions: list[list[torch.Tensor]] = [[] for _ in contexts]
        held = list(self.cache.lengths)
        first: Phase = "draft" if any(held) else "draft_prefill"
        # Slot i joins token i + 1 with the hidden state of token i, as for one sequence.
        rows = [list(context[h + 1 :]) for context, h in zip(contexts, held, strict=True)]
        states = [self.of_tokens(index, h) for index, h in enumerate(held)]
        for step in range(max(wanted)):
            rows = [row if step < count else [] for row, count in zip(rows, wanted, strict=True)]
            width = max(map(len, rows))
            with self.phases("draft" if step else first, width):
                self.model.features = _right_aligned(states, rows, width)
                logits = self.cache.feed(rows, last=1)[:, -1]
            with self.phases("sampling", 1):
                for index, row in enumerate(rows):
                    if row:
                        token = choose_draft(logits[index], self.sampling, self.streams[index], distributions[index])
                        tokens[index].append(token)
            rows, states = [drafts[-1:] for drafts in tokens], list(self.model.hidden)
        if max(wanted):
            with self.phases("sampling", 0):
                self.cache.keep([len(context) - 1 for context in contexts])
        return [(t, torch.stack(p) if p else None) for t, p in zip(tokens, distributions, strict=True)]

    def select(self, sequences: Sequence[int]) -> None:
        super().select(sequences)
        self.cache.select(sequences)


def _right_aligned(states: Sequence[torch.Tensor], rows: Sequence[Sequence[int]], width: int) -> torch.Tensor:
    """The hidden states that go with these rows of tokens, shape (batch, width, features); zeros where a row has no token."""
    padded = states[0].new_zeros(len(rows), width, states[0].shape[-1])
    for index, row in enumerate(rows):
        if row:
            padded[index, -len(row) :] = states[index][-len(row) :]
    return padded
