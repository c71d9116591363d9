"""C++ operations: compiled once, found again, and said to be missing where nothing can compile them."""

import sys
from pathlib import Path

import pytest
import tensorflow as tf

from fdt.base import native
from fdt.errors import NativeError

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
    folder = tmp_path / "with_operations" / "native"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / "same.cc").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    yield folder
    native.library.cache_clear()
    sys.modules.pop("with_operations", None)


def test_a_library_is_compiled_once_and_found_by_what_it_is_made_of(
    package: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = native.library("with_operations")
    assert library.ops.fdt_test_same(tf.constant([1.0, 2.0])).numpy().tolist() == [1.0, 2.0]
    assert library.functions.fdt_test_seven() == 7
    (compiled,) = (package / "build").glob("*.so")
    monkeypatch.setenv("CXX", "/bin/false")
    assert native._compiled("with_operations", *flags()) == compiled
    # Other sources are another library, for which there is no compiler now.
    (package / "same.cc").write_text(SOURCE.replace("7", "8"))
    with pytest.raises(NativeError, match=r"/bin/false .* failed"):
        native._compiled("with_operations", *flags())


def test_what_others_may_write_is_not_loaded(package: Path) -> None:
    (package / "same.cc").write_text("int seven() { return 7; }")
    compiled = native._compiled("with_operations", *flags())
    assert native._is_ours(compiled)
    compiled.chmod(0o777)
    assert not native._is_ours(compiled)


def test_a_missing_compiler_is_said(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(NativeError, match=r"no C\+\+ compiler was found\. Expected g\+\+"):
        native.library("with_operations")


def test_what_the_compiler_says_is_said(package: Path) -> None:
    (package / "same.cc").write_text("nonsense")
    with pytest.raises(NativeError, match="nonsense"):
        native.library("with_operations")
    assert not list((package / "build").glob("*"))


def flags() -> tuple[list[str], list[str]]:
    return tf.sysconfig.get_compile_flags(), tf.sysconfig.get_link_flags()
