"""One generation's drafting with heads.

Hidden states are those that feed the target's output head, taken by a hook as the target runs; before its first pass there is
nothing to draft from, so a generation without prefill begins with a round of no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn

from calibration.decoding.drafters import DraftSession, Proposal
from calibration.decoding.heads import EagleModel
from calibration.decoding.models import CausalModel, KeyValueCache
from calibration.decoding.phases import Phase, Phases
from calibration.decoding.sampling import RandomStreams, Sampling, choose_draft
from calibration.tiny_decoder import TinyCache


class HeadSession(DraftSession):
    """Collects the target's hidden states, one per token of the context that the target has seen."""

    def __init__(
        self,
        head: nn.Module,
        target: CausalModel,
        target_cache: KeyValueCache,
        sampling: Sampling,
        streams: RandomStreams,
        phases: Phases,
    ):
        self.head, self.target, self.target_cache = head, target, target_cache
        self.sampling, self.streams, self.phases = sampling, streams, phases
        self.features: torch.Tensor | None = None
        self.tap = target.tap_hidden(self._receive)

    def _receive(self, hidden: torch.Tensor) -> None:
        self.features = hidden if self.features is None else torch.cat([self.features, hidden], dim=1)

    def known_features(self) -> torch.Tensor | None:
        """Shape (1, tokens in the target's cache, width): those of rejected drafts are gone with their slots."""
        if self.features is not None:
            self.features = self.features[:, : self.target_cache.length]
        return self.features

    def close(self) -> None:
        self.tap.remove()


class MedusaSession(HeadSession):
    @torch.inference_mode()
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:  # noqa: ARG002  the heads see hidden states only
        features = self.known_features()
        if features is None:
            return [], None
        with self.phases("draft", 1):
            logits = self.head(features[0, -1])[:k]
        distributions: list[torch.Tensor] = []
        with self.phases("sampling", len(logits)):
            tokens = [choose_draft(row, self.sampling, self.streams, distributions, self.watch) for row in logits]
        return tokens, torch.stack(distributions) if distributions else None


class EagleSession(HeadSession):
    cache: TinyCache | None = None

    @torch.inference_mode()
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        features = self.known_features()
        if features is None:
            return [], None
        model = EagleModel(self.head, self.target)
        cache = self.cache = self.cache or model.new_cache()
        # Slot i joins token i + 1 with the hidden state of token i; what earlier drafts left there came from guessed states.
        held = cache.length
        first: Phase = "draft" if held else "draft_prefill"
        model.features, tokens = features[:, held:], list(context_ids[held + 1 :])
        drafted: list[int] = []
        distributions: list[torch.Tensor] = []
        for step in range(k):
            with self.phases(first if step == 0 else "draft", len(tokens)):
                logits = model(torch.tensor([tokens]), cache, last=1)[0, -1]
            with self.phases("sampling", 1):
                drafted.append(choose_draft(logits, self.sampling, self.streams, distributions, self.watch))
            model.features, tokens = model.hidden, drafted[-1:]
        with self.phases("sampling", 0):
            cache.crop_to(features.shape[1])
        return drafted, torch.stack(distributions) if distributions else None
