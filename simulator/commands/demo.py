"""`demo`: the textbook demonstration."""

from __future__ import annotations

from typing import Annotated

import typer

from simulator.commands.flags import AsJson
from simulator.console import console_of_stdout, print_json, print_notes, print_sentence, print_table


def demo(
    hardware: Annotated[str, typer.Option(help="Device on which the counts are priced.")] = "h100_sxm",
    target: Annotated[str, typer.Option(help="Target model priced there.")] = "Llama-3.1-8B",
    draft: Annotated[str, typer.Option(help="Draft model priced there.")] = "Llama-3.2-1B",
    as_json: AsJson = False,
) -> None:
    """Real speculative decoding of two tiny models: passes counted, output as plain; then what a device makes of it."""
    from simulator import demo as demonstration

    answer = demonstration.demonstrate(hardware, target, draft)
    if as_json:
        print_json(demonstration.summary(answer))
        return
    console = console_of_stdout()
    print_sentence(console, demonstration.headline(answer), "bold")
    console.print()
    print_table(console, *demonstration.counts_table(answer))
    print_notes(console, [demonstration.counts_note()], [])
    console.print()
    where, *reasons = demonstration.device_sentences(answer)
    print_sentence(console, where, "bold")
    console.print()
    print_table(console, *demonstration.device_table(answer))
    for reason in reasons:
        print_sentence(console, reason)
