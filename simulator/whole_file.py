"""Files that are there whole or not at all: written beside their place under another name, then renamed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def whole_file(path: Path) -> Iterator[BinaryIO]:
    """A file to write, which takes its place at the end; after an exception there is what was there before. Raises OSError."""
    handle, partial = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
        os.chmod(partial, 0o644)  # temporary files are private
        os.replace(partial, path)
    except BaseException:
        Path(partial).unlink(missing_ok=True)
        raise


def write_whole(path: Path, text: str) -> None:
    """`text` in UTF-8, with one kind of line end on every system. Raises OSError."""
    with whole_file(path) as file:
        file.write(text.encode("utf-8"))
