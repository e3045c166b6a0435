"""docs/rules_of_thumb.md is true: every number of its tables is computed anew, its verdicts hold, its Python runs.

``python -m tests.test_rules_of_thumb`` writes the tables anew.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from simulator import theory
from simulator.prediction import OperatingPoint, Prediction, predict, resolve
from simulator.spec import Document

PAGE = Path(__file__).parents[1] / "docs" / "rules_of_thumb.md"
Table = list[list[str]]
Where = tuple[str, int, int]  # configuration, batch, context
GAMMAS = range(1, 9)
TABLE = re.compile(r"(?:^\|.*\|\n)+", flags=re.MULTILINE)
CHAT, LONG = 512, 16384

HEAD_H100, HEAD_L40S, HEAD_4090 = "8B + EAGLE-3, H100", "8B + EAGLE-3, L40S", "8B + EAGLE-3, 4090"
SMALL_H100, MEDIUM_H100 = "8B + 1B, H100", "8B + 3B, H100"
LARGE, LARGE_SMALL, MIXTURE = "70B + 8B, 4 × H100", "70B + 1B, 4 × H100", "30B-A3B + EAGLE-3, H100"

PRESENCE: tuple[Where, ...] = (
    (MEDIUM_H100, 1, CHAT), (SMALL_H100, 1, CHAT), (LARGE, 1, CHAT), (LARGE_SMALL, 256, CHAT),
    (HEAD_H100, 1, CHAT), (HEAD_H100, 256, CHAT), (HEAD_L40S, 256, CHAT), (HEAD_4090, 1, LONG), (MIXTURE, 1, CHAT),
)  # fmt: skip
NEEDS: tuple[Where, ...] = (
    (HEAD_H100, 1, CHAT), (HEAD_H100, 32, CHAT), (HEAD_H100, 256, CHAT), (HEAD_L40S, 1, LONG), (HEAD_4090, 1, LONG),
    (SMALL_H100, 1, CHAT), (LARGE, 1, CHAT), (LARGE, 256, CHAT), (MIXTURE, 1, CHAT), (MIXTURE, 32, CHAT),
)  # fmt: skip
LOADS: tuple[tuple[str, int], ...] = (
    (HEAD_H100, CHAT), (HEAD_H100, LONG), (HEAD_L40S, CHAT), (HEAD_4090, CHAT), (SMALL_H100, CHAT), (LARGE, CHAT),
    (LARGE_SMALL, CHAT), (MIXTURE, CHAT),
)  # fmt: skip
BATCHES = (1, 8, 32, 64, 128, 256)
SAVINGS: tuple[Where, ...] = (
    (HEAD_H100, 1, CHAT),
    (HEAD_H100, 256, CHAT),
    (SMALL_H100, 1, CHAT),
    (LARGE, 1, CHAT),
    (MIXTURE, 1, CHAT),
)
PASSES: tuple[tuple[Where, int], ...] = (
    ((SMALL_H100, 1, CHAT), 1), ((SMALL_H100, 1, CHAT), 3), ((SMALL_H100, 1, CHAT), 8), ((SMALL_H100, 256, CHAT), 3),
    ((LARGE, 1, CHAT), 3), ((LARGE, 256, CHAT), 3), ((LARGE_SMALL, 1, CHAT), 3), ((LARGE_SMALL, 256, CHAT), 3),
)  # fmt: skip


def section(text: str, heading: str) -> str:
    _, found, after = text.partition(f"## {heading}\n")
    assert found, heading
    return after.partition("\n## ")[0]


def printed(heading: str) -> Table:
    lines = re.findall(r"^\| .* \|$", section(PAGE.read_text(encoding="utf-8"), heading), flags=re.MULTILINE)
    return [line[2:-2].split(" | ") for line in lines if not line.startswith("| ---")]


# ------------------------------------------------------------------------------------------------------------ computing


@cache
def point(where: Where) -> dict[str, Any]:
    """The fields of `predict` at a configuration of the page's first table."""
    name, batch, context = where
    rows = {row[0]: row[1:] for row in printed("Configurations")[1:]}
    hardware, devices, target, method, draft = (cell.strip("`") for cell in rows[name])
    return {
        "hardware": hardware, "tensor_parallel_size": int(devices), "engine": "vllm", "precision": "bf16", "target_model": target,
        "method": method, "draft_model": draft, "batch": batch, "context_len": context,
    }  # fmt: skip


@cache
def at(where: Where, gamma: int, acceptance_rate: float = 0.7) -> Prediction:
    found = predict(**point(where), num_speculative_tokens=gamma, acceptance_rate=acceptance_rate)
    assert found.status == "ok", found.reason
    return found


def best(where: Where, acceptance_rate: float) -> tuple[int, Prediction]:
    """The γ of 1..8 that gains most."""
    return max(((gamma, at(where, gamma, acceptance_rate)) for gamma in GAMMAS), key=lambda pair: pair[1].speedup or 0.0)


def times_faster(where: Where) -> float:
    """One plain step over one draft pass, mean of a round of three."""
    found = at(where, 3)
    assert found.draft_share
    assert found.r
    return 3 / (found.draft_share * found.r)


def needed(where: Where, gamma: int) -> float | None:
    return at(where, gamma).break_even_acceptance_rate


def accepted_of_five(where: Where, rate: float) -> Prediction:
    """Speedup when `rate` of five drafted tokens are accepted: τ = 1 + 5·rate."""
    return predict(**point(where), num_speculative_tokens=5, mean_acceptance_length=1 + 5 * rate)


def round_cost(where: Where, gamma: int, rule: str) -> float:
    """R where the draft's cache follows by another rule than the engine's, at an acceptance rate of 0.7."""
    given = OperatingPoint(**point(where), num_speculative_tokens=gamma)
    deployment = resolve(given, Document("", {})).deployment
    changed = replace(deployment, engine=deployment.engine.model_copy(update={"draft_cache": rule}))
    return changed.pricer(full_acceptance_rate=0.7**gamma).round(gamma, where[1], where[2]).r


# ------------------------------------------------------------------------------------------------------------- printing


def gain(found: Prediction) -> str:
    """A speedup; ``~`` where its 80 % interval holds 1; ``no room`` where the KV cache cannot hold the batch."""
    return f"{'~' if found.verdict == 'close' else ''}{found.speedup:.2f}" if found.verdict else "no room"


def best_gain(where: Where, acceptance_rate: float) -> str:
    gamma, found = best(where, acceptance_rate)
    return f"{gain(found)} ({gamma})" if found.verdict else gain(found)


def percent(rate: float | None) -> str:
    return "never" if rate is None else f"{100 * rate:.0f} %"


def cells(where: Where) -> list[str]:
    return [where[0], str(where[1]), str(where[2])]


START = ["configuration", "batch", "context"]


def faster_table() -> Table:
    head = [*START, "draft faster by", "speedup (γ), α = 0.5", "α = 0.7", "α = 0.9"]
    return [head] + [
        [*cells(where), f"{times_faster(where):.1f}×", *(best_gain(where, rate) for rate in (0.5, 0.7, 0.9))]
        for where in PRESENCE
    ]


def half_table() -> Table:
    head = [*START, "α*, γ = 1", "γ = 3", "γ = 5", "γ = 8", "accepted/drafted, γ = 5"]
    return [head] + [
        [*cells(where), *(percent(needed(where, gamma)) for gamma in (1, 3, 5, 8)), percent(drafted_share(where))]
        for where in NEEDS
    ]


def drafted_share(where: Where) -> float:
    r = at(where, 5).r
    assert r is not None
    return theory.break_even_draft_acceptance_rate(r, 5)


def third_table() -> Table:
    head = [*START, "best (γ), α = 0.3", "γ = 3", "γ = 5", "γ = 8", "30 % of 5 drafted"]
    return [head] + [
        [
            *cells(where),
            best_gain(where, 0.3),
            *(gain(at(where, gamma, 0.3)) for gamma in (3, 5, 8)),
            gain(accepted_of_five(where, 0.3)),
        ]
        for where in NEEDS
    ]


def batch_table() -> Table:
    head = ["configuration", "context", *(f"batch {batch}" for batch in BATCHES)]
    return [head] + [
        [name, str(context), *(best_gain((name, batch, context), 0.7) for batch in BATCHES)] for name, context in LOADS
    ]


def savings_table() -> Table:
    head = ["γ", "target passes saved (τ)", *(f"{name}, batch {batch}" for name, batch, _ in SAVINGS)]
    return [head] + [
        [
            str(gamma),
            "–".join(f"{theory.mean_acceptance_length(rate, gamma):.1f}" for rate in (0.7, 0.9)),
            *("–".join(f"{at(where, gamma, rate).speedup:.1f}" for rate in (0.7, 0.9)) for where in SAVINGS),
        ]
        for gamma in (1, 2, 3, 5, 8)
    ]


def passes_table() -> Table:
    head = [*START, "γ", "R, γ with catch-up", "R, γ padded", "R, γ + 1 passes", "last over first"]
    rows = []
    for where, gamma in PASSES:
        catch_up, padded, extra = (round_cost(where, gamma, rule) for rule in ("catch_up", "padded", "extra_pass"))
        costs = [f"{r:.2f}" for r in (catch_up, padded, extra)]
        rows.append([*cells(where), str(gamma), *costs, f"+{100 * (extra / catch_up - 1):.0f} %"])
    return [head, *rows]


FASTER, HALF, THIRD = (
    "“The draft must be at least 5× faster”",
    "“Acceptance must be above 50 %”",
    "“Below 30 % acceptance it almost surely loses”",
)
BATCH, SAVES, EXTRA = (
    "“The batch must not be large”",
    "“70–90 % acceptance saves 2–3× target passes”",
    "“k + 1 draft passes”, or γ with catch-up",
)
TABLES: dict[str, Callable[[], Table]] = {
    FASTER: faster_table, HALF: half_table, THIRD: third_table, BATCH: batch_table, SAVES: savings_table, EXTRA: passes_table,
}  # fmt: skip


@pytest.mark.parametrize("heading", TABLES)
def test_every_number_printed_is_what_the_simulator_says(heading: str) -> None:
    assert printed(heading) == TABLES[heading]()


def test_the_python_shown_prints_what_its_comments_say(capsys: pytest.CaptureFixture[str]) -> None:
    code = "".join(re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL))
    exec(compile(code, str(PAGE), "exec"), {})
    assert capsys.readouterr().out.split() == " ".join(re.findall(r"  # (.*)$", code, flags=re.MULTILINE)).split()


# ------------------------------------------------------------------------------------------------------------- verdicts


def verdicts(places: tuple[Where, ...], acceptance_rate: float) -> list[str]:
    return [best(where, acceptance_rate)[1].verdict for where in places]


def interval(where: Where, gamma: int) -> float:
    found = at(where, gamma)
    assert found.r_high
    assert found.r
    return found.r_high / found.r - 1


def test_intervals_are_as_wide_as_the_page_says() -> None:
    places = {*PRESENCE, *NEEDS, *SAVINGS, *(where for where, _ in PASSES)}
    places |= {(name, batch, context) for name, context in LOADS for batch in BATCHES}
    widths = sorted(interval(where, gamma) for where in places for gamma in GAMMAS if at(where, gamma).verdict)
    assert [percent(width) for width in (widths[0], widths[len(widths) // 2], widths[-1])] == ["5 %", "31 %", "62 %"]
    said = [warning for where in NEEDS for gamma in GAMMAS for warning in at(where, gamma).warnings]
    assert all(warning.startswith("never measured against") for warning in said)


def test_a_draft_slower_than_five_times_can_win_and_one_far_faster_can_fail_to() -> None:
    assert theory.break_even_acceptance_rate(1 + 1 / 5, 1) == pytest.approx(0.2)
    assert times_faster((MEDIUM_H100, 1, CHAT)) < 2
    assert times_faster((SMALL_H100, 1, CHAT)) < 5
    slow = (best((MEDIUM_H100, 1, CHAT), 0.7)[1], best((SMALL_H100, 1, CHAT), 0.5)[1])
    assert [found.verdict for found in slow] == ["close", "close"]
    assert [found.speedup for found in slow] == pytest.approx([1.10, 1.17], abs=0.02)
    fast = ((HEAD_L40S, 256, CHAT), (HEAD_4090, 1, LONG))
    assert all(times_faster(where) > 16 for where in fast)
    assert verdicts(fast, 0.5) == ["close", "close"]


def test_a_faster_draft_model_gains_more_at_batch_one_and_is_less_faster_under_load() -> None:
    ladder = [(MEDIUM_H100, 1, CHAT), (SMALL_H100, 1, CHAT), (LARGE, 1, CHAT), (LARGE_SMALL, 1, CHAT)]
    gains = [best(where, 0.7)[1].speedup or 0.0 for where in ladder]
    assert sorted(ladder, key=times_faster) == ladder
    assert gains == sorted(gains)
    assert gains[:3] == pytest.approx([1.1, 1.5, 1.5], abs=0.1)
    assert times_faster((LARGE, 256, CHAT)) < times_faster((LARGE, 1, CHAT))


def test_half_is_right_for_slow_drafts_too_strict_for_heads_and_too_lax_under_load() -> None:
    def rates(*places: Where, gammas: tuple[int, ...] = (1, 3, 5, 8)) -> list[float]:
        return [1.0 if (rate := needed(where, gamma)) is None else rate for where in places for gamma in gammas]

    assert all(0.35 < rate < 0.6 for rate in rates((SMALL_H100, 1, CHAT), (LARGE, 1, CHAT), gammas=(3, 5)))
    assert max(rates((HEAD_H100, 1, CHAT), (HEAD_H100, 32, CHAT), (MIXTURE, 32, CHAT))) < 0.45
    assert min(rates((HEAD_H100, 256, CHAT), (LARGE, 256, CHAT), gammas=(3, 5, 8))) > 0.59
    walks = ((HEAD_4090, 1, LONG), (HEAD_L40S, 1, LONG))
    assert min(rates(*walks, gammas=(1,))) > 0.55
    for where in NEEDS:
        found = rates(where)
        assert (found == sorted(found)) == (where not in walks)
        assert drafted_share(where) < rates(where, gammas=(5,))[0]


def test_thirty_percent_wins_where_rounds_are_cheap_and_loses_elsewhere() -> None:
    heads = ((HEAD_H100, 1, CHAT), (HEAD_H100, 32, CHAT))
    assert {at(where, gamma, 0.3).verdict for where in heads for gamma in (2, 3)} == {"win"}
    assert {at((MIXTURE, 32, CHAT), gamma, 0.3).verdict for gamma in (1, 2, 3)} == {"win"}
    models = ((SMALL_H100, 1, CHAT), (LARGE, 1, CHAT))
    assert {at(where, gamma, 0.3).verdict for where in models for gamma in (5, 8)} == {"lose"}
    assert all((at(where, 3, 0.3).speedup or 0.0) < 0.9 for where in models)
    assert {at(where, gamma, 0.3).verdict for where in NEEDS if where[1] == 256 for gamma in GAMMAS} <= {"lose", "close"}
    assert verdicts(((HEAD_4090, 1, LONG), (HEAD_L40S, 1, LONG)), 0.3) == ["lose", "close"]


def test_thirty_percent_of_five_drafted_mostly_gains() -> None:
    found = {where: accepted_of_five(where, 0.3).verdict for where in NEEDS}
    assert sum((accepted_of_five(where, 0.3).speedup or 0.0) > 1 for where in NEEDS) > len(NEEDS) / 2
    assert [*found.values()].count("win") == 4
    assert {where for where, verdict in found.items() if verdict == "lose"} == {where for where in NEEDS if where[1] == 256}


def test_batch_lowers_gain_and_best_gamma_of_dense_targets_at_short_context() -> None:
    dense = [name for name, context in LOADS if context == CHAT and name != MIXTURE]
    full = []
    for name in dense:
        found = [best((name, batch, CHAT), 0.7) for batch in BATCHES]
        served = [p.speedup or 0.0 for _, p in found if p.verdict]
        assert all(later < 1.03 * earlier for earlier, later in pairwise(served))
        assert [gamma for gamma, p in found if p.verdict] == sorted((gamma for gamma, p in found if p.verdict), reverse=True)
        if found[-1][1].verdict:
            full.append(found[-1][1])
            assert found[-1][0] in (1, 2)
    assert [p.verdict for p in full].count("close") == 4
    assert len(full) == 5
    for name in (HEAD_H100, HEAD_L40S):
        first, last = (best((name, batch, CHAT), 0.7)[1].speedup or 0.0 for batch in (1, 256))
        assert last - 1 < (first - 1) / 4
        assert at((name, 256, CHAT), best((name, 1, CHAT), 0.7)[0]).verdict in ("lose", "close")


def test_batch_does_not_lower_the_gain_of_the_mixture_nor_at_long_context() -> None:
    gains = {batch: best((MIXTURE, batch, CHAT), 0.7)[1].speedup or 0.0 for batch in BATCHES[:-1]}
    assert max(gains, key=gains.__getitem__) == 64
    assert gains[128] > gains[1]
    long = [best((HEAD_H100, batch, LONG), 0.7)[1] for batch in BATCHES]
    assert (long[1].speedup or 0.0) >= (long[0].speedup or 0.0)
    assert [p.verdict for p in long[2:]] == [""] * 4


def test_passes_saved_are_two_to_three_at_short_gamma_and_time_saved_is_less() -> None:
    saved = {gamma: [theory.mean_acceptance_length(rate, gamma) for rate in (0.7, 0.9)] for gamma in (1, 2, 3, 8)}
    assert max(saved[1]) < 2
    assert min(saved[2] + saved[3]) > 2
    assert max(saved[2] + saved[3]) < 3.5
    assert 6 < max(saved[8]) < 6.2
    costly = 0
    for where in SAVINGS:
        assert all(
            (at(where, gamma, rate).speedup or 0.0) < saved[gamma][i] for gamma in saved for i, rate in enumerate((0.7, 0.9))
        )
        costly += (at(where, 8).speedup or 0.0) < (at(where, 3).speedup or 0.0)
    assert costly == 4


def test_an_extra_pass_matters_for_slow_drafts_and_padding_only_under_load() -> None:
    def ratio(where: Where, gamma: int, rule: str) -> float:
        return round_cost(where, gamma, rule) / round_cost(where, gamma, "catch_up")

    added = {(where, gamma): ratio(where, gamma, "extra_pass") for where, gamma in PASSES}
    slow = [added[(SMALL_H100, 1, CHAT), 1], added[(SMALL_H100, 1, CHAT), 3], added[(LARGE, 1, CHAT), 3]]
    others = [value for value in added.values() if value not in slow]
    assert min(slow) > 1.1
    assert max(others) < 1.1
    rates = [
        theory.break_even_acceptance_rate(round_cost((SMALL_H100, 1, CHAT), 1, rule), 1) for rule in ("catch_up", "extra_pass")
    ]
    assert [percent(rate) for rate in rates] == ["27 %", "51 %"]
    for where, gamma in PASSES:
        share = (ratio(where, gamma, "padded") - 1) / (added[where, gamma] - 1)
        assert share < 0.05 if where[1] == 1 else share > 0.35
    busy = (LARGE_SMALL, 256, CHAT)
    assert ratio(busy, 3, "padded") > added[busy, 3]


def update() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for heading, table in TABLES.items():
        old = section(text, heading)
        head, *rows = table()
        ruled = [head, ["---", *("--:" for _ in head[1:])], *rows]
        new = "".join(f"| {' | '.join(row)} |\n" for row in ruled)
        text = text.replace(f"## {heading}\n{old}", f"## {heading}\n{re.sub(TABLE, new, old, count=1)}")
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    update()
