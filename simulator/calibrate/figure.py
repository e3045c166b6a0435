"""The figure of a fitted device, from its measurements."""

from __future__ import annotations

from pathlib import Path

from calibration.measurement import MeasurementFile
from simulator.calibrate.report import FitReport
from simulator.plots.kernel_fit import GemmPoint, fit_figure
from simulator.plots.style import save


def write_figure(file: MeasurementFile, report: FitReport, path: Path) -> None:
    """Draws the GEMMs of the type that whole passes ran in; the file is there whole or not at all."""
    part = report.part("whole forward") or report.part("GEMM")
    assert part is not None, "a report has a part on GEMMs"
    measured = {str(each.inputs["dtype"]) for each in file.of("gemm")}
    dtype = next((word.rstrip(",") for word in part.name.split() if word.rstrip(",") in measured), sorted(measured)[0])
    points = [
        GemmPoint(int(each.inputs["m"]), int(each.inputs["n"]), int(each.inputs["k"]), each.median_s, each.split == "held_out")
        for each in file.of("gemm")
        if each.inputs["dtype"] == dtype
    ]
    header = file.header
    source = f"own measurement of {header.started[:10]}, torch {header.torch}, sha256 {file.sha256[:12]}; {report.verdict.level}"
    save(fit_figure(points, report.hardware, dtype, source), path)
