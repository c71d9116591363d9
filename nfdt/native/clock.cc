// Reads the clock in a graph, also where operations have to be deterministic, which TensorFlow's own refuses (nfdt/clock.py).

#include <chrono>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace fdt {
namespace {

class TimeOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    tensorflow::Tensor* now;
    OP_REQUIRES_OK(context, context->allocate_output(0, {}, &now));
    now->scalar<double>()() = std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
  }
};

REGISTER_OP("FdtTime").Output("now_s: double").SetIsStateful().SetShapeFn(
    [](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });
REGISTER_KERNEL_BUILDER(Name("FdtTime").Device(tensorflow::DEVICE_CPU), TimeOp);

}  // namespace
}  // namespace fdt
