"""What does not fit into its hosts' memory is refused before the first step, with sizes."""

import pytest

from fdt.errors import UnsupportedError
from nfdt import layout
from nfdt.host_memory import check, shard_bytes
from nfdt.rules import make_rule
from nfdt.servers import ParameterServers
from tests.helpers.programs import traced
from tests.helpers.table_models import BY_ROWS, LABELS, NUM_ROWS, OPTIMIZERS, WIDTH, WORDS

_TABLE_BYTES, _DENSE_BYTES = NUM_ROWS * WIDTH * 4, (6 * WIDTH * 3 + 3) * 4


@pytest.mark.parametrize(
    ("rule", "copies"), [("asgd", 2), ("ddc-asgd", 3), ("dc-asgd-c", 2), ("dc-asgdk", 3), ("dynsgd", 2)]
)
def test_a_server_holds_parameters_state_and_what_its_rule_keeps(
    rule: str, copies: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(layout, "LEAST_PART_BYTES", dict.fromkeys((True, False), 1 << 10))
    step = traced(BY_ROWS["embedding"](OPTIMIZERS["rows of adagrad"]()), (WORDS, LABELS), mode="async")
    made, kept = make_rule(rule), []
    for servers in (1, 2):
        built = ParameterServers(step.program, made, ["/CPU:0"] * servers, ["/CPU:0"], 2)
        kept.append([shard_bytes(step.program, shard, made) for shard in built.layout.shards])
    # Dense tensors are padded in their vectors.
    assert sum(kept[0]) == pytest.approx(copies * (_TABLE_BYTES + _DENSE_BYTES), rel=0.01)
    assert sum(kept[1]) == pytest.approx(sum(kept[0]), rel=0.01)
    assert max(kept[1]) < 0.55 * sum(kept[1])


def test_what_fits_on_more_hosts_does_not_fit_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LEAST_PART_BYTES", dict.fromkeys((True, False), 1 << 10))
    step = traced(BY_ROWS["embedding"](OPTIMIZERS["rows of adagrad"]()), (WORDS, LABELS), mode="async")
    bound, rule = (200 << 20) + _TABLE_BYTES * 2, make_rule("ddc-asgd")
    with pytest.raises(UnsupportedError, match=r"does not fit into memory: a host with 1 parameter server\(s\) and 1 "):
        ParameterServers(step.program, rule, ["/CPU:0"], ["/CPU:0"], 2, memory_bytes=bound)
    ParameterServers(step.program, rule, ["/CPU:0"], ["/CPU:0"], 2, memory_bytes=bound + _TABLE_BYTES + (1 << 20))
    with pytest.raises(UnsupportedError, match=r"a host with 2 parameter server\(s\) and 1 worker\(s\) needs"):
        ParameterServers(step.program, rule, ["/CPU:0"] * 2, ["/CPU:0"], 2, memory_bytes=bound)
    two = ParameterServers(step.program, rule, ["/CPU:0"] * 2, ["/CPU:0"], 2).layout
    hosts = [f"/job:fdt/replica:0/task:{task}/device:CPU:0" for task in range(2)]
    by_rows = {table.variable for shard in two.shards for table in shard.tables}
    check(step.program, two, rule, hosts, hosts, by_rows, bound)
