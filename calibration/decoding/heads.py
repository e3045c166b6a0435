"""Drafting heads on the target's hidden states: Medusa style (independent heads) and EAGLE style (a feature recurrence).

The modules are plain torch, trained or random. `head_drafter` drafts with them.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from calibration.decoding.models import CausalModel
from calibration.tiny_decoder import DecoderBlock, LayerCache, TinyCache, visible_slots


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

    def forward(
        self,
        embeddings: torch.Tensor,
        features: torch.Tensor,
        cache: LayerCache,
        slot_mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Both (batch, new, width) → hidden states (batch, new, width); the cache grows by the new places.

        `slot_mask` and `positions` as for a `CausalModel`.
        """
        new, held = embeddings.shape[1], cache.length
        positions = torch.arange(held, held + new)[None] if positions is None else positions
        visible = visible_slots(new, held, slot_mask, embeddings.device)
        joined = self.join(torch.cat([embeddings, features], dim=-1))
        return self.block(joined, positions.to(embeddings.device), visible, cache)


class EagleModel:
    """An EAGLE head called as a model is: the hidden states that go with the tokens are laid in `features` before each pass.

    Without them it runs on zeros, which takes as long. `hidden` are the states after the last token of the last pass.
    """

    def __init__(self, head: EagleHead, target: CausalModel):
        self.head, self.target = head, target
        self.features: torch.Tensor | None = None
        self.hidden: torch.Tensor | None = None

    def new_cache(self, *, rewinds: bool = True) -> TinyCache:  # noqa: ARG002
        return TinyCache([LayerCache()])

    @torch.inference_mode()
    def __call__(
        self,
        token_ids: torch.Tensor,
        cache: TinyCache,
        *,
        last: int | None = None,
        slot_mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `calibration.decoding.models.CachedModel`."""
        embeddings = self.target.embed(token_ids)
        features = torch.zeros_like(embeddings) if self.features is None else self.features
        hidden = self.head(embeddings, features, cache.layers[0], slot_mask, positions)
        self.hidden = hidden[:, -1:]
        return self.target.head(hidden if last is None else hidden[:, -last:])
