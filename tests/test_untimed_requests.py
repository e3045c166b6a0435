"""Conversations and lengths without arrival times: counted as stated, read in bounded memory, refused where they are broken."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from simulator.interchange.request_traces import request_source
from simulator.interchange.untimed_requests import read_untimed
from simulator.scenario import scenario_of
from simulator.spec import SpecError, parse_yaml
from simulator.workload import RequestTrace

TEXT = """
hardware: h100_sxm
engine: vllm
target: {{model: meta-llama/Llama-3.1-8B-Instruct}}
workload:
  arrivals: {arrivals}
  requests: {requests}
"""


def chat(*values: Any, key: str = "conversations") -> dict[str, Any]:
    return {"id": "a", key: [{"from": who, "value": value} for who, value in zip(("human", "gpt") * 3, values, strict=False)]}


def trace(path: Path, **options: Any) -> RequestTrace:
    found = request_source(str(path), **options)
    assert isinstance(found, RequestTrace)
    return found


@pytest.mark.parametrize("as_lines", [False, True])
def test_the_first_two_turns_are_prompt_and_answer_at_four_bytes_a_token(as_lines: bool, tmp_path: Path) -> None:
    entries = [chat("x" * 400, "y" * 100), chat("né" * 3, "ok", "third", "turn", key="conversation")]
    path = tmp_path / "chats.json"
    path.write_text("\n".join(map(json.dumps, entries)) if as_lines else json.dumps(entries, indent=1))
    found = trace(path)
    assert (found.prompt_tokens.tolist(), found.output_tokens.tolist()) == ([100, 3], [25, 1])  # né: three bytes
    assert "4 bytes of UTF-8" in " ".join(found.notes)
    assert not found.timed


def test_entries_without_two_turns_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([chat("only"), chat("hello there", "general"), chat("", "silence"), chat("a", None), chat()]))
    found = trace(path)
    assert len(found) == 1
    assert any(note.startswith("4 requests") for note in found.notes)


def test_lengths_counted_elsewhere_need_no_arrivals(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("category,prompt_tokens,output_tokens\nchat,100,20\ncode,7,300\n,0,4\n")
    found = trace(path)
    assert (found.prompt_tokens.tolist(), found.output_tokens.tolist()) == ([100, 7], [20, 300])
    assert found.notes == ("1 requests without a prompt or an answer were left out",)


def test_a_scenario_takes_them_with_arrivals_of_its_own_only(tmp_path: Path) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text("prompt_tokens,output_tokens\n100,20\n7,300\n")
    text = TEXT.format(arrivals="{process: poisson, rate_per_s: 2.0}", requests=f"{{trace: {path}}}")
    assert scenario_of(parse_yaml(text, "s.yaml")).source is not None
    with pytest.raises(SpecError, match=r"must be poisson.*holds no arrival times"):
        scenario_of(parse_yaml(TEXT.format(arrivals="{process: trace}", requests=f"{{trace: {path}}}"), "s.yaml"))


def test_a_tokenizer_counts_instead(tmp_path: Path) -> None:
    tokenizers = pytest.importorskip("tokenizers", reason="needs the package tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "tokenizer.json"))
    path = tmp_path / "chats.json"
    path.write_text(json.dumps([chat("a b a b " * 20, "unknown words here")]))
    found = trace(path, base=tmp_path, tokenizer="tokenizer.json")
    assert (found.prompt_tokens.tolist(), found.output_tokens.tolist()) == ([80], [3])
    assert not found.notes
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(SpecError, match=r"must be a tokenizer.json"):
        trace(path, base=tmp_path, tokenizer="tokenizer.json")


@pytest.mark.parametrize("name", ["lengths.csv", "trace.csv", "azure_conv_2023"])
def test_a_tokenizer_is_refused_where_there_is_no_text(name: str, tmp_path: Path) -> None:
    (tmp_path / "lengths.csv").write_text("prompt_tokens,output_tokens\n5,5\n")
    (tmp_path / "trace.csv").write_text("arrival_s,prompt_tokens,output_tokens\n0,5,5\n")
    with pytest.raises(SpecError, match=r"tokenizer|text"):
        request_source(name, tmp_path, tokenizer="tokenizer.json")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('[{"conversations": [{"value": "a"}, {"value": "b"}]}', "cut short"),
        ('[{"conversations": [{"value": "a"}, {"va', "whole JSON objects"),
        ('[{"conversations": "hello"}]', "list of turns"),
        ('[{"text": "hello"}]', "object with conversations"),
        ("[1, 2]", "object with conversations"),
        ("[" * 100_000, "less deeply nested|object with conversations"),
        ('[{"conversations": []}] {"more": 1}', "after the end of its array"),
        ("[]", "at least one request"),
        ("prompt_tokens,output_tokens\n5,-1\nx,4\n", r":3: prompt_tokens"),
        ("prompt_tokens,output_tokens\n5\n", "output_tokens"),
    ],
)
def test_broken_files_are_one_clear_message(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    path.write_text(text)
    with pytest.raises(SpecError, match=words):
        trace(path)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(1, 2000), junk=st.binary(max_size=12))
def test_whatever_a_file_is_cut_to_it_is_read_or_refused(cut: int, junk: bytes, tmp_path: Path) -> None:
    whole = json.dumps([chat(f"question {i} " * 9, "answer \u4f60\u597d") for i in range(12)], ensure_ascii=False).encode()
    path = tmp_path / "chats.json"
    path.write_bytes(b"[" + whole[1:cut] + junk)
    try:
        assert len(read_untimed(path)) <= 12
    except SpecError as error:
        assert len(error.problems) <= 20


def test_a_large_file_is_read_in_bounded_memory(tmp_path: Path) -> None:
    path = tmp_path / "chats.json"
    entry = json.dumps(chat("w" * 6000, "v" * 2000))
    with path.open("w") as file:
        file.write("[\n" + ",\n".join([entry] * 3000) + "\n]\n")
    size = path.stat().st_size
    tracemalloc.start()
    found = trace(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(found) == 3000
    assert size > 20 * 2**20
    assert peak < 2 * 2**20
