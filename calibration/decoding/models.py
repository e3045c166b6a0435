"""What decoding asks of a model, and Hugging Face causal language models in that form.

`CausalModel` is the whole interface: anything that has it decodes, drafts and is traced. Tokens are integers,
`token_ids` have shape (batch, new tokens) and continue what the cache holds.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch

from calibration.decoding.errors import DecodingError

RECURRENT = (
    "the model keeps a recurrent state that cannot be taken back after a rejected draft: speculative decoding needs a model "
    "with attention in every layer"
)


class KeyValueCache(Protocol):
    """Keys and values of the tokens a model has seen, on a common time axis for the whole batch."""

    @property
    def length(self) -> int:
        """Slots in use per sequence."""
        ...

    def crop_to(self, length: int) -> None:
        """Forgets all slots from `length` on."""
        ...

    def select_sequences(self, sequences: Sequence[int]) -> None:
        """Keeps these sequences of the batch, in this order."""
        ...

    def select_layers(self, layers: Sequence[int]) -> KeyValueCache:
        """The same memory as seen by a model made of these layers only."""
        ...


class CachedModel(Protocol):
    """Token ids to logits, over a cache."""

    def new_cache(self, *, rewinds: bool = True) -> Any:
        """An empty cache; one that never `rewinds` need not hold what a later crop would bring back."""
        ...

    def __call__(
        self,
        token_ids: torch.Tensor,
        cache: Any,
        *,
        last: int | None = None,
        slot_mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Logits of the `last` new tokens (all where None), shape (batch, last, vocab_size).

        `slot_mask`, shape (batch, slots with the new ones), is False where a slot holds nothing for that sequence;
        `positions`, shape (batch, new tokens), are then the tokens' places in their own sequence.
        """
        ...


@runtime_checkable
class CausalModel(CachedModel, Protocol):
    """A decoder-only language model with a cache."""

    @property
    def name(self) -> str: ...

    @property
    def vocab_size(self) -> int: ...

    @property
    def module(self) -> torch.nn.Module:
        """What is called for each forward pass; hooks on it see every pass."""
        ...

    def tap_hidden(self, receive: Callable[[torch.Tensor], None]) -> Any:
        """Hands the hidden states that feed the output head, shape (batch, new tokens, width), to `receive` at each pass.

        Returns a handle with `remove()`.
        """
        ...

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor: ...

    def head(self, hidden: torch.Tensor) -> torch.Tensor: ...


class HuggingFaceCache:
    """A `DynamicCache`, cropped by length. Sliding-window layers keep their past until they are cropped."""

    def __init__(self, cache: Any):
        self.cache = cache

    @property
    def length(self) -> int:
        try:
            return int(self.cache.get_seq_length())
        except ValueError:  # no layer with attention
            raise DecodingError(RECURRENT) from None

    def crop_to(self, length: int) -> None:
        if not getattr(self.cache, "is_croppable", True):
            raise DecodingError(RECURRENT)
        # Also where nothing is removed: sliding-window layers drop what lies outside their window then.
        self.cache.crop(-(self.length - length))

    def select_sequences(self, sequences: Sequence[int]) -> None:
        self.cache.batch_select_indices(torch.tensor(list(sequences)))

    def select_layers(self, layers: Sequence[int]) -> HuggingFaceCache:
        from transformers import DynamicCache

        view = DynamicCache()
        view.layers = [self.cache.layers[layer] for layer in layers]
        return HuggingFaceCache(view)


class HuggingFaceModel:
    """Any `transformers` causal language model. Puts the module in evaluation mode.

    Raises DecodingError where the module is no causal language model with an attention cache.
    """

    def __init__(self, module: Any, name: str = ""):
        if not hasattr(module, "config") or module.get_output_embeddings() is None:
            raise DecodingError(f"{name or type(module).__name__}: must be a causal language model with an output head")
        self.module = module.eval()
        self.config = module.config.get_text_config(decoder=True)
        self.name = name or str(getattr(module.config, "name_or_path", "") or type(module).__name__)
        self.vocab_size = int(self.config.vocab_size)
        accepted = inspect.signature(module.forward).parameters
        self._cache_argument = "cache" if "cache" in accepted else "past_key_values"
        self._keeps_logits = "logits_to_keep" in accepted
        self._takes_positions = "position_ids" in accepted

    def new_cache(self, *, rewinds: bool = True) -> HuggingFaceCache:
        from transformers import DynamicCache

        cache = DynamicCache(config=self.config)
        if rewinds and hasattr(cache, "activate_past_recording"):
            cache.activate_past_recording()
        return HuggingFaceCache(cache)

    @torch.inference_mode()
    def __call__(
        self,
        token_ids: torch.Tensor,
        cache: HuggingFaceCache,
        *,
        last: int | None = None,
        slot_mask: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
    ) -> torch.Tensor:
        device = self.module.get_input_embeddings().weight.device
        options: dict[str, Any] = {self._cache_argument: cache.cache, "use_cache": True}
        if self._keeps_logits:
            # 0 means every position in this library.
            options["logits_to_keep"] = last or 0
        if slot_mask is not None:
            options["attention_mask"] = slot_mask.long().to(device)
        if positions is not None:
            if not self._takes_positions:
                raise DecodingError(f"{self.name}: takes no positions, which a batch needs; decode one sequence at a time")
            options["position_ids"] = positions.to(device)
        logits = self.module(input_ids=token_ids.to(device), **options).logits
        return logits if last is None else logits[:, -last:]

    def tap_hidden(self, receive: Callable[[torch.Tensor], None]) -> Any:
        return self.module.base_model.register_forward_hook(lambda _, __, output: receive(output.last_hidden_state))

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        weights = self.module.get_input_embeddings()
        return weights(token_ids.to(weights.weight.device))

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.module.get_output_embeddings()(hidden)


def as_model(model: Any, name: str = "") -> CausalModel:
    """`model` where it is a `CausalModel` already, else a Hugging Face module in that form."""
    known = isinstance(model, HuggingFaceModel) or isinstance(model, CausalModel)  # noqa: SIM101  the first is much quicker
    return model if known else HuggingFaceModel(model, name)
