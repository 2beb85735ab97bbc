"""What of the first step passes before picasso_tf is asked, and in it."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence

from benchmarks.gate import Gate


def watch(gate: Gate) -> Callable[[], dict]:
    """Takes the times of the calls that TensorFlow makes of picasso_tf, from now on.

    To be called before picasso_tf is switched on: it is handed over only once.

    Returns:
      What gives the figures of `parts_of`, after the first step.
    """
    grappler = importlib.import_module("picasso_tf.grappler")
    rewrite, calls = grappler._rewrite, []

    def timed(*arguments) -> int:
        began = time.perf_counter()
        try:
            return rewrite(*arguments)
        finally:
            calls.append((began, time.perf_counter()))

    grappler._rewrite = timed
    return lambda: parts_of(gate.first, calls)


def parts_of(
    first: tuple[float, float], calls: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Seconds of the first step until the first call, and in all calls.

    Times are (begin, end), of the first step and of each call; those before it or
    after it do not count. No call: no figures.
    """
    within = [call for call in calls if first[0] <= call[0] < first[1]]
    if not within:
        return {}
    return {
        "first_before_s": min(began for began, _ in within) - first[0],
        "first_passes_s": sum(end - began for began, end in within),
    }
