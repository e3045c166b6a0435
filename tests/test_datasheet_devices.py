"""Devices of which only the datasheet is known: published runs are predicted as if no kernel of their device had been timed."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from statistics import median

import pytest
import yaml

from simulator import resources
from simulator.hardware import find_hardware
from simulator.prediction import predict_table
from simulator.questions.published_cases import BUILT_ON, UNSEEN, published_cases, table_path

MEASURED = {"coefficients", "gemm_row_factors", "all_reduce", "aliases"}
# Those with most published runs.
DEVICES = ("h200_sxm", "h100_sxm", "b200_sxm", "a100_sxm_80gb", "h20", "rtx_5090", "rtx_pro_6000", "gb10", "rtx_3090", "m5_max")


def datasheets(folder: Path) -> dict[str, str]:
    """Paths of files with what the datasheets of `DEVICES` say, by the names of the devices."""
    paths = {}
    for name in DEVICES:
        stated = yaml.safe_load((resources.folder("hardware") / f"{name}.yaml").read_text(encoding="utf-8"))
        path = folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump({key: value for key, value in stated.items() if key not in MEASURED}))
        paths[stated["name"]] = str(path)
    return paths


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[str, float, bool]]:
    """(device, error of R in logarithms, whether the measured speedup lies in the interval) of each published run."""
    folder = tmp_path_factory.mktemp("datasheets")
    paths, found = datasheets(folder), list[tuple[str, float, bool]]()
    for table in (BUILT_ON, UNSEEN):
        with table_path(table).open(newline="", encoding="utf-8") as file:
            rows = [(row, find_hardware(row["hardware"]).profile.name) for row in csv.DictReader(file)]
        rows = [(row, name) for row, name in rows if name in paths]
        asked = folder / table
        with asked.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, rows[0][0])
            writer.writeheader()
            writer.writerows(row | {"hardware": paths[name]} for row, name in rows)
        measured = {case.point.id: case.measured_speedup for case in published_cases(table)}
        for (row, name), told in zip(rows, predict_table(asked), strict=True):
            if told.speedup is None or told.speedup_low is None or told.speedup_high is None:
                continue
            speedup = measured[row["id"]]
            found.append((name, math.log(speedup / told.speedup), told.speedup_low <= speedup <= told.speedup_high))
    return found


def test_half_of_the_ratios_err_by_a_tenth_on_every_device(runs: list[tuple[str, float, bool]]) -> None:
    by_device: dict[str, list[float]] = {}
    for name, error, _ in runs:
        by_device.setdefault(name, []).append(abs(error))
    assert len(by_device) == len(DEVICES)
    assert median(abs(error) for _, error, _ in runs) < 0.05
    for name, errors in by_device.items():
        # All runs on a B200 are of one laboratory: block drafters on targets with recurrent layers, near each other in what they lack.
        assert median(errors) < (0.25 if name == "NVIDIA B200 SXM" else 0.1 if len(errors) > 8 else 0.15), name


def test_intervals_without_kernel_tables_hold_four_of_five(runs: list[tuple[str, float, bool]]) -> None:
    assert sum(inside for *_, inside in runs) >= 0.8 * len(runs)


def test_what_is_not_known_of_kernels_widens_the_answer(tmp_path: Path) -> None:
    table = tmp_path / "one.csv"
    paths = datasheets(tmp_path)
    head = "id,hardware,engine,target_model,method,num_speculative_tokens,batch,context_len,mean_acceptance_length,precision"
    asked = ",vllm,Qwen/Qwen3-8B,eagle3,3,32,2000,2.4,bf16"
    table.write_text(f"{head}\nshipped,a100_sxm_80gb{asked}\nbare,{paths['NVIDIA A100 SXM 80GB']}{asked}\n")
    widths = {}
    for told in predict_table(table):
        assert told.speedup_low is not None
        assert told.speedup_high is not None
        widths[told.id] = told.speedup_high / told.speedup_low
    assert widths["bare"] > 1.02 * widths["shipped"]
