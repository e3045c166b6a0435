"""Laws of files of measurements: nothing is lost to a kill but one line, nothing can be changed unseen, reading gives back what was written."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from calibration.measurement import Cell, Header, MeasurementError, MeasurementFile, Visit
from calibration.measurement_file import MeasurementWriter, read_measurements

HEADER = Header(
    device="cpu", device_name="a device", device_count=1, driver="", torch="2.0", transformers="5.0", memory_bytes=2**34,
    cache_bytes=2**25, compute_units=1, dtypes=("fp32",), threads=1, load_average=0.5, clock="thread_cpu",
    started="2026-01-01T00:00:00+00:00", minutes=3.0, seed=1, plan="0123456789abcdef",
)  # fmt: skip
CELLS = [Cell(kind="gemm", inputs={"m": m, "n": 64, "k": 32, "dtype": "fp32"}, split="fit") for m in (1, 2, 3)]


def write(path: Path, rounds: int = 2, finish: bool = True) -> None:
    with MeasurementWriter.create(path, HEADER) as writer:
        for number in range(rounds):
            for index, cell in enumerate(CELLS):
                second = 1e-3 * (number + 1) * (index + 1)
                writer.append(Visit(cell=cell, round=number, at_s=number + index / 8, seconds=(second, 2 * second)))
        if finish:
            writer.finish()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "a.jsonl"
    write(file)
    return file


def test_reading_joins_the_visits_of_a_cell_and_keeps_every_sample_with_its_round(path: Path) -> None:
    file = read_measurements(path)
    assert file.header == HEADER
    assert file.finished
    assert [measured.inputs["m"] for measured in file.measurements] == [1, 2, 3]
    second = file.measurements[1]
    assert second.seconds == (2e-3, 4e-3, 4e-3, 8e-3)
    assert second.rounds == (0, 0, 1, 1)
    assert second.round_medians_s == (3e-3, 6e-3)
    assert second.median_s == 4e-3


def test_any_changed_byte_is_found(path: Path) -> None:
    data = path.read_bytes()
    for position in range(0, len(data), 7):
        changed = bytearray(data)
        changed[position] ^= 1
        path.write_bytes(bytes(changed))
        with pytest.raises(MeasurementError):
            read_measurements(path)


def test_an_edited_number_is_named_with_its_line(path: Path) -> None:
    text = path.read_text()
    path.write_text(text.replace("[0.002,0.004]", "[0.001,0.004]", 1))
    with pytest.raises(MeasurementError, match=r"a\.jsonl:3: its chain does not match"):
        read_measurements(path)


@pytest.mark.parametrize("lost", range(1, 8))
def test_a_lost_line_is_found(path: Path, lost: int) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    del lines[lost]
    path.write_bytes(b"".join(lines))
    with pytest.raises(MeasurementError):
        read_measurements(path)


def test_swapped_lines_are_found(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    lines[2], lines[3] = lines[3], lines[2]
    path.write_bytes(b"".join(lines))
    with pytest.raises(MeasurementError, match=":3: its chain"):
        read_measurements(path)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.floats(0.0, 1.0))
def test_a_file_cut_anywhere_is_truncated_or_resumes_with_all_whole_lines(path: Path, cut: float) -> None:
    write(whole := path.with_name("whole.jsonl")) if not path.with_name("whole.jsonl").exists() else None
    whole = path.with_name("whole.jsonl")
    data = whole.read_bytes()
    kept = data[: int(cut * (len(data) - 1))]
    path.write_bytes(kept)
    with pytest.raises(MeasurementError):
        read_measurements(path)
    if b"\n" not in kept:
        return
    before = read_measurements(path, unfinished=True)
    assert before.dropped == (not kept.endswith(b"\n"))
    writer, resumed = MeasurementWriter.resume(path, 0.1, before.minutes)
    with writer:
        writer.append(Visit(cell=CELLS[0], round=7, at_s=9.0, seconds=(5.0,)))
        writer.finish()
    after = read_measurements(path)
    assert resumed.measurements == before.measurements
    assert sample_count(after) == sample_count(before) + 1
    assert path.read_bytes().startswith(kept[: kept.rindex(b"\n") + 1])


def sample_count(file: MeasurementFile) -> int:
    return sum(len(measured.seconds) for measured in file.measurements)


def test_a_finished_file_goes_on_where_it_ended_and_an_existing_one_is_not_overwritten(path: Path) -> None:
    before, first = read_measurements(path), path.read_bytes()
    writer, seen = MeasurementWriter.resume(path, 0.1, 2 * before.minutes)
    assert seen == before
    with writer:
        writer.append(Visit(cell=CELLS[0], round=7, at_s=9.0, seconds=(5.0,)))
    with pytest.raises(MeasurementError, match="unfinished"):
        read_measurements(path)
    writer, _ = MeasurementWriter.resume(path, 0.1, 2 * before.minutes)
    with writer:
        writer.finish()
    after = read_measurements(path)
    assert path.read_bytes().startswith(first)
    assert after.finished
    assert (after.minutes, after.header) == (2 * before.minutes, before.header)
    assert sample_count(after) == sample_count(before) + 1
    with pytest.raises(FileExistsError):
        MeasurementWriter.create(path, HEADER)


def test_only_a_resumed_run_may_follow_the_end(path: Path) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines, lines[1]]))
    with pytest.raises(MeasurementError):
        read_measurements(path)
    path.write_bytes(b"".join([*lines, lines[1][:10]]))
    with pytest.raises(MeasurementError, match="nothing but a resumed run may follow"):
        read_measurements(path)


def test_refused_cells_keep_their_reason_and_give_no_samples(tmp_path: Path) -> None:
    path = tmp_path / "refused.jsonl"
    with MeasurementWriter.create(path, HEADER) as writer:
        writer.append(Visit(cell=CELLS[0], round=0, at_s=0.0, status="out_of_memory", reason="no room"))
        writer.finish()
    file = read_measurements(path)
    assert (file.measurements[0].status, file.measurements[0].reason) == ("out_of_memory", "no room")
    assert file.of("gemm") == ()


@pytest.mark.parametrize(
    ("text", "says"),
    [("", "header"), ("{}\n", "chain"), ("not json\n", "chain"), ('{"record":"header","chain":"0"}\n', "chain")],
)
def test_foreign_files_are_refused(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "foreign.jsonl"
    path.write_text(text)
    with pytest.raises(MeasurementError, match=says):
        read_measurements(path)


def test_another_schema_version_is_named(tmp_path: Path) -> None:
    path = tmp_path / "later.jsonl"
    with MeasurementWriter.create(path, HEADER.model_copy(update={"schema_version": 2})) as writer:
        writer.finish()
    with pytest.raises(MeasurementError, match="schema_version must be 1"):
        read_measurements(path)


def test_lines_are_plain_json_that_other_tools_read(path: Path) -> None:
    records = [json.loads(line) for line in path.read_text().splitlines()]
    assert [record["record"] for record in records] == ["header", *["visit"] * 6, "end"]
    assert all(record["chain"] for record in records)
