"""Drafting with a head on the target."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from calibration.decoding.drafters import BatchDraftSession, Drafter, DraftSession
from calibration.decoding.errors import DecodingError
from calibration.decoding.head_batches import EagleBatchSession, MedusaBatchSession
from calibration.decoding.head_sessions import EagleSession, MedusaSession
from calibration.decoding.heads import EagleHead, MedusaHeads
from calibration.decoding.models import CausalModel, KeyValueCache
from calibration.decoding.phases import Phases, no_phases
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling


class HeadDrafter(Drafter):
    """Drafts with a head on the target. `sampling` is the draft's own, where it differs from the target's."""

    def __init__(self, head: MedusaHeads | EagleHead, *, name: str = "", sampling: Sampling | None = None):
        self.head = head.eval()
        self.name = name or ("medusa" if isinstance(head, MedusaHeads) else "eagle")
        self.sampling = sampling

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        return (self.head,)

    def check(self, target: CausalModel) -> None:
        width = int(target.embed(torch.zeros(1, dtype=torch.long)).shape[-1])
        own = (self.head.residual[0] if isinstance(self.head, MedusaHeads) else self.head.join).out_features
        if own != width:
            raise DecodingError(f"drafter {self.name}: must have the width of target {target.name}, {width} (got {own})")
        if isinstance(self.head, MedusaHeads) and self.head.output[0].out_features != target.vocab_size:
            raise DecodingError(
                f"drafter {self.name}: its heads must have the target's vocabulary of {target.vocab_size} tokens "
                f"(got {self.head.output[0].out_features})"
            )

    def session(
        self,
        target: CausalModel,
        target_cache: KeyValueCache,
        *,
        sampling: Sampling = GREEDY,
        streams: RandomStreams | None = None,
        phases: Phases = no_phases,
    ) -> DraftSession:
        own = self.sampling or sampling
        kind = MedusaSession if isinstance(self.head, MedusaHeads) else EagleSession
        return kind(self.head, target, target_cache, own, streams or RandomStreams(), phases)

    def batch_session(
        self,
        target: CausalModel,
        target_cache: RaggedCache,
        streams: Sequence[RandomStreams],
        *,
        sampling: Sampling = GREEDY,
        phases: Phases = no_phases,
    ) -> BatchDraftSession:
        own = self.sampling or sampling
        if isinstance(self.head, MedusaHeads):
            return MedusaBatchSession(self.head, target, target_cache, own, streams, phases)
        return EagleBatchSession(self.head, target, target_cache, own, streams, phases)
