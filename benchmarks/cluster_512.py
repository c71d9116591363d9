"""What `fdt predict` says of 512 GPUs, beside what Horovod has published of them. Arithmetic alone: nothing is measured here.

    python benchmarks/cluster_512.py            # writes benchmarks/results/cluster_512.{json,md}

Horovod's benchmark: 128 servers with 4 Pascal GPUs each, joined by RoCE of 25 Gbit/s, synthetic data, 64 images a GPU
(https://github.com/horovod/horovod/blob/master/docs/benchmarks.rst): 90 % of 512 times one GPU for ResNet-101, 68 % for VGG-16.

What one GPU does is in Horovod's README of 2017 (its lines are in https://github.com/horovod/horovod/pull/44), measured on
such servers, with the same scripts and batch: "Baseline single-GPU (batch size=64)" is 119.4 images a second for ResNet-101
and 130.9 for VGG-16. TensorFlow's own page of the time ("Benchmarks", https://www.tensorflow.org/performance/benchmarks, May
2017, synthetic data, batch 64, one P100 of a DGX-1) has 219 for ResNet-50, 91.8 for ResNet-152 and 154 for VGG-16: a GPU
that is a tenth faster.
"""

from collections.abc import Iterator

from record import Content, Record
from tables import table

from fdt.forecast.links import OVERLAP, Hosts
from fdt.forecast.step_time import RING, Timed, Workload, forecast

BATCH, SERVERS, GPUS = 64, 128, 4
BANDWIDTH, LATENCY_S = 25e9 / 8, 5e-6
PUBLISHED = {"ResNet-101": 0.90, "VGG-16": 0.68}
OVERLAPS = (0.0, OVERLAP, 1.0)
SECONDS = {"ResNet-101": BATCH / 119.4, "VGG-16": BATCH / 130.9}


def resnet_101() -> Iterator[int]:
    """Yields the numbers of weights of each tensor: blocks of a 1x1, a 3x3 and a 1x1 convolution, each normalised."""
    yield from (7 * 7 * 3 * 64, 64, 64)
    channels = 64
    for width, blocks in ((64, 3), (128, 4), (256, 23), (512, 3)):
        for block in range(blocks):
            yield from (channels * width, 9 * width * width, 4 * width * width)
            yield from (width, width, width, width, 4 * width, 4 * width)
            if not block:
                yield from (4 * channels * width, 4 * width, 4 * width)
            channels = 4 * width
    yield from (2048 * 1000, 1000)


def vgg_16() -> Iterator[int]:
    """Yields the numbers of weights of each tensor: 13 convolutions of 3x3, and three dense layers."""
    channels = 3
    for width, layers in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(layers):
            yield from (9 * channels * width, width)
            channels = width
    for inputs, outputs in ((7 * 7 * 512, 4096), (4096, 4096), (4096, 1000)):
        yield from (inputs * outputs, outputs)


def workload(model: str) -> Workload:
    """Returns what one GPU does with a batch of 64 images."""
    tensors = tuple(4 * number for number in (resnet_101() if model == "ResNet-101" else vgg_16()))
    seconds = SECONDS[model]
    step = (Timed(BATCH, seconds),)
    return Workload(model, BATCH, None, None, step, seconds, 0.0, tensors, (), 0.0, seconds)


def efficiencies(model: str, overlap: float) -> dict[str, float]:
    """Returns what part of 512 times one GPU is left: as expected, and at worst and at best."""
    load, workers = workload(model), SERVERS * GPUS
    network = Hosts(BANDWIDTH, LATENCY_S, overlap, slots=GPUS).network("sync", workers)
    found = forecast(load, network, RING, "sync", workers, batch="per-worker")
    assert found.hosts == SERVERS
    ends = {name: load.local / getattr(found.step, name) / workers for name in ("worst", "best")}
    return {"estimate": found.efficiency, **ends}


def main() -> None:
    record = Record("cluster_512", {}, ("fdt",), markdown)
    for model in PUBLISHED:
        for overlap in OVERLAPS:
            record.add("efficiency", lambda m=model, o=overlap: efficiencies(m, o), model=model, overlap=overlap)
    print(markdown(record.content))


def markdown(content: Content) -> str:
    rows = []
    for model, published in PUBLISHED.items():
        load = workload(model)
        found = {each["overlap"]: each for each in content["measurements"] if each["model"] == model}
        told = [f"{found[overlap]['estimate']:.0%}" if overlap in found else "–" for overlap in OVERLAPS]
        rows.append([model, f"{sum(load.dense) / 1e6:.0f}", f"{load.local * 1e3:.0f}", *told, f"{published:.0%}"])
    header = ["model", "gradients, MB", "a step, ms", *(f"overlap {overlap:g}" for overlap in OVERLAPS), "Horovod"]
    return "\n".join(
        [
            "# 512 GPUs, predicted",
            "",
            f"`{content['command'].strip()}`, {content['date']}: arithmetic, nothing was run. {SERVERS} hosts of {GPUS} GPUs, "
            "links of 25 Gbit/s, a latency of 5 µs, 64 images a GPU; what one GPU does is Horovod's published baseline of "
            "such a server (119.4 images a second for ResNet-101, 130.9 for VGG-16). Part of 512 times one GPU:",
            "",
            table(header, rows),
            "",
            "Overlap is what part of an exchange that could be hidden behind computation is hidden. `fdt predict` takes "
            f"{OVERLAP} unless it is told another value: within two points of both that Horovod has published.",
            "",
        ]
    )


if __name__ == "__main__":
    main()
