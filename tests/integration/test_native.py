"""C++ operations: compiled once, found again, and said to be missing where nothing can compile them."""

import sys
from pathlib import Path

import pytest
import tensorflow as tf

from fdt.base import native
from fdt.errors import NativeError, NoCompilerError

NAME = "with_operations"
SOURCE = """
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
class Same : public tensorflow::OpKernel {
 public:
  explicit Same(tensorflow::OpKernelConstruction* context) : OpKernel(context) {}
  void Compute(tensorflow::OpKernelContext* context) override { context->set_output(0, context->input(0)); }
};
REGISTER_OP("FdtTestSame").Input("x: float").Output("y: float");
REGISTER_KERNEL_BUILDER(Name("FdtTestSame").Device(tensorflow::DEVICE_CPU), Same);
extern "C" int fdt_test_seven() { return 7; }
"""


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the sources of a package of one operation."""
    folder = tmp_path / NAME / "native"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "same.cc").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield folder
    native.library.cache_clear()
    native.optional.cache_clear()
    sys.modules.pop(NAME, None)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache" / "fdt" / "native"


def test_a_library_is_compiled_once_and_found_by_what_it_is_made_of(
    package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = native.library(NAME)
    assert library.ops.fdt_test_same(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
    assert library.functions.fdt_test_seven() == 7
    (compiled,) = cache.iterdir()
    # The environment's own copy, for whoever uses it.
    monkeypatch.setenv("CXX", "/bin/false")
    beside = native.provide(NAME)
    assert beside == package / "build" / compiled.name and beside.read_bytes() == compiled.read_bytes()
    compiled.unlink()
    assert native.provide(NAME) == beside
    # Other sources are another library, for which there is no compiler now.
    (package / "same.cc").write_text(SOURCE.replace("7", "8"))
    with pytest.raises(NativeError, match=r"/bin/false .* failed"):
        native.provide(NAME)
    assert list(cache.iterdir()) == []


def test_what_others_may_write_is_not_loaded(package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (package / "same.cc").write_text("int seven() { return 7; }")
    beside = native.provide(NAME)
    for library in (beside, cache / beside.name):
        library.chmod(0o777)
    monkeypatch.setenv("CXX", "/bin/false")
    with pytest.raises(NativeError):
        native.provide(NAME)
    beside.chmod(0o755)
    assert native.provide(NAME) == beside


def test_a_host_without_a_compiler_takes_what_another_gave(
    package: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = tmp_path / native.GIVEN
    given.mkdir()
    (given / "__init__.py").touch()
    (given / (compiled := native.portable(NAME)).name).write_bytes(compiled.read_bytes())
    compiled.unlink()
    _take_compilers(monkeypatch)
    assert native.library(NAME).functions.fdt_test_seven() == 7
    # Not on a processor that lacks what it was compiled for.
    native.library.cache_clear()
    monkeypatch.setattr(native, "processor_features", lambda: frozenset({"sse2"}))
    with pytest.raises(NoCompilerError):
        native.library(NAME)


def test_a_missing_compiler_is_said_and_the_library_done_without(
    package: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    _take_compilers(monkeypatch)
    with pytest.raises(NativeError, match=r"no C\+\+ compiler was found\. Expected g\+\+"):
        native.library(NAME)
    assert native.optional(NAME) is None and native.optional(NAME) is None
    assert capfd.readouterr().err.count("fdt setup --wheel DIR") == 1


def test_what_the_compiler_says_is_said(package: Path, cache: Path) -> None:
    (package / "same.cc").write_text("nonsense")
    for get in (native.library, native.optional):
        with pytest.raises(NativeError, match="nonsense"):
            get(NAME)
    assert not list(cache.iterdir())


def test_an_error_is_told_before_the_warnings_of_headers(package: Path) -> None:
    warnings = "".join(f'#warning "{number} of a header, which is told at some length"\n' for number in range(99))
    (package / "same.cc").write_text(f"{SOURCE}nonsense\n{warnings}")
    with pytest.raises(NativeError, match=r"error:.*nonsense") as raised:
        native.library(NAME)
    assert "of a header" not in str(raised.value)


def test_eigen_is_not_told_of_processors_that_compute_in_16_bits(package: Path) -> None:
    """With them `Eigen::half` is another type than in TensorFlow's library."""
    told = '#include "tensorflow/core/framework/op_kernel.h"\n#ifdef EIGEN_VECTORIZE_AVX512FP16\n#error told\n#endif\n'
    (package / "same.cc").write_text(told + SOURCE)
    assert native.library(NAME).functions.fdt_test_seven() == 7


def test_it_is_known_without_tensorflow_whether_anything_is_compiled(
    package: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(native, "PACKAGES", (NAME,))
    assert not native.are_lacking()
    _take_compilers(monkeypatch)
    assert native.are_lacking()
    cache.mkdir(parents=True)
    (cache / f"{NAME}-0123.so").touch()
    assert not native.are_lacking()


def _take_compilers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
