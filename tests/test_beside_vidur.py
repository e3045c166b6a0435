"""The comparison with Vidur: what is refused without it, and that its tables hold this simulator's prices."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks import beside_vidur
from benchmarks.loads import scenario
from simulator.simulation import Server


def test_a_python_without_vidur_is_refused_with_what_to_install(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert beside_vidur.main([]) == 2
    assert "benchmarks.beside_vidur vidur/bin/python" in capsys.readouterr().err
    assert beside_vidur.main([str(tmp_path / "none")]) == 2
    assert "must be a Python that has Vidur (got No such file" in capsys.readouterr().err
    blind = tmp_path / "python"
    blind.write_text(f'#!/bin/sh\nexec {sys.executable} -S -I "$@"\n')
    blind.chmod(0o755)
    assert beside_vidur.main([str(blind)]) == 2
    assert "-m pip install vidur" in capsys.readouterr().err


def test_its_tables_add_up_to_the_price_of_a_step() -> None:
    pricer = Server.of(scenario("A", 0)).pricer
    found = {name: dict(rows) for name, rows in beside_vidur.tables(pricer).items()}
    decode_ms = beside_vidur.LAYERS * (found["mlp_up_proj"][(24,)] + found["attn_decode"][(24, 1024)])
    assert decode_ms == pytest.approx(1e3 * pricer.price([(1024, 0)] * 24, (), 0).seconds)
    prompt_ms = beside_vidur.LAYERS * (found["mlp_up_proj"][(512,)] + found["attn_prefill"][(1024, 512)])
    assert prompt_ms == pytest.approx(1e3 * pricer.price([], ((512, 1024),), 1).seconds)
    assert all(ms == 0 for ms in found["add"].values())
