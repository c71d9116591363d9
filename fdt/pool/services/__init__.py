"""Serves the pool's RPCs, one gRPC service a file, by calls of the supervisor. `fdt.pool.server` registers the services."""
