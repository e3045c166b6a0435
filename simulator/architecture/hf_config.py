"""A local Hugging Face `config.json` as a `ModelArchitecture`.

Multimodal models are read as their language model. A family that is not known is refused by name, a key that is missing is
named with the file. Nothing is downloaded.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulator.architecture.hf_drafters import (
    CACHE_READER_KEYS,
    SPECULATORS,
    drafter_fields,
    drafter_method,
    inner_config,
    medusa_fields,
    mlp_speculator_fields,
)
from simulator.architecture.hf_fields import FAMILIES, Config, Fields, decoder_fields, family_of
from simulator.architecture.hf_kinds import wrong_kinds
from simulator.architecture.hf_quantization import stored_type
from simulator.architecture.problems import model_problems
from simulator.architecture.shape import ModelArchitecture
from simulator.spec import Document, Problem, SpecError, check, unique_keys

_REQUIRED_OF_HEADS = {
    "medusa": ("hidden_size", "num_heads"),
    "mlp_speculator": ("emb_dim", "n_predict"),
    "dflash": ("target_layer_ids", "block_size"),
}


@dataclass(frozen=True)
class HuggingFaceConfig:
    """`architecture`; `weights`: the type that the weights are stored in, None where layers differ or it is not said; `unread`:
    what is said of it and not understood."""

    architecture: ModelArchitecture
    weights: str | None
    unread: str = ""


def config_path(name: str) -> Path | None:
    """The config.json that `name` means: the file itself or the one in a directory."""
    path = Path(name)
    try:
        if name and path.is_dir():
            path = path / "config.json"
        return path if path.suffix == ".json" and path.is_file() else None
    except OSError:
        return None


def read_config(path: Path) -> HuggingFaceConfig:
    """Raises `SpecError` where the file is no config or its family is not known."""
    return config_of(_load(path), path)


def config_of(config: Config, path: Path) -> HuggingFaceConfig:
    """As `read_config`, of what a config.json at `path` holds; the folder names the model."""
    text = _language_model(config)
    _check_kinds(config, text, path)
    try:
        fields, faults = _fields(text, path)
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError) as error:
        if isinstance(error, SpecError):
            raise
        raise SpecError([Problem(str(path), "", f"must be a sound Hugging Face config: {error!r}")]) from None
    fields["name"] = path.parent.name or str(path)
    fields["sources"] = (str(path),)
    document = Document(str(path), {name: _frozen(value) for name, value in fields.items() if value is not None})
    faults += _missing(fields)
    problems = [document.problem((key,), must, text.get(key, "")) for key, must in faults]
    if problems:
        raise SpecError(problems)
    architecture = check(ModelArchitecture, document)
    problems = model_problems(architecture, document)
    if problems:
        raise SpecError(problems)
    beside = path.parent / "hf_quant_config.json"
    stored = stored_type(config, text, _load(beside) if beside.is_file() else None)
    return HuggingFaceConfig(architecture.model_copy(update={"mixed_weights": stored.mixed}), stored.weights, stored.unread)


def _check_kinds(config: Config, text: Config, path: Path) -> None:
    document = Document(str(path), {})
    wrong = dict.fromkeys((*wrong_kinds(config), *wrong_kinds(text), *wrong_kinds(inner_config(text))))
    if wrong:
        raise SpecError(document.problem((key,), must, text.get(key, config.get(key, ""))) for key, must in wrong)


def _load(path: Path) -> dict[str, Any]:
    try:
        config = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=unique_keys)
    except (OSError, ValueError, RecursionError) as error:
        raise SpecError([Problem(str(path), "", f"must be JSON: {error}")]) from None
    if not isinstance(config, dict):
        raise SpecError([Problem(str(path), "", "must hold a Hugging Face config: a mapping with model_type")])
    return config


def _language_model(config: Config) -> Config:
    """The part of a multimodal config that is the language model; what it leaves out is as in the whole."""
    for key in ("thinker_config", "text_config", "llm_config"):
        inner = config.get(key)
        if isinstance(inner, dict):
            outer = ("model_type", "architectures", "tie_word_embeddings", *CACHE_READER_KEYS)
            kept = {name: config[name] for name in outer if name in config}
            return _language_model({**kept, **inner})
    return config


def _fields(config: Config, path: Path) -> tuple[Fields, list[tuple[str, str]]]:
    method = drafter_method(config)
    if method == "medusa":
        return medusa_fields(config), []
    if method == "mlp_speculator":
        return mlp_speculator_fields(config), []
    if method is None:
        family = family_of(config)
        if family is None:
            raise _unknown(path, config)
        return decoder_fields(config, family)
    if method not in SPECULATORS:
        must = f"must be a kind that is priced: {', '.join(SPECULATORS)}"
        raise SpecError([Document(str(path), {}).problem(("speculators_model_type",), must, method, SPECULATORS)])
    inner = inner_config(config)
    layers, faults = decoder_fields(inner, family_of(inner) or FAMILIES["llama"])
    return drafter_fields(inner, method, layers), faults


def _unknown(path: Path, config: Config) -> SpecError:
    got = config.get("model_type") or " ".join(config.get("architectures") or ())
    must = f"must be a family that is priced; known: {', '.join(sorted(FAMILIES))}"
    return SpecError([Document(str(path), {}).problem(("model_type",), must, got, FAMILIES)])


def _missing(fields: Fields) -> list[tuple[str, str]]:
    """Keys that a draft head of this method cannot do without."""
    named = {"emb_dim": "hidden_size", "target_layer_ids": "fc_input_size"}
    keys = _REQUIRED_OF_HEADS.get(fields["family"], ())
    return [(key, "must be given") for key in keys if not fields.get(named.get(key, key))]


def _frozen(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
