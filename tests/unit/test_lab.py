"""The laboratory: what can be said of it without root."""

import pytest

from tests.helpers.lab import module

link, command, network = module("link"), module("command"), module("network")


@pytest.mark.parametrize("bandwidth_bps", [1e6, 10e6, 100e6, 1e9, 10e9])
def test_a_bucket_holds_what_comes_as_one_frame_and_little_more_than_a_timer_may_be_late(bandwidth_bps: float) -> None:
    cable = link.Link(bandwidth_bps)
    assert cable.segments >= 1
    assert 2 * cable.segments * link.FRAME_BYTES <= max(cable.burst_bytes, 2 * link.FRAME_BYTES)
    assert cable.burst_bytes < cable.queue_bytes
    assert cable.burst_bytes <= max(0.002 * bandwidth_bps / 8, 4 * link.FRAME_BYTES)


def test_filters_of_both_ends() -> None:
    plain = link.Link(100e6)
    assert plain.filters(delayed=True) == plain.filters(delayed=False)
    assert plain.filters(delayed=False) == [["root", *"tbf rate 100000000bit burst 25000 limit 625000".split()]]
    far = link.Link(100e6, 1e-3)
    delay, rate = far.filters(delayed=True)
    assert delay[:6] == "root handle 1: netem delay 1000us".split()
    assert rate[:5] == "parent 1:1 handle 10: tbf".split()
    # A frame passes one end of each kind, so the other adds nothing.
    assert [words[1] for words in far.filters(delayed=False)] == ["tbf"]


def test_what_follows_the_dashes_is_for_fdt_run() -> None:
    words = "--hosts 4 --bandwidth 100Mbit -- --mode async --ps 4 train.py --hosts 9 -- x".split()
    options, run = command.parse_arguments(words)
    assert (options.hosts, options.link.bandwidth_bps) == (4, 100e6)
    assert run == "--mode async --ps 4 train.py --hosts 9 -- x".split()


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("--bandwidth 10 -- train.py", "100Mbit"),
        ("--bandwidth 0Mbit -- train.py", "above 0"),
        ("--bandwidth 10Mbit --latency 3 -- train.py", "2ms"),
        ("-- train.py", "--bandwidth is expected"),
        ("--bandwidth 10Mbit", "a script is expected"),
        ("--bandwidth 10Mbit --", "a script is expected"),
    ],
)
def test_wrong_command_lines(words: str, says: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.parse_arguments(words.split())
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


def test_without_root_or_tc_a_laboratory_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    with pytest.raises(network.LabError, match="root"), network.Network(1, link.Link(1e6)):
        pass
    monkeypatch.setattr("os.geteuid", lambda: 0)
    monkeypatch.setattr("shutil.which", lambda program: None if program == "tc" else program)
    with pytest.raises(network.LabError, match="`tc`"), network.Network(1, link.Link(1e6)):
        pass


@pytest.mark.parametrize(
    ("words", "mode"),
    [
        ("train.py", "sync"),
        ("--mode async --ps 2 train.py", "async"),
        ("--ps=2 --mode=async train.py", "async"),
        ("--mode sync train.py --mode fast", "sync"),
        ("train.py --mode async", "sync"),
    ],
)
def test_a_pool_offers_what_the_run_needs(words: str, mode: str) -> None:
    assert command.mode_of(words.split()) == mode


def test_what_fdt_run_does_not_understand_ends_before_anything_is_made(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command.mode_of(["--mode", "fast", "train.py"])
    assert ended.value.code == 2
    assert "fast" in capsys.readouterr().err


@pytest.mark.parametrize("hosts", [0, -1, 201])
def test_number_of_hosts(hosts: int) -> None:
    with pytest.raises(network.LabError, match=str(hosts)):
        network.Network(hosts, link.Link(1e6))
