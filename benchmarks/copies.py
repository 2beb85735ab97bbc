"""The limit of a kernel: a plain copy that moves as many bytes; race.py."""

from __future__ import annotations

import os
import time
from concurrent import futures

import numpy as np

from benchmarks.cases import KernelCase
from benchmarks.data import moved
from benchmarks.gate import Gate


class Copy:
    """Copies half as many bytes as are moved: each is read and written.

    Each call copies the same bytes, so that they are in a cache if they fit, as
    rows that are looked up again and again are: no kernel can be faster.
    """

    def __init__(self, case: KernelCase):
        self._size = int(moved(case).bytes) // 2
        self._source = np.ones(self._size, np.uint8)
        self._target = np.ones(self._size, np.uint8)
        threads = case.threads or len(os.sched_getaffinity(0))
        self._pool = futures.ThreadPoolExecutor(threads)
        # Two threads are not always faster than one: take the better.
        self._threads = min((1, threads), key=self._seconds)

    def _seconds(self, threads: int) -> float:
        self._threads = threads
        times = []
        for _ in range(20):
            started = time.perf_counter()
            self.run()
            times.append(time.perf_counter() - started)
        return sorted(times)[10]

    def run(self) -> None:
        edges = np.linspace(0, self._size, self._threads + 1).astype(int)
        if self._threads == 1:
            self._part(*edges)
        else:
            list(self._pool.map(self._part, edges[:-1], edges[1:]))

    def _part(self, start: int, end: int) -> None:
        np.copyto(self._target[start:end], self._source[start:end])


def main() -> None:
    gate = Gate()
    gate.imported()
    copy = Copy(KernelCase.from_dict(gate.job["case"]))
    going = gate.ready()
    while going:
        copy.run()
        going = gate.step()
    gate.finish()


if __name__ == "__main__":
    main()
