"""What workers are forked from: without Keras; and what they have open: what libraries opened, and nothing of the server's."""

import subprocess
import sys
from pathlib import Path

# A process of its own: a fork of the tests' would take along what they have open.
_PROGRAM = """
import os, sys
from pathlib import Path
from fdt.worker import forkserver, sandbox
from fdt.worker.network_namespace import Network

folder = Path(sys.argv[1])
os.environ.update({name: "x" for name in (forkserver.ENGINE, forkserver.PARENT, forkserver.NETWORK, forkserver.BEAT)})
library = os.open("/dev/urandom", os.O_RDONLY)
server = forkserver.ForkServer(object, Network.HOST, 1.0)

def work(engine, secret, attached, gateway, memories, listener):
    own = {secret, memories.fileno()} | ({listener.fileno()} if listener is not None else set())
    found = {d: os.readlink(f"/proc/self/fd/{d}") for d in forkserver._descriptors() - own}
    assert found == {library: "/dev/urandom"}, found
    print("as it should be, with the secret of", os.read(secret, 100).decode(), flush=True)

forkserver.work = work
fields = sandbox.Reach(folder, (), ()).fields()
for name, direct in (("one", True), ("two", False)):
    # The second must not have what the server keeps for the first.
    secret, writer = os.pipe()
    os.write(writer, name.encode())
    os.close(writer)
    server._start({"start": name, "environment": {}, "log": str(folder / name), "reach": fields, "walls": False,
                   "bounds": {}, "direct": direct}, secret)
for pid, log in server._logs.items():
    os.waitpid(pid, 0)
    while log.read():
        pass
"""


def test_a_worker_has_open_what_libraries_opened_and_nothing_of_the_servers(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, str(tmp_path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    for name in ("one", "two"):
        assert (tmp_path / name).read_text() == f"as it should be, with the secret of {name}\n"


def test_engines_need_no_keras() -> None:
    """To import it takes as long as TensorFlow and Horovod together."""
    program = """
import sys
from fdt.worker import forkserver
sys.modules.update(dict.fromkeys(forkserver.NOT_NEEDED))
import hfdt.runtime, nfdt.runtime
print([name for name in sys.modules if name.partition(".")[0] in forkserver.NOT_NEEDED])
"""
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "['keras', 'tf_keras']\n"), done.stderr
