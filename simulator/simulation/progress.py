"""Progress: how far a run is, told as it goes on."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

Progress = Callable[[str, int, int], None]  # (which run, done of it, in all)


def counter(progress: Progress | None, label: str, total: int) -> Callable[[], None]:
    """Reports one more request begun whenever it is called."""
    done = count(1)
    return (lambda: None) if progress is None else (lambda: progress(label, next(done), total))
