"""Cases: loops whose steps do more than compute on a batch, or on one that cannot be divided."""

import pathlib
import random
import shutil
import tempfile

import numpy as np
import tensorflow as tf
from loops import EPOCHS, UNEVEN, batches, cross_entropy, outcome
from recording import Results, case, mlp
from tensorflow import keras


@case
def loop_iterator() -> Results:
    """The step takes its batch from an iterator: one that it is given anew each epoch, and in another step a global one."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(), cross_entropy()
    endless = iter(batches().repeat())

    def update(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True)
        )
        return loss

    @tf.function
    def inner(iterator: tf.data.Iterator) -> tf.Tensor:
        return update(*next(iterator))

    @tf.function
    def given(iterator: tf.data.Iterator) -> tf.Tensor:
        return inner(iterator)

    @tf.function
    def own(scale: tf.Tensor) -> tf.Tensor:
        x, y = endless.get_next()
        also, _ = next(endless)
        return update((x[:32] + also[:32]) * scale, y[:32])

    losses, counts = [], []
    for _ in range(EPOCHS):
        steps, iterator = 0, iter(batches())
        while True:
            try:
                losses.append(given(iterator))
            except tf.errors.OutOfRangeError:
                break
            steps += 1
        counts.append(steps)
    return outcome(model, optimizer, losses=[float(loss) for loss in losses], steps=counts)


@case
def loop_summaries() -> Results:
    """The step writes summaries; they are read back from the file."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(), cross_entropy()
    directory = tempfile.mkdtemp()
    writer = tf.summary.create_file_writer(directory)
    at = tf.Variable(0, dtype=tf.int64)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        with writer.as_default(step=at):
            tf.summary.scalar("loss", loss)
            tf.summary.scalar("mean", tf.reduce_mean(x), step=2 * at)

    for _ in range(EPOCHS):
        for x, y in batches():
            train_step(x, y)
            at.assign_add(1)
    writer.close()
    events = [
        (event.step, value.tag, float(tf.make_ndarray(value.tensor)))
        for path in sorted(tf.io.gfile.glob(f"{directory}/*"))
        for event in tf.compat.v1.train.summary_iterator(path)
        for value in event.summary.value
    ]
    shutil.rmtree(directory)
    numbers = {tag: [value for _, name, value in events if name == tag] for tag in ("loss", "mean")}
    return outcome(model, optimizer, **numbers, written_at=[step for step, _, _ in events])


@case
def loop_drawn_in_python() -> Results:
    """The step's Python draws numbers while it is traced, and the script goes on drawing afterwards."""
    np.random.seed(7)
    random.seed(7)
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.1), cross_entropy()

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        scale = np.random.uniform(0.5, 1.5, x.shape[1:]).astype("float32") * random.uniform(0.9, 1.1)
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x * scale, training=True))
        optimizer.apply(tape.gradient(loss, model.trainable_weights), model.trainable_weights)
        return loss

    drawn, losses = [], []
    for x, y in batches(3 * 64):
        losses.append(float(train_step(x, y)))
        drawn += [np.random.random(), random.random()]
    return outcome(model, optimizer, losses=losses, drawn=drawn)


@case
def loop_printed() -> Results:
    """What the step prints is of the whole batch, and printed here."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(), cross_entropy()
    written = pathlib.Path(tempfile.mkdtemp()) / "printed"

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = loss_of(y, predictions)
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        to = f"file://{written}"
        tf.print("loss:", loss, "first:", predictions[0, :2], "highest:", tf.reduce_max(predictions), output_stream=to)
        tf.print("of shape", tf.shape(x), "norm", tf.linalg.global_norm(gradients), output_stream=to, summarize=-1)

    for x, y in batches():
        train_step(x, y)
    words = written.read_text().replace("[", " ").replace("]", " ").split()
    shutil.rmtree(written.parent)
    numbers = [float(word) for word in words if word[0].isdigit()]
    return outcome(model, optimizer, printed=numbers, words=[len(words) - len(numbers)])


@case
def loop_graphs() -> Results:
    """Batches of graphs: nodes, which graph each belongs to, a matrix of their edges, and a label for each graph."""
    random_numbers = np.random.RandomState(5)
    weights, optimizer = tf.Variable(tf.zeros([4, 3])), keras.optimizers.Adam(0.1)

    @tf.function(reduce_retracing=True)
    def train_step(nodes: tf.Tensor, graph: tf.Tensor, edges: tf.SparseTensor, labels: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            pooled = tf.math.segment_mean(tf.sparse.sparse_dense_matmul(edges, nodes), graph)
            losses = tf.nn.softmax_cross_entropy_with_logits(labels, pooled @ weights)
            loss = tf.reduce_mean(losses)
        optimizer.apply([tape.gradient(loss, weights)], [weights])
        return loss

    losses = []
    for _ in range(6):
        sizes = random_numbers.randint(3, 9, 8)
        num_nodes = int(sizes.sum())
        edges = tf.sparse.from_dense((random_numbers.rand(num_nodes, num_nodes) > 0.8).astype("float32"))
        nodes = tf.constant(random_numbers.rand(num_nodes, 4), tf.float32)
        labels = tf.one_hot(random_numbers.randint(0, 3, 8), 3)
        losses.append(float(train_step(nodes, tf.constant(np.repeat(np.arange(8), sizes)), edges, labels)))
    return {"history/loss": np.array(losses), "weights/0": weights.numpy()}


@case
def loop_over_data() -> Results:
    """Whole epochs in one function: loops over data sets, in a loop over epochs, and over elements of an iterator."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(), cross_entropy()
    mean = keras.metrics.Mean()

    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_weights)
        optimizer.apply_gradients(zip(gradients, model.trainable_weights, strict=True))
        mean.update_state(loss)
        return loss

    @tf.function
    def epoch(data: tf.data.Dataset, least: float) -> tuple[tf.Tensor, tf.Tensor]:
        total, count = 0.0, 0
        for x, y in data:
            loss = train_step(x, y)
            total += loss
            if loss > least:
                count += 1
        return total, count

    @tf.function
    def epochs(data: tf.data.Dataset) -> None:
        for _ in tf.range(2):
            for x, y in data:
                train_step(x, y)

    @tf.function
    def steps(iterator: tf.data.Iterator) -> tf.Tensor:
        last = 0.0
        for _ in tf.range(5):
            last = train_step(*next(iterator))
        return last

    seen = [float(value) for _ in range(EPOCHS) for value in epoch(batches(UNEVEN), 2.2)]
    epochs(batches())
    seen += [float(steps(iter(batches().repeat()))), float(mean.result())]
    return outcome(model, optimizer, seen=seen)


@case
def loop_over_places() -> Results:
    """A loop in the graph, over places that a part of the batch has not got."""
    weights, optimizer = tf.Variable(np.linspace(0.1, 0.9, 30), dtype=tf.float32), keras.optimizers.Adam(0.01)

    @tf.function
    def train_step(places: tf.Tensor, answers: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.constant(0.0)
            for i in tf.range(30):
                known = tf.clip_by_value(weights[places[i]], 0.01, 0.99)
                loss -= answers[i] * tf.math.log(known) + (1 - answers[i]) * tf.math.log(1 - known)
        optimizer.apply_gradients([(tf.convert_to_tensor(tape.gradient(loss, weights)), weights)])
        return loss

    draw = np.random.default_rng(0)
    losses = [
        float(train_step(draw.permutation(30).astype("int32"), draw.integers(0, 2, 30).astype("float32")))
        for _ in range(6)
    ]
    return {"history/loss": np.array(losses), "weights/0": weights.numpy()}
