"""Real speculative decoding: the same output as plain decoding, one target pass per round, every pass counted."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: pip install specsim[calibrate]")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: pip install specsim[calibrate]")

from calibration import decoding as d  # noqa: E402
from calibration.tiny_decoder import TinyDecoder  # noqa: E402

VOCAB = 61
PROMPTS = ([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [7], [11, 12, 13, 11, 12, 13, 11, 12])


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def _llama(seed: int = 0, layers: int = 3, vocab: int = VOCAB, width: int = 32):
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=width,
        intermediate_size=2 * width,
        num_hidden_layers=layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return transformers.LlamaForCausalLM(config)


def _gpt2(seed: int = 0):
    torch.manual_seed(seed)
    config = transformers.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=3, n_head=4, n_positions=256, initializer_range=0.3)
    return transformers.GPT2LMHeadModel(config)


def _qwen2(seed: int = 0):
    torch.manual_seed(seed)
    config = transformers.Qwen2Config(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return transformers.Qwen2ForCausalLM(config)


def _gemma3(seed: int = 0):
    """Two sliding layers of an 8-token window, so that every generation here runs past it, and a full one."""
    torch.manual_seed(seed)
    config = transformers.Gemma3TextConfig(
        vocab_size=VOCAB,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        sliding_window=8,
        layer_types=["sliding_attention", "sliding_attention", "full_attention"],
        initializer_range=0.3,
    )
    return transformers.Gemma3ForCausalLM(config)


def _tiny(seed: int = 0):
    return TinyDecoder(VOCAB, 16, num_layers=3, num_heads=2, seed=seed, logit_scale=3.0)


FAMILIES = {"llama": _llama, "gpt2": _gpt2, "qwen2": _qwen2, "gemma3": _gemma3, "tiny": _tiny}


def _drafters(target, other):
    """Every way to draft for a target, by name; heads with random weights, which is enough for the code path."""
    model = d.as_model(target)
    width = model.embed(torch.zeros(1, dtype=torch.long)).shape[-1]
    torch.manual_seed(5)
    return {
        "second": d.ModelDrafter(other, name="second"),
        "self": d.SelfDrafter(target),
        "exit2": d.LayerSkipDrafter(target, [0, 1]),
        "exit2_own_cache": d.LayerSkipDrafter(target, [0, 1], share_cache=False),
        "skip_middle": d.LayerSkipDrafter(target, [0, 2]),
        "skip_middle_shared": d.LayerSkipDrafter(target, [0, 2], share_cache=True),
        "prompt_lookup": d.PromptLookupDrafter(),
        "medusa": d.HeadDrafter(d.MedusaHeads(width, VOCAB, 4)),
        "eagle": d.HeadDrafter(d.EagleHead(width, 2)),
    }


DRAFTERS = ("second", "self", "exit2", "exit2_own_cache", "skip_middle", "skip_middle_shared", "prompt_lookup", "medusa", "eagle")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_speculation_writes_what_plain_decoding_writes(family, name):
    target, other = FAMILIES[family](0), FAMILIES[family](1)
    drafter = _drafters(target, other)[name]
    for prompt in PROMPTS:
        plain = d.plain_generate(target, prompt, 20)
        for k, bonus, prefill in ((1, True, True), (4, True, True), (4, False, True), (3, True, False), (2, False, False)):
            fast = d.speculative_generate(target, drafter, prompt, 20, k, bonus=bonus, prefill=prefill)
            assert fast.tokens == plain.tokens, (k, bonus, prefill)
            assert fast.target_forwards == len(fast.rounds) + prefill
