"""Laws of timing real PyTorch work: every kind of cell runs, operands are cold, captured passes compute what eager ones do,
failures keep their reason."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from calibration.device import Device, UnsupportedError, Work, linear  # noqa: E402
from calibration.forwards import Forwards, ModelSource  # noqa: E402
from calibration.measurement import Cell, Kind, Visit  # noqa: E402
from calibration.microbench import attention_backend, micro_work  # noqa: E402
from calibration.visits import Visitor  # noqa: E402

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 128, "vocab_size": 512, "tie_word_embeddings": True, "max_position_embeddings": 4096,
}  # fmt: skip
# A model whose layers keep a window only, so that its cache cannot be cropped.
WINDOWED = LLAMA | {"model_type": "gemma3_text", "head_dim": 16, "sliding_window": 16}
HEADS = {"heads": 4, "kv_heads": 2, "head_dim": 16, "dtype": "fp32", "backend": "any"}
MICRO: list[tuple[Kind, dict[str, Any]]] = [
    ("copy", {"bytes": 2**16, "moved_bytes": 2**17, "dtype": "fp32"}),
    ("read", {"bytes": 2**16, "moved_bytes": 2**16, "dtype": "bf16"}),
    ("triad", {"bytes": 2**16, "moved_bytes": 3 * 2**16, "dtype": "fp32"}),
    ("gemm", {"m": 3, "n": 64, "k": 48, "dtype": "fp32"}),
    ("gemm", {"m": 3, "n": 64, "k": 48, "dtype": "bf16"}),
    ("decode_attention", {"batch": 2, "rows": 1, "context": 64, **HEADS}),
    ("verify_attention", {"batch": 2, "rows": 5, "context": 64, **HEADS}),
    ("launch", {}),
    ("synchronize", {}),
    ("sampling", {"rows": 2, "vocab_size": 512, "dtype": "fp32", "method": "greedy"}),
    ("sampling", {"rows": 2, "vocab_size": 512, "dtype": "bf16", "method": "multinomial"}),
    ("kv_crop", {"layers": 2, "batch": 1, "kv_heads": 2, "head_dim": 16, "context": 64, "removed": 4, "dtype": "fp32"}),
]


@pytest.fixture
def visitor() -> Iterator[Visitor]:
    threads = torch.get_num_threads()
    yield Visitor(Device("cpu", 1), {"llama": ModelSource(LLAMA), "windowed": ModelSource(WINDOWED)})
    torch.set_num_threads(threads)


def visit(visitor: Visitor, kind: Kind, **inputs: Any) -> Visit:
    return visitor.visit(Cell(kind=kind, inputs=inputs, split="fit"), 0, 0.0, 3, 0.05)


def passed(**inputs: Any) -> Cell:
    return Cell(kind="forward", inputs={"model": "llama", "batch": 1, "dtype": "fp32", "mode": "eager"} | inputs, split="fit")


@pytest.mark.parametrize(("kind", "inputs"), MICRO)
def test_every_kind_of_operation_gives_samples_by_cpu_time_beside_wall_time(
    visitor: Visitor, kind: Kind, inputs: dict[str, Any]
) -> None:
    found = visit(visitor, kind, **inputs)
    assert found.status == "ok", found.reason
    assert len(found.seconds) == len(found.wall_seconds) >= 2
    assert all(second > 0 for second in found.seconds)
    # A thread cannot compute for longer than the clock on the wall runs.
    assert sum(found.seconds) <= 1.02 * sum(found.wall_seconds) + 1e-6


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("mode", ["eager", "cuda_graph", "compile"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp8"])
def test_whole_passes_run_in_every_mode_and_type_again_and_again(visitor: Visitor, mode: str, dtype: str) -> None:
    if mode == "compile" and dtype != "fp32":
        pytest.skip("compiling once shows the path")
    for _ in range(2):
        found = visit(visitor, "forward", **passed(batch=2, rows=3, context=32, mode=mode, dtype=dtype).inputs)
        assert found.status == "ok", found.reason
        assert found.seconds


def test_a_pass_sees_context_and_rows_and_leaves_the_cache_as_it_was(visitor: Visitor) -> None:
    forwards = visitor.forwards
    with torch.inference_mode():
        for context in (0, 1, 40):
            for rows in (1, 5):
                work = forwards.work(passed(rows=rows, context=context))
                for _ in range(2):
                    assert work.prepare is not None
                    work.prepare()
                    output = work.functions[0]()
                    assert output.logits.shape == (1, rows, 512)
                    assert output.cache.get_seq_length() == context + rows


def test_a_captured_pass_computes_the_logits_of_an_eager_one(visitor: Visitor) -> None:
    logits = {}
    with torch.inference_mode():
        for mode in ("eager", "cuda_graph"):
            work = visitor.forwards.work(passed(rows=4, context=0, mode=mode))
            assert work.prepare is not None
            work.prepare()
            logits[mode] = work.functions[0]().logits
    torch.testing.assert_close(logits["cuda_graph"], logits["eager"], rtol=1e-4, atol=1e-5)


class ReadsBack(TorchDispatchMode):
    """Counts numbers that the host reads from the device: no graph can hold one."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += function is torch.ops.aten._local_scalar_dense.default
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("dtype", ["bf16", "fp8"])
def test_a_pass_meant_for_a_graph_reads_nothing_back_to_the_host(visitor: Visitor, dtype: str) -> None:
    # Inference mode hides reads from the counter.
    with torch.no_grad():
        for rows in (1, 5):
            work = visitor.forwards.work(passed(rows=rows, context=24, batch=2, mode="cuda_graph", dtype=dtype))
            assert work.prepare is not None
            work.prepare()
            with ReadsBack() as reads:
                work.functions[0]()
            assert reads.count == 0
            work.prepare()
            with ReadsBack() as reads:
                float(work.functions[0]().logits.sum())
            assert reads.count == 1


def test_a_windowed_model_is_restored_where_its_cache_cannot_be_cropped(visitor: Visitor) -> None:
    for rows in (1, 3):
        found = visit(visitor, "forward", **passed(model="windowed", rows=rows, context=40).inputs)
        assert found.status == "ok", found.reason


def test_graphs_of_windowed_models_are_refused_with_a_reason(visitor: Visitor) -> None:
    found = visit(visitor, "forward", **passed(model="windowed", rows=1, context=40, mode="cuda_graph").inputs)
    assert (found.status, found.seconds) == ("unsupported", ())
    assert "full attention" in found.reason


def test_what_does_not_fit_the_memory_is_skipped_and_the_run_goes_on(visitor: Visitor) -> None:
    found = visit(visitor, "gemm", m=1, n=2**24, k=2**24, dtype="fp32")
    assert found.status == "out_of_memory"
    assert found.reason
    assert visit(visitor, "gemm", m=1, n=64, k=64, dtype="fp32").status == "ok"


def test_what_a_device_lacks_is_skipped_with_a_reason(visitor: Visitor) -> None:
    found = visit(visitor, "all_reduce", devices=2, bytes=1024, dtype="fp32")
    assert found.status == "unsupported"
    assert "2 devices" in found.reason


def test_a_device_that_is_not_there_is_refused() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(UnsupportedError, match="cuda"):
        Device("cuda")


def test_operands_outgrow_the_last_cache_and_are_all_different() -> None:
    device = Device("cpu", 1)
    stack = device.operands(48, 64, dtype="fp32")
    assert len({each.data_ptr() for each in stack}) == len(stack) == 256
    large = device.operands(2048, 2048, dtype="fp32")
    assert len(large) * 2048 * 2048 * 4 >= 2 * device.facts.cache_bytes
    assert all(each.shape == (2048, 2048) and each.is_contiguous() for each in large)


def test_eight_bit_products_are_those_of_the_rounded_numbers() -> None:
    device = Device("cpu", 1)
    if device.refusal("fp8"):
        pytest.skip(device.refusal("fp8"))
    rows, weights = torch.randn(4, 32).to(torch.float8_e4m3fn), torch.randn(16, 32).to(torch.float8_e4m3fn)
    exact = rows.float() @ weights.float().T
    torch.testing.assert_close(linear(rows, weights, device.unit_scale()).float(), exact, rtol=2e-2, atol=5e-2)


def test_attention_of_a_cell_is_causal_over_its_own_rows(visitor: Visitor) -> None:
    """The first of several rows sees the context and itself: what a single row behind the same context sees."""
    device = visitor.device
    several = micro_work(
        device, Cell(kind="verify_attention", inputs={"batch": 1, "rows": 4, "context": 32, **HEADS}, split="fit")
    )
    call = several.functions[0]
    query, (key, value) = call.args[1], (call.keywords["key"], call.keywords["value"])
    output, _ = call()
    first = torch.nn.functional.scaled_dot_product_attention(
        query[:, :, :1], key[:, :, :33], value[:, :, :33], scale=16**-0.5, enable_gqa=True
    )
    torch.testing.assert_close(output[:, :1], first.transpose(1, 2), rtol=1e-4, atol=1e-6)


def test_the_attention_kernel_is_named(visitor: Visitor) -> None:
    for rows in (1, 5):
        name = attention_backend(visitor.device, 4, 2, 16, rows, "fp32")
        assert name in {"math", "flash_attention", "efficient_attention", "cudnn_attention"}


def test_more_rows_and_more_layers_take_longer(visitor: Visitor) -> None:
    deep = Visitor(visitor.device, {"llama": ModelSource(LLAMA | {"num_hidden_layers": 12})})
    short = min(visit(visitor, "forward", **passed(rows=1, context=16).inputs).seconds)
    assert min(visit(deep, "forward", **passed(rows=1, context=16).inputs).seconds) > 1.5 * short
    assert min(visit(visitor, "forward", **passed(rows=512, context=16).inputs).seconds) > 1.5 * short


def test_samples_of_short_calls_are_taken_many_at_a_time(visitor: Visitor) -> None:
    counted: list[int] = []
    samples = visitor.device.sample(Work([lambda: counted.append(1)]), 3, 0.05)
    assert samples.calls > 100
    assert len(counted) > 3 * samples.calls


def test_config_is_not_changed_by_building(visitor: Visitor) -> None:
    before = copy.deepcopy(LLAMA)
    visitor.forwards.model("llama", "bf16")
    assert before == LLAMA


def test_forwards_keep_few_caches() -> None:
    device = Device("cpu", 1)
    device.facts = replace(device.facts, memory_bytes=2**20)
    forwards = Forwards(device, {"llama": ModelSource(LLAMA)})
    with torch.inference_mode():
        for context in (256, 512, 1024, 2048):
            forwards.work(passed(rows=1, context=context))
    assert len(forwards._caches) < 4
