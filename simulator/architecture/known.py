"""Finding a model: by name in `model_shapes/`, as a file of this project, or as a local Hugging Face config."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Literal

from pydantic import Field

from simulator import resources
from simulator.architecture.hf_config import config_path, read_config
from simulator.architecture.problems import model_problems
from simulator.architecture.shape import ModelArchitecture
from simulator.number_format import WeightFormat, format_in_name
from simulator.spec import Problem, Spec, SpecError, check, load_yaml


class ModelTable(Spec):
    """A file of `model_shapes/`."""

    schema_version: Literal[1]
    models: tuple[ModelArchitecture, ...]
    unsupported: dict[str, str] = Field(default_factory=dict)
    published_weights: dict[str, WeightFormat] = Field(
        default_factory=dict, description="type of the weights that a model's owner publishes, where it is not of 16 bits"
    )


@cache
def models() -> dict[str, ModelArchitecture]:
    """Every accepted spelling (normalised) → model."""
    found: dict[str, ModelArchitecture] = {}
    for table in _tables():
        for model in table.models:
            for name in (model.name, *model.aliases):
                found.setdefault(resources.normalised(name), model)
    return found


@cache
def unsupported() -> dict[str, str]:
    """Known models that are not priced (normalised) → why."""
    return {resources.normalised(name): why for table in _tables() for name, why in table.unsupported.items()}


@cache
def _tables() -> tuple[ModelTable, ...]:
    return tuple(check(ModelTable, load_yaml(resources.folder("model") / f"{i}.yaml")) for i in resources.ids("model"))


def stored_weights(name: str) -> str | None:
    """The type of weights that a local Hugging Face config names, or the name itself, as in ``Qwen3-32B-FP8``; else None."""
    if name.endswith((".yaml", ".yml")):
        return None
    path = config_path(name)
    return format_in_name(name)[1] if path is None else read_config(path).weights


def unread_weights(name: str) -> str:
    """What a local Hugging Face config says of the type of its weights and is not understood, in its words; "" for nothing."""
    path = None if name.endswith((".yaml", ".yml")) else config_path(name)
    return "" if path is None else read_config(path).unread


def published_weights(name: str) -> str | None:
    """`stored_weights`, else the type in which the owner of a known model publishes it; None where it is of 16 bits."""
    return stored_weights(name) or _published_weights().get(resources.normalised(name))


@cache
def _published_weights() -> dict[str, str]:
    return {resources.normalised(name): weights for table in _tables() for name, weights in table.published_weights.items()}


def cache_reader(target: ModelArchitecture) -> ModelArchitecture | None:
    """The published drafter that reads this target's cache (assistants of Gemma 4); None where there is none."""
    found = (model for model in models().values() if model.kv_source == "target" and model.base_model == target.name)
    return next(found, None)


def is_same_model(name: str, model: ModelArchitecture) -> bool:
    """Whether a name, words after it aside, means this model: one of its names, or its shape where it is not a known one.

    >>> is_same_model("meta-llama/Llama-3.1-8B-Instruct bf16", find_model("llama-3.1-8b"))
    True
    >>> is_same_model("meta-llama/Meta-Llama-3-8B-Instruct", find_model("llama-3.1-8b"))
    False
    """
    key = resources.normalised(name.partition(" ")[0])
    if key in {resources.normalised(spelling) for spelling in (model.name, *model.aliases)}:
        return True
    other = models().get(key)
    if other is None or resources.normalised(model.name) in models():
        return other == model
    sizes = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
    return all(getattr(other, size) == getattr(model, size) for size in sizes)


# Words in the names of published heads, which often begin with the name of their target.
_HEADS = ("eagle", "medusa", "hydra", "mtp", "speculator", "accelerator", "dflash", "dspark")


def find_model(name: str, where: str = "", key: str = "model", noun: str = "model") -> ModelArchitecture:
    """A model by name or alias, or by path: a YAML file with one model's fields, a Hugging Face config.json or its directory.

    Raises `SpecError`.
    """
    if name.endswith((".yaml", ".yml")) and resources.is_file(Path(name)):
        document = load_yaml(name)
        model: ModelArchitecture = check(ModelArchitecture, document)
        problems = model_problems(model, document)
        if problems:
            raise SpecError(problems)
        return model
    path = config_path(name)
    if path is not None:
        return read_config(path).architecture
    found = models().get(resources.normalised(name)) or models().get(resources.normalised(format_in_name(name)[0]))
    if found is not None:
        return found
    why = unsupported().get(resources.normalised(name))
    if why is not None:
        raise SpecError([Problem(where, key, f"must be a model that can be priced: {name} has {why}")])
    base, _, word = name.rpartition("-")
    head = any(each in word.casefold() for each in _HEADS)
    if base and resources.normalised(base) in models() and not head:
        must = f"must be a known {noun} or the path of a file: {base} is one, and {word} no known type of weights"
        raise SpecError([Problem(where, key, must, repr(name), base)])
    known = [model for model in dict.fromkeys(models().values()) if not head or model.kind == "draft_head"]
    target = models().get(resources.normalised(base))
    known = [model for model in known if target is not None and model.base_model == target.name] or known
    spellings = [spelling for model in known for spelling in (model.name, *model.aliases)]
    raise resources.unknown(where, key, noun, name, spellings)
