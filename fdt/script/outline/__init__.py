"""Outlines the steps of eager loops: makes them functions, in memory, before the script is compiled.

    with tf.GradientTape() as tape:            # from here
        loss = loss_fn(y, model(x))
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights))      # to here

This package neither runs nor imports the script. It changes the syntax tree so that it has each step twice: unchanged, and as a
function of the names that the step reads. `fdt.capture.loop.outlined` decides which of them runs.
"""
