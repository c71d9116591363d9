"""Where the newest value of a variable is, played through against a plain account of values."""

import random

from fdt.capture.variable_versions import VariableVersions


def test_a_step_gets_what_another_wrote_from_there_and_what_the_script_changed_from_the_script() -> None:
    newest: VariableVersions[str] = VariableVersions()
    assert newest.missing("critic", [1, 2]) == ({1, 2}, {})
    newest.written("critic", [1])
    assert newest.missing("critic", [1, 2]) == (set(), {}), "it has what it wrote itself"
    assert newest.missing("generator", [1, 3]) == ({3}, {"critic": {1}})
    assert newest.away() == {"critic": {1}}
    newest.came_home([1])
    assert newest.away() == {}
    newest.changed_at_home([1])
    assert newest.missing("critic", [1, 2]) == ({1}, {})
    assert newest.missing("generator", [1, 3]) == ({1}, {})
    newest.written("generator", [3])
    newest.forget_pool()
    assert newest.away() == {}
    assert newest.missing("generator", [1, 3]) == ({1, 3}, {})


def test_everybody_reads_the_newest_value_whatever_the_order() -> None:
    variables = range(5)
    reads = {"a": {0, 1, 2}, "b": {1, 2, 3}, "c": {2, 3, 4}}
    writes = {"a": {0, 2}, "b": {1, 2}, "c": {4}}
    for seed in range(50):
        chance, newest = random.Random(seed), VariableVersions[str]()
        truth = dict.fromkeys(variables, 0)
        script, pool = dict(truth), {step: dict.fromkeys(reads[step], -1) for step in reads}
        for now in range(1, 200):
            step = chance.choice("abc")
            if chance.random() < 0.4:
                looked = set(chance.sample(variables, 2))
                for holder, away in newest.away(looked).items():
                    script.update({v: pool[holder][v] for v in away})
                    newest.came_home(away)
                assert all(script[v] == truth[v] for v in looked)
                if chance.random() < 0.5:
                    truth.update(dict.fromkeys(looked, now))
                    script.update(dict.fromkeys(looked, now))
                newest.changed_at_home(looked)
                continue
            from_script, from_steps = newest.missing(step, reads[step])
            pool[step].update({v: script[v] for v in from_script})
            for other, moved in from_steps.items():
                pool[step].update({v: pool[other][v] for v in moved})
            assert pool[step] == {v: truth[v] for v in reads[step]}
            truth.update(dict.fromkeys(writes[step], now))
            pool[step].update(dict.fromkeys(writes[step], now))
            newest.written(step, writes[step])
