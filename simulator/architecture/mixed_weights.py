"""MixedWeights: parts of a quantized checkpoint that are kept in another type than the rest."""

from __future__ import annotations

from typing import Literal

from simulator.number_format import FORMATS, NumberFormat, WeightFormat
from simulator.spec import Spec

# Parts of a layer: projections into a mixer (attention, or what replaces it) and out of it; dense MLPs and shared experts;
# routers, which stay in 16 bit wherever weights are quantized.
Part = Literal["attention", "attention_output", "mlp", "router"]


class MixedWeights(Spec):
    """A checkpoint whose weights are of type `weights`, routed experts always: types of the parts that differ.

    attention: projections into any mixer; attention_output: those out of it, as `attention` where left out; mlp: dense MLPs and
    shared experts; head: the LM head, which most checkpoints keep in 16 bit (`NumberFormat.head_bits`).
    """

    weights: WeightFormat
    attention: WeightFormat | None = None
    attention_output: WeightFormat | None = None
    mlp: WeightFormat | None = None
    head: WeightFormat | None = None

    def stored(self, part: Part) -> NumberFormat:
        """How a part other than routers is stored.

        >>> mixed = MixedWeights(weights="nvfp4", attention="bf16")
        >>> [mixed.stored(part).name for part in ("attention", "attention_output", "mlp")]
        ['bf16', 'bf16', 'nvfp4']
        """
        found: WeightFormat | None = getattr(self, part)
        if part == "attention_output":
            found = found or self.attention
        return FORMATS[found or self.weights]

    @property
    def words(self) -> str:
        """What differs, for a reader.

        >>> MixedWeights(weights="nvfp4", attention="bf16", mlp="bf16").words
        'attention in bf16, dense MLPs in bf16'
        """
        said = {"attention": "attention", "attention_output": "its output", "mlp": "dense MLPs", "head": "the LM head"}
        found = {part: getattr(self, part) for part in said if getattr(self, part) is not None}
        if found.get("attention_output") == found.get("attention"):
            found.pop("attention_output", None)
        return ", ".join(f"{said[part]} in {stored}" for part, stored in found.items())
