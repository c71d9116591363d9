"""Keeps the first batch of each step in the script's own loops, for `fdt predict` to measure afterwards."""

from typing import Any

from fdt.base.config import RunConfig
from fdt.capture.loop.check import LoopCheck
from fdt.capture.loop.tracing import Call
from fdt.capture.refusals import where
from fdt.capture.step.divided import layer_exchanges
from fdt.client.findings import Findings
from fdt.forecast.samples import Sample, Samples


class LoopPredict(LoopCheck):
    """See `fdt.capture.loop.calls.Steps`."""

    def __init__(self, config: RunConfig, findings: Findings, samples: Samples):
        super().__init__(config, findings)
        self._samples = samples

    def _looked(self, key: Any, what: str, call: Call) -> None:
        traced, form = self._steps[key]
        arguments = call.arguments if form.form.key() == call.arguments.form.key() else call.as_they_are
        arrays = arguments.encode()

        def sample() -> Sample:
            exchanges = layer_exchanges(traced, [array.shape for array in arrays], self._config)
            return Sample(traced.program, traced.variables, arrays, *exchanges)

        self._samples.add(key, where(), what, sample, steps=1)
