"""The scenario's limits as the batching rules of one replica."""

from __future__ import annotations

from dataclasses import replace

from simulator.cost.deployment import Deployment
from simulator.scenario import PrefillInstances, Scenario
from simulator.serving import BatchingRules, no_lookahead
from simulator.speculation import READS_STATES


def batching_rules(scenario: Scenario, deployment: Deployment, drafts: int) -> BatchingRules:
    """The scenario's limits for one replica of this deployment, whose drafter takes memory from the KV pool.

    drafts: the most that a round verifies of one sequence, with a recurrent state for each.

    Limits are those of each data-parallel rank; ranks that step together are one scheduler with the room of all. A step that
    passes every pipeline stage holds the batches of all of them.
    """
    deployment = deployment.replica()
    engine, limits, beyond = deployment.engine, scenario.limits, deployment.parallelism
    ranks = beyond.data_parallel_size
    batches = ranks * beyond.microbatches(beyond.pipeline_parallel_size, engine)
    extra = engine.lookahead_extra_slots
    lookahead = no_lookahead if deployment.drafter is None else lambda gamma: gamma + extra if gamma else 0
    return BatchingRules(
        max_num_seqs=limits.max_num_seqs * ranks,
        max_num_batched_tokens=limits.max_num_batched_tokens * batches,
        max_model_len=limits.max_model_len,
        total_blocks=deployment.kv_blocks(limits.gpu_memory_utilization) * ranks,
        block_tokens=engine.block_tokens,
        lookahead_slots=lookahead,
        prefill_first=engine.prefill_first,
        chunked_prefill=engine.chunked_prefill,
        admission=engine.admission,
        most_drafts=drafts,
        prefix_caching=limits.prefix_caching,
        recomputed_blocks=engine.prefix_recomputed_blocks if deployment.method in READS_STATES else 0,
        recomputes_draft=deployment.keeps_draft_cache and not engine.prefix_cache_covers_draft,
        state_blocks=deployment.state_blocks(drafts),
        host_blocks=deployment.host_blocks(limits.swap_space_bytes) * ranks if limits.swap_space_bytes else 0,
        host_block_s=deployment.host_block_s() if limits.swap_space_bytes else 0.0,
    )


def prefill_rules(scenario: Scenario, prefill: PrefillInstances, deployment: Deployment) -> BatchingRules:
    """The same for an instance that computes prompts: it keeps no place for an answer, and moves nothing to the host."""
    rules = batching_rules(scenario, deployment, 0)
    admission = "whole_prompt" if rules.admission == "whole_request" else rules.admission
    budget = prefill.max_num_batched_tokens
    return replace(rules, max_num_batched_tokens=budget, admission=admission, host_blocks=0, host_block_s=0.0)
