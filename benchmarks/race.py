"""Races contenders, each in a process of its own, in blocks that alternate."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence

from benchmarks.data import BATCHES

_LONGEST_REASON = 300
_FOLDER = re.compile(r"(?<![\w.:/])/(?:[\w.+-]+/)+")  # of an absolute path
_READY_S = 1200.0  # to import, to draw the data, to build the graph
ROOT = pathlib.Path(__file__).resolve().parents[1]


@dataclasses.dataclass(frozen=True)
class Pace:
    """How long a race takes.

    Attributes:
      rounds: blocks of each contender.
      block_s: seconds of a block, roughly; at least one pass over the batches or
        `least` steps.
      least: steps of a block.
      limit_s: seconds that a contender may take to its first step, once it is
        built, and to each block.
    """

    rounds: int = 10
    block_s: float = 0.5
    least: int = 4
    limit_s: float = 300.0


QUICK = Pace(rounds=5, block_s=0.1, limit_s=60.0)


@dataclasses.dataclass(frozen=True)
class Job:
    """One contender: the module that runs it, what it is told, and by whom."""

    contender: str
    module: str
    message: dict
    python: str = sys.executable


@dataclasses.dataclass
class Run:
    """What one contender did.

    Attributes:
      first_s: time of the first step.
      blocks: times of the steps of each round, in seconds.
      losses: of all steps; empty for kernels.
      figures: what it said at its end.
      failure: why it has no times; empty: it has.
    """

    contender: str
    first_s: float = 0.0
    blocks: list[list[float]] = dataclasses.field(default_factory=list)
    losses: list[float] = dataclasses.field(default_factory=list)
    figures: dict = dataclasses.field(default_factory=dict)
    failure: str = ""


class Failed(Exception):
    """A contender ended, or took too long; says why."""


class Worker:
    """The process of one contender."""

    def __init__(self, job: Job):
        # Closed by close(), like the process itself.
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115
        self._process = subprocess.Popen(
            [job.python, "-m", job.module],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self.send(job.message)

    def send(self, message: dict) -> None:
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # receive() says why

    def receive(self, limit_s: float) -> dict:
        late = threading.Event()

        def end():
            late.set()
            self._process.kill()

        timer = threading.Timer(limit_s, end)
        timer.start()
        try:
            line = self._process.stdout.readline()
        finally:
            timer.cancel()
        if late.is_set():
            raise Failed(f"not within {limit_s:.0f} s")
        if not line:
            raise Failed(self._reason())
        return json.loads(line)

    def ask(self, message: dict, limit_s: float) -> dict:
        self.send(message)
        return self.receive(limit_s)

    def close(self) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._errors.close()

    def _reason(self) -> str:
        status = self._process.wait()
        self._errors.seek(0)
        return reason_in(self._errors.read()) or f"ended with status {status}"


def reason_in(errors: str) -> str:
    """The line of an error output that tells most; empty: there is none."""
    lines = [line.strip() for line in errors.splitlines() if line.strip()]
    # Of what XLA refuses, TensorFlow's exception itself says nothing.
    refused = [line for line in lines if "unsupported operations" in line]
    raised = [line for line in lines if "Error" in line.split(":")[0]]
    told = (refused or raised or lines or [""])[-1]
    return _FOLDER.sub("", told)[:_LONGEST_REASON]  # pages are made of it


def race(jobs: Sequence[Job], pace: Pace) -> dict[str, Run]:
    """Runs all contenders; the first sets the number of steps of a block.

    A contender that fails is left out, and its run says why. The others wait while
    one steps: each has the machine to itself.

    Raises:
      Failed: the first contender failed.
    """
    runs = {job.contender: Run(job.contender) for job in jobs}
    workers = {job.contender: Worker(job) for job in jobs}
    try:
        return _race(runs, workers, pace)
    finally:
        for worker in workers.values():
            worker.close()


def _race(runs, workers: Mapping[str, Worker], pace: Pace) -> dict[str, Run]:
    first = next(iter(runs))

    def drop(name: str, reason: Failed) -> None:
        if name == first:
            raise reason
        runs[name].failure = str(reason)

    def block(name: str, steps: int, limit_s: float) -> list[float]:
        answer = workers[name].ask({"steps": steps}, limit_s)
        runs[name].losses += answer["losses"]
        return answer["times"]

    def alive() -> list[str]:
        return [name for name, run in runs.items() if not run.failure]

    for name in runs:  # they import TensorFlow and build at the same time
        try:
            workers[name].receive(_READY_S)
        except Failed as reason:
            drop(name, reason)
    steps = 0
    for name in alive():
        try:
            (runs[name].first_s,) = block(name, 1, pace.limit_s)
            warm = sorted(block(name, BATCHES, pace.limit_s))
        except Failed as reason:
            drop(name, reason)
        else:
            steps = steps or max(pace.least, int(pace.block_s / warm[BATCHES // 2]))
    for _ in range(pace.rounds):
        for name in alive():
            try:
                runs[name].blocks.append(block(name, steps, pace.limit_s))
            except Failed as reason:
                drop(name, reason)
    for name in alive():
        try:
            runs[name].figures = workers[name].ask({"stop": True}, pace.limit_s)
        except Failed as reason:
            drop(name, reason)
    return runs
