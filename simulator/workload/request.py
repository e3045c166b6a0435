"""Request: what is asked for and when, what its tokens are, and which answer it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

Content = tuple[tuple[int, int], ...]
"""What the tokens of a request are, prompt and output: pieces of (text, tokens), each the beginning of a text that has a number.
Two requests share a prefix as far as their pieces agree."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request: `arrival_s` from the start of the run, its prompt and the tokens it will produce (both at least 1).

    content: what the tokens are, where requests share prefixes; None: like no other request. follows: the request whose answer
    its user reads for `think_time_s` before sending it; `arrival_s` is then that of the first turn of the session.
    """

    request_id: int
    arrival_s: float
    prompt_tokens: int
    output_tokens: int
    content: Content | None = None
    follows: int | None = None
    think_time_s: float = 0.0


# The text that all prompts of a workload begin with; others have the numbers from 1 on.
SHARED_TEXT = 0


def content_of(shared_tokens: int, text: int, prompt_tokens: int, output_tokens: int) -> Content:
    """A prompt that begins as all do and goes on, with its answer, as a text of its own.

    >>> content_of(100, 7, 300, 50), content_of(100, 7, 80, 50)
    (((0, 100), (7, 250)), ((0, 80), (7, 50)))
    """
    shared = min(shared_tokens, prompt_tokens)
    own = (text, prompt_tokens - shared + output_tokens)
    return ((SHARED_TEXT, shared), own) if shared else (own,)


def by_turns(requests: Iterable[Request]) -> tuple[Request, ...]:
    """In the order in which requests would arrive if every answer took no time."""
    nominal_s: dict[int, float] = {}
    for request in requests:
        before_s = request.arrival_s if request.follows is None else nominal_s.get(request.follows, request.arrival_s)
        nominal_s[request.request_id] = before_s + request.think_time_s
    return tuple(sorted(requests, key=lambda request: (nominal_s[request.request_id], request.request_id)))


def again(request: Request, request_id: int, repetition: int, arrival_s: float) -> Request:
    """A request for itself, with an id and a time of its own; from repetition 1 on only the text that all share is known."""
    content = request.content
    if content is not None and repetition:
        content = tuple((text and text + (repetition << 64), tokens) for text, tokens in content)
    return replace(request, request_id=request_id, arrival_s=arrival_s, content=content, follows=None, think_time_s=0.0)


def mean_context_tokens(requests: Sequence[Request]) -> float:
    """Mean tokens cached per decoding sequence: each token of the outputs sees its own context.

    >>> mean_context_tokens([Request(0, 0.0, 100, 10), Request(1, 0.0, 400, 30)])
    337.5
    """
    tokens = sum(request.output_tokens for request in requests)
    return sum((r.prompt_tokens + r.output_tokens / 2) * r.output_tokens for r in requests) / tokens
