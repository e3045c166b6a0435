"""`python -m simulator demo`: the textbook demonstration, counted on two tiny models, and what a real device makes of it.

Greedy speculative decoding writes what plain decoding writes, with fewer passes of the target. How many fewer is a count; how
much faster is a question of what a round costs, which is answered by `predict` for a real device and real models.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from simulator import prediction
from simulator.architecture import find_model
from simulator.cost.spread import Estimate
from simulator.extra import not_installed
from simulator.plots.words import interval
from simulator.prediction import Prediction
from simulator.printed_numbers import significant, times
from simulator.spec import Document, Problem, SpecError, check

if TYPE_CHECKING:
    from calibration.decoding import Generation

# With this seed the small draft guesses right once in the first 16 tokens, and the output is not one token repeated.
SEED = 41
VOCABULARY = 32
PROMPT = (1, 2, 3, 4)
NUM_SPECULATIVE_TOKENS = 4
CONTEXT_TOKENS = 1024


@dataclass(frozen=True)
class Counts:
    """One decoding run of the tiny models; every pass was counted by a hook on the model."""

    name: str
    tokens: tuple[int, ...]
    bonus: bool | None
    target_forwards: int
    draft_forwards: int
    rounds: tuple[tuple[int, int], ...]

    @property
    def tokens_per_target_forward(self) -> float:
        return len(self.tokens) / self.target_forwards


@dataclass(frozen=True)
class OnDevice:
    """What the counted tokens per round are worth on a real device, drafted by `draft`."""

    counts: Counts
    draft: str
    prediction: Prediction


@dataclass(frozen=True)
class Demonstration:
    """All runs, the plain ones first, and the device's answer to the speculative ones."""

    runs: tuple[Counts, ...]
    hardware: str
    target: str
    on_device: tuple[OnDevice, ...]


def demonstrate(hardware: str, target: str, draft: str) -> Demonstration:
    """Decodes with the tiny models, checks the outputs against plain decoding, and prices the counts.

    Raises `SpecError` where torch is missing or the device or models are not known.
    """
    if find_spec("torch") is None:
        raise not_installed("demo", ["torch"])
    find_model(draft, "--draft", "", "draft model")
    runs = _tiny_runs()
    small, self_without, _, self_with = runs[2:]
    pairs = ((small, draft), (self_without, target), (self_with, target))
    answers = tuple(OnDevice(counts, drafter, _price(counts, hardware, target, drafter)) for counts, drafter in pairs)
    return Demonstration(runs, hardware, target, answers)


def _tiny_runs() -> tuple[Counts, ...]:
    from calibration.decoding import ModelDrafter, SelfDrafter, plain_generate, speculative_generate
    from calibration.tiny_decoder import TinyDecoder

    # Double precision: a pass over five tokens rounds otherwise than five passes, which must not turn a tie.
    target = TinyDecoder(VOCABULARY, 4, num_layers=2, num_heads=2, seed=SEED).double()
    draft = ModelDrafter(TinyDecoder(VOCABULARY, 2, seed=SEED + 1).double())
    itself = SelfDrafter(target)
    plain = {length: plain_generate(target, PROMPT, length) for length in (16, 20)}
    runs = [_counts("plain", generation, None) for generation in plain.values()]
    for name, drafter, length, bonus in (
        ("small draft", draft, 16, False),
        ("self-draft", itself, 16, False),
        ("self-draft", itself, 20, False),
        ("self-draft", itself, 20, True),
    ):
        fast = speculative_generate(target, drafter, PROMPT, length, NUM_SPECULATIVE_TOKENS, bonus=bonus, prefill=False)
        if fast.tokens != plain[length].tokens:
            raise AssertionError(f"{name}: the output differs from plain decoding")
        runs.append(_counts(name, fast, bonus))
    return tuple(runs)


def _counts(name: str, run: Generation, bonus: bool | None) -> Counts:
    rounds = tuple((each.proposed, each.accepted) for each in run.rounds)
    return Counts(name, run.tokens, bonus, run.target_forwards, run.draft_forwards, rounds)


def _price(counts: Counts, hardware: str, target: str, draft: str) -> Prediction:
    fields = {
        "hardware": hardware,
        "target_model": target,
        "method": "draft_model",
        "draft_model": draft,
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "mean_acceptance_length": counts.tokens_per_target_forward,
        "batch": 1,
        "engine": "vllm",
        "precision": "bf16",
        "context_len": CONTEXT_TOKENS,
    }
    document = Document("", fields)
    try:
        return prediction.predict_document(check(prediction.OperatingPoint, document), document)
    except prediction.UnknownNameError as unknown:
        raise unknown.error from None
    except prediction.UnsupportedError as reason:
        raise SpecError([Problem("", "", str(reason))]) from None


# ------------------------------------------------------------------------------------------------------------- in words


def headline(answer: Demonstration) -> str:
    """The counts in a sentence."""
    plain, small, itself = answer.runs[0], answer.runs[2], answer.runs[3]
    return (
        f"The same {len(plain.tokens)} tokens from fewer passes of the target: {plain.target_forwards} plain, "
        f"{small.target_forwards} with a small draft, {itself.target_forwards} where the target drafts for itself."
    )


def counts_table(answer: Demonstration) -> tuple[Sequence[str], list[list[str]]]:
    """Header and rows of what was counted."""
    header = ("run", "tokens", "γ", "bonus", "target passes", "draft passes", "tokens per target pass", "output")
    rows = []
    for run in answer.runs:
        speculative = run.bonus is not None
        rows.append(
            [
                run.name,
                str(len(run.tokens)),
                str(NUM_SPECULATIVE_TOKENS) if speculative else "–",
                ("on" if run.bonus else "off") if speculative else "–",
                str(run.target_forwards),
                str(run.draft_forwards),
                times(run.tokens_per_target_forward),
                "as plain" if speculative else "",
            ]
        )
    return header, rows


def counts_note() -> str:
    """What was run."""
    return (
        f"Two decoders with random weights, target of width 4 and draft of width 2, decode greedily after {len(PROMPT)} prompt "
        "tokens, which are part of the first verification. Every pass is counted by a hook on its model; every output is checked."
    )


def device_table(answer: Demonstration) -> tuple[Sequence[str], list[list[str]]]:
    """Header and rows of what a real device makes of the counts."""
    header = ("counted in", "drafter", "τ", "R", "speedup", "80 % interval", "verdict")
    rows = []
    for each in answer.on_device:
        found = each.prediction
        bounds = Estimate(found.speedup or 0.0, found.speedup_low or 0.0, found.speedup_high or 0.0)
        rows.append(
            [
                f"{each.counts.name}, {len(each.counts.tokens)} tokens",
                each.draft,
                significant(found.mean_acceptance_length or 0.0),
                significant(found.r or 0.0),
                times(bounds.value),
                interval(bounds),
                found.verdict,
            ]
        )
    return header, rows


def device_sentences(answer: Demonstration) -> list[str]:
    """What the device table is about, and why counts are not speed."""
    small, itself = answer.on_device[0], answer.on_device[-1]
    where = f"{answer.target} in bf16 on {answer.hardware}, one sequence, context {CONTEXT_TOKENS:,} tokens, engine vllm"
    r, tau = (significant(value or 0.0) for value in (itself.prediction.r, itself.prediction.mean_acceptance_length))
    v = significant(itself.prediction.verification_cost_ratio or 0.0)
    rate = small.prediction.break_even_acceptance_rate
    needs = "no acceptance would repay it" if rate is None else f"it wins from an acceptance rate of {rate:.2f} on"
    return [
        f"On a real device: {where}.",
        "Counts are not speed. A round yields τ tokens (counted above) and costs R plain steps (priced here): γ passes of the "
        "drafter, which a count of target passes leaves out, and one pass of the target over γ + 1 tokens. Speculation wins "
        "where τ > R.",
        f"A drafter as large as the target yields all it can, τ = {tau}, at R = {r}, of which verification is {v}: "
        f"{times(itself.counts.tokens_per_target_forward)} fewer target passes are a speedup of "
        f"{times(itself.prediction.speedup or 0.0)}.",
        f"With {small.draft} a round costs {significant(small.prediction.r or 0.0)}; {needs}. Models with random weights "
        "agree by chance, trained ones by learning the same text.",
    ]


def summary(answer: Demonstration) -> dict[str, Any]:
    """The same as data."""
    return {
        "schema_version": 1,
        "seed": SEED,
        "prompt": list(PROMPT),
        "num_speculative_tokens": NUM_SPECULATIVE_TOKENS,
        "runs": [
            {
                "name": run.name,
                "tokens": list(run.tokens),
                "bonus": run.bonus,
                "target_forwards": run.target_forwards,
                "draft_forwards": run.draft_forwards,
                "tokens_per_target_forward": run.tokens_per_target_forward,
                "rounds": [{"proposed": proposed, "accepted": accepted} for proposed, accepted in run.rounds],
            }
            for run in answer.runs
        ],
        "hardware": answer.hardware,
        "target": answer.target,
        "on_device": [
            {"run": answer.runs.index(each.counts), "draft": each.draft, **_prediction_data(each.prediction)}
            for each in answer.on_device
        ],
    }


_PRICED = (
    "mean_acceptance_length", "r", "r_low", "r_high", "speedup", "speedup_low", "speedup_high", "verdict",
    "break_even_acceptance_length", "break_even_acceptance_rate", "verification_cost_ratio", "draft_share",
)  # fmt: skip


def _prediction_data(found: Prediction) -> dict[str, Any]:
    return {name: getattr(found, name) for name in _PRICED}
