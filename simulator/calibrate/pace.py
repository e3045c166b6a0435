"""How long measuring may go on: what fitting afterwards will take on a machine this busy comes off the minutes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

# A run ends a minute after its minutes at the latest: starting, the last visit and writing files take the rest of it.
FITTING_ALLOWED_S = 30.0
# Reading, fitting and drawing took 4 seconds of CPU time on a Zen 5 core, about as many as loading PyTorch and looking at the
# device; so slower machines are told by the latter.
_FITTING_CPU_S = 4.0
# However busy the machine is, measuring gets this much of the minutes.
_LEAST_SHARE = 0.4


@dataclass(frozen=True)
class ProcessClock:
    """Wall and CPU seconds of this process since it was made."""

    _began_s: float = field(default_factory=time.monotonic)
    _began_cpu_s: float = field(default_factory=time.process_time)

    @property
    def wall_s(self) -> float:
        return time.monotonic() - self._began_s

    @property
    def cpu_s(self) -> float:
        return time.process_time() - self._began_cpu_s


def measuring_s(minutes: float, wall_s: float, cpu_s: float, looking_cpu_s: float) -> float:
    """Seconds of the minutes that are for measuring, when `wall_s` gave this process `cpu_s` so far.

    On a quiet machine all; where a second of work takes eleven, fitting takes 44:

    >>> measuring_s(3, 60, 60, 4), measuring_s(3, 66, 6, 4)
    (180.0, 166.0)
    """
    fitting_s = max(looking_cpu_s, _FITTING_CPU_S) * max(wall_s / max(cpu_s, 1e-3), 1.0)
    return max(minutes * 60 - max(fitting_s - FITTING_ALLOWED_S, 0.0), _LEAST_SHARE * minutes * 60)
