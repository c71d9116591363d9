"""CIFAR-10: ResNet-20 (He et al., 2015, arXiv:1512.03385, section 4.2) on 50,000 colour images of 32x32 pixels.

The augmentation is part of the model. Keras downloads the images (170 MB) on the first run and keeps them in ~/.keras.

    python cifar10_resnet.py --epochs 100
    fdt run --workers 4 cifar10_resnet.py --epochs 100
"""

import argparse

import keras
from keras import layers


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--learning-rate", type=float, default=0.1)
    parser.add_argument("--limit", type=int, help="use only so many of the training and test images")
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


def convolution(x, filters, size=3, strides=1):
    """Convolution without bias, then batch normalization."""
    x = layers.Conv2D(
        filters,
        size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
        kernel_regularizer=keras.regularizers.L2(1e-4),
    )(x)
    return layers.BatchNormalization()(x)


def residual_block(x, filters, strides):
    """Two convolutions and a shortcut around them; the first may halve the image."""
    shortcut = x if strides == 1 else convolution(x, filters, size=1, strides=strides)
    x = layers.ReLU()(convolution(x, filters, strides=strides))
    x = convolution(x, filters)
    return layers.ReLU()(layers.Add()([x, shortcut]))


def build_model(num_blocks=3):
    """Returns a ResNet with 6 * num_blocks + 2 weighted layers; takes uint8 images as they are."""
    inputs = keras.Input((32, 32, 3), dtype="uint8")
    x = layers.Rescaling(1 / 127.5, offset=-1)(inputs)
    x = layers.RandomFlip("horizontal")(x)
    x = layers.RandomTranslation(4 / 32, 4 / 32, fill_mode="constant")(x)
    x = layers.ReLU()(convolution(x, 16))
    for stage, filters in enumerate((16, 32, 64)):
        for block in range(num_blocks):
            x = residual_block(x, filters, strides=2 if stage > 0 and block == 0 else 1)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(10, kernel_initializer="he_normal")(x))


def learning_rate(base, num_steps):
    """Warm-up over the first twentieth of the steps, then a cosine down to nothing."""
    warmup_steps = num_steps // 20
    return keras.optimizers.schedules.CosineDecay(
        initial_learning_rate=base / 10,
        decay_steps=num_steps - warmup_steps,
        warmup_target=base,
        warmup_steps=warmup_steps,
    )


def main():
    arguments = parse_arguments()
    keras.utils.set_random_seed(arguments.seed)
    (x_train, y_train), (x_test, y_test) = keras.datasets.cifar10.load_data()
    x_train, y_train = x_train[: arguments.limit], y_train[: arguments.limit]
    x_test, y_test = x_test[: arguments.limit], y_test[: arguments.limit]

    num_steps = arguments.epochs * -(-len(x_train) // arguments.batch_size)
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.SGD(learning_rate(arguments.learning_rate, num_steps), momentum=0.9, nesterov=True),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    history = model.fit(
        x_train,
        y_train,
        batch_size=arguments.batch_size,
        epochs=arguments.epochs,
        validation_data=(x_test, y_test),
        verbose=2,
    )

    _, accuracy = model.evaluate(x_test, y_test, verbose=0)
    print(f"final loss {history.history['loss'][-1]:.4f}  test accuracy {accuracy:.4f}")


if __name__ == "__main__":
    main()
