"""Measure → fit → profile, as one call: `calibrate_device`; and where its files lie."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from simulator.calibrate.session import Progress, Refusal, measure, read
from simulator.calibrate.survey import Request, Session, prepare, resumed
from simulator.spec import Problem, SpecError

if TYPE_CHECKING:
    from calibration.measurement import MeasurementFile
    from simulator.calibrate.report import FitReport

_PROFILES, _MEASUREMENTS = "hardware_profiles", Path("calibration") / "measurements"


@dataclass(frozen=True)
class Calibration:
    """What came of it: the fit, its profile's path, and the measurements behind it."""

    report: FitReport
    profile: Path
    measurements: MeasurementFile


def calibrate_device(
    request: Request | None = None,
    out: Path | None = None,
    progress: Progress | None = None,
    refusal: Refusal | None = None,
) -> Calibration:
    """Measures this device for `request.minutes`, fits the cost model, writes the profile to `out` and the raw samples beside it.

    Raises `SpecError` where the device is not there or a file is in the way; `docs/calibrating.md` says how to go on after an
    interruption.
    """
    session = prepare(request or Request())
    path = profile_path(out, session.header.device_name)
    require_free(path)
    file = measure(session, measurements_path(path), False, progress or (lambda *_: None), refusal or (lambda _: None))
    return fitted(file, path)


def fitted(file: MeasurementFile, profile: Path) -> Calibration:
    """The fit of a file of measurements, its profile written."""
    from simulator.calibrate.device_fit import fit_measurements
    from simulator.calibrate.profile import write_profile

    report = fit_measurements(file)
    write_profile(report, profile)
    return Calibration(report, profile, file)


def profile_path(out: Path | None, device_name: str) -> Path:
    """`out`, or a name made of the device's, in `hardware_profiles` where the current folder has one.

    >>> profile_path(None, "NVIDIA H200").name
    'nvidia_h200_measured.yaml'
    """
    if out is not None:
        if out.suffix not in (".yaml", ".yml"):
            raise SpecError([Problem("--out", "", "must end in .yaml", repr(str(out)))])
        return out
    name = re.sub(r"[^a-z0-9]+", "_", device_name.casefold()).strip("_") + "_measured.yaml"
    return Path(_PROFILES) / name if Path(_PROFILES).is_dir() else Path(name)


def measurements_path(profile: Path) -> Path:
    """Raw samples lie beside the profile; those of a profile in `hardware_profiles` in `calibration/measurements`.

    >>> measurements_path(Path("hardware_profiles/a.yaml")).as_posix(), measurements_path(Path("b/cpu.yaml")).as_posix()
    ('calibration/measurements/a.jsonl', 'b/cpu.jsonl')
    """
    folder = profile.parent
    beside = folder.parent / _MEASUREMENTS if folder.name == _PROFILES else folder
    return beside / f"{profile.stem}.jsonl"


def refit_path(measurements: Path) -> Path:
    """The profile that a file of measurements stands beside.

    >>> refit_path(Path("calibration/measurements/a.jsonl")).as_posix(), refit_path(Path("b/cpu.jsonl")).as_posix()
    ('hardware_profiles/a.yaml', 'b/cpu.yaml')
    """
    folder = measurements.parent
    if folder.parts[-2:] == _MEASUREMENTS.parts:
        folder = folder.parent.parent / _PROFILES
    return folder / f"{measurements.stem}.yaml"


def require_free(profile: Path) -> None:
    """Raises `SpecError` where a new calibration would overwrite a profile or measurements."""
    for path in (measurements_path(profile), profile):
        if path.exists():
            must = "is there already: go on with --resume, fit it again with --refit, or choose another --out"
            raise SpecError([Problem(str(path), "", must)])


def reopened(
    request: Request, given: Mapping[str, object], out: Path | None
) -> tuple[Session | None, Path, MeasurementFile | None]:
    """(session to go on with, or None where nothing is left to measure; profile; the measurements so far).

    Without --out the file is the one that a new run on this device would write. A file cut off before its first line was whole
    is begun anew. A finished one goes on where more minutes are asked for than it has.
    """
    profile = profile_path(out, "") if out is not None else _own_profile(request)
    path = measurements_path(profile)
    if path.exists() and b"\n" not in path.read_bytes():
        path.unlink()
    if not path.exists():
        if profile.exists():
            must = f"must stand beside the measurements to go on with, and {path} is not there: choose another --out"
            raise SpecError([Problem(str(profile), "", must)])
        return prepare(request), profile, None
    file = read(path, unfinished=True)
    if file.finished and "minutes" not in given:
        return None, profile, file
    if file.finished and request.minutes <= file.minutes:
        must = f"must be more than the {file.minutes:g} that were measured, which it counts too"
        raise SpecError([Problem("--minutes", "", must, f"{request.minutes:g}")])
    return resumed(file, request, given), profile, file


def _own_profile(request: Request) -> Path:
    from simulator.calibrate.survey import device_name

    return profile_path(None, device_name(request))
