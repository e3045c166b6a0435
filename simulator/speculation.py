"""Speculation: the method, its drafter, and how many tokens are drafted per round."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, get_args

from pydantic import Discriminator, Field, Tag, model_validator

from simulator.architecture import (
    ModelArchitecture,
    block_drafter,
    cache_reader,
    config_path,
    eagle_head,
    hydra_heads,
    is_same_model,
    medusa_heads,
    mtp_head,
    published_weights,
    stored_weights,
    unread_weights,
)
from simulator.draft_policy import BatchTable, ByBatch, Fixed, Policy, table_problems
from simulator.draft_tree import Tree, TreeShape, read_tree
from simulator.hardware import Hardware
from simulator.number_format import BY_NAME, FORMATS, WeightFormat
from simulator.spec import Spec

DraftingMethod = Literal[
    "draft_model", "eagle", "eagle3", "medusa", "hydra", "mtp", "ngram", "suffix", "block", "layer_skip", "sparse_kv"
]  # fmt: skip
Method = Literal["none", DraftingMethod]
METHODS: tuple[Method, ...] = get_args(Method)
METHOD_NAMES = {
    "eagle": "EAGLE", "eagle3": "EAGLE-3", "ngram": "n-gram lookup", "draft_model": "a draft model", "medusa": "Medusa",
    "hydra": "Hydra", "mtp": "MTP", "suffix": "suffix decoding", "block": "a block drafter", "layer_skip": "layer skipping",
    "sparse_kv": "sparse-KV drafting",
}  # fmt: skip
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
# Methods whose drafter computes from states of the target that no cache keeps.
READS_STATES = ("eagle", "eagle3", "mtp", "block")
# Methods whose drafts can branch: several tokens a depth, verified together as a tree.
TREE_METHODS = ("eagle", "eagle3", "medusa", "hydra", "mtp", "draft_model")
DEFAULT_DRAFT_KV_TOKENS = 512
# Weights of a target whose quantizer leaves the MTP module alone.
_MTP_KEPT_WIDE = ("nvfp4",)
Gamma = Annotated[int, Field(ge=1, le=64)]


def _one_or_several(value: object) -> str:
    return "a list" if isinstance(value, list | tuple) else "a policy"


Policies = Annotated[
    Annotated[Policy, Tag("a policy")] | Annotated[tuple[Policy, ...], Field(min_length=1), Tag("a list")],
    Discriminator(_one_or_several),
]


class DraftDevice(Spec):
    """A device of the draft's own: its name, how many of them share the draft, the link to them in seconds one way, and whether
    they draft the next round while the target verifies this one."""

    hardware: str
    tensor_parallel_size: Annotated[int, Field(ge=1, le=64)] = 1
    link_latency_s: Annotated[float, Field(ge=0, le=10)]
    overlap: bool = False


class Speculation(Spec):
    """The `speculation:` section.

    num_speculative_tokens: γ, or a list of them to compare. tree: a draft tree, or a list of them, instead of γ or compared
    with it. by_batch: γ by running batch instead, as ``[[first, last, γ], …]``; batches not covered run without drafts. policy:
    what chooses γ while the server runs, or a list to compare: `fixed` runs at every γ and tree given, the others draft at most
    the largest γ. Left out: fixed, or the table of by_batch.
    drafter_weights: type of the draft's weights. draft_layers: layer_skip: how many of the target's first layers draft.
    draft_kv_tokens: sparse_kv: tokens of the cache that the target reads while it drafts. draft_device: where a draft model runs
    if not beside the target. heterogeneous_vocabulary: the engine maps between different tokenizers.
    """

    method: Method
    drafter: str | None = None
    drafter_weights: Annotated[WeightFormat, BY_NAME] | None = None
    draft_layers: Annotated[int, Field(ge=1)] | None = None
    draft_kv_tokens: Annotated[int, Field(ge=16)] | None = None
    num_speculative_tokens: Gamma | Annotated[tuple[Gamma, ...], Field(min_length=1)] | None = None
    tree: TreeShape | Annotated[tuple[TreeShape, ...], Field(min_length=1)] | None = None
    by_batch: BatchTable | None = None
    policy: Policies | None = None
    heterogeneous_vocabulary: bool = False
    draft_device: DraftDevice | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Speculation:
        for problem in (*self._shape_problems(), *self._drafter_problems()):
            raise ValueError(problem)
        return self

    def _shape_problems(self) -> Iterator[str]:
        """What is wrong with the numbers of tokens drafted."""
        if self.method == "none":
            given = [name for name in self.model_fields_set if getattr(self, name) is not None and name != "method"]
            yield from (f"method none takes no {name}" for name in given if name != "heterogeneous_vocabulary")
            return
        if self.by_batch is not None and self.tree is not None:
            yield "must hold no tree beside by_batch: a schedule by batch is of chains"
        wrong_table = tuple(table_problems(self.by_batch or (), "by_batch", 1))
        if wrong_table:
            yield from wrong_table
            return
        needs = [policy for policy in self.policies if policy.largest is None]
        shaped = self.num_speculative_tokens is not None, self.by_batch is not None
        if all(shaped) or (needs and not any(shaped) and self.tree is None):
            yield "must hold exactly one of num_speculative_tokens and by_batch, or a tree"
            return
        if self.tree is not None and self.method not in TREE_METHODS:
            yield f"method {self.method} drafts no trees: those of {', '.join(TREE_METHODS)} are priced"
        given_shapes = self._stated_shapes()
        repeated = [shape.name for index, shape in enumerate(given_shapes) if shape in given_shapes[:index]]
        yield from (f"must compare each shape once: {name} stands twice" for name in repeated)
        yield from self._policy_problems()

    def _policy_problems(self) -> Iterator[str]:
        if self.policy is None:
            return
        policies = self.policies
        if self.by_batch is not None:
            yield "must hold no policy beside by_batch: compare with {kind: by_batch, table: …} in the list of policies"
        if self.num_speculative_tokens is None and any(p.largest is None and p.kind != "fixed" for p in policies):
            yield "num_speculative_tokens must be given: the policy drafts up to it"
        if self.num_speculative_tokens is not None and all(policy.largest is not None for policy in policies):
            yield "num_speculative_tokens must be left out: the tables of the policies hold every γ"
        if self.tree is not None and not any(policy.kind == "fixed" for policy in policies):
            yield "tree must be left out: only policy fixed drafts trees"
        repeated = [policy.kind for index, policy in enumerate(policies) if policy in policies[:index]]
        yield from (f"must compare each policy once: {kind} stands twice" for kind in repeated)

    def _drafter_problems(self) -> Iterator[str]:
        """What is wrong with the drafter, and keys of other methods."""
        if self.method == "draft_model" and self.drafter is None:
            yield "method draft_model must name its drafter"
        if self.method in (*MODELLESS_METHODS, *SELF_METHODS) and (self.drafter or self.drafter_weights):
            yield f"method {self.method} has no drafter model: leave out drafter and drafter_weights"
        if (self.method == "layer_skip") != (self.draft_layers is not None):
            yield "draft_layers must be given with method layer_skip, and with no other"
        if self.method != "sparse_kv" and self.draft_kv_tokens is not None:
            yield "draft_kv_tokens goes with method sparse_kv only"
        if self.heterogeneous_vocabulary and self.method != "draft_model":
            yield "heterogeneous_vocabulary applies to method draft_model only"

    @property
    def policies(self) -> tuple[Policy, ...]:
        """Every policy to compare."""
        if self.policy is None:
            return (Fixed() if self.by_batch is None else ByBatch(table=self.by_batch),)
        return self.policy if isinstance(self.policy, tuple) else (self.policy,)

    @property
    def variants(self) -> tuple[tuple[Tree, Policy], ...]:
        """Everything to compare: a shape of draft and the policy that drafts it, or at most it."""
        stated = self._stated_shapes()
        found: list[tuple[Tree, Policy]] = []
        for policy in self.policies:
            if policy.kind == "fixed":
                found += [(shape, policy) for shape in stated]
            else:
                most = policy.largest or max(shape.steps for shape in stated if shape.is_chain)
                found.append((Tree.chain(most), policy))
        return tuple(found)

    @property
    def shapes(self) -> tuple[Tree, ...]:
        """Every shape of draft to compare; for policies other than `fixed` the chain of their largest γ."""
        return tuple(dict.fromkeys(shape for shape, _ in self.variants))

    def _stated_shapes(self) -> tuple[Tree, ...]:
        """The chains and trees given, chains first."""
        chains = self.num_speculative_tokens
        gammas = () if chains is None else (chains,) if isinstance(chains, int) else chains
        trees = () if self.tree is None else self.tree if isinstance(self.tree, tuple) else (self.tree,)
        return (*map(Tree.chain, gammas), *map(read_tree, trees))

    @model_validator(mode="after")
    def _drafts_apart(self) -> Speculation:
        if self.draft_device is not None and self.method not in REMOTE_METHODS:
            methods = ", ".join(REMOTE_METHODS)
            raise ValueError(f"draft_device goes with method {methods}: {self.method} needs the target's own states or text")
        return self

    @property
    def gammas(self) -> tuple[int, ...]:
        """Every γ to compare, chains only; of a policy that varies it the largest one."""
        return tuple(shape.steps for shape in self.shapes if shape.is_chain)


def built_head(target: ModelArchitecture, method: str, gamma: int) -> ModelArchitecture:
    """A drafting module of the usual shape for a target, where none is named. `method` is a key of `HEAD_FAMILIES`."""
    if method in ("eagle", "eagle3"):
        return eagle_head(target, method)
    if method == "mtp":
        return cache_reader(target) or mtp_head(target)
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


def drafts_at_once(drafter: ModelArchitecture) -> tuple[int | None, str]:
    """(the most drafts that one pass of it gives, what limits them); None where it drafts one after the other."""
    if drafter.block_size is not None:
        return drafter.block_size, "block"
    return drafter.num_heads or drafter.n_predict, "heads"


def default_drafter_weights(
    method: str, target_weights: str, wide_dtype: str, stored: str | None = None, drafter: ModelArchitecture | None = None
) -> tuple[str, str]:
    """(type of the drafter's weights where nobody says, what to tell the reader of it or ""). `stored`: by its own config.json.

    A target that drafts for itself drafts with its own weights. An MTP module comes in its target's checkpoint and is stored
    as it is, save in NVFP4 checkpoints, whose quantizer leaves it in 16 bit. Other drafters, and modules that read their target's
    cache, are files of their own, published in 16 bit.

    >>> default_drafter_weights("mtp", "q4_k_m", "bf16")[0], default_drafter_weights("eagle3", "q4_k_m", "bf16")[0]
    ('q4_k_m', 'bf16')
    """
    if stored is not None and method not in SELF_METHODS:
        return stored, ""
    if method in SELF_METHODS or target_weights == "fp32":
        return target_weights, ""
    quantized = FORMATS[target_weights].quantized
    inside = method == "mtp" and (drafter is None or drafter.kv_source == "own")
    if inside and target_weights not in _MTP_KEPT_WIDE:
        chosen, why = target_weights, "as its target's checkpoint"
    else:
        chosen, why = (wide_dtype, "which its quantizer leaves alone" if inside else "as stand-alone drafters are published")
    return chosen, f"the drafter's weights are taken as {chosen}, {why}; drafter_weights says otherwise" if quantized else ""


def arithmetic_warning(hardware: Hardware, weights: str) -> list[str]:
    """That a device has no arithmetic in the type of the weights, so that they are expanded to a wider one.

    >>> from simulator.hardware import find_hardware
    >>> arithmetic_warning(find_hardware("rtx_3090"), "fp8")
    ['NVIDIA GeForce RTX 3090 has no fp8 arithmetic: weights in fp8 are read as such and computed with in bf16']
    """
    native, used = FORMATS[weights].computes_in, hardware.compute_dtype(weights)
    if not FORMATS[weights].quantized or not native or used in native:
        return []
    return [f"{hardware.name} has no {native[0]} arithmetic: weights in {weights} are read as such and computed with in {used}"]


def mixed_warning(name: str, target: ModelArchitecture, weights: str) -> list[str]:
    """What a checkpoint of this type is taken to keep in others, where neither its own config nor its owner's says it.

    >>> from simulator.architecture import find_model
    >>> mixed_warning("google/gemma-4-31B-it", find_model("google/gemma-4-31B-it"), "nvfp4")
    ['nvfp4 as most checkpoints have it: attention in bf16; a config.json as the target says otherwise']
    """
    mixed = target.mixed_as(weights)
    owners = stored_weights(name) is None and published_weights(name) == weights
    if mixed is None or owners or config_path(name) is not None:
        return []
    return [f"{weights} as most checkpoints have it: {mixed.words}; a config.json as the target says otherwise"]


def unread_warning(name: str | None, taken: str, key: str) -> list[str]:
    """That a checkpoint stores its weights in a way that is not understood, and what is priced instead. key: says otherwise."""
    unread = "" if name is None else unread_weights(name)
    if not unread:
        return []
    return [
        f"NOT UNDERSTOOD: the config.json of {name} says {unread} of its weights: they are priced as {taken}, most likely too "
        f"large; {key} says otherwise"
    ]


def weights_warning(stated: str | None, stored: str | None) -> list[str]:
    """That a checkpoint's config.json or name names another type than the user does. 16-bit types are one."""
    if stated is None or stored is None or stated == stored or {stated, stored} <= {"bf16", "fp16"}:
        return []
    return [f"the model's config.json, or its name, says its weights are stored as {stored}; {stated} is priced, as asked"]


def drafter_problem(method: str, drafter: ModelArchitecture) -> str | None:
    """Why a model cannot draft by a method, or None."""
    if method not in HEAD_FAMILIES:
        return None if drafter.kind != "draft_head" else f"must be a whole model for method {method}"
    if drafter.kind != "draft_head":
        return f"must be a draft head for method {method}"
    if drafter.family not in HEAD_FAMILIES[method]:
        return f"must be a head for method {method}, not for {drafter.family}"
    return None


def other_target_warning(target: ModelArchitecture, drafter: ModelArchitecture) -> list[str]:
    """That a head was trained for another model than the target, whose tokens it will guess worse."""
    base = drafter.base_model
    if drafter.kind != "draft_head" or base is None or is_same_model(base, target):
        return []
    return [f"drafter {drafter.name} was trained for {base}, not for {target.name}: it is accepted less than measured there"]


def tokenizer_problem(target: ModelArchitecture, drafter: ModelArchitecture) -> str | None:
    """Why a draft's tokens cannot be the target's: other tokenizer family, or vocabularies too different to be padding.

    Padded vocabularies of one family differ by up to a few hundred rows; a head's reduced `draft_vocab_size` maps into
    the target's vocabulary and is normal.
    """
    if drafter.kind == "draft_head":
        # A head that fuses three states of its target, or goes back to the target's width, may be narrower than the target.
        fused = drafter.family == "eagle3" and drafter.fc_input_size == 3 * target.hidden_size
        fused = fused or drafter.fc_output_size == target.hidden_size
        if fused or drafter.hidden_size == target.hidden_size or drafter.base_model is None:
            return None
        return f"is a head for {drafter.base_model} (width {drafter.hidden_size}), target has width {target.hidden_size}"
    mine, theirs = drafter.tokenizer, target.tokenizer
    if mine and theirs and mine != theirs:
        return f"drafter tokenizer {mine} ({drafter.vocab_size}) differs from target tokenizer {theirs} ({target.vocab_size})"
    if not (mine and theirs) and abs(drafter.vocab_size - target.vocab_size) > 0.01 * target.vocab_size:
        return f"drafter vocabulary ({drafter.vocab_size}) differs from target vocabulary ({target.vocab_size})"
    return None
