"""Models: their shape (`shape`), their layers as a device runs them (`layers`), known ones (`known`), drafters built from a
target (`stand_ins`), and Hugging Face configs (`hf_config`)."""

from simulator.architecture.hf_config import HuggingFaceConfig, config_of, config_path, read_config
from simulator.architecture.known import (
    cache_reader,
    find_model,
    is_same_model,
    models,
    published_weights,
    stored_weights,
    unread_weights,
    unsupported,
)
from simulator.architecture.layers import ONE_BLOCK_LETTERS, RECURRENT, STATE_NUMBER_BYTES, Experts, LayerGroup
from simulator.architecture.mixed_weights import MixedWeights, Part
from simulator.architecture.problems import model_problems
from simulator.architecture.shape import ModelArchitecture
from simulator.architecture.stand_ins import block_drafter, eagle_head, hydra_heads, medusa_heads, mtp_head, stand_in_draft
from simulator.architecture.towers import tower_note

__all__ = [
    "ONE_BLOCK_LETTERS",
    "RECURRENT",
    "STATE_NUMBER_BYTES",
    "Experts",
    "HuggingFaceConfig",
    "LayerGroup",
    "MixedWeights",
    "ModelArchitecture",
    "Part",
    "block_drafter",
    "cache_reader",
    "config_of",
    "config_path",
    "eagle_head",
    "find_model",
    "hydra_heads",
    "is_same_model",
    "medusa_heads",
    "model_problems",
    "models",
    "mtp_head",
    "published_weights",
    "read_config",
    "stand_in_draft",
    "stored_weights",
    "tower_note",
    "unread_weights",
    "unsupported",
]
