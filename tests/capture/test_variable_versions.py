"""Where the newest value of a variable is, played through against a plain account of values."""

import gc
import random
import weakref

from fdt.capture.variable_versions import VariableVersions


class Step:
    """A step is known by its identity."""


def test_a_step_gets_what_another_wrote_from_there_and_what_the_script_changed_from_the_script() -> None:
    newest: VariableVersions[Step] = VariableVersions()
    critic, generator = Step(), Step()
    assert newest.missing(critic, [1, 2]) == ({1, 2}, {}, set())
    newest.written(critic, [1])
    assert newest.missing(critic, [1, 2]) == (set(), {}, set()), "it has what it wrote itself"
    assert newest.missing(generator, [1, 3]) == ({3}, {critic: {1}}, set())
    assert newest.away() == {critic: {1}}
    newest.came_home([1])
    assert newest.away() == {}
    newest.changed_at_home([1])
    assert newest.missing(critic, [1, 2]) == ({1}, {}, set())
    assert newest.missing(generator, [1, 3]) == (set(), {critic: {1}}, {1}), (
        "what the script may have changed, from there"
    )
    newest.changed_at_home([1])
    assert newest.missing(generator, [1, 3], small=[1]) == ({1}, {}, set())
    newest.written(generator, [3])
    newest.forget_pool()
    assert newest.away() == {}
    assert newest.missing(generator, [1, 3]) == ({1, 3}, {}, set())


def test_a_step_that_nobody_uses_is_forgotten_once_its_values_are_home() -> None:
    newest: VariableVersions[Step] = VariableVersions()
    step, other, gone = Step(), Step(), []
    weakref.finalize(step, gone.append, True)
    newest.written(step, [1])
    del step
    gc.collect()
    assert not gone
    newest.came_home([1])
    gc.collect()
    assert gone
    assert newest.missing(other, [1]) == ({1}, {}, set())


def test_everybody_reads_the_newest_value_whatever_the_order() -> None:
    variables = range(5)
    reads = {"a": {0, 1, 2}, "b": {1, 2, 3}, "c": {2, 3, 4}}
    writes = {"a": {0, 2}, "b": {1, 2}, "c": {4}}
    for seed in range(50):
        chance, newest = random.Random(seed), VariableVersions[Step]()
        steps = {name: Step() for name in reads}
        truth = dict.fromkeys(variables, 0)
        script, pool = dict(truth), {steps[name]: dict.fromkeys(reads[name], -1) for name in reads}
        for now in range(1, 200):
            name = chance.choice("abc")
            step = steps[name]
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
            from_script, from_steps, maybe_changed = newest.missing(step, reads[name], small={2} & reads[name])
            pool[step].update({v: script[v] for v in from_script})
            for other, moved in from_steps.items():
                pool[other].update({v: script[v] for v in moved & maybe_changed})
                pool[step].update({v: pool[other][v] for v in moved})
            assert pool[step] == {v: truth[v] for v in reads[name]}
            truth.update(dict.fromkeys(writes[name], now))
            pool[step].update(dict.fromkeys(writes[name], now))
            newest.written(step, writes[name])
