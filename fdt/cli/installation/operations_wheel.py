"""Writes a wheel of our compiled operations, for hosts that have no compiler."""

import sysconfig
from pathlib import Path

from fdt import __version__
from fdt.base import native
from fdt.cli.installation.wheel_file import Wheel


def write(folder: Path) -> str:
    """Compiles the operations for any processor of recent years, and writes their wheel; imports TensorFlow.

    Args:
        folder: Where to.

    Returns:
        The wheel's file name.

    Raises:
        NativeError: There is no compiler, or it fails.
    """
    import tensorflow as tf

    compiled = native.of_all(native.portable)
    files = {f"{native.GIVEN}/__init__.py": b'"""Compiled operations of fdt, which finds them by their names."""\n'}
    files |= {f"{native.GIVEN}/{path.name}": path.read_bytes() for path in compiled}
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    wheel = Wheel(native.GIVEN, __version__, f"1tf{tf.__version__.replace('-', '_')}", f"py3-none-{platform}")
    wheel.write(folder / wheel.file_name, files)
    return wheel.file_name
