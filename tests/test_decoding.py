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


def _llama(seed: int = 0, layers: int = 3, vocab: int = VOCAB, width: int = 32, spread: float = 0.3):
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


# (drafts per round, bonus token, separate prefill)
WAYS = ((1, True, True), (4, True, True), (4, False, True), (3, True, False), (2, False, False))


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", DRAFTERS)
def test_greedy_speculation_writes_what_plain_decoding_writes(family, name):
    target, other = FAMILIES[family](0), FAMILIES[family](1)
    drafter = _drafters(target, other)[name]
    for prompt, ways in zip(PROMPTS, (WAYS, WAYS[1:2], WAYS[-1:]), strict=True):
        plain = d.plain_generate(target, prompt, 14)
        assert plain.target_forwards == len(plain.tokens) == 14
        for k, bonus, prefill in ways:
            fast = d.speculative_generate(target, drafter, prompt, 14, k, bonus=bonus, prefill=prefill)
            assert fast.tokens == plain.tokens, (k, bonus, prefill)
            assert fast.target_forwards == len(fast.rounds) + prefill
            own = sum(1 for r in fast.rounds if bonus or r.accepted < r.proposed or not r.proposed)
            assert len(fast.tokens) == prefill + sum(r.accepted for r in fast.rounds) + own


@pytest.mark.parametrize("family", ["llama", "gpt2", "tiny"])
@pytest.mark.parametrize("name", DRAFTERS)
def test_a_batch_with_ragged_acceptance_writes_what_each_sequence_writes_alone(family, name):
    target, other = FAMILIES[family](0), FAMILIES[family](1)
    drafter = _drafters(target, other)[name]
    for k, bonus, sampling in ((4, True, d.GREEDY), (2, False, d.GREEDY), (3, True, d.Sampling(0.7, top_k=20, top_p=0.9))):
        together = d.speculative_generate_batch(target, drafter, PROMPTS, 12, k, bonus=bonus, sampling=sampling)
        # Only the first sequence of a batch has the random streams of a sequence alone.
        for index, prompt in enumerate(PROMPTS if sampling.greedy else PROMPTS[:1]):
            alone = d.speculative_generate(target, drafter, prompt, 12, k, bonus=bonus, sampling=sampling)
            assert together.tokens[index] == alone.tokens
            assert together.rounds[index] == alone.rounds
        assert together.target_forwards == 1 + max(map(len, together.rounds))
    plain = d.plain_generate_batch(target, PROMPTS, 12)
    assert plain.tokens == tuple(d.plain_generate(target, prompt, 12).tokens for prompt in PROMPTS)
    assert plain.target_forwards == 12


def test_in_a_batch_a_full_sliding_window_is_refused_and_not_misread():
    with pytest.raises(d.DecodingError, match="sliding window of 8 tokens"):
        d.speculative_generate_batch(_gemma3(), d.PromptLookupDrafter(), [[1, 2, 3], [4, 5]], 20, 3)


def test_plain_decoding_past_a_sliding_window_keeps_no_more_than_the_window():
    target = d.as_model(_gemma3())
    cache, context = target.new_cache(rewinds=False), [1, 2, 3]
    for _ in range(20):
        context.append(int(target(torch.tensor([context[cache.length :]]), cache, last=1)[0, -1].argmax()))
    assert tuple(context[3:]) == d.plain_generate(target, [1, 2, 3], 20).tokens
    assert [layer.keys.shape[2] for layer in cache.cache.layers] == [7, 7, 22]


def test_the_two_functions_take_hugging_face_models_as_they_are_and_work_without_caches():
    target, draft = _llama(0), _llama(1)
    context = list(PROMPTS[0])
    plain = d.plain_generate(target, context, 12).tokens
    while len(context) < len(PROMPTS[0]) + 12:
        drafts, probs = d.draft_speculate(draft, context, 3)
        assert (len(drafts), probs) == (3, None)
        context += d.target_verify(target, context, drafts, probs)
    assert tuple(context[len(PROMPTS[0]) :][:12]) == plain


def test_the_target_accepts_all_of_its_own_drafts():
    target = _tiny()
    for k, tokens in ((4, 20), (3, 16), (7, 25)):
        off = d.speculative_generate(target, d.SelfDrafter(target), PROMPTS[0], tokens, k, bonus=False, prefill=False)
        on = d.speculative_generate(target, d.SelfDrafter(target), PROMPTS[0], tokens, k, prefill=False)
        assert off.target_forwards == -(-tokens // k)
        assert on.target_forwards == -(-tokens // (k + 1))
        assert all(r.accepted == r.proposed for r in (*off.rounds, *on.rounds))


# ------------------------------------------------------------------------------------------------------------- counting


def test_a_counter_that_counts_wrong_is_found_out(monkeypatch):
    target = _tiny()

    def alone():
        d.speculative_generate(target, d.PromptLookupDrafter(), PROMPTS[2], 8, 2)

    def together():
        d.speculative_generate_batch(target, d.PromptLookupDrafter(), PROMPTS, 8, 2)

    def every_third(self, *_):
        self.calls = getattr(self, "calls", 0) + 1
        self.forwards += self.calls % 3 > 0

    broken = (lambda self, *_: None, lambda self, *_: setattr(self, "forwards", self.forwards + 2), every_third)
    for run in (alone, together):
        run()
        for count in broken:
            with monkeypatch.context() as patch:
                patch.setattr(d.ForwardCounter, "_count", count)
                with pytest.raises(d.ForwardCountError):
                    run()


def test_a_target_that_takes_two_passes_a_round_is_found_out():
    class Twice(TinyDecoder):
        def __call__(self, token_ids, cache, **options):
            held = cache.length
            super().__call__(token_ids, cache, **options)
            cache.crop_to(held)
            return super().__call__(token_ids, cache, **options)

    target = Twice(VOCAB, 16)
    with pytest.raises(d.ForwardCountError, match="counted 2"):
        d.speculative_generate(target, d.PromptLookupDrafter(), PROMPTS[2], 8, 2)
    with pytest.raises(d.ForwardCountError, match="counted 2"):
        d.speculative_generate_batch(target, d.PromptLookupDrafter(), PROMPTS, 8, 2)


def test_passes_outside_the_rounds_are_found_out():
    class Peeking(d.PromptLookupDrafter):
        def session(self, target, target_cache, **options):
            target(torch.tensor([[1]]), target.new_cache())
            session = super().session(target, target_cache, **options)
            session.keep = lambda length: target(torch.tensor([[1]]), target.new_cache())
            return session

        def batch_session(self, target, target_cache, streams, **options):
            session = super().batch_session(target, target_cache, streams, **options)
            session.keep = lambda lengths: target(torch.tensor([[1]]), target.new_cache())
            return session

    with pytest.raises(d.ForwardCountError, match="its rounds account for"):
        d.speculative_generate(_tiny(), Peeking(), PROMPTS[2], 8, 2)
    with pytest.raises(d.ForwardCountError, match="its rounds account for"):
        d.speculative_generate_batch(_tiny(), Peeking(), PROMPTS, 8, 2)


@pytest.mark.parametrize("family", ["llama", "tiny"])
def test_phases_account_for_every_pass(family):
    target, other = FAMILIES[family](0), FAMILIES[family](0)
    for name, drafter in _drafters(target, other).items():
        if name == "prompt_lookup":
            continue
        ticks = iter(range(10_000))
        clock = d.PhaseClock(clock=lambda ticks=ticks: float(next(ticks)))
        run = d.speculative_generate(target, drafter, PROMPTS[0], 20, 3, phases=clock)
        by_phase = {phase: sum(span.phase == phase for span in clock.spans) for phase in clock.totals()}
        assert by_phase["prefill"] == 1
        assert by_phase["verify"] == len(run.rounds)
        assert sum(by_phase.get(phase, 0) for phase in ("draft_prefill", "catch_up", "draft")) == run.draft_forwards
        assert all(span.seconds == 1 for span in clock.spans)
        if name in ("second", "self"):  # the same weights: all accepted
            assert by_phase["draft_prefill"] == 1
            assert by_phase["catch_up"] == sum(bool(r.proposed) for r in run.rounds) - 1
        if name == "exit2":  # the target's own cache lacks the last token only
            assert by_phase["draft"] == run.draft_forwards


# ------------------------------------------------------------------------------------------------------- ends and limits


@pytest.mark.parametrize("name", DRAFTERS)
def test_an_end_token_inside_a_round_ends_the_sequence_there(name):
    target = _tiny()
    drafter = _drafters(target, _tiny(1))[name]
    whole = d.plain_generate(target, PROMPTS[0], 20).tokens
    for end in sorted(set(whole)):
        plain = d.plain_generate(target, PROMPTS[0], 20, eos_ids={end})
        fast = d.speculative_generate(target, drafter, PROMPTS[0], 20, 4, eos_ids={end})
        assert plain.tokens == fast.tokens == whole[: whole.index(end) + 1]
        assert sum(r.accepted for r in fast.rounds) <= len(fast.tokens) - 1
    ends = {whole[4]}
    both = d.speculative_generate_batch(target, d.SelfDrafter(target), PROMPTS, 20, 4, eos_ids=ends)
    assert both.tokens == tuple(d.plain_generate(target, prompt, 20, eos_ids=ends).tokens for prompt in PROMPTS)


@pytest.mark.parametrize("tokens", [0, 1, 2, 3])
def test_short_budgets_are_kept(tokens):
    target = _tiny()
    for bonus in (True, False):
        for prefill in (True, False):
            run = d.speculative_generate(target, d.SelfDrafter(target), PROMPTS[0], tokens, 4, bonus=bonus, prefill=prefill)
            assert run.tokens == d.plain_generate(target, PROMPTS[0], tokens).tokens
            assert len(run.tokens) == tokens


def test_prompt_lookup_proposes_what_followed_the_latest_longest_match():
    lookup = d.PromptLookupDrafter(max_ngram=3).lookup
    assert lookup([1, 2, 9, 8, 1, 2, 7, 6, 1, 2], 2) == [7, 6]
    assert lookup([5, 1, 2, 9, 8, 1, 2, 7, 6, 5, 1, 2], 2) == [9, 8]
    assert lookup([1, 2, 3, 4], 2) == []
    assert lookup([4, 4], 3) == [4]
    assert d.PromptLookupDrafter(max_ngram=3, min_ngram=2).lookup([4, 5, 4], 3) == []


def _with_config(module, **fields):
    for name, value in fields.items():
        setattr(module.config, name, value)
    return module


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: d.speculative_generate(_tiny(), d.ModelDrafter(TinyDecoder(VOCAB + 3, 8)), [1], 4, 2), f"vocabulary of {VOCAB + 3} tokens and target .* {VOCAB}: .*tokenizer"),
        (lambda: d.speculative_generate(_tiny(), d.LayerSkipDrafter(_tiny(), [0]), [1], 4, 2), "another model's layers"),
        (lambda: d.LayerSkipDrafter(_tiny(), [0, 3]), r"layers 0 to 2 .*\(got \[0, 3\]\)"),
        (lambda: d.LayerSkipDrafter(_llama(), [1, 0]), "ascending"),
        (lambda: d.LayerSkipDrafter(_with_config(_llama(), num_kv_shared_layers=1), [0]), "none can be left out"),
        (lambda: d.speculative_generate(_tiny(), d.HeadDrafter(d.MedusaHeads(8, VOCAB, 2)), [1], 4, 2), r"width .* 16 \(got 8\)"),
        (lambda: d.speculative_generate(_tiny(), d.HeadDrafter(d.MedusaHeads(16, 9, 2)), [1], 4, 2), r"vocabulary of 61 tokens \(got 9\)"),
        (lambda: d.plain_generate(_tiny(), [], 4), "at least one token"),
        (lambda: d.plain_generate(_tiny(), [VOCAB], 4), r"from 0 to 60 \(got 61 to 61\)"),
        (lambda: d.plain_generate(_tiny(), [1], -1), "at least 0"),
        (lambda: d.speculative_generate(_tiny(), d.PromptLookupDrafter(), [1], 4, 0), "k: must be at least 1"),
        (lambda: d.PromptLookupDrafter(max_ngram=1, min_ngram=2), "min_ngram, max_ngram"),
        (lambda: d.Sampling(-1.0), "temperature"),
        (lambda: d.Sampling(1.0, top_k=-1), "top_k"),
        (lambda: d.Sampling(1.0, top_p=0.0), "top_p"),
        (lambda: d.as_model(torch.nn.Linear(2, 2)), "causal language model"),
    ],
)  # fmt: skip
def test_what_does_not_go_together_is_refused_in_words(call, message):
    with pytest.raises(d.DecodingError, match=message):
        call()


def test_vocabularies_that_differ_by_padding_go_together_when_vouched_for():
    class Padded(TinyDecoder):
        """Its last four tokens stand for nothing, as in vocabularies rounded up."""

        def head(self, hidden):
            return super().head(hidden).index_fill(-1, torch.arange(VOCAB - 4, VOCAB), -torch.inf)

    target = Padded(VOCAB, 16, seed=1, logit_scale=3.0)
    for size in (VOCAB - 4, VOCAB + 4):
        draft = TinyDecoder(size, 8, seed=2)
        for sampling in (d.GREEDY, d.Sampling(1.0)):
            run = d.speculative_generate(target, d.ModelDrafter(draft, same_tokenizer=True), [3, 1], 16, 3, sampling=sampling)
            assert max(run.tokens) < VOCAB - 4
        assert (
            d.speculative_generate(target, d.ModelDrafter(draft, same_tokenizer=True), [3, 1], 16, 3).tokens
            == d.plain_generate(target, [3, 1], 16).tokens
        )


def test_a_model_with_recurrent_state_is_refused():
    config = transformers.MambaConfig(vocab_size=VOCAB, hidden_size=16, num_hidden_layers=2, state_size=4)
    with pytest.raises(d.DecodingError, match="recurrent state"):
        d.speculative_generate(transformers.MambaForCausalLM(config), d.PromptLookupDrafter(), PROMPTS[2], 8, 2)


# -------------------------------------------------------------------------------------------------------- low precision


def _margins_in_steps(target, prompt, tokens) -> list[float]:
    """For each token of plain decoding, the distance of the two largest logits in units of bfloat16's spacing at the larger."""
    cache, pending, margins = target.new_cache(), prompt, []
    for token in tokens:
        top = target(torch.tensor([pending]), cache, last=1)[0, -1].float().topk(2).values
        margins.append(float((top[0] - top[1]) / (2.0 ** torch.floor(torch.log2(top[0].abs())) * 2**-7)))
        pending = [token]
    return margins


def test_in_bfloat16_outputs_part_at_near_ties_only():
    target = d.as_model(_llama(layers=4, vocab=512, width=64, spread=0.1).to(torch.bfloat16))
    all_margins = []
    for start in range(7):
        prompt = [start + 1, start + 9, start + 30]
        plain = d.plain_generate(target, prompt, 32).tokens
        margins = _margins_in_steps(target, prompt, plain)
        all_margins += margins
        for drafter in (d.SelfDrafter(target), d.PromptLookupDrafter()):
            fast = d.speculative_generate(target, drafter, prompt, 32, 4).tokens
            parted = next((place for place in range(32) if plain[place] != fast[place]), None)
            assert parted is None or margins[parted] <= 2
    # So that the bar means something: most places are no near ties.
    assert sorted(all_margins)[len(all_margins) // 2] > 4


# ------------------------------------------------------------------------------------------------------- a trained model


def test_a_trained_model_writes_the_same_with_every_drafter():
    """SmolLM2-135M-Instruct in single precision, where it lies in the cache already."""
    files = pytest.importorskip("calibration.model_files", reason="pairs are not part of this version")
    folder = files.cache_folder() / f"smollm2-{files.SMOLLM2_WHEEL_SHA256[:16]}"
    if not folder.is_dir():
        pytest.skip("SmolLM2-135M is not in the cache: load the target smollm2 once")
    target = d.as_model(transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    prompts = [tokenizer(text)["input_ids"] for text in ("one two three one two three one two", "def add(a, b):\n")]
    plain = [d.plain_generate(target, prompt, 10) for prompt in prompts]
    kept = [layer for layer in range(30) if not 12 <= layer <= 17]
    for drafter in (
        d.PromptLookupDrafter(),
        d.LayerSkipDrafter(target, kept, share_cache=True),
        d.LayerSkipDrafter(target, range(25)),
    ):
        alone = d.speculative_generate(target, drafter, prompts[0], 10, 4)
        assert alone.tokens == plain[0].tokens
        together = d.speculative_generate_batch(target, drafter, prompts, 10, 4)
        assert together.tokens == tuple(run.tokens for run in plain)
        assert together.rounds[0] == alone.rounds
