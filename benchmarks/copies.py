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

    The source is as large as the tables, and each call copies another part of it,
    so that a copy streams from where the tables are: a cache, or memory.
    """

    def __init__(self, case: KernelCase):
        self._size = int(moved(case).bytes) // 2
        size = max(case.mib * 2**20, self._size)
        self._source = np.ones(size, np.uint8)
        self._target = np.ones(size, np.uint8)
        self._at = 0
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
        if self._at + self._size > len(self._source):
            self._at = 0
        end = self._at + self._size
        edges = np.linspace(self._at, end, self._threads + 1).astype(int)
        if self._threads == 1:
            self._part(*edges)
        else:
            list(self._pool.map(self._part, edges[:-1], edges[1:]))
        self._at = end

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
