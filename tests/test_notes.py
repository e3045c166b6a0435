"""Every verb says what is doubtful about a scenario: the same notes, whichever question is asked."""

from __future__ import annotations

import pytest
import yaml

from simulator.__main__ import main

DOUBTFUL = {
    "hardware": "m3_max",
    "engine": "mlx",
    "target": {"model": "Qwen/Qwen3-8B", "weights": "int4"},
    "speculation": {"method": "block", "num_speculative_tokens": 3},
    "acceptance": {"acceptance_rate": 0.7},
    "alternatives": [{"speculation": {"method": "ngram", "num_speculative_tokens": 3}, "acceptance": {"acceptance_rate": 0.4}}],
    "workload": {
        "arrivals": {"process": "poisson", "rate_per_s": 0.3},
        "lengths": {"prompt": 200, "output": 40},
        "num_requests": 30,
    },
    "limits": {"max_num_seqs": 8},
}
BUILT = "no drafter named: block drafting by a module built from the target"
NEVER_FITTED = "published runs never fitted"
ABOUT_ONE = "alone: run, capacity, schedule, sweep and the map of break-even compare the alternatives too"
PRICED = (BUILT, "never measured against in MLX", NEVER_FITTED)
VERBS = {
    ("run",): PRICED,
    ("capacity", "--repetitions", "1"): PRICED,
    ("schedule",): PRICED,
    ("explain",): (*PRICED, ABOUT_ONE),
    ("break-even",): PRICED,
    ("compare", "--by", "quantize"): (*PRICED, ABOUT_ONE),
    ("sweep", "--question", "predict", "--set", "seed=1,2"): PRICED,
    ("export", "--engine", "vllm"): ("was measured on meta-llama/Llama-3.1-8B-Instruct, not on Qwen/Qwen3-8B", ABOUT_ONE),
}


@pytest.mark.parametrize("arguments", VERBS, ids=lambda arguments: arguments[0])
def test_a_verb_says_every_note_that_applies_and_says_it_once(arguments, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    path = tmp_path / "s.yaml"
    data = DOUBTFUL
    if arguments[0] == "export":  # engines take no head without a name
        drafter = {"method": "eagle3", "drafter": "AngelSlim/Qwen3-8B_eagle3", "num_speculative_tokens": 3}
        data = {**DOUBTFUL, "speculation": drafter, "acceptance": {"profile": "llama31_8b_eagle3_mtbench"}}
    path.write_text(yaml.safe_dump(data))
    assert main([arguments[0], str(path), *arguments[1:]]) == 0
    shown = capsys.readouterr()
    notes = [line for line in (shown.out + shown.err).splitlines() if line.startswith("Note: ")]
    for note in VERBS[arguments]:
        assert any(note in line for line in notes), (note, notes)
    assert len(set(notes)) == len(notes)
