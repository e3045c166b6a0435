"""`calibrate`: measures this device and fits the cost model to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from simulator.commands.flags import AsJson
from simulator.console import console_of_stdout, err, print_json, print_sentence, print_table, print_written
from simulator.spec import Problem, SpecError, nearest

if TYPE_CHECKING:
    from calibration.measurement import MeasurementFile, Visit
    from simulator.calibrate.device_calibration import Calibration
    from simulator.calibrate.session import Progress, Refusal
    from simulator.calibrate.survey import Request, Session

DTYPES = ("fp32", "bf16", "fp16", "fp8")


def calibrate(
    device: Annotated[str | None, typer.Option(help="cpu, cuda, mps or auto (default).")] = None,
    dtype: Annotated[
        list[str] | None, typer.Option(help="Type of whole passes: fp32, bf16, fp16, fp8; repeatable, the main one first.")
    ] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Model to measure: a known name, or the folder of a local one; repeatable.")
    ] = None,
    minutes: Annotated[float | None, typer.Option(min=0.05, max=1440, help="Time to measure (default 5).")] = None,
    threads: Annotated[int | None, typer.Option(min=1, max=4096, help="CPU threads (default 1).")] = None,
    hardware: Annotated[
        str | None, typer.Option(help="Profile with the device's datasheet peaks (default: found by the device's name).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Profile to write (default hardware_profiles/NAME.yaml).")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with measurements that were cut off, or with more --minutes in all.")
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its duration, measure nothing.")] = False,
    refit: Annotated[Path | None, typer.Option(help="Fit this file of measurements again; needs no torch.")] = None,
    compare: Annotated[
        tuple[str, str] | None, typer.Option(help="Two profiles of one device: what moved between them.", metavar="A.yaml B.yaml")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Of the order of measurements (default 1).")] = None,
    as_json: AsJson = False,
) -> None:
    """Measure this device, fit the cost model to it, say how far to believe the fit, and write a hardware profile."""
    from simulator.calibrate.device_calibration import profile_path, refit_path
    from simulator.calibrate.session import read
    from simulator.calibrate.survey import Request, prepare

    given = {
        name: value
        for name, value in (
            ("device", device), ("dtypes", tuple(dtype or ())), ("models", tuple(model or ())), ("minutes", minutes),
            ("threads", threads), ("hardware", hardware), ("seed", seed),
        )
        if value not in (None, ())
    }  # fmt: skip
    if compare is not None:
        _require_alone("--compare", given | ({"refit": refit} if refit else {}) | ({"resume": True} if resume else {}))
        _print_comparison(*compare, as_json)
        return
    if refit is not None:
        _require_alone("--refit", given | ({"resume": True} if resume else {}) | ({"dry_run": True} if dry_run else {}))
        file = read(refit)
        _finish(file, profile_path(out, "") if out else refit_path(refit), as_json)
        return
    unknown = [each for each in dtype or () if each not in DTYPES]
    if unknown:
        raise SpecError(
            [Problem("--dtype", "", f"must be one of {', '.join(DTYPES)}", repr(unknown[0]), nearest(unknown[0], DTYPES))]
        )
    if device not in (None, "auto", "cpu", "cuda", "mps"):
        raise SpecError([Problem("--device", "", "must be one of auto, cpu, cuda, mps", repr(device))])
    request = Request(**given)  # type: ignore[arg-type]
    if dry_run:
        _print_plan(prepare(request, dry=True), as_json)
        return
    _measure(request, given, out, resume, as_json)


def _require_alone(flag: str, others: Mapping[str, object]) -> None:
    if others:
        name = {"dtypes": "dtype", "models": "model"}.get(first := next(iter(others)), first).replace("_", "-")
        raise SpecError([Problem(f"--{name}", "", f"must be left out with {flag}")])


def _measure(request: Request, given: Mapping[str, object], out: Path | None, resume: bool, as_json: bool) -> None:
    from simulator.calibrate.device_calibration import measurements_path, profile_path, reopened, require_free
    from simulator.calibrate.session import measure
    from simulator.calibrate.survey import prepare

    err.print("Looking at the device ...")
    session: Session | None
    if resume:
        session, profile, before = reopened(request, given, out)
    else:
        session, before = prepare(request), None
        profile = profile_path(out, session.header.device_name)
        require_free(profile)
    path = measurements_path(profile)
    if session is None:
        assert before is not None
        err.print(f"{path} is finished: nothing is left to measure; --minutes beyond its {before.minutes:g} would add to it.")
        _finish(before, profile, as_json)
        return
    if before is not None:
        lost = " A partial last line was dropped." if before.dropped else ""
        err.print(f"Going on with {path}: {before.elapsed_s:.0f} s measured, round {before.last_round + 1}.{lost}")
    _announce(session)
    try:
        with _progress(session) as (progress, refusal):
            file = measure(session, path, before is not None, progress, refusal)
    except KeyboardInterrupt:
        kept = f"Interrupted. What was measured is kept in {path}." if path.exists() else "Interrupted."
        err.print(f"{kept}\nGo on with: specsim calibrate --resume --out {profile}")
        raise
    _finish(file, profile, as_json)


def _announce(session: Session) -> None:
    header, plan = session.header, session.plan
    err.print(
        f"{header.device_name}, {', '.join(header.models)}; {len(plan.cells)} cells, a round of about {plan.round_s:.0f} s, "
        f"about {plan.rounds:.1f} rounds in {plan.minutes:g} minutes."
    )
    if plan.dropped:
        err.print(
            f"{plan.dropped} less important cells do not fit into the time or memory; more --minutes would take more of them."
        )
    if header.load_average > 0.5 * max(os.cpu_count() or 1, 1):
        err.print(f"The machine is busy (load average {header.load_average:g}): expect noise.")


@contextmanager
def _progress(session: Session) -> Iterator[tuple[Progress, Refusal]]:
    """A bar with the time left on stderr; a line a round where that is no terminal. Cells that give nothing are named."""
    total_s = session.minutes * 60

    def refusal(visit: Visit) -> None:
        cell = ", ".join(f"{name} {value}" for name, value in visit.cell.inputs.items())
        err.print(f"skipped ({visit.status.replace('_', ' ')}): {visit.cell.kind} {cell}: {visit.reason}")

    if not err.is_terminal:
        begun: set[int] = set()

        def announce(kind: str, number: int, used_s: float) -> None:
            if number not in begun:
                begun.add(number)
                err.print(f"round {number + 1}: {used_s:.0f} of {total_s:.0f} s")

        yield announce, refusal
        return
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:3.0f} %"), TimeRemainingColumn())
    with Bars(*columns, console=err, transient=True) as bars:
        task = bars.add_task("measuring", total=total_s)

        def advance(kind: str, number: int, used_s: float) -> None:
            bars.update(task, completed=used_s, description=f"round {number + 1}, {kind.replace('_', ' ')}")

        yield advance, refusal


def _print_plan(session: Session, as_json: bool) -> None:
    header, plan = session.header, session.plan
    rows = plan.counts()
    if as_json:
        kinds = {kind: {**splits, "visit_s": round(seconds, 3)} for kind, splits, seconds in rows}
        print_json({
            "schema_version": 1, "device": header.device_name, "models": list(header.models), "minutes": session.minutes,
            "cells": len(plan.cells), "dropped": plan.dropped, "setup_s": round(plan.setup_s, 3),
            "round_s": round(plan.round_s, 3), "rounds": round(plan.rounds, 2), "kinds": kinds,
        })  # fmt: skip
        return
    console = console_of_stdout()
    print_sentence(
        console,
        f"{header.device_name} ({header.device}); GEMM in {', '.join(header.dtypes)}; passes in "
        f"{', '.join(header.pass_dtypes)}, {', '.join(header.modes)}; models: {', '.join(header.models)}",
    )
    table = [
        [kind.replace("_", " "), *(str(splits[split]) for split in ("fit", "held_out", "check")), f"{seconds:.1f}"]
        for kind, splits, seconds in rows
    ]
    print_table(console, ("kind", "fit", "held out", "check", "s a round"), table)
    print_sentence(
        console,
        f"{len(plan.cells)} cells, {plan.dropped} left out for lack of time or memory. About {plan.setup_s:.0f} s to build, "
        f"capture and compile, then {plan.round_s:.0f} s a round: {plan.minutes:g} minutes hold about {plan.rounds:.1f} rounds.",
    )


def _finish(file: MeasurementFile, profile: Path, as_json: bool) -> None:
    """Fits, writes the profile and prints what is believed."""
    from simulator.calibrate.device_calibration import fitted
    from simulator.calibrate.figure import write_figure
    from simulator.calibrate.repeats import repeat_lines
    from simulator.calibrate.report import report_lines

    with err.status("fitting"):
        done = fitted(file, profile)
        write_figure(file, done.report, profile.with_suffix(".png"))
    if as_json:
        print_json(_summary(done))
        return
    console = console_of_stdout()
    console.print("\n".join([*report_lines(done.report), "", *repeat_lines(file, done.report)]), soft_wrap=True)
    print_written(console, "Profile", profile)
    print_written(console, "Figure", profile.with_suffix(".png"))
    console.print(f"Measurements: sha256 {file.sha256}", soft_wrap=True)


def _print_comparison(first: str, second: str, as_json: bool) -> None:
    """What moved between two profiles."""
    from dataclasses import asdict

    from simulator.calibrate.compare import compare, comparison_lines
    from simulator.hardware import find_hardware

    moved = compare(find_hardware(first, key="--compare"), find_hardware(second, key="--compare"))
    if as_json:
        print_json({"schema_version": 1, "first": first, "second": second, "moved": [asdict(each) for each in moved]})
        return
    sys.stdout.write("\n".join(comparison_lines(moved, first, second)) + "\n")


def _summary(done: Calibration) -> dict[str, Any]:
    """The answer as JSON: verdict, coefficients, errors of each part, ratios, and the second measurement."""
    from dataclasses import asdict

    from simulator.calibrate.repeats import repeated_ratios

    report = done.report
    where, ratios = repeated_ratios(done.measurements, report)
    return {
        "schema_version": 1,
        "profile": str(done.profile),
        "measurements_sha256": report.sha256,
        "device": report.header.device_name,
        "verdict": asdict(report.verdict),
        "coefficients": [asdict(row) for row in report.coefficients],
        "parts": [
            {
                "name": part.name,
                "law": part.law,
                "fitted": part.fitted and asdict(part.fitted),
                "held_out": part.held_out and asdict(part.held_out),
                "worst": part.worst,
                "noise": part.noise,
                "problem": part.problem,
            }
            for part in report.parts
        ],
        "ratios": [{"name": row.name, "errors": asdict(row.errors), "worst": row.worst} for row in report.ratios],
        "free_rows": [asdict(row) for row in report.free],
        "measured_twice": {"where": where, "ratios": [asdict(ratio) for ratio in ratios]},
    }
