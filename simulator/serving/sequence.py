"""SequenceState: a request in the engine, and the path that says which of its drafts are accepted."""

from __future__ import annotations

from array import array
from typing import TYPE_CHECKING, Protocol

from simulator.serving.prefix_cache import Run
from simulator.workload import Request

if TYPE_CHECKING:
    from simulator.serving.booking import Booking


class AcceptanceByPosition(Protocol):
    """One request's fate: how many drafts are proposed and accepted from each position of its output."""

    def accepted(self, position: int, drafted: int, /) -> int: ...
    def proposed(self, position: int, num_speculative_tokens: int, /) -> int: ...


class SequenceState:
    """A request in the engine. `computed` tokens are in its KV cache; those below `prefill_tokens` are computed as a prompt.

    `swapped_blocks`: blocks that the host keeps for it. `runs`: its text by blocks, where prefixes are cached. `ended`: finished
    or given up.
    """

    __slots__ = (
        "accepted",
        "arrival_s",
        "booking",
        "cached_tokens",
        "cancelled_s",
        "computed",
        "draft_rounds",
        "drafted",
        "emission_s",
        "emission_tokens",
        "emitted",
        "ended",
        "first_scheduled_s",
        "kv_tokens",
        "longest_output",
        "output_tokens",
        "path",
        "preemptions",
        "prefill_tokens",
        "prompt_tokens",
        "request_id",
        "rounds",
        "runs",
        "swapped_blocks",
        "swaps",
    )

    def __init__(
        self, request: Request, arrival_s: float, path: AcceptanceByPosition, max_model_len: int, runs: tuple[Run, ...] = ()
    ):
        self.request_id = request.request_id
        self.prompt_tokens = self.prefill_tokens = request.prompt_tokens
        self.output_tokens = request.output_tokens
        self.longest_output = max_model_len - request.prompt_tokens
        self.arrival_s = arrival_s
        self.path = path
        self.first_scheduled_s: float | None = None
        self.computed = self.emitted = self.kv_tokens = 0
        self.rounds = self.draft_rounds = self.drafted = self.accepted = self.preemptions = 0
        self.emission_s = array("d")
        self.emission_tokens = array("i")
        self.booking: Booking | None = None  # its future, in the engine that books
        self.runs = runs
        self.cached_tokens = self.swaps = self.swapped_blocks = 0
        self.cancelled_s: float | None = None
        self.ended = False

    @property
    def decoding(self) -> bool:
        """Whether its prompt is computed."""
        return self.computed >= self.prefill_tokens > 0

    def accept(self, drafts: int, position: int) -> int:
        """Accepted drafts of a round after `position` emitted tokens. Raises ValueError for more than were drafted."""
        if not drafts:
            return 0
        accepted = self.path.accepted(position, drafts)
        if not 0 <= accepted <= drafts:
            raise ValueError(f"an acceptance path must accept 0 to {drafts} of {drafts} drafts (got {accepted})")
        return accepted

    def emit(self, tokens: int, now_s: float) -> bool:
        """Adds a burst of tokens; True if it was the last."""
        self.emitted += tokens
        self.emission_s.append(now_s)
        self.emission_tokens.append(tokens)
        return self.emitted == self.output_tokens
