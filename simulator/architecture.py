"""ModelArchitecture: the shape of a model, in Hugging Face field names, and what follows from it.

Counts are of the text decoder; norms and biases are left out of FLOPs but counted as parameters.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from simulator import resources
from simulator.spec import Document, Problem, Spec, SpecError, check, load_yaml

Count = Annotated[int, Field(ge=1)]
# Bytes of one stored number.
DTYPE_BYTES = {"fp32": 4.0, "bf16": 2.0, "fp16": 2.0, "fp8": 1.0}
# Families whose layers are all dense attention (full or sliding window) with one MLP.
DENSE_FIELDS_ABSENT = (
    "num_experts", "n_routed_experts", "num_local_experts", "kv_lora_rank", "linear_num_value_heads", "mamba_num_heads",
)  # fmt: skip


class ModelArchitecture(Spec):
    """One model or draft head. Field names as in Hugging Face configs.

    mlp_type `gated` = three matrices, else two. layer_pattern: one letter a layer, F full attention, S sliding window;
    absent = all F. qkv_input_size: width that q, k and v read (EAGLE-3: twice the hidden size). fc_input_size: width of
    the fusion matrix in front of a draft head. block_size: the most tokens a drafter can propose. embedding_source and
    lm_head_source `target`: shared, so no extra memory.
    """

    name: str
    aliases: tuple[str, ...] = ()
    kind: Literal["target", "draft", "draft_head"] = "target"
    family: str
    tokenizer: str | None = None
    base_model: str | None = None
    hidden_size: Count
    num_hidden_layers: Count
    num_attention_heads: Count
    num_key_value_heads: Count
    head_dim: Count
    intermediate_size: Count
    mlp_type: Literal["gated", "gelu", "relu", "relu2"] = "gated"
    vocab_size: Count
    draft_vocab_size: Count | None = None
    tie_word_embeddings: bool = False
    attention_bias: Literal["qkv", "all"] | None = None
    qk_norm: Literal["per_head", "full"] | None = None
    sliding_window: Count | None = None
    layer_pattern: str | None = None
    max_position_embeddings: Count | None = None
    qkv_input_size: Count | None = None
    fc_input_size: Count | None = None
    embedding_source: Literal["target", "own"] = "own"
    lm_head_source: Literal["target", "own"] = "own"
    block_size: Count | None = None
    total_params: Count | None = None
    total_params_source: str = ""
    sources: tuple[str, ...] = ()

    @property
    def output_vocab_size(self) -> int:
        """Rows of the LM head: the reduced draft vocabulary where there is one."""
        return self.draft_vocab_size or self.vocab_size

    @property
    def attention_input_size(self) -> int:
        return self.qkv_input_size or self.hidden_size

    @property
    def mlp_matrices(self) -> int:
        return 3 if self.mlp_type == "gated" else 2

    @property
    def sliding_layers(self) -> int:
        """Layers that read at most `sliding_window` cached tokens."""
        if self.sliding_window is None:
            return 0
        return self.num_hidden_layers if self.layer_pattern is None else self.layer_pattern.count("S")

    @property
    def layer_parameters(self) -> int:
        """Matrix parameters of one decoder layer."""
        heads, kv_heads, dim = self.num_attention_heads, self.num_key_value_heads, self.head_dim
        attention = self.attention_input_size * (heads + 2 * kv_heads) * dim + heads * dim * self.hidden_size
        return attention + self.mlp_matrices * self.hidden_size * self.intermediate_size

    @property
    def lm_head_parameters(self) -> int:
        return self.output_vocab_size * self.hidden_size

    @property
    def parameter_count(self) -> int:
        """Weights this model adds to memory: shared embeddings and heads are not counted, tied ones once."""
        embedding = 0 if self.embedding_source == "target" else self.vocab_size * self.hidden_size
        head = 0 if self.lm_head_source == "target" or (self.tie_word_embeddings and embedding) else self.lm_head_parameters
        fusion = (self.fc_input_size or 0) * self.hidden_size
        return (
            embedding
            + head
            + fusion
            + self.num_hidden_layers * (self.layer_parameters + self._small_parameters)
            + self.hidden_size
        )

    @property
    def _small_parameters(self) -> int:
        """Norms and biases of one layer."""
        heads, kv_heads, dim = self.num_attention_heads, self.num_key_value_heads, self.head_dim
        bias = (heads + 2 * kv_heads) * dim if self.attention_bias else 0
        bias += self.hidden_size if self.attention_bias == "all" else 0
        norms = 2 * self.hidden_size + {"per_head": 2 * dim, "full": (heads + kv_heads) * dim, None: 0}[self.qk_norm]
        return bias + norms

    def weight_bytes(self, dtype: str) -> float:
        """Bytes of all weights; embeddings and LM head stay in 16 bit when layers are quantized, as engines keep them."""
        layers = self.num_hidden_layers * self.layer_parameters
        return layers * DTYPE_BYTES[dtype] + (self.parameter_count - layers) * max(2.0, DTYPE_BYTES[dtype])

    def kv_heads_per_device(self, tensor_parallel_size: int) -> float:
        """KV heads on one device; replicated once there are more devices than heads."""
        return max(self.num_key_value_heads / tensor_parallel_size, 1.0)

    def kv_bytes_per_token(self, dtype: str, tensor_parallel_size: int = 1) -> float:
        """Cached bytes per token on one device, all layers."""
        return self.num_hidden_layers * self.kv_bytes_per_token_and_layer(dtype, tensor_parallel_size)

    def kv_bytes_per_token_and_layer(self, dtype: str, tensor_parallel_size: int = 1) -> float:
        """K and V of one token in one layer on one device.

        >>> find_model("meta-llama/Llama-3.1-8B").kv_bytes_per_token_and_layer("bf16")
        4096.0
        """
        return 2 * self.kv_heads_per_device(tensor_parallel_size) * self.head_dim * DTYPE_BYTES[dtype]


class ModelTable(Spec):
    """A file of `model_shapes/`."""

    schema_version: Literal[1]
    models: tuple[ModelArchitecture, ...]
    unsupported: dict[str, str] = Field(default_factory=dict)


@cache
def models() -> dict[str, ModelArchitecture]:
    """Every accepted spelling (normalised) → model."""
    found: dict[str, ModelArchitecture] = {}
    for table in _tables():
        for model in table.models:
            for name in (model.name, *model.aliases):
                found.setdefault(resources.normalised(name), model)
    return found


@cache
def unsupported() -> dict[str, str]:
    """Known models that are not priced (normalised) → why."""
    return {resources.normalised(name): why for table in _tables() for name, why in table.unsupported.items()}


@cache
def _tables() -> tuple[ModelTable, ...]:
    return tuple(check(ModelTable, load_yaml(resources.folder("model") / f"{i}.yaml")) for i in resources.ids("model"))


def find_model(name: str, where: str = "", key: str = "model", noun: str = "model") -> ModelArchitecture:
    """A model by name or alias, or the path of a YAML file with one model's fields. Raises `SpecError`."""
    if name.endswith((".yaml", ".yml")) and Path(name).is_file():
        document = load_yaml(name)
        model: ModelArchitecture = check(ModelArchitecture, document)
        problems = model_problems(model, document)
        if problems:
            raise SpecError(problems)
        return model
    found = models().get(resources.normalised(name))
    if found is not None:
        return found
    why = unsupported().get(resources.normalised(name))
    if why is not None:
        raise SpecError([Problem(where, key, f"must be a model that is priced: {name} has {why}, not supported yet")])
    raise resources.unknown(where, key, noun, name, [model.name for model in dict.fromkeys(models().values())])


def eagle_head(target: ModelArchitecture, method: str) -> ModelArchitecture:
    """An EAGLE or EAGLE-3 head built from its target: one layer of the target's width, the usual vocabulary.

    EAGLE-3 concatenates three target states, feeds q, k and v twice the width, and keeps its own reduced LM head (32,000
    rows, as in the published heads); EAGLE-1 fuses two vectors and shares the target's head (Li et al. 2024, 2025).
    """
    eagle3 = method == "eagle3"
    return target.model_copy(
        update={
            "name": f"{method} head for {target.name}", "aliases": (), "kind": "draft_head", "family": method,
            "base_model": target.name, "num_hidden_layers": 1, "layer_pattern": None, "sliding_window": None,
            "draft_vocab_size": min(32000, target.vocab_size) if eagle3 else None,
            "fc_input_size": (3 if eagle3 else 2) * target.hidden_size,
            "qkv_input_size": 2 * target.hidden_size if eagle3 else None, "embedding_source": "target",
            "lm_head_source": "own" if eagle3 else "target", "tie_word_embeddings": False, "total_params": None,
        }
    )  # fmt: skip


def stand_in_draft(parameters: float, target: ModelArchitecture) -> ModelArchitecture:
    """A dense decoder of about `parameters` weights with the target's vocabulary, for a draft of which only the size is known.

    Width and depth keep the proportions of published small decoders (about 90 of width per layer, gated MLP of 3.5 widths,
    tied embeddings): 2·h² + 2·h²/4 for attention and 10.5·h² for the MLP, in h/90 layers, and V·h for the vocabulary.
    """
    per_layer = 2.5 + 10.5
    hidden = 64
    while hidden * target.vocab_size + max(hidden / 90, 2) * per_layer * hidden**2 < parameters and hidden < 65536:
        hidden += 64
    heads = max(hidden // 64, 1)
    return ModelArchitecture(
        name=f"dense draft of {parameters:.3g} parameters", kind="draft", family="llama", tokenizer=target.tokenizer,
        hidden_size=hidden, num_hidden_layers=max(round(hidden / 90), 2), num_attention_heads=heads,
        num_key_value_heads=max(heads // 4, 1) if heads % 4 == 0 else heads, head_dim=64, intermediate_size=int(3.5 * hidden),
        vocab_size=target.vocab_size, tie_word_embeddings=True,
    )  # fmt: skip


def model_problems(model: ModelArchitecture, document: Document) -> list[Problem]:
    """Faults between a model's own fields."""
    found = []
    if model.layer_pattern and len(model.layer_pattern) != model.num_hidden_layers:
        must = f"must have one letter per layer ({model.num_hidden_layers})"
        found.append(document.problem(("layer_pattern",), must, len(model.layer_pattern)))
    if model.num_attention_heads % model.num_key_value_heads:
        must = f"must divide num_attention_heads ({model.num_attention_heads})"
        found.append(document.problem(("num_key_value_heads",), must, model.num_key_value_heads))
    return found
