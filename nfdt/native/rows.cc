// Operations on the row numbers of a table: they sort a sparse gradient's values by row, before the table is locked, and find the
// distinct rows that lookups ask for.

#include <algorithm>
#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/errors.h"

#include "rows.h"

namespace fdt {
namespace {

using tensorflow::OpKernelContext;
using tensorflow::Tensor;

class ByRowOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    const Tensor& indices = context->input(0);
    Tensor* order;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({indices.NumElements()}), &order));
    ByRow(indices, order);
  }
};

// Several tensors of row numbers become distinct numbers, in the order in which they first come, and each number's place among them.
class DistinctOp : public tensorflow::OpKernel {
 public:
  explicit DistinctOp(tensorflow::OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("rows", &rows_));
  }

  void Compute(OpKernelContext* context) override {
    int64_t number = 0;
    for (int k = 0; k < context->num_inputs(); ++k) number += context->input(k).NumElements();
    std::unordered_map<int64_t, int64_t> known;
    known.reserve(number);
    std::vector<int64_t> distinct;
    for (int k = 0; k < context->num_inputs(); ++k) {
      const Tensor& asked = context->input(k);
      const auto rows = asked.flat<int64_t>();
      Tensor* places;
      OP_REQUIRES_OK(context, context->allocate_output(k + 1, asked.shape(), &places));
      auto place = places->flat<int64_t>();
      for (int64_t i = 0; i < rows.size(); ++i) {
        // The error of TensorFlow's lookup.
        OP_REQUIRES(context, rows(i) >= 0 && rows(i) < rows_,
                    tensorflow::errors::InvalidArgument("indices", Position(asked.shape(), i), " = ", rows(i), " is not in [0, ",
                                                        rows_, ")"));
        const auto [found, is_new] = known.try_emplace(rows(i), distinct.size());
        if (is_new) distinct.push_back(rows(i));
        place(i) = found->second;
      }
    }
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({int64_t(distinct.size())}), &output));
    std::copy(distinct.begin(), distinct.end(), output->flat<int64_t>().data());
  }

 private:
  // Returns the coordinates of an element, as "[0,3]"; nothing for a scalar.
  static std::string Position(const tensorflow::TensorShape& shape, int64_t flat) {
    std::string position;
    for (int dim = shape.dims() - 1; dim >= 0; flat /= shape.dim_size(dim--)) {
      position = std::to_string(flat % shape.dim_size(dim)) + (position.empty() ? "" : ",") + position;
    }
    return position.empty() ? position : "[" + position + "]";
  }

  int64_t rows_;
};

REGISTER_OP("FdtDistinct")
    .Input("asked: N * int64")
    .Output("distinct: int64")
    .Output("places: N * int64")
    .Attr("rows: int >= 0")
    .Attr("N: int >= 1")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(tensorflow::shape_inference::InferenceContext::kUnknownDim));
      for (int k = 0; k < context->num_inputs(); ++k) context->set_output(k + 1, context->input(k));
      return absl::OkStatus();
    });

REGISTER_OP("FdtByRow")
    .Input("indices: Index")
    .Output("order: int64")
    .Attr("Index: {int32, int64}")
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(0));
      return absl::OkStatus();
    });

REGISTER_KERNEL_BUILDER(Name("FdtDistinct").Device(tensorflow::DEVICE_CPU), DistinctOp);
REGISTER_KERNEL_BUILDER(Name("FdtByRow").Device(tensorflow::DEVICE_CPU), ByRowOp);

}  // namespace
}  // namespace fdt
