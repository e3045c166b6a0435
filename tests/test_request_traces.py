"""Reading recorded traces, and the profiles derived from them, against the public traces where these are present."""

from __future__ import annotations

import json
import tracemalloc
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import spearmanr

from simulator import resources
from simulator.interchange.request_traces import read_request_trace, request_source
from simulator.interchange.workload_profiles import index_of_dispersion, profile_of, profile_yaml
from simulator.spec import Problem, SpecError, check, parse_yaml
from simulator.workload import RequestTrace, WorkloadProfile, WorkloadSpec, load_workload_profile, profile_ids, requests_of

TRACES = Path(__file__).parents[2] / "shared" / "traces"


@dataclass(frozen=True)
class Shipped:
    """A shipped profile, its trace, what `profile_of` was told, and the facts of the trace that the README there states."""

    profile: str
    trace: str
    requests: int
    span_s: float
    prompt_mean: float
    output_mean: float
    window_s: float | None = None
    tick_s: float | None = None
    dispersion_windows_s: tuple[float, ...] = (1, 5, 30, 60, 120)


SHIPPED = (
    Shipped("azure_conv_2023", "AzureLLMInferenceTrace_conv.csv", 19366, 3501.721937, 1155, 211, window_s=60.0),
    Shipped("azure_code_2023", "AzureLLMInferenceTrace_code.csv", 8819, 3435.948056, 2048, 28, window_s=15.0),
    Shipped(
        "mooncake_conversation_2025",
        "mooncake_conversation_trace.jsonl",
        12031,
        3536.999,
        12035,
        343,
        window_s=180.0,
        tick_s=3.0,
        dispersion_windows_s=(1, 10, 30, 60, 120),
    ),
    Shipped(
        "mooncake_synthetic_2025",
        "mooncake_synthetic_trace.jsonl",
        3993,
        1022.025,
        15325,
        149,
        dispersion_windows_s=(1, 5, 10),
    ),
)

each_shipped = pytest.mark.parametrize("shipped", SHIPPED, ids=lambda shipped: shipped.profile)


def trace_of(shipped: Shipped) -> RequestTrace:
    path = TRACES / shipped.trace
    if not path.is_file():
        pytest.skip(f"{shipped.trace} is not here")
    return read_request_trace(path)


def read(tmp_path: Path, text: str, name: str = "trace.csv") -> RequestTrace:
    path = tmp_path / name
    path.write_bytes(text.encode())
    return read_request_trace(path)


def rows(trace: RequestTrace) -> list[tuple[float, int, int]]:
    return list(zip(trace.arrival_s.tolist(), trace.prompt_tokens.tolist(), trace.output_tokens.tolist(), strict=True))


# ------------------------------------------------------------------------------------------------------------- reading


@each_shipped
def test_no_request_of_a_public_trace_is_lost(shipped: Shipped) -> None:
    trace = trace_of(shipped)
    assert len(trace) == shipped.requests
    assert trace.notes == ()
    assert trace.arrival_s[0] == 0
    assert trace.arrival_s[-1] == pytest.approx(shipped.span_s, abs=1e-9)
    assert trace.prompt_tokens.mean() == pytest.approx(shipped.prompt_mean, abs=0.5)
    assert trace.output_tokens.mean() == pytest.approx(shipped.output_mean, abs=0.5)


@each_shipped
def test_a_trace_by_path_is_the_workload_request_by_request(shipped: Shipped) -> None:
    trace = trace_of(shipped)
    spec = WorkloadSpec.model_validate({"arrivals": {"process": "trace"}, "requests": {"trace": shipped.trace}})
    requests = requests_of(spec, 1, request_source(shipped.trace, TRACES))
    assert [(r.arrival_s, r.prompt_tokens, r.output_tokens) for r in requests] == rows(trace)
    assert [r.request_id for r in requests] == list(range(shipped.requests))


AZURE = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.6805900,374,44\n2023-11-16 18:15:50.9951691,396,109\n"
GENERIC = "arrival_s,prompt_tokens,output_tokens\n0,374,44\n4.3145791,396,109\n"
MOONCAKE = (
    '{"timestamp": 1000, "input_length": 374, "output_length": 44, "hash_ids": [0]}\n'
    '{"timestamp": 5314.5791, "input_length": 396, "output_length": 109, "hash_ids": [1]}\n'
)


def hashed(*lines: tuple[int, int, list[int]]) -> str:
    return "".join(
        f'{{"timestamp": {ms}, "input_length": {tokens}, "output_length": 5, "hash_ids": {ids}}}\n' for ms, tokens, ids in lines
    )


def test_hash_ids_say_which_prompts_begin_alike(tmp_path) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(hashed((2000, 1000, [4, 9]), (1000, 600, [4, 7]), (3000, 1024, [4, 9])))
    trace = read_request_trace(path)
    assert trace.prompt_texts is not None
    assert [trace.prompt_texts.of(index) for index in range(3)] == [[4, 7], [4, 9], [4, 9]]  # in order of arrival
    text = f"{{arrivals: {{process: trace}}, requests: {{trace: {path}}}}}"
    spec: WorkloadSpec = check(WorkloadSpec, parse_yaml(text, "s.yaml"))
    first, second, third = (request.content for request in requests_of(spec, 1, trace))
    assert first[0] == second[0] == third[0] == (first[0][0], 512)
    assert [sum(tokens for _, tokens in content) for content in (first, second, third)] == [605, 1005, 1029]
    assert first[1] != second[1]
    assert second[1][0] == third[1][0]  # the same text, cut shorter
    assert len({content[-1] for content in (first, second, third)}) == 3  # answers are like no other


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ([(0, 1000, [1])], ":1: hash_ids: must hold 2 ids, one for each 512 of the 1000 tokens (got 1)"),
        ([(0, 100, [-1])], ":1: hash_ids: must be a list of whole numbers from 0"),
        ([(0, 100, [1]), (1, 100, None)], ":2: hash_ids: must be a list of whole numbers from 0, on every line or on none"),
    ],
)
def test_hash_ids_that_cannot_be_are_refused_with_their_line(tmp_path, lines, expected) -> None:
    path = tmp_path / "trace.jsonl"
    path.write_text(hashed(*lines).replace("None", "null"))
    with pytest.raises(SpecError) as caught:
        read_request_trace(path)
    assert expected in str(caught.value)


@pytest.mark.parametrize("text", [AZURE, GENERIC, MOONCAKE], ids=["azure", "generic", "mooncake"])
@pytest.mark.parametrize(
    "variant",
    [
        lambda text: text,
        lambda text: text.replace("\n", "\r\n"),
        lambda text: text.rstrip("\n"),
        lambda text: "\ufeff" + text,
        lambda text: "\n" + text.replace("\n", "\n\n"),
        lambda text: (
            text.replace("GeneratedTokens", "GeneratedTokens,NumImages").replace("44", "44,0").replace("109", "109,2")
            if "Generated" in text
            else text
        ),
    ],
    ids=["plain", "crlf", "no final newline", "byte order mark", "blank lines", "further column"],
)
def test_every_way_of_writing_it_gives_the_same_trace(tmp_path: Path, text: str, variant: object) -> None:
    assert callable(variant)
    trace = read(tmp_path, variant(text))
    assert rows(trace) == [(0.0, 374, 44), (4.3145791, 396, 109)]


def test_burst_gpt_drops_what_failed_and_keeps_every_model(tmp_path: Path) -> None:
    trace = read(
        tmp_path,
        "Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,ChatGPT,472,18,490,Conversation log\n45,GPT-4,1087,230,1317,API log\n118,GPT-4,417,0,417,API log\n",
    )
    assert rows(trace) == [(0.0, 472, 18), (40.0, 1087, 230)]
    assert trace.notes == ("1 requests without prompt or output tokens were left out",)


@pytest.mark.parametrize("arrivals", [("10", "14.5"), ("2024-05-10 00:00:10", "2024-05-10 00:00:14.5")])
def test_columns_of_any_name_are_mapped(tmp_path: Path, arrivals: tuple[str, str]) -> None:
    path = tmp_path / "own.csv"
    path.write_text(f"in,when,out\n374,{arrivals[0]},44\n396,{arrivals[1]},109\n")
    names = {"arrival_s": "when", "prompt_tokens": "in", "output_tokens": "out"}
    assert rows(read_request_trace(path, names)) == [(0.0, 374, 44), (4.5, 396, 109)]
    with pytest.raises(SpecError, match="column of the header"):
        read_request_trace(path, names | {"arrival_s": "wen"})


def test_a_trace_needs_no_list_of_its_rows(tmp_path: Path) -> None:
    """Memory grows by the 24 bytes of a request, so that a trace of a gigabyte (25 million such lines) fits in one."""
    peaks = []
    for count in (20_000, 60_000):
        path = tmp_path / f"{count}.csv"
        path.write_text(
            "arrival_s,prompt_tokens,output_tokens\n" + "".join(f"{i}.5,{300 + i % 500},{i % 90 + 1}\n" for i in range(count))
        )
        tracemalloc.start()
        assert len(read_request_trace(path)) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert (peaks[1] - peaks[0]) / 40_000 < 32


def test_a_zone_moves_a_timestamp(tmp_path: Path) -> None:
    header = "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    trace = read(tmp_path, header + "2024-05-10 00:00:00.5+00:00,1,1\n2024-05-10 02:00:01+02:00,2,2\n")
    assert trace.arrival_s.tolist() == [0.0, 0.5]


def test_requests_out_of_order_are_sorted_stably_and_said(tmp_path: Path) -> None:
    trace = read(tmp_path, "arrival_s,prompt_tokens,output_tokens\n5,1,1\n2,2,1\n5,3,1\n2,4,1\n")
    assert rows(trace) == [(0, 2, 1), (0, 4, 1), (3, 1, 1), (3, 3, 1)]
    assert trace.notes == ("requests were not in order of arrival and have been sorted",)


def test_failed_calls_are_left_out_and_counted(tmp_path: Path) -> None:
    trace = read(tmp_path, "arrival_s,prompt_tokens,output_tokens\n1,10,0\n2,10,5\n3,0,5\n")
    assert rows(trace) == [(0, 10, 5)]
    assert trace.notes == ("2 requests without prompt or output tokens were left out",)


@given(
    st.lists(
        st.tuples(st.integers(0, 10**9), st.integers(1, 10**6), st.integers(1, 10**5)),
        min_size=1,
        max_size=30,
    )
)
@settings(derandomize=True, max_examples=50, deadline=None)
def test_all_formats_read_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, requests: list[tuple[int, int, int]]
) -> None:
    folder = tmp_path_factory.mktemp("traces")
    csv_text = "\n".join(["output_tokens,arrival_s,prompt_tokens", *(f"{o},{ms / 1000:.3f},{p}" for ms, p, o in requests)])
    json_text = "\n".join(json.dumps({"timestamp": ms, "input_length": p, "output_length": o}) for ms, p, o in requests)
    expected = sorted(requests, key=lambda request: request[0])
    for trace in (read(folder, csv_text), read(folder, json_text, "trace.jsonl")):
        assert rows(trace) == [((ms - expected[0][0]) / 1000, p, o) for ms, p, o in expected]


CSV = "arrival_s,prompt_tokens,output_tokens\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (CSV + "1,2,3\nx,2,3\n", ":3: arrival_s: must be a number of seconds (got 'x')"),
        (CSV + "nan,2,3\n", ":2: arrival_s: must be a time from 0 to 9e9 s (got 'nan')"),
        (CSV + "-1,2,3\n", ":2: arrival_s: must be a time from 0 to 9e9 s (got '-1')"),
        (CSV + "1,2.5,3\n", ":2: prompt_tokens: must be a whole number (got '2.5')"),
        (CSV + "1,,3\n", ":2: prompt_tokens: must be a whole number"),
        (CSV + "1,2,-3\n", ":2: output_tokens: must be from 0 to 10000000 (got '-3')"),
        (CSV + "1,2,99999999999999999999\n", ":2: output_tokens: must be from 0 to 10000000"),
        (CSV + "\n1,2\n", ":3: must have at least 3 fields (got 2)"),
        ("arrival_s,prompt_token,output_tokens\n1,2,3\n", ":1: prompt_tokens: must be a column of the header"),
        ("arrival_s,prompt_token,output_tokens\n1,2,3\n", "did you mean prompt_token?"),
        ("TIMESTAMP,ContextTokens\n1,2\n", ":1: GeneratedTokens: must be a column of the header"),
        (
            AZURE + "16/11/2023 18:15,1,2\n",
            ":4: TIMESTAMP: must be a time such as 2023-11-16 18:15:46.6805900, from 1970 to 2255 (got '16/11/2023 18:15')",
        ),
        (AZURE + "2023-13-45 18:15:00,1,2\n", ":4: TIMESTAMP: must be a time such as"),
        (AZURE + "9999-01-01 18:15:00,1,2\n", ":4: TIMESTAMP: must be a time such as"),
        (CSV + "1,1_0,3\n", ":2: prompt_tokens: must be a whole number (got '1_0')"),
        ('{"timestamp": 1%s, "input_length": 1, "output_length": 3}\n' % ("0" * 400), ":1: timestamp: must be a time from 0"),
        (MOONCAKE + "{]\n", ":3: must be one JSON object (got '{]')"),
        (MOONCAKE + "[1]\n", ":3: timestamp: must be given"),
        (MOONCAKE + '{"timestamp": 1, "input_length": 2}\n', ":3: output_length: must be given"),
        (
            MOONCAKE + '{"timestamp": "1", "input_length": 2, "output_length": 3}\n',
            ":3: timestamp: must be a number of milliseconds",
        ),
        (
            MOONCAKE + '{"timestamp": 1, "input_length": true, "output_length": 3}\n',
            ":3: input_length: must be a whole number (got true)",
        ),
        (CSV, "must hold at least one request"),
        ("", ":1: arrival_s: must be a column of the header"),
    ],
)
def test_a_mistake_is_reported_with_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, text)
    assert message in str(error.value)
    assert str(error.value).startswith(str(tmp_path / "trace.csv"))


@given(st.sampled_from([AZURE, GENERIC, MOONCAKE]), st.integers(0, 150), st.text(max_size=6), st.booleans())
@settings(derandomize=True, max_examples=200, deadline=None)
def test_a_damaged_trace_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, text: str, at: int, inserted: str, cut: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.csv"
    path.write_bytes((text[:at] + inserted + text[at + 5 * cut :]).encode("utf-8", "replace"))
    problems: tuple[Problem, ...] = ()
    requests = 0
    try:
        requests = len(read_request_trace(path))
    except SpecError as error:
        problems = error.problems
    assert requests >= 1 or problems
    assert all(problem.where.startswith(str(path)) and problem.must for problem in problems)


def test_mistakes_are_reported_together_but_not_without_end(tmp_path: Path) -> None:
    with pytest.raises(SpecError) as error:
        read(tmp_path, CSV + "a,b,c\n1,2,3\n4,x,6\n")
    assert [problem.where.rsplit(":", 1)[1] for problem in error.value.problems] == ["2", "4"]
    with pytest.raises(SpecError) as error:
        read(tmp_path, CSV + "a,2,3\n" * 1000)
    assert len(error.value.problems) == 20


def test_an_unreadable_file_is_a_users_mistake(tmp_path: Path) -> None:
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    for path in (tmp_path, tmp_path / "missing.csv", tmp_path / "binary.csv"):
        with pytest.raises(SpecError, match="must be a readable text file"):
            read_request_trace(path)


def test_a_source_is_a_path_or_the_id_of_a_profile(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(GENERIC)
    assert rows(request_source(str(tmp_path / "mine.csv"))) == rows(request_source("mine.csv", tmp_path))  # type: ignore[arg-type]
    (tmp_path / "mine.yaml").write_text(profile_yaml(load_workload_profile("azure_conv_2023")))
    assert request_source("mine.yaml", tmp_path) == request_source("azure-conv-2023") == load_workload_profile("azure_conv_2023")
    with pytest.raises(SpecError, match=r"s.yaml:7: requests.trace: must be the path of a file that exists \(got 'none.csv'\)"):
        request_source("none.csv", tmp_path, "s.yaml:7", "requests.trace")
    with pytest.raises(SpecError, match="did you mean azure_conv_2023"):
        request_source("azure_conf_2023")
    with pytest.raises(SpecError, match="must be a known workload profile"):
        request_source("dataset_lengths")


# ------------------------------------------------------------------------------------------------------------- profiles


def test_every_shipped_profile_is_covered_here() -> None:
    assert {shipped.profile for shipped in SHIPPED} == set(profile_ids())


@each_shipped
def test_the_shipped_profile_is_what_its_trace_gives(shipped: Shipped) -> None:
    path = resources.folder("workload") / f"{shipped.profile}.yaml"
    stated = load_workload_profile(shipped.profile)
    derived = profile_of(
        trace_of(shipped),
        title=stated.title,
        source=stated.source,
        citation=stated.citation,
        licence=stated.licence,
        window_s=shipped.window_s,
        tick_s=shipped.tick_s,
    )
    assert profile_yaml(derived) == path.read_text(encoding="utf-8")
    assert check(WorkloadProfile, parse_yaml(profile_yaml(derived), "")) == stated


@each_shipped
def test_sampled_lengths_have_the_quantiles_means_and_rank_correlation_of_the_trace(shipped: Shipped) -> None:
    trace = trace_of(shipped)
    prompts, outputs = load_workload_profile(shipped.profile).sample_lengths(200_000, np.random.default_rng(1))
    for sampled, recorded in ((prompts, trace.prompt_tokens), (outputs, trace.output_tokens)):
        assert sampled.mean() == pytest.approx(recorded.mean(), rel=0.05)
        for level in (0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99):
            # Where the quantile function is steep, half a per cent of the requests is the finer measure.
            low, high = np.quantile(recorded, [level - 0.005, level + 0.005])
            assert min(low, 0.95 * np.quantile(recorded, level)) <= np.quantile(sampled, level)
            assert np.quantile(sampled, level) <= max(high, 1.05 * np.quantile(recorded, level))
    correlation = spearmanr(trace.prompt_tokens, trace.output_tokens).statistic
    assert spearmanr(prompts[:50_000], outputs[:50_000]).statistic == pytest.approx(correlation, abs=0.05)


@each_shipped
def test_sampled_arrivals_have_the_rate_and_the_dispersion_of_the_trace(shipped: Shipped) -> None:
    trace = trace_of(shipped)
    profile = load_workload_profile(shipped.profile)
    samples = [profile.sample_arrivals(len(trace), np.random.default_rng(seed)) for seed in range(20)]
    assert np.mean([len(s) / s[-1] for s in samples]) == pytest.approx(len(trace) / trace.arrival_s[-1], rel=0.05)
    for window_s in shipped.dispersion_windows_s:
        sampled = np.mean([index_of_dispersion(s, window_s) for s in samples])
        assert sampled == pytest.approx(index_of_dispersion(trace.arrival_s, window_s), rel=0.3), window_s


@each_shipped
def test_sampled_gaps_have_the_burstiness_of_the_trace(shipped: Shipped) -> None:
    trace = trace_of(shipped)
    profile = load_workload_profile(shipped.profile)

    def burstiness(arrival_s: object) -> float:
        gaps = np.diff(np.asarray(arrival_s))
        return float(gaps.var() / gaps.mean() ** 2)

    sampled = np.mean([burstiness(profile.sample_arrivals(len(trace), np.random.default_rng(seed))) for seed in range(20)])
    assert sampled == pytest.approx(burstiness(trace.arrival_s), rel=0.2)


def poisson_trace(n: int, rate_per_s: float) -> RequestTrace:
    rng = np.random.default_rng(3)
    times_s = np.cumsum(rng.exponential(1 / rate_per_s, n))
    return RequestTrace(times_s - times_s[0], rng.integers(1, 100, n), rng.integers(1, 100, n))


def test_the_profile_of_a_poisson_trace_is_poisson() -> None:
    for window_s in (None, 100.0):
        profile = profile_of(poisson_trace(20_000, 5.0), title="", source="", citation="", licence="", window_s=window_s)
        sampled = profile.sample_arrivals(20_000, np.random.default_rng(1))
        assert 20_000 / sampled[-1] == pytest.approx(5.0, rel=0.03)
        gaps = np.diff(sampled)
        assert gaps.var() / gaps.mean() ** 2 == pytest.approx(1.0, rel=0.1)
        assert index_of_dispersion(sampled, 2.0) == pytest.approx(1.0, rel=0.1)


def test_a_profile_needs_a_trace_longer_than_its_window() -> None:
    with pytest.raises(ValueError, match="must be longer than the window"):
        profile_of(poisson_trace(100, 10.0), title="", source="", citation="", licence="", window_s=1e4)


def test_profile_files_are_short_and_say_where_they_come_from() -> None:
    for name in profile_ids():
        profile = load_workload_profile(name)
        assert all((profile.title, profile.source, profile.citation, profile.licence, profile.changes))
        assert len((resources.folder("workload") / f"{name}.yaml").read_text(encoding="utf-8").splitlines()) < 150
        assert all(a <= b for a, b in pairwise(profile.quantile_levels))
