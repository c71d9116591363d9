// The operation that updates a parameter and what its optimizer keeps of it, entry by entry, in one pass over memory. Its results
// are bit for bit those of the operations that it replaces: a formula has theirs, in their order, and the compiler fuses none.

#include <algorithm>
#include <cstdint>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/threadpool.h"

#include "entries.h"
#include "runs.h"

namespace fdt {
namespace {

template <typename T>
class UpdateVariablesOp : public tensorflow::OpKernel {
 public:
  explicit UpdateVariablesOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, FormulaOf(context, &formula_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES(context, gradients.size() <= kMostGradients,
                errors::InvalidArgument("A formula has ", kMostGradients, " gradients at most"));
    Held<T> held;
    OP_REQUIRES_OK(context, held.Open(context, &spare_));
    const int64_t size = held.shape().num_elements();
    const T* of[kMostGradients];
    for (int k = 0; k < kMostGradients; ++k) {
      const Tensor& gradient = gradients[std::min(k, gradients.size() - 1)];
      OP_REQUIRES(context, gradient.NumElements() == size,
                  errors::InvalidArgument("A gradient has ", gradient.NumElements(), " entries, its variable ", size));
      of[k] = gradient.flat<T>().data();
    }
    const auto update = [&](int64_t begin, int64_t end) {
      for (int64_t place = begin; place < end; place += kRun) {
        Entries<T> entries = held.From(place);
        for (int k = 0; k < kMostGradients; ++k) entries.gradients[k] = of[k] + place;
        entries.length = std::min(kRun, end - place);
        Apply(formula_, entries);
      }
    };
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(size, kCostPerEntry, update);
    held.Keep();
  }

 private:
  Formula formula_;
  Spare spare_;
};

REGISTER_OP("FdtUpdateVariables")
    .Input("gradients: N * T")
    .Input("scalars: K * T")
    .Input("variables: V * resource")
    .Attr("formula: string")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("T: {float, double}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("FdtUpdateVariables").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"),
                        UpdateVariablesOp<float>);
REGISTER_KERNEL_BUILDER(Name("FdtUpdateVariables").Device(tensorflow::DEVICE_CPU).TypeConstraint<double>("T"),
                        UpdateVariablesOp<double>);

}  // namespace
}  // namespace fdt
