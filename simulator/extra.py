"""The extra `calibrate`, which real models need: what is said where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from simulator.spec import Problem, SpecError

# What it installs, and what that cannot do without.
_PACKAGES = ("torch", "transformers", "accelerate", "safetensors", "gguf", "tokenizers", "filelock")


def not_installed(asked: str, missing: Sequence[str], key: str = "") -> SpecError:
    """The error of a question, or of a key of a file, that needs packages of the extra.

    >>> print(not_installed("demo", ["torch"]))
    demo: needs torch, not installed: pip install 'specsim[calibrate]'
    """
    return SpecError([Problem(asked, key, f"needs {' and '.join(missing)}, not installed: pip install 'specsim[calibrate]'")])


@contextmanager
def needed_for(asked: str) -> Iterator[None]:
    """Around imports: `SpecError` where a package of the extra is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name not in _PACKAGES:
            raise
        raise not_installed(asked, [error.name]) from None
