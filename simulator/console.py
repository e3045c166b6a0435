"""What every verb prints: sentences, tables, notes and JSON on stdout, progress on stderr, and files that appear whole."""

from __future__ import annotations

import json
import os
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from simulator.printed_numbers import unbroken
from simulator.spec import Problem, SpecError
from simulator.text_table import text_tables
from simulator.whole_file import replaceable, write_whole

if TYPE_CHECKING:
    from simulator.interchange.engine_settings import Snippet
    from simulator.simulation import Progress

# What is printed holds names of files and models: brackets and colons in them are no markup.
err = Console(stderr=True, highlight=False, soft_wrap=True, markup=False, emoji=False)
VERDICT_STYLE = {"win": "bold green", "lose": "bold red", "close": "bold yellow"}


class _ResultConsole(Console):
    """Leaves it to the program what to do when the reader of the results is gone: `rich` ends it with exit code 1, our "no"."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


# Of a page that is redirected, where COLUMNS does not say otherwise.
PAGE_COLUMNS = 100
FEWEST_COLUMNS = 40


def console_of_stdout() -> Console:
    """As wide as COLUMNS says, else as the terminal is."""
    stated = os.environ.get("COLUMNS", "")
    on_terminal = sys.stdout is not None and sys.stdout.isatty()
    width = max(int(stated), FEWEST_COLUMNS) if stated.isdecimal() and int(stated) else None if on_terminal else PAGE_COLUMNS
    return _ResultConsole(highlight=False, markup=False, emoji=False, width=width)


def print_table(console: Console, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """In the width of the console; what is too wide goes on below."""
    for table in text_tables(header, list(rows), console.width):
        for lines, style in ((table.heading, "bold"), (table.body, "")):
            for line in lines:
                console.print(Text(line, style=style), no_wrap=True, overflow="ignore", crop=False)
        console.print()


def print_sentence(console: Console, text: str, style: str = "", indent: str = "") -> None:
    """Wrapped between words, but not inside ``γ = 5``, ``80 %`` or a name with hyphens."""
    lines = textwrap.wrap(unbroken(text), console.width, initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)
    for line in lines:
        console.print(Text(line.replace("\u00a0", " "), style=style))


def print_verdict(console: Console, sentences: Iterable[str], style: str) -> None:
    """The first sentence in its style, the rest indented below it, and a blank line."""
    first, *rest = sentences
    print_sentence(console, first, style)
    for sentence in rest:
        print_sentence(console, sentence, indent="  ")
    console.print()


def print_titled_tables(console: Console, tables: Iterable[tuple[str, Sequence[str], Iterable[Sequence[str]]]]) -> None:
    """Each table under its title."""
    for title, header, rows in tables:
        print_sentence(console, title, "bold")
        print_table(console, header, rows)


def print_snippets(console: Console, snippets: Iterable[Snippet]) -> None:
    """Settings to paste, unwrapped, each under its engine and file."""
    for snippet in snippets:
        console.print(Text(f"# {snippet.engine}{', ' + snippet.file if snippet.file else ''}", style="dim"))
        sys.stdout.flush()
        sys.stdout.write(snippet.text.rstrip() + "\n")


def print_notes(console: Console, notes: Iterable[str], warnings: Iterable[str]) -> None:
    for text in (*notes, *(f"Note: {warning}" for warning in warnings)):
        print_sentence(console, text, "dim")


@contextmanager
def written_too(out: Path | None, write: Callable[[Path], object]) -> Iterator[None]:
    """Tells an answer inside, then writes it to `out`, if given: where one of the two cannot be done, the other still is."""
    try:
        yield
    except (OSError, SpecError):  # the reader is gone, or there is no room for what is told or written before
        if out is not None:
            write(out)
        raise
    if out is not None:
        write(out)


def tell(
    document: Callable[[], dict[str, Any]],
    show: Callable[[Console], None],
    *,
    as_json: bool,
    out: Path | None,
    write: Callable[[Path], object],
    written: str,
) -> None:
    """Tells an answer, as JSON or as people read it, and writes it to `out` too, if given; `written` says what lies there."""
    console = console_of_stdout()
    with written_too(out, write):
        if as_json:
            print_json(document())
        else:
            show(console)
    if out is not None and not as_json:
        print_written(console, written, out)


def print_written(console: Console, what: str, *paths: Path) -> None:
    """Where something was written, in one line however long it is: a path is there to be copied."""
    console.print(f"{what}: {', '.join(map(str, paths))}", soft_wrap=True)


def print_json(document: dict[str, Any]) -> None:
    if sys.stdout is None:  # closed by the caller
        return
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def write_output(path: Path, text: str, flag: str = "--out") -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise _unwritable(path, flag, error) from None


def require_writable(path: Path, flag: str) -> None:
    """Fails now rather than after a long run."""
    try:
        if path.is_dir():
            raise IsADirectoryError(0, "is a folder")
        if not replaceable(path):
            if not os.access(path, os.W_OK):
                raise PermissionError(0, "permission denied")
            return
        tempfile.TemporaryFile(dir=path.parent).close()
    except OSError as error:
        raise _unwritable(path, flag, error) from None


def _unwritable(path: Path, flag: str, error: OSError) -> SpecError:
    return SpecError([Problem(flag, "", f"must be a file that can be written: {error.strerror}", str(path))])


@contextmanager
def progress_bars(quiet: bool, doing: str = "simulating", things: str = "requests") -> Iterator[Progress]:
    """A bar per run on stderr, with the time left."""
    if quiet or not err.is_terminal:
        begun: set[str] = set()

        def announce(label: str, done: int, total: int) -> None:
            if not quiet and label not in begun:
                begun.add(label)
                err.print(f"{doing} {total:,} {things if total > 1 else things.removesuffix('s')}: {label}")

        yield announce
        return
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TextColumn("{task.completed}/{task.total} " + things),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=err, transient=True) as bars:
        tasks: dict[str, Any] = {}

        def advance(label: str, done: int, total: int) -> None:
            if label not in tasks:
                tasks[label] = bars.add_task(label, total=total)
            bars.update(tasks[label], completed=min(done, total))

        yield advance


def table_json(title: str, header: Sequence[str], rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    return {"title": title, "rows": [dict(zip(header, row, strict=True)) for row in rows]}
