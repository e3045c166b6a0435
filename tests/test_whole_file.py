"""What is written is there whole or not at all, and what a killed process left behind goes with the next that writes there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulator import whole_file
from simulator.console import require_writable
from simulator.reports.files import prepare_directory, replace_files
from simulator.whole_file import partial_folder, write_whole

ROOT = Path(__file__).resolve().parents[1]


def killed(code: str, folder: Path) -> None:
    """Runs code that kills its own process."""
    head = f"import os, signal\nfrom pathlib import Path\nfrom simulator.whole_file import *\nfolder = Path({str(folder)!r})\n"
    kill = "os.kill(os.getpid(), signal.SIGKILL)"
    done = subprocess.run([sys.executable, "-c", head + code.replace("KILL", kill)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL


def left_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_next_run_removes_the_folder_of_a_killed_one(tmp_path):
    killed("with partial_folder(folder) as part:\n    (part / 'report.html').write_text('half')\n    KILL", tmp_path)
    (left,) = left_in(tmp_path)
    assert left.startswith(".partial-")
    prepare_directory(tmp_path)
    assert left_in(tmp_path) == []


def test_the_next_writer_of_a_file_removes_what_a_killed_one_left(tmp_path):
    killed("with whole_file(folder / 'p.csv') as file:\n    file.write(b'half')\n    KILL", tmp_path)
    (left,) = left_in(tmp_path)
    write_whole(tmp_path / "other.csv", "whole")
    assert left in left_in(tmp_path)  # of another file: not its business
    write_whole(tmp_path / "p.csv", "whole")
    assert left_in(tmp_path) == ["other.csv", "p.csv"]


def test_what_another_process_is_writing_stays(tmp_path):
    code = (
        f"import sys\nfrom pathlib import Path\nfrom simulator.whole_file import partial_folder\n"
        f"with partial_folder(Path({str(tmp_path)!r})) as part:\n    print(part.name, flush=True)\n    sys.stdin.read()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        name = other.stdout.readline().strip()
        written = replace_files(tmp_path, lambda folder: write_whole(folder / "a.txt", "mine"))
        assert written == (tmp_path / "a.txt",)
        assert left_in(tmp_path) == [name, "a.txt"]
        other.communicate("")
    assert left_in(tmp_path) == ["a.txt"]


def test_files_of_users_are_left_alone(tmp_path):
    mine = tmp_path / ".p.csv.backup"
    mine.write_text("mine")
    (tmp_path / "partial-results").mkdir()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (tmp_path / ".partial-link").symlink_to(outside)
    write_whole(tmp_path / "p.csv", "whole")
    with partial_folder(tmp_path):
        pass
    assert left_in(tmp_path) == [".p.csv.backup", ".partial-link", "outside", "p.csv", "partial-results"]
    assert left_in(outside) == ["kept"]


def test_a_folder_that_was_taken_away_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    """As another run may do that begins at the same moment."""
    made = []
    real = whole_file.tempfile.mkdtemp

    def raced(**more: str) -> str:
        made.append(real(**more))
        return made[-1]

    def opened(path: Path, flags: int) -> int:
        lock = real_open(path, flags)
        if len(made) == 1:
            os.rmdir(path)
        return lock

    real_open = os.open
    monkeypatch.setattr(whole_file.tempfile, "mkdtemp", raced)
    monkeypatch.setattr(whole_file.os, "open", opened)
    with partial_folder(tmp_path) as part:
        assert len(made) == 2
        assert str(part) == made[1]


@pytest.mark.parametrize("broken", [ValueError, KeyboardInterrupt])
def test_after_an_exception_there_is_what_was_there_before(broken, tmp_path):
    write_whole(tmp_path / "p.csv", "before")

    def broken_off() -> None:
        with whole_file.whole_file(tmp_path / "p.csv") as file:
            file.write(b"half")
            raise broken

    with pytest.raises(broken):
        broken_off()
    assert left_in(tmp_path) == ["p.csv"]
    assert (tmp_path / "p.csv").read_text() == "before"
    assert (tmp_path / "p.csv").stat().st_mode & 0o777 == 0o644


def test_a_pipe_is_written_to_and_stays_one(tmp_path: Path) -> None:
    """As root a renamed file would take the place of /dev/null or /dev/full."""
    place = tmp_path / "results"
    os.mkfifo(place)
    reader = os.open(place, os.O_RDONLY | os.O_NONBLOCK)
    try:
        require_writable(place, "--out")
        write_whole(place, "a,b\n")
        assert os.read(reader, 100) == b"a,b\n"
    finally:
        os.close(reader)
    assert place.is_fifo()
    assert not list(tmp_path.glob(".*"))
