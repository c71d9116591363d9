// Assigns some rows of a variable in place. TensorFlow's own operation for this makes every later read of the variable a copy, and
// assigning all of it takes its size twice.

#include <cstdint>
#include <cstring>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "spare.h"

namespace fdt {
namespace {

namespace errors = tensorflow::errors;

class AssignRowsOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(tensorflow::OpKernelContext* context) override {
    const tensorflow::Tensor& rows = context->input(1);
    const int64_t start = context->input(2).scalar<int64_t>()();
    tensorflow::core::RefCountPtr<tensorflow::Var> variable;
    OP_REQUIRES_OK(context, tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable));
    tensorflow::mutex_lock lock(*variable->mu());
    tensorflow::Tensor* held = variable->tensor();
    OP_REQUIRES(context, held->dtype() == rows.dtype() && held->dims() > 0 && rows.dims() == held->dims(),
                errors::InvalidArgument("Rows of another type or rank than their variable"));
    for (int dim = 1; dim < held->dims(); ++dim) {
      OP_REQUIRES(context, held->dim_size(dim) == rows.dim_size(dim),
                  errors::InvalidArgument("Rows of another size than their variable's"));
    }
    OP_REQUIRES(context, start >= 0 && rows.dim_size(0) <= held->dim_size(0) - start,
                errors::InvalidArgument("Rows ", start, " to ", start + rows.dim_size(0), " of ", held->dim_size(0)));
    if (rows.NumElements() == 0) return;
    OP_REQUIRES_OK(context, Own(context, held));
    const size_t row_bytes = held->TotalBytes() / held->dim_size(0);
    std::memcpy(static_cast<char*>(held->data()) + start * row_bytes, rows.data(), rows.TotalBytes());
  }
};

REGISTER_OP("FdtAssignRows")
    .Input("variable: resource")
    .Input("rows: T")
    .Input("start: int64")
    .Attr("T: {half, bfloat16, float, double, int8, int16, int32, int64, uint8, uint16, uint32, uint64, bool}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

REGISTER_KERNEL_BUILDER(Name("FdtAssignRows").Device(tensorflow::DEVICE_CPU), AssignRowsOp);

}  // namespace
}  // namespace fdt
