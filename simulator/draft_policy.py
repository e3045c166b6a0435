"""Policies that choose γ while a server runs, as a scenario states them. What they do is in `serving.policies`.

Engines verify one γ for the whole batch, so a policy answers with one number a step. A policy that looks at what happened
(acceptance, contexts) looks every `look_every` rounds, as engines do, and holds its opinion in between.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag, model_validator

from simulator.spec import Spec

BatchRange = Annotated[tuple[int, int, int], Field(description="first batch, last batch, tokens drafted (0 = off)")]
BatchTable = Annotated[tuple[BatchRange, ...], Field(min_length=1)]
ContextRange = Annotated[tuple[int, int, int], Field(description="first context, last context, tokens drafted (0 = off)")]
Rounds = Annotated[int, Field(ge=1, le=1_000_000)]


class PolicySpec(Spec):
    """What every policy has. switch_s: seconds that the engine stands still whenever γ changes.

    It is 0 unless stated, because nothing is left to do then: while it is off the drafter still takes in every new token, which
    steps without drafts pay for (vLLM runs the drafter's first pass at γ = 0 to keep its cache in step, vllm#49548), and graphs
    of every γ of a table are captured at the start (vllm#45953, sglang#24055, TensorRT-LLM#10860), up to the engine's largest.
    """

    kind: str
    switch_s: Annotated[float, Field(ge=0, le=1)] = 0.0

    @property
    def looks(self) -> bool:
        """Whether it looks at what happens, rather than at the running batch alone."""
        return "look_every" in type(self).model_fields

    @property
    def largest(self) -> int | None:
        """The largest γ that the policy itself states, None where it takes the scenario's."""
        return None

    def pauses(self, largest_batch: int) -> bool:  # noqa: ARG002
        """Whether it may draft nothing for a while, at batches up to the largest."""
        return self.kind != "fixed"

    def engine_table(self, gamma: int) -> tuple[tuple[int, int, int], ...] | None:  # noqa: ARG002
        """γ by batch as engines take it, of a policy in `SETTABLE`; None where γ is fixed."""
        return None

    def label(self, gamma: int) -> str:
        """Its name in a sentence, with at most γ drafts."""
        return f"γ = {gamma}"

    def short(self, gamma: int) -> str:
        """Its name at the head of a column."""
        return f"γ = {gamma}"


class Fixed(PolicySpec):
    """Always the same γ, or the same tree."""

    kind: Literal["fixed"] = "fixed"


FIXED = Fixed()


class ByBatch(PolicySpec):
    """γ by running batch, as ``[[first, last, γ], …]``; batches not covered run without drafts."""

    kind: Literal["by_batch"] = "by_batch"
    table: BatchTable

    @model_validator(mode="after")
    def _possible(self) -> ByBatch:
        for problem in table_problems(self.table, "table", 1):
            raise ValueError(problem)
        return self

    @property
    def largest(self) -> int:
        return max(gamma for _, _, gamma in self.table)

    def pauses(self, largest_batch: int) -> bool:
        return any(gamma == 0 for _, _, gamma in whole_table(self.table, largest_batch))

    def engine_table(self, gamma: int) -> tuple[tuple[int, int, int], ...]:  # noqa: ARG002
        return self.table

    def label(self, gamma: int) -> str:
        return f"γ by batch, up to {gamma}"

    def short(self, gamma: int) -> str:
        return f"γ ≤ {gamma}"

    def tokens_at(self, running: int) -> int:
        """γ while so many sequences run."""
        return tokens_in(self.table, running)


class OffAbove(PolicySpec):
    """The scenario's γ up to a running batch, nothing above (TensorRT-LLM's `max_concurrency`)."""

    kind: Literal["off_above"] = "off_above"
    batch: Annotated[int, Field(ge=1, le=65536)]

    def pauses(self, largest_batch: int) -> bool:
        return self.batch < largest_batch

    def engine_table(self, gamma: int) -> tuple[tuple[int, int, int], ...]:
        return ((1, self.batch, gamma),)

    def label(self, gamma: int) -> str:
        return f"γ = {gamma}, off above batch {self.batch}"

    def short(self, gamma: int) -> str:
        return f"γ = {gamma} to {self.batch}"


class ByContext(PolicySpec):
    """γ by the mean context of the running sequences, as ``[[first, last, γ], …]`` in tokens; contexts not covered: none."""

    kind: Literal["by_context"] = "by_context"
    table: Annotated[tuple[ContextRange, ...], Field(min_length=1)]
    look_every: Rounds = 16

    @model_validator(mode="after")
    def _possible(self) -> ByContext:
        for problem in table_problems(self.table, "table", 0):
            raise ValueError(problem)
        return self

    @property
    def largest(self) -> int:
        return max(gamma for _, _, gamma in self.table)

    def label(self, gamma: int) -> str:
        return f"γ by context, up to {gamma}"

    def short(self, gamma: int) -> str:
        return f"context ≤ {gamma}"


class AcceptanceWindow(PolicySpec):
    """Off once the mean acceptance length of a window of sequence-rounds falls below `least`; on again after `retry_rounds`
    rounds of the engine (left out: never, as TensorRT-LLM's `acceptance_window`)."""

    kind: Literal["acceptance_window"] = "acceptance_window"
    window: Rounds = 500
    least: Annotated[float, Field(ge=1, le=65)]
    retry_rounds: Rounds | None = None
    look_every: Rounds = 16

    def label(self, gamma: int) -> str:
        return f"γ = {gamma}, off below τ = {self.least:g}"

    def short(self, gamma: int) -> str:
        return f"γ = {gamma}, τ ≥ {self.least:g}"


class GoodputOptimal(PolicySpec):
    """The γ, from 0 to the scenario's, that yields most tokens a second by predicted cost at the running batch and context and
    by running acceptance (Liu et al. 2024, SmartSpec; TurboSpec). half_life: sequence-rounds after which an observation counts
    half. retry_rounds: rounds without drafts after which one is drafted again, to see whether acceptance has changed."""

    kind: Literal["goodput_optimal"] = "goodput_optimal"
    look_every: Rounds = 16
    half_life: Rounds = 500
    retry_rounds: Rounds = 1000

    def label(self, gamma: int) -> str:
        return f"goodput-optimal, γ ≤ {gamma}"

    def short(self, gamma: int) -> str:
        return f"goodput ≤ {gamma}"


# Policies that engines take as a setting.
SETTABLE = ("fixed", "by_batch", "off_above")


def _kind(value: object) -> object:
    found = value.get("kind", "") if isinstance(value, dict) else getattr(value, "kind", "")
    return found if isinstance(found, str) else ""


Policy = Annotated[
    Annotated[Fixed, Tag("fixed")]
    | Annotated[ByBatch, Tag("by_batch")]
    | Annotated[OffAbove, Tag("off_above")]
    | Annotated[ByContext, Tag("by_context")]
    | Annotated[AcceptanceWindow, Tag("acceptance_window")]
    | Annotated[GoodputOptimal, Tag("goodput_optimal")],
    Discriminator(_kind),
]


def tokens_in(table: tuple[tuple[int, int, int], ...], value: float) -> int:
    """γ of the range that holds a batch or context; 0 outside all.

    >>> tokens_in(((1, 8, 5), (9, 64, 2)), 9), tokens_in(((1, 8, 5),), 9)
    (2, 0)
    """
    return next((gamma for first, last, gamma in table if first <= value <= last), 0)


def whole_table(table: tuple[tuple[int, int, int], ...], largest: int) -> tuple[tuple[int, int, int], ...]:
    """The same ranges with every batch from 1 to the largest in one of them: engines carry γ over what a table leaves out.

    >>> whole_table(((3, 8, 5), (16, 32, 2)), 64)
    ((1, 2, 0), (3, 8, 5), (9, 15, 0), (16, 32, 2), (33, 64, 0))
    """
    found: list[tuple[int, int, int]] = []
    after = 0
    for first, last, gamma in (*sorted(table), (largest + 1, largest + 1, 0)):
        if first > after + 1:
            found.append((after + 1, first - 1, 0))
        if first <= largest:
            found.append((first, last, gamma))
        after = max(last, after)
    return tuple(found)


def table_problems(table: tuple[tuple[int, int, int], ...], name: str, least: int) -> Iterator[str]:
    """What is wrong with a table of ranges that begin at `least` or later."""
    for first, last, gamma in table:
        if not (least <= first <= last and 0 <= gamma <= 64):
            yield (
                f"{name} entries must be [first, last, tokens] with {least} <= first <= last and 0 <= tokens <= 64 "
                f"(got {[first, last, gamma]})"
            )
    if table and not any(gamma for _, _, gamma in table):
        yield f"{name} must draft somewhere: every entry has 0 tokens (method none is no speculation)"
    unit = "batch" if least else "context"
    for (_, before, _), (first, last, gamma) in pairwise(sorted(table)):
        if first <= before:
            yield f"{name} entries must not overlap: {[first, last, gamma]} begins before {unit} {before} ends"
