"""No operation of the pool's TensorFlow has been forgotten."""

import re
import subprocess
import sys

import pytest

from fdt.pool import admission

# Names that smell of Python, files, network, other processes, or of code brought in.
SUSPICIOUS = re.compile(
    r"PyFunc|File|Reader|Save|Restore|SummaryWriter|^Write(?!.*Array)|Rpc|Remote|Send$|Recv$|SendFrom|RecvAt|Debug|TPU|Tpu|Collective|Nccl"
    r"|Horovod|Snapshot|DataService|TFRecord|LMDB|Sql|CSVDataset|TextLine|FixedLength|FromGraph|TRT|CacheDataset"
    r"|DumpTensor|Checkpoint|VocabRemapping|RemapMatrix|ImmutableConst|ImportEvent|Infeed|Outfeed|CustomCall|CallModule"
    r"|XlaLaunch|TfLite|Heartbeat|RegisterDataset|DTensor|ProtoV2|EncodeProto|FromStringHandle|^Abort$|LoadDataset"
)
# Of these the names only sound like it.
HARMLESS = {"ShardedFilename", "ShardedFilespec", "BoostedTreesExampleDebugOutputs", "DecodeCSV"}
REGISTRY = """
from tensorflow.core.framework import op_def_pb2
from tensorflow.python.client import pywrap_tf_session as session
ops = op_def_pb2.OpList.FromString(session.TF_GetBuffer(session.TF_GetAllOpList()))
print("\\n".join(op.name for op in ops.op))
"""


@pytest.fixture(scope="module")
def registry() -> list[str]:
    # In a process of its own: TensorFlow takes its time, and this process needs it for nothing else.
    run = subprocess.run([sys.executable, "-c", REGISTRY], capture_output=True, text=True, timeout=120, check=True)
    return run.stdout.split()


def test_registry(registry: list[str]) -> None:
    assert len(registry) > 1000
    forgotten = [op for op in registry if SUSPICIOUS.search(op) and op not in HARMLESS and not admission.refusal(op)]
    assert not forgotten
    overdone = [op for op in registry if admission.refusal(op) and not SUSPICIOUS.search(op)]
    assert len(overdone) < 60, overdone
    assert sum(admission.refusal(op) is None for op in registry) > 1300
