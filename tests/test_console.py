"""Sentences and tables on a terminal: what a reader copies from them stays whole, and nothing is wider than the page."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from simulator.__main__ import main
from simulator.console import (
    FEWEST_COLUMNS,
    PAGE_COLUMNS,
    console_of_stdout,
    err,
    print_sentence,
    print_table,
    print_written,
    progress_bars,
)
from simulator.text_table import text_tables

NUMBERS = st.from_regex(r"[+-]?\d{1,3}\.\d{1,3}( / [+-]?\d{1,2}\.\d)? ?%?", fullmatch=True)
WORDS = st.lists(st.text("abcdefg_", min_size=1, max_size=12), min_size=1, max_size=5).map(" ".join)


def test_commands_that_tests_start_do_not_learn_the_width_of_the_testers_terminal():
    seen = subprocess.run([sys.executable, "-c", "import os; print(os.environ.get('COLUMNS'))"], capture_output=True, text=True)
    assert seen.stdout.split() == ["None"]


def test_a_model_name_is_never_cut_at_its_hyphens():
    name = "meta-llama/Llama-3.3-70B-Instruct"
    for before in range(50, 80):
        console = Console(file=io.StringIO(), width=80)
        print_sentence(console, f"{'x' * before} {name} and γ = 5")
        assert name in console.file.getvalue()


@given(st.data(), st.integers(1, 9), st.integers(1, 6), st.integers(44, 130))
def test_a_table_fits_any_page_and_cuts_no_number_and_no_word(data, columns, count, width):
    kinds = [WORDS, *(data.draw(st.sampled_from([WORDS, NUMBERS])) for _ in range(columns))]
    header = [data.draw(WORDS) for _ in kinds]
    rows = [[data.draw(kind) for kind in kinds] for _ in range(count)]
    found = list(text_tables(header, rows, width))
    lines = [line for table in found for line in (*table.heading, *table.body)]
    assert all(len(line) <= width for line in lines)
    shown = " ".join(lines)
    for place, kind in enumerate(kinds):
        for row in rows:
            whole = [row[place].strip()] if kind is NUMBERS and place else row[place].split()
            assert all(each in shown for each in whole)


def test_what_is_too_wide_goes_on_below_with_its_first_column():
    header = ["run", *(f"column_{number}" for number in range(9))]
    rows = [[f"run_{row}", *(f"{100 * row + number}.00" for number in range(9))] for row in (1, 2)]
    first, *others = text_tables(header, rows, 40)
    assert others
    assert all(line.startswith("run_") for table in (first, *others) for line in table.body)
    shown = [name for table in (first, *others) for name in " ".join(table.heading).split() if name != "run"]
    assert shown == header[1:]


# Of a folder: what looks like styles, like their end and like a smiley is a part of its name.
ODD_NAME = "runs [bold]a[/] [/b] :warning: " + "and-so-on/" * 12


def test_a_path_is_printed_as_it_is_and_in_one_line(monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "40")
    print_written(console_of_stdout(), "Report", Path(ODD_NAME))
    assert f"Report: {Path(ODD_NAME)}\n" == capsys.readouterr().out


def test_the_name_of_what_is_going_on_is_printed_as_it_is(capsys):
    with progress_bars(quiet=False) as progress:
        progress(ODD_NAME, 1, 2)
    err.print(ODD_NAME)
    assert capsys.readouterr().err.count(ODD_NAME) == 2


def test_a_verb_says_where_its_answer_is_so_that_it_can_be_copied(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    folder = tmp_path / "a [b] [/c]"
    assert main(["sweep", "quickstart", "--question", "predict", "--set", "batch=1", "--out", str(folder)]) == 0
    assert f"{folder / 'cells.csv'}, {folder / 'cells.parquet'}\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("stated", "width"),
    [
        ("80", 80),
        ("130", 130),
        ("7", FEWEST_COLUMNS),
        ("0", PAGE_COLUMNS),
        ("-5", PAGE_COLUMNS),
        ("wide", PAGE_COLUMNS),
        ("", PAGE_COLUMNS),
    ],
)
def test_a_page_is_as_wide_as_columns_says(stated, width, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", stated)
    assert console_of_stdout().width == width
    print_table(console_of_stdout(), ("id", "words"), [("a", "many words " * 40)])
    assert max(map(len, capsys.readouterr().out.splitlines())) <= width


@pytest.mark.parametrize("columns", [80, 120])
@pytest.mark.parametrize(
    "arguments",
    [
        ["explain", "quickstart", "--gamma", "5", "--batch", "8"],
        ["run", "chat.yaml"],
        ["compare", "chat.yaml", "--by", "method"],
        ["compare", "chat.yaml", "--by", "hardware", "--values", "h200_sxm,rtx_pro_6000"],
        ["break-even", "chat.yaml"],
        ["capacity", "chat.yaml", "--repetitions", "1", "--price-per-gpu-hour", "3"],
        ["list", "acceptance"],
        ["list", "hardware"],
    ],
    ids=" ".join,
)
def test_nothing_but_settings_to_paste_is_wider_than_the_page(arguments, columns, monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("COLUMNS", str(columns))
    (tmp_path / "chat.yaml").write_text(CHAT)
    monkeypatch.chdir(tmp_path)
    assert main(arguments) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("--speculative")]
    assert max(map(len, lines)) <= columns
    assert not any(line.endswith(" ") for line in lines)


CHAT = """
hardware: h100_sxm
engine: vllm
target: {model: meta-llama/Llama-3.1-8B-Instruct}
speculation: {method: eagle3, drafter: yuhuili/EAGLE3-LLaMA3.1-Instruct-8B, num_speculative_tokens: [1, 2, 3, 4, 5, 6]}
acceptance: {acceptance_rate: 0.7}
workload:
  arrivals: {process: poisson, rate_per_s: 6}
  lengths: {prompt: 600, output: 60}
  num_requests: 40
"""


def test_reasons_that_are_not_shown_are_counted(tmp_path, capsys):
    table = tmp_path / "cases.csv"
    rows = [f"h100_sxm,no such model {number},ngram,3,4" for number in range(15)]
    table.write_text("\n".join(["hardware,target_model,method,num_speculative_tokens,batch", *rows]))
    assert main(["predict", "--table", str(table)]) == 0
    told = capsys.readouterr().err
    assert (told.count("must be a known target model"), "and 3 more reasons" in told) == (12, True)
    values = ",".join(f"no_such_{number}" for number in range(14))
    assert main(["sweep", "quickstart", "--question", "predict", "--set", f"engine={values}"]) == 2
    told = capsys.readouterr().err
    assert (told.count("failed, first at"), "and 2 more reasons" in told) == (12, True)
