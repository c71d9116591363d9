"""Patches a loaded library's global offset table, so that it calls another function instead of an imported one.

The table has an entry for each imported function. This changes Horovod's behaviour where it has no setting (`hfdt.address`,
`hfdt.background_thread`).
"""

import ctypes
import dataclasses
import mmap
import struct
from collections.abc import Iterator
from pathlib import Path

# Of the ELF format, 64 bits, little-endian; x86-64's relocations.
_MAGIC = b"\x7fELF\x02\x01"
_PT_LOAD, _PT_DYNAMIC = 1, 2
_DT_PLTRELSZ, _DT_STRTAB, _DT_SYMTAB, _DT_RELA, _DT_RELASZ, _DT_JMPREL = 2, 5, 6, 7, 8, 23
_R_GLOB_DAT, _R_JUMP_SLOT = 6, 7
_RELA, _SYMBOL_BYTES = struct.Struct("<QQq"), 24

_PROT_READ, _PROT_WRITE = 1, 2


def turn(library: Path, function: str, target: int) -> None:
    """Makes one library of this process call another function.

    Args:
        library: The path from which this process has loaded it.
        function: The name of the imported function.
        target: The address of its replacement, of the same type, which has to live as long as the process.

    Raises:
        ValueError: The library does not call the function, or is not loaded.
        OSError: The library cannot be read, or its table cannot be written.
        struct.error: The library's file is truncated.
    """
    regions = _regions(library)
    if not regions:
        raise ValueError(f"not loaded: {library.name}")
    with open(library, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as image:
        start, slot = _Elf(image).slot(function.encode())
    _write(slot + min(region.start for region in regions) - start, target, regions)


class _Elf:
    """The tables of a shared library that list imported functions; addresses are those in the file."""

    def __init__(self, image: mmap.mmap) -> None:
        if image[: len(_MAGIC)] != _MAGIC:
            raise ValueError("not an ELF file of 64 bits")
        self._image = image
        offset, size, count = *struct.unpack_from("<Q", image, 32), *struct.unpack_from("<HH", image, 54)
        headers = [struct.unpack_from("<IIQQQQQQ", image, offset + i * size) for i in range(count)]
        # Address, offset in the file, bytes in the file.
        self._loads = [(h[3], h[2], h[5]) for h in headers if h[0] == _PT_LOAD]
        self._tags = dict(
            struct.unpack_from("<qQ", image, at)
            for h in headers
            if h[0] == _PT_DYNAMIC
            for at in range(h[2], h[2] + h[5], 16)
        )

    def slot(self, function: bytes) -> tuple[int, int]:
        """Returns the address of the library's first page, and of the table entry of an imported function."""
        start = min(load[0] for load in self._loads) // mmap.PAGESIZE * mmap.PAGESIZE
        for slot, symbol in self._references():
            if self._name(symbol) == function:
                return start, slot
        raise ValueError(f"it does not call {function.decode()}")

    def _references(self) -> Iterator[tuple[int, int]]:
        for table, size in ((_DT_JMPREL, _DT_PLTRELSZ), (_DT_RELA, _DT_RELASZ)):
            if table not in self._tags:
                continue
            first = self._place(self._tags[table])
            for at in range(first, first + self._tags[size], _RELA.size):
                slot, info, _ = _RELA.unpack_from(self._image, at)
                if info & 0xFFFFFFFF in (_R_GLOB_DAT, _R_JUMP_SLOT):
                    yield slot, info >> 32

    def _name(self, symbol: int) -> bytes:
        (name,) = struct.unpack_from("<I", self._image, self._place(self._tags[_DT_SYMTAB]) + symbol * _SYMBOL_BYTES)
        begin = self._place(self._tags[_DT_STRTAB]) + name
        return self._image[begin : self._image.find(b"\0", begin)]

    def _place(self, address: int) -> int:
        """Returns the file offset of an address."""
        for load, place, size in self._loads:
            if load <= address < load + size:
                return address - load + place
        raise ValueError(f"no such address: {address:#x}")


@dataclasses.dataclass(frozen=True)
class _Region:
    """A part of this process's memory."""

    start: int
    end: int
    protection: int


def _regions(library: Path) -> list[_Region]:
    """Returns the memory regions into which a file is mapped."""
    found = []
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _, _, _, *path = line.split(maxsplit=5)
        if path and Path(path[0]) == library.resolve():
            start, end = (int(address, 16) for address in addresses.split("-"))
            protection = (_PROT_READ if permissions[0] == "r" else 0) | (_PROT_WRITE if permissions[1] == "w" else 0)
            found.append(_Region(start, end, protection))
    return found


def _write(slot: int, value: int, regions: list[_Region]) -> None:
    """Writes a table entry, whose page the loader may have made read-only."""
    region = next((region for region in regions if region.start <= slot < region.end), None)
    if region is None:
        raise ValueError(f"the table is not in memory: {slot:#x}")
    page = slot // mmap.PAGESIZE * mmap.PAGESIZE
    _protect(page, region.protection | _PROT_WRITE)
    ctypes.c_uint64.from_address(slot).value = value
    _protect(page, region.protection)


def _protect(page: int, protection: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(page), ctypes.c_size_t(mmap.PAGESIZE), protection):
        raise OSError(ctypes.get_errno(), "mprotect")
