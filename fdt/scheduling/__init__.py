"""Hosts of a pool that a cluster's own scheduler places: one scheduler job a host, which runs `fdt serve --join`."""
