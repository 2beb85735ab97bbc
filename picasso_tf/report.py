"""What was packed, what was left alone and why."""

from __future__ import annotations

import collections
import dataclasses
import json


@dataclasses.dataclass(frozen=True)
class Pack:
    """One packed op.

    Attributes:
      name: its node, and the key of its execution counters.
      kind: "lookup", "update" (of rows), "dense update", "segment sum", "L2 term",
        or the name of a kind in passes/pack_kernels.py.
      members: names of the nodes it replaced.
      tables: number of variables; 0: it reads none.
      volume: estimated bytes of rows per step; 0: no rows.
      detail: what else is worth saying.
    """

    name: str
    kind: str
    members: tuple[str, ...]
    tables: int
    volume: int
    detail: str = ""


@dataclasses.dataclass(frozen=True)
class Skipped:
    """A node that was recognised and left alone."""

    node: str
    op: str
    reason: str


@dataclasses.dataclass
class Report:
    """The outcome of one rewrite.

    Attributes:
      graph: what was rewritten: a function, a session's graph, a file.
      packs: the packed ops that were made.
      skipped: nodes that were recognised and left alone, with the reason.
      ops_before, ops_after: nodes by op type, of those that run. Where something
        was packed behind TensorFlow's own optimizers, these ran in between.
      merged: nodes that went because an equal one does their work: reads of one
        variable, and what is computed from them.
      handles: variables whose handles come from one op.
      inlined_into: the graph of which a function's calls became a part. Packs that
        its report has run there, or were made there once more.
      failures: passes that failed, and with what.
      notes: what else there is to say, in sentences.
      seconds: time the rewrite took.
    """

    graph: str
    packs: list[Pack] = dataclasses.field(default_factory=list)
    skipped: list[Skipped] = dataclasses.field(default_factory=list)
    ops_before: dict[str, int] = dataclasses.field(default_factory=dict)
    ops_after: dict[str, int] = dataclasses.field(default_factory=dict)
    merged: int = 0
    handles: int = 0
    inlined_into: str = ""
    failures: list[str] = dataclasses.field(default_factory=list)
    notes: list[str] = dataclasses.field(default_factory=list)
    seconds: float = 0.0
    # Counters when the report was made: an equal pack of another graph has them too.
    _counts_before: dict[str, tuple[int, int]] = dataclasses.field(
        default_factory=dict, repr=False
    )

    @property
    def changed(self) -> bool:
        return bool(self.packs)

    def executions(self, pack: Pack) -> tuple[int, int]:
        """(kernels created in this process, runs since the rewrite) of a pack.

        A session that meets an equal pack again uses the kernel that it has, so
        kernels of earlier rewrites count too.
        """
        from picasso_tf import ops

        created, executed = ops.pack_counts(pack.name)
        return created, executed - self._counts_before.get(pack.name, (0, 0))[1]

    def extend(self, later: Report) -> None:
        """Adds what a later phase did to the same graph."""
        self.packs.extend(later.packs)
        packed = {member for pack in later.packs for member in pack.members}
        self.skipped = [item for item in self.skipped if item.node not in packed]
        known = {item.node for item in self.skipped}
        self.skipped += [item for item in later.skipped if item.node not in known]
        self.failures.extend(later.failures)
        self.merged += later.merged
        self.handles += later.handles
        self.seconds += later.seconds
        self._counts_before.update(later._counts_before)
        if later.changed or later.merged or later.handles:
            self.ops_after = later.ops_after

    def was_dropped(self) -> bool:
        """Whether packs were made but TensorFlow neither created nor ran any.

        TensorFlow can drop a rewritten graph without a word and run the
        original. Kernels are created when a graph is first run, so ask after
        that. Of a function that became a part of another graph nothing is known.
        """
        return self.changed and not self.inlined_into and not self.was_used()

    def was_used(self) -> bool:
        """Whether the kernel of a pack was created or has run since the rewrite."""
        return any(self._was_used(pack) for pack in self.packs)

    def _was_used(self, pack: Pack) -> bool:
        created, executed = self.executions(pack)
        return executed > 0 or created > self._counts_before.get(pack.name, (0, 0))[0]

    def to_dict(self) -> dict:
        """Plain values, for JSON. Executions are those so far."""
        values = dataclasses.asdict(self)
        del values["_counts_before"]
        for pack, entry in zip(self.packs, values["packs"], strict=True):
            entry["created"], entry["executed"] = self.executions(pack)
        return values

    def to_json(self, indent: int | None = 2) -> str:
        return json.dumps(self.to_dict(), indent=indent, sort_keys=True)

    def summary(self) -> list[str]:
        """Lines of text: packs, then what was left alone."""
        before, after = sum(self.ops_before.values()), sum(self.ops_after.values())
        lines = [
            f"picasso_tf report: {self.graph}",
            f"  ops {before} -> {after}, in {self.seconds * 1e3:.0f} ms",
        ]
        if self.inlined_into:
            lines.append(f"  its calls became a part of {self.inlined_into}")
        for pack in self.packs:
            created, executed = self.executions(pack)
            runs = f"run {executed} times" if created else "not created so far"
            lines.append(f"  packed {_contents(pack)}; {runs}")
        if not self.packs:
            lines.append("  packed nothing")
        if self.merged:
            lines.append(f"  merged {self.merged} repeated reads and what they led to")
        if self.handles:
            lines.append(f"  one op gives the handles of {self.handles} variables")
        for reason, nodes in self.reasons().items():
            shown = ", ".join(nodes[:3]) + (", ..." if len(nodes) > 3 else "")
            lines.append(f"  left alone {len(nodes)}: {reason} ({shown})")
        lines.extend(f"  {note}" for note in self.notes)
        lines.extend(f"  failed: {failure}" for failure in self.failures)
        return lines

    def reasons(self) -> dict[str, list[str]]:
        """Names of the nodes left alone, by reason."""
        by_reason: dict[str, list[str]] = {}
        for item in self.skipped:
            by_reason.setdefault(item.reason, []).append(item.node)
        return by_reason

    def changed_ops(self) -> list[tuple[str, int, int]]:
        """(op type, before, after) of the types whose number changed."""
        types = sorted(set(self.ops_before) | set(self.ops_after))
        rows = [(t, self.ops_before.get(t, 0), self.ops_after.get(t, 0)) for t in types]
        return [row for row in rows if row[1] != row[2]]

    def __str__(self) -> str:
        return "\n".join(self.summary())


def merge(graph: str, reports: list[Report]) -> Report:
    """One report for a graph and its functions."""
    merged = Report(graph)
    before: collections.Counter[str] = collections.Counter()
    after: collections.Counter[str] = collections.Counter()
    for report in reports:
        merged.packs.extend(report.packs)
        merged.skipped.extend(report.skipped)
        merged.failures.extend(report.failures)
        merged.notes.extend(note for note in report.notes if note not in merged.notes)
        merged.merged += report.merged
        merged.handles += report.handles
        merged.seconds += report.seconds
        merged._counts_before.update(report._counts_before)
        before.update(report.ops_before)
        after.update(report.ops_after)
    merged.ops_before, merged.ops_after = dict(before), dict(after)
    return merged


def _contents(pack: Pack) -> str:
    facts = [f"{_bytes(pack.volume)} a step"] if pack.volume else []
    facts += [pack.detail] if pack.detail else []
    tables = f" of {pack.tables} tables" if pack.tables else ""
    suffix = f" ({', '.join(facts)})" if facts else ""
    return f"{len(pack.members)} {pack.kind}s{tables} into {pack.name}{suffix}"


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"
