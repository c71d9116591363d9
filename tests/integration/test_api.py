"""`fdt.run` and `fdt.attach` up to where TensorFlow begins."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import fdt
from fdt.cli import api
from fdt.errors import RunError, UsageError

_LIMIT_S = 60


def test_importing_the_package_is_cheap() -> None:
    code = "import json, sys, fdt; dir(fdt); print(json.dumps(sorted(m for m in sys.modules if m.startswith('fdt'))))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=_LIMIT_S, check=True)
    assert json.loads(done.stdout) == ["fdt"]


def test_what_the_package_offers_is_there() -> None:
    assert all(getattr(fdt, name) is not None for name in fdt.__all__)
    with pytest.raises(AttributeError, match="module 'fdt' has no attribute 'train'"):
        _ = fdt.train


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"mode": None, "workers": None}, []),
        (
            {"workers": 4, "batch": "per-worker", "scale_lr": "sqrt"},
            ["--workers=4", "--batch=per-worker", "--scale-lr=sqrt"],
        ),
        ({"workers": (2, 8)}, ["--workers=2..8"]),
        ({"else_": "local", "dry_run": False}, ["--else=local"]),
        (
            {"on": "slurm", "trusted_network": "10.0.0.0/16", "scheduler_arg": ["-a", "-b"]},
            ["--on=slurm", "--trusted-network=10.0.0.0/16", "--scheduler-arg=-a", "--scheduler-arg=-b"],
        ),
        ({"report": Path("r.json"), "detach": True}, ["--report=r.json", "--detach"]),
    ],
)
def test_options_are_the_commands(given: dict[str, object], expected: list[str]) -> None:
    assert api.arguments_of(**given) == expected
    assert api.parse_options([*expected, "--", "t.py"]).script == "t.py"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"worker": 4}, "unknown option '--worker'. Did you mean --workers?"),
        ({"workers": 0}, "expected a whole number of workers, 1 or more. Received: 0"),
        ({"mode": "fast"}, "fast"),
        ({"scale_lr": "linear"}, "--scale-lr goes with --batch per-worker"),
    ],
)
def test_what_is_wrong_is_raised_before_anything_starts(
    options: dict[str, object], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(api.subprocess, "Popen", lambda *_, **__: pytest.fail("nothing is to be started"))
    for call in (lambda: fdt.run("train.py", **options), lambda: fdt.attach(**options)):
        with pytest.raises(UsageError) as error:
            call()
        assert said in str(error.value)
    assert capsys.readouterr() == ("", "")


def test_attach_takes_nothing_that_is_the_commands() -> None:
    with pytest.raises(UsageError, match="detach applies to the command"):
        fdt.attach(detach=True)


def test_a_script_that_fails_is_an_error_with_its_result(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import sys; sys.exit(3 if sys.argv[1:] == ['--deep'] else 4)")
    # A pool that is not there: the script would run only after it had answered.
    with pytest.raises(RunError, match="ended with status 125") as error:
        fdt.run(script, "--deep", server="127.0.0.1:1")
    assert (error.value.result.status, error.value.result.report) == (125, {})
    assert fdt.run(script, "--deep", server="127.0.0.1:1", check=False).status == 125
