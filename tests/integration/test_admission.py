"""What the pool's TensorFlow has is judged; what layers and functions use is admitted; what strangers try is refused."""

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from fdt.base.config import Credentials, Timing
from fdt.errors import ProgramRefusedError, ProtocolError
from fdt.program import admission
from fdt.program.operations import OPERATIONS
from fdt.program.step_program import load
from fdt.transport import rpc
from fdt.transport.blob_client import BlobClient
from fdt.transport.blobs import one_time, reference
from fdt.v1 import graph_pb2, job_pb2, program_pb2
from tests.helpers import hostile
from tests.helpers.pool import Pool, serve
from tests.helpers.registry import registry, unjudged
from tests.helpers.train_stream import TrainStream

TIMING = Timing()


def test_every_operation_of_the_list_is_as_the_registry_says() -> None:
    """A new attribute of an old one, in a newer TensorFlow, is to be judged by somebody."""
    found = registry()
    assert len(found) > 1800 and "HorovodAllreduce" in found
    assert unjudged(found) == []
    assert OPERATIONS.keys() - found.keys() == set()
    assert unjudged({"MatMul": {"path": ("string", ""), "kind": ("type", 21)}}) == [
        "MatMul.path: a string, and the rule is None",
        "MatMul.kind: a handle by default",
    ]
    # A function of the library is not called like one of them.
    assert not [name for name in found if not admission.is_like_an_operation(name)]


# What layers and functions are made of.

IMAGE, ROWS, TEXT, SERIES = (8, 8, 3), (6,), (), (5, 4)
LAYERS: dict[str, tuple[tuple[int, ...], Callable[[Any], Any]]] = {
    "dense": (ROWS, lambda k: k.layers.Dense(3, activation="gelu", kernel_regularizer="l2")),
    "prelu": (ROWS, lambda k: k.layers.PReLU()),
    "dropout": (ROWS, lambda k: k.layers.Dropout(0.5)),
    "gaussian_noise": (ROWS, lambda k: k.layers.GaussianNoise(0.5)),
    "alpha_dropout": (ROWS, lambda k: k.layers.AlphaDropout(0.5)),
    "batch_normalization": (IMAGE, lambda k: k.layers.BatchNormalization()),
    "layer_normalization": (SERIES, lambda k: k.layers.LayerNormalization()),
    "group_normalization": (IMAGE, lambda k: k.layers.GroupNormalization(3)),
    "unit_normalization": (ROWS, lambda k: k.layers.UnitNormalization()),
    "spectral_normalization": (ROWS, lambda k: k.layers.SpectralNormalization(k.layers.Dense(3))),
    "conv_1d": (SERIES, lambda k: k.layers.Conv1D(2, 3, padding="causal")),
    "conv_2d": (IMAGE, lambda k: k.layers.Conv2D(2, 3, padding="same", dilation_rate=2)),
    "conv_2d_transpose": (IMAGE, lambda k: k.layers.Conv2DTranspose(2, 3, strides=2)),
    "conv_3d": ((4, 4, 4, 2), lambda k: k.layers.Conv3D(2, 2)),
    "separable_conv_2d": (IMAGE, lambda k: k.layers.SeparableConv2D(2, 3)),
    "depthwise_conv_2d": (IMAGE, lambda k: k.layers.DepthwiseConv2D(3)),
    "max_pooling_2d": (IMAGE, lambda k: k.layers.MaxPooling2D()),
    "average_pooling_3d": ((4, 4, 4, 2), lambda k: k.layers.AveragePooling3D(2)),
    "global_average_pooling_2d": (IMAGE, lambda k: k.layers.GlobalAveragePooling2D()),
    "up_sampling_2d": (IMAGE, lambda k: k.layers.UpSampling2D(interpolation="bilinear")),
    "resizing": (IMAGE, lambda k: k.layers.Resizing(4, 4)),
    "rescaling": (IMAGE, lambda k: k.layers.Rescaling(1 / 255)),
    "random_flip": (IMAGE, lambda k: k.layers.RandomFlip()),
    "random_rotation": (IMAGE, lambda k: k.layers.RandomRotation(0.2)),
    "random_zoom": (IMAGE, lambda k: k.layers.RandomZoom(0.2)),
    "random_translation": (IMAGE, lambda k: k.layers.RandomTranslation(0.2, 0.2)),
    "random_contrast": (IMAGE, lambda k: k.layers.RandomContrast(0.2)),
    "random_brightness": (IMAGE, lambda k: k.layers.RandomBrightness(0.2)),
    "random_crop": (IMAGE, lambda k: k.layers.RandomCrop(4, 4)),
    "zero_padding_2d": (IMAGE, lambda k: k.layers.ZeroPadding2D()),
    "lstm": (SERIES, lambda k: k.layers.LSTM(3, return_sequences=True)),
    "gru": (SERIES, lambda k: k.layers.GRU(3)),
    "simple_rnn": (SERIES, lambda k: k.layers.SimpleRNN(3, recurrent_dropout=0.5)),
    "bidirectional": (SERIES, lambda k: k.layers.Bidirectional(k.layers.LSTM(3))),
    "conv_lstm_1d": ((3, 5, 4), lambda k: k.layers.ConvLSTM1D(2, 2)),
    "time_distributed": (SERIES, lambda k: k.layers.TimeDistributed(k.layers.Dense(2))),
    "multi_head_attention": (SERIES, lambda k: _attention(k)),
    "text_vectorization": (TEXT, lambda k: k.layers.TextVectorization(vocabulary=["a", "b"], ngrams=2)),
    "string_lookup": (TEXT, lambda k: k.layers.StringLookup(vocabulary=["a", "b"], output_mode="multi_hot")),
    "hashing": (TEXT, lambda k: k.layers.Hashing(5)),
}


def _attention(k: Any) -> Any:
    attention = k.layers.MultiHeadAttention(2, 3)
    return lambda x: attention(x, x)


def admitted(function: Callable[..., Any], *specs: tf.TensorSpec) -> set[str]:
    """Admits a traced function; returns the operations that it and its library hold."""
    whole = tf.function(function).get_concrete_function(*specs).graph.as_graph_def()
    admission.admit_graph(graph_pb2.GraphDef.FromString(whole.SerializeToString()))
    return {
        node.op for nodes in (whole, *whole.library.function) for node in getattr(nodes, "node", None) or nodes.node_def
    }


def _layers() -> list[Any]:
    names = {keras: set(LAYERS), tf_keras: set(LAYERS) - {"spectral_normalization"}}
    return [pytest.param(k, name, id=f"{k.__name__}-{name}") for k in names for name in sorted(names[k])]


@pytest.mark.parametrize(("k", "name"), _layers())
def test_layers_are_admitted(name: str, k: Any) -> None:
    shape, make = LAYERS[name]
    layer = make(k)
    layer(tf.constant(["a c", "b"]) if shape == TEXT else tf.ones([2, *shape]))

    def forward(x: tf.Tensor) -> Any:
        return layer(x, training=True) if hasattr(layer, "call") and shape != TEXT else layer(x)

    def step(x: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(forward(x))
        return tape.gradient(loss, x)

    # Texts have no gradient, nor has what changes colours.
    plain = shape == TEXT or name.startswith("random_")
    assert admitted(
        forward if plain else step, tf.TensorSpec([None, *shape], tf.string if shape == TEXT else tf.float32)
    )


def _optimizers() -> list[tuple[Any, str]]:
    names = "SGD Adam AdamW Adamax Nadam Adagrad Adadelta RMSprop Ftrl Lion Adafactor".split()
    return [(k, name) for k in (keras, tf_keras) for name in names if hasattr(k.optimizers, name)]


@pytest.mark.parametrize(("k", "name"), _optimizers())
def test_optimizers_are_admitted(k: Any, name: str) -> None:
    variable = k.Variable(np.ones((3, 2), "float32")) if k is keras else tf.Variable(np.ones((3, 2), "float32"))
    optimizer = getattr(k.optimizers, name)(0.1, clipnorm=1.0)
    optimizer.build([variable])
    assert admitted(lambda g: optimizer.apply_gradients([(g, variable)]), tf.TensorSpec([3, 2]))


def _loops(x: tf.Tensor) -> tf.Tensor:
    rows = tf.TensorArray(tf.float32, 0, dynamic_size=True)
    for i in tf.range(tf.shape(x)[0]):
        rows = rows.write(i, tf.cond(x[i, 0] > 0.0, lambda i=i: x[i], lambda i=i: -x[i]))
    return tf.gradients(tf.reduce_sum(rows.stack()), x)[0]


def _texts(x: tf.Tensor) -> tf.Tensor:
    words = tf.strings.split(tf.strings.lower(tf.strings.join([tf.strings.as_string(x[:, 0]), "b"], " ")))
    tf.print("words", words, output_stream=tf.compat.v1.logging.info)
    return tf.strings.to_hash_bucket_fast(tf.strings.regex_replace(words, "a", "b").to_tensor(), 7)


def _random(x: tf.Tensor) -> list[tf.Tensor]:
    return [
        tf.random.normal([2]), tf.random.truncated_normal([2]), tf.random.gamma([2], 1.0), tf.random.poisson([2], 1.0),
        tf.random.shuffle(x), tf.random.categorical(x, 2), tf.random.stateless_uniform([2], [1, 2]),
        tf.nn.sampled_softmax_loss(tf.ones([9, 6]), tf.ones([9]), tf.zeros([2, 1], tf.int64), x[:2], 3, 9),
        tf.random.fixed_unigram_candidate_sampler(tf.zeros([1, 1], tf.int64), 1, 1, False, 3, unigrams=[1.0, 2.0, 3.0])[0],
    ]  # fmt: skip


def _sparse(x: tf.Tensor) -> list[tf.Tensor]:
    sparse = tf.sparse.from_dense(x)
    ragged = tf.RaggedTensor.from_tensor(x)
    mapped = tf.map_fn(tf.reduce_sum, ragged, fn_output_signature=tf.float32)
    return [
        tf.sparse.sparse_dense_matmul(sparse, x, adjoint_b=True),
        mapped,
        tf.ragged.stack([ragged, ragged]).to_tensor(),
    ]


def _linear(x: tf.Tensor) -> list[tf.Tensor]:
    square = tf.matmul(x, x, transpose_a=True) + tf.eye(6)
    return [
        tf.linalg.inv(square), tf.linalg.cholesky(square), tf.linalg.svd(square)[0], tf.linalg.eigh(square)[0],
        tf.einsum("ij,kj->ik", x, x), tf.math.real(tf.signal.fft(tf.cast(x, tf.complex64))), tf.linalg.logdet(square),
    ]  # fmt: skip


def _images(x: tf.Tensor) -> list[tf.Tensor]:
    pixels = tf.image.resize(tf.reshape(x[:1], [1, 3, 2, 1]), [8, 8], "bicubic")
    hues = tf.image.random_hue(tf.image.random_flip_left_right(tf.repeat(pixels, 3, -1)), 0.1)
    return [
        hues,
        tf.image.ssim(pixels, pixels, 1.0, 3),
    ]


def _custom(x: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient
    def doubled(y: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
        return y * 2.0, lambda upstream: upstream * 2.0

    compiled = tf.function(lambda y: tf.nn.relu(y), jit_compile=True)
    kept = tf.recompute_grad(lambda y: tf.tanh(y))
    with tf.device("/CPU:0"):
        return tf.gradients(kept(compiled(doubled(x))), x)[0]


@pytest.mark.parametrize(
    "function",
    [_loops, _texts, _random, _sparse, _linear, _images, _custom],
    ids=lambda function: function.__name__,
)
def test_functions_are_admitted(function: Callable[[tf.Tensor], Any]) -> None:
    assert len(admitted(function, tf.TensorSpec([3, 6]))) > 3


# On a real pool.


@pytest.fixture(scope="module")
def pool(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with serve(tmp_path_factory.mktemp("pool"), num_workers=1) as running:
        yield running


@contextlib.contextmanager
def job(pool: Pool) -> Iterator[tuple[TrainStream, BlobClient]]:
    channel = rpc.connect(pool.address, Credentials(pool.token_file.read_text().strip()), TIMING)
    stream = TrainStream(channel, 1, {})
    try:
        yield stream, BlobClient(channel, TIMING)
    finally:
        stream.cancel()
        channel.close()


def run(pool: Pool, program: program_pb2.StepProgram) -> job_pb2.Failed:
    """Runs a step of a program, as far as it goes; returns how it failed."""
    raw, rows = program.SerializeToString(), np.ones(4, np.float32)
    with job(pool) as (stream, blobs):
        blobs.upload([(reference(raw), raw), (reference(rows), rows)])
        stream.load(reference(raw))
        tensor = program_pb2.Tensor(name="x", dtype="float32", shape=rows.shape)
        stream.bind(job_pb2.Array(tensor=tensor, blob=reference(rows)))
        stream.run([[0, 1]])
        return stream.wait("failed").failed


TELLING = """
    prints_to_a_file prints_where_a_default_says reads_a_line_of_a_file reads_a_line_of_a_file_that_a_default_names
    writes_for_each_element_of_a_data_set a_graph_written_twice saves_tensors reads_lines
    reads_what_lies_behind_a_tensor writes_far_behind_a_tensor reads_what_lies_behind_its_updates
""".split()


@pytest.mark.parametrize("name", TELLING)
def test_hostile_program_on_a_pool(pool: Pool, tmp_path: Path, name: str) -> None:
    target = tmp_path / "target"
    case = next(case for case in hostile.HOSTILE if case.name == name)
    if name in hostile.READERS:
        target.write_text("a secret\n")
    failed = run(pool, case.build(str(target)))
    assert "a secret" not in failed.message
    assert failed.error == ProgramRefusedError.__name__, failed.message
    assert all(word in failed.message for word in case.words), failed.message
    assert [file.name for file in tmp_path.iterdir()] == (["target"] if name in hostile.READERS else [])


def in_a_process(name: str) -> subprocess.CompletedProcess[str]:
    """Runs a program of the corpus past admission, where it may take its process with it."""
    code = f"""
import tensorflow as tf
from fdt.program.step_program import load
from tests.helpers import hostile
print(load(dict(hostile.CORPUS)[{name!r}]("")).step(tf.constant(1.0), tf.ones([2]))[0].numpy())
"""
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)


# TensorFlow itself: what a refusal is worth.
@pytest.mark.thorough
@pytest.mark.parametrize("name", ["reads_what_lies_behind_a_tensor", "reads_what_lies_behind_its_updates"])
def test_a_program_would_read_its_workers_memory(name: str) -> None:
    ended = in_a_process(name)
    assert ended.returncode == 0, ended.stderr
    # One number is its own; what else lies there is not zeros alone.
    assert 1 < float(ended.stdout.split()[-1]) <= hostile.FLOATS_BEHIND


@pytest.mark.thorough
def test_a_forged_matrix_would_write_its_workers_memory() -> None:
    assert in_a_process("writes_far_behind_a_tensor").returncode == -signal.SIGSEGV


@pytest.mark.parametrize("name", [*hostile.WRITERS, *hostile.READERS])
def test_the_corpus_would_do_what_it_says(name: str, tmp_path: Path) -> None:
    """Past admission, with nothing else in its way: or a refusal would show nothing."""
    target = tmp_path / "target"
    if name in hostile.READERS:
        target.write_text("a secret\n")
    step = load(dict(hostile.CORPUS)[name](str(target))).step
    if name in hostile.READERS:
        with pytest.raises(tf.errors.InvalidArgumentError, match="a secret"):
            step(tf.constant(1.0), tf.ones([2]))
    else:
        step(tf.constant(1.0), tf.ones([2]))
        assert hostile.WRITTEN.encode() in b"".join(file.read_bytes() for file in tmp_path.iterdir())


def test_a_program_that_its_sender_could_replace(pool: Pool) -> None:
    """It was looked at, and then another was sent under its name: the workers read that one."""
    harmless = hostile.GraphDef()
    hostile.step(harmless)
    raw = hostile.of_graph(harmless).SerializeToString()
    ref = one_time(len(raw))
    with job(pool) as (stream, blobs):
        blobs.send(ref, [raw])
        stream.load(ref)
        failed = stream.wait("failed").failed
    assert failed.error == ProtocolError.__name__ and "SHA-256" in failed.message
