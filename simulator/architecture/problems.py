"""Faults between the fields of one model."""

from __future__ import annotations

from simulator.architecture.layers import ONE_BLOCK_LETTERS, pattern
from simulator.architecture.shape import ModelArchitecture
from simulator.spec import Document, Problem

PATTERN_LETTERS = "FSLCMEDN"
# Fields that belong together: where the first is given, or its letters stand in the pattern, the others must be.
_TOGETHER = (
    ("num_experts", ("num_experts_per_tok", "moe_intermediate_size")),
    ("kv_lora_rank", ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")),
    ("o_lora_rank", ("q_lora_rank", "o_groups", "sliding_window")),
    ("index_topk", ("index_n_heads", "index_head_dim")),
    ("num_heads", ("num_head_layers",)),
    ("n_predict", ("inner_dim",)),
    ("num_global_key_value_heads", ("global_head_dim",)),
)
_LETTER_FIELDS = {
    "L": (
        "linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
        "linear_conv_kernel_dim",
    ),
    "M": ("mamba_num_heads", "mamba_head_dim", "ssm_state_size", "n_groups", "conv_kernel"),
    "E": ("num_experts",),
    "C": ("index_topk",),
}  # fmt: skip


def model_problems(model: ModelArchitecture, document: Document) -> list[Problem]:
    """Faults between a model's own fields."""
    found = []
    layers = model.num_hidden_layers
    for name, noun in (("layer_pattern", "letter"), ("intermediate_sizes", "width"), ("compress_ratios", "ratio")):
        value = getattr(model, name)
        if value is not None and len(value) != layers:
            found.append(document.problem((name,), f"must have one {noun} per layer ({layers})", len(value)))
    letters = set(model.layer_pattern or "")
    if not letters <= set(PATTERN_LETTERS):
        must = f"must consist of the letters {', '.join(PATTERN_LETTERS)}"
        found.append(document.problem(("layer_pattern",), must, model.layer_pattern))
    if found:
        return found
    required = dict.fromkeys(_required(model))
    return [
        *(document.problem((name,), f"must be given with {reason}") for name, reason in required if not getattr(model, name)),
        *_attention_problems(model, document),
    ]


def _required(model: ModelArchitecture) -> list[tuple[str, str]]:
    """(field, what asks for it)."""
    needed = [(other, name) for name, others in _TOGETHER if getattr(model, name) is not None for other in others]
    letters = pattern(model)
    needed += [(name, f"letter {letter}") for letter, names in _LETTER_FIELDS.items() if letter in letters for name in names]
    if set("FSC") & set(letters):
        needed.append(("num_attention_heads", "attention layers"))
        if model.kv_lora_rank is None:
            needed += [("num_key_value_heads", "attention layers"), ("head_dim", "attention layers")]
    if "C" in letters and model.o_lora_rank is not None:
        needed.append(("compress_ratios", "letter C"))
    if "S" in letters and model.attention_chunk_size is None:
        needed.append(("sliding_window", "letter S"))
    one_block = bool(ONE_BLOCK_LETTERS & set(letters))
    if ("D" in letters if one_block else model.moe_layers < model.num_hidden_layers) and model.intermediate_sizes is None:
        needed.append(("intermediate_size", "dense MLPs"))
    return needed


def _attention_problems(model: ModelArchitecture, document: Document) -> list[Problem]:
    found = []
    if model.num_key_value_heads and model.num_attention_heads % model.num_key_value_heads:
        must = f"must divide num_attention_heads ({model.num_attention_heads})"
        found.append(document.problem(("num_key_value_heads",), must, model.num_key_value_heads))
    if model.num_experts and (model.num_experts_per_tok or 0) > model.num_experts:
        must = f"must be at most num_experts ({model.num_experts})"
        found.append(document.problem(("num_experts_per_tok",), must, model.num_experts_per_tok))
    return found
