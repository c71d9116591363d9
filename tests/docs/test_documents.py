"""The documents: the site builds without a warning, and every command in them is one that there is."""

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fdt.cli.command_line import parse
from fdt.cli.options import MODES

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES = [page for page in PAGES if "decisions" not in page.parts and page.name not in ("status.md", "sweeps.md")]
MAX_README_BYTES = 7000
_COMMAND = re.compile(r"^(?:\$ )?(?:\.venv/bin/)?(fdt .*)$")


def commands(text: str) -> Iterator[str]:
    """Yields the commands of fdt in the code blocks of a page, without comments."""
    is_fenced = False
    for line in re.sub(r"\\\n\s*", "", text).splitlines():
        if line.startswith("```"):
            is_fenced = not is_fenced
        elif is_fenced or line.startswith("    "):
            found = _COMMAND.match(line.strip())
            if found:
                yield re.sub(r"\s+#.*", "", found[1])


ALL = [(page.relative_to(ROOT), command) for page in PAGES for command in commands(page.read_text())]


def test_there_are_commands() -> None:
    assert len(ALL) > 40 and {str(page) for page, _ in ALL} >= {"README.md", "docs/tutorials/first-run.md"}


@pytest.mark.parametrize(("page", "command"), ALL, ids=lambda value: str(value)[:60])
def test_a_command_is_one_that_there_is(page: Path, command: str, tmp_path: Path) -> None:
    arguments = [each for each in shlex.split(command.replace("HOST:PORT", "10.0.0.1:7077"))[1:] if each != "..."]
    try:
        parse("fdt", tuple(MODES), arguments)
    except SystemExit as left:
        assert left.code == 0, f"{page}: {command}"


def test_the_readme_is_short() -> None:
    assert len((ROOT / "README.md").read_bytes()) <= MAX_README_BYTES


def test_links_of_the_readme_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md"):
        targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text())
        assert targets and not [target for target in targets if not (ROOT / target).exists()]


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    pages = {str(page.relative_to(tmp_path / "site")) for page in (tmp_path / "site").rglob("index.html")}
    assert {"index.html", "reference/cli/index.html", "reference/report/index.html"} <= pages
    assert "--max-delay" in (tmp_path / "site/reference/cli/index.html").read_text()
    assert "WorkerLostError" in (tmp_path / "site/reference/errors/index.html").read_text()
    loaded = re.findall(
        r'(?:src|href)="(https?://[^"]+)"[^>]*(?:as="|rel="stylesheet")', (tmp_path / "site/index.html").read_text()
    )
    assert not loaded, "a page loads something from elsewhere"


def test_architecture_names_files_that_there_are_and_every_package() -> None:
    """A file is named by its path, or by the end of it."""
    text = (ROOT / "ARCHITECTURE.md").read_text()
    folders = [ROOT / name for name in ("fdt", "hfdt", "nfdt", "protos", "tests")]
    files = [path for folder in folders for path in folder.rglob("*") if path.suffix in (".py", ".h", ".cc", ".proto")]
    there = {str(path.relative_to(ROOT)) for path in files}
    named = set(re.findall(r"`([\w/]+\.(?:py|h))`", text))
    assert len(named) > 40 and not {
        name for name in named if not any(f"/{path}".endswith(f"/{name}") for path in there)
    }
    packages = {path.parent.name for path in (ROOT / "fdt").glob("*/__init__.py")}
    assert not {name for name in packages if f"`{name}/`" not in text}
    assert len(text.encode()) <= 12_000
