"""Input is strict: every mistake is named with its place, and YAML's traps do not spring."""

from __future__ import annotations

import json
from typing import Annotated, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import Field

from simulator.spec import Problem, Spec, SpecError, check, check_sections, load_yaml, nearest, parse_yaml, unique_keys


class Inner(Spec):
    rate_per_s: Annotated[float, Field(gt=0)]
    kind: Literal["poisson", "gamma"] = "poisson"


class Outer(Spec):
    count: Annotated[int, Field(ge=1, le=10)]
    inner: Inner
    names: tuple[str, ...] = ()
    switch: bool = False


def problems(text: str) -> list[str]:
    with pytest.raises(SpecError) as caught:
        check(Outer, parse_yaml(text, "f.yaml"))
    return [str(problem) for problem in caught.value.problems]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("4.8e12", 4.8e12), ("1e3", 1000.0), (".5", 0.5), ("12:30", "12:30"), ("on", "on"), ("yes", "yes"), ("true", True),
        ("0x10", "0x10"), ("1_000", "1_000"), ("010", 10), ("~", None), ("'5'", "5"), ("2026-11-29", "2026-11-29"), ("-3", -3),
    ],
)  # fmt: skip
def test_scalars_follow_yaml_1_2_and_not_1_1(text, value):
    assert parse_yaml(f"a: {text}", "f").data == {"a": value}


def test_all_mistakes_are_reported_at_once_each_with_its_line():
    found = problems("count: 0\ninner:\n  rate_per_s: -1\n  kind: poison\n  extra: 1\nswitch: on\nnmes: [a]\n")
    assert [line.split(": ")[0] for line in found] == ["f.yaml:1", "f.yaml:3", "f.yaml:4", "f.yaml:5", "f.yaml:6", "f.yaml:7"]
    text = "\n".join(found)
    assert "count: must be at least 1 (got 0)" in text
    assert "inner.rate_per_s: must be above 0 (got -1)" in text
    assert "must be one of poisson, gamma (got 'poison'); did you mean poisson?" in text
    assert "inner.extra: unknown key; known here: kind, rate_per_s" in text
    assert "switch: must be true or false (got 'on')" in text
    assert "nmes: unknown key" in text
    assert "did you mean names?" in text


def test_a_repeated_key_is_refused_with_both_lines():
    with pytest.raises(SpecError, match=r"f.yaml:2: count: must stand only once \(first on line 1\)"):
        parse_yaml("count: 1\ncount: 2\n", "f.yaml")


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("80GB", "write 8e+10"), ("80 GB", "write 8e+10"), ("3.35TB/s", "write 3.35e+12"), ("5ms", "write 0.005"), ("24GiB", "write 25769803776"),
        ("50%", "write 0.5"), ("7 apples", "SI units"),
    ],
)  # fmt: skip
def test_units_are_answered_with_the_number_to_write(text, hint):
    assert hint in problems(f"count: 1\ninner: {{rate_per_s: {text}}}\n")[0]


@pytest.mark.parametrize("text", [".nan", ".inf", "-.inf", "1e999"])
def test_numbers_must_be_finite(text):
    assert "finite" in problems(f"count: 1\ninner: {{rate_per_s: {text}}}\n")[0]


def test_missing_keys_are_named():
    assert problems("count: 3\n") == ["f.yaml:1: inner: must be given"]


def test_types_are_not_converted_silently():
    assert problems("count: 1.5\ninner: {rate_per_s: 1}\n") == ["f.yaml:1: count: must be a whole number (got 1.5)"]
    assert problems("count: true\ninner: {rate_per_s: 1}\n") == ["f.yaml:1: count: must be a whole number (got true)"]
    assert "must be a mapping" in problems("count: 1\ninner: 5\n")[0]


@pytest.mark.parametrize(
    "text",
    [
        "a: [1, 2",
        "a: 'x",
        "\t- a",
        "a: b: c",
        "%FOO\n---\na: 1\n--- b",
        "a: &x [*x]",
        "? [a]\n: 1",
        "a: !!python/object:os.system {}",
    ],
)
def test_what_is_no_plain_yaml_is_refused_with_a_line(text):
    with pytest.raises(SpecError) as caught:
        parse_yaml(text, "f.yaml")
    assert all(problem.where.startswith("f.yaml") for problem in caught.value.problems)


def test_deep_nesting_is_refused_and_not_a_crash():
    with pytest.raises(SpecError):
        parse_yaml("a: " + "[" * 200 + "]" * 200, "f.yaml")


def test_aliases_that_multiply_are_refused_and_do_not_fill_memory():
    lines = ["a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 12)]
    with pytest.raises(SpecError, match="aliases expanded"):
        parse_yaml("\n".join(lines), "f.yaml")


def test_unreadable_files_are_named(tmp_path):
    for path in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(SpecError, match=str(path)):
            load_yaml(path)
    binary = tmp_path / "binary.yaml"
    binary.write_bytes(b"\xff\xfe\x00\x01")
    with pytest.raises(SpecError, match="must be text in UTF-8"):
        load_yaml(binary)


def test_sound_sections_are_kept_beside_wrong_ones():
    sections, found = check_sections(Outer, parse_yaml("count: 99\ninner: {rate_per_s: 2}\n", "f.yaml"))
    assert sections["inner"] == Inner(rate_per_s=2.0)
    assert "count" not in sections
    assert [problem.key for problem in found] == ["count"]


@settings(derandomize=True, max_examples=200)
@given(st.text(max_size=200))
def test_any_text_is_a_document_or_a_spec_error(text):
    try:
        parse_yaml(text, "f.yaml")
    except SpecError as error:
        assert error.problems


def test_nearest_names():
    assert nearest("h100-sxm", ["h100_sxm", "a100_sxm_80gb"]) == "h100_sxm"
    assert nearest("zzz", ["h100_sxm"]) == ""


def test_a_problem_prints_where_what_must_be_got_and_nearest():
    text = str(Problem("s.yaml:3", "speculation.method", "must be one of eagle, ngram", "'eagel'", "eagle"))
    assert text == "s.yaml:3: speculation.method: must be one of eagle, ngram (got 'eagel'); did you mean eagle?"


def test_a_json_object_that_repeats_a_key_is_refused():
    assert json.loads('{"a": 1, "b": {"a": 2}}', object_pairs_hook=unique_keys) == {"a": 1, "b": {"a": 2}}
    with pytest.raises(ValueError, match="a: must stand only once"):
        json.loads('{"b": {"a": 1, "a": 2}}', object_pairs_hook=unique_keys)
