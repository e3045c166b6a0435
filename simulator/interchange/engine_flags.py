"""A server's own settings read: a `vllm serve` command or SGLang's launch flags, as sections of a scenario.

Flags that change no cost here (ports, parsers, names) are passed over; those that would and are not understood are said.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from simulator.draft_policy import table_problems
from simulator.interchange.engine_settings import SGLANG_SPECULATIVE_SEQUENCES
from simulator.interchange.observed import lines
from simulator.number_format import CacheFormat, WeightFormat, find_format
from simulator.spec import Problem, SpecError, plain_scalar, shown, unique_keys

T = TypeVar("T")
_VLLM_METHODS = {
    "draft_model": "draft_model", "eagle": "eagle", "eagle3": "eagle3", "medusa": "medusa", "mlp_speculator": "medusa",
    "mtp": "mtp", "ngram": "ngram", "ngram_gpu": "ngram", "suffix": "suffix", "dflash": "block",
}  # fmt: skip
_SGLANG_METHODS = {
    "EAGLE": "eagle", "EAGLE3": "eagle3", "NEXTN": "mtp", "STANDALONE": "draft_model", "NGRAM": "ngram", "DFLASH": "block",
}  # fmt: skip


def method_of(algorithm: str) -> str | None:
    """Our name of a method by any engine's, None where it is not priced.

    >>> method_of("EAGLE3"), method_of("NEXTN"), method_of("mlp_speculator"), method_of("WISHES")
    ('eagle3', 'mtp', 'medusa', None)
    """
    return _SGLANG_METHODS.get(algorithm.upper()) or _VLLM_METHODS.get(algorithm.casefold())


# No server runs more sequences at once.
_LARGEST_BATCH = 65536
# Flags that would change a step's cost and are not priced from the command.
_MATTER = (
    "--cpu-offload-gb", "--swap-space", "--kv-transfer-config", "--enable-lora", "--enable-dp-attention",
    "--quantization-param-path", "--speculative-adaptive",
)  # fmt: skip
# Attention kernels by the names that engines give them, and those that are taken where deterministic ones do not say.
_VLLM_BACKENDS = {"FLASH_ATTN": "flash_attn", "FLASHINFER": "flashinfer", "TRITON_ATTN": "triton"}
_SGLANG_BACKENDS = {name: name for name in ("fa3", "flashinfer", "triton")}
_USUAL_BACKEND = {"vllm": "flash_attn", "sglang": "fa3"}


@dataclass
class ServerSettings:
    """Sections of a scenario that a command states, and what of it was not understood."""

    engine: str
    sections: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def put(self, section: str, key: str, value: Any) -> None:
        self.sections.setdefault(section, {})[key] = value


def is_command(line: str) -> bool:
    """Whether a line starts a server that is read here."""
    return bool(re.search(r"\bvllm serve\b|vllm\.entrypoints|sglang\.launch_server|\bsglang serve\b", line))


def read_command(path: str | Path) -> ServerSettings:
    """The first server command of a file (a script, a note). Raises `SpecError` where there is none, or a flag is malformed."""
    taken: list[str] = []
    exported: list[str] = []
    first = 0
    for number, text in lines(path):
        if not taken and not is_command(text):
            exported += [text.strip().removeprefix("export ")] if text.strip().startswith("export ") else []
            continue
        first = first or number
        taken.append(text.rstrip().removesuffix("\\"))
        if not text.rstrip().endswith("\\"):
            break
    if not taken:
        raise SpecError([Problem(str(path), "", "must hold a command such as 'vllm serve MODEL …' or 'sglang.launch_server …'")])
    return parse_command(" ".join((*exported, *taken)), f"{path}:{first}")


def parse_command(text: str, where: str = "") -> ServerSettings:
    """As `read_command`, from the text of one command."""
    try:
        words = shlex.split(text, comments=True)
    except ValueError as error:
        raise SpecError([Problem(where, "", f"must be a command line: {error}")]) from None
    sglang = any("sglang" in word for word in words)
    reader = _Flags(words, where)
    return _sglang(reader) if sglang else _vllm(reader)


def _is_value(word: str) -> bool:
    """Whether a word is a value and no flag: a negative number may begin with a dash."""
    return not word.startswith("-") or plain_scalar(word) != word


class _Flags:
    """``--name value``, ``--name=value`` and bare ``--name`` of a command, and its positional words."""

    def __init__(self, words: list[str], where: str):
        self.where = where
        self.values: dict[str, str] = {}
        self.plain: list[str] = []
        index = 0
        while index < len(words):
            word = words[index]
            if not word.startswith("-"):
                self.plain.append(word)
            else:
                name, given, value = word.partition("=")
                following = words[index + 1] if index + 1 < len(words) else None
                if not given and following is not None and _is_value(following):
                    value, index = following, index + 1
                self.values["--" + name.lstrip("-").replace("_", "-")] = value
            index += 1

    def variable(self, name: str) -> str | None:
        """Of the environment, as it is set before the command."""
        start = name + "="
        return next((word.removeprefix(start) for word in self.plain if word.startswith(start)), None)

    def text(self, *names: str) -> str | None:
        return next((self.values[name] for name in names if name in self.values), None)

    def whole(self, *names: str) -> int | None:
        return self._number(int, "a whole number", *names)

    def fraction(self, *names: str) -> float | None:
        return self._number(float, "a number", *names)

    def _number(self, kind: Callable[[str], T], noun: str, *names: str) -> T | None:
        name = next((name for name in names if name in self.values), None)
        if name is None:
            return None
        try:
            return kind(self.values[name])
        except ValueError:
            raise SpecError([Problem(self.where, name, f"must be {noun}", shown(self.values[name]))]) from None


def _common(flags: _Flags, found: ServerSettings, model: str | None) -> None:
    if model is None:
        raise SpecError([Problem(flags.where, "", "must name a model")])
    found.put("target", "model", model)
    found.notes += [f"{name} is not priced" for name in _MATTER if name in flags.values]


def _parallel(flags: _Flags, found: ServerSettings) -> None:
    """Devices that share the model: vLLM and SGLang have the same names for them, and short ones."""
    for short, name in (("tp", "tensor"), ("pp", "pipeline"), ("dp", "data")):
        size = flags.whole(f"--{name}-parallel-size", f"--{short}", f"--{short}-size")
        if name == "data" and "--enable-dp-attention" in flags.values:
            continue  # ranks among the devices of the tensor parallelism, not replicas
        if size is not None and size > 1:
            found.put("parallel", f"{name}_parallel_size", size)


def _vllm(flags: _Flags) -> ServerSettings:
    found = ServerSettings("vllm")
    after = flags.plain.index("serve") + 1 if "serve" in flags.plain else len(flags.plain)
    _common(flags, found, flags.text("--model") or (flags.plain[after] if after < len(flags.plain) else None))
    _formats(flags, found, "--quantization", "--q", "--dtype")
    _parallel(flags, found)
    if "--enable-expert-parallel" in flags.values:
        found.put("parallel", "expert_parallel", True)
    for key in ("max_num_seqs", "max_num_batched_tokens", "max_model_len"):
        if (value := flags.whole("--" + key.replace("_", "-"))) is not None:
            found.put("limits", key, value)
    if (share := flags.fraction("--gpu-memory-utilization")) is not None:
        found.put("limits", "gpu_memory_utilization", share)
    for flag, caches in (("--enable-prefix-caching", True), ("--no-enable-prefix-caching", False)):
        if flag in flags.values:
            found.put("limits", "prefix_caching", caches)
    if (text := flags.text("--speculative-config")) is not None:
        _vllm_speculation(text, flags.where, found)
    _vllm_kernels(flags, found)
    return found


def _vllm_kernels(flags: _Flags, found: ServerSettings) -> None:
    """Which kernels run, from flags and from the variables before the command."""
    backend = flags.text("--attention-backend") or flags.variable("VLLM_ATTENTION_BACKEND")
    deterministic = flags.variable("VLLM_BATCH_INVARIANT") not in (None, "", "0")
    _put_attention(found, backend, _VLLM_BACKENDS, deterministic)
    config = flags.text("--compilation-config", "--O", "--compilation-config.cudagraph-mode", "--O.cudagraph-mode") or ""
    pieces = "PIECEWISE" in config.upper() and "FULL_AND_PIECEWISE" not in config.upper()
    eager = "--enforce-eager" in flags.values or config.upper() == "NONE" or '"NONE"' in config.upper()
    if eager or pieces:
        found.put("kernels", "graphs", "none" if eager else "piecewise")
    if "--no-async-scheduling" in flags.values:
        found.put("kernels", "overlap", False)
    elif "--async-scheduling" in flags.values:
        found.put("kernels", "overlap", True)


def _put_attention(found: ServerSettings, backend: str | None, known: Mapping[str, str], deterministic: bool) -> None:
    """Attention kernels by the engine's name, and whether results may depend on the batch."""
    name = known.get(backend) if backend is not None else None
    if backend is not None and name is None:
        found.notes.append(f"the attention kernels {backend} are not known here: those of the engine's own choice are priced")
    if deterministic and name is None:
        name = _USUAL_BACKEND[found.engine]
        found.notes.append(f"deterministic kernels without known attention: {name} is taken")
    if name is not None:
        found.put("kernels", "attention_backend", name)
    if deterministic:
        found.put("kernels", "deterministic", True)


def _vllm_speculation(text: str, where: str, found: ServerSettings) -> None:
    try:
        config = json.loads(text, object_pairs_hook=unique_keys)
    except (ValueError, RecursionError):
        raise SpecError([Problem(where, "--speculative-config", "must be a JSON object", shown(text))]) from None
    if not isinstance(config, dict):
        raise SpecError([Problem(where, "--speculative-config", "must be a JSON object", shown(text))])
    method = config.get("method") or ("draft_model" if config.get("model") else None)
    known = "mtp" if isinstance(method, str) and method.endswith("_mtp") else _VLLM_METHODS.get(str(method))
    if known is None:
        must = f"must have a method priced here ({', '.join(_VLLM_METHODS)})"
        raise SpecError([Problem(where, "--speculative-config", must, shown(method))])
    found.put("speculation", "method", known)
    if isinstance(config.get("model"), str) and known not in ("ngram", "suffix"):
        found.put("speculation", "drafter", config["model"])
    table = config.get("num_speculative_tokens_per_batch_size")
    if table is not None:
        found.put("speculation", "by_batch", _vllm_table(table, config.get("num_speculative_tokens"), where))
    elif isinstance(config.get("num_speculative_tokens"), int):
        found.put("speculation", "num_speculative_tokens", config["num_speculative_tokens"])
    else:
        found.notes.append("num_speculative_tokens is not in the command: vLLM takes it from the drafter's config")
    if isinstance(size := config.get("draft_tensor_parallel_size"), int):
        found.put("parallel", "draft_tensor_parallel_size", size)
    if config.get("use_heterogeneous_vocab"):
        found.put("speculation", "heterogeneous_vocabulary", True)


def _vllm_table(table: object, most: object, where: str) -> list[list[int]]:
    """γ by batch as vLLM takes it: a batch that the list leaves out has the γ of the row before it, none is above
    num_speculative_tokens, and the last row holds for every larger batch. Early releases took ``{"1-8": 5}``."""
    key = "--speculative-config num_speculative_tokens_per_batch_size"
    rows = table
    if isinstance(table, dict):
        rows = [[*re.findall(r"\d+", str(span)), tokens] for span, tokens in table.items()]
    try:
        if not isinstance(rows, list) or not rows:
            raise ValueError
        whole = sorted((int(first), int(last), int(tokens)) for first, last, tokens in rows)
    except (TypeError, ValueError):
        must = "must be a list of [first batch, last batch, tokens]"
        raise SpecError([Problem(where, key, must, shown(table))]) from None
    for problem in table_problems(tuple(whole), key, 1):
        raise SpecError([Problem(where, "", problem)])
    if whole[0][0] != 1:
        raise SpecError([Problem(where, key, "must begin at batch 1", shown(whole[0][0]))])
    limit = most if isinstance(most, int) else 64
    ends = [after[0] - 1 for after in whole[1:]] + [max(whole[-1][1], _LARGEST_BATCH)]
    return [[first, end, min(tokens, limit)] for (first, _, tokens), end in zip(whole, ends, strict=True)]


def _sglang(flags: _Flags) -> ServerSettings:
    found = ServerSettings("sglang")
    _common(flags, found, flags.text("--model-path", "--model"))
    _formats(flags, found, "--quantization", "--dtype")
    _parallel(flags, found)
    if (flags.whole("--ep-size", "--ep", "--expert-parallel-size") or 1) > 1:
        found.put("parallel", "expert_parallel", True)
    if "--disable-radix-cache" in flags.values:
        found.put("limits", "prefix_caching", False)
    for key, names in (
        ("max_num_seqs", ("--max-running-requests",)), ("max_num_batched_tokens", ("--chunked-prefill-size",)),
        ("max_model_len", ("--context-length",)),
    ):  # fmt: skip
        if (value := flags.whole(*names)) is not None and value > 0:
            found.put("limits", key, value)
    if (share := flags.fraction("--mem-fraction-static")) is not None:
        found.put("limits", "gpu_memory_utilization", share)
    _sglang_kernels(flags, found)
    algorithm = flags.text("--speculative-algorithm", "--speculative-algo")
    if algorithm is not None:
        _sglang_speculation(flags, found, algorithm)
    return found


def _sglang_speculation(flags: _Flags, found: ServerSettings, algorithm: str) -> None:
    if algorithm.upper() not in _SGLANG_METHODS:
        must = f"must be an algorithm priced here ({', '.join(_SGLANG_METHODS)})"
        raise SpecError([Problem(flags.where, "--speculative-algorithm", must, shown(algorithm))])
    found.put("speculation", "method", _SGLANG_METHODS[algorithm.upper()])
    if flags.whole("--max-running-requests") is None:
        found.put("limits", "max_num_seqs", SGLANG_SPECULATIVE_SEQUENCES)
        found.notes.append(
            f"SGLang takes {SGLANG_SPECULATIVE_SEQUENCES} sequences at a time under speculation unless --max-running-requests "
            "says otherwise (DeepSeek-V4: 256): so does this scenario, without speculation too"
        )
    if (drafter := flags.text("--speculative-draft-model-path", "--speculative-draft-model")) is not None:
        found.put("speculation", "drafter", drafter)
    steps, width = flags.whole("--speculative-num-steps"), flags.whole("--speculative-eagle-topk") or 1
    nodes = flags.whole("--speculative-num-draft-tokens")
    if width > 1 and steps is not None and nodes is not None:
        found.put("speculation", "tree", {"steps": steps, "topk": width, "draft_tokens": nodes})
    elif steps is not None or nodes is not None:
        found.put("speculation", "num_speculative_tokens", steps if steps is not None else (nodes or 2) - 1)
    else:
        found.notes.append("the number of steps is not in the command: SGLang chooses it by model")


def _sglang_kernels(flags: _Flags, found: ServerSettings) -> None:
    """Which kernels run. Verification takes the attention kernels of prompts, unless told to take those of plain steps."""
    verified_as = flags.text("--speculative-attention-mode") or "prefill"
    backend = flags.text(f"--{verified_as}-attention-backend", "--attention-backend")
    _put_attention(found, backend, _SGLANG_BACKENDS, "--enable-deterministic-inference" in flags.values)
    if "--disable-cuda-graph" in flags.values:
        found.put("kernels", "graphs", "none")
    if "--disable-overlap-schedule" in flags.values:
        found.put("kernels", "overlap", False)
    elif (flags.text("--mamba-scheduler-strategy", "--mamba-radix-cache-strategy") or "").startswith("extra_buffer"):
        found.put("kernels", "overlap", True)


def _formats(flags: _Flags, found: ServerSettings, *names: str) -> None:
    name = next((name for name in names if name in flags.values), "")
    put_format(found, name, flags.values.get(name, "auto"), "weights")
    put_format(found, "--kv-cache-dtype", flags.values.get("--kv-cache-dtype", "auto"), "kv_cache")


def put_format(found: ServerSettings, name: str, text: str, key: str) -> None:
    """The type of the weights or of the cache (key) as an engine's option `name` says it, or that it is not understood."""
    stored = find_format(text)
    if stored in (get_args(WeightFormat) if key == "weights" else get_args(CacheFormat)):
        found.put("target", key, stored)
    elif text not in ("auto", ""):
        found.notes.append(f"NOT UNDERSTOOD: {name} {text}; say target.{key} in the scenario, which prices 16 bits otherwise")
