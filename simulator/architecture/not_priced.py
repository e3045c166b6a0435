"""What `simulator.cost` cannot price yet."""

from __future__ import annotations

from simulator.architecture.layers import pattern
from simulator.architecture.shape import ModelArchitecture

_LETTERS = {"L": "linear-attention layers", "M": "state-space layers", "C": "sparse attention", "N": "layers without attention"}
_HEADS = {
    "medusa": "Medusa heads", "hydra": "Hydra heads", "mlp_speculator": "MLP-speculator heads", "dflash": "block-drafter layers",
    "mtp": "a multi-token-prediction layer",
}  # fmt: skip


def not_priced(model: ModelArchitecture) -> str | None:
    """What `model` has that cannot be priced, or None.

    >>> from simulator.architecture import find_model
    >>> not_priced(find_model("Qwen/Qwen3-30B-A3B"))
    'mixture-of-experts layers'
    """
    if model.kind == "draft_head" and model.family in _HEADS:
        return _HEADS[model.family]
    for letter, reason in _LETTERS.items():
        if letter in pattern(model):
            return reason
    if model.kv_lora_rank is not None:
        return "multi-head latent attention"
    if model.is_moe:
        return "mixture-of-experts layers"
    return "layers of unequal width" if model.intermediate_sizes is not None else None
