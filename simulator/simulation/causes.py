"""Why speculation gained or lost, in words."""

from __future__ import annotations

from simulator.cost.round import RoundCost
from simulator.printed_numbers import significant
from simulator.simulation.variant import Variant


def cause_in_words(name: str) -> str:
    """A term of R - 1: ``draft: later_passes`` → ``later draft passes``, ``verify: layers`` → ``layers in verification``."""
    side, _, term = name.partition(": ")
    words = term.replace("_", " ")
    if side == "verify":
        return words if "overhead" in words else f"{words} in verification"
    return {
        "first pass": "the first draft pass", "later passes": "later draft passes", "launches": "launches of draft passes",
        "lookup": "n-gram look-up",
    }.get(words, f"drafting ({words})")  # fmt: skip


def causes_of(plain: Variant, variant: Variant, cost: RoundCost) -> tuple[str, ...]:
    """The two largest terms of R - 1, and what load adds: queueing, preemption, memory, prefill."""
    causes = [f"{cause_in_words(name)} {share:+.2f} plain steps per round" for name, share in cost.causes()[:2]]
    before, after = plain.summary, variant.summary
    if before.queueing_s and after.queueing_s and before.e2e_latency_s:
        change_s = after.queueing_s.mean - before.queueing_s.mean
        if abs(change_s) > 0.05 * before.e2e_latency_s.mean:
            causes.append(f"queueing {'+' if change_s > 0 else ''}{significant(change_s)} s per request")
    if after.preemptions != before.preemptions:
        causes.append(f"preemptions {before.preemptions} → {after.preemptions}")
    if after.cancelled != before.cancelled:
        causes.append(f"requests given up by clients {before.cancelled} → {after.cancelled}")
    taken = 1 - variant.kv_blocks / plain.kv_blocks
    if taken > 0.05:
        causes.append(f"the drafter takes {100 * taken:.0f} % of the KV cache")
    if variant.result.prefill_replicas and variant.saturation.prefill_share == 1:
        further = ", which speculation cannot raise" if plain.saturation.prefill_share == 1 else " with it"
        causes.append(f"the instances that compute prompts set the capacity{further}")
    if before.load.prefill_share > 0.2:
        causes.append(f"{100 * before.load.prefill_share:.0f} % of busy time is prefill, which speculation cannot shorten")
    return tuple(causes)
