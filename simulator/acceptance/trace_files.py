"""Trace files: NumPy `.npz` without pickled objects, or Parquet; the same content in both.

`schema_version` 1 and the arrays of `traces`, and beside them where they come from: `provenance`, a JSON object;
`prompt_sha256` and `output_sha256` (prompts,), fingerprints of the token ids; `token_ids` (T,) only where it was asked for.
In Parquet there is a row per token (its prompt's number in `prompt`), and what belongs to prompts or to the whole is JSON in
the table's metadata.
"""

from __future__ import annotations

import io
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from simulator import resources
from simulator.acceptance.traces import TraceAcceptance, faults
from simulator.spec import Problem, SpecError, nearest
from simulator.whole_file import whole_file

SCHEMA_VERSION = 1
SUFFIXES = (".npz", ".parquet")
_REQUIRED = ("schema_version", "acceptance", "lengths")
_OPTIONAL = ("proposed", "category", "confidence", "prompt_sha256", "output_sha256", "token_ids", "provenance")
_PER_PROMPT = ("category", "prompt_sha256", "output_sha256")
_METADATA = b"specsim"
Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class TraceFile:
    """A trace and where it comes from."""

    trace: TraceAcceptance
    provenance: Mapping[str, Any] = field(default_factory=dict)
    prompt_sha256: npt.NDArray[np.str_] | None = None
    output_sha256: npt.NDArray[np.str_] | None = None
    token_ids: npt.NDArray[np.int64] | None = None

    def source_text(self) -> str:
        """Target, draft, prompts and sampler in one line; "" where the file does not say."""
        known = self.provenance
        if not {"target", "draft", "prompts", "sampler"} <= set(known):
            return ""
        return f"{known['target']} with {known['draft']}; {known['prompts']}; {known['sampler']}"


def load_trace(path: str | Path) -> TraceAcceptance:
    """The trace of a file. Raises `SpecError` with every fault."""
    return read_trace_file(path).trace


def write_trace_file(path: str | Path, content: TraceFile) -> None:
    """Writes `.npz` or `.parquet`, by the name: whole or not at all; the same content gives the same bytes.

    Raises SpecError for another name or where the file cannot be written.
    """
    path = Path(path)
    check_trace_name(path)
    arrays = _arrays_of(content)
    try:
        with whole_file(path) as file:
            file.write(_npz(arrays) if path.suffix == ".npz" else _parquet(arrays))
    except OSError as error:
        raise SpecError([Problem(str(path), "", f"must be a file that can be written: {error.strerror}")]) from None


def check_trace_name(path: Path) -> None:
    """Raises SpecError unless the name ends as trace files do."""
    if path.suffix not in SUFFIXES:
        raise SpecError([Problem(str(path), "", f"must be named as a trace file, {' or '.join(SUFFIXES)}", path.suffix)])


@resources.once_per_file
def read_trace_file(path: str | Path) -> TraceFile:
    """Reads a trace file. Raises `SpecError` with every fault."""
    source = str(path)
    arrays = _read_parquet(source) if source.endswith(".parquet") else _read_npz(source)
    problems = [Problem(source, name, "must be in the file") for name in _REQUIRED if name not in arrays]
    known = (*_REQUIRED, *_OPTIONAL)
    problems += [Problem(source, name, "unknown array", nearest=nearest(name, known)) for name in arrays if name not in known]
    version = arrays.get("schema_version")
    if version is not None and (version.size != 1 or version.item() != SCHEMA_VERSION):
        problems.append(Problem(source, "schema_version", f"must be {SCHEMA_VERSION}", str(version)))
    if problems:
        raise SpecError(problems)
    proposed, category, confidence = arrays.get("proposed"), arrays.get("category"), arrays.get("confidence")
    found = [*faults(arrays["acceptance"], arrays["lengths"], proposed, category, confidence)]
    found = found or _faults_of_origin(arrays)
    if found:
        raise SpecError(Problem(source, name, must) for name, must in found)
    whole = None if proposed is None else proposed.astype(np.int64)
    return TraceFile(
        TraceAcceptance(
            arrays["acceptance"].astype(float),
            arrays["lengths"].astype(np.int64),
            whole,
            category,
            None if confidence is None else confidence.astype(float),
        ),
        json.loads(str(arrays["provenance"])) if "provenance" in arrays else {},
        arrays.get("prompt_sha256"),
        arrays.get("output_sha256"),
        arrays.get("token_ids"),
    )


def _faults_of_origin(arrays: Mapping[str, Array]) -> list[tuple[str, str]]:
    found = []
    for name in ("prompt_sha256", "output_sha256"):
        if name in arrays and (arrays[name].shape != arrays["lengths"].shape or arrays[name].dtype.kind != "U"):
            found.append((name, "must be text, one per prompt"))
    if "token_ids" in arrays and (
        arrays["token_ids"].shape != arrays["acceptance"].shape[:1] or arrays["token_ids"].dtype.kind not in "iu"
    ):
        found.append(("token_ids", "must be whole numbers, one per token"))
    if "provenance" in arrays and not _is_json_object(arrays["provenance"]):
        found.append(("provenance", "must be a JSON object as text"))
    return found


def _is_json_object(array: Array) -> bool:
    try:
        return array.ndim == 0 and isinstance(json.loads(str(array)), dict)
    except json.JSONDecodeError:
        return False


def _arrays_of(content: TraceFile) -> dict[str, Array]:
    trace = content.trace
    flags = bool(np.isin(trace.acceptance, (0, 1)).all())
    arrays: dict[str, Array | None] = {
        "schema_version": np.array(SCHEMA_VERSION),
        "acceptance": trace.acceptance.astype(np.uint8) if flags else trace.acceptance,
        "lengths": trace.lengths,
        "proposed": trace.proposed,
        "category": trace.category,
        "confidence": None if trace.confidence is None else trace.confidence.astype(np.float32),
        "prompt_sha256": content.prompt_sha256,
        "output_sha256": content.output_sha256,
        "token_ids": content.token_ids,
        "provenance": np.array(json.dumps(content.provenance, sort_keys=True)) if content.provenance else None,
    }
    return {name: array for name, array in arrays.items() if array is not None}


# ----------------------------------------------------------------------------------------------------------- containers


def _npz(arrays: Mapping[str, Array]) -> bytes:
    file = io.BytesIO()
    savez: Any = np.savez_compressed
    savez(file, **arrays)
    return file.getvalue()


def _read_npz(source: str) -> dict[str, Array]:
    try:
        with np.load(source, allow_pickle=False) as file:
            return {name: file[name] for name in file.files}
    except FileNotFoundError:
        raise SpecError([Problem(source, "", "no such file")]) from None
    except (OSError, EOFError, ValueError, AttributeError, TypeError, zipfile.BadZipFile, zlib.error) as error:
        reason = " ".join(str(error).split())
        raise SpecError([Problem(source, "", f"must be an .npz file of plain arrays: {reason}")]) from None


def _parquet(arrays: Mapping[str, Array]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    acceptance = arrays["acceptance"]
    columns = {"prompt": pa.array(np.repeat(np.arange(len(arrays["lengths"])), arrays["lengths"]))}
    columns["acceptance"] = pa.array(acceptance if acceptance.ndim == 1 else acceptance.tolist())
    columns |= {name: pa.array(arrays[name]) for name in ("proposed", "token_ids") if name in arrays}
    if "confidence" in arrays:
        confidence = arrays["confidence"]
        columns["confidence"] = pa.array(confidence if confidence.ndim == 1 else list(confidence))
    whole = {"schema_version": int(arrays["schema_version"])}
    whole |= {name: arrays[name].tolist() for name in (*_PER_PROMPT, "provenance") if name in arrays}
    table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(whole, sort_keys=True).encode()})
    file = io.BytesIO()
    pq.write_table(table, file)
    return file.getvalue()


def _read_parquet(source: str) -> dict[str, Array]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(source)
        whole = json.loads((table.schema.metadata or {})[_METADATA])
        columns = {name: np.array(table.column(name).to_pylist()) for name in table.column_names}
        prompts = columns.pop("prompt")
        if np.any(np.diff(prompts) < 0):
            raise ValueError("prompt: must not fall")
    except FileNotFoundError:
        raise SpecError([Problem(source, "", "no such file")]) from None
    except (OSError, ValueError, KeyError, TypeError, pa.ArrowException) as error:
        reason = " ".join(str(error).split())
        raise SpecError([Problem(source, "", f"must be a Parquet file of a trace: {reason}")]) from None
    lengths = np.unique(prompts, return_counts=True)[1]
    return {**columns, "lengths": lengths, **{name: np.array(value) for name, value in whole.items()}}
