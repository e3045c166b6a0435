"""Who computes the cells: this process, processes on this machine, or a Dask cluster; the answers do not depend on it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any

from simulator.spec import Problem, SpecError
from simulator.sweep.answers import ANALYTIC, answered
from simulator.sweep.cells import Cell, CellDocument
from simulator.sweep.ledger import Outcome

if TYPE_CHECKING:
    from joblib import Parallel

# Cells that go to a worker together, so that sending them costs little beside answering them; the most that a kill loses.
ANALYTIC_CHUNK = 25
# Starting processes takes some seconds: as many analytic cells are answered meanwhile.
WORTH_PROCESSES = 1000


def outcomes(question: str, cells: Sequence[Cell], jobs: int | None, cluster: str | None) -> Iterator[Outcome]:
    """The outcome of each cell, in the order in which they finish. jobs: processes; None: as many as pay off."""
    if jobs is None:
        few = question in ANALYTIC and len(cells) < WORTH_PROCESSES
        jobs = 1 if few or len(cells) == 1 else os.cpu_count() or 1
    if jobs == 1 and cluster is None:
        for cell in cells:
            yield _outcome(question, cell.name, cell.document, cell.asked_at)
        return
    size = ANALYTIC_CHUNK if question in ANALYTIC else 1
    chunks = [cells[start : start + size] for start in range(0, len(cells), size)]
    with _parallel(jobs, cluster) as parallel:
        from joblib import delayed

        packed = ([(cell.name, cell.document, cell.asked_at) for cell in chunk] for chunk in chunks)
        try:
            for finished in parallel(delayed(_chunk)(question, chunk) for chunk in packed):
                yield from finished
        except RuntimeError as error:  # of joblib and Dask: a process was ended from outside
            must = f"a worker was ended ({type(error).__name__}), perhaps for want of memory: try again with fewer --jobs"
            raise SpecError([Problem("", "", must)]) from None


def _chunk(question: str, chunk: Sequence[tuple[str, CellDocument, dict[str, Any]]]) -> list[Outcome]:
    return [_outcome(question, name, document, asked_at) for name, document, asked_at in chunk]


def _outcome(question: str, name: str, document: CellDocument, asked_at: dict[str, Any]) -> Outcome:
    """Rows, or why there are none: one cell never takes the others down."""
    try:
        return Outcome(name, answered(question, document, asked_at))
    except SpecError as error:
        return Outcome(name, [], "; ".join(str(error).splitlines()))
    except ArithmeticError as error:
        return Outcome(name, [], f"a number is too large or too small to compute with: {error or type(error).__name__}")
    except Exception as error:
        return Outcome(name, [], f"{type(error).__name__}: {error}", passing=True)


@contextmanager
def _parallel(jobs: int, cluster: str | None) -> Iterator[Parallel]:
    from joblib import Parallel, parallel_config

    with ExitStack() as stack:
        if cluster is None:
            stack.enter_context(parallel_config(backend="loky", n_jobs=jobs, inner_max_num_threads=1))
        else:
            client = stack.enter_context(_client(cluster))
            stack.enter_context(parallel_config(backend="dask", client=client, n_jobs=-1))
        yield Parallel(return_as="generator_unordered", batch_size=1)


@contextmanager
def _client(address: str) -> Iterator[Any]:
    """A connection to a Dask scheduler. Raises `SpecError` where there is none, or Dask is not installed."""
    try:
        from distributed import Client
    except ImportError:
        must = "needs Dask: install specsim with the extra `cluster`"
        raise SpecError([Problem("--cluster", "", must)]) from None
    try:
        client = Client(address, timeout=10, set_as_default=False)
    except (OSError, ValueError, TypeError) as error:
        must = f"must be the address of a Dask scheduler that answers: {error}"
        raise SpecError([Problem("--cluster", "", must, repr(address))]) from None
    with client:
        yield client
