"""Cases: graphs and sessions of TensorFlow 1."""

import tempfile
from collections.abc import Iterator

import numpy as np
import tensorflow as tf
from recording import BATCH, Results, case, digits

v1 = tf.compat.v1
# Whole batches, but for two cases: another size is another graph.
EVEN = 4 * 64
UNEVEN = EVEN + 3
EPOCHS = 3


def batches(num: int = EVEN) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    x, y = digits(num)
    for begin in range(0, num, BATCH):
        yield x[begin : begin + BATCH], y[begin : begin + BATCH]


class Net:
    """64 -> 24 -> 10, in the default graph; mean cross-entropy."""

    def __init__(self, x: tf.Tensor | None = None, y: tf.Tensor | None = None):
        v1.set_random_seed(3)
        self.x = v1.placeholder(tf.float32, [None, 64]) if x is None else x
        self.y = v1.placeholder(tf.int64, [None]) if y is None else y
        with v1.variable_scope("net"):
            hidden = tf.nn.relu(tf.matmul(self.x, v1.get_variable("w1", [64, 24])) + v1.Variable(tf.zeros([24])))
            self.logits = tf.matmul(hidden, v1.get_variable("w2", [24, 10])) + v1.Variable(tf.zeros([10]))
        self.losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=self.y, logits=self.logits)
        self.loss = tf.reduce_mean(self.losses)
        self.right = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(self.logits, 1), self.y), tf.float32))


def train(net: Net, step: object, session: v1.Session, **feeds: object) -> Results:
    """Runs the step on all batches; returns every loss, and all variables at the end."""
    losses = []
    for _ in range(EPOCHS):
        for x, y in batches():
            losses.append(session.run([net.loss, step], {net.x: x, net.y: y, **feeds})[0])
    return {"history/loss": np.array(losses), **variables(session)}


def variables(session: v1.Session) -> Results:
    return {f"weights/{v.name}": value for v in v1.global_variables() for value in [session.run(v)]}


@case
def session_update_ops() -> Results:
    """Assignments in a collection, run with each step: a collection has them beside the variables."""
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        slow = v1.get_variable("slow", [], initializer=v1.zeros_initializer(), trainable=False)
        v1.add_to_collection(v1.GraphKeys.UPDATE_OPS, v1.assign(slow, 0.8 * slow + 0.2 * net.loss))
        with tf.control_dependencies(v1.get_collection(v1.GraphKeys.UPDATE_OPS)):
            step = v1.train.MomentumOptimizer(0.05, 0.9).minimize(net.loss)
        session.run(v1.global_variables_initializer())
        return train(net, step, session)


@case
def session_feed() -> Results:
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        count = v1.train.get_or_create_global_step()
        step = v1.train.MomentumOptimizer(0.05, 0.9).minimize(net.loss, global_step=count)
        session.run(v1.global_variables_initializer())
        results = train(net, step, session)
        x, y = digits(70, start=1000)
        right = net.right.eval({net.x: x, net.y: y})
        return {**results, "evaluate/accuracy": right, "count/steps": session.run(count)}


@case
def session_of_means_divided() -> Results:
    """A part of the loss is a mean divided by another, as where values are missing; it is fetched too."""
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        known = tf.cast(net.x > 0.2, tf.float32)
        missed = tf.reduce_mean(known[:, :10] * (net.logits - 1) ** 2) / tf.reduce_mean(known[:, :10])
        step = v1.train.AdamOptimizer(0.01).minimize(net.loss + 10.0 * missed)
        session.run(v1.global_variables_initializer())
        return train(net, (step, missed), session)


@case
def session_of_unknown_ranks() -> Results:
    """Of what an array of tensors gives the graph knows no rank; it is fetched."""
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        rows = tf.TensorArray(tf.float32, size=0, dynamic_size=True, infer_shape=False)
        written = tf.while_loop(
            lambda n, _: n < tf.shape(net.logits)[0], lambda n, rows: (n + 1, rows.write(n, net.logits[n])), (0, rows)
        )[1]
        logits = written.stack()
        step = v1.train.GradientDescentOptimizer(0.1).minimize(net.loss + 0.1 * tf.reduce_mean(logits**2))
        session.run(v1.global_variables_initializer())
        return train(net, (step, tf.reduce_sum(logits), logits), session)


@case
def session_of_rows_that_meet() -> Results:
    """Each row less the mean of all; numbers are drawn besides, which hide it from who compares parts of a batch."""
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        apart = net.logits - tf.reduce_mean(net.logits, 0) + 0.0 * tf.random.normal(tf.shape(net.logits))
        step = v1.train.AdamOptimizer(0.01).minimize(net.loss + tf.reduce_mean(apart**2))
        session.run(v1.global_variables_initializer())
        return train(net, (step, net.loss), session)


@case
def session_clipped_decayed_averaged() -> Results:
    with tf.Graph().as_default(), v1.Session() as session:
        net, count = Net(), v1.train.get_or_create_global_step()
        rate = v1.train.exponential_decay(0.02, count, 4, 0.9, staircase=True)
        optimizer = v1.train.AdamOptimizer(rate)
        gradients, ours = zip(*optimizer.compute_gradients(net.loss), strict=True)
        clipped, _ = tf.clip_by_global_norm(gradients, 0.5)
        update = optimizer.apply_gradients(zip(clipped, ours, strict=True), global_step=count)
        average = tf.train.ExponentialMovingAverage(0.9)
        with tf.control_dependencies([update]):
            step = average.apply(ours)
        session.run(v1.global_variables_initializer())
        return train(net, step, session)


@case
def session_changed_between_steps() -> Results:
    """The script assigns, and feeds a rate; what it looks at in between is the newest."""
    with tf.Graph().as_default(), v1.Session() as session:
        net, rate = Net(), v1.placeholder(tf.float32, [])
        step = v1.train.GradientDescentOptimizer(rate).minimize(net.loss)
        weights = v1.trainable_variables()[0]
        halve = weights.assign(weights * 0.5)
        session.run(v1.global_variables_initializer())
        norms = []
        for number in range(EPOCHS):
            for x, y in batches():
                session.run(step, {net.x: x, net.y: y, rate: 0.1 / (number + 1)})
            norms.append(np.linalg.norm(session.run(weights)))
            session.run(halve)
        return {"weights/norms": np.array(norms), **variables(session)}


@case
def session_monitored() -> Results:
    """Two sessions, the second goes on from the first one's checkpoint."""
    losses: list[float] = []
    with tempfile.TemporaryDirectory() as directory:
        for limit in (7, 12):
            with tf.Graph().as_default():
                net, count = Net(), v1.train.get_or_create_global_step()
                step = v1.train.AdagradOptimizer(0.1).minimize(net.loss, global_step=count)
                hooks = [v1.train.StopAtStepHook(last_step=limit), v1.train.NanTensorHook(net.loss)]
                with v1.train.MonitoredTrainingSession(
                    checkpoint_dir=directory, hooks=hooks, save_checkpoint_steps=5, save_summaries_steps=None
                ) as session:
                    while not session.should_stop():
                        for x, y in batches():
                            if session.should_stop():
                                break
                            losses.append(session.run([net.loss, step], {net.x: x, net.y: y})[0])
        reader = tf.train.load_checkpoint(directory)
        kept = {f"weights/{name}": reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    return {"history/loss": np.array(losses), **kept}


@case
def session_of_one_row() -> Results:
    """The graph is made for batches of one row; a feed that was forgotten is named as ever."""
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net(v1.placeholder(tf.float32, [1, 64], "pixels"), v1.placeholder(tf.int64, [1]))
        state = tf.tanh(net.logits + tf.zeros([1, 10]))
        loss = tf.reduce_mean(tf.reshape(state, [10]) ** 2) + net.loss
        step = v1.train.GradientDescentOptimizer(0.05).minimize(loss)
        session.run(v1.global_variables_initializer())
        x, y = digits(12)
        losses = [session.run([loss, step], {net.x: x[n : n + 1], net.y: y[n : n + 1]})[0] for n in range(12)]
        try:
            session.run(step, {net.y: y[:1]})
            named = False
        except tf.errors.InvalidArgumentError as error:
            named = "placeholder tensor 'pixels'" in error.message
        return {"history/loss": np.array(losses), "count/named": np.array(named), **variables(session)}


@case
def session_data_set() -> Results:
    """The graph takes its batches from an iterator, until there are no more."""
    with tf.Graph().as_default(), v1.Session() as session:
        data = tf.data.Dataset.from_tensor_slices(digits(UNEVEN)).shuffle(50, seed=2).batch(BATCH)
        iterator = v1.data.make_initializable_iterator(data)
        net = Net(*iterator.get_next())
        step = v1.train.RMSPropOptimizer(0.005).minimize(net.loss)
        session.run(v1.global_variables_initializer())
        losses = []
        for _ in range(EPOCHS):
            session.run(iterator.initializer)
            while True:
                try:
                    losses.append(session.run((step, net.loss, net.y))[1])
                except tf.errors.OutOfRangeError:
                    break
        return {"history/loss": np.array(losses), **variables(session)}


@case
def session_two_steps() -> Results:
    """Two optimizers in turn, each for variables of its own; rows are fetched too."""
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        first, *others = v1.trainable_variables("net")
        one = v1.train.GradientDescentOptimizer(0.1).minimize(tf.reduce_sum(net.losses) / 64.0, var_list=[first])
        other = v1.train.AdamOptimizer(0.01).minimize(net.loss, var_list=others)
        session.run(v1.global_variables_initializer())
        rows = []
        for x, y in batches(UNEVEN):
            fetched = session.run({"rows": net.losses, "step": one}, {net.x: x, net.y: y})
            rows.append(fetched["rows"])
            session.run(other, {net.x: x, net.y: y})
        return {"history/losses": np.concatenate(rows), **variables(session)}


@case
def session_embedding() -> Results:
    """A table's gradient is sparse; the net is a loop of the graph; the loss is a sum."""
    with tf.Graph().as_default(), v1.Session() as session:
        v1.set_random_seed(4)
        words, label = v1.placeholder(tf.int32, [None, 5]), v1.placeholder(tf.float32, [None])
        table = v1.get_variable("table", [20, 6])
        mixing = v1.get_variable("mixing", [6, 6])
        parts = tf.transpose(tf.nn.embedding_lookup(table, words), [1, 0, 2])
        _, state = tf.while_loop(
            lambda number, state: number < 5,
            lambda number, state: (number + 1, tf.tanh(parts[number] + tf.matmul(state, mixing))),
            (0, tf.zeros_like(parts[0])),
        )
        loss = tf.reduce_sum(tf.nn.sigmoid_cross_entropy_with_logits(labels=label, logits=tf.reduce_sum(state, 1)))
        step = v1.train.AdagradOptimizer(0.05).minimize(loss)
        session.run(v1.global_variables_initializer())
        random, losses = np.random.RandomState(5), []
        for _ in range(8):
            feeds = {words: random.randint(0, 20, (30, 5)), label: random.randint(0, 2, 30)}
            losses.append(session.run([loss, step], feeds)[0])
        return {"history/loss": np.array(losses), **variables(session)}


@case
def session_by_hand() -> Results:
    """tf.gradients, and updates without an optimizer."""
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        ours = v1.trainable_variables()
        penalised = net.loss + 1e-3 * tf.add_n([tf.nn.l2_loss(v) for v in ours])
        updates = [v1.assign_sub(v, 0.1 * g) for v, g in zip(ours, tf.gradients(penalised, ours), strict=True)]
        session.run(v1.global_variables_initializer())
        return train(net, tf.group(*updates), session)


@case
def session_fetches_what_it_changes() -> Results:
    """Variables of the old kind: a fetched one is as its update leaves it, what is computed of it comes from before."""
    v1.disable_resource_variables()
    try:
        with tf.Graph().as_default(), v1.Session() as session:
            net, count = Net(), v1.train.get_or_create_global_step()
            weights = v1.trainable_variables()[0]
            step = v1.train.GradientDescentOptimizer(0.1).minimize(net.loss, global_step=count)
            slope, target = v1.Variable(1.0), v1.placeholder(tf.float32, [None])
            error = tf.reduce_mean(tf.square(slope * target - 3.0 * target))
            gradient = tf.reduce_mean((slope * target - 3.0 * target) * target)
            by_hand = slope.assign(slope - 0.1 * gradient)
            clip = [v.assign(tf.clip_by_value(v, -0.2, 0.2)) for v in v1.trainable_variables()[:2]]
            session.run(v1.global_variables_initializer())
            seen = []
            for x, y in batches():
                loss, w, steps, _ = session.run([net.loss, weights, count, step], {net.x: x, net.y: y})
                hand = session.run([by_hand, error, slope], {target: np.arange(4)})
                seen.append([loss, np.abs(w).sum(), steps, *hand])
                session.run(clip)
            return {"history/seen": np.array(seen), **variables(session)}
    finally:
        v1.enable_resource_variables()


@case
def session_summaries() -> Results:
    """What is written for TensorBoard is computed where the script runs."""
    written = []
    with tf.Graph().as_default(), v1.Session() as session:
        net = Net()
        step = v1.train.GradientDescentOptimizer(0.1).minimize(net.loss)
        v1.summary.scalar("loss", net.loss)
        v1.summary.histogram("logits", net.logits)
        v1.summary.histogram("weights", v1.trainable_variables()[0])
        v1.summary.histogram("fed", net.x)
        merged = v1.summary.merge_all()
        session.run(v1.global_variables_initializer())
        for x, y in batches():
            _, summary, labels = session.run([step, merged, net.y], {net.x: x, net.y: y})
            values = v1.Summary.FromString(summary).value
            sums = [value.histo.sum for value in values[1:]]
            written.append([values[0].simple_value, values[1].histo.num, *sums, *labels[:3]])
        return {"history/written": np.array(written), **variables(session)}


@case
def session_feeds_variables() -> Results:
    """Variables of the old kind, by themselves and by their names: fed while others train, and in a search along a line."""
    v1.disable_resource_variables()
    with tf.Graph().as_default(), v1.Session() as session:
        net, rate = Net(), v1.Variable(0.2, trainable=False, name="rate")
        table = v1.Variable(np.arange(4.0, dtype=np.float32), trainable=False)
        looked_up = tf.gather(table, [1, 2])
        step = v1.train.GradientDescentOptimizer(rate).minimize(net.loss)
        weights, biases = v1.trainable_variables()[:2]
        gradient = v1.gradients(net.loss, weights)[0]
        session.run(v1.global_variables_initializer())
        losses, searched = [], []
        for epoch in range(EPOCHS):
            for x, y in batches():
                feeds = {net.x: x, net.y: y, "rate:0": 0.1 * epoch}
                losses.append(session.run([net.loss, step], feeds)[0])
            feeds, place = {net.x: x, net.y: y}, session.run(weights)
            for _ in range(3):
                loss, slope = session.run([net.loss, gradient], {**feeds, weights: place})
                place = place - 0.5 * slope
                searched.append([loss, *session.run([net.loss, rate], {**feeds, biases: np.ones(24), rate: 7.0})])
            session.run(weights.assign(place))
        # What TensorFlow 2 makes is no buffer, there either: a feed takes the place of one read.
        new = tf.Variable(2.0, name="new")
        session.run(new.initializer)
        doubled = new * 2.0
        searched[-1].append(session.run(doubled, {new: 5.0}))
        looks = [session.run(looked_up, {table: np.full(4, 5.0)}), session.run(looked_up), session.run("rate:0")]
        seen = np.concatenate([np.ravel(each) for each in (losses, *searched, *looks)])
        return {"history/seen": seen, **variables(session)}
