"""Drafting with some of the target's layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from calibration.decoding.drafters import BatchDraftSession, DraftSession, Proposal
from calibration.decoding.errors import DecodingError
from calibration.decoding.layers import layer_subset
from calibration.decoding.model_drafter import ModelBatchSession, ModelDrafter, ModelSession
from calibration.decoding.models import CausalModel, KeyValueCache, as_model
from calibration.decoding.phases import Phases, no_phases
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling


class LayerSkipDrafter(ModelDrafter):
    """Some of the target's layers draft with the target's weights: the first ones (early exit), or all but a few.

    With `share_cache` the draft also reads the target's keys and values and needs neither a prefill nor to catch up. They
    are the ones it would compute itself where the layers are the target's first; with a gap they are better than its own,
    so that a draft then depends on where its round began.
    """

    def __init__(
        self,
        target: Any,
        layers: Sequence[int],
        *,
        name: str = "",
        sampling: Sampling | None = None,
        share_cache: bool | None = None,
    ):
        whole = as_model(target)
        self.layers = tuple(layers)
        is_prefix = self.layers == tuple(range(len(self.layers)))
        self.share_cache = is_prefix if share_cache is None else share_cache
        self.target_module = whole.module
        default = f"exit{len(self.layers)}" if is_prefix else "layers" + ",".join(map(str, self.layers))
        super().__init__(layer_subset(whole, self.layers), name=name or default, sampling=sampling)

    def check(self, target: CausalModel) -> None:
        if target.module is not self.target_module:
            raise DecodingError(f"drafter {self.name}: is made of another model's layers than those of target {target.name}")

    def session(
        self,
        target: CausalModel,
        target_cache: KeyValueCache,
        *,
        sampling: Sampling = GREEDY,
        streams: RandomStreams | None = None,
        phases: Phases = no_phases,
    ) -> DraftSession:
        if not self.share_cache:
            return super().session(target, target_cache, sampling=sampling, streams=streams, phases=phases)
        own = self.sampling or sampling
        view = target_cache.select_layers(self.layers)
        return _SharedCacheSession(self.model, view, target.vocab_size, own, streams or RandomStreams(), phases)

    def batch_session(
        self,
        target: CausalModel,
        target_cache: RaggedCache,
        streams: Sequence[RandomStreams],
        *,
        sampling: Sampling = GREEDY,
        phases: Phases = no_phases,
    ) -> BatchDraftSession:
        if not self.share_cache:
            return super().batch_session(target, target_cache, streams, sampling=sampling, phases=phases)
        own = self.sampling or sampling
        return _SharedCacheBatchSession(self, target_cache, target.vocab_size, own, streams, phases)


class _SharedCacheSession(ModelSession):
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        held = self.cache.length
        proposal = super().propose(context_ids, k)
        # The layers must agree again before the target's pass, which writes these slots itself.
        with self.phases("sampling", 0):
            self.cache.crop_to(held)
        return proposal

    def keep(self, length: int) -> None:
        """The target crops its own cache."""


class _SharedCacheBatchSession(ModelBatchSession):
    def __init__(
        self,
        drafter: LayerSkipDrafter,
        target_cache: RaggedCache,
        vocab_size: int,
        sampling: Sampling,
        streams: Sequence[RandomStreams],
        phases: Phases,
    ):
        super().__init__(target_cache, vocab_size, sampling, streams, phases)
        self.drafter, self.target_cache = drafter, target_cache

    def propose(self, contexts: Sequence[Sequence[int]], wanted: Sequence[int]) -> list[Proposal]:
        self.cache = self.target_cache.select_layers(self.drafter.model, self.drafter.layers)
        held = self.cache.cache.length
        proposals = super().propose(contexts, wanted)
        with self.phases("sampling", 0):
            self.cache.cache.crop_to(held)
        return proposals

    def keep(self, lengths: Sequence[int]) -> None:
        """The target masks its own cache."""

    def select(self, sequences: Sequence[int]) -> None:
        self.streams = [self.streams[index] for index in sequences]
