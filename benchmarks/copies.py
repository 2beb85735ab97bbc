"""The limit of a kernel: a plain copy that moves as many bytes; race.py."""

from __future__ import annotations

import os
import time
from concurrent import futures

import numpy as np

from benchmarks.cases import KernelCase
from benchmarks.data import BATCHES, moved
from benchmarks.gate import Gate


class Copy:
    """Copies half as many bytes as are moved: each is read and written.

    From as many places in turn as there are batches, to one: what stays in a cache
    until it is read again is about what stays there of the batches' rows.
    """

    def __init__(self, case: KernelCase):
        self._size = int(moved(case).bytes) // 2
        self._source = np.ones((BATCHES, self._size), np.uint8)
        self._calls = 0
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
        source = self._source[self._calls % BATCHES]
        self._calls += 1
        edges = np.linspace(0, self._size, self._threads + 1).astype(int)
        if self._threads == 1:
            self._part(source, *edges)
        else:
            sources = [source] * self._threads
            list(self._pool.map(self._part, sources, edges[:-1], edges[1:]))

    def _part(self, source: np.ndarray, start: int, end: int) -> None:
        np.copyto(self._target[start:end], source[start:end])


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
