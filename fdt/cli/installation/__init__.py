"""Builds and installs what `fdt setup` adds to an environment: Horovod, and our own operations."""
