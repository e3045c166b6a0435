"""ServiceLevel: limits on percentiles of latency."""

from __future__ import annotations

from pydantic import model_validator

from simulator.spec import Spec
from simulator.workload.quantities import Seconds


class ServiceLevel(Spec):
    """Upper limits in seconds on percentiles of time to first token, time per output token and end-to-end latency."""

    ttft_p50_s: Seconds | None = None
    ttft_p90_s: Seconds | None = None
    ttft_p95_s: Seconds | None = None
    ttft_p99_s: Seconds | None = None
    tpot_p50_s: Seconds | None = None
    tpot_p90_s: Seconds | None = None
    tpot_p95_s: Seconds | None = None
    tpot_p99_s: Seconds | None = None
    e2e_p50_s: Seconds | None = None
    e2e_p90_s: Seconds | None = None
    e2e_p95_s: Seconds | None = None
    e2e_p99_s: Seconds | None = None

    @model_validator(mode="after")
    def _states_something(self) -> ServiceLevel:
        if not self.limits():
            raise ValueError("must state at least one limit, such as ttft_p99_s")
        return self

    def limits(self) -> tuple[tuple[str, float, float], ...]:
        """(metric, percentile, seconds) of each stated limit: metric is ``ttft``, ``tpot`` or ``e2e``."""
        stated = ((name.split("_"), getattr(self, name)) for name in type(self).model_fields)
        return tuple((metric, float(percentile[1:]), limit) for (metric, percentile, _), limit in stated if limit is not None)
