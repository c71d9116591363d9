"""Outlining: the steps of eager loops become functions, in memory, before the script is compiled.

    with tf.GradientTape() as tape:            # from here
        loss = loss_fn(y, model(x))
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights))      # to here

This package runs and imports nothing of the script: it turns a syntax tree into another one that has each such part twice: as
it was, and as a function of the names that it reads, which `fdt.capture.loop.outlined` may run in its place.
"""
