"""Drafting from the prompt: what followed the last tokens when they occurred before."""

from __future__ import annotations

from collections.abc import Sequence

from calibration.decoding.drafters import BatchDraftSession, Drafter, DraftSession, Proposal
from calibration.decoding.errors import DecodingError
from calibration.decoding.models import CausalModel, KeyValueCache
from calibration.decoding.phases import Phases, no_phases
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling


class PromptLookupDrafter(Drafter):
    """Proposes what followed the latest earlier occurrence of the last tokens: n-gram drafting, which costs no pass.

    The longest match from `max_ngram` down to `min_ngram` tokens counts; without one nothing is proposed. Fewer than `k`
    tokens are proposed where the occurrence lies that near to the end.
    """

    def __init__(self, max_ngram: int = 3, min_ngram: int = 1, *, name: str = "prompt_lookup"):
        if not 1 <= min_ngram <= max_ngram:
            raise DecodingError(f"min_ngram, max_ngram: must be 1 or more and in this order (got {min_ngram}, {max_ngram})")
        self.max_ngram, self.min_ngram, self.name = max_ngram, min_ngram, name

    def lookup(self, context_ids: Sequence[int], k: int) -> list[int]:
        """At most `k` tokens that followed the latest match.

        >>> PromptLookupDrafter().lookup([5, 6, 7, 8, 9, 5, 6], 3)
        [7, 8, 9]
        """
        context = list(context_ids)
        for size in range(min(self.max_ngram, len(context) - 1), self.min_ngram - 1, -1):
            ngram = context[-size:]
            for start in range(len(context) - size - 1, -1, -1):
                if context[start : start + size] == ngram:
                    return context[start + size : start + size + k]
        return []

    def session(
        self,
        target: CausalModel,  # noqa: ARG002  no model is asked
        target_cache: KeyValueCache,  # noqa: ARG002
        *,
        sampling: Sampling = GREEDY,  # noqa: ARG002
        streams: RandomStreams | None = None,  # noqa: ARG002
        phases: Phases = no_phases,
    ) -> DraftSession:
        return _LookupSession(self, phases)

    def batch_session(
        self,
        target: CausalModel,  # noqa: ARG002
        target_cache: RaggedCache,  # noqa: ARG002
        streams: Sequence[RandomStreams],  # noqa: ARG002
        *,
        sampling: Sampling = GREEDY,  # noqa: ARG002
        phases: Phases = no_phases,
    ) -> BatchDraftSession:
        return _LookupBatchSession(self, phases)


class _LookupSession(DraftSession):
    def __init__(self, drafter: PromptLookupDrafter, phases: Phases):
        self.drafter, self.phases = drafter, phases

    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        with self.phases("draft", 0):
            return self.drafter.lookup(context_ids, k), None


class _LookupBatchSession(BatchDraftSession):
    def __init__(self, drafter: PromptLookupDrafter, phases: Phases):
        self.drafter, self.phases = drafter, phases

    def propose(self, contexts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Proposal]:
        with self.phases("draft", 0):
            return [(self.drafter.lookup(context, k), None) for context, k in zip(contexts, wanted, strict=True)]
