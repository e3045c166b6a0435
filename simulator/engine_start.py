"""An engine as a server starts it: which of its kernels run, and what that costs (`kernel_switches`)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from simulator.architecture import RECURRENT, ModelArchitecture
from simulator.hardware import Quantity
from simulator.kernel_switches import KernelSwitches
from simulator.serving_engine import ServingEngine

# By what the host then takes in the open: the constant that pays for it.
_UNOVERLAPPED: dict[Literal["step", "round", "request"], str] = {
    "step": "step_overhead_s", "round": "round_overhead_s", "request": "request_overhead_s",
}  # fmt: skip


def start_faults(engine: ServingEngine, switches: KernelSwitches) -> Iterator[tuple[str, str, object, tuple[str, ...]]]:
    """(key, what it must be, what it is, names near it) of every switch that this engine does not have."""
    choices, name = engine.choices, switches.attention_backend
    known = tuple(choices.attention_backends)
    backend = choices.attention_backends.get(name) if name is not None else None
    if name is not None and backend is None:
        which = f"one of {', '.join(known)}" if known else "left out: only one is known"
        yield "attention_backend", f"must be {which} of {engine.name}", name, known
    if switches.deterministic and choices.deterministic is None:
        yield "deterministic", f"must be left out: nothing is known of such kernels in {engine.name}", True, ()
    elif switches.deterministic and backend is not None and backend.deterministic is None:
        able = tuple(key for key, each in choices.attention_backends.items() if each.deterministic is not None)
        yield "attention_backend", f"must be one of {', '.join(able)} beside deterministic", name, able
    if switches.graphs is not None and engine.graphs is None:
        yield "graphs", f"must be left out: {engine.name} captures none", switches.graphs, ()
    elif switches.graphs == "piecewise" and choices.pieces is None:
        yield "graphs", f"must be none or left out: {engine.name} captures whole steps", switches.graphs, ("none",)
    if switches.overlap is False and not engine.unoverlapped_s:
        yield "overlap", f"must be left out: what {engine.name} takes without is not known", False, ()


def as_it_starts(engine: ServingEngine, switches: KernelSwitches, target: ModelArchitecture | None) -> KernelSwitches:
    """The switches with the attention kernels that the engine takes for this target unless it is told which."""
    mixed, width = engine.choices.mixed_heads, None if target is None else target.mixed_head_width
    if switches.attention_backend is not None or mixed is None or width is None or width <= mixed.wider_than:
        return switches
    return switches.model_copy(update={"attention_backend": mixed.backend})


def mixed_heads_note(engine: ServingEngine, switches: KernelSwitches, target: ModelArchitecture) -> list[str]:
    """That attention kernels were chosen which nobody asked for."""
    chosen = as_it_starts(engine, switches, target).attention_backend
    if chosen == switches.attention_backend:
        return []
    return [f"attention_backend {chosen}: what {engine.name} takes for heads of {target.head_dim} and {target.global_head_dim}"]


def overlap_note(engine: ServingEngine, switches: KernelSwitches, method: str) -> list[str]:
    """That rounds are not prepared ahead though overlap is asked for: the switch is about plain steps of recurrent targets."""
    if not switches.overlap or method not in engine.unoverlapped_methods:
        return []
    return [f"overlap: true changes no round of {method}, which {engine.name} does not prepare ahead; other releases may"]


def started(engine: ServingEngine, switches: KernelSwitches, longest_context: int | None = None) -> ServingEngine:
    """The engine with these switches, which it must have (`start_faults`).

    longest_context: tokens of the longest sequence that it admits. What its constants were measured with is no longer what runs
    once other kernels do.
    """
    changes: dict[str, object] = {"started_with": switches, "longest_context": longest_context}
    choices = engine.choices
    if switches.attention_backend is not None:
        backend = choices.attention_backends[switches.attention_backend]
        changes["walk_factor"] = backend.walk_factor
        changes["latent_attention"] = backend.latent or engine.latent_attention
        if engine.round_graphs.get(switches.attention_backend) and choices.pieces is not None:
            changes |= {"round_piece_launch_s": choices.pieces.launch_s, "round_piece_gap_s": choices.pieces.gap_s}
        if switches.deterministic and backend.deterministic == "fixed_split":
            changes["idle_block_s"] = backend.idle_block_s
        if switches.deterministic and backend.one_stage is not None:
            changes["walk_factor"] = backend.one_stage.walk_factor
        if switches.deterministic or backend.rules != engine.attention:
            changes["measured"] = engine.measured.without_kernels()
    if switches.deterministic and choices.deterministic is not None:
        changes["tile_arithmetic_fraction"] = choices.deterministic.tile_arithmetic_fraction
    if switches.graphs == "none":
        changes |= {"graphs": None, "verification_graphs": None}
    if switches.graphs is not None and choices.pieces is not None:
        changes |= {"piece_launch_s": choices.pieces.launch_s, "piece_gap_s": choices.pieces.gap_s}
    if switches.overlap:
        changes["unoverlapped_layers"] = ()
    elif switches.overlap is False:
        # What all targets pay is a constant of every step; only recurrent ones pay the rest.
        rest = {part: each for part, each in engine.unoverlapped_s.items() if part not in _UNOVERLAPPED}
        changes |= {"unoverlapped_methods": (), "unoverlapped_s": rest, "unoverlapped_layers": RECURRENT if rest else ()}
        for part, paying in _UNOVERLAPPED.items():
            changes[paying] = _added(getattr(engine, paying), engine.unoverlapped_s.get(part))
    return engine.model_copy(update=changes)


def _added(first: Quantity, second: Quantity | None) -> Quantity:
    """Two times one after the other, doubted as far as either is."""
    if second is None:
        return first
    value = first.value + second.value
    doubt = ((first.value * first.doubt) ** 2 + (second.value * second.doubt) ** 2) ** 0.5 / value
    return second.model_copy(update={"value": value, "relative_std": doubt})
