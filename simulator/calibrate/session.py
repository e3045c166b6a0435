"""Measuring: visit the planned cells, turn by turn, until the minutes are used up; resumable after a kill at any moment."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from calibration.measurement import MeasurementError, MeasurementFile, Visit
from calibration.measurement_file import MeasurementWriter, read_measurements
from simulator.calibrate.pace import measuring_s
from simulator.calibrate.plan import samples_of
from simulator.calibrate.survey import Session, load_average
from simulator.calibrate.turns import Turns
from simulator.spec import Problem, SpecError

# (what is about to be measured, round, seconds used); and a visit that gave no samples.
Progress = Callable[[str, int, float], None]
Refusal = Callable[[Visit], None]


def measure(session: Session, path: Path, resume: bool, progress: Progress, refusal: Refusal) -> MeasurementFile:
    """Visits cells until the minutes are used up and returns the finished file, verified.

    KeyboardInterrupt leaves a file that `resume` goes on with. Raises `SpecError` where the file exists (without `resume`)
    or is unsound.
    """
    from calibration.forwards import ModelSource
    from calibration.visits import Visitor

    assert session.device is not None, "a plan for an absent device cannot be measured"
    writer, before = _opened(session, path, resume)
    sources = {name: ModelSource(config, session.folders.get(name)) for name, config in session.header.models.items()}
    with writer:
        visitor = Visitor(session.device, sources)
        used_s = before.elapsed_s if before else 0.0
        clock, refused = session.clock, _refused(before)
        turns = Turns(session.plan.cells, session.header.seed, before, refused)
        while (at_s := used_s + (wall_s := clock.wall_s)) < measuring_s(
            session.minutes, wall_s, clock.cpu_s, session.looking_cpu_s
        ) and (turn := turns.next()) is not None:
            number, planned = turn
            if planned.cell.key in refused:
                continue
            progress(planned.cell.kind, number, at_s)
            visit = visitor.visit(planned.cell, number, round(at_s, 3), *samples_of(planned))
            if visit.status != "ok":
                refused.add(planned.cell.key)
                refusal(visit)
            writer.append(visit)
            turns.took(clock.wall_s - wall_s)
        writer.finish()
    return read(path)


def read(path: Path, unfinished: bool = False) -> MeasurementFile:
    """A file of measurements. Raises `SpecError` where it is unsound."""
    try:
        return read_measurements(path, unfinished)
    except MeasurementError as error:
        raise _problem(error) from None


def _problem(error: MeasurementError) -> SpecError:
    return SpecError([Problem(f"{error.path}:{error.line}" if error.line else str(error.path), "", error.message)])


def _opened(session: Session, path: Path, resume: bool) -> tuple[MeasurementWriter, MeasurementFile | None]:
    try:
        if resume:
            return MeasurementWriter.resume(path, load_average(), session.minutes)
        path.parent.mkdir(parents=True, exist_ok=True)
        return MeasurementWriter.create(path, session.header), None
    except FileExistsError:
        must = "holds measurements already: go on with --resume, fit them with --refit, or choose another --out"
        raise SpecError([Problem(str(path), "", must)]) from None
    except MeasurementError as error:
        raise _problem(error) from None
    except OSError as error:
        raise SpecError([Problem(str(path), "", f"must be a file that can be written: {error.strerror}")]) from None


def _refused(before: MeasurementFile | None) -> set[str]:
    return {each.key for each in before.measurements if each.status != "ok"} if before else set()
