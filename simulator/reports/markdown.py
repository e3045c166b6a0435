"""A page as Markdown, for reviews and wikis."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from simulator.plots.words import interval
from simulator.reports.page import Block, Bullets, Code, Figure, Heading, Page, Table, Verdict

_CODE = re.compile(r"(`[^`]*`)")


def markdown(page: Page, figures: Mapping[str, str]) -> str:
    """The page with its figures as links. figures: name → file, relative to the report; others are left out."""
    parts = [f"# {_text(page.title)}", *_verdict(page.verdict), _text(page.asked)]
    for section in page.sections:
        blocks = [part for block in section.blocks if (part := _block(block, figures))]
        if blocks:
            parts += [f"## {_text(section.title)}", *blocks]
    return "\n\n".join(part for part in (*parts, _text(page.ending)) if part) + "\n"


def _verdict(verdict: Verdict) -> Iterator[str]:
    first, *others = verdict.sentences
    yield "\n>\n".join([f"> **{_text(first)}**", *(f"> {_text(sentence)}" for sentence in others)])
    if verdict.advice:
        yield f"**{_text(verdict.advice)}**"
    rows = [(fact.name, fact.value, fact.remark) for fact in verdict.facts]
    if verdict.number:
        bounds = "" if verdict.interval is None else f"80 % interval {interval(verdict.interval)}"
        rows.insert(0, (verdict.number_is, verdict.number, bounds))
    if rows:
        yield _table(Table.of(("at a glance", "value", ""), rows))


def _block(block: Block, figures: Mapping[str, str]) -> str:
    if isinstance(block, Figure):
        return f"![{_text(block.alt)}]({figures[block.name]})" if block.name in figures else ""
    if isinstance(block, Table):
        return f"{_text(block.caption)}\n\n{_table(block)}".strip()
    if isinstance(block, Bullets):
        return "\n".join(f"- {_text(line)}" for line in block.lines)
    if isinstance(block, Code):
        fence = "```" + "`" * max(map(len, re.findall(r"`{3,}", block.text)), default=0)
        return f"{_text(block.about)}\n\n{fence}{block.language}\n{block.text.rstrip()}\n{fence}".strip()
    return f"### {_text(block.text)}" if isinstance(block, Heading) else _text(block.text)


def _table(table: Table) -> str:
    """Columns of numbers to the right."""
    marks = ["---:" if numeric else "---" for numeric in table.numeric]
    rows = [[_cell(cell) for cell in row] for row in (table.header, *table.rows)]
    return "\n".join("| " + " | ".join(row) + " |" for row in (rows[0], marks, *rows[1:]))


def _cell(cell: str) -> str:
    return _text(cell).replace("|", "\\|")


def _text(text: str) -> str:
    """In one line, with what would be read as a tag made harmless outside of code."""
    parts = _CODE.split(" ".join(text.split("\n")))
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)
