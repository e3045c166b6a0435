"""Commands: JSON alone on stdout, exit codes, and what a command may import."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from simulator.__main__ import VERBS, _program, main
from simulator.reports import files
from simulator.spec import Problem, SpecError
from tests.test_scenario import BASE, run_quietly

ROOT = Path(__file__).parents[1]
POINT = ["--hardware", "h100_sxm", "--target", "llama-3.1-8b", "--method", "ngram", "--num-speculative-tokens", "3"]


@pytest.fixture(scope="module")
def small(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("scenario") / "small.yaml"
    path.write_text(BASE)
    return path


@pytest.mark.parametrize("arguments", [["run"], ["break-even"]])
def test_scenario_verbs_print_one_json_document_and_nothing_else(arguments, small, capsys):
    assert main([*arguments, str(small), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["schema_version"] == 1


def test_run_prints_the_verdict_before_the_table(small, capsys):
    assert main(["run", str(small)]) == 0
    text = capsys.readouterr().out
    assert text.index("Speculation wins") < text.index("γ = 3")
    assert all(len(line) <= 100 for line in text.splitlines())


def test_run_says_which_run_is_going_on_stderr(small):
    code, shown = run_quietly(["run", str(small)])
    assert code == 0
    assert "simulating 50 requests: no speculation" in shown


def test_same_scenario_same_bytes(small, capsys):
    outputs = []
    for _ in range(2):
        main(["run", str(small), "--json"])
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]


def test_out_writes_report_summary_figures_and_records(small, tmp_path, capsys):
    out = tmp_path / "report"
    assert main(["run", str(small), "--out", str(out)]) == 0
    names = {path.name for path in out.rglob("*") if path.is_file()}
    assert {"report.md", "summary.json", "records.parquet", "break_even.csv"} <= names
    assert sum(name.endswith(".png") for name in names) >= 5
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, shown = run_quietly(["run", str(small), "--out", str(blocked)])
    assert code == 2
    assert "--out" in shown


@pytest.mark.parametrize("kind", ["hardware", "engine", "model", "acceptance", "workload", "scenario"])
def test_list_names_what_is_known(kind, capsys):
    assert main(["list", kind, "--json"]) == 0
    entries = json.loads(capsys.readouterr().out)[kind]
    assert len(entries) >= 4
    assert main(["list", kind]) == 0
    assert all(len(line) <= 100 for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["run", "none.yaml"], "none.yaml"),
        (["run", "quickstrat"], "did you mean quickstart"),
        (["run", "elsewhere/scenarios/quickstart.yaml"], "did you mean quickstart"),
        (["preidct"], "predict"),
        (["predict", "--bacth", "3"], "--batch"),
        (["predict", "--hardware", "h100_smx", "--target", "llama-3.1-8b", "--method", "eagle3", "--num-speculative-tokens", "3"], "did you mean h100_sxm"),
        (["predict", "--hardware", "h100_sxm", "--target", "llama-3.1-8b", "--method", "eagle3", "--num-speculative-tokens", "0"], "--num-speculative-tokens: must be at least 1 (got 0)"),
        (["predict", "--hardware", "h100_sxm", "--target", "llama-3.1-8b", "--method", "eagle3", "--num-speculative-tokens", "3", "--batch", "1.5"], "--batch: must be a whole number"),
        (["predict", "--hardware", "h100_sxm"], "--target: must be given"),
        (["predict", "--out", "x.csv", "--hardware", "h100_sxm"], "--table"),
        (["list", "hardwares"], "did you mean hardware"),
        (["run"], "scenario"),
    ],
)  # fmt: skip
def test_a_users_mistake_is_one_clear_message_and_exit_code_2(arguments, expected):
    code, shown = run_quietly(arguments)
    assert code == 2
    assert expected in shown
    assert "Traceback" not in shown


def test_break_even_without_speculation_is_refused(tmp_path):
    path = tmp_path / "plain.yaml"
    path.write_text(BASE[: BASE.index("speculation:")] + BASE[BASE.index("workload:") :])
    code, shown = run_quietly(["break-even", str(path)])
    assert code == 2
    assert "speculation: must be given" in shown


def imported_by(arguments: list[str]) -> set[str]:
    script = f"import sys\nfrom simulator.__main__ import main\ncode = main({arguments!r})\nassert code == 0\nprint(*sorted({{m.split('.')[0] for m in sys.modules}}), file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_run_and_predict_import_no_library_that_other_verbs_need(small):
    predict = [
        "predict",
        "--hardware",
        "h100_sxm",
        "--target",
        "llama-3.1-8b",
        "--method",
        "eagle3",
        "--num-speculative-tokens",
        "3",
        "--json",
    ]
    spread = "scenarios/quickstart.yaml"  # requests that differ in acceptance
    for arguments in (["run", str(small), "--json"], ["run", spread, "--json"], predict):
        heavy = {"torch", "pandas", "matplotlib", "pyarrow", "numba", "scipy", "jinja2", "joblib"}
        assert not imported_by(arguments) & heavy


def test_importing_the_package_imports_no_library():
    script = "import sys, simulator\nprint(*sorted({m.split('.')[0] for m in sys.modules} & {'numpy', 'scipy', 'pydantic', 'simpy', 'yaml'}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


# ---------------------------------------------------------------------------------------------------------------- readers


@pytest.mark.parametrize("arguments", ["list", "list --json", "--help"])
def test_a_reader_that_leaves_early_is_no_failure(arguments):
    command = f"{sys.executable} -m simulator {arguments} | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
@pytest.mark.parametrize("arguments", ["list", "list --json"])
def test_no_room_for_the_results_is_one_message(arguments):
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m simulator {arguments} > /dev/full"], capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr == "the results: cannot be read or written: no space left on device\n"


def test_closed_output_is_no_failure():
    done = subprocess.run(["bash", "-c", f"{sys.executable} -m simulator list hardware >&-"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


# ------------------------------------------------------------------------------------------------------------- interrupts


def in_a_process(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)


def test_ctrl_c_while_the_libraries_load_leaves_no_traceback():
    done = in_a_process(
        "import os, signal, sys\n"
        "class Interrupt:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'typer': os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Interrupt())\n"
        "sys.argv = ['specsim', 'list']\n"
        "import simulator.__main__\n"
    )
    assert done.returncode == -signal.SIGINT
    assert done.stderr == ""


@pytest.mark.parametrize(
    ("number", "code", "before"),
    [("SIGTERM", 143, ""), ("SIGINT", 130, "files.run_figures = files.break_even_figures = lambda *_: ()\n")],
    ids=["SIGTERM", "SIGINT, with no figures to draw"],
)
def test_a_run_that_is_ended_leaves_nothing_half_written(small, tmp_path, number, code, before):
    done = in_a_process(
        "import os, signal, sys\n"
        "from simulator.__main__ import main\n"
        "from simulator.reports import files\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"  # a parent in the background would have it ignored
        f"{before}files._write_records = lambda path, result: os.kill(os.getpid(), signal.{number})\n"
        f"sys.exit(main(['run', {str(small)!r}, '--out', {str(tmp_path / 'out')!r}]))\n"
    )
    assert done.returncode == code, done.stderr
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("arguments", [["run", "quickstart", "--out", ""], ["predict", "--table", "x.csv", "--out", " "]])
def test_an_empty_name_is_not_the_working_folder(arguments, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, shown = run_quietly(arguments)
    assert code == 2
    assert "must be a name" in shown
    assert list(tmp_path.iterdir()) == []


def test_versions_are_said(capsys):
    assert main(["--version"]) == 0
    assert re.match(r"specsim \S+ \(python 3\..*numpy .*simpy ", capsys.readouterr().out)


def test_aliases_are_listed(capsys):
    assert main(["list", "--json"]) == 0
    known = json.loads(capsys.readouterr().out)
    assert any("H100" in entry["aliases"] for entry in known["hardware"])
    assert any(entry["aliases"] for entry in known["model"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["capacity", "quickstart", "--repetitions", "0"], "--repetitions: must be at least 1"),
        (["capacity", "quickstart", "--repetitions=1000"], "--repetitions: must be at most 100 (got 1000)"),
        (["explain", "quickstart", "--gamma", "x"], "--gamma: must be a whole number (got x)"),
        (["compare", "quickstart"], "--by: must be given"),
        (["run"], "scenario: must be given"),
    ],
)
def test_a_mistake_in_a_flag_is_worded_as_all_others_are(arguments, expected, capsys):
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert expected in said
    assert "Input should" not in said


def test_the_nearest_model_is_found_though_a_suffix_is_written_out(tmp_path, capsys):
    path = tmp_path / "s.yaml"
    path.write_text("hardware: h100_sxm\nengine: vllm\ntarget: {model: meta-llama/Llama-3.1-8C-Instruct}\n")
    assert main(["run", str(path)]) == 2
    assert "did you mean meta-llama/Llama-3.1-8B?" in capsys.readouterr().err


def test_what_no_memory_holds_is_not_said_to_win(capsys):
    flags = ["--hardware", "l40s", "--target", "meta-llama/Llama-3.1-405B", "--method", "eagle3", "--num-speculative-tokens", "3"]
    assert main(["predict", *flags, "--batch", "8", "--tensor-parallel-size", "1"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert out.startswith("It cannot be served so; if it could, speculation would win from τ")
    assert out.count("models do not fit") == 1


def test_the_help_page_says_each_verb_in_whole_sentences(capsys):
    assert main(["--help"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert "..." not in text.partition("Commands:")[2]
    for verb in VERBS.values():
        assert " ".join((verb.__doc__ or "").split("\n\n")[0].split()) in text


@pytest.mark.parametrize("verb", [*VERBS])
def test_every_flag_says_what_it_is(verb):
    command = _program(verb).commands[verb]
    assert [option.name for option in command.params if not (option.help or "").strip()] == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "SMALL"],
        ["run", "SMALL", "--json"],
        ["explain", "SMALL"],
        ["break-even", "SMALL"],
        ["compare", "SMALL", "--by", "quantize", "--values", "fp8"],
        ["schedule", "SMALL"],
        ["capacity", "SMALL", "--repetitions", "1"],
        ["sweep", "SMALL", "--question", "predict", "--set", "batch=1"],
    ],
)
def test_an_answer_that_cannot_be_written_is_told_all_the_same(arguments, small, tmp_path, capsys, monkeypatch):
    def full(*_: object) -> None:
        raise SpecError([Problem("--out", "", "cannot be written: no space left on device")])

    writers = ("run", "explanation", "break_even", "comparison", "schedule", "capacity")
    for name in writers:
        monkeypatch.setattr(files, f"write_{name}", full)
    monkeypatch.setattr("simulator.sweep.write_tables", full)
    given = [str(small) if word == "SMALL" else word for word in arguments]
    main(given)
    alone = capsys.readouterr().out
    assert main([*given, "--out", str(tmp_path / "out")]) == 2
    told = capsys.readouterr()
    assert told.out == alone
    assert "no space left on device" in told.err


def test_a_report_is_written_though_the_reader_of_the_answer_is_gone(small, tmp_path):
    command = f"{sys.executable} -m simulator explain {small} --out {tmp_path / 'out'} | true"
    subprocess.run(["sh", "-c", command], check=False, capture_output=True)
    assert (tmp_path / "out" / "report.html").is_file()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["explain", *POINT, "--gamma", "5"], "--gamma"),
        (["validate", "--published", "--refit", "--out", "x.csv"], "--out"),
        (["validate", "--published", "--refit", "--diff", "x.csv"], "--diff"),
        (["predict", "--table", "cases.csv", "--out", "no/such/folder/x.csv"], "--out"),
        (["validate", "--unseen", "--out", "no/such/folder/x.csv"], "--out"),
    ],
)
def test_a_flag_that_would_change_nothing_or_cannot_be_served_is_refused_at_once(arguments, named, capsys):
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(named)


@pytest.mark.parametrize(("verb", "threads"), [("predict", "1"), ("calibrate", None)])
def test_products_run_on_one_thread_but_where_models_run(verb, threads):
    """Their last digits would depend on the number of cores, and waking threads takes a fifth of a short command."""
    code = f"import os, sys; sys.argv = ['specsim', '{verb}']; import simulator.__main__; print(os.environ.get('OPENBLAS_NUM_THREADS'))"
    unset = {name: value for name, value in os.environ.items() if name != "OPENBLAS_NUM_THREADS"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=unset, check=True)
    assert done.stdout.strip() == str(threads)
