"""`fdt serve` with the toy runtime on a host that joins: `python -m tests.helpers.toy_host --join HOST:PORT ...`.

The variable TOY_VERSIONS (JSON) gives it other versions than it has, TOY_LAUNCHER ("module:Class") another toy.
"""

import importlib
import json
import os
import sys
from unittest import mock

from fdt.cli.main import main as fdt_main
from fdt.pool import host


def main() -> int:
    versions = {**host.host_versions(), **json.loads(os.environ.get("TOY_VERSIONS", "{}"))}
    module, _, name = os.environ.get("TOY_LAUNCHER", "tests.helpers.toy_engine:ToyLauncher").partition(":")
    launcher = getattr(importlib.import_module(module), name)
    with (
        mock.patch.object(host, "find_launchers", lambda modes: {mode: launcher() for mode in modes}),
        mock.patch.object(host, "host_versions", lambda: versions),
    ):
        return fdt_main(["serve", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
