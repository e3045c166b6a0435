"""ForwardPass: what one pass of a model is asked to do."""

from __future__ import annotations

from typing import NamedTuple

from simulator.cost.tape import known, smaller


class ForwardPass(NamedTuple):
    """What one pass is asked to do.

    sequences decode with `rows` query rows together, over `context_tokens` cached tokens together (`windowed_tokens` for
    layers with a window); `longest_tokens` is the longest single context. prefill: (new tokens, tokens cached before) per
    prompt chunk. logit_rows: rows that the LM head computes. load: tokens of the mean data-parallel rank over those of this one.
    """

    sequences: int
    rows: int
    context_tokens: float
    windowed_tokens: float
    longest_tokens: float
    prefill: tuple[tuple[int, int], ...] = ()
    logit_rows: int = 0
    load: float = 1.0

    @property
    def rows_each(self) -> float:
        """Query rows of a sequence, on average. The same for any number of sequences that is not known yet."""
        return known(self.rows) / known(self.sequences)


def uniform_pass(sequences: int, rows_per_sequence: float, context: float, window: int | None) -> ForwardPass:
    """`sequences` of equal context; `rows_per_sequence` may be an average."""
    rows = round(sequences * rows_per_sequence)
    total = sequences * context
    windowed = sequences * smaller(context, window) if window else total
    return ForwardPass(sequences, rows, total, windowed, context, (), rows)


def routed_tokens(asked: ForwardPass, correlation: float) -> float:
    """Tokens that choose experts as if independently: each sequence's first row, and `correlation` of every further one.

    >>> routed_tokens(ForwardPass(4, 16, 0, 0, 0), 0.5)
    10.0
    """
    prompts = sum(1 + correlation * (tokens - 1) for tokens, _ in asked.prefill)
    return asked.sequences + correlation * (asked.rows - asked.sequences) + prompts
