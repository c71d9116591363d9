"""What a process prints, in bounded files: every byte once and in order, or said to be left out."""

import random
from pathlib import Path

from fdt.cli.segmented_log import KEPT, Reader, Writer


def everything(reader: Reader) -> bytes:
    pieces = []
    while piece := reader.read():
        pieces.append(piece)
    return b"".join(pieces)


def test_a_reader_that_follows_has_every_byte(tmp_path: Path) -> None:
    chosen, writer, reader = random.Random(0), Writer(tmp_path, 100), Reader(tmp_path)
    written = read = b""
    assert reader.read() == b""
    for _ in range(300):
        chunk = chosen.randbytes(chosen.randrange(60))
        writer.write(chunk)
        written += chunk
        read += everything(reader)
        assert read == written
    writer.close()
    assert len(list(tmp_path.iterdir())) == 1 + KEPT
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 100 * (1 + KEPT)


def test_who_comes_late_is_told_what_is_missing(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 100)
    written = bytes(range(256)) * 10
    writer.write(written)
    kept = len(written) - (len(written) // 100 - KEPT + 1) * 100
    missing = len(written) - 100 - kept
    left_out = f"\nfdt: {missing:,} bytes were left out here\n".encode()
    assert everything(Reader(tmp_path)) == written[:100] + left_out + written[-kept:]


def test_a_tail_is_whole_lines(tmp_path: Path) -> None:
    writer = Writer(tmp_path, 25)
    lines = [f"line {number}\n".encode() for number in range(40)]
    writer.write(b"".join(lines))
    for num_lines in (1, 2, 5):
        assert everything(Reader(tmp_path, num_lines)) == b"".join(lines[-num_lines:])
    # No further back than is kept without a gap.
    assert b"".join(lines).endswith(everything(Reader(tmp_path, 39)))
    writer.write(b"half a line")
    assert everything(Reader(tmp_path, 1)) == b"half a line"


def test_few_lines(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    assert everything(Reader(tmp_path, 3)) == b""
    writer.write(b"one\ntwo\n")
    assert everything(Reader(tmp_path, 3)) == b"one\ntwo\n"
    assert everything(Reader(tmp_path, 1)) == b"two\n"
