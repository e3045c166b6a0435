"""Forward passes, counted where they happen: by hooks on the models' own forward calls."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch


class ForwardCounter:
    """Counts the forward calls of `modules` while it is entered; the same module given twice counts once."""

    def __init__(self, modules: Iterable[torch.nn.Module]):
        self.modules = list({id(module): module for module in modules}.values())
        self.forwards = 0
        self._handles: list[Any] = []

    def __enter__(self) -> ForwardCounter:
        self._handles = [module.register_forward_hook(self._count) for module in self.modules]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for handle in self._handles:
            handle.remove()

    def _count(self, *_: object) -> None:
        self.forwards += 1


def check_all_accounted_for(calls: ForwardCounter, target_forwards: int, draft_forwards: int, drafts_too: bool) -> None:
    """Raises ForwardCountError unless the target ran as often as its rounds say. `drafts_too`: it also ran the draft passes."""
    expected = target_forwards + (draft_forwards if drafts_too else 0)
    if calls.forwards != expected:
        raise ForwardCountError(f"the target ran {calls.forwards} times, its rounds account for {expected}")


class ForwardCountError(AssertionError):
    """A round cost another number of target passes than the one it must cost."""
