"""What worker processes are started with."""

import pytest

from fdt.processes import with_huge_pages


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
