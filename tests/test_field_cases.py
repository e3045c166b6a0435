"""Ten deployments that people measured and reported (D1-D10): the sign of the effect, and R, the round in plain steps.

Numbers are the reporters'; R follows from them as τ · plain / speculative rate. Only D8 and D9 are held out: constants of engines and
layers were fitted on a table that holds D1 to D4, D6, D7 and D10, with the row laws of llama.cpp and MLX on D7 and D5
(docs/accuracy.md gives errors with each family left out).
Qwen3.6-27B and Qwen3.8-27B have the shape of Qwen3.5-27B, Qwen3.6-35B-A3B that of Qwen3.5-35B-A3B, DeepSeek-R1 that of DeepSeek-V3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache
from typing import Any

import pytest

from simulator import predict
from simulator.prediction import Prediction

R_TOLERANCE = 0.20


@dataclass(frozen=True)
class Run:
    """One measured run. thread: where it was reported. τ with the bonus token; speedup: spec. over plain decode rate."""

    id: str
    thread: str
    mean_acceptance_length: float
    speedup: float
    point: tuple[tuple[str, Any], ...]

    @property
    def r(self) -> float:
        return self.mean_acceptance_length / self.speedup


def run(id: str, thread: str, mean_acceptance_length: float, speedup: float, **point: Any) -> Run:
    return Run(id, thread, mean_acceptance_length, speedup, tuple(point.items()))


def d1() -> list[Run]:
    """Llama-3.1-8B, one H100, vLLM V1 of mid-2025: plain 7.07 ms per token; τ and ms per token by γ."""
    measured = {
        "eagle": ((2.10, 4.37), (2.29, 4.29), (2.39, 4.48), (2.43, 4.71), (2.45, 4.94), (2.47, 5.20)),
        "eagle3": ((2.36, 4.32), (2.79, 4.09), (3.08, 4.05), (3.32, 4.13), (3.46, 4.20), (3.54, 4.29)),
    }
    common = {"hardware": "h100_sxm", "engine": "vllm_2025", "target_model": "meta-llama/Llama-3.1-8B-Instruct"}
    return [
        run(
            f"D1-{method}-{gamma}", "vllm-project/vllm#20780", tau, 7.07 / spec_ms,
            **common, method=method, num_speculative_tokens=gamma, batch=1, context_len=300, precision="bf16",
        )
        for method, rows in measured.items()
        for gamma, (tau, spec_ms) in enumerate(rows, start=2)
    ]  # fmt: skip


def d2() -> list[Run]:
    """DeepSeek-R1 FP8 on eight GPUs (the H200 is the least that holds it), MTP, τ ≈ 1.82: ms per token 55.47 → 33.99 at one request
    per second, 57.58 → 48.8 at two. Batches are not stated: a small and a larger one."""
    point = {"hardware": "h200_sxm", "engine": "vllm_v0", "target_model": "deepseek-ai/DeepSeek-V3", "precision": "fp8"}
    parallel = {"tensor_parallel_size": 8, "draft_tensor_parallel_size": 1, "method": "mtp", "num_speculative_tokens": 1}
    return [
        run(f"D2-{batch}", "vllm-project/vllm#12755", 1.8165, speedup, **point, **parallel, batch=batch, context_len=1000)
        for batch, speedup in ((1, 55.47 / 33.99), (4, 57.58 / 48.8))
    ]


def d3() -> list[Run]:
    """A mixture of experts with 3B active on Strix Halo, 24.6 tokens/s plain. Acceptance is not stated: 0.8 of the drafts, as MTP layers
    show elsewhere (0.81 to 0.823 in D2), is assumed for every position."""
    rates = {1: 28.2, 2: 30.9, 3: 29.9, 4: 31.2, 5: 27.5, 6: 26.8}
    point = {"hardware": "Strix Halo", "engine": "vllm", "target_model": "Qwen/Qwen3.5-35B-A3B", "precision": "AWQ 4-bit"}
    return [
        run(
            f"D3-{gamma}", "kyuz0/amd-strix-halo-vllm-toolboxes#53", sum(0.8**depth for depth in range(gamma + 1)), rate / 24.6,
            **point, method="mtp", num_speculative_tokens=gamma, batch=1, context_len=402,
        )
        for gamma, rate in rates.items()
    ]  # fmt: skip


def d4() -> list[Run]:
    """A dense 27B in INT4 on an Arc Pro B70, MTP with two drafts: two checkpoints that differ in acceptance alone."""
    point = {"hardware": "B70", "engine": "vllm", "target_model": "Qwen/Qwen3.5-27B", "precision": "online INT4"}
    more = {"method": "mtp", "num_speculative_tokens": 2, "batch": 1, "context_len": 300}
    thread = "steveseguin/b70-optimization-lab#31"
    return [
        run("D4-Qwen3.8", thread, 2.21, 44.9 / 28.9, **point, **more),
        run("D4-Qwen3.6", thread, 1 + 2 * 0.74, 1.80, **point, **more),
    ]


def d5() -> list[Run]:
    """Qwen3-8B on an Apple M5 Pro, 16.51 tokens/s plain: a draft model, and a block drafter below its trained block."""
    point = {"hardware": "m5_pro", "engine": "mlx_0_31", "target_model": "Qwen/Qwen3-8B", "precision": "bf16"}
    point |= {"batch": 1, "context_len": 300}
    drafters = {"draft_model": "Qwen/Qwen3-0.6B", "block": "z-lab/Qwen3-8B-DFlash-b16"}
    measured = (("draft_model", 3, 2.95, 21.53), ("block", 7, 2.62, 19.70), ("block", 5, 1.6, 12.96), ("block", 3, 1.6, 12.65))
    return [
        run(
            f"D5-{method}-{gamma}", "vllm-project/vllm-metal#481", tau, rate / 16.51,
            **point, method=method, draft_model=drafters[method], num_speculative_tokens=gamma,
        )
        for method, gamma, tau, rate in measured
    ]  # fmt: skip


D6 = {
    "hardware": "h100_sxm", "engine": "sglang_2025", "target_model": "Qwen/Qwen3-30B-A3B", "precision": "bf16", "method": "eagle3",
    "tensor_parallel_size": 4, "draft_model": "AngelSlim/Qwen3-a3B_eagle3", "context_len": 400,
}  # fmt: skip
# The most requests at a time → tokens/s without speculation.
D6_PLAIN = {1: 218.89, 4: 507.49, 8: 677.14, 32: 1128.3, 64: 1237.84}
C11_PLAIN = {1: 222.47, 4: 566.21, 8: 733.61, 16: 1012.96, 20: 1077.55}  # 20 prompts: 32 and 64 at a time are 20


@cache
def plain_step_s(batch: int, devices: int = 4) -> float:
    point: dict[str, Any] = D6 | {"tensor_parallel_size": devices, "num_speculative_tokens": 3, "batch": batch}
    return predict(**point).plain_step_s or 0.0


def running(limit: int) -> int:
    """Sequences that ran at a time on average, from what the reporter's own baseline produced."""
    return min(range(1, limit + 1), key=lambda batch: abs(math.log(batch / plain_step_s(batch) / D6_PLAIN[limit])))


def d6() -> list[Run]:
    """Qwen3-30B-A3B on four H100 with EAGLE-3 trees, SGLang: (requests at a time, steps/topk/drafted, τ, spec. tokens/s).

    80 prompts were sent, 32 and 64 at a time at most: the baseline made 1128 and 1238 tokens/s, where full batches make four and six
    times as much and six sequences about as much. One long answer runs on alone (a test below); R is that of what ran.
    """
    measured = (
        (1, (3, 3, 4), 2.017, 170.35),
        (1, (3, 2, 8), 2.216, 185.28),
        (1, (4, 4, 16), 2.542, 185.64),
        (1, (7, 10, 64), 3.034, 193.31),
        (4, (4, 4, 16), 2.556, 476.37),
        (8, (4, 4, 16), 2.578, 673.14),
        (32, (4, 4, 16), 2.560, 927.11),
        (64, (4, 4, 16), 2.553, 1307.95),
    )
    return [
        run(
            f"D6-{limit}-{shape[2]}", "Tencent/AngelSlim#163", tau, spec / D6_PLAIN[limit],
            **D6, batch=running(limit), tree_shape="steps={},topk={},draft_tokens={}".format(*shape),
        )
        for limit, shape, tau, spec in measured
    ]  # fmt: skip


@pytest.mark.parametrize(("rates", "devices"), [(D6_PLAIN, 4), (C11_PLAIN, 2)])
def test_baselines_of_a_few_prompts_are_those_of_batches_that_run_out(rates: dict[int, float], devices: int) -> None:
    """D6 and SpecForge#339: if a share of all tokens is made by one sequence alone, and the largest batch says which share, all other
    rates follow; full batches would make several times as much."""
    most = max(rates)
    alone_s, full_s = plain_step_s(1, devices), plain_step_s(most, devices) / most
    alone = (1 / rates[most] - full_s) / (alone_s - full_s)
    assert 0.1 < alone < 0.2
    for batch, rate in rates.items():
        token_s = (1 - alone) * plain_step_s(batch, devices) / batch + alone * alone_s
        assert 1 / token_s == pytest.approx(rate, rel=0.18), batch
    assert 1 / full_s > 1.9 * rates[most]


def d7() -> list[Run]:
    """A dense 27B in Q8_0 on a Radeon R9700 under Vulkan, 20.1 tokens/s plain: the small-row kernel reads the weights for each row."""
    point = {"hardware": "R9700", "engine": "llamacpp", "target_model": "Qwen/Qwen3.5-27B", "precision": "Q8_0"}
    return [
        run(
            f"D7-{gamma}", "ggml-org/llama.cpp#22673, comment of 2026-05-06", 1 + gamma * rate, spec / 20.1,
            **point, method="mtp", num_speculative_tokens=gamma, batch=1, context_len=500,
        )
        for gamma, rate, spec in ((2, 0.819, 18.9), (3, 0.713, 17.6))
    ]  # fmt: skip


def d9() -> list[Run]:
    """Vicuna-7B with Medusa on synthetic text (nothing accepted), TGI. The card is not stated: 11.1 ms a step fits an A100 40 GB."""
    rates = {
        1: (89.71, 80.51), 2: (178.4, 156.5), 4: (348.89, 291.84), 8: (659.9, 518.82), 16: (1199.34, 805.12), 32: (2042.94, 1015.27),
    }  # fmt: skip
    point = {"hardware": "a100_pcie_40gb", "engine": "generic", "target_model": "lmsys/vicuna-7b-v1.3", "precision": "fp16"}
    point |= {"method": "medusa", "draft_model": "FasterDecoding/medusa-vicuna-7b-v1.3", "num_speculative_tokens": 3}
    thread = "huggingface/text-generation-inference#1363"
    return [
        run(f"D9-{batch}", thread, 1.0, spec / plain, **point, batch=batch, context_len=300)
        for batch, (plain, spec) in rates.items()
    ]


def d10() -> list[Run]:
    """A 4-bit mixture of experts on two RTX 3090 over PCIe: ms per token by requests at a time, without → with one draft.

    The loss that was first reported (126 → 111 tokens/s) was withdrawn by its reporter a day later: the two servers had run under
    other flags, with a prefix cache that finds less under MTP. With equal flags and no prefix cache the same machine gained 27.5 %.
    0.874 of the drafts were accepted (thc1006/qwen3.6-vllm-2x3090, v4_2026_05_07: the same prompts at the same temperature).
    """
    measured = {1: (7.620, 5.976), 4: (12.133, 10.704), 8: (15.165, 13.785)}
    point = {"hardware": "rtx_3090", "engine": "vllm_0_25", "target_model": "Qwen/Qwen3.5-35B-A3B", "precision": "AWQ-Marlin"}
    point |= {"tensor_parallel_size": 2, "method": "mtp", "num_speculative_tokens": 1, "context_len": 130}
    thread = "vllm-project/vllm#38182, comment of 2026-04-26"
    return [
        run(f"D10-{batch}", thread, 1.874, plain_ms / spec_ms, **point, batch=batch)
        for batch, (plain_ms, spec_ms) in measured.items()
    ]


RUNS = [*d1(), *d2(), *d3(), *d4(), *d5(), *d6(), *d7(), *d9(), *d10()]
# R is asked for where models, devices and lengths are stated.
WITH_R = [each for each in RUNS if each.id.split("-")[0] in ("D1", "D3", "D4", "D5", "D6", "D10")]
# D8: DeepSeek-R1 FP8 on two nodes of eight H20, NextN with steps 2, topk 4, 4 tokens; τ 2.5 to 3 by the author.
D8_THREAD = "sgl-project/sglang#3582, comment of 2025-02-18"
D8_MEAN_ACCEPTANCE_LENGTH = 2.75
D8_SPEEDUPS = {1: 2.15, 64: 0.80}

# Of two runs of nearly the same sequences one lost and one gained: `test_the_last_two_of_d6_are_one_measurement`.
LAST_OF_D6 = ("D6-32-16", "D6-64-16")
SETTLED = [each for each in RUNS if each.id != LAST_OF_D6[1]]


@cache
def predicted(case: Run) -> Prediction:
    return predict(**dict(case.point), mean_acceptance_length=case.mean_acceptance_length)


@pytest.mark.parametrize("case", SETTLED, ids=lambda case: case.id)
def test_the_sign_is_the_measured_one(case: Run) -> None:
    decode_speedup = case.mean_acceptance_length / predicted(case).r
    assert (decode_speedup > 1) == (case.speedup > 1), (case.thread, decode_speedup, case.speedup)


@pytest.mark.parametrize("case", WITH_R, ids=lambda case: case.id)
def test_r_is_near_the_measured_one(case: Run) -> None:
    assert predicted(case).r == pytest.approx(case.r, rel=R_TOLERANCE), case.thread


@pytest.mark.parametrize("case", SETTLED, ids=lambda case: case.id)
def test_no_verdict_is_sure_of_the_wrong_sign(case: Run) -> None:
    assert predicted(case).verdict != ("lose" if case.speedup > 1 else "win"), case.thread


def test_the_last_two_of_d6_are_one_measurement() -> None:
    """32 and 64 at a time ran some six sequences, as the baseline shows, and so nearly the same rounds: yet one lost 18 % and the
    other gained 6 %, a quarter apart, by how long one answer of 80 ran on. Their mean is a loss, and predicted as one; each is
    within what the other one's accident shows."""
    both = [case for case in RUNS if case.id in LAST_OF_D6]
    batches = [dict(case.point)["batch"] for case in both]
    assert max(batches) <= 1.6 * min(batches), batches
    assert max(case.r for case in both) > 1.2 * min(case.r for case in both)
    measured = math.prod(case.speedup for case in both) ** 0.5
    expected = math.prod(case.mean_acceptance_length / predicted(case).r for case in both) ** 0.5
    assert measured < 1
    assert expected == pytest.approx(measured, rel=0.1)
    accident = max(case.speedup for case in both) / min(case.speedup for case in both)
    for case in both:
        assert predicted(case).speedup_low / accident < case.speedup < predicted(case).speedup_high * accident


def test_the_gain_of_d2_fades_with_load() -> None:
    gains = [case.mean_acceptance_length / predicted(case).r for case in d2()]
    assert gains == sorted(gains, reverse=True)


def test_the_best_number_of_drafts_of_d1_is_an_inner_one() -> None:
    """τ grows to γ = 7, yet the gain peaks at 3 or 4, as measured (3 for EAGLE, 4 for EAGLE-3)."""
    for method in ("eagle", "eagle3"):
        gains = {c.id: c.mean_acceptance_length / predicted(c).r for c in d1() if c.id.startswith(f"D1-{method}-")}
        assert max(gains, key=lambda name: gains[name]).rpartition("-")[2] in ("3", "4")


@cache
def d8(batch: int) -> Prediction:
    """With the release of that week. Its time per layer comes from eight H200 in one node (sglang#3956), everything else is held out."""
    return predict(
        hardware="h20", engine="sglang_0_4_3", target_model="deepseek-ai/DeepSeek-R1", draft_model="deepseek-ai/DeepSeek-V3 MTP",
        precision="fp8", method="mtp", tree_shape="steps=2,topk=4,draft_tokens=4", tensor_parallel_size=16, nodes=2, batch=batch,
        prompt_len=256, output_len=256, mean_acceptance_length=D8_MEAN_ACCEPTANCE_LENGTH,
    )  # fmt: skip


def test_d8_wins_alone_by_what_was_measured() -> None:
    """Sixteen devices over two nodes wait for launches, links and unfused kernels: four rows cost hardly more than one."""
    assert d8(1).speedup == pytest.approx(D8_SPEEDUPS[1], rel=R_TOLERANCE), D8_THREAD
    assert d8(1).r == pytest.approx(D8_MEAN_ACCEPTANCE_LENGTH / D8_SPEEDUPS[1], rel=R_TOLERANCE), D8_THREAD
    assert d8(1).verdict == "win"
    assert d8(1).plain_step_s == pytest.approx(1 / 22.73, rel=R_TOLERANCE), D8_THREAD


# Plain tokens/s of 256 tokens after a prompt of 256, and what one prompt takes as priced, with others of its batch: the rest are steps.
D8_PLAIN = {1: (22.73, 0.163), 4: (87.91, 0.041), 16: (258.53, 0.017), 64: (789.11, 0.015)}


@pytest.mark.parametrize("batch", D8_PLAIN)
def test_d8_plain_steps_grow_with_the_batch(batch: int) -> None:
    rate, prompt_s = D8_PLAIN[batch]
    step_s = batch * (256 / rate - prompt_s) / 255
    assert d8(batch).plain_step_s == pytest.approx(step_s, rel=R_TOLERANCE), D8_THREAD


def test_the_gain_of_d8_fades_with_load() -> None:
    gains = [d8(batch).speedup for batch in (1, 4, 16, 64)]
    assert gains == sorted(gains, reverse=True)


def test_d8_loses_at_batch_64_about_what_was_measured() -> None:
    """Prompts of 256 tokens come in one by one, each a pass that waits for its launches; without a drafter they share passes. No run
    of that release was fitted, so that the verdict may be close."""
    assert d8(64).speedup < 1, D8_THREAD
    assert d8(64).verdict != "win", D8_THREAD
    assert d8(64).speedup_low < D8_SPEEDUPS[64] < d8(64).speedup_high
    assert d8(64).speedup == pytest.approx(D8_SPEEDUPS[64], rel=R_TOLERANCE), D8_THREAD


def test_d8_crosses_over_where_captured_batches_end() -> None:
    """sgl-project/sglang#4543 and #3956 on the same hardware (C19): slower than without above 32, faster up to there."""
    assert [d8(batch).speedup > 1 for batch in (16, 32)] == [True, True]
    assert [d8(batch).speedup < 0.9 for batch in (40, 48, 63)] == [True, True, True]


def test_a_small_active_mixture_loses_alone_and_costs_less_in_company() -> None:
    """sgl-project/SpecForge#339, two H100, chain of three, τ = 1.86: 0.72 × at batch 1, 0.79 × at 4. Under load every expert is read
    anyway: the shape of D6, whose trees recover from 32 to 64."""
    point = {"hardware": "h100_sxm", "engine": "sglang_2025", "target_model": "Qwen/Qwen3-30B-A3B", "precision": "bf16"}
    point |= {"tensor_parallel_size": 2, "method": "eagle3", "draft_model": "AngelSlim/Qwen3-a3B_eagle3", "context_len": 400}
    r = {batch: predict(**point, num_speculative_tokens=3, batch=batch).r for batch in (1, 4, 32)}  # type: ignore[arg-type]
    assert min(r[1], r[4]) > 1.86
    assert r[32] < 0.85 * min(r[1], r[4])
    assert r[1] == pytest.approx(1.86 * 222.47 / 159.78, rel=R_TOLERANCE)
    assert r[4] == pytest.approx(1.86 * 566.21 / 447.9, rel=R_TOLERANCE)
