"""The pool's state machine: events in, instructions out. No I/O."""
