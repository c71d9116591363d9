"""Divides a training step over workers by rules for operations: graph in, graph out; no Horovod and no Keras in it.

The step's graph is left as the script wrote it. Every tensor has a layout (`layout.py`): whole, divided along a dimension, or
partial. A rule (`table.py`) says for an operation and the layouts of its inputs what each worker runs and which layout the
outputs have. An operation without a rule gets its inputs whole and is computed by all workers alike, so a missing rule costs
speed and never exactness.
"""
