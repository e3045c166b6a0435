"""ModelArchitecture: the shape of a model, in Hugging Face field names, and what follows from it.

Counts are of the text decoder; norms and biases are left out of FLOPs but counted as parameters.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from simulator.architecture.layers import RECURRENT, STATE_NUMBER_BYTES, LayerGroup, Matrices, has_experts, layer_groups, pattern
from simulator.architecture.mixed_weights import MixedWeights, Part
from simulator.number_format import FORMATS, NumberFormat
from simulator.spec import Spec

Count = Annotated[int, Field(ge=1, le=10**13)]
Amount = Annotated[int, Field(ge=0)]


class ModelArchitecture(Spec):
    """One model or draft head. Field names as in Hugging Face configs.

    family: of a draft head, the method it drafts by: eagle, eagle3, mtp, medusa, hydra, mlp_speculator, dflash.
    mlp_type: `gated` = three matrices, else two. intermediate_size: width of dense MLPs; intermediate_sizes: one a layer.
    layer_pattern: one letter a layer; absent = all F, or all S where there is a window. F full attention, S sliding window
    (chunks, with attention_chunk_size), C sparse attention (of a compressed cache, with compress_ratios), L linear attention,
    M Mamba-2, N no attention, E experts only, D MLP only; with M, E or D in it, every layer holds one block only.
    global_head_dim, num_global_key_value_heads, attention_k_eq_v: of layers F where they differ from the sliding ones (Gemma 4),
    the last for values that are the keys and so have no projection, though both are cached.

    num_experts: routed ones, in the layers after the first first_k_dense_replace whose number, from 1, is a multiple of
    decoder_sparse_step. moe_latent_size: width that routed experts work on. n_group: groups that routing picks from first.
    linear_gate_rank: rank of the decay of Kimi delta attention. compress_ratios: per layer, tokens in one cached entry,
    0 = window only. index_topk: tokens (entries, when compressed) that an indexer picks; index_layers: how many layers have
    an indexer of their own, which the others follow; absent = all.

    qkv_input_size: width that q, k and v read (EAGLE-3: twice the hidden size). fc_input_size: width of the fusion matrix
    in front of a draft head. block_size: the most tokens a drafter can propose in one pass. embedding_source and
    lm_head_source: `target` = shared, so no extra memory. kv_source: `target` = its layers have queries alone and read the
    target's cache (assistants of Gemma 4), so that nothing is cached for them; fc_output_size: width in which such a head hands
    its state on. num_heads: Medusa or Hydra heads, each of num_head_layers blocks with an LM head of its own. n_predict,
    inner_dim, tie_weights: heads of an MLP speculator, their width, whether they
    share weights. mixed_weights: by type of a checkpoint's weights, parts that published ones keep in another. total_params,
    active_params: published counts, which only check the shape.
    """

    name: str
    aliases: tuple[str, ...] = ()
    kind: Literal["target", "draft", "draft_head"] = "target"
    family: str
    tokenizer: str | None = None
    base_model: str | None = None
    hidden_size: Annotated[int, Field(ge=1, le=10**6)]
    num_hidden_layers: Annotated[int, Field(ge=0, le=10_000)]
    num_attention_heads: Amount = 0
    num_key_value_heads: Amount = 0
    head_dim: Amount = 0
    global_head_dim: Count | None = None
    num_global_key_value_heads: Count | None = None
    attention_k_eq_v: bool = False
    intermediate_size: Amount = 0
    intermediate_sizes: tuple[Amount, ...] | None = None
    mlp_type: Literal["gated", "gelu", "relu", "relu2"] = "gated"
    vocab_size: Count
    draft_vocab_size: Count | None = None
    tie_word_embeddings: bool = False
    attention_bias: Literal["qkv", "all"] | None = None
    qk_norm: Literal["per_head", "full"] | None = None
    attn_output_gate: bool = False
    sliding_window: Count | None = None
    attention_chunk_size: Count | None = None
    layer_pattern: str | None = None
    max_position_embeddings: Count | None = None
    num_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    moe_intermediate_size: Count | None = None
    moe_latent_size: Count | None = None
    n_shared_experts: Amount = 0
    shared_expert_intermediate_size: Count | None = None
    first_k_dense_replace: Amount = 0
    decoder_sparse_step: Count = 1
    n_group: Count | None = None
    q_lora_rank: Count | None = None
    kv_lora_rank: Count | None = None
    qk_nope_head_dim: Count | None = None
    qk_rope_head_dim: Count | None = None
    v_head_dim: Count | None = None
    o_lora_rank: Count | None = None
    o_groups: Count | None = None
    index_n_heads: Count | None = None
    index_head_dim: Count | None = None
    index_topk: Count | None = None
    index_layers: Count | None = None
    compress_ratios: tuple[Amount, ...] | None = None
    linear_num_key_heads: Count | None = None
    linear_num_value_heads: Count | None = None
    linear_key_head_dim: Count | None = None
    linear_value_head_dim: Count | None = None
    linear_conv_kernel_dim: Count | None = None
    linear_gate_rank: Count | None = None
    mamba_num_heads: Count | None = None
    mamba_head_dim: Count | None = None
    ssm_state_size: Count | None = None
    n_groups: Count | None = None
    conv_kernel: Count | None = None
    num_nextn_predict_layers: Amount = 0
    qkv_input_size: Count | None = None
    fc_input_size: Count | None = None
    embedding_source: Literal["target", "own"] = "own"
    lm_head_source: Literal["target", "own"] = "own"
    kv_source: Literal["target", "own"] = "own"
    fc_output_size: Count | None = None
    mixed_weights: tuple[MixedWeights, ...] = ()
    block_size: Count | None = None
    num_heads: Count | None = None
    num_head_layers: Count | None = None
    n_predict: Count | None = None
    inner_dim: Count | None = None
    tie_weights: bool = False
    total_params: Count | None = None
    active_params: Count | None = None
    total_params_source: str = ""
    sources: tuple[str, ...] = ()

    # ------------------------------------------------------------------------------------------------ what is priced

    def layer_groups(self, tensor_parallel_size: int) -> tuple[LayerGroup, ...]:
        """Equal layers together, as one device of a tensor-parallel group runs them.

        >>> from simulator.architecture import find_model
        >>> [(group.count, group.attention, group.experts is not None) for group in find_model("DeepSeek-V3").layer_groups(8)]
        [(3, 'mla', False), (58, 'mla', True)]
        """
        return layer_groups(self, tensor_parallel_size)

    def lm_head_shape(self, tensor_parallel_size: int) -> tuple[float, float]:
        """(n, k) of the LM head on one device, its rows split."""
        return self.output_vocab_size / tensor_parallel_size, self.hidden_size

    def fusion_shapes(self, tensor_parallel_size: int) -> Matrices:  # noqa: ARG002
        """(n, k) of the matrix in front of a draft head that fuses states of the target, and of the one behind it that goes back
        to the target's width; engines keep both whole on each device.

        >>> from simulator.architecture import find_model
        >>> find_model("yuhuili/EAGLE3-LLaMA3.1-Instruct-8B").fusion_shapes(2)
        ((4096, 12288),)
        """
        around: Matrices = ((self.hidden_size, self.fc_input_size),) if self.fc_input_size else ()
        return (*around, (self.fc_output_size, self.hidden_size)) if self.fc_output_size else around

    def head_shapes(self, tensor_parallel_size: int) -> Matrices:
        """(n, k) of every GEMM that Medusa, Hydra or MLP-speculator heads run to draft once, in order; LM heads are split.

        Medusa: residual blocks, then the LM head (Cai et al. 2024). Hydra: the first block also reads the tokens before it
        and adds them through a second matrix (Ankner et al. 2024). MLP speculator: one matrix and one LM head a token
        (Wertheimer et al. 2024).
        """
        hidden, vocabulary = self.hidden_size, self.output_vocab_size / tensor_parallel_size
        shapes: list[tuple[float, float]] = []
        for index in range(self.num_heads or 0):
            blocks = self.num_head_layers or 0
            if self.family == "hydra":
                shapes += [(hidden, (index + 2) * hidden)] * 2
                blocks -= 1
            shapes += [(hidden, hidden)] * blocks + [(vocabulary, hidden)]
        for index in range(self.n_predict or 0):
            inner = self.inner_dim or hidden
            shapes += [(inner, inner if index else hidden), (vocabulary, inner)]
        return tuple(shapes)

    # ------------------------------------------------------------------------------------------------------ properties

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
    def shared_expert_width(self) -> int:
        """Width of all shared experts together."""
        return self.shared_expert_intermediate_size or self.n_shared_experts * (self.moe_intermediate_size or 0)

    @property
    def is_moe(self) -> bool:
        return self.num_experts is not None

    @property
    def moe_layers(self) -> int:
        """Layers with routed experts."""
        return sum(has_experts(self, index) for index in range(self.num_hidden_layers))

    @property
    def has_recurrent_state(self) -> bool:
        """Linear-attention or state-space layers, whose state must be rolled back when a draft is rejected."""
        return bool(set("LM") & set(pattern(self)))

    # ------------------------------------------------------------------------------------------------------ parameters

    @property
    def layer_parameters(self) -> int:
        """Matrix weights of all layers, every routed expert included."""
        return round(sum(group.count * group.parameters for group in self.layer_groups(1)))

    @property
    def lm_head_parameters(self) -> int:
        return self.output_vocab_size * self.hidden_size

    @property
    def parameter_count(self) -> int:
        """Weights this model adds to memory: shared embeddings and heads are not counted, tied ones once."""
        fusion = ((self.fc_input_size or 0) + (self.fc_output_size or 0)) * self.hidden_size
        return self.layer_parameters + self._small_parameters + self._vocabulary_parameters + fusion + self._head_parameters

    @property
    def active_parameter_count(self) -> int:
        """Weights used per token: as `parameter_count`, with num_experts_per_tok of the routed experts."""
        idle = (group.count * _idle_parameters(group) for group in self.layer_groups(1))
        return self.parameter_count - round(sum(idle))

    @property
    def _vocabulary_parameters(self) -> int:
        """Embedding and LM head."""
        if self.n_predict:
            return (1 if self.tie_weights else self.n_predict) * self.vocab_size * (self.inner_dim or 0)
        embedding = 0 if self.embedding_source == "target" else self.vocab_size * self.hidden_size
        head = 0 if self.lm_head_source == "target" or (self.tie_word_embeddings and embedding) else self.lm_head_parameters
        return embedding + (0 if self.num_heads else head)

    @property
    def _head_parameters(self) -> int:
        """Medusa, Hydra or MLP-speculator heads; tied ones share one LM head, and all matrices but the first."""
        shapes = self.head_shapes(1)
        return round(sum(n * k for n, k in (shapes[:3] if self.tie_weights else shapes)))

    @property
    def _small_parameters(self) -> int:
        """Norms, biases and short convolutions of all layers, and the last norm."""
        letters = pattern(self)
        attention = sum(map(letters.count, "FSC"))
        heads, kv_heads, dim = self.num_attention_heads, self.num_key_value_heads, self.head_dim
        bias = (heads + 2 * kv_heads) * dim if self.attention_bias else 0
        bias += self.hidden_size if self.attention_bias == "all" else 0
        norms = {"per_head": 2 * dim, "full": (heads + kv_heads) * dim, None: 0}[self.qk_norm]
        channels = 2 * (self.linear_num_key_heads or 0) * (self.linear_key_head_dim or 0)
        channels += (self.linear_num_value_heads or 0) * (self.linear_value_head_dim or 0)
        mamba = (self.mamba_num_heads or 0) * (self.mamba_head_dim or 0) + 2 * (self.n_groups or 0) * (self.ssm_state_size or 0)
        convolutions = letters.count("L") * channels * (self.linear_conv_kernel_dim or 0)
        convolutions += letters.count("M") * mamba * (self.conv_kernel or 0)
        return attention * (bias + norms) + convolutions + (2 * len(letters) + 1) * self.hidden_size

    @property
    def mixed_head_width(self) -> int | None:
        """The widest head where layers have heads of several widths, as in Gemma 4.

        >>> from simulator.architecture import find_model
        >>> [find_model(name).mixed_head_width for name in ("google/gemma-4-31B-it", "Qwen/Qwen3-8B")]
        [512, None]
        """
        return None if self.global_head_dim in (None, self.head_dim) else max(self.global_head_dim or 0, self.head_dim)

    # ---------------------------------------------------------------------------------------------------------- memory

    def format_of(self, part: Part, dtype: str) -> NumberFormat:
        """How a checkpoint whose weights are of `dtype` stores a part.

        >>> from simulator.architecture import find_model
        >>> gpt_oss = find_model("openai/gpt-oss-20b")
        >>> gpt_oss.format_of("attention", "mxfp4").name, gpt_oss.format_of("attention", "fp8").name
        ('bf16', 'fp8')
        """
        if part == "router":
            return FORMATS["bf16"] if FORMATS[dtype].quantized else FORMATS[dtype]
        mixed = self.mixed_as(dtype)
        return FORMATS[dtype] if mixed is None else mixed.stored(part)

    def mixed_as(self, dtype: str) -> MixedWeights | None:
        """What a checkpoint whose weights are of `dtype` keeps in other types; None for nothing."""
        return next((mixed for mixed in self.mixed_weights if mixed.weights == dtype), None)

    def head_bytes(self, dtype: str) -> float:
        """Bytes of one weight of the LM head."""
        kept, own = FORMATS[dtype], self.head_format(dtype)
        return max(kept.head_bytes, kept.bytes) if own is None else own.bytes

    def stored_formats(self, dtype: str) -> frozenset[str]:
        """Every format that a matrix of a checkpoint is stored in whose weights are of `dtype`, routers and LM head included.

        >>> from simulator.architecture import find_model
        >>> sorted(find_model("openai/gpt-oss-20b").stored_formats("mxfp4"))
        ['bf16', 'mxfp4']
        """
        parts = {part for group in self.layer_groups(1) for part in group.parts}
        return frozenset({dtype, self.head_stored(dtype).name, *(self.format_of(part, dtype).name for part in parts)})

    def head_stored(self, dtype: str) -> NumberFormat:
        """How the LM head is stored: in 16 bit unless the format or the checkpoint quantizes it too."""
        kept, own = FORMATS[dtype], self.head_format(dtype)
        return own or (FORMATS["bf16"] if kept.quantized and kept.head_bits >= 16 else kept)

    def head_format(self, dtype: str) -> NumberFormat | None:
        """The format of the LM head where checkpoints quantize it on its own; None where it is as their format has it."""
        mixed = self.mixed_as(dtype)
        return None if mixed is None or mixed.head is None else FORMATS[mixed.head]

    def weight_bytes(self, dtype: str) -> float:
        """Bytes of all weights. Layers and experts are of `dtype`, or of what `mixed_weights` says; routers stay in 16 bit,
        embeddings and LM head in what the format keeps them in."""
        kept = FORMATS[dtype]
        wide = max(kept.head_bytes, kept.bytes)
        found = self.parameter_count * wide + self._expert_parameters * (kept.bytes - wide)
        if self.lm_head_source == "own" and not self.tie_word_embeddings:
            found += self.lm_head_parameters * (self.head_bytes(dtype) - wide)
        parts: tuple[Part, ...] = ("attention", "attention_output", "mlp")
        for group in self.layer_groups(1):
            found += group.count * sum(group.parameters_of(part) * (self.format_of(part, dtype).bytes - wide) for part in parts)
        return found

    def expert_bytes(self, dtype: str) -> float:
        """Bytes of the routed experts of all layers, which are of `dtype`."""
        return self._expert_parameters * FORMATS[dtype].bytes

    @property
    def _expert_parameters(self) -> float:
        return sum(g.count * g.experts.num_experts * g.experts.parameters_per_expert for g in self.layer_groups(1) if g.experts)

    def kv_heads_per_device(self, tensor_parallel_size: int) -> float:
        """KV heads on one device; replicated once there are more devices than heads."""
        return max(self.num_key_value_heads / tensor_parallel_size, 1.0)

    def kv_bytes_per_token(self, dtype: str, tensor_parallel_size: int = 1) -> float:
        """Cached bytes per token on one device, all layers; none of a head that reads its target's cache.

        >>> from simulator.architecture import find_model
        >>> find_model("DeepSeek-V3").kv_bytes_per_token("bf16", 8) == 61 * 576 * 2
        True
        """
        if self.kv_source == "target":
            return 0.0
        groups = self.layer_groups(tensor_parallel_size)
        elements = sum(group.count * (group.kv_elements_per_token + group.index_elements_per_token) for group in groups)
        return elements * FORMATS[dtype].bytes

    def state_bytes(self, dtype: str, tensor_parallel_size: int = 1, states: int = 1) -> float:
        """Bytes per sequence on one device whatever its length: `states` recurrent ones of each layer, and windows beside a
        compressed cache of `dtype`."""
        found = 0.0
        for group in self.layer_groups(tensor_parallel_size):
            number_bytes = STATE_NUMBER_BYTES * states if group.attention in RECURRENT else FORMATS[dtype].bytes
            found += group.count * group.state_elements * number_bytes
        return found


def _idle_parameters(group: LayerGroup) -> float:
    experts = group.experts
    return (experts.num_experts - experts.top_k) * experts.parameters_per_expert if experts else 0.0
