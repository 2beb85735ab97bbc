"""The parts of benchmarks/ that do not measure."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from benchmarks import cases, data, race, report
from benchmarks.cases import KernelCase, StepCase, Workload
from benchmarks.race import Run

TINY = StepCase(Workload("tiny", tables=3, rows=50, dim=4, batch=30))


def names(chosen) -> list[str]:
    return [" ".join(case.labels.values()) for case in chosen]


def test_words_select_by_kind_of_label():
    words = ["steps", "W26", "W200", "session"]
    assert names(cases.select(cases.all_cases(), words)) == [
        "steps W26 plain session",
        "steps W26 safe-sparse session",
        "steps W200 plain session",
        "steps W200 safe-sparse session",
    ]


def test_all_cases_have_names_of_their_own():
    for known in (cases.all_cases(), cases.all_cases(cross=True)):
        assert len(set(names(known))) == len(known)
    assert len(cases.kernel_cases(cross=True)) > 400 > len(cases.kernel_cases())


@pytest.mark.parametrize(
    "words, message",
    [
        (["W27"], "'W27' selects nothing; there are .*W26"),
        (["kernels", "W26"], "No case is all of W26 kernels"),
    ],
)
def test_words_that_select_nothing(words, message):
    with pytest.raises(ValueError, match=message):
        cases.select(cases.all_cases(), words)


@pytest.mark.parametrize("case", cases.all_cases(), ids=lambda case: names([case])[0])
def test_cases_travel_as_json(case):
    sent = json.loads(json.dumps(dataclasses.asdict(case)))
    assert type(case).from_dict(sent) == case


def test_zipf_ids_follow_their_exponent():
    random = np.random.default_rng(0)
    ids = data.draw_ids(random, 1000, 1.2, 100_000)
    assert ids.min() >= 0 and ids.max() < 1000
    counts = np.sort(np.bincount(ids))[::-1]
    assert counts[0] / counts[1] == pytest.approx(2**1.2, rel=0.05)
    uniform = data.draw_ids(random, 1000, 0.0, 100_000)
    assert np.bincount(uniform).max() < 200


def test_sparse_batches_have_one_shape_and_empty_bags():
    sparse = dataclasses.replace(TINY, form=cases.SPARSE)
    for batch in data.step_batches(sparse):
        for ids in batch.ids:
            lengths = (ids >= 0).sum(1)
            assert ids.shape == (30, 2)
            assert np.bincount(lengths).tolist() == [10, 10, 10]


def test_bytes_that_must_move():
    bags = data.bag_batches(KernelCase("lookup", dim=4, mib=1, tables=2, batch=10))
    unique = np.mean([sum(len(set(ids)) for ids in batch.ids) for batch in bags])
    lookup, update = (
        data.moved(KernelCase(kind, dim=4, mib=1, tables=2, batch=10))
        for kind in ("lookup", "update")
    )
    assert lookup.ids == 20 and lookup.unique_rows == unique
    assert lookup.bytes == 8 * 20 + 16 * unique + 16 * 20
    assert update.bytes == lookup.bytes + 16 * 20 + 4 * 16 * unique


@pytest.mark.parametrize("lengths", ["fixed", "zipf"])
@pytest.mark.parametrize("mean", [1, 5, 20])
def test_bags_have_their_mean(lengths, mean):
    case = KernelCase("bags", mean=mean, lengths=lengths)
    drawn = np.concatenate([np.ravel(b.lengths) for b in data.bag_batches(case)])
    assert drawn.mean() == pytest.approx(mean, rel=0.1)
    assert (drawn.std() == 0) == (lengths == "fixed")


def runs_of(**blocks) -> dict[str, Run]:
    return {
        name: Run(name, 0.5, times, [0.7, 0.6], {"peak_mib": 10.0})
        for name, times in blocks.items()
    }


def test_ratios_are_of_blocks_of_the_same_round():
    # The machine slows down; ours is twice as fast in each round.
    runs = runs_of(
        stock=[[0.002], [0.02], [0.008]], picasso_tf=[[0.001], [0.01], [0.004]]
    )
    stock, ours = report.results_of(TINY, runs, {})
    assert (stock.to_stock, ours.to_stock) == (1.0, 2.0)
    assert ours.to_stock_quartiles == (2.0, 2.0)
    assert ours.step_ms == pytest.approx(4)
    assert ours.quartiles_ms == pytest.approx((2.5, 7))


def test_markdown_names_what_has_no_figures():
    runs = runs_of(stock=[[0.002]], picasso_tf=[[0.001]])
    runs["XLA"] = Run("XLA", failure="not within 30 s")
    text = report.markdown(report.results_of(TINY, runs, {}))
    assert (
        "| tiny | plain | session | picasso_tf | 1.00 (1.00-1.00) | 1,000 "
        "| 2.00 (2.00-2.00) | 0.50 | 10 | – | – |"
    ) in text
    assert "- steps tiny plain session, XLA: not within 30 s" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_json_has_every_result():
    runs = runs_of(stock=[[0.002]], picasso_tf=[[0.001]])
    results = report.results_of(TINY, runs, {"ids": 3})
    read = json.loads(report.to_json({"cores": 2}, results, []))
    assert [r["contender"] for r in read["results"]] == ["stock", "picasso_tf"]
    assert read["results"][1]["more"] == {"ids": 3}


def test_other_losses_make_a_run_worthless():
    runs = runs_of(stock=[[0.002]], picasso_tf=[[0.001]])
    assert report.problems(TINY, runs) == []
    runs["picasso_tf"].losses = [0.7, 0.60001]
    assert report.problems(TINY, runs) == [
        "steps tiny plain session: losses differ from stock's"
    ]
    runs["picasso_tf"].failure = "ValueError: no"
    assert "picasso_tf failed: ValueError: no" in report.problems(TINY, runs)[0]


def test_reason_in_error_output():
    xla = (
        "tensorflow.InvalidArgumentError: Graph execution error:\n\n"
        "Detected unsupported operations when trying to compile graph f: Unique\n"
        " [[StatefulPartitionedCall]]\n"
    )
    assert race.reason_in(xla).startswith("Detected unsupported operations")
    assert race.reason_in("I said so\nValueError: 3\n\n") == "ValueError: 3"
    assert race.reason_in("") == ""


def test_a_contender_that_cannot_start_says_why(tmp_path):
    job = race.Job("stock", "benchmarks.no_such_module", {})
    with pytest.raises(race.Failed, match="no_such_module"):
        race.race([job], race.QUICK)
