"""Connects processes: gRPC, tokens, rate limits, and bulk data named by its content."""
