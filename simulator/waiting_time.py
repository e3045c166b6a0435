"""The law of the wait in a queue whose gaps between arrivals and whose services are independent of all else.

Served in order of arrival by one server, or by several that take turns, the stationary wait W solves W = max(0, W + S - A) in
law, with S a service and A the time between two arrivals at one server (Lindley 1952). On a lattice the generating function of
W is a Wiener-Hopf factor: with u that of S - A, 1 - u(z) = φ₊(z)φ₋(z) and E[z^W] = φ₊(1)/φ₊(z) (Spitzer 1956), and log φ₊ is the
part of log(1 - u) at positive powers, which a Fourier transform there and back finds (Ackroyd 1980).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from heapq import heapreplace

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

# Lattice steps in a mean service, in a standard deviation of service less gap, and at most in all: a power of two.
FINE, FINE_SPREAD, MOST_STEPS = 200, 20, 2**17
# The wait's tail falls as exp(-θw); the lattice reaches to where exp(-25) is left.
DECAYED = 25.0


@dataclass(frozen=True)
class WaitLaw:
    """P(wait ≤ x) on a lattice of `step_s`."""

    step_s: float
    up_to: Floats

    def within(self, wait_s: Floats) -> Floats:
        """P(wait ≤ each of these), (waits,); of 0 the probability of none."""
        # A step's probability is that of waits about half a step to either side; of the first, of no wait too.
        middles = (np.arange(len(self.up_to)) + 0.5) * self.step_s
        none = 1.5 * self.up_to[0] - 0.5 * self.up_to[1]
        found: Floats = np.interp(wait_s, np.concatenate([[0.0], middles]), np.concatenate([[none], self.up_to]), right=1.0)
        return np.clip(found, 0.0, 1.0)

    def drawn(self, shares: Floats) -> Floats:
        """The waits up to which these shares lie."""
        middles = (np.arange(len(self.up_to)) + 0.5) * self.step_s
        none = 1.5 * self.up_to[0] - 0.5 * self.up_to[1]
        rising = np.maximum.accumulate(np.concatenate([[none], self.up_to]))
        found: Floats = np.interp(shares, rising, np.concatenate([[0.0], middles]))
        return found


def waiting_time(service_s: Floats, gap_s: float, gap_variation: float, servers: int = 1) -> WaitLaw:
    """The wait before services that are each as likely as any of `service_s`, at `servers` that take turns.

    gap_s, gap_variation: mean and squared coefficient of variation (positive) of the gaps between arrivals, which are gamma
    distributed: at 1 a Poisson process. Raises ValueError for a load of 1 or more.

    >>> queue = waiting_time(np.array([1.0]), 2.0, 1.0)  # M/D/1 at half load: half wait, and P(W ≤ 1) = (1 - ρ)·exp(ρ)
    >>> queue.within(np.array([0.0, 0.999])).round(3).tolist()
    [0.5, 0.824]
    """
    mean_s, between_s, shape = float(service_s.mean()), servers * gap_s, servers / gap_variation
    if not between_s > mean_s > 0:
        raise ValueError(f"a queue settles at a load above 0 and below 1 (got {mean_s / between_s:g})")
    variance = float(service_s.var()) + between_s**2 / shape
    longest_gap_s = between_s * (1 + 40 / shape + 8 / math.sqrt(shape))
    reach_s = max(DECAYED * variance / (2 * (between_s - mean_s)), 2 * float(service_s.max()), longest_gap_s)
    # A whole number of steps in the mean service, so that one of one length lies on the lattice.
    finest_s = min(mean_s / FINE, math.sqrt(variance) / FINE_SPREAD)
    step_s = mean_s / max(math.floor(mean_s / max(finest_s, 2 * reach_s / (MOST_STEPS - 4))), 1)
    steps = min(2 ** math.ceil(math.log2(2 * reach_s / step_s + 4)), MOST_STEPS)
    gap, service = _gamma(between_s, shape, step_s, steps), _on_lattice(service_s, step_s, steps)
    angles = 2 * np.pi * np.arange(steps) / steps
    # 1 - u over 1 - 1/z, whose zero at z = 1 belongs to φ₋: what is left has no zero, and an argument within ±π.
    quotient = np.empty(steps, dtype=np.complex128)
    difference = 1 - np.fft.fft(service) * np.conj(np.fft.fft(gap))
    quotient[1:] = difference[1:] / (1 - np.exp(1j * angles[1:]))
    quotient[0] = np.arange(steps) @ (gap - service)
    powers = np.fft.ifft(np.log(quotient)).real
    powers[0] = 0.0
    powers[steps // 2 :] = 0.0
    return WaitLaw(step_s, np.cumsum(np.fft.ifft(np.exp(powers.sum() - np.fft.fft(powers))).real))


def waits(arrival_s: Floats, service_s: Floats, servers: int = 1) -> Floats:
    """The wait of each request at `servers` that take turns and start idle, (requests,): Lindley's recursion, where nothing
    depends on anything but the past of one server.

    >>> waits(np.array([0.0, 1.0, 1.5, 9.0]), np.array([2.0, 2.0, 2.0, 2.0])).tolist()
    [0.0, 1.0, 2.5, 0.0]
    """
    rows = -(-len(arrival_s) // servers)
    padded = [np.append(each, np.zeros(rows * servers - len(each))).reshape(rows, servers) for each in (arrival_s, service_s)]
    gains = padded[1][:-1] - np.diff(padded[0], axis=0)
    walked = np.concatenate([np.zeros((1, servers)), np.cumsum(gains, axis=0)])
    found: Floats = (walked - np.minimum.accumulate(walked, axis=0)).ravel()[: len(arrival_s)]
    return found


def waits_in_line(arrival_s: Floats, service_s: Floats, servers: int) -> Floats:
    """The wait of each request, (requests,), in one line for `servers` that start idle: whoever is free first takes the next
    (Kiefer and Wolfowitz 1955).

    >>> waits_in_line(np.array([0.0, 1.0, 1.5, 9.0]), np.array([2.0, 5.0, 2.0, 2.0]), 2).tolist()
    [0.0, 0.0, 0.5, 0.0]
    """
    free_s, found = [0.0] * servers, []
    for arrives_s, takes_s in zip(arrival_s.tolist(), service_s.tolist(), strict=True):
        begins_s = max(free_s[0], arrives_s)
        found.append(begins_s - arrives_s)
        heapreplace(free_s, begins_s + takes_s)
    return np.array(found)


def _on_lattice(seconds: Floats, step_s: float, steps: int) -> Floats:
    """Equally likely times, each shared between the steps around it so that its mean stays."""
    place = seconds / step_s
    whole = np.minimum(np.floor(place + 1e-9).astype(np.int64), steps - 2)
    share = np.clip(place - whole, 0.0, 1.0)
    found: Floats = (np.bincount(whole, 1 - share, steps) + np.bincount(whole + 1, share, steps)) / len(seconds)
    return found


def _gamma(mean_s: float, shape: float, step_s: float, steps: int) -> Floats:
    """A gamma distribution shared in the same way: second differences of the integral of its distribution function."""
    from scipy.special import gammainc  # slow to load

    ends_s, scale_s = np.arange(steps // 2 + 2) * step_s, mean_s / shape
    integral = ends_s * gammainc(shape, ends_s / scale_s) - mean_s * gammainc(shape + 1, ends_s / scale_s)
    found = np.zeros(steps)
    found[0] = integral[1] / step_s
    found[1 : steps // 2 + 1] = np.diff(integral, 2) / step_s
    found /= found.sum()
    return found
