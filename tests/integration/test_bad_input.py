"""Bad input: a clear error before the first step, nothing trained in silence, and the pool fit for the next job."""

import re
import socket
from pathlib import Path

import pytest

from tests.helpers import warm
from tests.helpers.pool import Pool, write_token
from tests.helpers.processes import Finished, run_fdt, run_python
from tests.helpers.scripts import FIT, NET, TRAINS, UNSUPPORTED, marked_line, write

LIMIT_S = 120.0
REFUSED = 125
USAGE = 2


def on_pool(pool: Pool, script: Path, *, workers: int = 2) -> Finished:
    return warm.run_fdt(script, workers=workers, options=pool.options, limit_s=LIMIT_S, cwd=script.parent)


def untrained(finished: Finished) -> Finished:
    assert "trained" not in finished.stdout, finished.describe()
    return finished


# The script.


def test_missing_script(tmp_path: Path) -> None:
    finished = run_fdt(Path("absent.py"), limit_s=LIMIT_S, cwd=tmp_path).expect(USAGE)
    assert "can't open file" in finished.stderr and "absent.py" in finished.stderr, finished.describe()


def test_syntax_error(pool: Pool, tmp_path: Path) -> None:
    script = write(tmp_path, "print('begun')\nx = = 1\n")
    plain = run_python(script, limit_s=LIMIT_S, cwd=tmp_path)
    finished = run_fdt(script, options=pool.options, limit_s=LIMIT_S, cwd=tmp_path).expect(1)
    assert plain.stderr.strip() in finished.stderr, finished.describe()
    assert "begun" not in finished.stdout


def test_error_in_the_script_has_its_own_traceback(pool: Pool, tmp_path: Path) -> None:
    script = write(tmp_path, "def inner():\n    raise KeyError('mine')\n\n\ninner()\n")
    plain = run_python(script, limit_s=LIMIT_S, cwd=tmp_path)
    finished = run_fdt(script, options=pool.options, limit_s=LIMIT_S, cwd=tmp_path).expect(1)
    assert plain.stderr.strip() in finished.stderr, finished.describe()


@pytest.mark.parametrize("status", [0, 7])
def test_script_without_fit(pool: Pool, tmp_path: Path, status: int) -> None:
    script = write(tmp_path, f"import sys\nprint('just this')\nsys.exit({status})\n")
    finished = on_pool(pool, script).expect(status)
    assert "just this" in finished.stdout
    assert re.search(r"[Nn]othing was distributed", finished.output), finished.describe()


def test_tf_keras_that_is_not_installed(pool: Pool, tmp_path: Path) -> None:
    """Not ours to mend: the script's own ImportError, as under plain python."""
    hidden = "import sys\nsys.modules['tf_keras'] = None\n"
    script = write(tmp_path, hidden + "import tf_keras\nprint('trained')\n")
    plain = run_python(script, limit_s=LIMIT_S, cwd=tmp_path).expect(1)
    finished = untrained(on_pool(pool, script)).expect(1)
    assert plain.stderr.strip().splitlines()[-1] in finished.stderr, finished.describe()


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_construct_is_refused(pool: Pool, tmp_path: Path, name: str) -> None:
    text, construct, remedy = UNSUPPORTED[name]
    script = write(tmp_path, text)
    finished = untrained(on_pool(pool, script)).expect(REFUSED)
    # The traceback quotes the script's text: only our own message counts.
    message = said(finished)
    assert re.search(construct, message), f"does not name the construct\n{finished.describe()}"
    assert re.search(remedy, message), f"does not name a remedy\n{finished.describe()}"
    if "# <- here" in text:
        line = marked_line(text)
        named = rf'train\.py("?, line |:){line}\b'
        assert re.search(named, finished.stderr), f"does not name line {line}\n{finished.describe()}"


def said(finished: Finished) -> str:
    """Returns the lines of stderr that are ours; they begin with `fdt: `."""
    lines = [line for line in finished.stderr.splitlines() if line.startswith("fdt: ")]
    assert lines, f"no message of ours\n{finished.describe()}"
    return "\n".join(lines)


# The command and the pool.


@pytest.mark.parametrize("workers", ["0", "-1", "two"])
def test_number_of_workers_makes_no_sense(tmp_path: Path, workers: str) -> None:
    script = write(tmp_path, "print('trained')\n")
    finished = run_fdt(script, options=["--workers", workers], limit_s=LIMIT_S, cwd=tmp_path)
    untrained(finished).expect(USAGE)
    assert "--workers" in finished.stderr and workers in finished.stderr, finished.describe()


def test_server_unreachable(tmp_path: Path) -> None:
    with socket.socket() as held:
        # Bound and not listening: nobody else gets the port, and nobody answers.
        held.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{held.getsockname()[1]}"
        finished = warm.run_fdt(write(tmp_path, TRAINS), options=["--server", address], limit_s=LIMIT_S, cwd=tmp_path)
    untrained(finished).expect(REFUSED)
    assert address in said(finished), finished.describe()


def test_wrong_token(pool: Pool, tmp_path: Path) -> None:
    token = write_token(tmp_path / "token", "not-the-token")
    options = ["--server", pool.address, "--token-file", str(token)]
    finished = warm.run_fdt(write(tmp_path, TRAINS), options=options, limit_s=LIMIT_S, cwd=tmp_path)
    untrained(finished).expect(REFUSED)
    assert "token" in said(finished), finished.describe()
    assert "not-the-token" not in finished.output, "a token is nothing to print"


def test_no_token(pool: Pool, tmp_path: Path) -> None:
    options = ["--server", pool.address]
    finished = warm.run_fdt(write(tmp_path, TRAINS), options=options, limit_s=LIMIT_S, cwd=tmp_path)
    untrained(finished).expect(REFUSED)
    assert "--token-file" in said(finished), finished.describe()


def test_more_workers_than_the_pool_has(pool: Pool, tmp_path: Path) -> None:
    finished = untrained(on_pool(pool, write(tmp_path, TRAINS), workers=5)).expect(REFUSED)
    message = said(finished)
    assert re.search(r"\b5\b", message) and re.search(r"\b4\b", message), finished.describe()


# The data.


def test_array_of_objects(pool: Pool, tmp_path: Path) -> None:
    text = NET + 'model.compile("sgd", "mse")\nx = np.array([[1, "a", None, {}]] * 32, dtype=object)\n' + FIT
    finished = untrained(on_pool(pool, write(tmp_path, text)))
    # Keras may see it first, with its own error.
    assert finished.status in (1, REFUSED), finished.describe()
    assert "object" in finished.stderr and f"line {marked_line(text)}" in finished.stderr, finished.describe()


def test_nan_loss_passes_through(pool: Pool, tmp_path: Path) -> None:
    text = NET + 'model.compile("sgd", "mse")\nx[3, 2] = np.nan\n' + FIT + "print(model.history.history['loss'])\n"
    script = write(tmp_path, text)
    plain = warm.run_python(script, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    finished = on_pool(pool, script).expect(0)
    assert "[nan, nan]" in plain.stdout, "the script does not show what it should"
    assert without_times(finished.stdout).endswith(without_times(plain.stdout)), finished.describe()


def without_times(text: str) -> str:
    return re.sub(r"\d+m?s(/step|/epoch)?", "TIME", text)


def test_pool_is_fit_after_all_that(pool: Pool, tmp_path: Path) -> None:
    """The last test here: the shared pool has seen everything above."""
    finished = on_pool(pool, write(tmp_path, TRAINS)).expect(0)
    assert "trained" in finished.stdout, finished.describe()


def test_refused_scripts_train_under_plain_python(tmp_path: Path) -> None:
    """What is refused is refused for the construct alone. One process for all; the last disables eager execution."""
    scripts = [write(tmp_path, text, f"script{index}.py") for index, (text, _, _) in enumerate(UNSUPPORTED.values())]
    driver = write(
        tmp_path, f"import runpy\nfor path in {[str(path) for path in scripts]}:\n    runpy.run_path(path)\n"
    )
    finished = warm.run_python(driver, limit_s=LIMIT_S, cwd=tmp_path).expect(0)
    assert finished.stdout.count("built") == len(UNSUPPORTED), finished.describe()
    assert len(re.findall("^trained", finished.stdout, re.MULTILINE)) >= len(UNSUPPORTED), finished.describe()
