"""Cases: training loops of the script's own, around steps in tf.function."""

import numpy as np
import tensorflow as tf
from recording import BATCH, Results, case, digits, from_optimizer, from_weights, mlp
from tensorflow import keras

# Whole batches: another size is another graph for all of them, and what becomes of it other cases show.
NUM = 3 * 64
UNEVEN = NUM + 7
EPOCHS = 3


def batches(num: int = NUM, **options: object) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(digits(num)).shuffle(num, seed=5).batch(BATCH, **options)


def cross_entropy(**options: object) -> keras.losses.Loss:
    return keras.losses.SparseCategoricalCrossentropy(**options)


def outcome(model: keras.Model, optimizer: keras.optimizers.Optimizer, **arrays: object) -> Results:
    values = {f"history/{name}": np.asarray(value, np.float64) for name, value in arrays.items()}
    return {**values, **from_weights(model.get_weights()), **from_optimizer(optimizer)}


@case
def loop_strategy() -> Results:
    """As in TensorFlow's tutorial on strategies, on a machine with one device."""
    strategy = tf.distribute.MirroredStrategy()
    global_batch = BATCH * strategy.num_replicas_in_sync
    with strategy.scope():
        model, optimizer = mlp(), keras.optimizers.Adam()
        loss_of = cross_entropy(reduction="none")

    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(y, model(x, training=True)), global_batch_size=global_batch)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    @tf.function
    def distributed_train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        return strategy.reduce(tf.distribute.ReduceOp.SUM, strategy.run(train_step, args=(x, y)), axis=None)

    losses = []
    distributed = strategy.experimental_distribute_dataset(batches(drop_remainder=True))
    for _ in range(EPOCHS):
        losses.append(np.mean([distributed_train_step(x, y) for x, y in distributed]))
    return outcome(model, optimizer, loss=losses)


@case
def loop_metrics() -> Results:
    """As in TensorFlow's quick start: metrics inside the step, reset and read by the loop; a test step stays here."""
    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(), cross_entropy()
    names = ("train_loss", "test_loss")
    losses = {name: keras.metrics.Mean(name=name) for name in names}
    accuracies = {name: keras.metrics.SparseCategoricalAccuracy(name=name) for name in ("train", "test")}

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            loss = loss_of(y, predictions)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        losses["train_loss"](loss)
        accuracies["train"](y, predictions)

    @tf.function
    def test_step(x: tf.Tensor, y: tf.Tensor) -> None:
        predictions = model(x, training=False)
        losses["test_loss"](loss_of(y, predictions))
        accuracies["test"](y, predictions)

    seen = []
    for _ in range(EPOCHS):
        for metric in (*losses.values(), *accuracies.values()):
            metric.reset_state()
        for x, y in batches(UNEVEN):
            train_step(x, y)
        for x, y in tf.data.Dataset.from_tensor_slices(digits(100, start=900)).batch(32):
            test_step(x, y)
        seen.append([float(m.result()) for m in (*losses.values(), *accuracies.values())])
    return outcome(model, optimizer, seen=seen)


@case
def loop_returns() -> Results:
    """The step returns its loss, predictions, some of them, a count, a text and nothing; the loop computes with all."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.1, momentum=0.9), cross_entropy()
    accuracy = keras.metrics.SparseCategoricalAccuracy()

    @tf.function
    def train_step(batch: dict) -> dict:
        with tf.GradientTape() as tape:
            predictions = model(batch["x"], training=True)
            loss = loss_of(batch["y"], predictions)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        right = tf.equal(tf.argmax(predictions, 1), batch["y"])
        return {
            "loss": loss,
            "predictions": predictions,
            "even": tf.boolean_mask(predictions, batch["y"] % 2 == 0),
            "right": tf.reduce_sum(tf.cast(right, tf.int32)),
            "sum": tf.reduce_sum(predictions),
            "nothing": None,
            "first": (tf.constant("text"), tf.shape(predictions)[1:]),
        }

    totals, means, text = [], [], ""
    for _ in range(EPOCHS):
        total, losses, right, sums = 0.0, [], 0, []
        for x, y in batches(UNEVEN):
            result = train_step({"x": x, "y": y})
            total += result["loss"]
            losses.append(result["loss"])
            right += int(result["right"])
            sums.append(result["sum"].numpy())
            assert result["even"].shape == (np.sum(y % 2 == 0), 10), result["even"].shape
            sums.append(result["even"].numpy().sum() / 10)
            accuracy.update_state(y, result["predictions"])
            text = f"{result['first'][0].numpy().decode()} {result['first'][1].numpy()} {result['nothing']}"
        totals.append([float(total), float(tf.reduce_mean(losses)), float(np.mean(losses)), float(np.sum(sums))])
        means.append([right, float(accuracy.result())])
    assert text == "text [10] None", text
    return outcome(model, optimizer, totals=totals, means=means)


@case
def loop_clipped() -> Results:
    """Gradients clipped by their global norm, in a nested function; the rate is changed by the loop."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.5), cross_entropy(from_logits=False)

    @tf.function
    def gradients_of(x: tf.Tensor, y: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True)) + 1e-3 * tf.add_n(
                [tf.nn.l2_loss(v) for v in model.trainable_variables]
            )
        return loss, tape.gradient(loss, model.trainable_variables)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tuple:
        loss, gradients = gradients_of(x, y)
        gradients, norm = tf.clip_by_global_norm(gradients, 0.5)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss, norm

    seen = []
    for epoch in range(EPOCHS):
        optimizer.learning_rate = 0.5 / (1 + epoch)
        for x, y in batches():
            seen.append([float(value) for value in train_step(x, y)])
    return outcome(model, optimizer, seen=seen)


@case
def loop_sum() -> Results:
    """A loss that is a sum over rows, divided by a number of the script's own."""
    model, optimizer = mlp(), keras.optimizers.Adam(1e-2)
    loss_of = cross_entropy(reduction="none")

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = tf.nn.compute_average_loss(loss_of(y, model(x, training=True)), global_batch_size=BATCH)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return outcome(model, optimizer, seen=[float(train_step(x, y)) for _ in range(EPOCHS) for x, y in batches()])


@case
def loop_gan() -> Results:
    """Two optimizers, two tapes, one step; noise comes as an argument."""
    keras.utils.set_random_seed(3)
    generator = keras.Sequential([keras.Input((8,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(64, "sigmoid")])
    critic = keras.Sequential([keras.Input((64,)), keras.layers.Dense(24, "relu"), keras.layers.Dense(1)])
    of_generator, of_critic = keras.optimizers.Adam(1e-3), keras.optimizers.Adam(2e-3)
    loss_of = keras.losses.BinaryCrossentropy(from_logits=True)

    @tf.function
    def train_step(images: tf.Tensor, noise: tf.Tensor) -> tuple:
        with tf.GradientTape() as first, tf.GradientTape() as second:
            real, made = critic(images, training=True), critic(generator(noise, training=True), training=True)
            loss = loss_of(tf.ones_like(made), made)
            of_both = loss_of(tf.ones_like(real), real) + loss_of(tf.zeros_like(made), made)
        gradients = first.gradient(loss, generator.trainable_variables)
        of_generator.apply_gradients(zip(gradients, generator.trainable_variables, strict=True))
        gradients = second.gradient(of_both, critic.trainable_variables)
        of_critic.apply_gradients(zip(gradients, critic.trainable_variables, strict=True))
        return loss, of_both

    random, seen = np.random.RandomState(0), []
    for _ in range(EPOCHS):
        for x, _ in batches(UNEVEN):
            noise = random.normal(size=(len(x), 8)).astype("float32")
            seen.append([float(loss) for loss in train_step(x, noise)])
    return {**outcome(generator, of_generator, seen=seen), **from_weights(critic.get_weights(), "critic/")}


@case
def loop_by_hand() -> Results:
    """No Keras: tf.Module, momentum by hand, a count of steps, sums and means kept in variables."""

    class Linear(tf.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = tf.Variable(tf.random.stateless_normal([64, 10], [1, 2]) * 0.1, name="w")
            self.b = tf.Variable(tf.zeros([10]), name="b")
            self.speed = [tf.Variable(tf.zeros_like(v), trainable=False) for v in (self.w, self.b)]
            self.steps = tf.Variable(0, dtype=tf.int64, trainable=False)
            self.rows = tf.Variable(0, trainable=False)
            self.loss = tf.Variable(0.0, trainable=False)
            self.right = tf.Variable(0.0, trainable=False)

        @tf.function
        def step(self, x: tf.Tensor, y: tf.Tensor, rate: float = 0.1) -> tf.Tensor:
            with tf.GradientTape() as tape:
                logits = x @ self.w + self.b
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
            for v, speed, gradient in zip(
                (self.w, self.b), self.speed, tape.gradient(loss, [self.w, self.b]), strict=True
            ):
                speed.assign(0.9 * speed + gradient)
                v.assign_sub(rate * speed)
            self.steps.assign_add(1)
            self.rows.assign_add(tf.shape(x)[0])
            self.loss.assign_add(loss)
            self.right.assign_add(tf.reduce_sum(tf.cast(tf.equal(tf.argmax(logits, 1), y), tf.float32)))
            return loss

    model, seen = Linear(), []
    for _ in range(EPOCHS):
        model.loss.assign(0.0)
        model.right.assign(0.0)
        for x, y in batches():
            model.step(x, y, rate=0.2)
        seen.append([model.loss.numpy(), model.right.numpy()])
    counts = {"count/steps": model.steps.numpy(), "count/rows": model.rows.numpy()}
    values = from_weights([model.w.numpy(), model.b.numpy(), *(v.numpy() for v in model.speed)])
    return {**values, **counts, "history/seen": np.asarray(seen, np.float64)}


@case
def loop_types() -> Results:
    """Types that Horovod does not add up: a complex weight that trains, counts, a truth, a text; a text comes back."""
    parts = (tf.random.stateless_normal([64, 10], seed) * 0.1 for seed in ([1, 2], [3, 4]))
    w, spectrum = tf.Variable(tf.complex(*parts)), tf.Variable(tf.zeros([64], tf.complex64))
    steps, rows = tf.Variable(tf.constant(0, tf.int8)), tf.Variable(tf.constant(0, tf.uint32))
    even, text = tf.Variable(True), tf.Variable("")

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            logits = tf.abs(tf.cast(x, tf.complex64) @ w)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        w.assign_sub(tf.cast(0.5, w.dtype) * tape.gradient(loss, w))
        spectrum.assign_add(tf.reduce_mean(tf.signal.fft(tf.cast(x, tf.complex64)), 0))
        steps.assign_add(tf.constant(1, tf.int8))
        rows.assign_add(tf.cast(tf.shape(x)[0], tf.uint32))
        even.assign(~even)
        text.assign(text + "x\0")
        return loss, tf.strings.join(["label ", tf.strings.as_string(y[0])])

    told = [step(x, y) for _ in range(EPOCHS) for x, y in batches()]
    texts = b"|".join([text.numpy(), *(label.numpy() for _, label in told)])
    counts = {"count/steps": steps.numpy(), "count/rows": rows.numpy(), "count/even": int(even.numpy())}
    return {
        "history/loss": np.array([float(loss) for loss, _ in told]),
        "count/texts": np.frombuffer(texts, np.uint8),
        **counts,
        **from_weights([value.numpy().view("float32") for value in (w, spectrum)]),
    }


@case
def loop_variables_in_operations() -> Results:
    """Between steps, operations outside any function are given variables as they are."""
    w, b = tf.Variable(tf.random.stateless_normal([64, 10], [1, 2]) * 0.1), tf.Variable(tf.zeros([10]))

    @tf.function
    def step(w: tf.Variable, x: tf.Tensor, y: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, x @ w + b))
        for v, gradient in zip((w, b), tape.gradient(loss, [w, b]), strict=True):
            v.assign_sub(0.1 * gradient)

    seen = []
    for x, y in batches():
        step(w, x, y)
        logits = tf.nn.bias_add(tf.matmul(x, w), b)
        step(w, x, y)
        seen.append(
            [float(v) for v in (tf.reduce_sum(logits), tf.norm(b), tf.reduce_max(w), tf.size(tf.greater(w, 0.1)))]
        )
    return {"history/seen": np.array(seen), **from_weights([w.numpy(), b.numpy()])}


@case
def loop_several_steps() -> Results:
    """Two updates in one call, the second on the rest of the rows given; a learning rate schedule; a returned metric."""
    schedule = keras.optimizers.schedules.ExponentialDecay(0.2, 3, 0.9)
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(schedule, momentum=0.9), cross_entropy()
    mean = keras.metrics.Mean()

    @tf.function(reduce_retracing=True)
    def train_steps(first: tuple, second: tuple) -> tf.Tensor:
        for x, y in (first, second):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            optimizer.apply_gradients(
                zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
            )
            mean.update_state(loss)
        return mean.result()

    seen = []
    data = list(batches(drop_remainder=True))
    for _ in range(EPOCHS):
        for number in range(len(data) - 1):
            seen.append(float(train_steps(data[number], data[number + 1])))
    return outcome(model, optimizer, seen=seen)


@case
def loop_signature() -> Results:
    """A signature, lists in place of tensors, a scalar that is data, an argument that is a model; NumPy batches."""
    model, optimizer = mlp(), keras.optimizers.Adam(1e-2)
    shapes = [tf.TensorSpec([None, 64], tf.float32), tf.TensorSpec([None], tf.int64), tf.TensorSpec([], tf.float32)]

    @tf.function(input_signature=shapes)
    def declared(x: tf.Tensor, y: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        return update(model, x, y, weight)

    @tf.function
    def update(net: keras.Model, x: tf.Tensor, y: tf.Tensor, weight: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = weight * tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, net(x)))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, net.trainable_variables), net.trainable_variables, strict=True)
        )
        return loss

    x, y = digits(NUM)
    seen = []
    for start in range(0, NUM, BATCH):
        seen.append(float(declared(x[start : start + BATCH], y[start : start + BATCH].tolist(), 0.5)))
        seen.append(float(update(model, x[start : start + BATCH], y[start : start + BATCH], np.float32(start / NUM))))
    return outcome(model, optimizer, seen=seen)


@case
def loop_penalty() -> Results:
    """A penalty on gradients by the input: a tape inside a tape, whose gradients are none of the step's."""
    model, optimizer = mlp(), keras.optimizers.Adam(1e-2)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                losses = keras.losses.sparse_categorical_crossentropy(y, model(x, training=True))
            slope = inner.gradient(losses, x)
            loss = tf.reduce_mean(losses + 0.1 * tf.reduce_sum(tf.square(slope), 1))
        optimizer.apply_gradients(
            zip(outer.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    return outcome(model, optimizer, seen=[float(train_step(x, y)) for _ in range(EPOCHS) for x, y in batches()])


@case
def loop_checkpoint() -> Results:
    """Saved while it trains, gone back to, and gone on with; then `fit` on the same model, then the loop again."""
    import tempfile

    model, optimizer, loss_of = mlp(), keras.optimizers.Adam(1e-2), cross_entropy()
    checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer, step=tf.Variable(0))

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    seen = []

    def epoch() -> None:
        for x, y in batches():
            seen.append(float(train_step(x, y)))
            checkpoint.step.assign_add(1)

    with tempfile.TemporaryDirectory() as directory:
        manager = tf.train.CheckpointManager(checkpoint, directory, max_to_keep=2)
        epoch()
        manager.save()
        epoch()
        checkpoint.restore(manager.latest_checkpoint)
        epoch()
    model.compile(optimizer, "sparse_categorical_crossentropy")
    model.fit(*digits(NUM), batch_size=BATCH, epochs=1, verbose=0)
    epoch()
    predictions = model.predict(digits(20)[0], verbose=0)
    return {**outcome(model, optimizer, seen=seen), "predict/0": predictions, "count/step": checkpoint.step.numpy()}


@case
def loop_in_graph() -> Results:
    """The loop over a few updates is in the graph."""
    model, optimizer, loss_of = mlp(), keras.optimizers.SGD(0.05), cross_entropy()
    optimizer.build(model.trainable_variables)
    steps, rows = tf.Variable(0), tf.Variable(0.0)

    @tf.function
    def train_steps(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss = tf.constant(0.0)
        for _ in tf.range(3):
            with tf.GradientTape() as tape:
                loss = loss_of(y, model(x, training=True))
            steps.assign_add(1)
            rows.assign_add(tf.cast(tf.shape(x)[0], tf.float32))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    seen = [float(train_steps(x, y)) for x, y in batches()]
    return {**outcome(model, optimizer, seen=seen), "count/steps": steps.numpy(), "count/rows": rows.numpy()}


@case
def loop_static() -> Results:
    """The step's Python needs the number of rows; the last batch has one that no two workers can share."""
    model, optimizer = mlp(), keras.optimizers.Adam(1e-2)
    loss_of = cross_entropy(reduction="none")

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tuple:
        with tf.GradientTape() as tape:
            losses = loss_of(y, model(x, training=True))
            loss = tf.reduce_sum(losses) / int(x.shape[0])
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss, losses

    seen, rows = [], []
    for _ in range(EPOCHS):
        for x, y in batches():
            loss, losses = train_step(x, y)
            seen.append([float(loss), float(tf.reduce_max(losses))])
            rows.append(len(losses))
    return {**outcome(model, optimizer, seen=seen), "count/rows": np.array(rows)}


@case
def loop_random() -> Results:
    """Dropout, and random numbers of the step's own."""
    layers = [
        keras.Input((64,)),
        keras.layers.Dense(32, "relu"),
        keras.layers.Dropout(0.3, seed=4),
        keras.layers.Dense(10),
    ]
    model, optimizer = keras.Sequential(layers), keras.optimizers.Adam(1e-2)
    numbers = tf.random.Generator.from_seed(11)
    loss_of = cross_entropy(from_logits=True)

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        x = x + 0.05 * numbers.normal(tf.shape(x))
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
        )
        return loss

    seen = [float(train_step(x, y)) for _ in range(EPOCHS) for x, y in batches()]
    return outcome(model, optimizer, seen=seen)


class SumOfActivity(keras.layers.Layer):
    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        self.add_loss(1e-3 * tf.reduce_sum(inputs))
        return inputs


@case
def loop_losses_of_layers() -> Results:
    """A layer adds a sum over the batch; the loop adds it to its mean."""
    layers = [keras.Input((64,)), keras.layers.Dense(16, activation="relu"), SumOfActivity(), keras.layers.Dense(10)]
    model, optimizer = keras.Sequential(layers), keras.optimizers.Adam(0.01)
    loss_of, mean = cross_entropy(from_logits=True), keras.metrics.Mean()

    @tf.function
    def train_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
            loss += sum(model.losses)
        optimizer.apply_gradients(
            zip(tape.gradient(loss, model.trainable_weights), model.trainable_weights, strict=True)
        )
        mean.update_state(loss)
        return loss

    losses = [float(train_step(x, y)) for _ in range(EPOCHS) for x, y in batches()]
    return outcome(model, optimizer, loss=losses, mean=mean.result())
