"""What every drafter offers. Those that exist: `model_drafter`, `layer_skip`, `prompt_lookup`, `head_drafter`.

A `Drafter` is a choice that serves many generations; `session` begins one of them and holds its cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import torch

from calibration.decoding.models import CausalModel, KeyValueCache
from calibration.decoding.phases import Phases, no_phases
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling, Watch

Proposal = tuple[list[int], torch.Tensor | None]


class DraftSession(ABC):
    """One generation's drafting. `watch` sees the logits of every draft, where they come from a model."""

    watch: Watch | None = None

    @abstractmethod
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        """At most `k` draft tokens after the context and their distributions (None: each was certain)."""

    def keep(self, length: int) -> None:  # noqa: B027  a drafter without memory has nothing to forget
        """Forgets what was drafted beyond the first `length` tokens of the context, which are all but its last."""

    def close(self) -> None:  # noqa: B027
        """Ends the generation: lets go of what hangs on the target."""


class BatchDraftSession(ABC):
    """The same for a batch, sequence by sequence."""

    @abstractmethod
    def propose(self, contexts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Proposal]:
        """At most `wanted` draft tokens for each sequence."""

    def keep(self, lengths: Sequence[int]) -> None:  # noqa: B027
        """As `DraftSession.keep`."""

    def select(self, sequences: Sequence[int]) -> None:  # noqa: B027
        """Goes on with these sequences only."""

    def close(self) -> None:  # noqa: B027
        """As `DraftSession.close`."""


class Drafter(ABC):
    """A way to draft. `name` is unique among the drafters of one target."""

    name: str

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        """The modules whose forward calls are draft passes."""
        return ()

    def check(self, target: CausalModel) -> None:  # noqa: B027
        """Raises DecodingError where this drafter cannot draft for `target`."""

    @abstractmethod
    def session(
        self,
        target: CausalModel,
        target_cache: KeyValueCache,
        *,
        sampling: Sampling = GREEDY,
        streams: RandomStreams | None = None,
        phases: Phases = no_phases,
    ) -> DraftSession:
        """Begins one generation. `target_cache` holds the context without its last token when drafts are asked for."""

    @abstractmethod
    def batch_session(
        self,
        target: CausalModel,
        target_cache: RaggedCache,
        streams: Sequence[RandomStreams],
        *,
        sampling: Sampling = GREEDY,
        phases: Phases = no_phases,
    ) -> BatchDraftSession:
        """Begins the generation of a batch, one entry of `streams` per sequence."""
