"""KernelSwitches: what a server is started with that decides which kernels run, and what each choice costs an engine.

A server's flags choose its attention kernels, whether results may depend on the batch, whether steps are replayed as captured
graphs, and whether the host prepares a step while the device runs the last. An engine's profile says which choices it has
(`Choices`); a scenario or an operating point makes them (`KernelSwitches`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Literal

from pydantic import Field, model_validator

from simulator.hardware import Hardware, Quantity
from simulator.spec import Spec

AttentionRegime = Literal["split_kv", "serial_walk", "kv_reread"]
Graphs = Literal["piecewise", "none"]
Capability = Annotated[str, Field(pattern=r"^[0-9]+(\.[0-9]+)*$")]


class KernelSwitches(Spec):
    """attention_backend: the kernels that serve passes of several rows a sequence, by the name that the engine gives them.
    deterministic: kernels whose results do not depend on the batch (SGLang's deterministic inference, vLLM's batch invariance).
    graphs: only pieces between attention layers are captured, or nothing is; left out: whole steps, as the engine does.
    overlap: false where no step is prepared ahead; true where a server was told to do so under targets for which the engine does
    not by itself (`ServingEngine.unoverlapped_layers`)."""

    attention_backend: str | None = None
    deterministic: bool = False
    graphs: Graphs | None = None
    overlap: bool | None = None

    @model_validator(mode="after")
    def _says_which_attention(self) -> KernelSwitches:
        if self.deterministic and self.attention_backend is None:
            raise ValueError("deterministic needs attention_backend beside it: kernels differ in what they give up for it")
        return self


class AttentionRule(Spec):
    """The regime on devices of at least this compute capability ("0" = any, also devices without one), of these vendors (any
    where empty). A rule that names a device's vendor goes before those that name none."""

    from_compute_capability: Capability
    regime: AttentionRegime
    vendors: tuple[str, ...] = ()


class OneStageKernel(Spec):
    """What serves several rows a sequence where results do not depend on the batch, if not the kernel that usually does: one walk
    over cached and new tokens alike, over a list of their places that every layer writes anew.

    walk_factor: as `AttentionBackend.walk_factor`, of one block of `tile_rows` rows, which it computes whole. list_kernels: small
    kernels that write the list, in each layer.
    """

    walk_factor: Quantity
    tile_rows: Annotated[int, Field(ge=1)]
    list_kernels: Annotated[int, Field(ge=0)]


class RoundGraphs(Spec):
    """Whether whole graphs hold passes of several rows a sequence, on devices of at least this compute capability."""

    from_compute_capability: Capability
    whole: bool


class AttentionBackend(Spec):
    """Attention kernels that an engine can be started with.

    rules: what they do where a sequence brings several query rows. walk_factor: how long one block's walk over a cache takes,
    over that of FlashAttention-2 on the same device. packs_heads: query heads that share keys and values share a block. latent:
    what they do with latent attention, where that is not what the engine does without being told.
    deterministic: what they give up for results that do not depend on the batch: `unsplit` caches, of plain steps too, or splits
    of `split_tokens` tokens each. The latter's grid is as wide as the longest context allowed, and every block that finds nothing
    to do takes `idle_block_s`. Absent: they cannot be deterministic. one_stage: their kernel for several rows a sequence then.
    """

    rules: tuple[AttentionRule, ...]
    walk_factor: Quantity | None = None
    packs_heads: bool = False
    latent: AttentionRegime | None = None
    deterministic: Literal["unsplit", "fixed_split"] | None = None
    split_tokens: Annotated[int, Field(ge=1)] | None = None
    idle_block_s: Quantity | None = None
    one_stage: OneStageKernel | None = None


class InvariantMatrices(Spec):
    """Matrix kernels whose results do not depend on the batch: none splits the inner dimension over blocks.

    Below a compute capability they have tiles of `tile_rows` rows whatever the batch, which each block computes alone at
    `tile_arithmetic_fraction` of a unit's peak.
    """

    tiles_below_compute_capability: Capability
    tile_rows: Annotated[int, Field(ge=1)]
    tile_arithmetic_fraction: Quantity

    def tiled(self, hardware: Hardware) -> bool:
        """Whether the kernels of this device have fixed tiles."""
        capability = version(hardware.profile.compute_capability or "0")
        return capability < version(self.tiles_below_compute_capability)


class GraphPieces(Spec):
    """A step replayed in pieces, attention launched between them: the host's time by attention layer, and the device's pause
    where a piece begins."""

    launch_s: Quantity
    gap_s: Quantity


class MixedHeads(Spec):
    """The attention kernels that an engine takes by itself for models whose layers have heads of several widths, one of them
    wider than `wider_than`."""

    wider_than: Annotated[int, Field(ge=1)]
    backend: str


class Choices(Spec):
    """What an engine can be started with, and what it costs; empty where nothing is known of it."""

    mixed_heads: MixedHeads | None = None
    attention_backends: dict[str, AttentionBackend] = Field(default_factory=dict)
    deterministic: InvariantMatrices | None = None
    pieces: GraphPieces | None = None


def regime_on(rules: Sequence[AttentionRule], hardware: Hardware) -> AttentionRegime:
    """The kernel that serves several query rows a sequence on this device."""
    capability, vendor = version(hardware.profile.compute_capability or "0"), hardware.profile.vendor
    here = [rule for rule in rules if not rule.vendors or vendor in rule.vendors]
    nearest_first = sorted(here, key=lambda rule: (bool(rule.vendors), version(rule.from_compute_capability)), reverse=True)
    return next(rule.regime for rule in nearest_first if version(rule.from_compute_capability) <= capability)


def whole_rounds(rules: Sequence[RoundGraphs], hardware: Hardware) -> bool:
    """Whether whole graphs hold verification on this device."""
    capability = version(hardware.profile.compute_capability or "0")
    newest_first = sorted(rules, key=lambda rule: version(rule.from_compute_capability), reverse=True)
    return next((rule.whole for rule in newest_first if version(rule.from_compute_capability) <= capability), True)


def version(text: str) -> tuple[int, ...]:
    """Numbers of a version, for comparing.

    >>> version("8.9") < version("12.0")
    True
    """
    return tuple(int(part) for part in re.findall(r"\d+", text))
