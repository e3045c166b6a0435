"""Constants fitted on a server's runs, for people and programs; and the engine profile that holds them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from simulator.cost.unmeasured import measured_in
from simulator.hardware import Quantity
from simulator.interchange.observed import ObservedRun
from simulator.printed_numbers import significant
from simulator.questions.server_fit import EngineOfServer, FittedConstant, FittedPoint
from simulator.reports.summary import SCHEMA_VERSION, plain_data
from simulator.serving_engine import ServingEngine
from simulator.spec import Problem, SpecError, check, parse_yaml
from simulator.whole_file import write_whole

CONSTANTS_HEADER = ("constant", "base", "fitted", "one std", "what became of it")
RUNS_HEADER = ("run", "γ", "measured per token", "base", "fitted", "left out")
_FIRST_LINE = "# Written by `specsim fit-engine`. Seconds and bytes.\n"
_KEPT = {"moves too little": "kept: moves these runs too little", "not told apart": "kept: not told apart by these runs"}


def fit_sentence(answer: EngineOfServer) -> str:
    """What was found, and how far it holds for runs that it was not fitted on."""
    names = ", ".join(constant.name for constant in answer.fitted)
    before, after = (_mean_error(answer, which) for which in ("base_s", "left_out_s"))
    better = "" if after < before else "; that is no better: keep the base engine, or measure more points"
    return (
        f"{len(answer.points)} runs identify {names}. Each run predicted with constants fitted without it: "
        f"{_percent(after)} off on average, by {answer.base_name} {_percent(before)}{better}."
    )


def _mean_error(answer: EngineOfServer, which: str) -> float:
    return sum(abs(point.error(getattr(point, which))) for point in answer.points) / len(answer.points)


def fitted_constant_rows(answer: EngineOfServer) -> list[tuple[str, ...]]:
    """Rows under `CONSTANTS_HEADER`, fitted ones first."""
    ordered = sorted(answer.constants, key=lambda constant: constant.fate != "fitted")
    return [
        (
            constant.name,
            _shown(constant.name, constant.base),
            _shown(constant.name, constant.quantity) if constant.fate == "fitted" else "–",
            f"{100 * constant.quantity.doubt:.0f} %",
            _KEPT.get(constant.fate, "fitted"),
        )
        for constant in ordered
    ]


def fitted_run_rows(answer: EngineOfServer) -> list[tuple[str, ...]]:
    """Rows under `RUNS_HEADER`: errors of the predicted time per token."""
    return [
        (
            Path(point.point.run.where).name,
            str(point.point.gamma) if point.point.speculative else "–",
            f"{significant(1e3 * point.point.time_per_token_s)} ms",
            *(_percent(point.error(seconds), "+") for seconds in (point.base_s, point.fitted_s, point.left_out_s)),
        )
        for point in answer.points
    ]


def _shown(name: str, quantity: Quantity) -> str:
    if name.partition(".")[0].endswith("_s"):
        return f"{significant(1e6 * quantity.value)} µs"
    return significant(quantity.value)


def fit_summary(answer: EngineOfServer) -> dict[str, Any]:
    """The JSON document of a fit; seconds."""
    summary = {
        "schema_version": SCHEMA_VERSION,
        "base": answer.base_name,
        "constants": [_constant(constant) for constant in answer.constants],
        "runs": [_run(point) for point in answer.points],
        "mean_error_base": _mean_error(answer, "base_s"),
        "mean_error_left_out": _mean_error(answer, "left_out_s"),
        "notes": list(answer.notes),
    }
    data: dict[str, Any] = plain_data(summary)
    return data


def _constant(constant: FittedConstant) -> dict[str, Any]:
    return {
        "name": constant.name, "fate": constant.fate, "base": constant.base.value, "base_relative_std": constant.base.doubt,
        "value": constant.quantity.value, "relative_std": constant.quantity.doubt,
    }  # fmt: skip


def _run(point: FittedPoint) -> dict[str, Any]:
    measured = point.point
    return {
        "where": measured.run.where, "num_speculative_tokens": measured.gamma, "field": measured.field,
        "measured_s": measured.time_per_token_s, "base_s": point.base_s, "fitted_s": point.fitted_s,
        "left_out_s": point.left_out_s,
    }  # fmt: skip


def write_engine_profile(answer: EngineOfServer, files: Sequence[Path], path: Path) -> None:
    """Writes the engine as a profile that `engine:` accepts. Raises `SpecError` where it cannot be written there."""
    check_profile_path(path)
    text = engine_profile_text(answer, files)
    check(ServingEngine, parse_yaml(text, str(path)))
    try:
        path.parent.mkdir(exist_ok=True)
        write_whole(path, text)
    except OSError as error:
        raise SpecError([Problem("--out", "", f"must be a file that can be written: {error.strerror}", str(path))]) from None


def check_profile_path(path: Path) -> None:
    """Raises `SpecError` where no profile can be written: a wrong name or folder, or a file that is not this command's own."""
    must = ""
    if path.suffix != ".yaml" or path.is_dir():
        must = "must be a file whose name ends in .yaml"
    elif not path.parent.parent.is_dir():
        must = "must be in a folder that exists, or in a new one of such a folder"
    elif path.is_file() and not path.read_text(encoding="utf-8", errors="replace").startswith(_FIRST_LINE):
        must = "must be a new file, or one that fit-engine wrote: others are not written over"
    if must:
        raise SpecError([Problem("--out", "", must, str(path))])


def engine_profile_text(answer: EngineOfServer, files: Sequence[Path]) -> str:
    """The profile in YAML: the base engine's keys, the fitted constants, and which fields of which files they rest on."""
    engine, hardware = answer.engine, answer.scenario.deployment.hardware
    data = engine.model_dump(exclude_none=True, exclude_defaults=True) | {"schema_version": engine.schema_version}
    for constant in answer.fitted:
        _put(data, constant)
    data["name"] = f"{engine.name}, fitted to one server"
    data.pop("until", None)  # a server has one version
    # What is known of other devices is said by the constants' own doubts, not by where the base engine was fitted.
    data["measured"] = measured_in([answer.scenario.deployment]).model_dump()
    data["sources"] = [
        f"base: engine profile {answer.base_name}",
        f"fitted constants: {len(answer.points)} runs of {answer.scenario.deployment.target.name} on {hardware.name}",
        *(_of_file(path) for path in files if path.is_file()),
        *(_of_run(point) for point in answer.points),
        *engine.sources,
    ]
    return _FIRST_LINE + yaml.safe_dump(_plain(data), sort_keys=False, allow_unicode=True, default_flow_style=None, width=130)


def _put(data: dict[str, Any], constant: FittedConstant) -> None:
    """The constant with few digits and a note of where it comes from."""
    outer, _, inner = constant.name.partition(".")
    quantity = constant.quantity
    told = {
        "value": float(f"{quantity.value:.3g}"),
        "source": "fitted",
        "note": f"fit-engine on the runs under sources; the base engine has {constant.base.value:.3g}",
        "relative_std": float(f"{quantity.doubt:.2g}"),
    }
    if inner:
        data[outer] = {**data[outer], inner: told}
    else:
        data[outer] = told


def _of_file(path: Path) -> str:
    return f"{path.name}: sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"


def _of_run(point: FittedPoint) -> str:
    run: ObservedRun = point.point.run
    reading = run.readings[point.point.field]
    date = run.value("date")
    when = f", of {date}" if date else ""
    what = f"{point.point.time_per_token_s:.4g} s per token from {reading.field} ({reading.conversion})"
    return f"{Path(run.where).name}: {what}{when}"


def _plain(value: Any) -> Any:
    """Tuples as lists, as YAML writes them."""
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in value.items()}
    return [_plain(each) for each in value] if isinstance(value, (list, tuple)) else value


def _percent(share: float, sign: str = "") -> str:
    """Tenths up to 100 %, none above."""
    return f"{100 * share:{sign},.{1 if abs(share) < 1 else 0}f} %"
