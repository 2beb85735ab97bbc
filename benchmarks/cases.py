"""What is measured, as data. Nothing here imports TensorFlow."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Sequence

STOCK = "stock"
NO_META = "stock, no meta optimizer"
XLA = "XLA"
OURS = "picasso_tf"
# The same model without its tables: what packing them cannot make faster.
DENSE = "dense layers alone"
FBGEMM = "FBGEMM"
# Its threads wait for each other: on a busy machine, one may be faster than all.
FBGEMM_1 = "FBGEMM, 1 thread"
COPY = "copy (limit)"

PLAIN = "plain"
SPARSE = "safe-sparse"
SESSION, KERAS, ESTIMATOR = "session", "keras", "estimator"
NEEDS_DEEPCTR = "TensorFlow 2.15 and DeepCTR, which is for Keras 2"
STEPS, KERNELS, SCALING, ZOO = "steps", "kernels", "scaling", "zoo"


@dataclasses.dataclass(frozen=True)
class Workload:
    """A generated recommender model: many tables in front of dense layers.

    Attributes:
      tables, rows, dim: the embedding tables, float32; `rows` of each, or one
        number for all.
      batch: examples a step.
      zipf: exponent of the ids' distribution, cut at the number of rows; 0: uniform.
      dense: dense features.
      bottom: widths of layers over the dense features (DLRM; the last is dim).
      hidden: widths of the hidden layers; one output follows.
      model: "mlp" (rows concatenated), "dlrm" (dot products of all pairs of rows)
        or "deepfm" (DeepCTR's, with its default regularization).
    """

    name: str
    tables: int
    rows: int | tuple[int, ...]
    dim: int
    batch: int
    zipf: float = 1.2
    dense: int = 0
    bottom: tuple[int, ...] = ()
    hidden: tuple[int, ...] = (64, 32)
    model: str = "mlp"

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of each table."""
        return (self.rows,) * self.tables if isinstance(self.rows, int) else self.rows

    @property
    def table_bytes(self) -> int:
        """Of all tables with the slot that Adagrad keeps for each."""
        return 2 * 4 * sum(self.sizes) * self.dim


# Vocabularies of Criteo's Kaggle log, as DLRM counts them, the largest cut.
_CRITEO = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194,
    27, 14992, 5461306, 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
_LARGEST = 1_000_000

WORKLOADS = {
    workload.name: workload
    for workload in (
        Workload("W26", tables=26, rows=10_000, dim=16, batch=512),
        Workload("W200", tables=200, rows=2_000, dim=16, batch=512),
        Workload("W1000", tables=1_000, rows=1_000, dim=8, batch=256),
        Workload("BIG26", tables=26, rows=1_000_000, dim=16, batch=2_048),
        Workload(
            "DLRM",
            tables=26,
            rows=tuple(min(rows, _LARGEST) for rows in _CRITEO),
            dim=16,
            batch=2_048,
            dense=13,
            bottom=(512, 256, 16),
            hidden=(512, 256),
            model="dlrm",
        ),
        Workload(
            "DeepFM26", 26, 1_000, 8, 512, dense=13, hidden=(256, 128), model="deepfm"
        ),
        Workload(
            "DeepFM200", 200, 1_000, 8, 512, dense=13, hidden=(256, 128), model="deepfm"
        ),
    )
}


@dataclasses.dataclass(frozen=True)
class StepCase:
    """Training steps of a workload.

    Attributes:
      form: PLAIN, one id per field and `tf.nn.embedding_lookup`; or SPARSE, none,
        one or two ids (one on average), `tf.nn.safe_embedding_lookup_sparse`, mean.
      way: a TF1 SESSION, KERAS `fit` or an ESTIMATOR.
      threads: of both of TensorFlow's pools; 0: its default.
      group: STEPS or SCALING.
      axis: for SCALING, what is varied.
    """

    workload: Workload
    form: str = PLAIN
    way: str = SESSION
    threads: int = 0
    group: str = STEPS
    axis: str = ""

    @property
    def labels(self) -> dict[str, str]:
        labels = {"group": self.group, "case": self.workload.name}
        if self.axis:
            return labels | {"axis": self.axis}
        return labels | {"form": self.form, "way": self.way}

    @property
    def contenders(self) -> tuple[str, ...]:
        if self.group == SCALING:
            return (STOCK, OURS)
        if self.way == SESSION and self.workload.model == "mlp":
            return (STOCK, NO_META, XLA, OURS, DENSE)
        return (STOCK, NO_META, XLA, OURS)

    @property
    def needs(self) -> str:
        """What it runs with; empty: any TensorFlow."""
        if self.way == ESTIMATOR:
            return "TensorFlow 2.15, the last with Estimator"
        if self.workload.model == "deepfm":
            return NEEDS_DEEPCTR
        return ""

    @classmethod
    def from_dict(cls, values: dict) -> StepCase:
        """The inverse of `dataclasses.asdict`, after a trip through JSON."""
        values = dict(values)
        workload = {
            key: tuple(value) if isinstance(value, list) else value
            for key, value in values.pop("workload").items()
        }
        return cls(Workload(**workload), **values)


@dataclasses.dataclass(frozen=True)
class KernelCase:
    """Embedding ops alone, without a model.

    Attributes:
      kind: "lookup" (one id per field and example), "bags" (sums of several rows),
        "update" (lookup, then backward and Adagrad from a given gradient).
      mib: size of all tables together, without slots, rounded.
      zipf: exponent of the ids' distribution; 0: uniform.
      mean: ids of a bag, on average.
      lengths: "fixed", or "zipf" (of exponent 2, scaled to the mean).
      workload: whose embedding ops these are; empty: nobody's.
    """

    kind: str
    dim: int = 16
    mib: int = 32
    zipf: float = 1.2
    mean: int = 1
    lengths: str = "fixed"
    tables: int = 26
    batch: int = 2_048
    threads: int = 0
    workload: str = ""

    @classmethod
    def of(cls, kind: str, workload: Workload) -> KernelCase:
        """The embedding ops of a workload whose tables are equal."""
        tables, rows, dim = workload.tables, workload.rows, workload.dim
        return cls(
            kind,
            dim,
            mib=round(tables * rows * dim * 4 / 2**20),
            zipf=workload.zipf,
            tables=tables,
            batch=workload.batch,
            workload=workload.name,
        )

    @property
    def name(self) -> str:
        if self.workload:
            return f"{self.kind}-{self.workload}"
        ids = f"zipf{self.zipf:g}" if self.zipf else "uniform"
        name = f"{self.kind}-dim{self.dim}-{self.mib}MiB-{ids}"
        return name + f"-{self.lengths}{self.mean}" if self.kind == "bags" else name

    @property
    def rows(self) -> int:
        """Of each table."""
        if self.workload:
            return WORKLOADS[self.workload].rows
        return self.mib * 2**20 // (self.tables * self.dim * 4)

    @property
    def labels(self) -> dict[str, str]:
        return {"group": KERNELS, "case": self.name, "kind": self.kind}

    @property
    def contenders(self) -> tuple[str, ...]:
        return (STOCK, OURS, FBGEMM, FBGEMM_1, COPY)

    @property
    def needs(self) -> str:
        return ""

    @classmethod
    def from_dict(cls, values: dict) -> KernelCase:
        return cls(**values)


@dataclasses.dataclass(frozen=True)
class ZooCase:
    """Training steps of one of DeepCTR's models, with its default settings, by a
    `tf.function` over one batch: without Keras' own loop.

    Attributes:
      model: its name there. Models of sequences have few fields, and short histories.
      fields, rows, dim: sparse fields, the rows of each one's table, and their width.
      experts, tasks: of MMOE; 0: as the other models of several tasks.
    """

    model: str
    fields: int = 26
    rows: int = 1_000
    dim: int = 8
    batch: int = 512
    experts: int = 0
    tasks: int = 0

    @property
    def is_repeatable(self) -> bool:
        """Whether stock gives the same bits twice. Its memory optimizer lets chance
        decide in which order the gradients of these models' slices are added."""
        return self.model not in ("FwFM", "DeepFEFM")

    @property
    def labels(self) -> dict[str, str]:
        name = self.model
        if self.experts:
            name += f"-{self.experts}experts-{self.tasks}tasks"
        return {"group": ZOO, "case": name}

    @property
    def contenders(self) -> tuple[str, ...]:
        return (STOCK, OURS)

    @property
    def needs(self) -> str:
        return NEEDS_DEEPCTR

    @classmethod
    def from_dict(cls, values: dict) -> ZooCase:
        return cls(**values)


Case = StepCase | KernelCase | ZooCase

# -- all of them ------------------------------------------------------------------

DIMS = (4, 8, 16, 32, 64, 128)
SIZES = (1, 32, 1024)  # MiB: for L2, for L3, for neither
EXPONENTS = (0.0, 1.05, 1.2)
ZOO_MODELS = (
    "WDL", "DeepFM", "FNN", "NFM", "DCN", "DCNMix", "xDeepFM", "AutoInt", "PNN", "AFM",
    "CCPM", "IFM", "DIFM", "MLR", "FLEN", "EDCN", "FGCNN", "FiBiNET", "ONN", "FwFM",
    "DeepFEFM", "DIN", "BST", "DSIN", "SharedBottom", "ESMM", "MMOE", "PLE",
)  # fmt: skip
BAGS = tuple(itertools.product((1, 5, 20), ("fixed", "zipf")))


def step_cases() -> list[StepCase]:
    cases = []
    for workload in WORKLOADS.values():
        if workload.model == "deepfm":
            cases.append(StepCase(workload, way=KERAS))
            continue
        forms = (PLAIN, SPARSE) if workload.model == "mlp" else (PLAIN,)
        for way, form in itertools.product((SESSION, KERAS, ESTIMATOR), forms):
            cases.append(StepCase(workload, form, way))
    return cases


def kernel_cases(cross: bool = False) -> list[KernelCase]:
    """Of workloads, then one property varied at a time; with `cross`, all
    combinations."""
    cases = [
        KernelCase.of(kind, WORKLOADS[name])
        for kind in ("lookup", "update")
        for name in ("W26", "BIG26", "W200", "W1000")
    ]
    for kind in ("lookup", "update", "bags"):
        bags = BAGS if kind == "bags" else ((1, "fixed"),)
        if cross:
            product = itertools.product(DIMS, SIZES, EXPONENTS, bags)
            cases += [KernelCase(kind, d, m, z, *bag) for d, m, z, bag in product]
            continue
        base = KernelCase(kind, mean=5 if kind == "bags" else 1)
        varied = [
            *({"dim": dim} for dim in DIMS),
            *({"mib": mib} for mib in SIZES),
            *({"zipf": zipf} for zipf in EXPONENTS),
            {"mib": SIZES[-1], "zipf": 0.0},  # hardly a row comes from a cache
            *({"mean": mean, "lengths": lengths} for mean, lengths in bags),
        ]
        cases += [dataclasses.replace(base, **change) for change in varied]
    return list(dict.fromkeys(cases))


def scaling_cases() -> list[StepCase]:
    base = Workload("", tables=100, rows=1_000, dim=16, batch=512)
    varied = {
        "fields": ("tables", (10, 30, 100, 300, 1_000, 2_000)),
        "batch": ("batch", (64, 256, 1_024, 4_096, 16_384)),
    }
    cases = []
    for threads in (1, 2):
        for axis, (field, values) in varied.items():
            for value in values:
                name = f"{axis}={value},threads={threads}"
                workload = dataclasses.replace(base, name=name, **{field: value})
                cases.append(
                    StepCase(workload, threads=threads, group=SCALING, axis=axis)
                )
    return cases


def zoo_cases() -> list[ZooCase]:
    """All that stock TensorFlow 2.15 can train: not DIEN."""
    cases = [ZooCase(model) for model in ZOO_MODELS]
    return [*cases, ZooCase("MMOE", experts=16, tasks=8)]


def quick_cases() -> list[Case]:
    """For everyday use: under a minute, together."""
    return [
        StepCase(WORKLOADS["W26"]),
        StepCase(WORKLOADS["W26"], SPARSE),
        KernelCase("update"),
    ]


def all_cases(cross: bool = False) -> list[Case]:
    return [*step_cases(), *kernel_cases(cross), *scaling_cases(), *zoo_cases()]


def select(cases: Sequence[Case], words: Iterable[str]) -> list[Case]:
    """The cases whose labels have these words.

    Of each kind of label (group, case, form, way, ...) that a word is of, a case
    has one of the words: "steps W26 W200 keras" are two workloads, one way each.

    Raises:
      ValueError: no label is such a word, or no case has all of them.
    """
    wanted: dict[str, set[str]] = {}
    for word in words:
        kinds = {k for c in cases for k, label in c.labels.items() if label == word}
        if not kinds:
            known = sorted({label for c in cases for label in c.labels.values()})
            raise ValueError(f"{word!r} selects nothing; there are {', '.join(known)}.")
        for kind in kinds:
            wanted.setdefault(kind, set()).add(word)
    chosen = [
        case
        for case in cases
        if all(case.labels.get(kind) in words for kind, words in wanted.items())
    ]
    if not chosen:
        raise ValueError(f"No case is all of {' '.join(sorted(words))}.")
    return chosen
