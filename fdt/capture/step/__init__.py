"""A training step, of whatever form: its trace, and what its graph tells."""
