"""One operation at a time: memory, GEMM, attention, launch, sampling, KV crop, all-reduce. Builds the `Work` of a cell.

Weights and KV caches are kept in as many copies as outgrow the last cache and used in turn: between two uses of one layer
a model streams all its other layers through that cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace

import torch
from transformers import DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from calibration.device import DTYPE_BYTES, DTYPES, Device, UnsupportedError, Work, linear
from calibration.measurement import Cell, Kind, Value

Builder = Callable[[Device, Mapping[str, Value]], Work]


def micro_work(device: Device, cell: Cell) -> Work:
    """What a cell of any kind but `forward` runs. Raises UnsupportedError where the device lacks its type or kernel."""
    dtype = str(cell.inputs.get("dtype", "fp32"))
    reason = device.refusal(dtype)
    if reason:
        raise UnsupportedError(f"{dtype}: {reason}")
    return _BUILDERS[cell.kind](device, cell.inputs)


def _count(inputs: Mapping[str, Value], name: str) -> int:
    return int(inputs[name])


def _copy(device: Device, inputs: Mapping[str, Value]) -> Work:
    source, target, _ = _arrays(device, inputs)
    return Work([lambda: target.copy_(source)])


def _read(device: Device, inputs: Mapping[str, Value]) -> Work:
    source, *_ = _arrays(device, inputs)
    # The largest value needs every byte and a comparison each, less arithmetic than a sum in 16 bit.
    return Work([lambda: source.amax()])


def _triad(device: Device, inputs: Mapping[str, Value]) -> Work:
    first, second, target = _arrays(device, inputs)
    return Work([lambda: torch.add(first, second, alpha=3.0, out=target)])


def _arrays(device: Device, inputs: Mapping[str, Value]) -> list[torch.Tensor]:
    """Three arrays of the cell's size; the smaller ones stay in the caches, which the larger ones are to be compared with."""
    dtype = str(inputs["dtype"])
    length = _count(inputs, "bytes") // DTYPE_BYTES[dtype]
    return device.operands(length, dtype=dtype, least=3)[:3]


def _gemm(device: Device, inputs: Mapping[str, Value]) -> Work:
    m, n, k, dtype = _count(inputs, "m"), _count(inputs, "n"), _count(inputs, "k"), str(inputs["dtype"])
    rows = device.random(m, k, dtype=dtype)
    stack = device.operands(n, k, dtype=dtype)
    scale = device.unit_scale()
    return Work([partial(linear, rows, weights, scale) for weights in stack])


def _attention(device: Device, inputs: Mapping[str, Value]) -> Work:
    """As Hugging Face models call it: `context` cached tokens and the new rows behind them, each row blind to later ones."""
    batch, rows, context = _count(inputs, "batch"), _count(inputs, "rows"), _count(inputs, "context")
    heads, kv_heads, head_dim = _count(inputs, "heads"), _count(inputs, "kv_heads"), _count(inputs, "head_dim")
    dtype, total = str(inputs["dtype"]), context + rows
    query = device.random(batch, heads, rows, head_dim, dtype=dtype)
    stack = device.operands(2, batch, kv_heads, total, head_dim, dtype=dtype)
    mask = None
    if rows > 1:
        mask = torch.ones(rows, total, dtype=torch.bool, device=device.torch_device).tril(context)[None, None]
        mask = mask.expand(batch, 1, rows, total)
    module = SimpleNamespace(num_key_value_groups=heads // kv_heads, is_causal=True)
    attend = partial(sdpa_attention_forward, module, query, attention_mask=mask, scaling=head_dim**-0.5)
    return Work([partial(attend, key=kv[0], value=kv[1]) for kv in stack])


def attention_backend(device: Device, heads: int, kv_heads: int, head_dim: int, rows: int, dtype: str) -> str:
    """The kernel PyTorch picks for attention of this shape: math, flash_attention, efficient_attention, cudnn_attention."""
    query = device.random(1, heads, rows, head_dim, dtype=dtype)
    key = device.random(1, heads if rows > 1 else kv_heads, 256 + rows, head_dim, dtype=dtype)
    mask = torch.ones(rows, 256 + rows, dtype=torch.bool, device=device.torch_device).tril(256)[None, None] if rows > 1 else None
    choice = torch._fused_sdp_choice(query, key, key, attn_mask=mask, enable_gqa=rows == 1)
    return str(torch.nn.attention.SDPBackend(choice).name).lower()


def _launch(device: Device, inputs: Mapping[str, Value]) -> Work:  # noqa: ARG001
    one = torch.zeros(1, device=device.torch_device)
    return Work([lambda: one.add_(1.0)], capture=False)


def _synchronize(device: Device, inputs: Mapping[str, Value]) -> Work:  # noqa: ARG001
    one = torch.zeros(1, device=device.torch_device)

    def launch_and_wait() -> None:
        one.add_(1.0)
        device.synchronize()

    return Work([launch_and_wait], capture=False)


def _sampling(device: Device, inputs: Mapping[str, Value]) -> Work:
    logits = device.random(_count(inputs, "rows"), _count(inputs, "vocab_size"), dtype=str(inputs["dtype"]))
    if inputs["method"] == "greedy":
        return Work([lambda: logits.argmax(dim=-1)])
    return Work([lambda: torch.multinomial(logits.float().softmax(dim=-1), 1)], capture=False)


def _kv_crop(device: Device, inputs: Mapping[str, Value]) -> Work:
    """Takes `removed` tokens off the cache of every layer."""
    shape = (_count(inputs, "batch"), _count(inputs, "kv_heads"), _count(inputs, "context"), _count(inputs, "head_dim"))
    layer = device.random(*shape, dtype=str(inputs["dtype"]))
    cache = DynamicCache()
    for index in range(_count(inputs, "layers")):
        cache.update(layer[:, :, :1], layer[:, :, :1], index)

    def refill() -> None:
        for each in cache.layers:
            each.keys = each.values = layer

    return Work([lambda: cache.crop(-_count(inputs, "removed"))], prepare=refill, capture=False)


def _all_reduce(device: Device, inputs: Mapping[str, Value]) -> Work:
    """NCCL from one process over the first devices."""
    devices = _count(inputs, "devices")
    if device.kind != "cuda" or device.facts.count < devices:
        raise UnsupportedError(f"all-reduce over {devices} devices: this machine has {device.facts.count}")
    length = max(_count(inputs, "bytes") // DTYPE_BYTES[str(inputs["dtype"])], 1)
    parts = [torch.zeros(length, dtype=DTYPES[str(inputs["dtype"])], device=f"cuda:{index}") for index in range(devices)]
    return Work([lambda: torch.cuda.nccl.all_reduce(parts)], capture=False)


_BUILDERS: dict[Kind, Builder] = {
    "copy": _copy,
    "read": _read,
    "triad": _triad,
    "gemm": _gemm,
    "decode_attention": _attention,
    "verify_attention": _attention,
    "launch": _launch,
    "synchronize": _synchronize,
    "sampling": _sampling,
    "kv_crop": _kv_crop,
    "all_reduce": _all_reduce,
}
