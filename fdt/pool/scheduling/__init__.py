"""Requests a pool's hosts from a cluster's scheduler: one scheduler job per host, which runs `fdt serve --join`."""
