// The operation that sorts a sparse gradient's values by row, before the table is locked.

#include <algorithm>
#include <cstdint>
#include <numeric>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace fdt {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

template <typename Index>
class ByRowOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const auto indices = context->input(0).flat<Index>();
    Tensor* order;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({indices.size()}), &order));
    int64_t* begin = order->flat<int64_t>().data();
    std::iota(begin, begin + indices.size(), 0);
    // Values of the same row keep their order.
    std::sort(begin, begin + indices.size(), [&](int64_t a, int64_t b) {
      return indices(a) != indices(b) ? indices(a) < indices(b) : a < b;
    });
  }
};

REGISTER_OP("FdtByRow")
    .Input("indices: Index")
    .Output("order: int64")
    .Attr("Index: {int32, int64}")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("FdtByRow").Device(tensorflow::DEVICE_CPU).TypeConstraint<int32_t>("Index"), ByRowOp<int32_t>);
REGISTER_KERNEL_BUILDER(Name("FdtByRow").Device(tensorflow::DEVICE_CPU).TypeConstraint<int64_t>("Index"), ByRowOp<int64_t>);

}  // namespace
}  // namespace fdt
