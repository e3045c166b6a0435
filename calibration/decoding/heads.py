"""Drafting heads on the target's hidden states: Medusa style (independent heads) and EAGLE style (a feature recurrence).

The modules are plain torch, trained or random: load weights with `load_state_dict`. Hidden states are those that feed the
target's output head, taken by a hook as the target runs; before its first pass there is nothing to draft from, so a
generation without prefill begins with a round of no drafts.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import nn
from torch.nn import functional

from calibration.decoding.drafters import Drafter, DraftSession, Proposal
from calibration.decoding.errors import DecodingError
from calibration.decoding.models import CausalModel, KeyValueCache
from calibration.decoding.phases import Phase, Phases, no_phases
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling, choose_draft
from calibration.tiny_decoder import DecoderBlock, LayerCache, visible_slots


class MedusaHeads(nn.Module):
    """`num_heads` heads; head i guesses the token i + 2 places after the one whose hidden state it sees (i from 0).

    Cai et al. 2024, "Medusa": a residual SiLU layer, then a projection to the vocabulary.
    """

    def __init__(self, width: int, vocab_size: int, num_heads: int):
        super().__init__()
        self.residual = nn.ModuleList([nn.Linear(width, width) for _ in range(num_heads)])
        self.output = nn.ModuleList([nn.Linear(width, vocab_size, bias=False) for _ in range(num_heads)])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Hidden states (..., width) → logits (heads, ..., vocabulary)."""
        features = [hidden + functional.silu(layer(hidden)) for layer in self.residual]
        return torch.stack([output(feature) for output, feature in zip(self.output, features, strict=True)])


class EagleHead(nn.Module):
    """From a token and the hidden state before it, the hidden state at the token: one layer over the target's width.

    Li et al. 2024, "EAGLE": embedding and feature joined by a linear layer, then one decoder layer; the target's own
    embedding and output head are used around it.
    """

    def __init__(self, width: int, num_attention_heads: int):
        super().__init__()
        self.join = nn.Linear(2 * width, width)
        self.block = DecoderBlock(width, num_attention_heads)

    def forward(self, embeddings: torch.Tensor, features: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """Both (batch, new, width) → hidden states (batch, new, width); the cache grows by the new places."""
        new, held = embeddings.shape[1], cache.length
        positions = torch.arange(held, held + new, device=embeddings.device)[None]
        visible = visible_slots(new, held, None, embeddings.device)
        return self.block(self.join(torch.cat([embeddings, features], dim=-1)), positions, visible, cache)


class HeadDrafter(Drafter):
    """Drafts with a head on the target. `sampling` is the draft's own, where it differs from the target's."""

    def __init__(self, head: MedusaHeads | EagleHead, *, name: str = "", sampling: Sampling | None = None):
        self.head = head.eval()
        self.name = name or ("medusa" if isinstance(head, MedusaHeads) else "eagle")
        self.sampling = sampling

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        return (self.head,)

    def check(self, target: CausalModel) -> None:
        width = int(target.embed(torch.zeros(1, dtype=torch.long)).shape[-1])
        own = (self.head.residual[0] if isinstance(self.head, MedusaHeads) else self.head.join).out_features
        if own != width:
            raise DecodingError(f"drafter {self.name}: must have the width of target {target.name}, {width} (got {own})")
        if isinstance(self.head, MedusaHeads) and self.head.output[0].out_features != target.vocab_size:
            raise DecodingError(
                f"drafter {self.name}: its heads must have the target's vocabulary of {target.vocab_size} tokens "
                f"(got {self.head.output[0].out_features})"
            )

    def session(
        self,
        target: CausalModel,
        target_cache: KeyValueCache,
        *,
        sampling: Sampling = GREEDY,
        streams: RandomStreams | None = None,
        phases: Phases = no_phases,
    ) -> DraftSession:
        own = self.sampling or sampling
        kind = _MedusaSession if isinstance(self.head, MedusaHeads) else _EagleSession
        return kind(self.head, target, target_cache, own, streams or RandomStreams(), phases)


class _HeadSession(DraftSession):
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


class _MedusaSession(_HeadSession):
    @torch.inference_mode()
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:  # noqa: ARG002  the heads see hidden states only
        features = self.known_features()
        if features is None:
            return [], None
        with self.phases("draft", 1):
            logits = self.head(features[0, -1])[:k]
        distributions: list[torch.Tensor] = []
        with self.phases("sampling", len(logits)):
            tokens = [choose_draft(row, self.sampling, self.streams, distributions) for row in logits]
        return tokens, torch.stack(distributions) if distributions else None


class _EagleSession(_HeadSession):
    cache: LayerCache | None = None

    @torch.inference_mode()
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        features = self.known_features()
        if features is None:
            return [], None
        cache = self.cache = self.cache or LayerCache()
        # Slot i joins token i + 1 with the hidden state of token i; what earlier drafts left there came from guessed states.
        held = cache.length
        first: Phase = "draft" if held else "draft_prefill"
        inputs, tokens = features[:, held:], list(context_ids[held + 1 :])
        drafted: list[int] = []
        distributions: list[torch.Tensor] = []
        for step in range(k):
            with self.phases(first if step == 0 else "draft", len(tokens)):
                hidden = self.head(self.target.embed(torch.tensor([tokens])), inputs, cache)[:, -1:]
                logits = self.target.head(hidden)[0, -1]
            with self.phases("sampling", 1):
                drafted.append(choose_draft(logits, self.sampling, self.streams, distributions))
            inputs, tokens = hidden, drafted[-1:]
        cache.crop_to(features.shape[1])
        return drafted, torch.stack(distributions) if distributions else None
