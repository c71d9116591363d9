"""The pool's gRPC services, one a file: thin wrappers around the supervisor. `fdt.pool.server` registers them."""
