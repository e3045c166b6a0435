"""Sentences on a terminal: what a reader copies from them stays whole."""

from __future__ import annotations

import io

from rich.console import Console

from simulator.console import print_sentence


def test_a_model_name_is_never_cut_at_its_hyphens():
    name = "meta-llama/Llama-3.3-70B-Instruct"
    for before in range(50, 80):
        console = Console(file=io.StringIO(), width=80)
        print_sentence(console, f"{'x' * before} {name} and γ = 5")
        assert name in console.file.getvalue()
