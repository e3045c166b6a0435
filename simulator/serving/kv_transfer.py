"""How KV caches move from the engines that compute prompts to those that decode, and those that did.

    after_prompt   the decoding engine keeps blocks once the prompt is computed, and then fetches its whole cache
                   (vLLM's NIXL connector; DistServe's pull)
    by_chunk       blocks are kept first; each chunk of the prompt is sent as it is computed, beside the next one (SGLang)
    by_layer       so is each layer of a chunk, beside the layers after it (Mooncake, Splitwise)

A prompt's cache is that of target and drafter: engines lay both in one table of blocks. First tokens are made with the last chunk
and come with it (SGLang), or the decoding engine makes them of the last token of the prompt, which it computes again (vLLM);
either way users get them from the decoding engine.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from simulator.serving_engine import KVTransferKind


@dataclass(frozen=True, slots=True)
class KVTransfer:
    """How caches move: when, seconds of the link for each token and for what a sequence has whatever its length, and from the
    last byte sent to its use. layers: of the target. makes_first_token: with the prompt, not of its last token again.
    decode_links: of an engine that decodes, one for each data-parallel rank.

    Raises ValueError for a negative time, no layer and no link.
    """

    kind: KVTransferKind
    token_s: float
    sequence_s: float = 0.0
    latency_s: float = 0.0
    layers: int = 1
    makes_first_token: bool = False
    decode_links: int = 1

    def __post_init__(self) -> None:
        if min(self.token_s, self.sequence_s, self.latency_s) < 0:
            raise ValueError(f"a transfer must take no negative time (got {self})")
        if min(self.layers, self.decode_links) < 1:
            raise ValueError(f"a transfer must have at least one layer and link (got {self})")


@dataclass
class TransferRecords:
    """Every cache that came, as columns: request, tokens sent, when its prompt was computed, when the first byte of it was sent,
    when it came."""

    request_id: array[int] = field(default_factory=lambda: array("q"))
    tokens: array[int] = field(default_factory=lambda: array("q"))
    computed_s: array[float] = field(default_factory=lambda: array("d"))
    begin_s: array[float] = field(default_factory=lambda: array("d"))
    landed_s: array[float] = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.request_id)

    def spans_s(self) -> dict[int, tuple[float, float]]:
        """(when its prompt was computed, when its cache came) by request."""
        return dict(zip(self.request_id, zip(self.computed_s, self.landed_s, strict=True), strict=True))

    def column(self, name: str) -> NDArray[Any]:
        return np.array(getattr(self, name))
