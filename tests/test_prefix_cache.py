"""The prefix cache: against a block-by-block reference, closed forms of what it saves, and what it does to drafts."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from simulator.scenario import scenario_of
from simulator.serving import BatchingRules, ServingResult, no_lookahead, serve, summarise
from simulator.serving.kv_cache import KVCache
from simulator.serving.prefix_cache import NOTHING, block_runs
from simulator.serving.router import in_turn
from simulator.simulation import Server, batching_rules, simulate
from simulator.spec import Document
from simulator.workload import Content, Request, content_of, requests_of
from tests.test_serving import Accepts, Constant

TRACES = Path(__file__).parents[2] / "shared" / "traces"
BLOCK = 4
ROOMY = BatchingRules(
    max_num_seqs=64, max_num_batched_tokens=64, max_model_len=4000, total_blocks=100_000, block_tokens=BLOCK,
    lookahead_slots=no_lookahead, prefix_caching=True,
)  # fmt: skip


def blocks_of(content: Content) -> list[tuple[tuple[int, int], ...]]:
    """Each full block of a text by all tokens up to its end, as (text, place)."""
    tokens = [(text, place) for text, count in content for place in range(count)]
    return [tuple(tokens[: end * BLOCK]) for end in range(1, len(tokens) // BLOCK + 1)]


@dataclass
class Reference:
    """A pool of single blocks, each known by all that comes before it; what a textbook would write, however slow."""

    total: int
    readers: dict[tuple[Any, ...], set[int]] = field(default_factory=dict)
    released: dict[tuple[Any, ...], int] = field(default_factory=dict)
    own: dict[int, int] = field(default_factory=dict)
    shared: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)

    @property
    def free(self) -> int:
        return self.total - sum(self.own.values()) - sum(bool(readers) for readers in self.readers.values())

    def hit(self, content: Content, most: int) -> int:
        found = 0
        while found < most and blocks_of(content)[found] in self.readers:
            found += 1
        return found

    def read(self, owner: int, blocks: Sequence[tuple[Any, ...]]) -> None:
        for block in blocks:
            self.readers.setdefault(block, set()).add(owner)
            self.released.setdefault(block, 0)
        self.shared.setdefault(owner, []).extend(blocks)

    def let_go(self, owner: int, now: int) -> None:
        for block in self.shared.pop(owner, []):
            self.readers[block].discard(owner)
            self.released[block] = now
        self.own.pop(owner)

    def trim(self) -> None:
        while True:
            spare = [block for block, readers in self.readers.items() if not readers]
            if len(spare) <= self.free:
                return
            leaves = [b for b in spare if not any(len(o) > len(b) and o[: len(b)] == b for o in self.readers)]
            oldest = min(leaves, key=lambda block: (self.released[block], -len(block)))
            del self.readers[oldest]


@pytest.mark.parametrize("seed", range(12))
def test_the_tree_keeps_and_drops_the_blocks_that_single_blocks_would(seed: int) -> None:
    rng = np.random.default_rng([seed, *b"prefix cache"])
    total = int(rng.choice([12, 30, 60]))
    cache, reference = KVCache(total, BLOCK, prefix_caching=True), Reference(total)
    here: dict[int, tuple[Content, int]] = {}
    hits = 0
    for owner in range(1, 150):
        if here and (rng.random() < 0.5 or len(here) > 5):
            leaving = int(rng.choice(list(here)))
            cache.release(leaving)
            reference.let_go(leaving, owner)
            del here[leaving]
        content = tuple((int(rng.integers(0, 4)), int(rng.integers(1, 17))) for _ in range(rng.integers(1, 4)))
        tokens = sum(count for _, count in content)
        runs, most = block_runs(content, BLOCK), (tokens - 1) // BLOCK
        found = cache.find(runs, most)
        assert found.blocks == reference.hit(content, most)
        hits += found.blocks
        needed = math.ceil(tokens / BLOCK)
        if cache.admit(owner, tokens, found):
            reference.read(owner, blocks_of(content)[: found.blocks])
            reference.own[owner] = needed - found.blocks
            reference.trim()
            full = tokens // BLOCK
            cache.publish(owner, runs, tokens)
            reference.read(owner, blocks_of(content)[found.blocks : full])
            reference.own[owner] = needed - full
            reference.trim()
            here[owner] = content, tokens
        cache.check()
        assert cache.free_blocks == reference.free
        assert cache.prefixes is not None
        assert cache.prefixes.spare_blocks == sum(not readers for readers in reference.readers.values())
    assert hits > 50


def test_blocks_are_dropped_in_the_order_in_which_they_were_let_go_whatever_their_requests() -> None:
    cache = KVCache(4, BLOCK, prefix_caching=True)
    texts = {owner: block_runs(((owner, BLOCK),), BLOCK) for owner in (1, 2)}
    for owner, runs in texts.items():
        assert cache.admit(owner, BLOCK, cache.find(runs, 1))
        cache.publish(owner, runs, BLOCK)
    cache.release(2)
    cache.release(1)
    assert cache.admit(3, 3 * BLOCK, NOTHING)
    assert [cache.find(runs, 1).blocks for runs in texts.values()] == [1, 0]


def run(requests: Sequence[Request], rules: BatchingRules = ROOMY, **more: Any) -> ServingResult:
    results = [
        serve(requests, rules, Constant(), lambda _: Accepts(), lambda _: 0, readable=readable, **more)
        for readable in (False, True)
    ]
    assert repr(results[0].records) == repr(results[1].records)
    return results[1]


def prefilled(result: ServingResult) -> int:
    return int(result.steps.column("prefill_tokens").sum())


def test_with_room_for_all_a_shared_prompt_is_computed_once() -> None:
    """n prompts of S shared and u own tokens: n·(S + u) less (n - 1) times the whole blocks of S."""
    shared, own, count = 30, 9, 50
    requests = [Request(i, 10.0 * i, shared + own, 5, content_of(shared, 1 + i, shared + own, 5)) for i in range(count)]
    expected = count * (shared + own) - (count - 1) * (shared // BLOCK) * BLOCK
    assert prefilled(run(requests)) == expected
    burst = [replace(request, arrival_s=0.0) for request in requests]
    assert prefilled(run(burst)) == expected  # also where all are there at once: a block can be read by the step that computes it
    summary = summarise(run(requests))
    assert summary.prefix_hit_rate == pytest.approx(1 - expected / (count * (shared + own)))
    assert prefilled(run(requests, replace(ROOMY, prefix_caching=False))) == count * (shared + own)


def test_the_same_prompt_again_computes_its_last_token_at_least() -> None:
    again = [Request(i, 100.0 * i, 16, 3, ((1, 19),)) for i in range(3)]
    assert [record.cached_tokens for record in run(again).records] == [0, 12, 12]
    longer = [Request(i, 100.0 * i, 18, 3, ((1, 21),)) for i in range(3)]
    assert [record.cached_tokens for record in run(longer).records] == [0, 16, 16]


def test_a_session_computes_each_of_its_tokens_once_up_to_whole_blocks() -> None:
    """Turn k finds the whole blocks of all that was said and answered, but the last token, which was never fed back."""
    said, answered, turns = 10, 7, 6
    requests = []
    for turn in range(turns):
        prompt = (turn + 1) * said + turn * answered
        content = ((1, prompt + answered),)
        requests.append(Request(turn, 0.0, prompt, answered, content, turn - 1 if turn else None, 2.5))
    result = run(requests)
    found = [(turn * (said + answered) - 1) // BLOCK * BLOCK for turn in range(1, turns)]
    assert [record.cached_tokens for record in result.records] == [0, *found]
    for before, record in zip(result.records[:-1], result.records[1:], strict=True):
        assert record.arrival_s == (before.finish_s or 0.0) + 2.5


def test_a_session_stays_on_the_replica_that_has_its_prefix() -> None:
    turns = [Request(i, 0.0, 20 * (1 + i % 3), 5, None, i - 1 if i % 3 else None) for i in range(12)]
    dealt = in_turn(turns, 2)
    assert [[request.request_id for request in theirs] for theirs in dealt] == [[0, 1, 2, 6, 7, 8], [3, 4, 5, 9, 10, 11]]
    assert [len(theirs) for theirs in in_turn(turns[2:], 2)] == [4, 6]  # a turn whose predecessor is elsewhere is one for itself
    assert len(run(turns[2:]).records) == 10


def test_scarce_blocks_lose_what_was_used_longest_ago() -> None:
    """Two texts that do not fit together take turns: of the one used longest ago, the end goes first."""
    texts = [1, 1, 2, 2, 1, 1]
    requests = [Request(i, 100.0 * i, 41, 1, ((text, 42),)) for i, text in enumerate(texts)]
    small = replace(ROOMY, total_blocks=13)
    assert [record.cached_tokens for record in run(requests, small).records] == [0, 40, 0, 40, 8, 40]
    assert [record.cached_tokens for record in run(requests).records] == [0, 40, 0, 40, 40, 40]


def test_a_preempted_prompt_finds_its_own_blocks_again() -> None:
    requests = [Request(i, 0.0, 20, 60, ((1 + i, 80),)) for i in range(4)]
    rules = replace(ROOMY, total_blocks=45)
    cached, plain = run(requests, rules), run(requests, replace(rules, prefix_caching=False))
    assert sum(record.preemptions for record in cached.records) > 0
    assert sum(record.cached_tokens for record in cached.records) > 0
    assert prefilled(cached) < prefilled(plain)


# -------------------------------------------------------------------------------------------------------------- drafters


def deployed(engine: str, method: str, **limits: Any) -> Server:
    speculation = {"method": method, "num_speculative_tokens": 3}
    if method == "draft_model":
        speculation["drafter"] = "meta-llama/Llama-3.2-1B-Instruct"
    data: dict[str, Any] = {
        "hardware": "h100_sxm", "engine": engine, "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
        "speculation": speculation, "acceptance": {"acceptance_rate": 0.7}, "limits": limits,
        "workload": {
            "arrivals": {"process": "constant", "rate_per_s": 2.0}, "lengths": {"prompt": 1024, "output": 20},
            "shared_prefix_tokens": 1000, "num_requests": 10,
        },
    }  # fmt: skip
    asked = scenario_of(Document("shared", data, {}))
    return Server.of(asked, asked.shapes[0])


@pytest.mark.parametrize(
    ("engine", "method", "blocks"),
    [("vllm", "eagle3", 61), ("vllm", "draft_model", 62), ("vllm", "ngram", 62)],
)
def test_drafters_that_read_the_targets_states_lose_the_last_block_that_was_found(engine: str, method: str, blocks: int) -> None:
    server = deployed(engine, method)
    result = server.run(tuple(_requests(server)))
    assert [record.cached_tokens for record in result.records] == [0] + [16 * blocks] * 9


def test_a_repeated_prompt_of_large_blocks_finds_one_less_under_mtp() -> None:
    """Qwen3.5-35B-A3B on vLLM, whose blocks are aligned to 16k: 32,768 tokens found again without MTP, 16,384 with it
    (vllm-project/vllm#38182)."""
    twice = [Request(i, 1000.0 * i, 40_000, 2, ((1, 40_002),)) for i in range(2)]
    large = replace(ROOMY, block_tokens=16384, max_model_len=10**5)
    assert run(twice, large).records[1].cached_tokens == 32768
    assert run(twice, replace(large, recomputed_blocks=1)).records[1].cached_tokens == 16384


def test_a_target_with_recurrent_states_is_told_to_find_less() -> None:
    data: dict[str, Any] = {
        "hardware": "h200_sxm", "engine": "vllm", "target": {"model": "Qwen/Qwen3.5-9B"},
        "workload": {
            "arrivals": {"process": "constant", "rate_per_s": 2.0}, "lengths": {"prompt": 1024, "output": 20},
            "shared_prefix_tokens": 1000, "num_requests": 10,
        },
    }  # fmt: skip
    assert any("recurrent states at every block" in warning for warning in scenario_of(Document("hybrid", data, {})).warnings)


def test_a_draft_whose_cache_keeps_nothing_takes_in_the_whole_prompt() -> None:
    """The first token then waits for the draft's pass over all of it, as without any prefix cache; the target's is spared."""
    kept = deployed("vllm", "draft_model")
    engine = kept.deployment.engine.model_copy(update={"prefix_cache_covers_draft": False})
    apart = replace(kept, deployment=replace(kept.deployment, engine=engine))
    assert (batching_rules(kept.scenario, kept.deployment, 0).recomputes_draft, apart.rules.recomputes_draft) == (False, True)
    draft_s, target_s, ttft_s = {}, {}, {}
    for name, server in (("kept", kept), ("apart", apart), ("none", deployed("vllm", "draft_model", prefix_caching=False))):
        result = server.run(tuple(_requests(server)))
        draft_s[name], target_s[name] = (result.term_seconds[term] for term in ("prefill_draft", "prefill"))
        ttft_s[name] = float(np.mean(result.records.ttft_s[1:]))
        readable = replace(server, readable=True).run(tuple(_requests(server)))
        assert repr(readable.records) == repr(result.records)
    assert draft_s["kept"] < draft_s["apart"]
    assert draft_s["apart"] == pytest.approx(draft_s["none"])
    assert target_s["kept"] == pytest.approx(target_s["apart"])
    assert target_s["apart"] < target_s["none"]
    assert ttft_s["kept"] < ttft_s["apart"] < ttft_s["none"]


def _requests(server: Server) -> list[Request]:
    prompt, output = 1024, 20
    return [Request(i, 0.5 * i, prompt, output, content_of(1000, 1 + i, prompt, output)) for i in range(10)]


def test_the_run_says_how_much_was_found() -> None:
    server = deployed("vllm", "eagle3")
    result = simulate(server.scenario)
    assert result.plain.summary.prefix_hit_rate == pytest.approx(9 * 62 * 16 / (10 * 1024))
    assert result.comparisons[0].variant.summary.prefix_hit_rate == pytest.approx(9 * 61 * 16 / (10 * 1024))


# ---------------------------------------------------------------------------------------------------------- real traffic


def recorded(name: str, count: int | None = None, **changes: Any) -> Server:
    """An H100 server under a recorded trace; skips where it is not present."""
    path = TRACES / name
    if not path.exists():
        pytest.skip("request traces lie outside the project")
    data: dict[str, Any] = {
        "hardware": "h100_sxm", "engine": "vllm", "target": {"model": "meta-llama/Llama-3.1-8B-Instruct"},
        "workload": {"arrivals": {"process": "trace"}, "requests": {"trace": str(path)}, "num_requests": count}, **changes,
    }  # fmt: skip
    asked = scenario_of(Document("recorded", data, {}))
    return Server.of(asked, asked.shapes[0] if asked.shapes else None)


def arriving(server: Server) -> tuple[Request, ...]:
    return requests_of(server.scenario.file.workload, 1, server.scenario.source)


def test_with_room_for_all_mooncakes_conversations_find_what_their_hash_ids_share() -> None:
    """Each prompt finds its longest beginning that came before, in whole blocks, but its last token; counted here from the file."""
    requests = [replace(r, output_tokens=1) for r in arriving(recorded("mooncake_conversation_trace.jsonl", 3000))]
    seen: dict[tuple[int, int], int] = {}
    expected = []
    lines = (TRACES / "mooncake_conversation_trace.jsonl").read_text().splitlines()[:3000]
    for line in map(json.loads, lines):
        node = found = 0
        for place, one in enumerate(line["hash_ids"]):
            tokens = min(512, line["input_length"] - 512 * place)
            if (node, one) in seen and found == 512 * place:
                found += tokens
            node = seen.setdefault((node, one), len(seen) + 1)
        expected.append(min(found // 16, (line["input_length"] - 1) // 16) * 16)
    rules = replace(
        ROOMY, max_num_batched_tokens=10**7, max_model_len=10**6, total_blocks=10**7, block_tokens=16, max_num_seqs=10**4
    )
    result = serve(requests, rules, Constant(0.001), lambda _: Accepts(), lambda _: 0)
    assert result.records.column("cached_tokens").tolist() == expected
    assert sum(expected) > 0.2 * sum(request.prompt_tokens for request in requests)


@pytest.mark.parametrize(("name", "share"), [("conversation", 0.366), ("synthetic", 0.640)])
def test_with_room_for_all_whole_traces_reuse_the_share_of_blocks_that_is_known_of_them(name: str, share: float) -> None:
    """Blocks of 512 tokens seen before at the beginning of a prompt; the last block of a repeated prompt is computed again."""
    requests = [replace(r, output_tokens=1) for r in arriving(recorded(f"mooncake_{name}_trace.jsonl"))]
    rules = replace(
        ROOMY, max_num_batched_tokens=10**7, max_model_len=10**6, total_blocks=10**8, block_tokens=512, max_num_seqs=10**4
    )
    result = serve(requests, rules, Constant(0.001), lambda _: Accepts(), lambda _: 0)
    blocks = sum(math.ceil(request.prompt_tokens / 512) for request in requests)
    assert result.records.column("cached_tokens").sum() / 512 / blocks == pytest.approx(share, abs=0.003)


SPECULATING = {"speculation": {"method": "eagle3", "num_speculative_tokens": 3}, "acceptance": {"acceptance_rate": 0.7}}


@pytest.mark.parametrize(
    ("name", "devices"),
    [
        ("AzureLLMInferenceTrace_conv.csv", 1), ("AzureLLMInferenceTrace_code.csv", 1), ("mooncake_synthetic_trace.jsonl", 4),
        ("mooncake_conversation_trace.jsonl", 4),
    ],
)  # fmt: skip
def test_a_recorded_hour_is_served_to_its_end_and_both_engines_agree(name: str, devices: int) -> None:
    changes = {**SPECULATING, "parallel": {"tensor_parallel_size": devices}}
    server = recorded(name, **changes)
    requests = arriving(server)
    result = server.run(requests)
    summary = summarise(result)
    assert summary.finished + sum(summary.rejected.values()) == len(requests)
    assert set(summary.rejected) <= {"longer than max_model_len"}
    some = result.records.served_by_arrival().take(np.arange(0, summary.finished, 97))
    assert all(sum(record.emission_tokens) == record.output_tokens for record in some)
    asked, found = (int(result.records.served_by_arrival().column(column).sum()) for column in ("prompt_tokens", "cached_tokens"))
    assert int(result.steps.column("prefill_tokens").sum()) + found == asked or summary.preemptions
    assert (found > 0) == name.startswith("mooncake")
    first = requests[:150]
    assert repr(server.run(first).records) == repr(replace(server, readable=True).run(first).records)
