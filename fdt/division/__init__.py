"""Divides a training step over workers by rules for operations: graph in, graph out; no Horovod and no Keras in it.

The script's graph is not changed. Every tensor has a layout (`layout.py`): whole, divided along a dimension, or partial. Given
an operation and the layouts of its inputs, a rule (`table.py`) decides what each worker runs and which layouts the outputs
have. An operation without a rule gets its inputs whole and every worker computes all of it, so a missing rule costs speed and
never exactness.
"""
