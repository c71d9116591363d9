"""Runs `fit` and `train_on_batch` up to the first step and keeps one batch, which `fdt predict` measures afterwards."""

import hashlib
from typing import Any

import numpy as np

from fdt.base.config import RunConfig
from fdt.capture.keras.check import CheckedRun, KerasCheck
from fdt.capture.keras.version import KerasVersion
from fdt.capture.refusals import where
from fdt.capture.step.divided import layer_exchanges
from fdt.client.findings import Findings
from fdt.forecast.samples import Sample, Samples


class KerasPredict(KerasCheck):
    """See `fdt.capture.keras.hooks.KerasHooks`."""

    def __init__(self, config: RunConfig, findings: Findings, samples: Samples, keras: KerasVersion):
        super().__init__(config, findings, keras)
        self._samples = samples

    def _make_run(self, model: Any) -> "_SampledRun":
        return _SampledRun(self._config, self._keras, model)

    def _looked(self, run: "_SampledRun", what: str) -> None:
        assert run.traced is not None and run.arrays is not None
        traced, arrays = run.traced, run.arrays
        # One program serves batches of several sizes, which take different times.
        sizes = str([array.shape for array in arrays]).encode()
        key = hashlib.sha256(traced.program.SerializeToString(deterministic=True) + sizes).digest()

        def sample() -> Sample:
            exchanges = layer_exchanges(traced, [array.shape for array in arrays], self._config)
            return Sample(traced.program, traced.variables, arrays, *exchanges)

        self._samples.add(key, where(), what, sample, run.num_steps())


class _SampledRun(CheckedRun):
    """A training that ends when it has its first batch."""

    def __init__(self, config: RunConfig, keras: KerasVersion, model: Any):
        super().__init__(config, keras, model)
        self.arrays: list[np.ndarray] | None = None
        # One for `train_on_batch`.
        self._epochs_to_come = 1
        self._listener: Any = None

    def listen(self, arguments: dict[str, Any]) -> None:
        """Adds a callback, which Keras tells how many steps an epoch has."""
        self._epochs_to_come = arguments["epochs"] - arguments["initial_epoch"]
        self._listener = self.keras.callbacks.Callback()
        callbacks = arguments["callbacks"]
        if isinstance(callbacks, self.keras.callbacks.CallbackList):
            return
        given = list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks] * (callbacks is not None)
        arguments["callbacks"] = [*given, self._listener]

    def num_steps(self) -> int | None:
        """Returns how many steps the training would make; None if its data do not tell."""
        if self._listener is None:
            return 1
        an_epoch = (self._listener.params or {}).get("steps")
        return None if an_epoch is None else int(an_epoch) * self._epochs_to_come

    def take(self, item: Any) -> None:
        """Keeps the batch."""
        assert self.batches is not None
        super().take(item)
        self.arrays = self.batches.encode(item)

    def _needs_batch(self) -> bool:
        return True
