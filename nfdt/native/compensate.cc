// The operation that compensates a gradient for the distance the parameters have moved (formulas: nfdt/rules.py).
//
// One pass reads g, w, w_bak and s, writes s where it is and the compensated gradient; a second pass follows for those tensors
// only whose correction is longer than the clip allows. (Where the optimizer is a usual one, update.cc does both in one.)

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "compensation.h"
#include "spare.h"

namespace fdt {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
namespace errors = tensorflow::errors;

// Puts the gradient's entries in runs. `lengths`: what the tensors take of a vector; rows are of one tensor.
absl::Status Divide(const OpInputList& gradient, const Tensor& now, const Tensor& then, const Tensor& indices,
                    const std::vector<int64_t>& lengths, std::vector<Run>* runs) {
  const auto add = [runs](int64_t tensor, int64_t from, int64_t given, int64_t kept, int64_t length) {
    for (int64_t done = 0; done < length; done += kRun) {
      runs->push_back({tensor, from + done, given + done, kept + done, std::min(kRun, length - done)});
    }
  };
  if (lengths.empty()) {
    const int64_t number = indices.NumElements(), rows = now.dims() > 0 ? now.dim_size(0) : 0;
    const int64_t width = rows > 0 ? now.NumElements() / rows : 0;
    if (gradient.size() != 1 || gradient[0].NumElements() != number * width || now.shape() != then.shape()) {
      return errors::InvalidArgument("Gradient, table and snapshot differ in shape");
    }
    for (int64_t i = 0; i < indices.NumElements(); ++i) {
      const int64_t row = indices.vec<int64_t>()(i);
      if (row < 0 || row >= rows) return errors::InvalidArgument("There is no row ", row, " in a table of ", rows);
      add(0, i * width, i * width, row * width, width);
    }
    return absl::OkStatus();
  }
  int64_t place = 0;
  for (size_t k = 0; k < lengths.size() && int(k) < gradient.size(); place += lengths[k++]) {
    if (gradient[k].NumElements() > lengths[k]) return errors::InvalidArgument("Tensor ", k, " is longer than its place");
    add(k, 0, place, place, gradient[k].NumElements());
  }
  if (int(lengths.size()) != gradient.size() || place != now.NumElements() || place != then.NumElements()) {
    return errors::InvalidArgument("Gradient, parameters, snapshot and lengths differ: ", gradient.size(), " tensors, ", place,
                                   " places, ", now.shape().DebugString(), ", ", then.shape().DebugString());
  }
  return absl::OkStatus();
}

template <typename T>
class CompensateOp : public tensorflow::OpKernel {
 public:
  using W = typename Wide<T>::type;

  explicit CompensateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("correct", &correct_));
    OP_REQUIRES_OK(context, context->GetAttr("lengths", &lengths_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradient, mean_square;
    OP_REQUIRES_OK(context, context->input_list("gradient", &gradient));
    OP_REQUIRES_OK(context, context->input_list("mean_square", &mean_square));
    const int others = gradient.size();
    const Tensor &now = context->input(others), &then = context->input(others + 1), &indices = context->input(others + 2);
    const bool is_late = context->input(others + 3).scalar<int64_t>()() > 0;
    const auto settings = context->input(others + 5).vec<double>();
    Strength strength{settings(0), settings(1), settings(2), 1.0};
    if (correct_) strength.correction = 1 - std::pow(strength.decay, double(context->input(others + 4).scalar<float>()()));
    std::vector<Run> runs;
    OP_REQUIRES_OK(context, Divide(gradient, now, then, indices, lengths_, &runs));
    Tensor* squares;
    // Not the gradient's own memory, which a second pass reads.
    const tensorflow::TensorShape& shape = lengths_.empty() ? gradient[0].shape() : now.shape();
    Tensor compensated;
    OP_REQUIRES_OK(context, spare_.Take(context, tensorflow::DataTypeToEnum<T>::value, shape, &compensated));
    context->set_output(0, compensated);
    OP_REQUIRES_OK(context, context->allocate_output(1, tensorflow::TensorShape({2}), &squares));
    tensorflow::core::RefCountPtr<Var> kept;
    std::optional<tensorflow::mutex_lock> lock;
    if (mean_square.size()) {
      const auto& handle = mean_square[0].flat<tensorflow::ResourceHandle>()(0);
      OP_REQUIRES_OK(context, tensorflow::LookupResource(context, handle, &kept));
      lock.emplace(*kept->mu());
      OP_REQUIRES(context, kept->tensor()->NumElements() == then.NumElements(),
                  errors::InvalidArgument("The mean of squares has another size"));
      OP_REQUIRES_OK(context, Own(context, kept->tensor()));
    }
    std::vector<const T*> tensors;
    for (int k = 0; k < gradient.size(); ++k) tensors.push_back(gradient[k].flat<T>().data());
    Clear(gradient, compensated.flat<T>().data());
    const Compensation<T> compensation(tensors, is_late ? now.flat<T>().data() : nullptr,
                                       then.flat<T>().data(), kept ? kept->tensor()->template flat<W>().data() : nullptr,
                                       strength);
    const Sums sums = CompensateAll(compensation, runs, gradient.size(), settings(3), compensated.flat<T>().data());
    squares->vec<float>()(0) = sums.correction;
    squares->vec<float>()(1) = sums.gradient;
    spare_.Leave(compensated);
  }

 private:
  // What lies between the tensors of a vector is zero.
  void Clear(const OpInputList& gradient, T* out) const {
    for (size_t k = 0; k < lengths_.size(); out += lengths_[k++]) {
      std::fill(out + gradient[k].NumElements(), out + lengths_[k], T(0));
    }
  }

  bool correct_;
  std::vector<int64_t> lengths_;
  Spare spare_;
};

REGISTER_OP("FdtCompensate")
    .Input("gradient: M * T")
    .Input("now: T")
    .Input("then: T")
    .Input("indices: int64")
    .Input("delay: int64")
    .Input("count: float")
    .Input("settings: double")
    .Input("mean_square: N * resource")
    .Output("compensated: T")
    .Output("squares: float")
    .Attr("correct: bool")
    .Attr("lengths: list(int)")
    .Attr("M: int >= 1")
    .Attr("N: int >= 0")
    .Attr("T: {half, bfloat16, float, double}")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      // Rows have their gradient's shape, a vector is as long as its parameters.
      std::vector<int64_t> lengths;
      TF_RETURN_IF_ERROR(context->GetAttr("lengths", &lengths));
      std::vector<tensorflow::shape_inference::ShapeHandle> like;
      TF_RETURN_IF_ERROR(context->input(lengths.empty() ? "gradient" : "now", &like));
      context->set_output(0, like[0]);
      context->set_output(1, context->Vector(2));
      return absl::OkStatus();
    });

#define FDT_COMPENSATE(T) \
  REGISTER_KERNEL_BUILDER(Name("FdtCompensate").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), CompensateOp<T>);
FDT_COMPENSATE(Eigen::half)
FDT_COMPENSATE(tensorflow::bfloat16)
FDT_COMPENSATE(float)
FDT_COMPENSATE(double)
#undef FDT_COMPENSATE

}  // namespace
}  // namespace fdt
