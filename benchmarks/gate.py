"""A contender's side of a race: it steps when told to, and reports its times.

Lines of JSON: first the job; then {"steps": n}, answered by the times and losses of
n steps; then {"stop": true}, answered by the figures. No TensorFlow here: contenders
without it use this, too.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from collections.abc import Callable


class Gate:
    """What a contender calls around its steps."""

    def __init__(self):
        # Libraries print to standard output; let that not disturb the answers.
        self._output = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.job = json.loads(sys.stdin.readline())
        self.count = 0
        # Of the first step, once it is over: when it began and ended.
        self.first: tuple[float, float] = (0.0, 0.0)
        self.at_end: Callable[[], dict] = dict  # more figures
        self._quota = 0
        self._times: list[float] = []
        self._losses: list[float] = []
        self._memory = 0.0
        self._peak = 0.0
        self._last = 0.0

    def imported(self) -> None:
        """Called before the model is built: memory counts from here."""
        self._memory = _resident_mib()

    def ready(self) -> bool:
        """Called before the first step, whose time counts from here."""
        return self._wait()

    def step(self, loss: float | None = None) -> bool:
        """Called after each step; False: stop."""
        now = time.perf_counter()
        self.count += 1
        if self.count == 1:
            self.first = (self._last, now)
        self._times.append(now - self._last)
        if loss is not None:
            self._losses.append(float(loss))
        if len(self._times) < self._quota:
            self._last = time.perf_counter()
            return True
        self._send({"times": self._times, "losses": self._losses})
        return self._wait()

    def finish(self, **figures) -> None:
        """The figures that are known at the end, by name."""
        peak = {"peak_mib": self._peak - self._memory}
        self._send({**peak, **self.at_end(), **figures})

    def _wait(self) -> bool:
        self._times, self._losses = [], []
        if self.count == 0:
            self._send({"ready": True})
        command = json.loads(sys.stdin.readline() or '{"stop": true}')
        self._quota = command.get("steps", 0)
        if not self._quota:
            self._peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        self._last = time.perf_counter()
        return self._quota > 0

    def _send(self, message: dict) -> None:
        self._output.write(json.dumps(message) + "\n")
        self._output.flush()


def _resident_mib() -> float:
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[1])
    return pages * resource.getpagesize() / 2**20
