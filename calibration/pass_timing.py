"""Times of single passes of a loaded pair, taken as its decoding loops run them: same calls, caches, tensors and tokens.

The models are seen through copies of their outer modules that share every weight: hooks that count the passes of a decoding
loop under way, or take their states, do not see these, so that passes can be timed between those of a real run.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from calibration.decoding import (
    CausalModel,
    Drafter,
    HeadDrafter,
    HuggingFaceModel,
    MedusaHeads,
    ModelDrafter,
    PromptLookupDrafter,
    RandomStreams,
)
from calibration.decoding.errors import DecodingError
from calibration.decoding.heads import EagleModel
from calibration.decoding.models import CachedModel, KeyValueCache
from calibration.decoding.ragged import RaggedCache
from calibration.decoding.sampling import GREEDY, choose, choose_draft
from calibration.decoding.speculation import accept
from calibration.decoding_pass import TARGET, DecodingPass, PassTime


class PassTimer:
    """Times passes of one target and its drafters.

    `texts`: (prompt, output) in tokens, which feed the passes and the look-ups. Keeps one cache for each model, batch and
    context it was asked for. Raises DecodingError for drafters of another kind than those of `calibration.decoding`.
    """

    def __init__(
        self,
        target: CausalModel,
        drafters: Iterable[Drafter],
        texts: Sequence[tuple[Sequence[int], Sequence[int]]],
        clock: Callable[[], float] = time.thread_time,
    ):
        self.target = _unhooked(target)
        self.models: dict[str, CachedModel] = {TARGET: self.target}
        self.lookups: dict[str, PromptLookupDrafter] = {}
        self.heads: dict[str, MedusaHeads] = {}
        for drafter in drafters:
            if isinstance(drafter, ModelDrafter):
                self.models[drafter.name] = _unhooked(drafter.model)
            elif isinstance(drafter, PromptLookupDrafter):
                self.lookups[drafter.name] = drafter
            elif isinstance(drafter, HeadDrafter) and isinstance(drafter.head, MedusaHeads):
                self.heads[drafter.name] = drafter.head
            elif isinstance(drafter, HeadDrafter):
                self.models[drafter.name] = EagleModel(copy.copy(drafter.head), self.target)
            else:
                raise DecodingError(f"drafter {drafter.name}: its passes cannot be timed on their own")
        self.texts, self.clock = [(list(prompt), list(output)) for prompt, output in texts], clock
        self._tokens = [token for prompt, output in self.texts for token in (*prompt, *output)]
        self._alone: dict[tuple[str, int], KeyValueCache] = {}
        self._ragged: dict[tuple[str, int, int], RaggedCache] = {}
        self._place = 0

    def time(self, asked: DecodingPass, context: int) -> PassTime:
        """One sample behind `context` cached tokens, which count as 0 for a pass over a prompt."""
        if asked.model in self.lookups:
            return self._lookup(self.lookups[asked.model], asked.rows)
        if asked.model in self.heads:
            return self._all_heads(self.heads[asked.model], asked)
        return self._masked(asked, context) if asked.masked else self._single(asked, context)

    def _single(self, asked: DecodingPass, context: int) -> PassTime:
        model = self.models[asked.model]
        cache = model.new_cache() if asked.prompt else self._cache(asked.model, context)
        pending, clock = self._text(asked.rows), self.clock
        drafts = pending[1 : asked.last]
        begin = clock()
        logits = model(torch.tensor([pending]), cache, last=asked.last)[0]
        passed = clock()
        if asked.last == 1:
            choose(logits[-1], GREEDY, _STREAMS.emit)
        else:
            accept(logits, drafts, None, sampling=GREEDY, streams=_STREAMS)
        chosen = clock()
        cache.crop_to(0 if asked.prompt else context)
        return PassTime(passed - begin, chosen - passed, clock() - chosen)

    def _masked(self, asked: DecodingPass, context: int) -> PassTime:
        count = asked.sequences
        cache = RaggedCache(self.models[asked.model], count) if asked.prompt else self._ragged_cache(asked, context)
        held = list(cache.lengths)
        rows, clock = [self._text(asked.rows) for _ in range(count)], self.clock
        begin = clock()
        logits = cache.feed(rows, last=asked.last)
        passed = clock()
        for index, row in enumerate(rows):
            accept(logits[index, -asked.last :], row[1 : asked.last], None, sampling=GREEDY, streams=_STREAMS)
        chosen = clock()
        cache.keep(held)
        return PassTime(passed - begin, chosen - passed, clock() - chosen)

    def _lookup(self, drafter: PromptLookupDrafter, wanted: int) -> PassTime:
        """At some place of the real texts, another one each time: how long a search takes depends on how soon it finds one."""
        context = self._text_until_somewhere()
        begin = self.clock()
        drafter.lookup(context, wanted)
        return PassTime(self.clock() - begin, 0.0, 0.0)

    @torch.inference_mode()
    def _all_heads(self, heads: MedusaHeads, asked: DecodingPass) -> PassTime:
        state = self.target.embed(torch.tensor(self._text(asked.sequences)))
        begin = self.clock()
        logits = heads(state)
        passed = self.clock()
        for sequence in range(asked.sequences):
            for row in logits[: asked.last, sequence]:
                choose_draft(row, GREEDY, _STREAMS, [])
        return PassTime(passed - begin, self.clock() - passed, 0.0)

    def _text(self, count: int) -> list[int]:
        """The next `count` tokens of the texts, over and over."""
        tokens = [self._tokens[(self._place + index) % len(self._tokens)] for index in range(count)]
        self._place += count
        return tokens

    def _text_until_somewhere(self) -> list[int]:
        """A prompt and a part of its output."""
        self._place += 1
        prompt, output = self.texts[self._place % len(self.texts)]
        # 0.618… of a turn at a time comes by every part of the output.
        return [*prompt, *output[: 1 + int(0.6180339887 * self._place % 1.0 * len(output))]]

    def _cache(self, model: str, context: int) -> KeyValueCache:
        if (model, context) not in self._alone:
            cache = self._alone[model, context] = self.models[model].new_cache()
            self.models[model](torch.tensor([self._text(context)]), cache, last=1)
        return self._alone[model, context]

    def _ragged_cache(self, asked: DecodingPass, context: int) -> RaggedCache:
        key = (asked.model, asked.sequences, context)
        if key not in self._ragged:
            cache = self._ragged[key] = RaggedCache(self.models[asked.model], asked.sequences)
            cache.feed([self._text(context) for _ in range(asked.sequences)], last=1)
        return self._ragged[key]


_STREAMS = RandomStreams()


def _unhooked(model: CausalModel) -> CausalModel:
    """The same model without the hooks that count its passes (on its outermost module) and take its states (one further in)."""
    module = _bare(model.module)
    if not isinstance(model, HuggingFaceModel):
        return module
    base = model.module.base_model
    module.__dict__["_modules"] = {
        name: _bare(child) if child is base else child for name, child in module.__dict__["_modules"].items()
    }
    return HuggingFaceModel(module, model.name)


def _bare(module: torch.nn.Module) -> Any:
    bare: Any = copy.copy(module)
    for table in ("_forward_hooks", "_forward_pre_hooks"):
        bare.__dict__[table] = type(bare.__dict__[table])()
    return bare
