"""Sentiment of made sentences by a bidirectional LSTM: strings, a vocabulary, masks.

Sentences are made from words that speak for or against, some of them negated ("not dull"). The model itself splits them
into words and looks these up, so it takes strings.

    python lstm_text.py
    fdt run --workers 4 lstm_text.py
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from keras import layers

GOOD = "bright moving clever warm funny honest tender fresh gripping graceful".split()
BAD = "dull empty cold tired flat clumsy noisy stale hollow slow".split()
PLAIN = "the film story plot actor scene music was and a with in of one long short old new".split()


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--words", type=int, default=60, help="of the longest sentence")
    parser.add_argument("--embedding", type=int, default=128)
    parser.add_argument("--units", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def sentence(random, max_words):
    """Returns a sentence, and 1 if more speaks for than against."""
    words, votes = [], 0
    for _ in range(random.integers(max_words // 3, max_words)):
        if random.random() < 0.7:
            words.append(PLAIN[random.integers(len(PLAIN))])
            continue
        vote, negated = random.choice((-1, 1)), random.random() < 0.3
        word = (GOOD if vote > 0 else BAD)[random.integers(len(GOOD))]
        words += ["not", word] if negated else [word]
        votes += -vote if negated else vote
    return " ".join(words), int(votes > 0)


def load_data(arguments):
    """Returns train and test sentences and their labels."""
    random = np.random.default_rng(0)
    texts, labels = zip(*(sentence(random, arguments.words) for _ in range(arguments.sentences)), strict=True)
    cut = arguments.sentences * 9 // 10
    texts, labels = np.array(texts), np.array(labels, "float32")
    return texts[:cut], labels[:cut], texts[cut:], labels[cut:]


def batches(texts, labels, batch_size, shuffle):
    """Returns batches of texts [batch] and labels [batch]."""
    data = tf.data.Dataset.from_tensor_slices((texts, labels))
    if shuffle:
        data = data.shuffle(len(texts), seed=0)
    return data.batch(batch_size).prefetch(tf.data.AUTOTUNE)


def build_model(arguments, vectorizer):
    inputs = keras.Input((), dtype="string")
    x = vectorizer(inputs)
    x = layers.Embedding(vectorizer.vocabulary_size(), arguments.embedding, mask_zero=True)(x)
    x = layers.Bidirectional(layers.LSTM(arguments.units, return_sequences=True))(x)
    x = layers.Bidirectional(layers.LSTM(arguments.units))(x)
    x = layers.Dropout(0.5)(x)
    return keras.Model(inputs, layers.Dense(1)(x))


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    x_train, y_train, x_test, y_test = load_data(arguments)
    vectorizer = layers.TextVectorization(max_tokens=1000, output_sequence_length=2 * arguments.words)
    vectorizer.adapt(x_train)

    model = build_model(arguments, vectorizer)
    model.compile(
        optimizer=keras.optimizers.Adam(arguments.learning_rate),
        loss=keras.losses.BinaryCrossentropy(from_logits=True),
        metrics=[keras.metrics.BinaryAccuracy(threshold=0.0)],
    )
    history = model.fit(batches(x_train, y_train, arguments.batch_size, True), epochs=arguments.epochs, verbose=2)
    _, accuracy = model.evaluate(batches(x_test, y_test, arguments.batch_size, False), verbose=0)
    print(f"final loss {history.history['loss'][-1]:.4f}  test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
