"""The glossary names what the code and the files really call it."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Names of other tools, quoted to be told apart.
THEIRS = {
    "speculative_num_draft_tokens",
    "speculative_num_steps",
    "spec_accept_rate",
    "nextn_accepted",
    "draft_prob",
    "target_prob",
}


def test_every_name_in_the_glossary_is_in_the_code() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    names = set(re.findall(r"`([A-Za-z_]+)`", text)) - THEIRS
    assert len(names) >= 14
    code = "\n".join(path.read_text() for path in (ROOT / "simulator").rglob("*.py"))
    words = set(re.findall(r"\w+", code))
    assert not {name for name in names if name not in words}
