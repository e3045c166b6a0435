"""`python -m calibration.head_training`: trains Medusa-style and EAGLE-style heads on a trained byte-level target.

Same text, windows and optimisers as the target's own training (`training`); the target stays as it is. What is learnt is the
target's distribution and the text, half and half. One thread, one seed.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as functional
from transformers import LlamaForCausalLM

from calibration.decoding import EagleHead, MedusaHeads
from calibration.head_files import Head, write_head
from calibration.tiny_decoder import LayerCache
from calibration.training import SEED, Corpus, Plan, corpus, distance, optimise

NUM_HEADS = 4
LATER_HEADS_COUNT = 0.8  # each head weighs this much of the one before it, as its authors' do
NOISE = 0.1  # uniform, on the states an EAGLE head is given: at work they are its own guesses. Its authors' value
MEDUSA_PLAN = Plan(steps=120, falling=60, stream=700)
EAGLE_PLAN = Plan(steps=120, falling=60, stream=800)


def train_medusa(heads: MedusaHeads, target: LlamaForCausalLM, text: Corpus, plan: Plan) -> None:
    """Head i learns, from the state at a token, what the target says i + 1 tokens later: the token i + 2 places on."""

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        states, wanted = _target_of(target, ids)
        losses, weights = [], []
        for index, logits in enumerate(heads(states)):
            ahead = index + 1
            own = logits[:, : -ahead - 1].flatten(0, 1)
            losses.append(_loss(own, wanted[:, ahead:-1].flatten(0, 1), ids[:, ahead + 1 :].flatten()))
            weights.append(LATER_HEADS_COUNT**index)
        return sum(w * loss for w, loss in zip(weights, losses, strict=True)) / sum(weights)

    optimise(heads, loss_of, text, plan)


def train_eagle(head: EagleHead, target: LlamaForCausalLM, text: Corpus, plan: Plan) -> None:
    """From each token and the state before it, the state at the token and what the target says there."""
    noise = torch.Generator().manual_seed(SEED)

    def loss_of(ids: torch.Tensor) -> torch.Tensor:
        states, wanted = _target_of(target, ids)
        given = states[:, :-1]
        given = given + NOISE * (2 * torch.rand(given.shape, generator=noise) - 1)
        with torch.no_grad():
            embeddings = target.get_input_embeddings()(ids[:, 1:])
        guessed = head(embeddings, given, LayerCache())
        logits = target.get_output_embeddings()(guessed)[:, :-1].flatten(0, 1)
        loss = _loss(logits, wanted[:, 1:-1].flatten(0, 1), ids[:, 2:].flatten())
        return loss + functional.smooth_l1_loss(guessed, states[:, 1:])

    optimise(head, loss_of, text, plan)


def _target_of(target: LlamaForCausalLM, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(states that feed the output head, log probabilities of the next token), by place."""
    with torch.no_grad():
        states = target.base_model(input_ids=ids, use_cache=False).last_hidden_state
        return states, target.get_output_embeddings()(states).log_softmax(-1)


def _loss(logits: torch.Tensor, wanted: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return (functional.cross_entropy(logits, tokens) + distance(logits, wanted)) / 2


def main(pair: Path, out: Path) -> None:
    """Trains both on the target in `pair`, about four CPU minutes, and writes them and the record of the training."""
    torch.set_num_threads(1)
    text, started = corpus(), time.process_time()
    target = LlamaForCausalLM.from_pretrained(pair / "target", dtype=torch.float32).eval().requires_grad_(False)
    torch.manual_seed(SEED)
    config = target.config
    medusa = MedusaHeads(config.hidden_size, config.vocab_size, NUM_HEADS)
    for residual, output in zip(medusa.residual, medusa.output, strict=True):
        torch.nn.init.zeros_(residual.weight)
        output.weight.data.copy_(target.get_output_embeddings().weight.data)
    eagle = EagleHead(config.hidden_size, config.num_attention_heads)
    train_medusa(medusa, target, text, MEDUSA_PLAN)
    train_eagle(eagle, target, text, EAGLE_PLAN)
    heads: dict[str, tuple[Head, Plan]] = {"medusa": (medusa, MEDUSA_PLAN), "eagle": (eagle, EAGLE_PLAN)}
    for name, (head, _) in heads.items():
        write_head(out / f"{name}.safetensors", head)
    facts = {
        "corpus_sha256": text.sha256,
        "seed": SEED,
        "steps": {name: plan.steps for name, (_, plan) in heads.items()},
        "parameters": {name: sum(each.numel() for each in head.parameters()) for name, (head, _) in heads.items()},
        "torch": torch.__version__,
        "cpu_s": round(time.process_time() - started),
    }
    (out / "head_training.json").write_text(json.dumps(facts, indent=2) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
