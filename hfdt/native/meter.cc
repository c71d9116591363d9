// The operations that begin and end the timing of another library's exchange (see meter.h).

#include "meter.h"
#include "shapes.h"

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace fdt {

Meter& meter() {
  static Meter* const meter = new Meter;
  return *meter;
}

namespace {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;

void PassOn(OpKernelContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
}

class MeterOp : public OpKernel {
 public:
  explicit MeterOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("behind", &behind_));
  }

 protected:
  bool behind_;  // Whether the step computes other gradients meanwhile.
};

class BeginOp : public MeterOp {
 public:
  using MeterOp::MeterOp;

  void Compute(OpKernelContext* context) override {
    uint64_t num_bytes = 0;
    for (int i = 0; i < context->num_inputs(); ++i) num_bytes += context->input(i).TotalBytes();
    meter().Begin(num_bytes, behind_);
    PassOn(context);
  }
};

class EndOp : public MeterOp {
 public:
  using MeterOp::MeterOp;

  void Compute(OpKernelContext* context) override {
    meter().End(behind_);
    PassOn(context);
  }
};

// Each waits for all its tensors before it passes one on. Both are stateful: otherwise TensorFlow would prune the exchange on a
// rank that does not use its result (it may have no rows), and the other ranks would wait for it.
REGISTER_OP("FdtExchangeBegin")
    .Input("values: T")
    .Output("sent: T")
    .Attr("T: list(type) >= 1")
    .Attr("behind: bool = false")
    .SetIsStateful()
    .SetShapeFn(SameShapes);

REGISTER_OP("FdtExchangeEnd")
    .Input("values: T")
    .Output("received: T")
    .Attr("T: list(type) >= 1")
    .Attr("behind: bool = false")
    .SetIsStateful()
    .SetShapeFn(SameShapes);

// They only pass tensors on, so they need no GPU library.
REGISTER_KERNEL_BUILDER(Name("FdtExchangeBegin").Device(tensorflow::DEVICE_CPU), BeginOp);
REGISTER_KERNEL_BUILDER(Name("FdtExchangeBegin").Device(tensorflow::DEVICE_GPU), BeginOp);
REGISTER_KERNEL_BUILDER(Name("FdtExchangeEnd").Device(tensorflow::DEVICE_CPU), EndOp);
REGISTER_KERNEL_BUILDER(Name("FdtExchangeEnd").Device(tensorflow::DEVICE_GPU), EndOp);

}  // namespace
}  // namespace fdt

extern "C" {

void fdt_meter_reset() { fdt::meter().Reset(); }

double fdt_meter_seconds() { return fdt::meter().seconds(); }

uint64_t fdt_meter_num_bytes() { return fdt::meter().num_bytes(); }

}  // extern "C"
