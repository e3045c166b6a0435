"""Usual lengths of the requests of benchmark datasets."""

from __future__ import annotations

import re
from functools import cache
from typing import Literal

from pydantic import model_validator

from simulator import resources
from simulator.spec import Spec, check, load_yaml
from simulator.workload.quantities import Tokens

DATASETS_FILE = "dataset_lengths"


class UsualTokens(Spec):
    """A usual mean number of tokens and the range in which a run's mean may fairly be expected (about 80 %)."""

    usual: Tokens
    low: Tokens
    high: Tokens

    @model_validator(mode="after")
    def _ordered(self) -> UsualTokens:
        if not self.low <= self.usual <= self.high:
            raise ValueError(f"must be low ≤ usual ≤ high (got {self.low}, {self.usual}, {self.high})")
        return self


class DatasetLengths(Spec):
    """Mean prompt and output tokens of a benchmark's requests.

    `confidence` is that of the weaker of the two: counted by a tokenizer, derived (from characters, say), or assumed.
    """

    prompt_tokens: UsualTokens
    output_tokens: UsualTokens
    source: str
    confidence: Literal["counted", "derived", "assumed"]


def usual_lengths(dataset: str) -> DatasetLengths | None:
    """Usual lengths of a benchmark dataset; case, spaces and punctuation of the name do not matter. None where it is not known.

    >>> usual_lengths("MT-Bench") == usual_lengths("mtbench")
    True
    """
    return _dataset_table().get(_letters(dataset))


def dataset_names() -> tuple[str, ...]:
    return tuple(_dataset_table())


@cache
def _dataset_table() -> dict[str, DatasetLengths]:
    path = resources.folder("workload") / f"{DATASETS_FILE}.yaml"
    table: dict[str, DatasetLengths] = check(dict[str, DatasetLengths], load_yaml(path))
    return {_letters(name): lengths for name, lengths in table.items()}


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())
