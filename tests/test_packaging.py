"""The wheel carries its data: installed elsewhere, it runs from any folder."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_wheel_runs_from_another_folder(tmp_path):
    build = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--wheel-dir",
        str(tmp_path),
        str(ROOT),
    ]
    subprocess.run(build, check=True, capture_output=True, text=True)
    wheel = next(tmp_path.glob("specsim-*.whl"))
    site = tmp_path / "site"
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(site), str(wheel)],
        check=True,
        capture_output=True,
    )
    away = tmp_path / "away"
    away.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(site)}
    where = "import simulator, pathlib; print(pathlib.Path(simulator.__file__).parent)"
    found = subprocess.run(
        [sys.executable, "-P", "-c", where], cwd=away, env=environment, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(site / "simulator")
    listed = subprocess.run(
        [sys.executable, "-P", "-m", "simulator", "list", "--json"],
        cwd=away,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    known = json.loads(listed.stdout)
    assert {entry["id"] for entry in known["scenario"]} >= {"quickstart"}
    assert len(known["hardware"]) >= 12
    broken_even = [sys.executable, "-P", "-m", "simulator", "break-even", "quickstart", "--json"]
    assert subprocess.run(broken_even, cwd=away, env=environment, capture_output=True, check=False).returncode == 0
    assert {path.name for path in site.iterdir() if path.is_dir() and not path.name.endswith("dist-info")} <= {
        "simulator",
        "calibration",
        "bin",
    }
