"""Selects the operator's environment variables that worker processes get: those that TensorFlow, its libraries and Python read.

A worker runs no script, so it needs no others; and the operator's variables, which may hold keys of a cloud, must not reach
clients' programs. Proxy variables are left out: they may hold passwords, and a worker connects to its pool only. FDT's own
variables are left out, too: a worker gets its settings from the pool.
"""

from collections.abc import Mapping

_NAMES = frozenset((
    # Where programs and libraries are, and caches of compiled code.
    *("PATH", "HOME", "XDG_CACHE_HOME", "TMPDIR", "TMP", "TEMP", "CXX", "CPATH", "LIBRARY_PATH"),
    # The C library's: language, time zone, a preloaded malloc.
    *("LANG", "LANGUAGE", "TZ", "TZDIR", "LD_LIBRARY_PATH", "LD_PRELOAD", "GLIBC_TUNABLES"),
    # The authorities that sign the pool's certificate.
    *("SSL_CERT_FILE", "SSL_CERT_DIR"),
    # With it, the interpreter of a conda environment finds its libraries.
    "CONDA_PREFIX",
))  # fmt: skip
_FAMILIES = (
    *("LC_", "MALLOC_", "PYTHON"),
    *("TF_", "TF2_", "XLA_", "KERAS_", "GRPC_"),
    # Threads, and libraries for processors.
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "DNNL_", "ONEDNN_"),
    # Devices: NVIDIA's, AMD's, Intel's.
    *("CUDA_", "CUDNN_", "CUBLAS_", "NVIDIA_", "NCCL_", "ROCM_", "ROCR_", "HIP_", "HSA_", "MIOPEN_", "ITEX_", "ZE_"),
    *("HOROVOD_", "HVD_", "GLOO_"),
)
# Other programs' variables with the same prefixes: Terraform has TF_VAR_password, NVIDIA's services NVIDIA_API_KEY.
_STRANGE_FAMILIES = ("TF_VAR_", "TF_CLI_")
_SECRET_WORDS = ("KEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "CREDENTIAL", "CREDENTIALS", "AUTH")


def passed(environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the part of an environment that worker processes get."""
    return {name: value for name, value in environment.items() if _passes(name)}


def _passes(name: str) -> bool:
    if name in _NAMES:
        return True
    is_strange = name.startswith(_STRANGE_FAMILIES) or any(word in _SECRET_WORDS for word in name.upper().split("_"))
    return name.startswith(_FAMILIES) and not is_strange
