"""What a user can choose."""

from __future__ import annotations

import dataclasses
import json
import re


@dataclasses.dataclass(frozen=True)
class Options:
    """How graphs are rewritten. The defaults suit most models.

    Attributes:
      exclude: regular expressions, searched in the names of variables (in the
        names of nodes where the graph has no variable names, as in functions).
        What matches is left alone.
      max_pack_volume: bytes of rows that one packed lookup or update may handle
        per step; heavier packs are cut. Volumes are estimated from static
        shapes, with 1,024 ids where the batch size is unknown.
      exact: leave alone what packs would not compute to the bit as TensorFlow
        does: dot interactions, whose sums are rounded in another order. False: they
        are packed, and differ by at most 1e-6 of the largest value in float32.
      strict: raise instead of warning when a pass fails, and when a graph was
        rewritten but none of its packs was ever created. For tests.

    Raises:
      ValueError: a pattern in `exclude` is no regular expression, or
        `max_pack_volume` is not positive.
      TypeError: `exclude` is a single string.
    """

    exclude: tuple[str, ...] = ()
    max_pack_volume: int = 256 * 1024 * 1024
    exact: bool = True
    strict: bool = False

    def __post_init__(self):
        if isinstance(self.exclude, str):
            raise TypeError(
                "Options.exclude takes a sequence of regular expressions, got the "
                f"string {self.exclude!r}. Write exclude=[{self.exclude!r}]."
            )
        object.__setattr__(self, "exclude", tuple(self.exclude))
        for pattern in self.exclude:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(
                    f"Options.exclude: {pattern!r} is no regular expression: {error}."
                ) from error
        if self.max_pack_volume <= 0:
            raise ValueError(
                "Options.max_pack_volume is a positive number of bytes, got "
                f"{self.max_pack_volume}."
            )

    def excludes(self, name: str) -> bool:
        """Whether a pattern in `exclude` is found in `name`."""
        return any(re.search(pattern, name) for pattern in self.exclude)

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Options:
        """The inverse of `to_json`. Raises ValueError for unknown fields."""
        values = json.loads(text)
        unknown = set(values) - {field.name for field in dataclasses.fields(cls)}
        if unknown:
            raise ValueError(f"Unknown options: {sorted(unknown)}.")
        return cls(**values)
