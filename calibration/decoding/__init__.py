"""Real decoding, plain and speculative, of any causal language model.

Reading guide: `speculation` (one round: `draft_speculate`, `target_verify`), `sampling` (the accept-or-resample rule),
`generation` (the loop that records rounds and counts passes), `drafters` and `heads` (who drafts), `batched` (many
sequences, ragged acceptance), `models` (what a model must offer), `phases` (where time can be taken).
"""

from calibration.decoding.counting import ForwardCounter, ForwardCountError
from calibration.decoding.drafters import Drafter, DraftSession, LayerSkipDrafter, ModelDrafter, PromptLookupDrafter, SelfDrafter
from calibration.decoding.errors import DecodingError
from calibration.decoding.generation import Generation, Round, plain_generate, speculative_generate
from calibration.decoding.heads import EagleHead, HeadDrafter, MedusaHeads
from calibration.decoding.models import CausalModel, HuggingFaceModel, as_model
from calibration.decoding.phases import PhaseClock, Phases, Span
from calibration.decoding.sampling import GREEDY, RandomStreams, Sampling
from calibration.decoding.speculation import draft_speculate, target_verify

__all__ = [
    "GREEDY",
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
    "speculative_generate",
    "target_verify",
]
