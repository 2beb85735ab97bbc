"""Trains the same models with TensorFlow alone and with picasso_tf, and compares.

First a wide-and-deep model on MovieLens-100K: both must reach the same AUC by
the same losses, bit for bit. Then a generated click log with 200 fields: how
many steps per second does each take, and what was packed.

    python examples/demo.py

The only change between the two is the session's configuration:

    tf.compat.v1.Session(config=picasso_tf.session_config())
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import os
import pathlib
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator

import numpy as np
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

# Read when TensorFlow is imported: no remarks on the CPU between the progress bars.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow.compat.v1 as tf

import picasso_tf

CACHE = pathlib.Path(__file__).resolve().parent.parent / ".cache"
SEED = 2024
BATCH = 512
DIM = 16
HIDDEN = (64, 32)
LEARNING_RATE = 0.3

# MovieLens-100K is one of the example datasets in this wheel, which is only read
# as an archive, never installed.
WHEEL_REQUIREMENT = "recbole==1.2.1"
WHEEL_NAME = "recbole-1.2.1-py3-none-any.whl"
WHEEL_FOLDER = "recbole/dataset_example/ml-100k"
GENRES = 3  # fields; a film's further genres are left out
EPOCHS = 6

CLICK_FIELDS = 200
CLICK_ROWS = 2_000
CLICK_DENSE = 13
CLICK_BATCHES = 32
WARMUP_STEPS = 4
BLOCKS = 16
BLOCK_STEPS = 8


class DemoError(Exception):
    """Something that the user can put right; the message says how."""


@dataclasses.dataclass(frozen=True)
class Examples:
    """Examples of a binary classification.

    Attributes:
      ids: [examples, fields], an integer id for each categorical field.
      dense: [examples, features], numerical features; there may be none.
      labels: [examples], 0 or 1.
      rows: number of ids of each field.
    """

    ids: np.ndarray
    dense: np.ndarray
    labels: np.ndarray
    rows: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, chosen: np.ndarray | slice) -> Examples:
        """Some of the examples."""
        return dataclasses.replace(
            self,
            ids=self.ids[chosen],
            dense=self.dense[chosen],
            labels=self.labels[chosen],
        )

    def batches(self) -> list[Examples]:
        """Full batches, in order; the rest is left out."""
        starts = range(0, len(self) - BATCH + 1, BATCH)
        return [self.take(slice(start, start + BATCH)) for start in starts]


# -- MovieLens-100K ----------------------------------------------------------


def movielens(cache: pathlib.Path) -> Examples:
    """MovieLens-100K; positive are ratings of 4 and 5.

    Raises:
      DemoError: it cannot be downloaded or read.
    """
    path = cache / WHEEL_NAME
    if not path.exists():
        download(cache)
    try:
        with zipfile.ZipFile(path) as wheel:
            tables = [read_table(wheel, part) for part in ("inter", "user", "item")]
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise DemoError(
            f"{path} cannot be read ({error}). Delete it and run again."
        ) from error
    ratings, users, items = tables
    columns = rating_columns(ratings, users, items)
    encoded = [np.unique(column, return_inverse=True) for column in columns]
    return Examples(
        ids=np.stack([ids for _, ids in encoded], axis=1).astype(np.int32),
        dense=np.zeros([len(ratings["rating"]), 0], np.float32),
        labels=(ratings["rating"].astype(np.float32) >= 4).astype(np.float32),
        rows=tuple(len(values) for values, _ in encoded),
    )


def download(cache: pathlib.Path) -> None:
    """Downloads the wheel with MovieLens-100K. Raises DemoError if that fails."""
    command = [sys.executable, "-m", "pip", "download", WHEEL_REQUIREMENT]
    command += ["--no-deps", "--no-binary=:none:", f"--dest={cache}"]
    # Without a network, fail in seconds and not after pip's usual five tries.
    command += ["--quiet", "--disable-pip-version-check", "--retries=1", "--timeout=10"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0 or not (cache / WHEEL_NAME).exists():
        reason = (done.stderr.strip().splitlines() or ["no such file"])[-1]
        raise DemoError(
            f"MovieLens-100K could not be downloaded ({reason}). Check the network, "
            f"or put {WHEEL_NAME} into {cache} yourself, and run again."
        )


def read_table(wheel: zipfile.ZipFile, part: str) -> dict[str, np.ndarray]:
    """A tab-separated file of the dataset: its columns of strings by name."""
    text = wheel.read(f"{WHEEL_FOLDER}/ml-100k.{part}").decode()
    header, *lines = [line.split("\t") for line in text.strip("\n").split("\n")]
    names = [name.split(":")[0] for name in header]  # "user_id:token"
    return dict(zip(names, np.array(lines).T, strict=True))


def rating_columns(ratings: dict, users: dict, items: dict) -> list[np.ndarray]:
    """One column for each field, a value for each rating."""
    user = join(ratings["user_id"], users["user_id"])
    item = join(ratings["item_id"], items["item_id"])
    hours = ratings["timestamp"].astype(np.int64) // 3600
    return [
        ratings["user_id"],
        ratings["item_id"],
        users["age"].astype(np.int64)[user] // 5,
        users["gender"][user],
        users["occupation"][user],
        items["release_year"][item],
        hours % 24,
        hours // 24 % 7,  # weekday; which day is 0 makes no difference
        *first_genres(items["class"])[:, item],
    ]


def join(keys: np.ndarray, table_keys: np.ndarray) -> np.ndarray:
    """For each key its row in a table, in which every key is once."""
    order = np.argsort(table_keys)
    return order[np.searchsorted(table_keys, keys, sorter=order)]


def first_genres(genres: np.ndarray) -> np.ndarray:
    """[GENRES, items]: the first genres of each item, "" where it has fewer."""
    padded = [(text.split() + [""] * GENRES)[:GENRES] for text in genres]
    return np.array(padded).T


def split(examples: Examples) -> tuple[Examples, Examples]:
    """Shuffles; 80 percent for training, the others for the test."""
    order = np.random.default_rng(SEED).permutation(len(examples))
    cut = len(order) * 4 // 5
    return examples.take(order[:cut]), examples.take(order[cut:])


# -- The generated click log -------------------------------------------------


def click_log() -> Examples:
    """Examples in the shape of Criteo's click logs, with more fields.

    Ids are Zipf distributed, so a batch has both many duplicates and rare ids.
    """
    rng = np.random.default_rng(SEED)
    count = CLICK_BATCHES * BATCH
    weights = 1 / np.arange(1, CLICK_ROWS + 1) ** 1.1
    cumulated = np.cumsum(weights / weights.sum())
    draws = rng.random([count, CLICK_FIELDS], np.float32)
    ids = np.searchsorted(cumulated, draws).clip(max=CLICK_ROWS - 1)
    return Examples(
        ids=ids.astype(np.int32),
        dense=np.log1p(rng.exponential(10, [count, CLICK_DENSE])).astype(np.float32),
        labels=(rng.random(count) < 0.25).astype(np.float32),
        rows=(CLICK_ROWS,) * CLICK_FIELDS,
    )


# -- The model ---------------------------------------------------------------


class WideAndDeep:
    """The graph of a wide-and-deep model with two tables for each field.

    Contains nothing of picasso_tf: that is up to the session. Random ops have
    seeds, so that two sessions of one graph start with the same values.
    """

    def __init__(self, examples: Examples, dim: int, hidden: tuple[int, ...]):
        self.graph = tf.Graph()
        with self.graph.as_default():
            tf.set_random_seed(SEED)
            self.ids = tf.placeholder(tf.int32, [None, len(examples.rows)])
            self.dense = tf.placeholder(tf.float32, [None, examples.dense.shape[1]])
            self.labels = tf.placeholder(tf.float32, [None])
            fields = tf.unstack(self.ids, axis=1)
            deep = lookups("deep", fields, examples.rows, dim)
            if examples.dense.shape[1]:
                deep.append(self.dense)
            wide = tf.concat(lookups("wide", fields, examples.rows, 1), axis=1)
            self.logits = tf.reduce_sum(wide, axis=1) + mlp(deep, hidden)
            self.loss = tf.reduce_mean(
                tf.nn.sigmoid_cross_entropy_with_logits(
                    labels=self.labels, logits=self.logits
                )
            )
            self.train = tf.train.AdagradOptimizer(LEARNING_RATE).minimize(self.loss)
            self.init = tf.global_variables_initializer()

    def feed(self, examples: Examples) -> dict:
        """What a session is fed with."""
        return {
            self.ids: examples.ids,
            self.dense: examples.dense,
            self.labels: examples.labels,
        }


def lookups(name: str, fields: list, rows: tuple[int, ...], dim: int) -> list:
    """The embeddings of all fields, each from a table of its own."""
    embeddings = []
    for k, (ids, count) in enumerate(zip(fields, rows, strict=True)):
        table = tf.get_variable(
            f"{name}_{k}",
            [count, dim],
            initializer=tf.random_uniform_initializer(-0.05, 0.05),
            use_resource=True,
        )
        embeddings.append(tf.nn.embedding_lookup(table, ids))
    return embeddings


def mlp(inputs: list, hidden: tuple[int, ...]) -> tf.Tensor:
    """Dense layers on the concatenated inputs, down to one number each."""
    layer = tf.concat(inputs, axis=1)
    for k, width in enumerate((*hidden, 1)):
        if k > 0:
            layer = tf.nn.relu(layer)
        shape = [layer.shape[1], width]
        kernel = tf.get_variable(f"kernel_{k}", shape, use_resource=True)
        bias = tf.get_variable(
            f"bias_{k}",
            [width],
            initializer=tf.zeros_initializer(),
            use_resource=True,
        )
        layer = tf.matmul(layer, kernel) + bias
    return tf.squeeze(layer, axis=1)


class Run:
    """A model in training, in a session of its own.

    Attributes:
      losses: of all steps so far.
    """

    def __init__(self, model: WideAndDeep, config: tf.ConfigProto | None):
        self._model = model
        self._session = tf.Session(graph=model.graph, config=config)
        self._session.run(model.init)
        self.losses: list[np.float32] = []

    def step(self, batch: Examples) -> None:
        """Trains on one batch."""
        model = self._model
        _, loss = self._session.run([model.train, model.loss], model.feed(batch))
        self.losses.append(loss)

    def predict(self, examples: Examples) -> np.ndarray:
        """The logits of all examples."""
        return self._session.run(self._model.logits, self._model.feed(examples))

    def close(self) -> None:
        """Frees the variables."""
        self._session.close()


@contextlib.contextmanager
def both_runs(model: WideAndDeep) -> Iterator[tuple[Run, Run]]:
    """The model with TensorFlow alone and with picasso_tf."""
    with contextlib.ExitStack() as stack:
        runs = []
        for config in (None, picasso_tf.session_config()):
            runs.append(Run(model, config))
            stack.callback(runs[-1].close)
        yield runs[0], runs[1]


# -- The comparison ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Comparison:
    """A figure of both runs, TensorFlow's first, and how their losses agree.

    Attributes:
      values: AUC or steps per second.
      steps: number of steps of each run.
      equal_steps: steps whose losses have the same bits.
    """

    values: tuple[float, float]
    steps: int
    equal_steps: int


def compare(values: tuple[float, float], runs: tuple[Run, Run]) -> Comparison:
    """Compares two runs over the same steps."""
    bits = [np.array(run.losses, np.float32).view(np.uint32) for run in runs]
    return Comparison(values, len(bits[0]), int(np.sum(bits[0] == bits[1])))


def auc(labels: np.ndarray, scores: np.ndarray) -> float:
    """The exact area under the ROC curve, from ranks; ties share theirs."""
    _, group, sizes = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(sizes) - (sizes - 1) / 2)[group]
    positives = labels == 1
    count = int(positives.sum())
    surplus = ranks[positives].sum() - count * (count + 1) / 2
    return float(surplus / (count * (len(labels) - count)))


def compare_movielens(cache: pathlib.Path, progress: Progress) -> Comparison:
    """Trains on MovieLens-100K with both; the figure is the AUC."""
    task = progress.add_task("MovieLens-100K", total=None)
    train, test = split(movielens(cache))
    batches = train.batches() * EPOCHS
    progress.update(task, total=2 * len(batches))
    aucs = []
    with both_runs(WideAndDeep(train, DIM, HIDDEN)) as runs:
        for run in runs:
            for batch in batches:
                run.step(batch)
                progress.advance(task)
            aucs.append(auc(test.labels, run.predict(test)))
        return compare((aucs[0], aucs[1]), runs)


def compare_click_log(progress: Progress) -> Comparison:
    """Trains on the click log with both; the figure is steps per second."""
    task = progress.add_task(
        f"Click log, {CLICK_FIELDS} fields",
        total=2 * (WARMUP_STEPS + BLOCKS * BLOCK_STEPS),
    )
    log = click_log()
    batches = log.batches()
    seconds: tuple[list[float], list[float]] = ([], [])
    with both_runs(WideAndDeep(log, DIM, HIDDEN)) as runs:
        for run in runs:
            timed_steps(run, batches[:WARMUP_STEPS])
            progress.advance(task, WARMUP_STEPS)
        # Short blocks in turn, so that whatever else the machine does meets
        # both; who is first changes, so that nobody always comes after the other.
        for block in range(BLOCKS):
            start = block * BLOCK_STEPS % len(batches)
            for side in (0, 1) if block % 2 else (1, 0):
                chosen = batches[start : start + BLOCK_STEPS]
                seconds[side].extend(timed_steps(runs[side], chosen))
                progress.advance(task, BLOCK_STEPS)
        speeds = 1 / np.median(seconds, axis=1)
        return compare((float(speeds[0]), float(speeds[1])), runs)


def timed_steps(run: Run, batches: list[Examples]) -> list[float]:
    """Trains on the batches; the seconds that each step took."""
    seconds = []
    for batch in batches:
        start = time.perf_counter()
        run.step(batch)
        seconds.append(time.perf_counter() - start)
    return seconds


# -- The output --------------------------------------------------------------


def progress_bar(console: Console) -> Progress:
    """A progress bar on a terminal; nothing where output goes elsewhere."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("steps"),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


def result_table(films: Comparison, clicks: Comparison) -> Table:
    """The figures of both comparisons."""
    table = Table(
        title=f"TensorFlow {tf.__version__}, {os.cpu_count()} CPU cores",
        caption=f"Click log: generated, {CLICK_FIELDS} fields, batches of {BATCH}",
    )
    table.add_column("")
    for heading in ("TensorFlow", "picasso_tf", "compared"):
        table.add_column(heading, justify="right")
    same = films.values[0] == films.values[1]
    table.add_row(
        "MovieLens-100K: AUC",
        *(f"{value:.6f}" for value in films.values),
        "equal" if same else "[red]different[/red]",
    )
    table.add_row("MovieLens-100K: losses", "", "", losses_text(films))
    table.add_row(
        "Click log: steps per second",
        *(f"{value:.1f}" for value in clicks.values),
        f"[bold]{clicks.values[1] / clicks.values[0]:.2f} times[/bold]",
    )
    table.add_row("Click log: losses", "", "", losses_text(clicks))
    return table


def losses_text(comparison: Comparison) -> str:
    """How the losses agree, for the table."""
    if comparison.equal_steps == comparison.steps:
        return f"all {comparison.steps} bit-equal"
    return f"[red]{comparison.equal_steps} of {comparison.steps} bit-equal[/red]"


def main() -> int:
    """Runs the demo; 0 if both trained alike."""
    parser = argparse.ArgumentParser(
        description="Compares training with TensorFlow alone and with picasso_tf."
    )
    parser.add_argument(
        "--cache",
        type=pathlib.Path,
        default=CACHE,
        help="folder for the downloaded data (default: .cache in the repository)",
    )
    args = parser.parse_args()
    console = Console()
    tf.logging.set_verbosity(tf.logging.ERROR)  # tf.compat.v1 warns of its age
    try:
        with progress_bar(console) as progress:
            films = compare_movielens(args.cache, progress)
            clicks = compare_click_log(progress)
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 1
    print(picasso_tf.last_report())
    console.print(result_table(films, clicks))
    alike = films.values[0] == films.values[1] and all(
        comparison.equal_steps == comparison.steps for comparison in (films, clicks)
    )
    return 0 if alike else 1


if __name__ == "__main__":
    sys.exit(main())
