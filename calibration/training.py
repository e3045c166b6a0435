"""`python -m calibration.training`: trains the small byte-level pair that ships in `calibration/models/byte_pair`.

Text: the standard library of the Python that runs this, source and language reference (PSF-2.0), nothing fetched. A
quarter of the windows repeat a passage, some with one word exchanged: that is what copying is learnt from, by a model
that trains longer than this one (raise `steps`). The draft is distilled from the target on windows of the same kind. One
thread, one seed: the same library versions give the same weights.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as functional
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SEED = 20
WINDOW = 512
BATCH = 8
END_OF_TEXT = 256
MATRIX_RATE = 0.04  # of 0.02 and 0.05 tried over 120 steps of the draft the larger did better
VECTOR_RATE = 5e-3
TARGET = {"hidden_size": 256, "num_hidden_layers": 4, "intermediate_size": 704}
DRAFT = {"hidden_size": 128, "num_hidden_layers": 2, "intermediate_size": 352}
LEFT_OUT = {"encodings", "idlelib", "lib2to3", "pydoc_data", "site-packages", "test", "tests", "turtledemo", "__pycache__"}


@dataclass(frozen=True, slots=True)
class Plan:
    """How long a model trains: the learning rate rises over the first steps and falls to nothing over the last `falling`.

    `stream` names the random stream that draws the windows.
    """

    steps: int
    falling: int
    stream: int
    rising: float = 34.5

    def rate(self, step: int) -> float:
        return min((step + 1) / self.rising, 1.0, (self.steps - step) / self.falling)


TARGET_PLAN = Plan(steps=800, falling=225, stream=1150)
DRAFT_PLAN = Plan(steps=300, falling=150, stream=500)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents by kind, as bytes; every twentieth is held out of training."""

    reference: list[bytes]
    source: list[bytes]
    held_out: list[bytes]
    sha256: str
    files: int


def corpus() -> Corpus:
    """The language reference (`pydoc_data.topics`) and the library's own source.

    Files that name a copyright holder other than the Python Software Foundation are left out, so that one licence covers
    the text; generated tables and tests are left out because they are not prose or code a person would write.
    """
    from pydoc_data.topics import topics

    root = Path(sysconfig.get_paths()["stdlib"])
    reference = [topics[name].encode() for name in sorted(topics)]
    source = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).parts
        if LEFT_OUT & set(parts) or path.name.startswith("_sysconfigdata"):
            continue
        text = path.read_bytes()
        foreign = b"copyright" in text.lower() and b"Python Software Foundation" not in text
        if len(text) > 2000 and not foreign:
            source.append(text)
    digest = hashlib.sha256(b"\0".join((*reference, *source))).hexdigest()
    held_out = reference[::20] + source[::20]
    kept_reference = [text for index, text in enumerate(reference) if index % 20]
    kept_source = [text for index, text in enumerate(source) if index % 20]
    return Corpus(kept_reference, kept_source, held_out, digest, len(reference) + len(source))


def windows(text: Corpus, generator: np.random.Generator) -> Iterator[torch.Tensor]:
    """Batches of token ids (BATCH, WINDOW): 40 % source, 35 % reference, 25 % windows that repeat a passage."""
    joined = {
        kind: np.concatenate(
            [np.append(np.frombuffer(document, np.uint8).astype(np.int64), END_OF_TEXT) for document in documents]
        )
        for kind, documents in (("source", text.source), ("reference", text.reference))
    }

    def passage(length: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        tokens = joined["source" if generator.random() < 0.53 else "reference"]
        start = int(generator.integers(len(tokens) - length))
        return tokens[start : start + length]

    def repeated() -> np.ndarray[Any, np.dtype[np.int64]]:
        """Lead, passage, gap, the passage again: until the window is full."""
        first = passage(int(generator.integers(40, 240)))
        parts = [passage(int(generator.integers(1, 80))), first]
        while sum(map(len, parts)) < WINDOW:
            again = _with_one_word_exchanged(first, generator) if generator.random() < 0.3 else first
            parts += [np.array([10, 10]) if generator.random() < 0.5 else passage(int(generator.integers(1, 60))), again]
        return np.concatenate(parts)[:WINDOW]

    while True:
        rows = [repeated() if generator.random() < 0.25 else passage(WINDOW) for _ in range(BATCH)]
        yield torch.from_numpy(np.stack(rows))


def _with_one_word_exchanged(tokens: np.ndarray[Any, Any], generator: np.random.Generator) -> np.ndarray[Any, np.dtype[np.int64]]:
    if (tokens == END_OF_TEXT).any():
        return tokens
    text = bytes(tokens.astype(np.uint8))
    words = sorted(set(re.findall(rb"[A-Za-z_]{4,}", text)))
    if len(words) < 2:
        return tokens
    old, new = (words[index] for index in generator.choice(len(words), 2, replace=False))
    changed = re.sub(rb"\b" + old + rb"\b", new, text)
    return np.frombuffer(changed, np.uint8).astype(np.int64)


def model(hidden_size: int, num_hidden_layers: int, intermediate_size: int) -> LlamaForCausalLM:
    """A Llama of this size over bytes and one end-of-text token."""
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=END_OF_TEXT + 1,
            hidden_size=hidden_size,
            num_hidden_layers=num_hidden_layers,
            intermediate_size=intermediate_size,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=WINDOW,
            tie_word_embeddings=True,
            bos_token_id=END_OF_TEXT,
            eos_token_id=END_OF_TEXT,
        )
    )


def train(student: LlamaForCausalLM, text: Corpus, plan: Plan, teacher: LlamaForCausalLM | None = None) -> None:
    """Next-byte training in place; with a teacher the loss is half cross entropy, half distance to its distribution."""

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        logits = student(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
        loss = functional.cross_entropy(logits, ids[:, 1:].flatten())
        if teacher is not None:
            with torch.no_grad():
                wanted = teacher(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1).log_softmax(-1)
            loss = (loss + distance(logits, wanted)) / 2
        return loss

    optimise(student, loss_of, text, plan)


def distance(logits: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Kullback-Leibler distance to log probabilities, mean over rows."""
    return functional.kl_div(logits.log_softmax(-1), wanted, reduction="batchmean", log_target=True)


def optimise(student: torch.nn.Module, loss_of: Callable[[torch.Tensor], torch.Tensor], text: Corpus, plan: Plan) -> None:
    """Takes the steps of a plan in place, on windows of the text."""
    matrices = [p for name, p in student.named_parameters() if p.ndim == 2 and "embed" not in name]
    others = [p for name, p in student.named_parameters() if not (p.ndim == 2 and "embed" not in name)]
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=MATRIX_RATE, momentum=0.95, weight_decay=0.01),
        torch.optim.AdamW(others, lr=VECTOR_RATE, betas=(0.9, 0.95), weight_decay=0.0),
    ]
    schedules = [torch.optim.lr_scheduler.LambdaLR(each, plan.rate) for each in optimizers]
    batches, started = windows(text, np.random.default_rng([SEED, plan.stream])), time.thread_time()
    for step in range(plan.steps):
        ids = next(batches)
        loss = loss_of(ids)
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
        if step % 50 == 0 or step == plan.steps - 1:
            print(
                f"step {step:5d}  loss {loss.item():.3f}  {time.thread_time() - started:.0f} CPU s", file=sys.stderr, flush=True
            )


@torch.no_grad()
def bits_per_byte(judged: LlamaForCausalLM, documents: list[bytes]) -> float:
    """Mean over the first windows of the held-out documents."""
    rows = [list(document[:WINDOW]) for document in documents if len(document) >= WINDOW]
    ids = torch.tensor(rows)
    logits = judged(input_ids=ids, use_cache=False).logits[:, :-1].flatten(0, 1)
    return float(functional.cross_entropy(logits, ids[:, 1:].flatten())) / float(np.log(2))


def tokenizer() -> PreTrainedTokenizerFast:
    """Token id = byte value; 256 ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    # GPT-2's printable stand-ins for bytes: those that print stand for themselves, the others for 256, 257, …
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in printable]
    letters = {byte: chr(byte) for byte in printable} | {byte: chr(256 + index) for index, byte in enumerate(hidden)}
    byte_level = Tokenizer(models.BPE(vocab={letters[byte]: byte for byte in range(256)}, merges=[]))
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    byte_level.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=byte_level, eos_token="<|end|>", model_max_length=WINDOW)


def rounded_to_bf16(trained: LlamaForCausalLM) -> LlamaForCausalLM:
    """The weights as they are shipped: half the bytes, and the same numbers whether read as bf16 or as fp32."""
    return trained.to(torch.bfloat16).to(torch.float32)


def main(folder: Path) -> None:
    """Trains both models, about 20 CPU minutes, and writes them, their tokenizer and the record of the training."""
    torch.set_num_threads(1)
    text, started = corpus(), time.process_time()
    torch.manual_seed(SEED)
    target, draft = model(**TARGET), model(**DRAFT)
    train(target, text, TARGET_PLAN)
    target = rounded_to_bf16(target).eval()
    _save(target, folder / "target")
    train(draft, text, DRAFT_PLAN, teacher=target)
    draft = rounded_to_bf16(draft).eval()
    _save(draft, folder / "draft")
    record(target, draft, text, folder, time.process_time() - started)


def record(target: LlamaForCausalLM, draft: LlamaForCausalLM, text: Corpus, folder: Path, cpu_s: float) -> None:
    """Writes beside the weights what they were trained on, with what, and how well they predict held-out text."""
    facts = {
        "corpus_sha256": text.sha256,
        "corpus_documents": text.files,
        "corpus_bytes": sum(map(len, (*text.reference, *text.source, *text.held_out))),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "seed": SEED,
        "bytes_seen": {"target": TARGET_PLAN.steps * BATCH * WINDOW, "draft": DRAFT_PLAN.steps * BATCH * WINDOW},
        "parameters": {"target": target.num_parameters(), "draft": draft.num_parameters()},
        "held_out_bits_per_byte": {
            name: round(bits_per_byte(trained, text.held_out), 3) for name, trained in (("target", target), ("draft", draft))
        },
        "cpu_s": round(cpu_s),
    }
    (folder / "training.json").write_text(json.dumps(facts, indent=2) + "\n")


def _save(trained: LlamaForCausalLM, folder: Path) -> None:
    trained.to(torch.bfloat16).save_pretrained(folder)
    trained.to(torch.float32)
    tokenizer().save_pretrained(folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
