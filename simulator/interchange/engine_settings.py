"""A speculation setting in the words of the engines that accept it: vLLM JSON, SGLang flags, TensorRT-LLM YAML, llama.cpp flags.

`FIELDS` records which keys each engine's release takes (vLLM 0.26, SGLang 0.5.23, TensorRT-LLM's documents of 2026, llama.cpp of
2026); nothing else is ever written. What an engine cannot do is said, not approximated.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

import yaml

from simulator.draft_tree import Tree
from simulator.kernel_switches import KernelSwitches

ENGINES = ("vllm", "sglang", "trtllm", "llamacpp")
FIELDS = {
    "vllm": {
        "method", "model", "num_speculative_tokens", "draft_tensor_parallel_size", "use_heterogeneous_vocab",
        "num_speculative_tokens_per_batch_size", "rejection_sample_method", "synthetic_acceptance_rates",
        "synthetic_acceptance_length", "kv_connector", "kv_role", "--kv-transfer-config", "--tensor-parallel-size",
        "--attention-backend", "--enforce-eager", "--compilation-config", "cudagraph_mode",
        "--no-async-scheduling", "--async-scheduling", "VLLM_BATCH_INVARIANT",
    },
    "sglang": {
        "--speculative-algorithm", "--speculative-draft-model-path", "--speculative-num-steps", "--speculative-eagle-topk",
        "--speculative-num-draft-tokens", "--speculative-adaptive", "--speculative-adaptive-config",
        "--speculative-dflash-block-size", "--disaggregation-mode", "--disaggregation-transfer-backend",
        "--tensor-parallel-size", "--attention-backend", "--enable-deterministic-inference", "--disable-cuda-graph",
        "--disable-overlap-schedule", "--mamba-scheduler-strategy", "--max-running-requests",
    },
    "trtllm": {
        "decoding_type", "max_draft_len", "speculative_model", "num_nextn_predict_layers", "max_concurrency",
        "max_matching_ngram_size", "use_dynamic_tree", "dynamic_tree_max_topK", "max_total_draft_tokens",
    },
    "llamacpp": {"--model-draft", "--spec-type", "--spec-draft-n-max"},
}  # fmt: skip
# Sequences at a time that SGLang takes under speculation, unless told (speculative_hook.py; sgl-project/sglang#33199, #34290).
SGLANG_SPECULATIVE_SEQUENCES = 48
# Public reports of mid 2026; the simulation prices steps with all graphs, as the second runner has them.
VARYING_GAMMA = (
    "vLLM's first model runner gives up full CUDA graphs once γ varies, which cost 12 to 21 % of throughput against a fixed γ on "
    "an H100 (vllm#49986); the second (VLLM_USE_V2_MODEL_RUNNER=1) keeps them, but drafted the full γ at every batch until "
    "vllm#51575: measure a table before relying on it; kernels.graphs piecewise prices steps in pieces"
)
_SGLANG = {"eagle": "EAGLE", "eagle3": "EAGLE3", "mtp": "NEXTN", "draft_model": "STANDALONE", "ngram": "NGRAM", "block": "DFLASH"}
_TRTLLM = {"eagle3": "Eagle3", "mtp": "MTP", "draft_model": "DraftTarget", "ngram": "NGram", "block": "DFlash"}
_LLAMACPP = {"draft_model": "draft-simple", "mtp": "draft-mtp", "eagle3": "draft-eagle3", "ngram": "ngram-simple"}
_VLLM = {name: name for name in ("draft_model", "eagle", "eagle3", "medusa", "mtp", "ngram", "suffix")} | {"block": "dflash"}
_NAMED = ("draft_model", "eagle", "eagle3", "medusa", "block")


@dataclass(frozen=True)
class PromptsApart:
    """Instances that compute prompts for others, and the devices of each; devices of one that decodes."""

    instances: int
    tensor_parallel_size: int
    decode_tensor_parallel_size: int


@dataclass(frozen=True)
class Setting:
    """What is to be set. drafter: name or path, None where the method has none. by_batch: (first, last, γ), 0 = off.
    prompts_apart: where prompts are computed on instances of their own. kernels: what the server is started with beside.
    max_num_seqs: sequences at a time, for engines that take fewer once they speculate."""

    method: str
    num_speculative_tokens: int
    drafter: str | None = None
    draft_tensor_parallel_size: int | None = None
    by_batch: tuple[tuple[int, int, int], ...] | None = None
    tree: Tree | None = None
    heterogeneous_vocabulary: bool = False
    prompts_apart: PromptsApart | None = None
    kernels: KernelSwitches = field(default_factory=KernelSwitches)
    max_num_seqs: int | None = None


@dataclass(frozen=True)
class Snippet:
    """Text to paste. file: a file the text belongs into, "" for the command line. notes: what it does not say."""

    engine: str
    text: str
    file: str = ""
    notes: tuple[str, ...] = ()


class NotExpressibleError(ValueError):
    """The engine has no such setting; the text says which."""


class UnnamedDrafterError(NotExpressibleError):
    """Engines load the drafter by its name, and none is given."""


def snippets(engine: str, setting: Setting) -> tuple[Snippet, ...]:
    """The setting for one of `ENGINES`. Raises `NotExpressibleError` where the engine cannot do it."""
    found, apart = _with_kernels(engine, _WRITERS[engine](setting), setting.kernels), setting.prompts_apart
    if apart is None:
        return found
    if engine in _ROLES:
        return (*found, *_instances(engine, apart))
    return (replace(found[0], notes=(*found[0].notes, _NO_ROLES.format(engine))), *found[1:])


def forced_acceptance(engine: str, setting: Setting, rates: Sequence[float]) -> Snippet:
    """How the engine is held to acceptance rates per position (unconditional), so that a run measures timing alone.

    vLLM takes the rates; the others take τ only, which gives the same mean with another spread. Raises
    `NotExpressibleError` where an engine has no such switch.
    """
    length = 1 + sum(rates)
    if engine == "vllm":
        config = _vllm_config(setting) | {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": list(rates)}
        return Snippet("vllm", f"--speculative-config '{json.dumps(config)}'")
    if engine == "sglang":
        return Snippet("sglang", f"SGLANG_SIMULATE_ACC_LEN={length:.4g} SGLANG_SIMULATE_ACC_METHOD=match-expected")
    if engine == "trtllm":
        return Snippet("trtllm", f"TLLM_SPEC_DECODE_FORCE_NUM_ACCEPTED_TOKENS={length - 1:.4g}", notes=("drafts only: τ - 1",))
    raise NotExpressibleError(f"{engine} has no switch that forces acceptance")


def _named(setting: Setting) -> str | None:
    if setting.method in _NAMED and setting.drafter is None:
        raise UnnamedDrafterError(f"method {setting.method} must name its drafter, in speculation.drafter")
    return setting.drafter if setting.method in _NAMED else None


def _supported(engine: str, setting: Setting, names: dict[str, str]) -> str:
    if setting.method not in names:
        raise NotExpressibleError(f"{engine} has no {setting.method} drafting (it has {', '.join(sorted(names))})")
    return names[setting.method]


# ---------------------------------------------------------------------------------------------------------------- vLLM


def _vllm_config(setting: Setting) -> dict[str, object]:
    if setting.tree is not None and not setting.tree.is_chain:
        raise NotExpressibleError("vllm drafts chains; draft trees are SGLang's")
    config: dict[str, object] = {"method": _supported("vllm", setting, _VLLM)}
    if (drafter := _named(setting)) is not None:
        config["model"] = drafter
    config["num_speculative_tokens"] = setting.num_speculative_tokens
    if setting.draft_tensor_parallel_size is not None and setting.method in ("draft_model", "eagle", "eagle3"):
        config["draft_tensor_parallel_size"] = setting.draft_tensor_parallel_size
    if setting.heterogeneous_vocabulary:
        config["use_heterogeneous_vocab"] = True
    if setting.by_batch is not None:
        config["num_speculative_tokens_per_batch_size"] = [list(row) for row in setting.by_batch]
    return config


def _vllm(setting: Setting) -> tuple[Snippet, ...]:
    notes = () if setting.by_batch is None else (VARYING_GAMMA,)
    return (Snippet("vllm", f"--speculative-config '{json.dumps(_vllm_config(setting))}'", notes=notes),)


# ------------------------------------------------------------------------------------------------------------- kernels


# By what a scenario calls it: flags, in the order of `KernelSwitches`. docs.vllm.ai (engine arguments, batch invariance) and
# docs.sglang.io (server arguments).
_BACKENDS = {
    "vllm": {"flash_attn": "FLASH_ATTN", "flashinfer": "FLASHINFER", "triton": "TRITON_ATTN"},
    "sglang": {"fa3": "fa3", "flashinfer": "flashinfer", "triton": "triton"},
}
_GRAPHS = {
    "vllm": {"none": "--enforce-eager", "piecewise": '--compilation-config \'{"cudagraph_mode": "PIECEWISE"}\''},
    "sglang": {"none": "--disable-cuda-graph"},
}
_OVERLAP: dict[tuple[str, bool | None], str] = {
    ("vllm", False): "--no-async-scheduling",
    ("vllm", True): "--async-scheduling",
    ("sglang", False): "--disable-overlap-schedule",
    ("sglang", True): "--mamba-scheduler-strategy extra_buffer",
}
_OTHER_KERNELS = "the scenario's kernels are not written: {} has no such switch here"


def _with_kernels(engine: str, found: tuple[Snippet, ...], kernels: KernelSwitches) -> tuple[Snippet, ...]:
    """Snippets whose first also starts the scenario's kernels, or says that it does not."""
    if kernels == KernelSwitches():
        return found
    backend = _BACKENDS.get(engine, {}).get(kernels.attention_backend or "")
    graphs = _GRAPHS.get(engine, {}).get(kernels.graphs or "")
    if engine not in _BACKENDS or (kernels.attention_backend and not backend) or (kernels.graphs and not graphs):
        return (replace(found[0], notes=(*found[0].notes, _OTHER_KERNELS.format(engine))), *found[1:])
    flags = [found[0].text, f"--attention-backend {backend}" if backend else "", graphs or ""]
    flags.append(_OVERLAP.get((engine, kernels.overlap), ""))
    more: tuple[Snippet, ...] = ()
    if kernels.deterministic and engine == "sglang":
        flags.append("--enable-deterministic-inference")
    elif kernels.deterministic:
        more = (Snippet(engine, "export VLLM_BATCH_INVARIANT=1", notes=("in the environment of the server",)),)
    return (replace(found[0], text=" ".join(flag for flag in flags if flag)), *more, *found[1:])


# ------------------------------------------------------------------------------------------- prompts on their own instances


# What an instance that computes prompts is started with, and one that decodes, besides the speculation of both: docs.vllm.ai,
# "NixlConnector Usage Guide" (kv_producer and kv_consumer; the connector leaves roles to the proxy) and docs.sglang.io, "PD
# Disaggregation" (Mooncake or NIXL).
_ROLES = {
    "vllm": tuple(
        f"--kv-transfer-config '{json.dumps({'kv_connector': 'NixlConnector', 'kv_role': role})}'"
        for role in ("kv_producer", "kv_consumer")
    ),
    "sglang": tuple(f"--disaggregation-mode {mode} --disaggregation-transfer-backend nixl" for mode in ("prefill", "decode")),
}
_ROUTING = {
    "vllm": "a proxy in front decides which instance computes a prompt and which decodes; on several hosts each is told its own "
    "address by VLLM_NIXL_SIDE_CHANNEL_HOST",
    "sglang": "sglang_router.launch_router --pd-disaggregation stands in front",
}
_NO_ROLES = "for prompts on instances of their own none of {}'s settings are written: this is the speculation alone"


def _instances(engine: str, apart: PromptsApart) -> tuple[Snippet, Snippet]:
    prefill, decode = _ROLES[engine]
    one = apart.instances == 1
    who = "the instance that computes prompts" if one else f"each of {apart.instances} instances that compute prompts"
    starts = (
        f"# {started}, with the speculation above\n--tensor-parallel-size {size} {role}"
        for started, size, role in (
            (who, apart.tensor_parallel_size, prefill),
            ("each instance that decodes", apart.decode_tensor_parallel_size, decode),
        )
    )
    first, second = (Snippet(engine, start) for start in starts)
    return first, replace(second, notes=(_ROUTING[engine],))


# -------------------------------------------------------------------------------------------------------------- SGLang


def _sglang(setting: Setting) -> tuple[Snippet, ...]:
    algorithm = _supported("sglang", setting, _SGLANG)
    flags = [f"--speculative-algorithm {algorithm}"]
    if (drafter := _named(setting)) is not None:
        flags.append(f"--speculative-draft-model-path {drafter}")
    tree = setting.tree
    if setting.method == "block":
        flags.append(f"--speculative-num-draft-tokens {setting.num_speculative_tokens + 1}")
    elif setting.method != "ngram":
        steps, width, nodes = (tree.steps, tree.width, tree.nodes) if tree is not None else (setting.num_speculative_tokens, 1, 0)
        flags += [f"--speculative-num-steps {steps}", f"--speculative-eagle-topk {width}"]
        flags.append(f"--speculative-num-draft-tokens {nodes or steps + 1}")
    else:
        flags.append(f"--speculative-num-draft-tokens {setting.num_speculative_tokens + 1}")
    if setting.max_num_seqs is not None:  # Not told, it takes SGLANG_SPECULATIVE_SEQUENCES.
        flags.append(f"--max-running-requests {setting.max_num_seqs}")
    notes = ("--speculative-num-draft-tokens counts the root of the drafts too: γ + 1 on a chain",)
    if setting.by_batch is None:
        return (Snippet("sglang", " ".join(flags), notes=notes),)
    if setting.method not in ("eagle", "eagle3") or (tree is not None and not tree.is_chain):
        raise NotExpressibleError("sglang adapts the number of steps for EAGLE and EAGLE3 chains only")
    table = {str(first): {"candidate_steps": [gamma]} for first, _, gamma in setting.by_batch}
    flags += ["--speculative-adaptive", "--speculative-adaptive-config adaptive.json"]
    return (
        Snippet("sglang", " ".join(flags), notes=notes),
        Snippet("sglang", json.dumps(table, indent=2), "adaptive.json", ("keys are the smallest batch of each row",)),
    )


# ------------------------------------------------------------------------------------------------------- TensorRT-LLM


def _trtllm(setting: Setting) -> tuple[Snippet, ...]:
    config: dict[str, object] = {"decoding_type": _supported("trtllm", setting, _TRTLLM)}
    if (drafter := _named(setting)) is not None:
        config["speculative_model"] = drafter
    if setting.method == "mtp":
        config["num_nextn_predict_layers"] = setting.num_speculative_tokens
    else:
        config["max_draft_len"] = setting.num_speculative_tokens
    if setting.tree is not None and not setting.tree.is_chain:
        if setting.method != "eagle3":
            raise NotExpressibleError("trtllm drafts trees with Eagle3 only")
        config |= {
            "max_draft_len": setting.tree.steps, "use_dynamic_tree": True, "dynamic_tree_max_topK": setting.tree.width,
            "max_total_draft_tokens": setting.tree.nodes - 1,
        }  # fmt: skip
    if setting.by_batch is not None:
        config["max_concurrency"] = _off_above(setting.by_batch)
    return (Snippet("trtllm", yaml.safe_dump({"speculative_config": config}, sort_keys=False), "config.yaml"),)


def _off_above(by_batch: tuple[tuple[int, int, int], ...]) -> int:
    """The batch above which a table switches off. Raises `NotExpressibleError` for a table that does anything else."""
    on = sorted(row for row in by_batch if row[2])
    whole = on[0][0] == 1 and all(before[1] + 1 == row[0] for before, row in pairwise(on))
    if not whole or len({gamma for _, _, gamma in on}) > 1:
        raise NotExpressibleError("trtllm switches off above one batch size (max_concurrency); it has no γ by batch")
    return on[-1][1]


# ----------------------------------------------------------------------------------------------------------- llama.cpp


def _llamacpp(setting: Setting) -> tuple[Snippet, ...]:
    if setting.by_batch is not None:
        raise NotExpressibleError("llamacpp has no γ by batch")
    if setting.tree is not None and not setting.tree.is_chain:
        raise NotExpressibleError("llamacpp drafts chains")
    flags = [f"--spec-type {_supported('llamacpp', setting, _LLAMACPP)}"]
    if (drafter := _named(setting)) is not None:
        flags.append(f"--model-draft {drafter}")
    flags.append(f"--spec-draft-n-max {setting.num_speculative_tokens}")
    notes = ("--model-draft takes a GGUF file",) if drafter is not None else ()
    return (Snippet("llamacpp", " ".join(flags), notes=notes),)


_WRITERS: dict[str, Callable[[Setting], tuple[Snippet, ...]]] = {
    "vllm": _vllm,
    "sglang": _sglang,
    "trtllm": _trtllm,
    "llamacpp": _llamacpp,
}
