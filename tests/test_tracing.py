"""Traces of real pairs replay what the same pairs really do: round by round when greedy, in distribution when sampling."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="real models need the calibrate extra")

import torch

from calibration.decoding import (
    GREEDY,
    Drafter,
    EagleHead,
    HeadDrafter,
    LayerSkipDrafter,
    MedusaHeads,
    Round,
    Sampling,
    plain_generate,
    speculative_generate,
    speculative_generate_batch,
)
from calibration.head_files import write_head
from calibration.model_files import MODELS, ModelFileError, model_source, smollm2
from calibration.pairs import Pair, PairError, load_pair, with_draft
from calibration.prompts import BUILTIN, PromptError, read_prompts
from calibration.tracing import PromptTrace, trace_prompt
from simulator.acceptance import TraceAcceptance, load_trace, read_trace_file
from simulator.spec import SpecError
from simulator.trace import TraceOrder, trace_file, trace_pair

GAMMAS = (1, 2, 4, 8)
PROMPTS = read_prompts(BUILTIN)
KINDS = {prompt.category: prompt for prompt in PROMPTS}
SHIPPED = MODELS / "byte_pair" / "draft" / "model.safetensors"
DRAFTS = ("byte_pair", "self", "ngram", "ngram:6-2", "exit:2", "skip:1")


@pytest.fixture(scope="module", autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def pairs() -> dict[str, Pair]:
    return {draft: load_pair("byte_pair", draft) for draft in DRAFTS}


@pytest.fixture(scope="module")
def smollm2_pairs() -> dict[str, Pair]:
    try:
        smollm2()
    except ModelFileError as error:
        pytest.skip(f"SmolLM2 is not to be had here: {error}")
    return {draft: load_pair("smollm2", draft) for draft in ("skip:12-17", "ngram", "self")}


def replayed_rounds(
    trace: PromptTrace, gamma: int, max_new_tokens: int, change: Callable[[TraceAcceptance], TraceAcceptance] = lambda law: law
) -> list[Round]:
    """What the simulator replays: the first token comes from the prefill, then rounds until the output ends.

    A real run does not know where its output will end, so its drafts are cut at the token budget only.
    """
    law, length = change(as_law(trace)), len(trace.tokens)
    path, position, rounds = law.path(0, length, seed=0), 1, []
    while position < length:
        proposed = path.proposed(position, min(gamma, max_new_tokens - position - 1))
        accepted = min(path.accepted(position, proposed), length - position) if proposed else 0
        rounds.append(Round(proposed, accepted))
        position += accepted + 1
    return rounds


def as_law(trace: PromptTrace) -> TraceAcceptance:
    return trace_file([trace], [PROMPTS[0]], {}).trace


def check_replay(pair: Pair, drafter: Drafter, prompt: str, max_new_tokens: int, gammas: Sequence[int] = GAMMAS) -> list[Round]:
    """The real rounds at every γ equal the replayed ones of one trace; those at the last γ."""
    ids = pair.encode(prompt)
    trace = trace_prompt(pair.target, drafter, ids, max_new_tokens, eos_ids=pair.eos_ids)
    real = None
    for gamma in gammas:
        real = speculative_generate(pair.target, drafter, ids, max_new_tokens, gamma, eos_ids=pair.eos_ids)
        assert real.tokens == trace.tokens
        assert list(real.rounds) == replayed_rounds(trace, gamma, max_new_tokens), (drafter.name, gamma)
    assert real is not None
    return list(real.rounds)


# ------------------------------------------------------------------------------------------------- replay is what happens


@pytest.mark.parametrize("draft", DRAFTS)
def test_real_greedy_rounds_equal_the_replay_round_by_round(pairs: dict[str, Pair], draft: str) -> None:
    """A prompt of each kind at every γ; the others, shorter, at each in turn."""
    pair, rounds = pairs[draft], list[Round]()
    for index, prompt in enumerate(PROMPTS):
        tokens, gammas = (40, GAMMAS) if prompt in KINDS.values() else (8, GAMMAS[index % 4 :][:1])
        rounds += check_replay(pair, pair.drafter, prompt.text, tokens, gammas)
    accepted = {each.accepted for each in rounds}
    assert accepted - {0}, "a draft that is never accepted shows nothing"
    if draft == "self":
        assert all(each.accepted == each.proposed for each in rounds)
    if draft.startswith("ngram"):
        assert {0, 8} < {each.proposed for each in rounds} | {0}
        assert len({each.proposed for each in rounds}) > 2


@pytest.mark.parametrize("draft", [*DRAFTS, "medusa", "eagle"])
def test_real_greedy_rounds_in_a_batch_equal_the_replay_of_each_sequence(pairs: dict[str, Pair], draft: str) -> None:
    pair = pairs.get(draft) or with_draft(pairs["self"], draft)
    ids = [pair.encode(prompt.text) for prompt in KINDS.values()]
    traces = [trace_prompt(pair.target, pair.drafter, each, 24, eos_ids=pair.eos_ids) for each in ids]
    for gamma in GAMMAS:
        real = speculative_generate_batch(pair.target, pair.drafter, ids, 24, gamma, eos_ids=pair.eos_ids)
        # In a batch rounding differs and can turn a near tie: such a text has other rounds.
        same = [own == trace.tokens for own, trace in zip(real.tokens, traces, strict=True)]
        assert sum(same) >= len(ids) - 1
        for ok, rounds, trace in zip(same, real.rounds, traces, strict=True):
            assert not ok or list(rounds) == replayed_rounds(trace, gamma, 24), (draft, gamma)


@pytest.mark.parametrize("draft", ["byte_pair", "self", "ngram"])
def test_in_half_precision_real_outputs_part_at_near_ties_only(draft: str) -> None:
    """A tie is near where the two largest logits are at most two steps of bfloat16 apart."""
    pair, parted = load_pair("byte_pair", draft, "bf16"), 0
    for prompt in KINDS.values():
        ids = pair.encode(prompt.text)
        plain = plain_generate(pair.target, ids, 24, eos_ids=pair.eos_ids).tokens
        fast = speculative_generate(pair.target, pair.drafter, ids, 24, 4, eos_ids=pair.eos_ids).tokens
        place = next((index for index, (one, other) in enumerate(zip(plain, fast, strict=False)) if one != other), None)
        if place is not None:
            parted += 1
            cache = pair.target.new_cache()
            top = pair.target(torch.tensor([[*ids, *plain[:place]]]), cache, last=1)[0, -1].float().topk(2).values
            assert float(top[0] - top[1]) <= 2 * 2.0 ** (math.floor(math.log2(abs(float(top[0])))) - 7)
    assert parted < len(KINDS), "most outputs hold no near tie"


def heads(pair: Pair) -> list[Drafter]:
    """Heads that agree now and then without any training: the output head on the last state, and a random recurrence."""
    torch.manual_seed(5)
    width, vocabulary = 256, pair.target.vocab_size
    medusa = MedusaHeads(width, vocabulary, 4)
    for residual, output in zip(medusa.residual, medusa.output, strict=True):
        torch.nn.init.zeros_(residual.weight)
        torch.nn.init.zeros_(residual.bias)
        output.weight.data.copy_(pair.target.module.get_output_embeddings().weight.data)
    return [HeadDrafter(medusa), HeadDrafter(EagleHead(width, 4))]


def test_drafts_that_depend_on_their_round_are_replayed_from_one_row_per_start(pairs: dict[str, Pair]) -> None:
    pair = pairs["self"]
    for drafter in heads(pair):
        trace = trace_prompt(pair.target, drafter, pair.encode(KINDS["list"].text), 24)
        assert np.array(trace.acceptance).shape == (24, 16)
        check_replay(pair, drafter, KINDS["list"].text, 24)


@pytest.mark.parametrize("draft", ["medusa", "eagle"])
def test_trained_heads_agree_often_and_replay_as_they_run(pairs: dict[str, Pair], draft: str) -> None:
    pair = with_draft(pairs["self"], draft)
    rounds = [each for prompt in KINDS.values() for each in check_replay(pair, pair.drafter, prompt.text, 20)]
    assert sum(each.accepted for each in rounds) / len(rounds) > 0.8
    assert {each.proposed for each in rounds} >= ({4} if draft == "medusa" else {8})


class Hesitant(Drafter):
    """Ends its proposal before the first token that the drafter within gives less than `least`."""

    def __init__(self, drafter: Drafter, least: float):
        self.drafter, self.least, self.name = drafter, least, f"hesitant {drafter.name}"

    @property
    def modules(self) -> Sequence[torch.nn.Module]:
        return self.drafter.modules

    def session(self, *args, **options):
        session, seen, propose = self.drafter.session(*args, **options), [], None
        session.watch, propose = lambda logits: seen.append(torch.softmax(logits, -1).max() >= self.least), session.propose

        def shortened(context: Sequence[int], k: int):
            seen.clear()
            drafts, probs = propose(context, k)
            return drafts[: [*seen, False].index(False)], probs

        session.propose = shortened
        return session

    def batch_session(self, *args, **options):
        raise NotImplementedError


@pytest.mark.parametrize("least", [0.3, 0.7])
@pytest.mark.parametrize("draft", ["byte_pair", "exit:2", "shared"])
def test_rounds_that_end_at_a_doubtful_token_emit_what_their_replay_emits(
    pairs: dict[str, Pair], draft: str, least: float
) -> None:
    """And where the confidence was recorded along each round's own drafts, they propose as many too."""
    pair = pairs["self" if draft == "shared" else draft]
    shared = LayerSkipDrafter(pair.target, [0, 1, 3], share_cache=True)
    drafter = shared if draft == "shared" else pair.drafter
    lengths = set()
    for prompt in list(KINDS.values())[:3]:
        ids = pair.encode(prompt.text)
        trace = trace_prompt(pair.target, drafter, ids, 40, eos_ids=pair.eos_ids)
        real = speculative_generate(pair.target, Hesitant(drafter, least), ids, 40, 8, eos_ids=pair.eos_ids).rounds
        replayed = replayed_rounds(trace, 8, 40, lambda law: law.stopping_below(least))
        assert [each.accepted for each in real] == [each.accepted for each in replayed]
        for one, other in zip(real, replayed, strict=True):
            known = one.accepted + 1 if draft != "shared" else 8
            assert min(one.proposed, known) == min(other.proposed, known)
        lengths |= {each.proposed for each in real}
    assert {0, 8} & lengths
    assert len(lengths) > 3


def test_confidence_is_a_probability_for_models_and_absent_for_look_ups(pairs: dict[str, Pair]) -> None:
    ids = pairs["self"].encode(KINDS["code"].text)
    sampled = [trace_prompt(pairs["self"].target, pairs["byte_pair"].drafter, ids, 16, sampling=Sampling(t)) for t in (0.5, 1.5)]
    assert all(0 < value <= 1 for trace in sampled for value in trace.confidence)
    first = [trace.confidence[0] for trace in sampled]
    assert first[0] == pytest.approx(first[1]), "at temperature 1, whatever the sampler"
    assert trace_prompt(pairs["ngram"].target, pairs["ngram"].drafter, ids, 16).confidence is None


def test_a_wrong_trace_would_be_noticed(pairs: dict[str, Pair]) -> None:
    pair, ids = pairs["byte_pair"], pairs["byte_pair"].encode(KINDS["code"].text)
    trace = trace_prompt(pair.target, pair.drafter, ids, 48, eos_ids=pair.eos_ids)
    real = list(speculative_generate(pair.target, pair.drafter, ids, 48, 4, eos_ids=pair.eos_ids).rounds)
    flipped = replace(trace, acceptance=(trace.acceptance[0], 1 - trace.acceptance[1], *trace.acceptance[2:]))
    assert replayed_rounds(trace, 4, 48) == real != replayed_rounds(flipped, 4, 48)


@pytest.mark.parametrize(("draft", "tokens"), [("byte_pair", 52), ("ngram", 24), ("exit:2", 32)])
def test_sampled_rounds_are_those_the_replay_of_their_text_expects(pairs: dict[str, Pair], draft: str, tokens: int) -> None:
    """Given the emitted text the accept flags are independent with known probabilities, so prompts need no averaging."""
    pair, gamma, sampling = pairs[draft], 4, Sampling(temperature=0.8)
    rounds, expected, variance = 0, 0.0, 0.0
    for index, prompt in enumerate(PROMPTS):
        ids = pair.encode(prompt.text)
        real = speculative_generate(
            pair.target, pair.drafter, ids, tokens, gamma, sampling=sampling, seed=index, eos_ids=pair.eos_ids
        )
        if len(real.tokens) > 1:
            law = retraced(pair, ids, real.tokens, sampling)
            counts = [len(walk(law, gamma, seed)) for seed in range(100)]
            rounds += len(real.rounds)
            expected += law.rounds(gamma)
            variance += float(np.var(counts))
    assert rounds >= 300
    assert abs(rounds - expected) <= 2 * math.sqrt(variance), (rounds, expected, math.sqrt(variance))


def retraced(pair: Pair, ids: list[int], tokens: tuple[int, ...], sampling: Sampling) -> TraceAcceptance:
    """The trace of a text that is already there."""
    from calibration.tracing import trace_text

    return as_law(trace_text(pair.target, pair.drafter, ids, tokens, sampling=sampling))


def walk(law: TraceAcceptance, gamma: int, seed: int) -> list[int]:
    """Accepted drafts of each round of one replay, which starts after the token of the prefill."""
    length = int(law.lengths.sum())
    path, position, accepted = law.path(0, length, seed=seed), 1, []
    while position < length:
        proposed = path.proposed(position, min(gamma, length - position - 1))
        accepted.append(path.accepted(position, proposed) if proposed else 0)
        position += accepted[-1] + 1
    return accepted


def test_replay_of_independent_text_gives_the_sampled_tokens_per_round(pairs: dict[str, Pair]) -> None:
    pair, gamma, sampling = pairs["byte_pair"], 4, Sampling(temperature=0.8)
    real, replayed = [], []
    for index, prompt in enumerate(PROMPTS):
        ids = pair.encode(prompt.text)
        run = speculative_generate(
            pair.target, pair.drafter, ids, 48, gamma, sampling=sampling, seed=1000 + index, eos_ids=pair.eos_ids
        )
        real.append((len(run.tokens) - 1, len(run.rounds)))
        trace = as_law(
            trace_prompt(pair.target, pair.drafter, ids, 48, sampling=sampling, seed=2000 + index, eos_ids=pair.eos_ids)
        )
        replayed.append((int(trace.lengths[0]) - 1, trace.rounds(gamma)))
    assert sum(rounds for _, rounds in real) >= 300
    (ours, error), (theirs, other_error) = ratio(real), ratio(replayed)
    assert abs(ours - theirs) <= 2 * math.hypot(error, other_error)


def ratio(counts: list[tuple[int, float]]) -> tuple[float, float]:
    """Σ tokens / Σ rounds over prompts and its standard error."""
    tokens, rounds = np.array(counts, dtype=float).T
    value = tokens.sum() / rounds.sum()
    return value, float(np.std(tokens - value * rounds) / rounds.mean() / math.sqrt(len(rounds)))


def test_a_trace_is_the_text_of_plain_decoding_and_self_drafting_always_agrees(pairs: dict[str, Pair]) -> None:
    pair, ids = pairs["self"], pairs["self"].encode(KINDS["code"].text)
    for sampling in (GREEDY, Sampling(temperature=0.8, top_k=20)):
        trace = trace_prompt(pair.target, pair.drafter, ids, 32, sampling=sampling, seed=3)
        assert trace.tokens == plain_generate(pair.target, ids, 32, sampling=sampling, seed=3).tokens
        assert np.allclose(trace.acceptance, 1.0, atol=1e-4)


def test_a_draft_that_samples_and_depends_on_its_round_is_refused(pairs: dict[str, Pair]) -> None:
    from calibration.decoding import DecodingError

    pair = pairs["self"]
    with pytest.raises(DecodingError, match="must draft greedily"):
        trace_prompt(pair.target, heads(pair)[0], [1, 2], 4, sampling=Sampling(temperature=0.8))


@pytest.mark.parametrize(("draft", "gamma", "tokens"), [("skip:12-17", 2, 28), ("ngram", 3, 20)])
def test_sampled_rounds_of_smollm2_are_those_the_replay_of_their_text_expects(
    smollm2_pairs: dict[str, Pair], draft: str, gamma: int, tokens: int
) -> None:
    """Short prompts in one batch, three times over with random numbers of their own, so that rounds are many and passes few."""
    pair, sampling = smollm2_pairs[draft], Sampling(temperature=0.8)
    texts = ("one two three, one two three, one two", "The names of the months are January,", "def add(a, b):\n    return a + b\n\n\ndef",
             "Once upon a time there was a", "Water boils at 100 degrees. Water freezes at", "1. apple\n2. pear\n3.", "Dear Sir or Madam,\n",
             "The cat sat on the mat. The dog sat on the")  # fmt: skip
    prompts = [pair.tokenizer(text)["input_ids"] for text in texts] * 3
    real = speculative_generate_batch(
        pair.target, pair.drafter, prompts, tokens, gamma, sampling=sampling, seed=11, eos_ids=pair.eos_ids
    )
    rounds, expected, variance = 0, 0.0, 0.0
    for ids, text, own in zip(prompts, real.tokens, real.rounds, strict=True):
        if len(text) > 1:
            law = retraced(pair, ids, text, sampling)
            rounds += len(own)
            expected += law.rounds(gamma)
            variance += float(np.var([len(walk(law, gamma, seed)) for seed in range(100)]))
    assert rounds >= 300
    assert abs(rounds - expected) <= 2 * math.sqrt(variance), (rounds, expected, math.sqrt(variance))


@pytest.mark.parametrize("draft", ["skip:12-17", "ngram", "self"])
def test_real_rounds_of_smollm2_equal_the_replay(smollm2_pairs: dict[str, Pair], draft: str) -> None:
    pair = smollm2_pairs[draft]
    for category in ("copy", "list") if draft != "self" else ("list",):
        check_replay(pair, pair.drafter, KINDS[category].text, 14, (2, 8))


# ---------------------------------------------------------------------------------------------------- the trace command


def order(few: Path, **changes) -> TraceOrder:
    return replace(TraceOrder("byte_pair", "byte_pair", max_new_tokens=12), **{"prompts": str(few), **changes})


@pytest.fixture
def few(tmp_path: Path) -> Path:
    path = tmp_path / "few.jsonl"
    path.write_text("".join(json.dumps({"prompt": each.text, "category": each.category}) + "\n" for each in PROMPTS[:12:4]))
    return path


def test_a_killed_run_goes_on_after_its_last_finished_prompt(few: Path, tmp_path: Path) -> None:
    def die_in_the_third(_: str, done: int, __: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace_pair(order(few), tmp_path / "t.npz", die_in_the_third)
    part = tmp_path / ".t.npz.part"
    part.write_bytes(part.read_bytes() + b'{"index": 2, "tok')
    resumed = trace_pair(order(few), tmp_path / "t.npz")
    assert resumed.resumed == 2
    whole = trace_pair(order(few), tmp_path / "whole.npz")
    assert whole.resumed == 0
    assert (tmp_path / "t.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["few.jsonl", "t.npz", "whole.npz"]


def test_a_damaged_log_is_used_up_to_the_damage(few: Path, tmp_path: Path) -> None:
    def die_at_the_end(_: str, done: int, total: int) -> None:
        if done == total - 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace_pair(order(few), tmp_path / "t.npz", die_at_the_end)
    part = tmp_path / ".t.npz.part"
    header, first, *_ = part.read_bytes().split(b"\n")
    part.write_bytes(b"\n".join([header, first, b'{"index": 1', b""]))
    assert trace_pair(order(few), tmp_path / "t.npz").resumed == 1
    trace_pair(order(few), tmp_path / "whole.npz")
    assert (tmp_path / "t.npz").read_bytes() == (tmp_path / "whole.npz").read_bytes()


def test_prompts_may_begin_with_a_byte_order_mark_and_hold_any_end_of_line(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('\ufeff{"prompt": "one\u2028two"}\r\n{"prompt": "three"}\r\n', encoding="utf-8", newline="")
    assert [prompt.text for prompt in read_prompts(path)] == ["one\u2028two", "three"]


def test_what_another_order_left_behind_is_not_taken_over(few: Path, tmp_path: Path) -> None:
    def die(_: str, done: int, __: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trace_pair(order(few), tmp_path / "t.npz", die)
    assert trace_pair(order(few, max_new_tokens=11), tmp_path / "t.npz").resumed == 0


@pytest.mark.parametrize("draft", ["byte_pair", "ngram"])
def test_both_containers_hold_the_same_trace_and_its_origin(few: Path, tmp_path: Path, draft: str) -> None:
    asked = order(few, draft=draft, store_tokens=True)
    one, other = (trace_pair(asked, tmp_path / f"t.{suffix}").path for suffix in ("npz", "parquet"))
    ours, theirs = read_trace_file(one), read_trace_file(other)
    assert (ours.trace.confidence is None) == (draft == "ngram")
    for name in ("acceptance", "lengths", "proposed", "category", "confidence"):
        assert np.array_equal(getattr(ours.trace, name), getattr(theirs.trace, name))
    for name in ("prompt_sha256", "output_sha256", "token_ids"):
        assert np.array_equal(getattr(ours, name), getattr(theirs, name))
    assert ours.provenance == theirs.provenance
    assert ours.source_text() == f"byte_pair with {draft}; 3 few.jsonl prompts, up to 12 new tokens each; greedy"
    assert ours.trace.category_names() == ("chat", "code", "explain")


def test_token_ids_are_hashed_and_not_stored_unless_asked_for(few: Path, tmp_path: Path) -> None:
    content = trace_pair(order(few), tmp_path / "t.npz").file
    assert content.token_ids is None
    assert "token_ids" not in np.load(tmp_path / "t.npz").files
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in (*content.prompt_sha256, *content.output_sha256))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"target": "bite_pair"}, "bite_pair: no such folder or GGUF file, and no known name (byte_pair, smollm2)"),
        (
            {"target": "owner/absent"},
            "owner/absent: is not on this machine and the hub cannot be reached; give a Hugging Face folder",
        ),
        ({"target": "absent.gguf"}, "absent.gguf: no such file"),
        ({"target": "."}, ".: must hold a Hugging Face model (a folder with config.json)"),
        ({"draft": "exit:4"}, "exit must name how many layers run, 1 to 3 (got 'exit:4')"),
        ({"draft": "skip:2-9"}, "skip must name layers from 0 to 3, such as skip:2-3,5 (got '2-9')"),
        ({"draft": "skip:0-3"}, "skip must leave at least one of the 4 layers"),
        ({"draft": "ngram:0"}, "ngram must name the longest and shortest match"),
        (
            {"target": str(MODELS / "byte_pair" / "target"), "draft": "medusa"},
            "medusa:FILE.safetensors, or medusa:random; medusa alone goes with target byte_pair",
        ),
        ({"draft": "medusa:absent.safetensors"}, "draft medusa: absent.safetensors: no such file"),
        ({"draft": "eagle:few.jsonl"}, "draft eagle: few.jsonl: must be a safetensors file"),
        ({"draft": f"medusa:{SHIPPED}"}, "must hold the tensor output.0.weight of medusa-style heads (its tensors: model.embed"),
        ({"draft": f"eagle:{SHIPPED}"}, "must hold the tensor join.weight of eagle-style heads"),
        ({"dtype": "fp8"}, "dtype: must be one of fp32, bf16, fp16 (got 'fp8')"),
        ({"device": "warp"}, "device: must be one that torch can use here"),
        ({"temperature": -1.0}, "--temperature: must be at least 0"),
        ({"temperature": 1.0, "top_p": 0.0}, "--top-p: must be above 0"),
        ({"top_k": 5}, "--top-k: must be left out at temperature 0"),
        ({"top_p": 0.5}, "--top-p: must be left out at temperature 0"),
        ({"target": "byte_par"}, "a model of a hub is named owner/name; did you mean byte_pair?"),
        ({"draft": ""}, "--draft: no such folder or GGUF file"),
        ({"prompts": ""}, "--prompts: must be a file, not a folder"),
        ({"max_new_tokens": 500}, "prompt 1 and its output must fit the context of 512 tokens of target byte_pair"),
        ({"prompts": "absent.jsonl"}, "absent.jsonl: no such file"),
    ],
)
def test_a_wrong_order_is_refused_in_one_line_and_leaves_nothing_behind(
    few: Path, tmp_path: Path, changes: dict[str, object], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("calibration.pairs._hub_in_reach", lambda: False)
    with pytest.raises(SpecError) as refused:
        trace_pair(order(few, **changes), tmp_path / "t.npz")
    assert message in str(refused.value)
    assert len(refused.value.problems) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["few.jsonl"]


def test_a_draft_with_another_vocabulary_is_refused(tmp_path: Path) -> None:
    import shutil

    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    other = tmp_path / "other"
    shutil.copytree(model_source("byte_pair", "draft"), other)
    words = PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a")))
    words.save_pretrained(other)
    with pytest.raises(
        PairError, match=r"another vocabulary \(2 tokens\) than target byte_pair \(257 tokens, 0 with the same number\)"
    ):
        load_pair("byte_pair", str(other))


def test_heads_of_a_file_draft_as_those_written_whatever_their_tensors_are_called(pairs: dict[str, Pair], tmp_path: Path) -> None:
    from safetensors.torch import load_file, save_file

    pair, ids = pairs["self"], pairs["self"].encode(KINDS["code"].text)
    for number, drafter in enumerate(heads(pair)):
        kind, path = drafter.name, tmp_path / f"{drafter.name}.safetensors"
        for tensor in drafter.head.parameters():
            tensor.data = tensor.data.to(torch.bfloat16).float()
        write_head(path, drafter.head)
        read = with_draft(pair, f"{kind}:{path}")
        expected = trace_prompt(pair.target, drafter, ids, 12)
        assert trace_prompt(pair.target, read.drafter, ids, 12) == expected
        assert re.fullmatch("[0-9a-f]{16}", read.draft_fingerprint)
        if number == 0:
            published = {
                re.sub(r"output\.(\d)", r"\1.1", re.sub(r"residual\.(\d)", r"\1.0.linear", name)): tensor
                for name, tensor in load_file(path).items()
            }
            save_file(published, tmp_path / "published.safetensors")
            other = with_draft(pair, f"medusa:{tmp_path / 'published.safetensors'}")
            assert trace_prompt(pair.target, other.drafter, ids, 12) == expected


def test_heads_of_another_model_or_with_tensors_too_many_are_refused(pairs: dict[str, Pair], tmp_path: Path) -> None:
    from calibration.decoding import DecodingError

    write_head(tmp_path / "narrow.safetensors", MedusaHeads(128, 257, 2))
    with pytest.raises(DecodingError, match=r"must have the width of target byte_pair, 256 \(got 128\)"):
        with_draft(pairs["self"], f"medusa:{tmp_path / 'narrow.safetensors'}")
    deep = MedusaHeads(256, 257, 2)
    deep.residual.append(torch.nn.Linear(256, 256))
    write_head(tmp_path / "deep.safetensors", deep)
    with pytest.raises(ModelFileError, match=r"must hold the tensors of one head each: Unexpected key\(s\)"):
        with_draft(pairs["self"], f"medusa:{tmp_path / 'deep.safetensors'}")


def test_a_folder_loads_as_the_pair_it_holds(pairs: dict[str, Pair]) -> None:
    by_folder = load_pair(model_source("byte_pair", "target"), model_source("byte_pair", "draft"))
    assert by_folder.target_fingerprint == pairs["byte_pair"].target_fingerprint
    assert by_folder.draft_fingerprint == pairs["byte_pair"].draft_fingerprint != by_folder.target_fingerprint
    ids = by_folder.encode("def f(x):\n")
    assert trace_prompt(by_folder.target, by_folder.drafter, ids, 8) == trace_prompt(
        pairs["byte_pair"].target, pairs["byte_pair"].drafter, ids, 8
    )


def test_a_file_that_only_claims_to_be_gguf_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECSIM_CACHE", str(tmp_path / "cache"))
    (tmp_path / "no.gguf").write_bytes(b"not a model")
    with pytest.raises(ModelFileError, match="cannot be read as a GGUF model"):
        load_pair(str(tmp_path / "no.gguf"), "self")
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.is_dir()] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "must be one JSON object per line"),
        ('{"prompt": "a", "prompt": "b"}', "prompt: must stand only once"),
        ("[" * 100_000, "must be one JSON object per line"),
        ('["a"]', "must be a JSON object"),
        ('{"prompt": "a", "kind": "b"}', "kind: unknown key"),
        ('{"category": "b"}', "exactly one of prompt, turns"),
        ('{"prompt": " "}', "must be text that is not empty"),
        ('{"turns": []}', "must be text that is not empty"),
        ('{"prompt": "a", "category": 3}', "category: must be text (got 3)"),
        ('{"prompt": "half \\ud800"}', "must be text in Unicode"),
        ("", "must hold at least one prompt"),
        ('{"prompt": "a", "category": "x"}\n{"prompt": "b"}', "category: must stand on every line or on none"),
    ],
)
def test_a_broken_prompt_file_is_refused_with_its_line(line: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "p.jsonl").write_text(line + "\n")
    with pytest.raises(PromptError, match=re.escape(message)):
        read_prompts(tmp_path / "p.jsonl")
    assert read_prompts(BUILTIN)


def test_the_built_in_prompts_cover_each_kind_and_fit_the_shipped_pair(pairs: dict[str, Pair]) -> None:
    counts = {category: sum(prompt.category == category for prompt in PROMPTS) for category in KINDS}
    assert set(counts) == {"code", "chat", "explain", "list", "copy", "edit"}
    assert set(counts.values()) == {4}
    pair = pairs["byte_pair"]
    assert pair.context_limit is not None
    assert max(len(pair.encode(prompt.text)) for prompt in PROMPTS) + 96 <= pair.context_limit


def test_the_shipped_trace_is_what_the_shipped_pair_gives() -> None:
    """Its first prompts, traced again: weights, prompts and trace file belong together."""
    shipped = Path(__file__).parents[1] / "acceptance_profiles" / "byte_pair.npz"
    content, pair = read_trace_file(shipped), load_pair("byte_pair", "byte_pair")
    assert content.provenance["target_fingerprint"] == pair.target_fingerprint
    for index, part in enumerate(list(load_trace(shipped).prompts())[:2]):
        ids, length = pair.encode(PROMPTS[index].text), int(part.lengths[0])
        again = trace_prompt(
            pair.target, pair.drafter, ids, length, sampling=Sampling(0.8), seed=content.provenance["seed"], sequence=index
        )
        assert again.output_sha256 == content.output_sha256[index]
        assert list(again.acceptance) == pytest.approx(part.acceptance, abs=1e-4)
