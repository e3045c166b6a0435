"""What drafting costs, by method: one function a method, and one name in `speculation.METHODS`.

Each takes the drafter, γ, the running sequences and their contexts, and returns named terms. Sources: Leviathan et al. 2023
(draft model), Li et al. 2024 and 2025 (EAGLE, EAGLE-3), Cai et al. 2024 (Medusa), Ankner et al. 2024 (Hydra), DeepSeek-V3 2024
(MTP), Chen et al. 2024 (MagicDec: sparse KV), Saxena 2023 (prompt lookup).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from simulator.architecture import ModelArchitecture
from simulator.cost.forward import ForwardCost
from simulator.cost.forward_pass import ForwardPass, uniform_pass
from simulator.cost.remote_draft import RemoteDraft
from simulator.cost.roofline import Bound
from simulator.cost.step_scale import UPKEEP
from simulator.cost.tape import added, looked_up, smaller
from simulator.cost.terms import CostTerm, PassCost
from simulator.draft_tree import Tree
from simulator.serving_engine import ServingEngine


@dataclass(frozen=True)
class Drafter:
    """What drafts: `passes` prices the draft model or head (None for a search of the text). full_acceptance_rate: share of
    rounds in which every draft is accepted, which widens the next first pass under the `catch_up` rule. kv_tokens: the part of
    the cache that a sparse-KV self-draft reads. remote: the link to a device of its own, None beside the target.
    host_time_factor: of the host that runs the engine, as in `hardware.Coefficients`."""

    method: str
    engine: ServingEngine
    passes: ForwardCost | None = None
    full_acceptance_rate: float = 0.5
    kv_tokens: int | None = None
    tree: Tree | None = None
    remote: RemoteDraft | None = None
    host_time_factor: float = 1.0

    @property
    def has_cache(self) -> bool:
        """Whether it keeps a KV cache of its own, which prompts and accepted tokens must fill."""
        return self.passes is not None and keeps_cache(self.method, self.passes.architecture)

    @property
    def step_overhead_s(self) -> float:
        """Host time of one draft pass."""
        base_s = self.engine.draft_step_overhead_s[overhead_name(self.engine, self.method)].value
        return self.host_time_factor * (base_s + (self.engine.tree_draft_step_overhead_s.value if self.tree else 0.0))

    @property
    def broadcast_s(self) -> float:
        """What the workers of other devices must be told of each draft pass."""
        told = self.engine.draft_broadcast_s
        several = self.passes is not None and self.passes.tensor_parallel_size > 1
        return self.host_time_factor * told.value if told is not None and several else 0.0


def keeps_cache(method: str, drafter: ModelArchitecture) -> bool:
    """Whether a drafter of this method has a KV cache of its own."""
    return method in _CACHED_METHODS and drafter.kv_source == "own"


def overhead_name(engine: ServingEngine, method: str) -> str:
    """Under which name an engine keeps a method's overhead per draft pass."""
    return method if method in engine.draft_step_overhead_s else "default"


def drafting_terms(drafter: Drafter, gamma: int, sequences: int, context_tokens: float) -> list[CostTerm]:
    """Seconds to draft `gamma` tokens, or the drafter's tree, for each of `sequences`, whose contexts sum to `context_tokens`."""
    if sequences == 0:
        return []
    if drafter.tree is not None:
        gamma = drafter.tree.steps
    terms = METHODS[drafter.method](drafter, gamma, sequences, context_tokens / sequences)
    if drafter.remote is None:
        return terms
    return [*terms, CostTerm("draft_transfer", drafter.remote.round_trip_s, "network")]


def draft_prefill_terms(drafter: Drafter, prefill: tuple[tuple[int, int], ...], load: float = 1.0) -> list[CostTerm]:
    """The draft's own pass over prompt chunks, which fills its cache; `load` as in `ForwardPass`."""
    if drafter.passes is None or not drafter.has_cache or not prefill:
        return []
    cost = drafter.passes.price(ForwardPass(0, 0, 0.0, 0.0, 0.0, prefill, 0, load))
    fusion_s = looked_up(drafter.passes.fusion_s, sum(tokens for tokens, _ in prefill))
    return [CostTerm("prefill_draft", cost.seconds + fusion_s, cost.bound)]


def idle_terms(drafter: Drafter, sequences: int, context_tokens: float) -> list[CostTerm]:
    """Residual cost of a step that drafts nothing: the draft's cache still takes in the new token of each sequence."""
    if drafter.passes is None or not drafter.has_cache or sequences == 0:
        return []
    window = drafter.passes.window
    cost = drafter.passes.price(uniform_pass(sequences, 1, context_tokens / sequences, window))
    headless = tuple(term for term in cost.terms if term.name != "lm_head")
    seconds = added([term.seconds for term in headless]) + drafter.passes.fusion_s(sequences)
    return [CostTerm(UPKEEP, seconds + drafter.step_overhead_s + drafter.broadcast_s, cost.bound)]


def _sequential(drafter: Drafter, gamma: int, sequences: int, context: float) -> list[CostTerm]:
    """γ passes one after the other. The first also takes in what the last round emitted; the rest see one row each."""
    passes = drafter.passes
    assert passes is not None
    first_rows, count = _first_pass(drafter, gamma)
    first = passes.price(_first(sequences, first_rows, context, passes.window))
    if drafter.tree is not None:
        count = drafter.tree.steps
    width = drafter.tree.width if drafter.tree is not None else 1
    later = passes.price(uniform_pass(sequences, width, context + (count + 1) / 2, passes.window))
    fusion_s = passes.fusion_s(round(sequences * first_rows))
    # EAGLE-3 fuses three states of the target once; EAGLE and MTP join embedding and state before every pass.
    again_s = 0.0 if drafter.method == "eagle3" else passes.fusion_s(sequences * width)
    if passes.captured:
        wait = []
    else:
        (first, first_wait_s), (later, later_wait_s) = _apart(first), _apart(later)
        wait = [CostTerm(LAUNCH_WAIT, first_wait_s + (count - 1) * later_wait_s, "host")]
    first_s, later_s = first.seconds + fusion_s, (count - 1) * (later.seconds + again_s)
    return _terms(drafter, first_s, first.bound, later_s, later.bound, count) + wait


def _apart(cost: PassCost) -> tuple[PassCost, float]:
    """A pass without what the device waits for launches, and that wait."""
    waits = [term.seconds for term in cost.terms if term.name == "launch_wait"]
    return PassCost(tuple(term for term in cost.terms if term.name != "launch_wait")), added(waits)


def _itself(drafter: Drafter, gamma: int, sequences: int, context: float) -> list[CostTerm]:
    """γ passes of the target's own layers over its own cache, or over `kv_tokens` of it: nothing to catch up."""
    passes = drafter.passes
    assert passes is not None
    read = smaller(context, drafter.kv_tokens) if drafter.kv_tokens else context
    each = passes.price(uniform_pass(sequences, 1, read, passes.window))
    return _terms(drafter, each.seconds, each.bound, (gamma - 1) * each.seconds, each.bound, gamma)


def _block(drafter: Drafter, gamma: int, sequences: int, context: float) -> list[CostTerm]:
    """One pass for all γ tokens; states of the verified rows are fused first."""
    passes = drafter.passes
    assert passes is not None
    only = passes.price(uniform_pass(sequences, gamma, context, passes.window))
    fusion_s = passes.fusion_s(sequences * (gamma + 1))
    return _terms(drafter, only.seconds + fusion_s, only.bound, 0.0, only.bound, 1)


def _heads(drafter: Drafter, gamma: int, sequences: int, context: float) -> list[CostTerm]:
    """Medusa and Hydra heads on the last hidden state: all of them, once, whatever γ is used."""
    passes = drafter.passes
    assert passes is not None
    heads = passes.heads_s(sequences)
    return _terms(drafter, heads.seconds, heads.bound, 0.0, heads.bound, 1)


def _terms(drafter: Drafter, first_s: float, first: Bound, later_s: float, later: Bound, count: int) -> list[CostTerm]:
    terms = [
        CostTerm("draft_launches", count * drafter.step_overhead_s, "host"),
        CostTerm("draft_broadcast", count * drafter.broadcast_s, "host"),
        CostTerm("draft_first_pass", first_s, first),
        CostTerm("draft_later_passes", later_s, later),
    ]
    return [term for term in terms if term.seconds != 0]


def _first_pass(drafter: Drafter, gamma: int) -> tuple[float, int]:
    """(rows per sequence in the first pass, number of passes) by the engine's rule for the draft's cache, where it has one."""
    if not drafter.has_cache:
        return 1, gamma
    if drafter.engine.draft_cache == "padded":
        return gamma + 1, gamma
    if drafter.engine.draft_cache == "catch_up":
        return 1 + drafter.full_acceptance_rate, gamma
    return 1, gamma + 1


def _first(sequences: int, rows_per_sequence: float, context: float, window: int | None) -> ForwardPass:
    """Only each sequence's last row needs logits."""
    asked = uniform_pass(sequences, rows_per_sequence, context, window)
    return ForwardPass(
        asked.sequences,
        max(asked.rows, sequences),
        asked.context_tokens,
        asked.windowed_tokens,
        asked.longest_tokens,
        (),
        sequences,
    )


def _search(drafter: Drafter, gamma: int, sequences: int, context: float) -> list[CostTerm]:
    """A search of the sequence's own tokens, or of a suffix tree of past answers, on the CPU; no pass."""
    return [CostTerm("draft_lookup", drafter.host_time_factor * sequences * drafter.engine.ngram_lookup_s.value, "host")]


METHODS: dict[str, Callable[[Drafter, int, int, float], list[CostTerm]]] = {
    "draft_model": _sequential,
    "eagle": _sequential,
    "eagle3": _sequential,
    "mtp": _sequential,
    "medusa": _heads,
    "hydra": _heads,
    "block": _block,
    "layer_skip": _itself,
    "sparse_kv": _itself,
    "ngram": _search,
    "suffix": _search,
}
# What devices wait for launches of draft passes, where the engine has graphs of the target alone.
LAUNCH_WAIT = "draft_launch_wait"
_CACHED_METHODS = ("draft_model", "eagle", "eagle3", "mtp", "block")
FUSING_METHODS = ("eagle3", "block")
