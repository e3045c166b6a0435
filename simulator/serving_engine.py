"""ServingEngine: what the serving software adds to the arithmetic, one profile per engine *version*.

Host time per step and per round, per-draft-step launch cost, CUDA-graph ladder, attention kernel for several query rows
per sequence, all-reduce kind, batching rules and memory it keeps for itself.
"""

from __future__ import annotations

import bisect
import math
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator import resources
from simulator.hardware import AllReduceKind, Hardware, Kind, Quantity
from simulator.kernel_switches import (
    AttentionBackend,
    AttentionRegime,
    AttentionRule,
    Choices,
    KernelSwitches,
    RoundGraphs,
    regime_on,
    whole_rounds,
)
from simulator.number_format import WeightFormat
from simulator.row_law import Count, RowLaw
from simulator.spec import Document, Spec, SpecError, check, load_yaml

_BASE = "based_on"
# What a profile says of itself, which those that are based on it do not take over.
_OWN = (_BASE, "until")
KVTransferKind = Literal["after_prompt", "by_chunk", "by_layer"]


class GraphLadder(Spec):
    """Captured sizes: the listed ones, then every `step` (0: no more) up to `largest`. They count rows, or decoding sequences of
    any number of rows each; in the latter case prompts have no graph. padded: what lies between two sizes runs as the larger one;
    else it runs without a graph."""

    counts: Literal["rows", "sequences"] = "rows"
    listed: tuple[Count, ...]
    step: Annotated[int, Field(ge=0)]
    largest: Annotated[int, Field(ge=1, le=65536)]
    padded: bool = True

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        every = range(self.step, self.largest + 1, self.step) if self.step else ()
        return tuple(sorted({*self.listed, *every}))


class ExpertTiles(Spec):
    """To how many rows the kernel for routed experts rounds those of each expert: a tile of its tensor instructions, or more
    where its configuration was not tuned to few rows. For these `formats`, on devices of these `kinds` (all where empty)."""

    formats: tuple[str, ...] = ()
    kinds: tuple[Kind, ...] = ()
    rows: Count


class Measured(Spec):
    """What the runs had that an engine's constants were fitted or set on. setups: by method (those with trees apart, "eagle3
    tree") and architecture (`HardwareProfile.architecture`), the formats of weights that ran together; layers: kinds of
    attention, and `experts`. Anything else was never compared with the model, and is less sure."""

    setups: dict[str, dict[str, tuple[str, ...]]] = Field(default_factory=dict)
    layers: tuple[str, ...] = ()

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(self.setups)

    def kernels(self, architecture: str) -> frozenset[str]:
        """Formats of weights that ran on an architecture, under any method."""
        return frozenset(weights for setups in self.setups.values() for weights in setups.get(architecture, ()))

    def together(self, method: str, architecture: str, weights: str) -> bool:
        """Whether a run had all three at once."""
        return weights in self.setups.get(method, {}).get(architecture, ())

    def without_kernels(self) -> Measured:
        """The same methods and layers, on kernels that no run had."""
        return Measured(setups={method: {} for method in self.setups}, layers=self.layers)


class ServingEngine(Spec):
    """One engine version. Seconds, bytes, rows. A file that names another profile as `based_on` states only what differs from it.

    step_overhead_s: host time per step that the device waits for. round_overhead_s: what a speculative round adds to it, and
    feature_overhead_s what it adds where the drafter fuses several states of the target (EAGLE-3, block). state_rollback_s: per
    round and recurrent layer, bringing states back to the last accepted position.
    draft_step_overhead_s: per draft pass, by method. tree_*: what a draft tree adds to a round and to each draft pass.
    request_overhead_s: per running request and step. broadcast_s: per pass over several devices, what the driver takes to tell
    its workers of the step, as far as devices wait for it, and broadcast_request_s for each request in it; draft_broadcast_s: the
    same for each draft pass over several devices, where workers do not run them on their own.
    prompt_overhead_s: once per request, between its arrival and its first pass and again at its end (HTTP, tokenizer,
    scheduling), in which its place in the batch makes no token.
    launch_per_layer_s: host time to launch one layer without a captured graph; a pass then takes at least
    layers × this. sampler_passes / rejection_passes: passes over rows × vocabulary in 32 bit. ngram_lookup_s: CPU time
    per request and round. draft_cache: how the draft's cache follows the accepted tokens: `padded` first pass over
    γ+1 rows, `catch_up` one more row after full acceptance, `extra_pass` γ+1 passes a round. draft_cache_when_off: whether the
    drafter takes in the tokens of steps that draft nothing; where it does not, requests that live through them are accepted less
    ever after, which is warned of and not priced. uncaptured_draft_methods: those whose draft passes run kernel by kernel though
    the engine captures graphs; they are launched while verification runs. unoverlapped_methods: those under which the engine
    prepares a step only once it knows the tokens of the last, and `unoverlapped_s` what the host then takes in the open beside
    the constants above: in every step, in every round, for each request of a step, and in every step of a target with recurrent
    layers (`recurrent`). unoverlapped_layers: kinds of recurrent layers under which no step is prepared ahead, plain ones among
    them, unless the server is told to. until: by year, the profile of what an engine named without a version was then.
    admission: what of a request must find room in the KV cache before it starts, as in `serving.scheduler.BatchingRules`.
    measured: what the runs had that its constants rest on.
    verification_graphs: those of passes with several rows a sequence, where they are not `graphs`.
    correlations: of the logarithms of constants that were fitted together, coefficients of layer kinds among them; pairs left out
    are independent.
    latent_attention: regime of latent attention (MLA); absent: as the others, with split-KV kernels for serial walks.
    latent_layer_overhead_s: device time that its unfused kernels add a layer. layer_overhead_s: the same for every layer, by
    vendor of the device; expert_layer_overhead_s: for every layer with experts.
    cache_group_overhead_s: host time to prepare one group of layers with a block table of its own (`cost.cache_groups`) for a
    step under speculation; the device waits for what its own work does not cover.
    mixed_recurrent_launches: how often recurrent layers are launched kernel by kernel in a step that holds prompts and rounds at
    once; absent: they cost no more than apart.
    drafting_prompts_alone: with a drafter each prompt is a pass of its own, without one they share passes.
    prefix_caching: finds the blocks of prompts again that begin alike, unless a scenario says otherwise. Of what is found,
    `prefix_recomputed_blocks` are computed again under drafters that read the target's states (EAGLE, MTP, block): those are not
    kept. prefix_cache_covers_draft: the draft's KV lies in the same blocks; else it takes in every prompt from its beginning.
    kv_transfer: where prompts are computed on instances of their own, how their caches move (`serving.kv_transfer`); None: it
    does not serve so. prefill_makes_first_token: those instances do, and it moves with the cache; else the last token of the
    prompt is computed again where the answer is.
    file_formats: types of checkpoints that its own files keep in another.
    round_graphs: by attention backend, whether whole graphs hold verification; where not, it is replayed in pieces, and draft
    passes run kernel by kernel. Backends left out: they do.
    choices: which kernels a server can be started with; `engine_start.started` makes them, and fills in `started_with`,
    `longest_context`, and the costs of what was chosen under names of their own, from `walk_factor` to `piece_gap_s`.
    pipeline_in_flight: keeps a batch in every pipeline stage; without, one batch passes them all. pipeline_methods: ways of
    speculation that it runs over pipeline stages, all where absent.
    """

    schema_version: Literal[1]
    name: str
    versions: str
    step_overhead_s: Quantity
    round_overhead_s: Quantity
    feature_overhead_s: Quantity
    state_rollback_s: Quantity
    draft_step_overhead_s: dict[str, Quantity]
    tree_round_overhead_s: Quantity
    tree_draft_step_overhead_s: Quantity
    request_overhead_s: Quantity
    broadcast_s: Quantity | None = None
    broadcast_request_s: Quantity | None = None
    draft_broadcast_s: Quantity | None = None
    prompt_overhead_s: Quantity
    launch_per_layer_s: Quantity
    sampler_passes: Quantity
    rejection_passes: Quantity
    ngram_lookup_s: Quantity
    draft_cache: Literal["padded", "catch_up", "extra_pass"]
    draft_cache_when_off: Literal["kept", "skipped"] = "kept"
    uncaptured_draft_methods: tuple[str, ...] = ()
    unoverlapped_methods: tuple[str, ...] = ()
    unoverlapped_layers: tuple[Literal["linear", "mamba"], ...] = ()
    unoverlapped_s: dict[Literal["step", "round", "request", "recurrent"], Quantity] = Field(default_factory=dict)
    until: dict[Annotated[int, Field(ge=2000, le=2100)], str] = Field(default_factory=dict)
    graphs: GraphLadder | None = None
    verification_graphs: GraphLadder | None = None
    attention: tuple[AttentionRule, ...]
    file_formats: dict[WeightFormat, WeightFormat] = Field(default_factory=dict)
    small_rows: tuple[RowLaw, ...] = ()
    expert_tiles: tuple[ExpertTiles, ...] = ()
    all_reduce: AllReduceKind
    block_tokens: Count
    admission: Literal["first_chunk", "whole_prompt", "whole_request"]
    lookahead_extra_slots: Annotated[int, Field(ge=0)]
    latent_attention: AttentionRegime | None = None
    latent_layer_overhead_s: Quantity | None = None
    layer_overhead_s: dict[str, Quantity] = Field(default_factory=dict)
    expert_layer_overhead_s: dict[str, Quantity] = Field(default_factory=dict)
    cache_group_overhead_s: Quantity | None = None
    mixed_recurrent_launches: Quantity | None = None
    drafting_prompts_alone: bool = False
    prefix_caching: bool = False
    prefix_recomputed_blocks: Annotated[int, Field(ge=0)] = 0
    prefix_cache_covers_draft: bool = True
    kv_transfer: KVTransferKind | None = None
    prefill_makes_first_token: bool = False
    pipeline_in_flight: bool = True
    pipeline_methods: tuple[str, ...] | None = None
    prefill_first: bool
    chunked_prefill: bool
    max_num_seqs: Count
    max_num_batched_tokens: Count
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)]
    reserved_bytes: Quantity
    choices: Choices = Field(default_factory=Choices)
    round_graphs: dict[str, tuple[RoundGraphs, ...]] = Field(default_factory=dict)
    started_with: KernelSwitches = Field(default_factory=KernelSwitches)
    longest_context: Count | None = None
    walk_factor: Quantity | None = None
    idle_block_s: Quantity | None = None
    tile_arithmetic_fraction: Quantity | None = None
    piece_launch_s: Quantity | None = None
    piece_gap_s: Quantity | None = None
    round_piece_launch_s: Quantity | None = None
    round_piece_gap_s: Quantity | None = None
    measured: Measured = Field(default_factory=Measured)
    correlations: dict[str, dict[str, Annotated[float, Field(gt=-1, lt=1)]]] = Field(default_factory=dict)
    sources: tuple[str, ...] = ()

    @model_validator(mode="after")
    def _complete(self) -> ServingEngine:
        wrong = []
        if "default" not in self.draft_step_overhead_s:
            wrong.append("draft_step_overhead_s must hold default, for methods that it does not name")
        for name in ("unoverlapped_methods", "unoverlapped_layers"):
            if getattr(self, name) and not self.unoverlapped_s:
                wrong.append(f"{name} needs unoverlapped_s: what the host then takes")
        chosen = self.started_with.attention_backend
        if chosen is not None and chosen not in self.choices.attention_backends:
            wrong.append(f"started_with.attention_backend must be one of choices.attention_backends, not {chosen}")
        strangers = [name for name in self.round_graphs if name not in self.choices.attention_backends]
        if strangers or (self.round_graphs and self.choices.pieces is None):
            wrong.append("round_graphs names backends of choices.attention_backends, and needs choices.pieces: what pieces take")
        forced = self.choices.mixed_heads
        if forced is not None and forced.backend not in self.choices.attention_backends:
            wrong.append(f"choices.mixed_heads.backend must be one of choices.attention_backends, not {forced.backend}")
        for rules in (self.attention, *(backend.rules for backend in self.choices.attention_backends.values())):
            if "0" not in [rule.from_compute_capability for rule in rules if not rule.vendors]:
                wrong.append('attention must hold a rule from_compute_capability "0", and others from versions such as "9.0"')
        if wrong:
            raise ValueError("; ".join(wrong))
        return self

    def attention_regime(self, hardware: Hardware) -> AttentionRegime:
        """The kernel that serves several query rows per sequence on this device."""
        return regime_on(self.backend.rules if self.backend is not None else self.attention, hardware)

    def rounds_in_pieces(self, hardware: Hardware) -> bool:
        """Whether whole graphs hold single rows alone, as the server was started, so that verification is replayed in pieces."""
        rules = self.round_graphs.get(self.started_with.attention_backend or "", ())
        return self.graphs is not None and not whole_rounds(rules, hardware)

    @property
    def backend(self) -> AttentionBackend | None:
        """The attention kernels that a server was started with, where it says."""
        chosen = self.started_with.attention_backend
        return None if chosen is None else self.choices.attention_backends[chosen]

    def stored(self, weights: str) -> str:
        """How its files hold a checkpoint whose weights are of this type."""
        return next((own for kept, own in self.file_formats.items() if kept == weights), weights)

    def row_law(self, weights: str, hardware: Hardware) -> RowLaw | None:
        """The first small-row law that names this format and device, None where rows ride along with the weights."""
        for law in self.small_rows:
            profile = hardware.profile
            here = (not law.vendors or profile.vendor in law.vendors) and (not law.kinds or profile.kind in law.kinds)
            here = here and (not law.architectures or profile.architecture in law.architectures)
            if weights in law.formats and here:
                return law
        return None

    def expert_tile_rows(self, weights: str, hardware: Hardware) -> int:
        """By the first rule that names this format and kind of device; 1, which pads nothing, without one."""
        for rule in self.expert_tiles:
            if (not rule.formats or weights in rule.formats) and (not rule.kinds or hardware.profile.kind in rule.kinds):
                return rule.rows
        return 1

    def all_reduce_kind(self, hardware: Hardware) -> AllReduceKind:
        """PCIe where the device has no faster link, else the engine's kind."""
        return "pcie" if "pcie" in hardware.profile.all_reduce else self.all_reduce


def captured_rows(engine: ServingEngine, rows: int, sequences: int, prompts: bool = False) -> int | None:
    """Rows of the captured graph that serves `rows` of `sequences`, or None where the pass runs eagerly.

    With prompts `rows` are more than one a sequence, and how many sequences there are does not matter.
    """
    ladder = engine.graphs
    if ladder is not None and (prompts or rows > sequences) and engine.verification_graphs is not None:
        ladder = engine.verification_graphs
    if ladder is None:
        return None
    by_sequence = ladder.counts == "sequences"
    if by_sequence and (prompts or not sequences):
        return None
    asked = sequences if by_sequence else rows
    sizes = ladder.sizes
    index = bisect.bisect_left(sizes, asked)
    if index == len(sizes) or not (ladder.padded or sizes[index] == asked):
        return None
    return math.ceil(rows * sizes[index] / sequences) if by_sequence else sizes[index]


def find_engine(name: str, where: str = "", key: str = "engine", year: int | None = None) -> ServingEngine:
    """An engine by id or path; year: as it was then, where its profile says that it was another. Raises `SpecError` naming the
    nearest known one."""
    path = resources.file_of("engine", name)
    if path is None:
        raise resources.unknown(where, key, "engine profile", name, resources.ids("engine"))
    found = _load(path)
    last = min((until for until in found.until if year is not None and year <= until), default=None)
    return found if last is None else find_engine(found.until[last], str(path), f"until.{last}")


@resources.once_per_file
def _load(path: str | Path) -> ServingEngine:
    return check(ServingEngine, _whole(load_yaml(path)))


def _whole(document: Document) -> Document:
    """A profile that names another as `based_on`, with what it leaves out taken from there."""
    data = document.data
    base = data.get(_BASE) if isinstance(data, dict) else None
    if base is None:
        return document
    path = resources.file_of("engine", base) if isinstance(base, str) else None
    shipped = resources.ids("engine")
    if path is None:
        raise resources.unknown(document.where((_BASE,)), _BASE, "engine profile", str(base), shipped)
    under = load_yaml(path)
    if isinstance(under.data, dict) and _BASE in under.data:
        must = f"must be a whole profile, not one that is itself based on {under.data[_BASE]}"
        raise SpecError([document.problem((_BASE,), must, base)])
    check(ServingEngine, under)
    kept = {key: value for key, value in under.data.items() if key not in _OWN}
    return Document(document.source, kept | {key: value for key, value in data.items() if key != _BASE}, document.lines)
