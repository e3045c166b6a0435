"""A file of measurements as a fitted device: the parts in turn, each on top of what the ones before it taught."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from calibration.measurement import MeasurementFile
from simulator.architecture import ModelArchitecture, config_of
from simulator.calibrate.attention_fitting import fit_attention
from simulator.calibrate.beside_fitting import fit_all_reduce, fit_sampling, host_lines, with_all_reduce
from simulator.calibrate.cells import attention_cells, forward_cells, gemm_cells, row_series, types_of
from simulator.calibrate.gemm_fitting import fit_gemm, gemm_seconds
from simulator.calibrate.laws import LAUNCH, Forward, Gemm
from simulator.calibrate.levels import ratio_noise, with_levels
from simulator.calibrate.parts import Cells, Part, RatioRow, ratio_row, settled
from simulator.calibrate.pass_fitting import PassModel, fit_launches, fit_passes
from simulator.calibrate.profile import peaks_of
from simulator.calibrate.report import FitReport, FreeRows, free_rows, verdict_on
from simulator.hardware import Hardware
from simulator.kernel_switches import AttentionRegime
from simulator.spec import Problem, SpecError


def fit_measurements(file: MeasurementFile) -> FitReport:
    """Fits every part that the file has cells for. Raises `SpecError` where it has no GEMM, or a model that is not known."""
    if not types_of(file, "gemm"):
        raise SpecError([Problem("", "measurements", "must hold times of GEMMs: measure for longer")])
    header = file.header.model_copy(update={"minutes": file.minutes})
    noise = ratio_noise(file)
    file = with_levels(file)
    note = f"{header.started[:10]}, torch {header.torch}, measurements sha256 {file.sha256[:12]}"
    fitting = _Fitting(file, peaks_of(file), note)
    fitting.gemms()
    fitting.attention()
    fitting.passes()
    fitting.beside()
    report = FitReport(
        header, file.sha256, fitting.hardware, fitting.regime, tuple(fitting.parts), tuple(fitting.ratios), tuple(fitting.free),
        tuple(host_lines(file)), noise,
    )  # fmt: skip
    return replace(report, verdict=verdict_on(report))


@dataclass
class _Fitting:
    """The device as known so far, and what was found on the way."""

    file: MeasurementFile
    hardware: Hardware
    note: str
    regime: AttentionRegime = "split_kv"
    parts: list[Part[Any]] = field(default_factory=list)
    ratios: list[RatioRow] = field(default_factory=list)
    free: list[FreeRows] = field(default_factory=list)

    @property
    def primary(self) -> str:
        """The type whose GEMM the plain coefficients speak of: the one that attention computes in, where it was measured."""
        types = types_of(self.file, "gemm")
        return self.hardware.wide_dtype if self.hardware.wide_dtype in types else types[0]

    def take(self, part: Part[Any], dtype: str | None = None) -> None:
        """Keeps the part, and its coefficients where there are any."""
        self.parts.append(part)
        if not part.problem:
            self.hardware = settled(self.hardware, part, self.note, dtype, dtype == self.primary)

    def gemms(self) -> None:
        for dtype in types_of(self.file, "gemm"):
            cells = gemm_cells(self.file.measurements, dtype)
            launches = self.file.of("launch")
            launch_s = launches[0].median_s if launches else None
            self.take(fit_gemm(self.hardware, dtype, cells, launch_s), dtype)
            predict = gemm_seconds(self.hardware, dtype)
            self.ratios += ratio_row(f"GEMM {dtype}", cells, predict, _widened_gemm)

    def attention(self) -> None:
        types = types_of(self.file, "decode_attention") or types_of(self.file, "verify_attention")
        if not types:
            return
        dtype = self.primary if self.primary in types else types[0]
        decode, verify = (
            attention_cells(self.file.measurements, kind, dtype) for kind in ("decode_attention", "verify_attention")
        )
        found = fit_attention(self.hardware, dtype, decode, verify)
        self.regime = found.regime
        for part in found.parts:
            self.take(part)

    def passes(self) -> None:
        models = {name: config_of(config, Path(name)).architecture for name, config in self.file.header.models.items()}
        own_mode = _device_mode(self.file)
        for dtype, mode in _types_and_modes(self.file, own_mode, self.primary):
            self._pass(dtype, mode, models, mode == own_mode and dtype == _pass_type(self.file, own_mode, self.primary))

    def beside(self) -> None:
        if self.file.of("sampling"):
            self.take(fit_sampling(self.hardware, self.file))
        reduced = fit_all_reduce(self.file)
        self.parts += reduced
        self.hardware = with_all_reduce(self.hardware, reduced, self.note)

    def _pass(self, dtype: str, mode: str, models: Mapping[str, ModelArchitecture], taught: bool) -> None:
        """taught: the device learns from this type and mode; others are judged, and a host's launches are told from them."""
        cells = forward_cells(self.file.measurements, dtype, mode)
        name = f"whole forward {dtype}, {mode}"
        model = PassModel(self.hardware, dtype, self.regime, models)
        if taught:
            part = fit_passes(model, cells, row_series(self.file, dtype, mode))
            self.take(replace(part, name=name))
            if part.row_factors:
                self.hardware = settled(self.hardware, replace(part, values={}), self.note, dtype)
        else:
            self.parts.append(replace(fit_launches(model, cells), name=name))
        values = {LAUNCH: self.parts[-1].values[LAUNCH]} if LAUNCH in self.parts[-1].values else {}
        predict = partial(replace(model, hardware=self.hardware).law, values)
        self.ratios += ratio_row(name, cells, predict, _widened_pass)
        self.ratios += ratio_row(f"{name}, measured again", Cells((), cells.again), predict, _widened_pass)
        self.free += free_rows([*cells.fit, *cells.held_out], predict, dtype)


def _widened_gemm(cell: Gemm) -> tuple[object, int]:
    return (cell.n, cell.k), cell.m


def _widened_pass(cell: Forward) -> tuple[object, int]:
    return (cell.model, cell.batch, cell.context), cell.rows


def _device_mode(file: MeasurementFile) -> str:
    """The mode that shows the device and not its host: graphs where a GPU ran them, else eager."""
    modes = {str(each.inputs["mode"]) for each in file.of("forward")}
    order = ("cuda_graph", "eager", "compile") if file.header.device == "cuda" else ("eager", "compile", "cuda_graph")
    return next((mode for mode in order if mode in modes), "eager")


def _pass_type(file: MeasurementFile, mode: str, primary: str) -> str:
    """The type that the device learns from."""
    types = [dtype for dtype in types_of(file, "forward") if forward_cells(file.measurements, dtype, mode).fit]
    return primary if primary in types or not types else types[0]


def _types_and_modes(file: MeasurementFile, own_mode: str, primary: str) -> list[tuple[str, str]]:
    """Every (type, mode) of whole passes, the one that the device learns from first."""
    found = {(str(each.inputs["dtype"]), str(each.inputs["mode"])) for each in file.of("forward")}
    own = (_pass_type(file, own_mode, primary), own_mode)
    return sorted(found, key=lambda each: (each != own, each))
