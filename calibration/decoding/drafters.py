"""Who drafts: another model, the target itself, part of its layers, the prompt. Heads are in `heads`.

A `Drafter` is a choice that serves many generations; `session` begins one of them and holds its cache.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch

from calibration.decoding.errors import DecodingError
from calibration.decoding.layers import layer_subset
from calibration.decoding.models import CausalModel, KeyValueCache, as_model
from calibration.decoding.phases import Phases, no_phases
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling
from calibration.decoding.speculation import check_vocabulary, draft_speculate

Proposal = tuple[list[int], torch.Tensor | None]


class DraftSession(ABC):
    """One generation's drafting. Also a context: leaving it lets go of what it hung on the target."""

    @abstractmethod
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        """At most `k` draft tokens after the context and their distributions (None: each was certain)."""

    def keep(self, length: int) -> None:  # noqa: B027  a drafter without memory has nothing to forget
        """Forgets what was drafted: of the context just proposed on, `length` tokens (accepted drafts included) stay true."""

    def close(self) -> None:  # noqa: B027
        """Ends the generation."""


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


class ModelDrafter(Drafter):
    """A second, smaller model with the target's tokenizer.

    `sampling` is the draft's own, where it differs from the target's (many engines draft greedily). `same_tokenizer`
    vouches for models of one tokenizer whose vocabularies are only padded to different sizes.
    """

    def __init__(self, model: Any, *, name: str = "", sampling: Sampling | None = None, same_tokenizer: bool = False):
        self.model = as_model(model)
        self.name = name or self.model.name
        self.sampling = sampling
        self.same_tokenizer = same_tokenizer

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        return (self.model.module,)

    def check(self, target: CausalModel) -> None:
        check_vocabulary(target, self.model, self.same_tokenizer)

    def session(
        self,
        target: CausalModel,
        target_cache: KeyValueCache,  # noqa: ARG002  this draft keeps its own
        *,
        sampling: Sampling = GREEDY,
        streams: RandomStreams | None = None,
        phases: Phases = no_phases,
    ) -> DraftSession:
        own = self.sampling or sampling
        return _ModelSession(self.model, self.model.new_cache(), target.vocab_size, own, streams or RandomStreams(), phases)


class _ModelSession(DraftSession):
    def __init__(
        self,
        model: CausalModel,
        cache: KeyValueCache,
        vocab_size: int,
        sampling: Sampling,
        streams: RandomStreams,
        phases: Phases,
    ):
        self.model, self.cache, self.vocab_size = model, cache, vocab_size
        self.sampling, self.streams, self.phases = sampling, streams, phases

    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        return draft_speculate(
            self.model,
            context_ids,
            k,
            cache=self.cache,
            sampling=self.sampling,
            streams=self.streams,
            vocab_size=self.vocab_size,
            phases=self.phases,
        )

    def keep(self, length: int) -> None:
        with self.phases("sampling", 0):
            self.cache.crop_to(min(self.cache.length, length))


class SelfDrafter(ModelDrafter):
    """The target drafts for itself, with a cache of its own: every draft is accepted, and every draft costs a full pass."""

    def __init__(self, target: Any, *, name: str = "self", sampling: Sampling | None = None):
        super().__init__(target, name=name, sampling=sampling)


class LayerSkipDrafter(ModelDrafter):
    """Some of the target's layers draft with the target's weights; `early_exit` names the first ones.

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


class _SharedCacheSession(_ModelSession):
    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        held = self.cache.length
        proposal = super().propose(context_ids, k)
        # The layers must agree again before the target's pass, which writes these slots itself.
        with self.phases("sampling", 0):
            self.cache.crop_to(held)
        return proposal

    def keep(self, length: int) -> None:
        """The target crops its own cache."""


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


class _LookupSession(DraftSession):
    def __init__(self, drafter: PromptLookupDrafter, phases: Phases):
        self.drafter, self.phases = drafter, phases

    def propose(self, context_ids: Sequence[int], k: int) -> Proposal:
        with self.phases("draft", 0):
            return self.drafter.lookup(context_ids, k), None
