"""What every scheduler keeps to, also one that can only be shown: all that are installed. `tests/schedulers` asks real ones."""

import dataclasses
import json
from importlib import metadata
from pathlib import Path

import pytest

from fdt.base.config import Network, PlacingConfig
from fdt.errors import UsageError
from fdt.pool.scheduling.request import HostRequest, Rendering, find_renderer

NAMES = sorted(point.name for point in metadata.entry_points(group="fdt.schedulers"))
# What a scheduler must be told.
NEEDED = {"kubernetes": ("image=registry.example/fdt:0.1",)}
TOKEN = "what-nobody-may-see"


@pytest.fixture(params=NAMES)
def asked(request: pytest.FixtureRequest, tmp_path: Path) -> HostRequest:
    config = PlacingConfig(request.param, 0, 2, tmp_path, slots=3, arguments=NEEDED.get(request.param, ()))
    network = Network("eth0", "10.0.0.1", "10.0.0.0/16")
    asked = HostRequest.of(config, network, "10.0.0.1:7077", TOKEN, pool="fdt-a")
    return dataclasses.replace(asked, name="a-1", tls_ca="CERTIFICATE")


def rendered(asked: HostRequest) -> Rendering:
    return find_renderer(asked.config.scheduler).render(asked)


def everything(rendering: Rendering) -> str:
    return "\n".join([*(file.text for file in rendering.files), json.dumps(rendering.commands), rendering.submission])


def test_all_are_known() -> None:
    assert {"kubernetes", "ray", "slurm"} <= set(NAMES)


def test_to_render_changes_nothing(asked: HostRequest) -> None:
    assert rendered(asked) == rendered(asked)
    assert list(asked.folder.iterdir()) == []


def test_what_is_rendered_is_the_hosts_command_and_its_files(asked: HostRequest) -> None:
    text = everything(rendered(asked))
    for part in ("--join", "10.0.0.1:7077", "--slots", "--join-token-file", "--tls-ca", TOKEN, "CERTIFICATE"):
        assert part in text


def test_the_token_is_in_no_command_and_no_file_that_others_read(asked: HostRequest) -> None:
    rendering = rendered(asked)
    assert TOKEN not in repr(rendering) and TOKEN not in " ".join(asked.command())
    assert all(not file.mode & 0o077 for file in rendering.files if TOKEN in file.text)


def test_arguments_that_make_no_sense_are_refused(asked: HostRequest) -> None:
    config = dataclasses.replace(asked.config, arguments=("--nodes=2",))
    with pytest.raises(UsageError, match="--nodes"):
        rendered(dataclasses.replace(asked, config=config))
