"""What of the operator's environment worker processes are given."""

from fdt.worker.environment import passed

GIVEN = (
    *("PATH", "HOME", "TMPDIR", "XDG_CACHE_HOME", "LANG", "LC_ALL", "TZ", "PYTHONPATH", "PYTHONHASHSEED"),
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "CXX", "SSL_CERT_FILE"),
    *("TF_CPP_MIN_LOG_LEVEL", "TF_NUM_INTRAOP_THREADS", "TF2_BEHAVIOR", "XLA_FLAGS", "KERAS_BACKEND", "GRPC_VERBOSITY"),
    *("OMP_NUM_THREADS", "KMP_AFFINITY", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "ONEDNN_VERBOSE"),
    *("CUDA_VISIBLE_DEVICES", "NVIDIA_TF32_OVERRIDE", "NCCL_DEBUG", "ROCR_VISIBLE_DEVICES", "HOROVOD_FUSION_THRESHOLD"),
)
KEPT = (
    *("AWS_SECRET_ACCESS_KEY", "GOOGLE_APPLICATION_CREDENTIALS", "GITHUB_TOKEN", "DATABASE_URL", "SSH_AUTH_SOCK"),
    *("FDT_TOKEN_FILE", "FDT_SERVER", "FDT_WORKER", "http_proxy", "HTTPS_PROXY", "KUBECONFIG", "path"),
    # In families of ours, and not what they seem.
    *("TF_VAR_db_password", "TF_TOKEN_app_terraform_io", "TF_CLI_ARGS", "NVIDIA_API_KEY", "HOROVOD_SECRET_KEY"),
    *("PYTHON_KEYRING_PASSWORD", "XLA_CREDENTIALS", "GRPC_AUTH", "KERAS_API_KEY"),
)


def test_what_tensorflow_and_its_libraries_read_passes_and_nothing_else_does() -> None:
    values = {name: f"value of {name}" for name in (*GIVEN, *KEPT)}
    assert passed(values) == {name: values[name] for name in GIVEN}


def test_a_setting_that_speaks_of_a_key_within_a_word_passes() -> None:
    assert passed({"TF_KEYED_CACHE": "1", "MKL_TOKENIZE": "1"}) == {"TF_KEYED_CACHE": "1", "MKL_TOKENIZE": "1"}
