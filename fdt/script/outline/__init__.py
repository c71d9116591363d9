"""Outlining: the steps of eager loops become functions, in memory, before the script is compiled.

    with tf.GradientTape() as tape:            # from here
        loss = loss_fn(y, model(x))
    gradients = tape.gradient(loss, weights)
    optimizer.apply_gradients(zip(gradients, weights))      # to here

Nothing here runs or imports what the script does: a syntax tree goes in, another comes out, in which each such part is there
twice: as it was, and as a function of the names that it reads, which `fdt.capture.loop.outlined` may have run instead.
"""
