"""The script's process leaves the GPUs to the workers, and tells them how TensorFlow is to compute."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

from fdt.base.patch import Patches
from fdt.capture import gpus
from fdt.program import computation
from fdt.program.step_program import load
from fdt.v1 import program_pb2
from hfdt.loop import StepLoop, undivided
from tests.helpers.programs import Quadratic, traced


@pytest.fixture
def patches() -> Iterator[Patches]:
    each = Patches()
    yield each
    each.undo()


def _gpu(number: int) -> Any:
    return tf.config.PhysicalDevice(f"/physical_device:GPU:{number}", "GPU")


def test_a_script_that_chooses_gpus_still_sees_none(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, said = [], list[str]()
    monkeypatch.setattr(gpus, "has_gpu_devices", lambda: True)
    monkeypatch.setattr(gpus, "num_gpus", lambda: 2)
    for owner in (tf.config, tf.config.experimental):
        monkeypatch.setattr(owner, "set_visible_devices", lambda devices, device_type=None: asked.append(devices))
    gpus.leave_to_workers(patches, 3, said.append)
    (cpu,) = tf.config.list_physical_devices("CPU")
    tf.config.set_visible_devices(_gpu(1), "GPU")
    tf.config.experimental.set_visible_devices([cpu, _gpu(0)])
    tf.config.set_visible_devices([cpu], "CPU")
    assert asked == [[], [], [cpu], [cpu]]
    assert said[0] == "GPUs: 2, shared by 3 workers; the script itself uses none"
    assert len(said) == 2 and "CUDA_VISIBLE_DEVICES" in said[1]


def test_nothing_is_said_of_gpus_that_cuda_does_not_show(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(gpus, "has_gpu_devices", lambda: True)
    monkeypatch.setattr(gpus, "num_gpus", lambda: 0)
    monkeypatch.setattr(tf.config, "set_visible_devices", lambda *_: None)
    gpus.leave_to_workers(patches, 2, said.append)
    assert said == []


def test_gpus_that_the_script_has_used_before_are_warned_of(patches: Patches, monkeypatch: pytest.MonkeyPatch) -> None:
    def used(*_: object) -> None:
        raise RuntimeError("Visible devices cannot be modified after being initialized")

    said: list[str] = []
    monkeypatch.setattr(gpus, "has_gpu_devices", lambda: True)
    monkeypatch.setattr(tf.config, "set_visible_devices", used)
    gpus.leave_to_workers(patches, 1, said.append)
    assert "TF_FORCE_GPU_ALLOW_GROWTH" in said[0]


def test_a_program_says_how_the_script_computes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "is_op_determinism_enabled", lambda: True)
    tf.config.experimental.enable_tensor_float_32_execution(False)
    try:
        told = program_pb2.Computation()
        computation.of_this_process(told)
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)
    assert told == program_pb2.Computation(deterministic=True, full_float_32=True)


def test_a_worker_computes_as_the_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[bool] = []
    monkeypatch.setattr(tf.config.experimental, "enable_op_determinism", lambda: made.append(True))
    try:
        computation.adopt(program_pb2.Computation(deterministic=True, full_float_32=True))
        assert not tf.config.experimental.tensor_float_32_execution_enabled() and made == [True]
        computation.adopt(program_pb2.Computation())
        assert tf.config.experimental.tensor_float_32_execution_enabled() and made == [True]
    finally:
        tf.config.experimental.enable_tensor_float_32_execution(True)


def test_steps_are_compiled_on_gpus_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = program_pb2.Computation(compiled_on_gpus=True)
    assert not computation.is_compiled(asked)
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda _: [_gpu(0)])
    assert computation.is_compiled(asked)
    assert not computation.is_compiled(program_pb2.Computation())


def test_a_compiled_step_makes_the_same_update() -> None:
    found = []
    for compiled in (False, True):
        model = Quadratic(np.array([4.0, -2.0], np.float32))
        model.compile(optimizer="adam", jit_compile=False)
        step = traced(model, np.zeros((4, 1), np.float32))
        loaded = load(step.program)
        for variable, own in zip(loaded.variables, step.variables, strict=True):
            variable.assign(own)
        StepLoop(loaded, undivided(loaded, compiled)).run([tf.zeros([4, 1])], np.zeros((3, 2), np.int64), np.zeros(0))
        found.append([variable.numpy() for variable in loaded.variables])
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6)
    assert any(not np.array_equal(value, own) for value, own in zip(found[0], step.variables, strict=True))
