"""The services of a pool, one a file, as `fdt.pool.server` offers them: thin, around the supervisor."""
