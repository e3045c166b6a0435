"""Files that are there whole or not at all: written beside their place under another name, then renamed.

What is being written is locked. A process that is killed leaves it behind unlocked, and the next to write there removes it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

try:
    import fcntl
except ImportError:  # no such locks on this system: what a killed process leaves stays there
    fcntl = None  # type: ignore[assignment]

PARTIAL = ".partial-"


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its place at the end; after an exception there is what was there before. Raises OSError.

    A device or a pipe (/dev/stdout) is written to as it is: it must not be replaced by a file.
    """
    if not replaceable(path):
        with path.open("wb") as file:
            yield file
        return
    prefix = f".{path.name}{PARTIAL}"

    def made() -> str:
        handle, name = tempfile.mkstemp(prefix=prefix, dir=path.parent)
        os.close(handle)
        return name

    with _locked(path.parent, prefix, made) as partial:
        try:
            with partial.open("wb") as file:
                yield file
            partial.chmod(0o644)  # temporary files are private
            os.replace(partial, path)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise


def replaceable(path: Path) -> bool:
    """Whether a file may take this place: nothing is there, or a file."""
    return path.is_file() or not path.exists()


def write_whole(path: Path, text: str) -> None:
    """`text` in UTF-8, with one kind of line end on every system. Raises OSError."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))


@contextmanager
def partial_folder(directory: Path) -> Iterator[Path]:
    """A folder inside `directory` to fill, gone at the end with what is still in it. Raises OSError."""
    with _locked(directory, PARTIAL, lambda: tempfile.mkdtemp(prefix=PARTIAL, dir=directory)) as partial:
        try:
            yield partial
        finally:
            shutil.rmtree(partial, ignore_errors=True)


@contextmanager
def _locked(directory: Path, prefix: str, made: Callable[[], str]) -> Iterator[Path]:
    """What `made` makes, locked while it is in use; what killed processes left there is removed before."""
    _remove_left_behind(directory, prefix)
    while True:
        partial = Path(made())
        lock = None if fcntl is None else os.open(partial, os.O_RDONLY)
        try:
            if lock is not None:
                with suppress(OSError):  # a file system without locks: nobody can tell, nobody removes
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if partial.exists():  # not taken for left behind before it was locked
                yield partial
                return
        finally:
            if lock is not None:
                os.close(lock)


def _remove_left_behind(directory: Path, prefix: str) -> None:
    """Whatever of that name nobody has locked."""
    if fcntl is None or not directory.is_dir():
        return
    for entry in list(os.scandir(directory)):
        if not entry.name.startswith(prefix):
            continue
        with suppress(OSError):
            lock = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(entry.path) if entry.is_dir() else os.unlink(entry.path)
            finally:
                os.close(lock)
