"""Packs over the same variables, in many threads, beside stock ops: nothing
deadlocks, and no update is lost that stock would keep.

Each scenario runs in a process of its own, which ends itself when no thread gets
on any more.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
import threading
import time

import pytest

TABLES = 6
ROWS, DIM, IDS = 50, 64, 1100  # enough that one update is shared among threads
STEPS, ADDS, LOCKED_ADDS = 1000, 3000, 1500  # of each thread
STUCK = 120  # seconds in which no thread finishes a step

# Threads of TensorFlow: (between ops, within ops).
POOLS = {"default": (0, 0), "one": (1, 1), "many": (8, 4)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "pool"),
    [
        ("locks", "default"),
        ("locks", "one"),
        ("locks", "many"),
        ("sums", "default"),
        ("sums", "many"),
    ],
)
def test_threads(scenario, pool):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path)))
    child = subprocess.run(
        [sys.executable, __file__, scenario, pool],
        env=environment,
        capture_output=True,
        text=True,
        timeout=900,  # it should have ended itself long before
    )
    assert child.returncode == 0, child.stdout[-2000:] + child.stderr[-8000:]
    assert "all steps done" in child.stdout


# -- in the child --------------------------------------------------------------


class Threads:
    """Runs functions, each in a thread of its own, so and so often."""

    def __init__(self):
        self._threads: list[threading.Thread] = []
        self._errors: list[BaseException] = []
        self._steps: list[int] = []
        self.stopping = threading.Event()

    def add(self, step, times: int | None = None) -> None:
        """`times` None: until those that count are done."""
        index = len(self._steps)
        self._steps.append(0)

        def loop():
            try:
                while not self.stopping.is_set():
                    if times is not None and self._steps[index] >= times:
                        return
                    step()
                    self._steps[index] += 1
            except BaseException as error:
                self._errors.append(error)
                self.stopping.set()

        thread = threading.Thread(target=loop, daemon=True)
        thread.counts = times is not None
        self._threads.append(thread)

    def run(self) -> list[int]:
        """Waits for those that count, stops the others; returns their steps."""
        for thread in self._threads:
            thread.start()
        for thread in sorted(self._threads, key=lambda thread: not thread.counts):
            if not thread.counts:
                self.stopping.set()
            self._wait(thread)
        if self._errors:
            raise self._errors[0]
        return self._steps

    def _wait(self, thread) -> None:
        before, since = sum(self._steps), time.monotonic()
        while thread.is_alive():
            thread.join(timeout=1)
            if sum(self._steps) != before:
                before, since = sum(self._steps), time.monotonic()
            elif time.monotonic() - since > STUCK:
                print(f"Stuck: no step in {STUCK} s. Steps: {self._steps}", flush=True)
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)  # the threads do not come back


class Model:
    """Packs over the same tables in different orders, and stock ops beside."""

    def __init__(self, pool: str):
        import numpy as np
        import tensorflow as tf

        import picasso_tf

        self.np, self.tf, self.picasso_tf = np, tf, picasso_tf
        self.rng = np.random.default_rng(1)
        self.reports = []
        between, within = POOLS[pool]
        config = tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=between, intra_op_parallelism_threads=within
        )
        self.graph = tf.Graph()
        with self.graph.as_default():
            self.tables = [self._variable(f"t{i}") for i in range(TABLES)]
            self.slots = [self._variable(f"s{i}") for i in range(TABLES)]
            init = tf.compat.v1.global_variables_initializer()
        self.config = picasso_tf.session_config(config, picasso_tf.Options(strict=True))
        self.session = tf.compat.v1.Session(graph=self.graph, config=self.config)
        self.session.run(init)

    def _variable(self, name: str):
        return self.tf.Variable(self.np.zeros([ROWS, DIM], "float32"), name=name)

    def ids(self, count: int = IDS):
        return self.tf.constant(self.rng.integers(0, ROWS, size=count))

    def lookups(self, tables, ids=None):
        rows = [
            self.tf.nn.embedding_lookup(table, self.ids() if ids is None else ids)
            for table in tables
        ]
        return self.tf.concat(rows, axis=1)

    def scatter_add(self, table, ids, grad):
        return self.tf.raw_ops.ResourceScatterAdd(
            resource=table.handle, indices=ids, updates=grad
        )

    def momentum(self, table, slot, ids, grad, use_locking=True):
        """table -= grad, through slot = grad."""
        return self.tf.raw_ops.ResourceSparseApplyMomentum(
            var=table.handle,
            accum=slot.handle,
            lr=1.0,
            grad=grad,
            indices=ids,
            momentum=0.0,
            use_locking=use_locking,
        )

    def step(self, *fetches, packs: int = 0):
        """A function that runs the fetches; it must run that many packs."""
        run = self.session.make_callable(list(fetches))
        previous = self.picasso_tf.last_report()
        run()
        if packs:
            report = self.picasso_tf.last_report()
            assert report is not previous, "nothing was rewritten"
            assert len(report.packs) == packs, str(report)
            self.reports.append(report)
        return run

    def check_executions(self) -> None:
        """All packs have run, again and again."""
        for report in self.reports:
            for pack in report.packs:
                created, executed = report.executions(pack)
                assert created > 0 and executed > 10, str(report)


def locks(pool: str) -> None:
    """Everything at once; only that it ends matters, and that ids and shapes are
    right. Values race, as they do in stock."""
    model = Model(pool)
    tf = model.tf
    with model.graph.as_default():
        forth, back = model.tables, model.tables[::-1]
        twice = [forth[0], forth[1], forth[0], forth[2], forth[0]]
        grad, ids = tf.constant(model.np.ones([IDS, DIM], "float32")), model.ids()
        lookups_forth, lookups_back = model.lookups(forth), model.lookups(back)
        lookups_twice = model.lookups(twice)
        shared = [model.scatter_add(table, ids, grad) for table in twice + back]
        exclusive = [
            model.momentum(table, slot, ids, grad)
            for table, slot in zip(back, model.slots, strict=True)
        ]
        # A slot may be another member's table.
        crossed = [
            model.momentum(table, slot, ids, grad, use_locking=False)
            for table, slot in zip(forth, back, strict=True)
        ]
        both = [
            *(model.scatter_add(table, ids, grad) for table in forth),
            *(
                model.momentum(table, slot, ids, grad)
                for table, slot in zip(back, model.slots[::-1], strict=True)
            ),
        ]
        values = tf.zeros([ROWS, DIM])
        writes = [
            step
            for table in forth[:3]
            for step in (
                table.assign(values).op,
                table.assign_add(values + 1).op,
                tf.compat.v1.scatter_update(table, [1, 2], values[:2]).op,
            )
        ]
        dense = [
            tf.raw_ops.ResourceApplyGradientDescent(
                var=table.handle, alpha=0.5, delta=values, use_locking=True
            )
            for table in back
        ]
        reads = [tf.reduce_sum(table.read_value()) for table in back]
    steps = [
        model.step(lookups_forth, packs=1),
        model.step(lookups_back, lookups_twice, packs=1),
        model.step(lookups_twice, *exclusive, packs=2),
        model.step(*shared, packs=1),
        model.step(*exclusive, packs=1),
        model.step(*crossed, packs=1),
        model.step(*both, lookups_back, packs=3),
        model.step(lookups_forth, *reads, packs=1),
        *(model.step(write) for write in writes[:3]),
        model.step(*writes[3:]),
        model.step(*dense),
        model.step(*reads),
    ]
    threads = Threads()
    for step in steps:
        threads.add(step, times=STEPS)
        threads.add(step, times=STEPS)
    done = sum(threads.run())
    assert done == 2 * STEPS * len(steps)
    model.check_executions()
    print(f"{done} steps")


def sums(pool: str) -> None:
    """Sums are exact where stock guarantees them: one thread that adds without a
    lock beside readers, many threads that add under the lock."""
    model = Model(pool)
    np, tf = model.np, model.tf
    values = model.rng.integers(1, 4, size=[IDS, DIM]).astype(np.float32)
    ids = model.rng.integers(0, ROWS, size=IDS)
    once = np.zeros([ROWS, DIM], np.float32)
    np.add.at(once, ids, values)
    with model.graph.as_default():
        grad, at = tf.constant(values), tf.constant(ids)
        forth, back = model.tables, model.tables[::-1]
        adds = [model.scatter_add(table, at, grad) for table in [*forth, forth[0]]]
        locked = [
            model.momentum(table, slot, at, -grad)
            for table, slot in zip(back, model.slots, strict=True)
        ]
        locked_forth = [
            model.momentum(table, slot, at, -grad)
            for table, slot in zip(forth, model.slots, strict=True)
        ]
        dense_adds = [table.assign_add(tf.constant(once)).op for table in forth]
        slot_writes = [slot.assign(tf.zeros([ROWS, DIM])).op for slot in model.slots]
        all_ids = tf.range(ROWS)
        found = [model.lookups(forth, all_ids), model.lookups(back, all_ids)]
        dense = tf.concat([table.read_value() for table in forth], axis=1)
        # The next reads share the table's memory, until a sparse access.
        no_copies = [
            tf.raw_ops.DisableCopyOnRead(resource=table.handle) for table in forth
        ]
        zero = [table.assign(tf.zeros([ROWS, DIM])).op for table in forth]
    run_adds = model.step(*adds, packs=1)
    run_locked = model.step(*locked, packs=1)
    run_locked_forth = model.step(*locked_forth, packs=1)
    run_no_copies = model.step(*no_copies)
    readers = [
        model.step(found[0], packs=1),
        model.step(*found, packs=1),
        model.step(dense),
    ]

    def reader(run):
        """Whole numbers that never fall."""
        before = 0.0

        def step():
            nonlocal before
            rows = np.asarray(run()[0], np.float64)
            assert (rows == np.rint(rows)).all()
            assert (rows >= before).all()
            before = rows

        return step

    def check_tables(expected):
        tables = model.session.run(model.reads)
        for table, times in zip(tables, expected, strict=True):
            assert (table == np.float32(times) * once).all(), times

    with model.graph.as_default():
        model.reads = [table.read_value() for table in forth]

    # Adds from one thread, which need no lock; a table twice in the pack.
    model.session.run(zero)
    threads = Threads()
    threads.add(run_adds, times=ADDS)
    for run in readers:
        threads.add(reader(run))
        threads.add(reader(run))
    threads.add(model.step(*slot_writes))
    threads.add(run_no_copies)
    threads.run()
    check_tables([2 * ADDS, *[ADDS] * (TABLES - 1)])

    # Adds from many threads, under the lock, beside stock's dense adds.
    model.session.run(zero)
    threads = Threads()
    for run in (run_locked, run_locked_forth, model.step(*dense_adds)):
        threads.add(run, times=LOCKED_ADDS)
        threads.add(run, times=LOCKED_ADDS)
    for run in readers:
        threads.add(reader(run))
    model.session.run(zero)  # what model.step ran once
    threads.run()
    check_tables([6 * LOCKED_ADDS] * TABLES)
    model.check_executions()


if __name__ == "__main__":
    faulthandler.enable()
    {"locks": locks, "sums": sums}[sys.argv[1]](sys.argv[2])
    print("all steps done")
