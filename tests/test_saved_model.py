"""Converting SavedModels: equal outputs, and nothing else is touched."""

from __future__ import annotations

import pathlib
import shutil

import numpy as np
import pytest
import tensorflow as tf
from google.protobuf import text_format
from helpers_kernels import assert_same
from helpers_models import (
    DIMS,
    ROWS,
    ClickModule,
    assert_all_same,
    checked,
    dense_layer,
    id_batches,
    keras_2,
    make_tables,
    needs_estimator,
    needs_keras_2,
    needs_keras_3,
    run_python,
    strict,
    tree_bytes,
    v1,
)
from tensorflow.core.protobuf import saved_model_pb2

import picasso_tf

FIELDS = len(ROWS)


def model_of(directory) -> saved_model_pb2.SavedModel:
    content = (pathlib.Path(directory) / "saved_model.pb").read_bytes()
    return saved_model_pb2.SavedModel.FromString(content)


def ops_of(meta) -> list[str]:
    """The op types of a MetaGraph's graph and of its functions."""
    graph = meta.graph_def
    nodes = [*graph.node, *(n for f in graph.library.function for n in f.node_def)]
    return [node.op for node in nodes]


def rest_of(meta):
    """A MetaGraph without its graph, and what describes the graph's ops."""
    rest = type(meta)()
    rest.CopyFrom(meta)
    rest.ClearField("graph_def")
    rest.meta_info_def.ClearField("stripped_op_list")
    return rest


def assert_same_but_packed(src, dst):
    """Variables, assets and all other files byte by byte; of the model, all but
    the graphs."""
    before, after = tree_bytes(src), tree_bytes(dst)
    for files in (before, after):
        files.pop("saved_model.pb", None)
        files.pop("saved_model.pbtxt", None)
        files.pop("fingerprint.pb", None)  # of the graphs
    assert before == after
    if not (src / "saved_model.pb").exists():
        return
    old, new = model_of(src), model_of(dst)
    assert len(old.meta_graphs) == len(new.meta_graphs)
    for one, other in zip(old.meta_graphs, new.meta_graphs, strict=True):
        assert rest_of(one) == rest_of(other)


def leftovers(directory: pathlib.Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


# -- TF2 style ----------------------------------------------------------------


class Served(tf.Module):
    """Two signatures, a vocabulary file, and a trainable function."""

    def __init__(self, vocabulary: str):
        super().__init__()
        self.click = ClickModule()
        self.vocabulary = tf.saved_model.Asset(vocabulary)
        self.words = tf.lookup.StaticHashTable(
            tf.lookup.TextFileInitializer(
                self.vocabulary,
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            default_value=0,
        )

    @tf.function(input_signature=[tf.TensorSpec([None, FIELDS], tf.int64, "ids")])
    def score(self, ids):
        return {"logits": self.click.logits(ids)}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.string, "words"),
            tf.TensorSpec([None], tf.int32, "others"),
        ]
    )
    def embed(self, words, others):
        ids = self.words.lookup(words)
        tables = self.click.tables
        first = tf.nn.embedding_lookup(tables[0], ids)
        second = tf.nn.embedding_lookup(tables[1], others)
        return {"rows": tf.concat([first, second], axis=1), "first": first}

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, FIELDS], tf.int64),
            tf.TensorSpec([None], tf.float32),
        ]
    )
    def loss(self, ids, labels):
        return self.click.loss(ids, labels)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A SavedModel of `Served`; not to be changed."""
    directory = tmp_path_factory.mktemp("served")
    vocabulary = directory / "vocabulary.txt"
    vocabulary.write_text("\n".join("abcdefg") + "\n")
    module = Served(str(vocabulary))
    src = directory / "model"
    tf.saved_model.save(
        module,
        str(src),
        signatures={"serving_default": module.score, "embed": module.embed},
    )
    return src


@pytest.fixture(scope="module")
def converted(served, tmp_path_factory):
    """(the original, its conversion, the report)."""
    dst = tmp_path_factory.mktemp("converted") / "packed"
    return served, dst, picasso_tf.convert_saved_model(served, dst, strict())


def signature_outputs(directory) -> list[np.ndarray]:
    model = tf.saved_model.load(str(directory))
    ids = tf.constant(id_batches(1)[0])
    score = model.signatures["serving_default"](ids)
    embed = model.signatures["embed"](
        words=tf.constant(["c", "a", "nothing"]), others=tf.constant([1, 49, 0])
    )
    return [score["logits"].numpy(), embed["rows"].numpy(), embed["first"].numpy()]


def test_tf2_model(converted):
    src, dst, report = converted
    # score, embed and loss: a function body each.
    assert sorted(len(pack.members) for pack in report.packs) == [2, FIELDS, FIELDS]
    assert not report.failures
    ops = ops_of(model_of(dst).meta_graphs[0])
    assert "ResourceGather" not in ops
    assert ops.count("PicassoPackedLookup") == 3
    before = sum(report.executions(pack)[1] for pack in report.packs)
    assert_all_same(signature_outputs(dst), signature_outputs(src))
    after = sum(report.executions(pack)[1] for pack in report.packs)
    assert after - before == 2
    assert_same_but_packed(src, dst)


def test_tf2_model_lists_its_ops(converted):
    """What a loader needs to know of ops is in the model."""
    _, dst, _ = converted
    listed = model_of(dst).meta_graphs[0].meta_info_def.stripped_op_list.op
    assert "PicassoPackedLookup" in {op.name for op in listed}


def test_gradient_of_a_loaded_model(converted):
    """Training on from a converted model: the same slices, in the same order."""
    src, dst, _ = converted
    ids = tf.constant(id_batches(1)[0])
    labels = tf.ones([len(ids)])

    def gradient(directory):
        model = tf.saved_model.load(str(directory))
        variables = [*model.click.tables, model.click.kernel]
        with tf.GradientTape() as tape:
            loss = model.loss(ids, labels)
        got = [loss.numpy()]
        for part in tape.gradient(loss, variables):
            if isinstance(part, tf.IndexedSlices):
                got.extend([part.values.numpy(), part.indices.numpy()])
            else:
                got.append(part.numpy())
        return got

    expected = gradient(src)
    assert len(expected) == 2 * FIELDS + 2
    assert_all_same(gradient(dst), expected)


def test_loaded_model_trains_as_the_original(converted):
    src, dst, _ = converted

    def train(directory):
        model = tf.saved_model.load(str(directory))
        variables = [*model.click.tables, model.click.kernel]
        optimizer = v1.train.AdagradOptimizer(0.1)
        losses = []

        @tf.function
        def step(ids):
            with tf.GradientTape() as tape:
                loss = model.loss(ids, tf.ones(tf.shape(ids)[:1]))
            grads = tape.gradient(loss, variables)
            optimizer.apply_gradients(zip(grads, variables, strict=True))
            return loss

        for ids in id_batches(10):
            losses.append(step(tf.constant(ids)).numpy())
        return losses + [v.numpy() for v in variables]

    assert_all_same(train(dst), train(src))


def test_bad_ids_of_a_loaded_model(converted):
    _, dst, _ = converted
    model = tf.saved_model.load(str(dst))
    ids = id_batches(1)[0]
    ids[2, 1] = 50
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"indices\[2\] = 50 is not in \[0, 50\)"
    ):
        model.signatures["serving_default"](tf.constant(ids))


def test_saved_again(converted, tmp_path):
    """A loaded conversion can be saved, and keeps its packs."""
    src, dst, _ = converted
    model = tf.saved_model.load(str(dst))
    tf.saved_model.save(model, str(tmp_path / "again"), model.signatures)
    ops = ops_of(model_of(tmp_path / "again").meta_graphs[0])
    assert "PicassoPackedLookup" in ops
    assert_all_same(signature_outputs(tmp_path / "again"), signature_outputs(src))


LOAD = """
import sys
if sys.argv[1] == "with":
    import picasso_tf
import numpy as np
import tensorflow as tf
model = tf.saved_model.load(sys.argv[2])
ids = tf.constant(np.load(sys.argv[3]))
np.save(sys.argv[4], model.signatures["serving_default"](ids)["logits"].numpy())
"""


@pytest.mark.slow
def test_loading_in_another_process(converted, tmp_path):
    """After `import picasso_tf` it loads; without, the error names the op."""
    src, dst, _ = converted
    ids = id_batches(1)[0]
    np.save(tmp_path / "ids.npy", ids)
    arguments = (dst, tmp_path / "ids.npy", tmp_path / "logits.npy")
    checked(run_python(LOAD, "with", *arguments))
    assert_same(np.load(tmp_path / "logits.npy"), signature_outputs(src)[0], "logits")
    without = run_python(LOAD, "without", *arguments)
    assert without.returncode != 0
    assert "PicassoPackedLookup" in without.stderr


def test_converting_twice_changes_nothing(converted, tmp_path):
    _, dst, _ = converted
    report = picasso_tf.convert_saved_model(dst, tmp_path / "twice", strict())
    assert not report.packs
    assert tree_bytes(dst) == tree_bytes(tmp_path / "twice")


def test_converting_again_gives_the_same_bytes(converted, tmp_path):
    src, dst, _ = converted
    picasso_tf.convert_saved_model(src, tmp_path / "again", strict())
    assert tree_bytes(dst) == tree_bytes(tmp_path / "again")


def test_options_reach_the_conversion(served, tmp_path):
    everything = picasso_tf.convert_saved_model(
        served, tmp_path / "none", strict(exclude=[".*"])
    )
    assert not everything.packs
    assert set(everything.reasons()) == {"excluded by Options.exclude"}
    assert ops_of(model_of(tmp_path / "none").meta_graphs[0]) == ops_of(
        model_of(served).meta_graphs[0]
    )


def test_strings_and_paths(served, tmp_path):
    picasso_tf.convert_saved_model(str(served), str(tmp_path / "packed"))
    assert (tmp_path / "packed" / "saved_model.pb").exists()


def test_text_models(served, tmp_path):
    """saved_model.pbtxt stays one."""
    src, dst = tmp_path / "text", tmp_path / "packed"
    shutil.copytree(served, src)
    (src / "saved_model.pb").unlink()
    (src / "saved_model.pbtxt").write_text(
        text_format.MessageToString(model_of(served))
    )
    report = picasso_tf.convert_saved_model(src, dst, strict())
    assert len(report.packs) == 3
    assert not (dst / "saved_model.pb").exists()
    assert_same_but_packed(src, dst)
    assert_all_same(signature_outputs(dst), signature_outputs(served))


def test_what_a_conversion_reports(converted):
    src, _, report = converted
    assert report.graph == str(src)
    assert sum(report.ops_after.values()) < sum(report.ops_before.values())
    gathers = [row for row in report.changed_ops() if row[0] == "ResourceGather"]
    assert gathers == [("ResourceGather", 2 * FIELDS + 2, 0)]


# -- TF1 style ----------------------------------------------------------------


def build_tf1(directory: pathlib.Path) -> None:
    """Two signatures with placeholders of their own, two tags, an asset.

    No row is read by both signatures, so neither may need the other's feeds.
    """
    builder = v1.saved_model.Builder(str(directory))
    words = directory.parent / "words.txt"
    words.write_text("some words\n")
    with tf.Graph().as_default():
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None, FIELDS], "ids")
        rows = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)]
        logits = dense_layer(tf.concat(rows, axis=1), 1, "logits")
        one, two = (v1.placeholder(tf.int32, [None], name) for name in ("one", "two"))
        near = tf.gather(tables[1], one) - tf.gather(tables[3], two)
        asset = tf.constant(str(words), name="asset")
        v1.add_to_collection(v1.GraphKeys.ASSET_FILEPATHS, asset)
        signatures = {
            "serving_default": v1.saved_model.predict_signature_def(
                {"ids": ids}, {"logits": logits}
            ),
            "near": v1.saved_model.predict_signature_def(
                {"one": one, "two": two}, {"near": near}
            ),
        }
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            builder.add_meta_graph_and_variables(
                session,
                ["serve"],
                signatures,
                assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            )
    with tf.Graph().as_default():
        tables = make_tables()
        ids = v1.placeholder(tf.int64, [None], "ids")
        rows = [tf.nn.embedding_lookup(t, ids) for t in tables]
        outputs = {f"rows_{i}": row for i, row in enumerate(rows)}
        with v1.Session() as session:
            session.run(v1.global_variables_initializer())
            builder.add_meta_graph(
                ["serve", "rows"],
                {
                    "serving_default": v1.saved_model.predict_signature_def(
                        {"ids": ids}, outputs
                    )
                },
            )
    builder.save()


@pytest.fixture(scope="module")
def tf1_model(tmp_path_factory):
    directory = tmp_path_factory.mktemp("tf1") / "model"
    build_tf1(directory)
    return directory


def run_tf1(directory, tags, signature: str, feed: dict) -> list[np.ndarray]:
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        meta = v1.saved_model.load(session, tags, str(directory))
        signature_def = meta.signature_def[signature]
        named = {signature_def.inputs[key].name: value for key, value in feed.items()}
        outputs = sorted(signature_def.outputs)
        return session.run([signature_def.outputs[key].name for key in outputs], named)


TF1_CALLS = [
    (["serve"], "serving_default", {"ids": id_batches(1)[0]}),
    (["serve"], "near", {"one": [1, 49, 0], "two": [2, 2, 3]}),
    (["serve", "rows"], "serving_default", {"ids": [0, 6, 6, 1]}),
]


@pytest.mark.parametrize("tags", [None, ["serve"], ["rows", "serve"], "other"])
def test_tf1_model(tf1_model, tmp_path, tags):
    dst = tmp_path / "packed"
    if tags == "other":
        with pytest.raises(ValueError, match="no MetaGraph with the tags"):
            picasso_tf.convert_saved_model(tf1_model, dst, tags=tags)
        assert leftovers(tmp_path) == []
        return
    report = picasso_tf.convert_saved_model(tf1_model, dst, strict(), tags)
    expected = {None: [2, 4, 4], ("serve",): [2, 4], ("rows", "serve"): [4]}
    sizes = sorted(len(pack.members) for pack in report.packs)
    assert sizes == expected[tags and tuple(tags)], str(report)
    for call_tags, signature, feed in TF1_CALLS:
        assert_all_same(
            run_tf1(dst, call_tags, signature, feed),
            run_tf1(tf1_model, call_tags, signature, feed),
        )
    assert_same_but_packed(tf1_model, dst)
    # What has other tags is as it was, to the last byte.
    for old, new in zip(
        model_of(tf1_model).meta_graphs, model_of(dst).meta_graphs, strict=True
    ):
        chosen = tags is None or set(tags) == set(old.meta_info_def.tags)
        assert ("PicassoPackedLookup" in ops_of(new)) == chosen
        if not chosen:
            assert old.SerializeToString(deterministic=True) == new.SerializeToString(
                deterministic=True
            )


def test_tf1_model_trains_on(tf1_model, tmp_path):
    """tf.gradients through a packed lookup that was loaded into a v1 graph."""
    picasso_tf.convert_saved_model(tf1_model, tmp_path / "packed", strict())

    def train(directory):
        with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
            meta = v1.saved_model.load(session, ["serve"], str(directory))
            signature = meta.signature_def["serving_default"]
            ids = graph.get_tensor_by_name(signature.inputs["ids"].name)
            logits = graph.get_tensor_by_name(signature.outputs["logits"].name)
            variables = v1.trainable_variables()
            loss = tf.reduce_sum(tf.square(logits))
            step = v1.train.GradientDescentOptimizer(0.01).minimize(
                loss, var_list=variables
            )
            losses = [
                session.run([loss, step], {ids: batch})[0] for batch in id_batches(5)
            ]
            return losses + session.run(variables)

    expected = train(tf1_model)
    assert len(expected) == 5 + FIELDS + 2
    assert_all_same(train(tmp_path / "packed"), expected)


def test_tf1_model_loaded_by_tf2(tf1_model, tmp_path):
    picasso_tf.convert_saved_model(tf1_model, tmp_path / "packed", strict())
    ids = tf.constant(id_batches(1)[0])
    got, expected = (
        tf.saved_model.load(str(directory), tags=["serve"])
        .signatures["serving_default"](ids)["logits"]
        .numpy()
        for directory in (tmp_path / "packed", tf1_model)
    )
    assert_same(got, expected, "logits")


def test_tf1_model_restores_its_checkpoint(tf1_model, tmp_path):
    """The saver in the graph still works: variables are named as before."""
    picasso_tf.convert_saved_model(tf1_model, tmp_path / "packed", strict())
    prefix = str(tmp_path / "packed" / "variables" / "variables")
    shapes = dict(tf.train.list_variables(prefix))
    for i, shape in enumerate(zip(ROWS, DIMS, strict=True)):
        assert shapes[f"table_{i}"] == [*shape]
    with tf.Graph().as_default() as graph, v1.Session(graph=graph) as session:
        v1.saved_model.load(session, ["serve"], str(tmp_path / "packed"))
        tables = {v.op.name: session.run(v) for v in v1.global_variables()}
    for name, value in tables.items():
        assert_same(value, tf.train.load_variable(prefix, name), name)


@needs_estimator
def test_estimator_export(tmp_path):
    def model_fn(features, labels, mode):
        tables = make_tables()
        ids = features["ids"]
        rows = [tf.nn.embedding_lookup(t, ids[:, i]) for i, t in enumerate(tables)]
        logits = dense_layer(tf.concat(rows, axis=1), 1, "logits")
        if mode == tf.estimator.ModeKeys.PREDICT:
            outputs = {
                "serving_default": tf.estimator.export.PredictOutput({"logits": logits})
            }
            return tf.estimator.EstimatorSpec(
                mode, {"logits": logits}, export_outputs=outputs
            )
        loss = tf.reduce_mean(tf.square(logits))
        step = v1.train.AdagradOptimizer(0.1).minimize(loss, v1.train.get_global_step())
        return tf.estimator.EstimatorSpec(mode, loss=loss, train_op=step)

    estimator = tf.estimator.Estimator(model_fn, str(tmp_path / "checkpoints"))
    batches = np.stack(id_batches(3))
    estimator.train(
        lambda: tf.data.Dataset.from_tensor_slices({"ids": batches}).map(
            lambda features: (features, tf.constant(0.0))
        )
    )
    with tf.Graph().as_default():
        ids = v1.placeholder(tf.int64, [None, FIELDS])
    receiver = tf.estimator.export.build_raw_serving_input_receiver_fn({"ids": ids})
    src = pathlib.Path(
        estimator.export_saved_model(str(tmp_path / "export"), receiver).decode()
    )
    dst = tmp_path / "packed"
    report = picasso_tf.convert_saved_model(src, dst, strict())
    assert [len(pack.members) for pack in report.packs] == [FIELDS]
    feed = {"ids": id_batches(1, seed=9)[0]}
    assert_all_same(
        run_tf1(dst, ["serve"], "serving_default", feed),
        run_tf1(src, ["serve"], "serving_default", feed),
    )
    assert_same_but_packed(src, dst)


# -- Keras --------------------------------------------------------------------


@needs_keras_2
def test_keras_2_model(tmp_path):
    keras = keras_2
    inputs = [keras.Input([1], dtype="int32", name=f"field_{i}") for i in range(3)]
    rows = [
        keras.layers.Flatten()(keras.layers.Embedding(9, 4, name=f"embedding_{i}")(x))
        for i, x in enumerate(inputs)
    ]
    joined = keras.layers.Concatenate()(rows)
    model = keras.Model(inputs, keras.layers.Dense(1, name="out")(joined))
    src, dst = tmp_path / "model", tmp_path / "packed"
    model.save(str(src), save_format="tf")
    report = picasso_tf.convert_saved_model(src, dst, strict())
    assert report.packs
    assert {len(pack.members) for pack in report.packs} == {3}
    ids = {f"field_{i}": tf.constant([[i], [3], [8]]) for i in range(3)}
    got, expected = (
        tf.saved_model.load(str(path)).signatures["serving_default"](**ids)["out"]
        for path in (dst, src)
    )
    assert_same(got.numpy(), expected.numpy(), "out")
    assert_same_but_packed(src, dst)
    # Keras finds its model in the copy, with its weights.
    loaded = keras.models.load_model(str(dst))
    assert_all_same(loaded.get_weights(), model.get_weights())
    x = [ids[f"field_{i}"] for i in range(3)]
    assert_same(loaded(x).numpy(), model(x).numpy(), "out")


@needs_keras_3
def test_keras_3_export(tmp_path):
    """Its lookups have a form of their own; outputs are equal in any case."""
    keras = tf.keras
    inputs = [keras.Input([1], dtype="int32", name=f"field_{i}") for i in range(3)]
    rows = [keras.layers.Flatten()(keras.layers.Embedding(9, 4)(x)) for x in inputs]
    joined = keras.layers.Concatenate()(rows)
    model = keras.Model(inputs, keras.layers.Dense(1)(joined))
    src, dst = tmp_path / "model", tmp_path / "packed"
    model.export(str(src), verbose=False)
    picasso_tf.convert_saved_model(src, dst, strict())
    ids = [tf.constant([[i], [3], [8]]) for i in range(3)]
    loaded, stock = (tf.saved_model.load(str(path)) for path in (dst, src))
    assert_same(loaded.serve(ids).numpy(), stock.serve(ids).numpy(), "out")
    assert_same_but_packed(src, dst)


# -- errors -------------------------------------------------------------------


def test_destination_exists(served, tmp_path):
    dst = tmp_path / "packed"
    dst.mkdir()
    (dst / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError, match="packed exists"):
        picasso_tf.convert_saved_model(served, dst)
    assert tree_bytes(tmp_path) == {"packed/mine.txt": b"mine"}
    (tmp_path / "file").write_text("mine")
    with pytest.raises(FileExistsError, match="file exists"):
        picasso_tf.convert_saved_model(served, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


def test_source_is_the_destination(served):
    before = tree_bytes(served)
    with pytest.raises(FileExistsError):
        picasso_tf.convert_saved_model(served, served)
    assert tree_bytes(served) == before


def test_source_is_no_saved_model(tmp_path):
    dst = tmp_path / "packed"
    with pytest.raises(FileNotFoundError, match="nowhere does not exist"):
        picasso_tf.convert_saved_model(tmp_path / "nowhere", dst)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="empty is no SavedModel"):
        picasso_tf.convert_saved_model(tmp_path / "empty", dst)
    (tmp_path / "file").write_text("text")
    with pytest.raises(FileNotFoundError, match="file is no SavedModel"):
        picasso_tf.convert_saved_model(tmp_path / "file", dst)
    (tmp_path / "empty" / "saved_model.pb").write_bytes(b"\xff\xff no model")
    with pytest.raises(ValueError, match="holds no SavedModel"):
        picasso_tf.convert_saved_model(tmp_path / "empty", dst)
    assert leftovers(tmp_path) == ["empty", "file"]


def test_unknown_tag(served, tmp_path):
    with pytest.raises(
        ValueError, match=r"no MetaGraph with the tags \['train'\]"
    ) as e:
        picasso_tf.convert_saved_model(served, tmp_path / "packed", tags=["train"])
    assert "[['serve']]" in str(e.value)
    assert leftovers(tmp_path) == []
    # All tags of a MetaGraph are named, not one of them.
    with pytest.raises(ValueError, match="no MetaGraph"):
        picasso_tf.convert_saved_model(
            served, tmp_path / "packed", tags=["serve", "gpu"]
        )


def test_missing_parent(served, tmp_path):
    with pytest.raises(FileNotFoundError, match="no/where does not exist"):
        picasso_tf.convert_saved_model(served, tmp_path / "no" / "where" / "packed")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize("failing", ["copytree", "write_bytes", "rename"])
def test_failure_while_writing_leaves_nothing(served, tmp_path, monkeypatch, failing):
    """A full disk, in the middle of it."""
    full = OSError(28, "No space left on device")
    if failing == "copytree":
        real = shutil.copytree

        def copytree(*arguments, **others):
            real(*arguments, **others)
            raise full

        monkeypatch.setattr(shutil, "copytree", copytree)
    else:

        def fail(self, *arguments):
            if failing == "write_bytes":
                self.touch()
            raise full

        monkeypatch.setattr(pathlib.Path, failing, fail)
    before = tree_bytes(served)
    with pytest.raises(OSError, match="No space left"):
        picasso_tf.convert_saved_model(served, tmp_path / "packed")
    monkeypatch.undo()
    assert leftovers(tmp_path) == []
    assert tree_bytes(served) == before


def test_failing_pass_while_converting(served, tmp_path, monkeypatch):
    """Strict: an error, and nothing is written. Else an unpacked copy, and the
    report says why."""

    def run(self, view):
        raise ValueError("no luck today")

    monkeypatch.setattr("picasso_tf.passes.PackLookups.run", run)
    with pytest.raises(ValueError, match="no luck today"):
        picasso_tf.convert_saved_model(served, tmp_path / "packed", strict())
    assert leftovers(tmp_path) == []
    report = picasso_tf.convert_saved_model(served, tmp_path / "packed")
    assert not report.packs
    assert set(report.failures) == {"pack_lookups: ValueError('no luck today')"}
    assert_all_same(signature_outputs(tmp_path / "packed"), signature_outputs(served))


def test_read_only_source(served, tmp_path):
    """Files that may not be written are copied all the same."""
    src = tmp_path / "model"
    shutil.copytree(served, src)
    for path in src.rglob("*"):
        path.chmod(0o555 if path.is_dir() else 0o444)
    try:
        picasso_tf.convert_saved_model(src, tmp_path / "packed", strict())
    finally:
        for path in (tmp_path / "model", *src.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
    assert_same_but_packed(src, tmp_path / "packed")
    assert leftovers(tmp_path) == ["model", "packed"]


def test_models_without_lookups(tmp_path):
    """Nothing to pack: an equal copy."""

    class Plain(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32)])
        def double(self, x):
            return 2.0 * x

    tf.saved_model.save(Plain(), str(tmp_path / "model"))
    report = picasso_tf.convert_saved_model(
        tmp_path / "model", tmp_path / "packed", strict()
    )
    assert not report.packs
    old, new = tree_bytes(tmp_path / "model"), tree_bytes(tmp_path / "packed")
    assert model_of(tmp_path / "model") == model_of(tmp_path / "packed")
    assert old["variables/variables.index"] == new["variables/variables.index"]
