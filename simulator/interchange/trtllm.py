"""TensorRT-LLM's iteration statistics (`LLM.get_stats()`, `/metrics`): one JSON object per iteration, in a list or one a line.

`specDecodingStats` counts drafts per iteration; its `draftOverhead` is drafting over iteration time: one term of R, measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from simulator.acceptance.rates import AcceptanceCounters
from simulator.interchange.observed import Collector, ObservedRun, json_objects
from simulator.spec import Problem, SpecError

FORMAT = "trtllm-stats"


def is_iteration(value: object) -> bool:
    """Whether a JSON value is one iteration's statistics."""
    return isinstance(value, dict) and "iterLatencyMS" in value and "inflightBatchingStats" in value


def read(path: str | Path) -> Iterator[ObservedRun]:
    """One run: all iterations. Those with prompt work count for acceptance, not for the step time. Raises `SpecError`."""
    found = Collector(str(path))
    rounds = accepted = drafted = seen = 0
    decode: list[tuple[float, float, float | None]] = []
    for line, value in json_objects(path):
        found.where = f"{path}:{line}"
        for each in value if isinstance(value, list) else [value]:
            if not is_iteration(each):
                raise SpecError(
                    [Problem(found.where, "", "must be iteration statistics, with iterLatencyMS and inflightBatchingStats")]
                )
            seen += 1
            counts = _counts(found, each.get("specDecodingStats"))
            rounds, accepted, drafted = rounds + counts[0], accepted + counts[1], drafted + counts[2]
            step = _decode_step(found, each)
            if step is not None:
                decode.append(step)
    found.where = str(path)
    if not seen:
        found.problem("", "must hold at least one iteration")
    found.raise_problems()
    _steps(found, decode)
    counters = None
    if rounds:
        counters = AcceptanceCounters(rounds, drafted, accepted)
        how = f"(accepted + requests) / requests over {seen} iterations"
        found.derived("mean_acceptance_length", 1 + accepted / rounds, "specDecodingStats", how)
    return iter([ObservedRun(FORMAT, str(path), found.readings, counters)])


def _counts(found: Collector, stats: object) -> tuple[int, int, int]:
    """(rounds, accepted, drafted) of an iteration; zeros without speculation."""
    if not isinstance(stats, dict):
        return 0, 0, 0
    values = tuple(stats.get(key) for key in ("numRequestsWithDraftTokens", "numAcceptedTokens", "numDraftTokens"))
    if not all(isinstance(value, int) and not isinstance(value, bool) and value >= 0 for value in values):
        found.problem("specDecodingStats", "must have whole numbers of requests, accepted and draft tokens", values)
        return 0, 0, 0
    rounds, accepted, drafted = values
    if accepted > drafted or rounds > drafted:  # type: ignore[operator]
        found.problem("specDecodingStats", "must have at least as many draft tokens as accepted ones and requests", values)
        return 0, 0, 0
    return rounds, accepted, drafted  # type: ignore[return-value]


def _decode_step(found: Collector, values: Mapping[str, Any]) -> tuple[float, float, float | None] | None:
    """(seconds, sequences, drafting share) of an iteration that only decodes."""
    batch, latency_ms = values["inflightBatchingStats"], values["iterLatencyMS"]
    if not isinstance(batch, dict) or not isinstance(latency_ms, (int, float)) or not 0 <= latency_ms < math.inf:
        found.problem("iterLatencyMS", "must be a finite number beside inflightBatchingStats", latency_ms)
        return None
    generating = batch.get("numGenRequests")
    if batch.get("numContextRequests") or not isinstance(generating, int) or generating < 1 or latency_ms == 0:
        return None
    stats = values.get("specDecodingStats")
    share = stats.get("draftOverhead") if isinstance(stats, dict) else None
    ok = isinstance(share, (int, float)) and not isinstance(share, bool) and 0 <= share <= 1
    return latency_ms / 1000, generating, float(share) if ok and share is not None else None


def _steps(found: Collector, decode: list[tuple[float, float, float | None]]) -> None:
    if not decode:
        return
    how = f"mean of {len(decode)} iterations without prompt work"
    found.derived("step_s", sum(step[0] for step in decode) / len(decode), "iterLatencyMS", f"ms / 1000, {how}")
    found.derived("concurrency_mean", sum(step[1] for step in decode) / len(decode), "numGenRequests", how)
    shares = [step[2] for step in decode if step[2] is not None]
    if shares:
        found.derived("draft_share", sum(shares) / len(shares), "draftOverhead", how)
