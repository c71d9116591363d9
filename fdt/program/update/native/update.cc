// The operations that update a parameter and what its optimizer keeps of it, entry by entry, in one pass over memory. Their results
// are bit for bit those of the operations that it replaces: a formula has theirs, in their order, and the compiler fuses none.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/threadpool.h"

#include "entries.h"
#include "rows.h"
#include "runs.h"
#include "table_rows.h"

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

// Of a table all rows are updated: gradients have values for some, perhaps several for one row.
template <typename T>
class UpdateTableVariablesOp : public tensorflow::OpKernel {
 public:
  explicit UpdateTableVariablesOp(OpKernelConstruction* context) : OpKernel(context), none_(kRun, T(0)) {
    OP_REQUIRES_OK(context, FormulaOf(context, &formula_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    const Tensor& indices = context->input(gradients.size());
    OP_REQUIRES(context, gradients.size() <= kMostGradients,
                errors::InvalidArgument("A formula has ", kMostGradients, " gradients at most"));
    const int64_t number = indices.NumElements();
    Tensor order;
    OP_REQUIRES_OK(context, context->allocate_temp(tensorflow::DT_INT64, tensorflow::TensorShape({number}), &order));
    ByRow(indices, &order);
    Held<T> held;
    OP_REQUIRES_OK(context, held.Open(context, &spare_));
    const int64_t rows = held.shape().dims() > 0 ? held.shape().dim_size(0) : 0;
    const int64_t width = rows > 0 ? held.shape().num_elements() / rows : 0;
    std::vector<const T*> values;
    for (int k = 0; k < gradients.size(); ++k) {
      OP_REQUIRES(context, gradients[k].NumElements() == number * width,
                  errors::InvalidArgument("Gradient ", k, " has ", gradients[k].NumElements(), " entries for ", number,
                                          " rows of ", width));
      values.push_back(gradients[k].template flat<T>().data());
    }
    Groups groups;
    OP_REQUIRES_OK(context, groups.Find(indices, order, rows));
    const auto update = [&](int64_t begin, int64_t end) {
      UpdateRows(formula_, held, values, groups, width, begin, end, none_.data());
    };
    context->device()->tensorflow_cpu_worker_threads()->workers->ParallelFor(rows, kCostPerEntry * width, update);
    held.Keep();
  }

 private:
  Formula formula_;
  Spare spare_;
  const std::vector<T> none_;
};

REGISTER_OP("FdtUpdateTableVariables")
    .Input("gradients: N * T")
    .Input("indices: Index")
    .Input("scalars: K * T")
    .Input("variables: V * resource")
    .Attr("formula: string")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("T: {float, double}")
    .Attr("Index: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

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

#define FDT_REGISTER(T)                                                                                                     \
  REGISTER_KERNEL_BUILDER(Name("FdtUpdateVariables").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),                 \
                          UpdateVariablesOp<T>);                                                                            \
  REGISTER_KERNEL_BUILDER(Name("FdtUpdateTableVariables").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"),            \
                          UpdateTableVariablesOp<T>);

FDT_REGISTER(float)
FDT_REGISTER(double)

}  // namespace
}  // namespace fdt
