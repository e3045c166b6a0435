"""Real decoding, plain and speculative, of any causal language model.

Reading guide: `speculation` (one round: `draft_speculate`, `target_verify`), `sampling` (the accept-or-resample rule),
`generation` (the loop that records rounds and counts passes), `drafters` (who drafts), `batched` (many sequences, ragged
acceptance), `models` (what a model must offer), `phases` (where time can be taken).
"""

from calibration.decoding.batched import BatchGeneration, plain_generate_batch, speculative_generate_batch
from calibration.decoding.counting import ForwardCounter, ForwardCountError
from calibration.decoding.drafters import Drafter, DraftSession
from calibration.decoding.errors import DecodingError
from calibration.decoding.generation import Generation, Round, plain_generate, speculative_generate
from calibration.decoding.head_drafter import HeadDrafter
from calibration.decoding.heads import EagleHead, MedusaHeads
from calibration.decoding.layer_skip import LayerSkipDrafter
from calibration.decoding.model_drafter import ModelDrafter, SelfDrafter
from calibration.decoding.models import CausalModel, HuggingFaceModel, as_model
from calibration.decoding.phases import PhaseClock, Phases, Span
from calibration.decoding.prompt_lookup import PromptLookupDrafter
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling
from calibration.decoding.speculation import draft_speculate, target_verify

__all__ = [
    "GREEDY",
    "BatchGeneration",
    "CausalModel",
    "DecodingError",
    "DraftSession",
    "Drafter",
    "EagleHead",
    "ForwardCountError",
    "ForwardCounter",
    "Generation",
    "HeadDrafter",
    "HuggingFaceModel",
    "LayerSkipDrafter",
    "MedusaHeads",
    "ModelDrafter",
    "PhaseClock",
    "Phases",
    "PromptLookupDrafter",
    "RandomStreams",
    "Round",
    "Sampling",
    "SelfDrafter",
    "Span",
    "as_model",
    "draft_speculate",
    "plain_generate",
    "plain_generate_batch",
    "speculative_generate",
    "speculative_generate_batch",
    "target_verify",
]
