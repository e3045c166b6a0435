"""UnseenSet: the files of a set of published runs that nobody had seen while the model was built."""

from __future__ import annotations

import re
from dataclasses import dataclass

from simulator import resources

FOLDER = "published_cases"


@dataclass(frozen=True, order=True)
class UnseenSet:
    """number: from 1, in the order in which the sets were written down; in the names of files from 2."""

    number: int

    @property
    def table(self) -> str:
        """Its runs.

        >>> UnseenSet(1).table, UnseenSet(2).table
        ('unseen_cases.csv', 'unseen_cases_2.csv')
        """
        return f"unseen_cases{self._suffix}.csv"

    @property
    def first(self) -> str:
        """What was predicted once for these runs, with the version that did; absent before."""
        return f"unseen_first{self._suffix}.csv"

    @property
    def waits(self) -> bool:
        """Whether nobody has predicted it yet."""
        return not (resources.folder(FOLDER) / self.first).exists()

    @property
    def _suffix(self) -> str:
        return "" if self.number == 1 else f"_{self.number}"


def unseen_sets() -> list[UnseenSet]:
    """All that are written down, the first one first."""
    names = (re.fullmatch(r"unseen_cases(?:_(\d+))?\.csv", path.name) for path in resources.folder(FOLDER).iterdir())
    return sorted(UnseenSet(int(name[1] or 1)) for name in names if name)
