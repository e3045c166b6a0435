"""Speculation: the method, its drafter, and how many tokens are drafted per round."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from simulator.architecture import ModelArchitecture, block_drafter, eagle_head, hydra_heads, medusa_heads, mtp_head
from simulator.spec import Spec

Method = Literal[
    "none", "draft_model", "eagle", "eagle3", "medusa", "hydra", "mtp", "ngram", "suffix", "block", "layer_skip", "sparse_kv"
]  # fmt: skip
METHODS: tuple[Method, ...] = get_args(Method)
# Methods whose drafter is a module trained for its target, and the families of modules that serve them.
HEAD_FAMILIES: dict[str, tuple[str, ...]] = {
    "eagle": ("eagle",), "eagle3": ("eagle3",), "medusa": ("medusa", "mlp_speculator"), "hydra": ("hydra",), "mtp": ("mtp",),
    "block": ("dflash",),
}  # fmt: skip
# Methods that draft with the target itself, and such without any model.
SELF_METHODS = ("layer_skip", "sparse_kv")
MODELLESS_METHODS = ("none", "ngram", "suffix")
# Methods whose drafter needs nothing of the target but its tokens, so that it can run elsewhere.
REMOTE_METHODS = ("draft_model",)
DEFAULT_DRAFT_KV_TOKENS = 512
Gamma = Annotated[int, Field(ge=1, le=64)]
BatchRange = Annotated[tuple[int, int, int], Field(description="first batch, last batch, tokens drafted (0 = off)")]


class DraftDevice(Spec):
    """A device of the draft's own: its name, how many of them share the draft, the link to them in seconds one way, and whether
    they draft the next round while the target verifies this one."""

    hardware: str
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    link_latency_s: Annotated[float, Field(ge=0, le=10)]
    overlap: bool = False


class Speculation(Spec):
    """The `speculation:` section.

    num_speculative_tokens: γ, or a list of them to compare. by_batch: γ by running batch instead, as
    ``[[first, last, γ], …]``; batches not covered run without drafts. drafter_weights: type of the draft's weights.
    draft_layers: layer_skip: how many of the target's first layers draft. draft_kv_tokens: sparse_kv: tokens of the cache that
    the target reads while it drafts. draft_device: where a draft model runs if not beside the target. heterogeneous_vocabulary:
    the engine maps between different tokenizers.
    """

    method: Method
    drafter: str | None = None
    drafter_weights: Literal["bf16", "fp16", "fp8", "fp32"] | None = None
    draft_layers: Annotated[int, Field(ge=1)] | None = None
    draft_kv_tokens: Annotated[int, Field(ge=16)] | None = None
    num_speculative_tokens: Gamma | Annotated[tuple[Gamma, ...], Field(min_length=1)] | None = None
    by_batch: Annotated[tuple[BatchRange, ...], Field(min_length=1)] | None = None
    heterogeneous_vocabulary: bool = False
    draft_device: DraftDevice | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Speculation:
        if self.method == "none":
            extra = [
                name
                for name in ("drafter", "drafter_weights", "num_speculative_tokens", "by_batch")
                if getattr(self, name) is not None
            ]
            if extra:
                raise ValueError(f"method none takes no {extra[0]}")
            return self
        if (self.num_speculative_tokens is None) == (self.by_batch is None):
            raise ValueError("must hold exactly one of num_speculative_tokens and by_batch")
        if self.method == "draft_model" and self.drafter is None:
            raise ValueError("method draft_model must name its drafter")
        if self.method in (*MODELLESS_METHODS, *SELF_METHODS) and (self.drafter or self.drafter_weights):
            raise ValueError(f"method {self.method} has no drafter model: leave out drafter and drafter_weights")
        if (self.method == "layer_skip") != (self.draft_layers is not None):
            raise ValueError("draft_layers must be given with method layer_skip, and with no other")
        if self.method != "sparse_kv" and self.draft_kv_tokens is not None:
            raise ValueError("draft_kv_tokens goes with method sparse_kv only")
        if self.heterogeneous_vocabulary and self.method != "draft_model":
            raise ValueError("heterogeneous_vocabulary applies to method draft_model only")
        if self.by_batch is not None and not any(gamma for _, _, gamma in self.by_batch):
            raise ValueError("by_batch must draft somewhere: every entry has 0 tokens (method none is no speculation)")
        for first, last, gamma in self.by_batch or ():
            if not (1 <= first <= last and 0 <= gamma <= 64):
                raise ValueError(
                    "by_batch entries must be [first, last, tokens] with 1 <= first <= last and 0 <= tokens <= 64 "
                    f"(got {[first, last, gamma]})"
                )
        return self

    @model_validator(mode="after")
    def _drafts_apart(self) -> Speculation:
        if self.draft_device is not None and self.method not in REMOTE_METHODS:
            methods = ", ".join(REMOTE_METHODS)
            raise ValueError(f"draft_device goes with method {methods}: {self.method} needs the target's own states or text")
        return self

    @property
    def gammas(self) -> tuple[int, ...]:
        """Every γ to compare; for `by_batch` the largest one."""
        if self.by_batch is not None:
            return (max(gamma for _, _, gamma in self.by_batch),)
        given = self.num_speculative_tokens
        return () if given is None else (given,) if isinstance(given, int) else given

    def tokens_at(self, gamma: int, running: int) -> int:
        """Tokens drafted per sequence when `running` sequences decode; `gamma` where no table is given."""
        if self.by_batch is None:
            return gamma
        return next((tokens for first, last, tokens in self.by_batch if first <= running <= last), 0)


@dataclass(frozen=True, slots=True)
class Tree:
    """A draft tree. nodes: rows verified per sequence, root included. steps: draft passes. width: rows of each later pass, 1 in
    a chain."""

    nodes: int
    steps: int
    width: int

    @property
    def is_chain(self) -> bool:
        return self.width == 1


def read_tree(text: str) -> Tree:
    """A tree as people write it: ``steps=5,topk=4,draft_tokens=8`` (SGLang: root counted), ``nodes=60,depth=5`` or ``nodes=64``.

    Where depth or width is not said, EAGLE-2's five steps of ten are taken. ``topk=1`` is a chain, of one node more than steps.
    Raises ValueError for what is no tree.

    >>> read_tree("steps=5,topk=4,draft_tokens=8"), read_tree("steps=3,topk=1")
    (Tree(nodes=8, steps=5, width=4), Tree(nodes=4, steps=3, width=1))
    """
    given = {}
    for part in text.replace(" ", "").split(","):
        name, _, value = part.partition("=")
        given[name] = int(value)
    nodes = given.get("nodes", given.get("draft_tokens"))
    steps = given.get("steps", given.get("depth"))
    chain = given.get("topk") == 1
    if chain:
        steps = steps or (nodes or 0) - 1
        nodes = nodes or steps + 1
    if given.keys() - {"steps", "topk", "draft_tokens", "nodes", "depth"} or not nodes or nodes < 2 or min(given.values()) < 1:
        raise ValueError(text)
    if chain and nodes != (steps or 0) + 1:
        raise ValueError(text)
    return Tree(nodes, steps or 5, 1 if chain else min(given.get("topk", 10), nodes))


def built_head(target: ModelArchitecture, method: str, gamma: int) -> ModelArchitecture:
    """A drafting module of the usual shape for a target, where none is named. `method` is a key of `HEAD_FAMILIES`."""
    if method in ("eagle", "eagle3"):
        return eagle_head(target, method)
    if method == "mtp":
        return mtp_head(target)
    if method == "block":
        return block_drafter(target, max(gamma + 1, 16))
    return medusa_heads(target, gamma) if method == "medusa" else hydra_heads(target, gamma)


def self_draft(target: ModelArchitecture, method: str, draft_layers: int | None) -> ModelArchitecture:
    """The target as its own drafter: its first layers, or all of them over a part of the cache."""
    if method == "sparse_kv" or draft_layers is None:
        return target
    layers = min(draft_layers, target.num_hidden_layers)
    kept: dict[str, object] = {"name": f"first {layers} layers of {target.name}", "num_hidden_layers": layers}
    for name in ("layer_pattern", "intermediate_sizes", "compress_ratios"):
        value = getattr(target, name)
        kept[name] = None if value is None else value[:layers]
    return target.model_copy(update=kept)


def drafter_problem(method: str, drafter: ModelArchitecture) -> str | None:
    """Why a model cannot draft by a method, or None."""
    if method not in HEAD_FAMILIES:
        return None if drafter.kind != "draft_head" else f"must be a whole model for method {method}"
    if drafter.kind != "draft_head":
        return f"must be a draft head for method {method}"
    if drafter.family not in HEAD_FAMILIES[method]:
        return f"must be a head for method {method}, not for {drafter.family}"
    return None


def tokenizer_problem(target: ModelArchitecture, drafter: ModelArchitecture) -> str | None:
    """Why a draft's tokens cannot be the target's: other tokenizer family, or vocabularies too different to be padding.

    Padded vocabularies of one family differ by up to a few hundred rows; a head's reduced `draft_vocab_size` maps into
    the target's vocabulary and is normal.
    """
    if drafter.kind == "draft_head":
        same = drafter.hidden_size == target.hidden_size or drafter.base_model is None
        return (
            None
            if same
            else f"is a head for {drafter.base_model} (width {drafter.hidden_size}), target has width {target.hidden_size}"
        )
    mine, theirs = drafter.tokenizer, target.tokenizer
    if mine and theirs and mine != theirs:
        return f"drafter tokenizer {mine} ({drafter.vocab_size}) differs from target tokenizer {theirs} ({target.vocab_size})"
    if not (mine and theirs) and abs(drafter.vocab_size - target.vocab_size) > 0.01 * target.vocab_size:
        return f"drafter vocabulary ({drafter.vocab_size}) differs from target vocabulary ({target.vocab_size})"
    return None
