"""Decides what a pool does: a state machine that takes events and returns instructions. No I/O."""
