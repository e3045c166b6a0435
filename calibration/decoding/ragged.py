"""One cache for sequences of different lengths: stale slots are masked, never cropped row by row."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch

from calibration.decoding.errors import DecodingError
from calibration.decoding.models import CachedModel, CausalModel, HuggingFaceModel


class RaggedCache:
    """A model's cache for a batch, with the token each slot holds, by its place in its own sequence (-1: none).

    New tokens of all sequences share the same new slots, filled from the right; where a sequence has fewer, and where it later
    takes tokens back, slots stay empty. Only slots that are empty in every sequence at the end are given back.
    """

    def __init__(self, model: CachedModel, batch: int):
        self.model, self.cache = model, model.new_cache()
        self.places = torch.full((batch, 0), -1)
        self.lengths = [0] * batch

    def feed(self, rows: Sequence[Sequence[int]], last: int) -> torch.Tensor:
        """One forward pass over each sequence's new tokens; logits of the last slots, shape (batch, last, vocabulary).

        The logits of a sequence with n new tokens are its last n of these.
        """
        width = max(map(len, rows))
        token_ids = torch.zeros(len(rows), width, dtype=torch.long)
        places = torch.full_like(token_ids, -1)
        for index, row in enumerate(rows):
            if row:
                token_ids[index, -len(row) :] = torch.tensor(row)
                places[index, -len(row) :] = torch.arange(len(row)) + self.lengths[index]
                self.lengths[index] += len(row)
        self.places = torch.cat([self.places, places], dim=1)
        self._check_window()
        return self.model(token_ids, self.cache, last=last, slot_mask=self.places >= 0, positions=places.clamp(min=0))

    def keep(self, lengths: Sequence[int]) -> None:
        """Takes back what lies at or beyond these lengths."""
        self.lengths = [min(held, kept) for held, kept in zip(self.lengths, lengths, strict=True)]
        self.places[self.places >= torch.tensor(self.lengths)[:, None]] = -1
        used = (self.places >= 0).any(dim=0).nonzero()
        slots = int(used[-1]) + 1 if len(used) else 0
        self.places = self.places[:, :slots]
        self.cache.crop_to(slots)

    def select(self, sequences: Sequence[int]) -> None:
        """Goes on with these sequences only."""
        self.cache.select_sequences(sequences)
        self.places = self.places[list(sequences)]
        self.lengths = [self.lengths[index] for index in sequences]

    def select_layers(self, model: CausalModel, layers: Sequence[int]) -> RaggedCache:
        """The same memory as seen by `model`, which is made of these layers only; it may grow and must be cropped again."""
        view = copy.copy(self)
        view.model, view.cache, view.lengths = model, self.cache.select_layers(layers), list(self.lengths)
        return view

    def _check_window(self) -> None:
        """A sliding window counts slots, empty ones too, and would end too early."""
        if not isinstance(self.model, HuggingFaceModel):
            return
        window = getattr(self.model.config, "sliding_window", None)
        slots = self.places.shape[1]
        if window and slots >= window and any(getattr(layer, "is_sliding", False) for layer in self.cache.cache.layers):
            raise DecodingError(
                f"{self.model.name}: its sliding window of {window} tokens is full, and in a batch with ragged acceptance the "
                "window cannot be told from empty slots; decode one sequence at a time"
            )
