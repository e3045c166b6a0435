"""`python -m simulator VERB`: the verbs, and exit codes.

Results go to stdout, talk and progress to stderr. Exit codes: 0 done, 1 a required answer is "no", 2 bad input, 3 some
cells of a sweep have no answer, 130 interrupted.
"""

from __future__ import annotations

import atexit
import gc
import os
import re
import signal
import sys
from os.path import basename

# As the program itself: Ctrl-C while the libraries load ends it without a traceback; `main` hands it to Python again. Hardly any
# object is in a reference cycle: searching for them as often as Python does, and once more at the end, takes a fifth of the time
# of a short command. What is installed beside it must not change how files are checked, nor is it looked for.
if __name__ == "__main__" or basename(sys.argv[0]) == "specsim":
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    gc.set_threshold(200_000)
    atexit.register(gc.freeze)
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    # A thread for every core wakes for a few short products, whose last digits would depend on how many there are. Verbs that run
    # models keep theirs.
    if not {"calibrate", "demo", "trace", "validate"} & set(sys.argv[1:2]):
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
import threading
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer
from rich.text import Text

from simulator.commands.break_even import break_even
from simulator.commands.calibrate import calibrate
from simulator.commands.capacity import capacity
from simulator.commands.check_server import check_server
from simulator.commands.compare import compare
from simulator.commands.demo import demo
from simulator.commands.explain import explain
from simulator.commands.export import export
from simulator.commands.fit_engine import fit_engine
from simulator.commands.import_runs import import_runs
from simulator.commands.list_known import list_known
from simulator.commands.predict import predict
from simulator.commands.run import run
from simulator.commands.schedule import schedule
from simulator.commands.schema import schema
from simulator.commands.sweep import sweep
from simulator.commands.trace import trace
from simulator.commands.validate import validate
from simulator.console import err
from simulator.spec import Problem, SpecError, nearest, shown

# In the order of the help page. To add a verb: a file in `commands`, and its name here.
VERBS: dict[str, Callable[..., None]] = {
    "run": run,
    "predict": predict,
    "break-even": break_even,
    "capacity": capacity,
    "schedule": schedule,
    "explain": explain,
    "compare": compare,
    "sweep": sweep,
    "import": import_runs,
    "check-server": check_server,
    "fit-engine": fit_engine,
    "export": export,
    "validate": validate,
    "demo": demo,
    "trace": trace,
    "calibrate": calibrate,
    "list": list_known,
    "schema": schema,
}
# The class of all mistakes in flags and arguments; typer exports only one of its children.
USAGE_ERROR: type[Any] = typer.BadParameter.__bases__[0]


def _show_versions(asked: bool) -> None:
    if asked:
        from simulator.reports.summary import versions

        beside = versions()
        print(f"specsim {beside.pop('simulator')} ({', '.join(f'{name} {number}' for name, number in beside.items())})")
        raise typer.Exit


def specsim(
    version: Annotated[
        bool, typer.Option("--version", help="Versions that decide the bytes of a result.", callback=_show_versions)
    ] = False,
) -> None:
    """Does speculative decoding win on your hardware, models and traffic? By how much, and with which settings?"""


def _program(first: str) -> Any:
    """The command line with the verb that is asked for first, else with all of them: reading the flags of each takes time."""
    app = typer.Typer(add_completion=False, no_args_is_help=True, rich_markup_mode=None, pretty_exceptions_enable=False)
    app.callback()(specsim)
    for verb in [first] if first in VERBS else VERBS:
        app.command(verb, short_help=" ".join((VERBS[verb].__doc__ or "").split("\n\n")[0].split()))(VERBS[verb])
    return typer.main.get_command(app)


def _clean_up_on_signals() -> None:
    """Ctrl-C and SIGTERM unwind the stack, so that what is half written is removed. Not in threads, nor over others' handlers."""
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminated)


def _terminated(number: int, frame: object) -> None:  # noqa: ARG001
    sys.exit(128 + number)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. A user's mistake is one clear message, never a traceback."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    program = _program(arguments[0] if arguments else "")
    _clean_up_on_signals()
    try:
        code = program.main(args=arguments, prog_name="specsim", standalone_mode=False)
        if sys.stdout is not None:
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except SpecError as error:
        for problem in error.problems:
            err.print(Text(str(problem)))
    except USAGE_ERROR as error:
        err.print(Text(_unknown(error) or _worded(error.format_message(), arguments)))
    except typer.Abort:
        return 130
    except KeyboardInterrupt:
        return 130
    except (ArithmeticError, MemoryError) as error:
        err.print(Text(f"a number in the input is too large or too small to compute with: {error or type(error).__name__}"))
    except BrokenPipeError:
        _say_no_more()
        return 0
    except OSError as error:
        _say_no_more()
        place = f"{error.filename}: " if error.filename else "the results: "
        err.print(Text(f"{place}cannot be read or written: {(error.strerror or str(error)).lower()}"))
    return 2


# What the libraries say of a flag, as everything else here says it.
_WORDED = {
    r"Invalid value for '(.+?)'.*?: Input should be greater than or equal to (\S+)": r"\1: must be at least \2",
    r"Invalid value for '(.+?)'.*?: Input should be less than or equal to (\S+)": r"\1: must be at most \2",
    r"Invalid value for '(.+?)'.*?: Input should be a valid integer.*": r"\1: must be a whole number",
    r"Invalid value for '(.+?)'.*?: Input should be a valid number.*": r"\1: must be a number",
    r"Missing (?:option|argument) '(.+?)'.*": r"\1: must be given",
}


def _worded(message: str, arguments: Sequence[str]) -> str:
    for pattern, said in _WORDED.items():
        if found := re.fullmatch(pattern, message, re.DOTALL):
            return found.expand(said) + _got(found[1], arguments)
    return message


def _unknown(error: Any) -> str:
    """What is wrong with a verb, a flag or an argument that nothing is known of; "" for other mistakes."""
    context, message = error.ctx, error.format_message()
    verb = "specsim" if context is None else context.command.name if context.parent is not None else "specsim"
    flag = getattr(error, "option_name", None)
    if flag is not None and "No such option" in message:
        known = sorted(name for each in context.command.params for name in each.opts if name.startswith("--"))
        like = nearest(flag.lstrip("-"), [name.lstrip("-") for name in known])
        must = f"unknown flag of {verb}; known here: {', '.join(known)}"
        return str(Problem("", flag, must, "", f"--{like}" if like else ""))
    if found := re.match(r"No such command '(.*?)'", message):
        return str(Problem("", "verb", f"must be one of {', '.join(VERBS)}", shown(found[1]), nearest(found[1], VERBS)))
    if found := re.match(r"Got unexpected extra arguments? ?(?:\(s\) )?\((.*)\)", message):
        return str(Problem("", found[1], f"must be left out: {verb} takes no such argument"))
    return ""


def _got(flag: str, arguments: Sequence[str]) -> str:
    """What followed a flag, where it was given."""
    given = ""
    for flagged, after in zip(arguments, [*arguments[1:], ""], strict=True):
        name, joined, value = flagged.partition("=")
        if name == flag:
            given = value if joined else after
    return f" (got {given})" if given else ""


def _say_no_more() -> None:
    """The reader is gone, or there is no room: what is still to be flushed at the end would fail again."""
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115


if __name__ == "__main__":
    sys.exit(main())
