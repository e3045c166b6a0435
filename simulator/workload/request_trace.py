"""RequestTrace: recorded requests, in arrays."""

from __future__ import annotations

from dataclasses import dataclass

from simulator.workload.quantities import Floats, Integers


@dataclass(frozen=True, slots=True, eq=False)
class PromptTexts:
    """The numbers of the texts that each prompt is made of, all in a row: those of prompt i end before `ends`[i].

    A text has `tokens` tokens, the last of a prompt as many as are left of it.
    """

    texts: Integers
    ends: Integers
    tokens: int

    def of(self, prompt: int) -> list[int]:
        begin = int(self.ends[prompt - 1]) if prompt else 0
        found: list[int] = self.texts[begin : self.ends[prompt]].tolist()
        return found


@dataclass(frozen=True, slots=True, eq=False)
class RequestTrace:
    """A recorded trace in order of arrival: three arrays of one length. `notes` say what reading it had to change.

    timed: False where the file holds no arrivals, and all are 0.
    prompt_texts: what prompts are made of, where the trace tells which of them begin alike.
    """

    arrival_s: Floats
    prompt_tokens: Integers
    output_tokens: Integers
    source: str = ""
    notes: tuple[str, ...] = ()
    timed: bool = True
    prompt_texts: PromptTexts | None = None

    def __len__(self) -> int:
        return len(self.arrival_s)
