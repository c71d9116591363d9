// An operation that takes as long as an accelerator would compute a layer, and leaves the processor alone meanwhile.

#include <chrono>
#include <thread>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace {

class EmulatedLayerOp : public tensorflow::AsyncOpKernel {
 public:
  explicit EmulatedLayerOp(tensorflow::OpKernelConstruction* context) : AsyncOpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("microseconds", &microseconds_));
  }

  void ComputeAsync(tensorflow::OpKernelContext* context, DoneCallback done) override {
    const auto end = std::chrono::steady_clock::now() + std::chrono::microseconds(microseconds_);
    context->set_output(0, context->input(0));
    std::thread([end, done] {
      std::this_thread::sleep_until(end);
      done();
    }).detach();
  }

 private:
  tensorflow::int64 microseconds_;
};

REGISTER_OP("EmulatedLayer")
    .Input("x: float")
    .Output("y: float")
    .Attr("microseconds: int")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("EmulatedLayer").Device(tensorflow::DEVICE_CPU), EmulatedLayerOp);

}  // namespace
