"""Plan: which cells a calibration visits, and how long a round takes. Runs nothing; needs no torch."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from calibration.measurement import SHORTEST_SAMPLE_S, Cell, Kind, Split, Value
from simulator.calibrate.durations import Rates, building_seconds, call_seconds, setup_seconds
from simulator.calibrate.models import Dimensions
from simulator.calibrate.planned_cells import Target, cells
from simulator.number_format import FORMATS

# Cells beyond the essential ones are taken while a round can be repeated this often.
LEAST_ROUNDS = 2
# Of the time, for the cells of rank 0, on whose times the answer turns. A single sample of theirs is off by 4 % on a busy CPU,
# and no law smooths them: they need a dozen samples each, far apart, where the others do with a few.
FIRST_RANK_SHARE = 0.6
# First looks see a quieter machine and friendlier shapes than a run does.
_CAUTION = 1.5
_GOLDEN = (math.sqrt(5) - 1) / 2
# Of a first round, what is done when its passes, and those of further models, begin: they take many times a kernel's time, and a
# model has to be built first. The passes that decide have rounds of their own.
_PASSES_AFTER, _OTHER_MODELS_AFTER = 0.25, 0.6


@dataclass(frozen=True, slots=True)
class Planned:
    """A cell, how much it matters (`planned_cells.cells`), estimated seconds per call, and once to build it."""

    cell: Cell
    rank: int
    call_s: float
    setup_s: float = 0.0


@dataclass(frozen=True)
class Plan:
    """Cells in the order of the first round. round_s: estimated wall seconds of a round, the share of the first rank included;
    setup_s: once, for building models, capturing and compiling. dropped: cells that did not fit."""

    cells: tuple[Planned, ...]
    minutes: float
    round_s: float
    setup_s: float
    dropped: int

    @property
    def rounds(self) -> float:
        """How many rounds the minutes are expected to hold."""
        return max(self.minutes * 60 - self.setup_s, 0.0) / max(self.round_s, 1e-9)

    @property
    def hash(self) -> str:
        """Of the cells, so that a resumed run is known to be the same one."""
        text = json.dumps([planned.cell.model_dump() for planned in self.cells], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def counts(self) -> list[tuple[Kind, dict[Split, int], float]]:
        """(kind, cells by split, estimated seconds of one visit to each)."""
        kinds: dict[Kind, list[Planned]] = {}
        for planned in self.cells:
            kinds.setdefault(planned.cell.kind, []).append(planned)
        rows: list[tuple[Kind, dict[Split, int], float]] = []
        for kind, group in kinds.items():
            splits: dict[Split, int] = {"fit": 0, "held_out": 0, "check": 0}
            for planned in group:
                splits[planned.cell.split] += 1
            rows.append((kind, splits, sum(visit_seconds(planned) for planned in group)))
        return rows


def visits_of(planned: Planned) -> int:
    """Visits in a round. All ratios that decide are to the pass of one row, and share its error: with eight of them it is worth
    √8 times as many visits as another (Dunnett 1955)."""
    inputs = planned.cell.inputs
    return 3 if planned.rank == 0 and planned.cell.kind == "forward" and inputs["rows"] == 1 and inputs["batch"] == 1 else 1


def samples_of(planned: Planned) -> tuple[int, float]:
    """(samples of one visit, seconds that they may take). Samples of one visit share its disturbances."""
    if planned.cell.kind == "forward":
        return (1 if planned.rank == 0 else 2), 0.6
    return 5, 0.05


def visit_seconds(planned: Planned) -> float:
    """The samples, and calls to warm up where they are short."""
    samples, longest_s = samples_of(planned)
    taken = min(max(longest_s, 2 * planned.call_s), samples * max(planned.call_s, SHORTEST_SAMPLE_S))
    return taken + (0.0 if planned.cell.kind == "forward" else 4 * planned.call_s + 1e-3)


def plan(target: Target, rates: Rates, minutes: float) -> Plan:
    """All cells that fit memory and time: the essential ones always, the others in a random order while there is time."""
    unique = {cell.key: (cell, rank) for cell, rank in reversed(list(cells(target)))}
    possible = [
        Planned(cell, rank, call_seconds(cell, target.models, rates), setup_seconds(cell, target.models, rates))
        for cell, rank in reversed(unique.values())
        if _fits(cell, target)
    ]
    possible.sort(key=lambda planned: (planned.rank, planned.cell.key if planned.rank > 1 else ""))
    models_s = rates.wall_factor * sum(building_seconds(config, rates) for config in target.models.values())
    room_s, longest_s = minutes * 60 - models_s, minutes * 60 / 15
    kept = []
    for planned in possible:
        cost_s = LEAST_ROUNDS * round_seconds([planned], rates) + planned.setup_s
        # No single cell may eat what many others could use.
        if planned.rank <= 1 or cost_s <= min(room_s, longest_s):
            kept.append(planned)
            room_s -= cost_s
    kept = _first_round(kept, next(iter(target.models)))
    setup_s = models_s + sum(planned.setup_s for planned in kept)
    return Plan(tuple(kept), minutes, round_seconds(kept, rates), setup_s, len(possible) - len(kept))


def _first_round(kept: Sequence[Planned], main: str) -> list[Planned]:
    """Kinds and splits side by side, each spread over its own cells, so that a first round cut off anywhere leaves some of
    everything to fit and to judge; the essential cells before the others."""
    alike: dict[tuple[bool, Kind, Split, Value], list[Planned]] = {}
    for planned in kept:
        cell = planned.cell
        alike.setdefault((planned.rank > 1, cell.kind, cell.split, cell.inputs.get("model", "")), []).append(planned)
    placed = []
    for (later, _, _, model), group in alike.items():
        # Multiples of the golden ratio's fraction fill an interval evenly at every length.
        spread = sorted(range(len(group)), key=lambda index: index * _GOLDEN % 1.0)
        after = _PASSES_AFTER if model == main else _OTHER_MODELS_AFTER if model else 0.0
        for place, index in enumerate(spread):
            placed.append((later, after + (1 - after) * (place + 0.5) / len(group), group[index]))
    return [planned for _, _, planned in sorted(placed, key=lambda each: each[:2])]


def round_seconds(planned: Sequence[Planned], rates: Rates) -> float:
    """Wall seconds of a round of these cells, in which the first rank takes its share however many it has."""
    others = sum(visit_seconds(each) for each in planned if each.rank > 0)
    return rates.wall_factor * _CAUTION * others / (1 - FIRST_RANK_SHARE)


def _fits(cell: Cell, target: Target) -> bool:
    if cell.kind != "forward":
        return True
    model = Dimensions.of(target.models[str(cell.inputs["model"])])
    each = FORMATS[str(cell.inputs["dtype"])].bytes
    tokens = int(cell.inputs["batch"]) * (int(cell.inputs["context"]) + int(cell.inputs["rows"]))
    # Types below 16 bit are made from 16 bit.
    return model.parameters * max(each, 2) + 3 * tokens * model.kv_elements_per_token * max(each, 2) < 0.6 * target.memory_bytes
