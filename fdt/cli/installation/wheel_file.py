"""Writes a wheel, the archive that installers of Python packages unpack (the binary distribution format of PyPA)."""

import base64
import dataclasses
import hashlib
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

# The earliest time that a zip archive can hold: equal content is an equal file.
_TIME = (1980, 1, 1, 0, 0, 0)
_EXECUTABLE, _PLAIN = 0o100755, 0o100644


@dataclasses.dataclass(frozen=True)
class Wheel:
    """A wheel's name and what it says of itself.

    Attributes:
        name: The package's name.
        version: Its version.
        build: The build tag, which begins with a digit; "" for none.
        tag: For what it is, such as "cp311-cp311-linux_x86_64".
        requires: Packages that it imports.
        scripts: Its commands, such as "horovodrun = horovod.runner.launch:run_commandline".
    """

    name: str
    version: str
    build: str
    tag: str
    requires: Sequence[str] = ()
    scripts: Sequence[str] = ()

    @property
    def file_name(self) -> str:
        """Returns the file's name, which installers read."""
        return "-".join(filter(None, (self.name, self.version, self.build, self.tag))) + ".whl"

    def write(self, target: Path, files: Mapping[str, bytes]) -> None:
        """Writes the wheel.

        Args:
            target: Its path; only a whole file ever has this name.
            files: Contents by path within the environment's site-packages.
        """
        info = f"{self.name}-{self.version}.dist-info"
        described = {f"{info}/METADATA": self._metadata(), f"{info}/WHEEL": self._wheel()}
        if self.scripts:
            described[f"{info}/entry_points.txt"] = "\n".join(("[console_scripts]", *self.scripts, ""))
        everything = {**files, **{name: text.encode() for name, text in described.items()}}
        record = [f"{name},sha256={_digest(content)},{len(content)}" for name, content in everything.items()]
        everything[f"{info}/RECORD"] = "\n".join((*record, f"{info}/RECORD,,", "")).encode()
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with zipfile.ZipFile(partial, "w", zipfile.ZIP_DEFLATED) as archive:
                for name, content in everything.items():
                    entry = zipfile.ZipInfo(name, _TIME)
                    entry.compress_type = zipfile.ZIP_DEFLATED
                    entry.external_attr = (_EXECUTABLE if name.endswith(".so") else _PLAIN) << 16
                    archive.writestr(entry, content)
            os.replace(partial, target)
        finally:
            partial.unlink(missing_ok=True)

    def _metadata(self) -> str:
        lines = ["Metadata-Version: 2.1", f"Name: {self.name}", f"Version: {self.version}", "License: Apache-2.0"]
        return "\n".join((*lines, *(f"Requires-Dist: {name}" for name in self.requires), ""))

    def _wheel(self) -> str:
        lines = ["Wheel-Version: 1.0", "Generator: fdt setup", "Root-Is-Purelib: false"]
        build = [f"Build: {self.build}"] if self.build else []
        return "\n".join((*lines, f"Tag: {self.tag}", *build, ""))


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
