"""The parts of benchmarks/ that do not measure."""

from __future__ import annotations

import dataclasses
import json
import types

import numpy as np
import pytest

from benchmarks import __main__ as runner
from benchmarks import about, cases, data, first_step, page, race, report
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
    # A row of 16 bytes costs a line of 64.
    assert lookup.bytes == 8 * 20 + 64 * unique + 16 * 20
    assert update.bytes == lookup.bytes + 16 * 20 + 4 * 64 * unique


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
    runs["picasso_tf"].figures |= {"first_before_s": 0.2, "first_passes_s": 0.125}
    text = report.markdown(report.results_of(TINY, runs, {}))
    assert (
        "| tiny | plain | session | picasso_tf | 1.00 (1.00-1.00) | 1,000 "
        "| 2.00 (2.00-2.00) | 2.00 (2.00-2.00) | 0.50 | 0.20 / 0.12 | 10 | – | – |"
    ) in text
    assert "- steps tiny plain session, XLA: not within 30 s" in text
    widths = {line.count("|") for line in text.splitlines() if line.startswith("|")}
    assert len(widths) == 1


def test_the_best_other_is_that_of_each_round():
    runs = runs_of(
        stock=[[0.004], [0.006], [0.008]],
        XLA=[[0.008], [0.004], [0.006]],
        picasso_tf=[[0.001], [0.001], [0.002]],
    )
    # Faster than all, but out of the comparison: the one did no work, the other failed.
    runs[cases.DENSE] = Run(cases.DENSE, 0.1, [[0.0005]] * 3)
    runs[cases.NO_META] = Run(cases.NO_META, 0.1, [[0.0001]], failure="gone")
    by_name = {r.contender: r for r in report.results_of(TINY, runs, {})}
    ours = by_name.pop("picasso_tf")
    assert (ours.to_best, ours.to_stock) == pytest.approx((4, 4))
    assert ours.to_best_quartiles == pytest.approx((3.5, 4))
    assert ours.to_stock_quartiles == pytest.approx((4, 5))
    assert all(other.to_best is None for other in by_name.values())
    assert by_name[cases.DENSE].to_stock == pytest.approx(12)


def test_dense_layers_alone_are_of_sessions_and_lose_no_run():
    with_dense = [c for c in cases.all_cases() if cases.DENSE in c.contenders]
    assert {c.labels["way"] for c in with_dense} == {"session"}
    assert {c.workload.model for c in with_dense} == {"mlp"}
    assert {c.form for c in with_dense} == {cases.PLAIN, cases.SPARSE}
    runs = runs_of(stock=[[0.002]], picasso_tf=[[0.001]])
    runs[cases.DENSE] = Run(cases.DENSE, 0.1, [[0.0005]], losses=[0.1, 0.2])
    assert report.problems(TINY, runs) == []


def test_parts_of_the_first_step():
    calls = [(1.0, 2.0), (10.5, 10.75), (11.0, 11.5), (20.0, 21.0)]
    assert first_step.parts_of((10.0, 12.0), calls) == {
        "first_before_s": 0.5,
        "first_passes_s": 0.75,
    }
    assert first_step.parts_of((10.0, 12.0), []) == {}


ABOUT = {
    "command": "python -m benchmarks steps tiny",
    "date": "2026-01-02",
    "picasso_tf": "0.1.0",
    "tensorflow": "2.15.1",
    "cpu": "A CPU",
    "cores": 2,
    "load": 0.1,
    "caches": {"L1": "32K"},
}


def recorded(case, **about) -> report.Recorded:
    runs = runs_of(stock=[[0.002], [0.004]], picasso_tf=[[0.001], [0.002]])
    return report.Recorded(ABOUT | about, report.results_of(case, runs, {"ids": 3}))


def test_results_survive_their_file():
    run = recorded(TINY)
    read = report.Recorded.from_json(run.to_json())
    assert (read.about, read.problems) == (run.about, [])
    assert [r.contender for r in read.results] == ["stock", "picasso_tf"]
    assert read.results[1].more == {"ids": 3}
    assert read.to_json() == run.to_json()
    for text in ("[]", "{}", '{"results": [{"label": 1}]}', "no JSON"):
        with pytest.raises(ValueError):
            report.Recorded.from_json(text)


def test_a_page_joins_runs():
    scaling = dataclasses.replace(TINY, group=cases.SCALING, axis="batch")
    skipped = recorded(TINY, tensorflow="2.21.0", command="python -m benchmarks keras")
    skipped.results = [report.Result(TINY.labels, report.ALL, failure="needs DeepCTR")]
    runs = [recorded(TINY), recorded(scaling), skipped]
    text = page.page(runs, [[], ["performance/batch-2.png"], []])
    heads = [line for line in text.splitlines() if line.startswith("#")]
    assert heads == [
        "# Performance",
        "## Steps, TensorFlow 2.15.1",
        "## Scaling, TensorFlow 2.15.1",
        "## Steps, TensorFlow 2.21.0",
    ]
    steps, scaled, last = text.split("\n## ")[1:]
    said = (
        "By `python -m benchmarks steps tiny`, 2026-01-02: picasso_tf 0.1.0, "
        "TensorFlow 2.15.1; 2 cores of A CPU (L1 32K); load 0.1 at the start."
    )
    assert steps.index(said) < steps.index("| case | form |")
    assert "![" not in steps
    assert "![batch-2](performance/batch-2.png)\n\n| case |" in scaled
    assert "Without figures:\n\n- steps tiny plain session, all: needs DeepCTR" in last
    assert "| case |" not in last and "keras`" in last


def test_commands_are_told_without_paths():
    arguments = types.SimpleNamespace(
        words=["steps", "W26"],
        quick=False,
        cross=False,
        rounds=3,
        limit=0.5,
        no_fbgemm=True,
        out="/somewhere",
        fbgemm="/some/python",
    )
    assert about.command(arguments) == (
        "python -m benchmarks steps W26 --rounds 3 --limit 0.5 --no-fbgemm"
    )


def test_cases_that_cannot_run_here_say_why():
    deepfm, estimator = (
        next(c for c in cases.all_cases() if word in c.labels.values())
        for word in ("DeepFM26", "estimator")
    )
    reason = runner.reason_to_skip
    assert reason(deepfm, "2.21.0") == f"needs {deepfm.needs}"
    assert reason(estimator, "2.21.0").startswith("needs TensorFlow 2.15")
    small = dataclasses.replace(TINY, way=cases.ESTIMATOR)
    assert reason(small, "2.15.1") == reason(TINY, "2.21.0") == ""


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
    where = 'OpError: in "/home/me/c.py", ./a/b and x/y: 1/2 [/opt/lib/d.so]'
    assert race.reason_in(where) == 'OpError: in "c.py", ./a/b and x/y: 1/2 [d.so]'


def test_a_contender_that_cannot_start_says_why(tmp_path):
    job = race.Job("stock", "benchmarks.no_such_module", {})
    with pytest.raises(race.Failed, match="no_such_module"):
        race.race([job], race.QUICK)


def test_models_of_the_zoo_and_their_mean():
    results, runs = [], {}
    for model, seconds in (("WDL", 0.5), ("DCN", 2.0)):
        for name, time in ((cases.STOCK, 1.0), (cases.OURS, seconds)):
            run = Run(name, first_s=time, blocks=[[time]], losses=[1.0])
            runs[name] = dataclasses.replace(run, figures={"ops_graph": 7})
        case = cases.ZooCase(model)
        assert report.problems(case, runs) == []
        results += report.results_of(case, runs, {})
    text = report.markdown(results)
    assert "of 2 models: geometric mean 1.00, median 1.25, least 0.50" in text


@pytest.mark.parametrize(
    ("model", "loss", "found"),
    [
        ("WDL", 1.00001, ["zoo WDL: losses differ from stock's"]),
        ("FwFM", 1.00001, []),
        ("FwFM", 1.1, ["zoo FwFM: losses are far from stock's"]),
    ],
)
def test_models_that_stock_does_not_repeat(model, loss, found):
    runs = {
        cases.STOCK: Run(cases.STOCK, losses=[1.0]),
        cases.OURS: Run(cases.OURS, losses=[loss]),
    }
    assert report.problems(cases.ZooCase(model), runs) == found
