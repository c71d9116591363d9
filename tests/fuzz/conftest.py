"""A test that fails leaves no job on a pool that others share."""

from tests.helpers.train_stream import streams_end_with_their_test

__all__ = ["streams_end_with_their_test"]
