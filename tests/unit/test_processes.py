"""What worker processes are started with."""

from pathlib import Path

import pytest

from fdt.pool.processes import last_words, with_huge_pages


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("", "glibc.malloc.hugetlb=1"),
        ("glibc.malloc.arena_max=2", "glibc.malloc.arena_max=2:glibc.malloc.hugetlb=1"),
        ("glibc.malloc.hugetlb=0", "glibc.malloc.hugetlb=0"),
        ("glibc.malloc.hugetlb=2:glibc.malloc.arena_max=2", "glibc.malloc.hugetlb=2:glibc.malloc.arena_max=2"),
    ],
)
def test_malloc_gets_huge_pages_unless_the_user_has_said_otherwise(given: str, expected: str) -> None:
    assert with_huge_pages(given) == expected


def test_the_end_of_a_log_is_its_last_line_or_what_crashed(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_words(log) == ""
    log.write_text("first\nlast\n\n")
    assert last_words(log) == "last"
    crash = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x1:\n  File a.py, line 1 in f"
    log.write_text(f"first\n{crash}\n\nExtension modules: numpy (total: 1)\n")
    assert last_words(log) == crash
