"""The tutorials, typed as a reader would: each command in a console block of a page, one after the other."""

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from tests.helpers.processes import background, run

ROOT = Path(__file__).parents[2]
TUTORIALS = ROOT / "docs" / "tutorials"
LIMIT_S = 180.0
PROGRAMS = {"python": [sys.executable], "fdt": [sys.executable, "-m", "fdt"]}
# Who reads this has done so.
DONE = ("make install", ". .venv/bin/activate")


def typed(page: str) -> list[list[str]]:
    """Returns the commands of a page's console blocks, with this Python in the place of the reader's."""
    blocks = re.findall(r"```console\n(.*?)```", (TUTORIALS / page).read_text(), re.DOTALL)
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    words = [shlex.split(line) for line in lines if line not in DONE]
    return [[*PROGRAMS[first], *rest] for first, *rest in words]


def shorter(command: list[str]) -> list[str]:
    """Returns a command that trains for two epochs in the place of thirty."""
    return [*command, "--epochs", "2"] if command[-1].endswith("digits.py") else command


def figures(text: str) -> list[float]:
    """Returns the numbers that a script printed last."""
    return [float(number) for number in re.findall(r"\d+\.\d+", text.splitlines()[-1])]


def test_the_first_run(tmp_path: Path) -> None:
    alone, check, together, asynchronous, verify = (
        run(shorter(command), limit_s=LIMIT_S, cwd=ROOT).expect(0) for command in typed("first-run.md")
    )
    assert figures(alone.stdout) and figures(together.stdout)
    assert all(abs(a - b) < 1e-3 for a, b in zip(figures(alone.stdout), figures(together.stdout), strict=True))
    assert "delay mean" in asynchronous.stderr
    assert ": distributed" in check.output
    # Rounding of Adam's first step is about as large as the tolerance.
    assert "within the tolerance" in verify.output or "in double precision it is gone" in verify.output


@pytest.mark.thorough
def test_a_first_training_of_who_has_installed_it(tmp_path: Path) -> None:
    page = (TUTORIALS.parent / "how-to" / "install.md").read_text()
    section = page[page.index("## A first training") :].partition("\n## ")[0]
    (script,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    (tmp_path / "first.py").write_text(script)
    typed_lines = re.findall(r"^    (python first.py|fdt run --mode .*)$", section, re.MULTILINE)
    commands = [[*PROGRAMS[first], *rest] for first, *rest in map(str.split, typed_lines)]
    alone, together, asynchronous = (
        run(command, limit_s=LIMIT_S, cwd=tmp_path).expect(0).stdout for command in commands
    )
    losses = [float(loss) for loss in re.findall(r"loss: (\d+\.\d+)", alone)]
    assert len(losses) == 5 and losses == pytest.approx(
        [float(loss) for loss in re.findall(r"loss: (\d+\.\d+)", together)], rel=1e-4, abs=2e-4
    )
    assert len(re.findall(r"loss: \d+\.\d+", asynchronous)) == 5


def test_a_pool() -> None:
    serve, train, jobs, logs = typed("pool.md")
    # A port that is free, in the place of the default.
    with background([*serve, "--listen", "127.0.0.1:0"], cwd=ROOT) as pool:
        address = re.search(r"127\.0\.0\.1:\d+", pool.wait_for_line("127.0.0.1:", LIMIT_S))
        assert address
        here = {"FDT_SERVER": address[0]}
        train = [address[0] if word == "127.0.0.1:7077" else word for word in train]
        run(shorter(train), limit_s=LIMIT_S, cwd=ROOT).expect(0)
        assert "digits.py" in run(jobs, limit_s=LIMIT_S, **here).expect(0).stdout
        run(logs, limit_s=LIMIT_S, **here).expect(0)


def test_a_laptop_and_a_pool_with_the_data(images: Path, tmp_path: Path) -> None:
    (script,) = re.findall(r"```python\n(.*?)```", (TUTORIALS / "laptop.md").read_text(), re.DOTALL)
    (tmp_path / "photos.py").write_text(script)
    # The server's folder has another name than the laptop's.
    server, there = tmp_path / "srv", tmp_path / "srv" / "photos"
    for copy in (there, tmp_path / "photos"):
        shutil.copytree(images, copy)
    serve, check, train = (
        [word.replace("/srv/data", str(server)) for word in command] for command in typed("laptop.md")
    )
    alone = run([sys.executable, "photos.py"], limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert ": distributed" in run(check, limit_s=LIMIT_S, cwd=tmp_path).expect(0).output
    with background([*serve, "--listen", "127.0.0.1:0"], cwd=ROOT) as pool:
        address = re.search(r"127\.0\.0\.1:\d+", pool.wait_for_line("127.0.0.1:", LIMIT_S))
        assert address
        train = [address[0] if word == "127.0.0.1:7077" else word for word in train]
        trained = run(train, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert figures(trained.stdout) == pytest.approx(figures(alone.stdout), abs=2e-4)
    for line in (
        "rows, which the workers read from files and compute; row numbers are sent",
        "validation runs on the workers",
        "evaluate runs on the workers",
        "predict runs on the workers",
    ):
        assert line in trained.stderr
