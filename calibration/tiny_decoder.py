"""A decoder-only transformer small enough to read, to run in milliseconds and to compare with theory; torch alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn import functional


class LayerCache:
    """Keys and values of one layer, shape (batch, heads, slots, head width)."""

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None

    def extend(self, keys: torch.Tensor, values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        self.keys = keys if self.keys is None else torch.cat([self.keys, keys], dim=2)
        self.values = values if self.values is None else torch.cat([self.values, values], dim=2)
        return self.keys, self.values

    @property
    def length(self) -> int:
        return 0 if self.keys is None else int(self.keys.shape[2])

    def crop_to(self, length: int) -> None:
        if self.keys is not None:
            self.keys, self.values = self.keys[:, :, :length], self.values[:, :, :length]


class TinyCache:
    """The cache of a `TinyDecoder`."""

    def __init__(self, layers: Sequence[LayerCache]):
        self.layers = list(layers)

    @property
    def length(self) -> int:
        return self.layers[0].length

    def crop_to(self, length: int) -> None:
        for layer in self.layers:
            layer.crop_to(length)

    def select_sequences(self, sequences: Sequence[int]) -> None:
        for layer in self.layers:
            layer.keys, layer.values = layer.keys[list(sequences)], layer.values[list(sequences)]

    def select_layers(self, layers: Sequence[int]) -> TinyCache:
        return TinyCache([self.layers[layer] for layer in layers])


class DecoderBlock(nn.Module):
    """Causal attention with rotary positions, then a gated MLP, each behind a norm and with a residual path."""

    def __init__(self, width: int, num_heads: int):
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm, self.mlp_norm = nn.RMSNorm(width), nn.RMSNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width, bias=False)
        self.attention_out = nn.Linear(width, width, bias=False)
        self.gate_and_up = nn.Linear(width, 8 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, hidden: torch.Tensor, positions: torch.Tensor, visible: torch.Tensor, cache: LayerCache) -> torch.Tensor:
        """`hidden` (batch, new, width), `positions` (batch, new), `visible` (batch, 1, new, slots) → (batch, new, width)."""
        batch, new, width = hidden.shape
        query, key, value = (
            part.view(batch, new, self.num_heads, -1).transpose(1, 2)
            for part in self.query_key_value(self.attention_norm(hidden)).chunk(3, dim=-1)
        )
        keys, values = cache.extend(_rotated(key, positions), value)
        mixed = functional.scaled_dot_product_attention(_rotated(query, positions), keys, values, attn_mask=visible)
        hidden = hidden + self.attention_out(mixed.transpose(1, 2).reshape(batch, new, width))
        gate, up = self.gate_and_up(self.mlp_norm(hidden)).chunk(2, dim=-1)
        return hidden + self.down(functional.silu(gate) * up)


class TinyDecoder(nn.Module):
    """A complete language model with random weights, drawn from `seed`. Width / heads must be even."""

    def __init__(
        self,
        vocab_size: int,
        width: int,
        *,
        num_layers: int = 1,
        num_heads: int = 1,
        seed: int = 0,
        logit_scale: float = 1.0,
        name: str = "",
    ):
        super().__init__()
        self.vocab_size, self.logit_scale = vocab_size, logit_scale
        self.name = name or f"tiny decoder of width {width}"
        # Initialisation draws from the global generator, whose state is the caller's.
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.embedding = nn.Embedding(vocab_size, width)
            self.layers = nn.ModuleList([DecoderBlock(width, num_heads) for _ in range(num_layers)])
            self.norm = nn.RMSNorm(width)
            self.output_head = nn.Linear(width, vocab_size, bias=False)
        self.eval()

    @property
    def module(self) -> nn.Module:
        return self

    def new_cache(self, *, rewinds: bool = True) -> TinyCache:  # noqa: ARG002  every slot is kept either way
        return TinyCache([LayerCache() for _ in self.layers])

    @torch.no_grad()
    def forward(
        self,
        token_ids: torch.Tensor,
        cache: TinyCache,
        *,
        last: int | None = None,
        slot_mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """See `calibration.decoding.models.CausalModel`."""
        new, held = token_ids.shape[1], cache.length
        device = self.embedding.weight.device
        token_ids = token_ids.to(device)
        positions = torch.arange(held, held + new)[None] if positions is None else positions
        positions = positions.to(device)
        visible = visible_slots(new, held, slot_mask, device)
        hidden = self.embedding(token_ids)
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            hidden = layer(hidden, positions, visible, layer_cache)
        hidden = self.norm(hidden)
        return self.head(hidden if last is None else hidden[:, -last:])

    def tap_hidden(self, receive: Callable[[torch.Tensor], None]) -> Any:
        return self.norm.register_forward_hook(lambda _, __, output: receive(output))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.embedding(token_ids.to(self.embedding.weight.device))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.output_head(hidden) * self.logit_scale


def visible_slots(new: int, held: int, slot_mask: torch.Tensor | None, device: torch.device) -> torch.Tensor:
    """Which slots each new token may see, shape (batch or 1, 1, new, held + new): those before it that hold something.

    A token sees itself always, so that padding has something to average.
    """
    slots = torch.arange(held + new, device=device)
    own = slots[held:, None]
    causal = (slots[None] <= own)[None, None]
    return causal if slot_mask is None else causal & (slot_mask.to(device)[:, None, None] | (slots[None] == own))


def _rotated(states: torch.Tensor, positions: torch.Tensor, base: float = 10_000.0) -> torch.Tensor:
    """Rotary position embedding (Su et al. 2021), halves rotated against each other, shape (batch, heads, new, width)."""
    half = states.shape[-1] // 2
    angles = positions[:, None, :, None] * base ** -(torch.arange(half, device=positions.device) / half)
    left, right = states[..., :half], states[..., half:]
    cos, sin = angles.cos().to(states), angles.sin().to(states)
    return torch.cat([left * cos - right * sin, right * cos + left * sin], dim=-1)
