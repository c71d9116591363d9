// The operations that compensate a gradient for the distance the parameters have moved (formulas: nfdt/rules.py).
//
// One pass reads g, w, w_bak and s, and writes s in place and the compensated gradient. A second pass follows only for tensors
// whose correction is longer than the clip allows. (For optimizers with a compiled formula, update.cc does both in one pass.)
//
// A table's row may have several values, whose sum is g. An optimizer may treat several values differently from their sum
// (Keras's sum the squares of each), so they stay separate: each is multiplied by g's factor, 1 + c / g.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
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
#include "rows.h"
#include "spare.h"

namespace fdt {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
namespace errors = tensorflow::errors;

// Divides the gradient's entries into runs. `lengths`: how many entries of the vector each tensor takes.
absl::Status Divide(const OpInputList& gradient, const Tensor& now, const Tensor& then, const std::vector<int64_t>& lengths,
                    std::vector<Run>* runs) {
  int64_t place = 0;
  for (size_t k = 0; k < lengths.size() && int(k) < gradient.size(); place += lengths[k++]) {
    const int64_t number = gradient[k].NumElements();
    if (number > lengths[k]) return errors::InvalidArgument("Tensor ", k, " is longer than its place");
    for (int64_t done = 0; done < number; done += kRun) {
      runs->push_back({int64_t(k), done, place + done, place + done, std::min(kRun, number - done)});
    }
  }
  if (int(lengths.size()) != gradient.size() || place != now.NumElements() || place != then.NumElements()) {
    return errors::InvalidArgument("Gradient, parameters, snapshot and lengths differ: ", gradient.size(), " tensors, ", place,
                                   " places, ", now.shape().DebugString(), ", ", then.shape().DebugString());
  }
  return absl::OkStatus();
}

Strength StrengthOf(const Tensor& settings, bool correct, double count) {
  const auto set = settings.vec<double>();
  Strength strength{set(0), set(1), set(2), 1.0};
  if (correct) strength.correction = 1 - std::pow(strength.decay, count);
  return strength;
}

// s, locked; null for a rule without s.
template <typename W>
class MeanSquare {
 public:
  absl::Status Open(OpKernelContext* context) {
    OpInputList handles;
    TF_RETURN_IF_ERROR(context->input_list("mean_square", &handles));
    if (!handles.size()) return absl::OkStatus();
    const auto& handle = handles[0].flat<tensorflow::ResourceHandle>()(0);
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handle, &kept_));
    lock_.emplace(*kept_->mu());
    TF_RETURN_IF_ERROR(Own(context, kept_->tensor()));
    data_ = kept_->tensor()->template flat<W>().data();
    return absl::OkStatus();
  }

  W* data() const { return data_; }
  int64_t size() const { return kept_->tensor()->NumElements(); }

 private:
  tensorflow::core::RefCountPtr<Var> kept_;
  std::optional<tensorflow::mutex_lock> lock_;
  W* data_ = nullptr;
};

template <typename T>
class CompensateOp : public tensorflow::OpKernel {
 public:
  using W = typename Wide<T>::type;

  explicit CompensateOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("correct", &correct_));
    OP_REQUIRES_OK(context, context->GetAttr("lengths", &lengths_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradient;
    OP_REQUIRES_OK(context, context->input_list("gradient", &gradient));
    const int others = gradient.size();
    const Tensor &now = context->input(others), &then = context->input(others + 1);
    const bool is_late = context->input(others + 2).scalar<int64_t>()() > 0;
    const Tensor& settings = context->input(others + 4);
    const Strength strength = StrengthOf(settings, correct_, context->input(others + 3).scalar<float>()());
    std::vector<Run> runs;
    OP_REQUIRES_OK(context, Divide(gradient, now, then, lengths_, &runs));
    Tensor* squares;
    // Not the gradient's own memory, which a second pass reads.
    Tensor compensated;
    OP_REQUIRES_OK(context, spare_.Take(context, tensorflow::DataTypeToEnum<T>::value, now.shape(), &compensated));
    context->set_output(0, compensated);
    OP_REQUIRES_OK(context, context->allocate_output(1, tensorflow::TensorShape({2}), &squares));
    MeanSquare<W> s;
    OP_REQUIRES_OK(context, s.Open(context));
    OP_REQUIRES(context, s.data() == nullptr || s.size() == then.NumElements(),
                errors::InvalidArgument("The mean of squares has another size"));
    std::vector<const T*> tensors;
    for (int k = 0; k < gradient.size(); ++k) tensors.push_back(gradient[k].flat<T>().data());
    Clear(gradient, compensated.flat<T>().data());
    const Compensation<T> compensation(tensors, is_late ? now.flat<T>().data() : nullptr, then.flat<T>().data(), s.data(),
                                       strength);
    const double clip = settings.vec<double>()(3);
    const Sums sums = CompensateAll(compensation, runs, gradient.size(), clip, compensated.flat<T>().data());
    squares->vec<float>()(0) = sums.correction;
    squares->vec<float>()(1) = sums.gradient;
    spare_.Leave(compensated);
  }

 private:
  // Zeros the padding between the tensors of a vector.
  void Clear(const OpInputList& gradient, T* out) const {
    for (size_t k = 0; k < lengths_.size(); out += lengths_[k++]) {
      std::fill(out + gradient[k].NumElements(), out + lengths_[k], T(0));
    }
  }

  bool correct_;
  std::vector<int64_t> lengths_;
  Spare spare_;
};

// For a table: values for some of its rows, perhaps several for one row. All of them are clipped as one tensor.
template <typename T>
class CompensateRowsOp : public tensorflow::OpKernel {
 public:
  using W = typename Wide<T>::type;

  explicit CompensateRowsOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("correct", &correct_));
  }

  void Compute(OpKernelContext* context) override {
    const Tensor &values = context->input(0), &indices = context->input(1), &order = context->input(2);
    const Tensor &now = context->input(3), &then = context->input(4), &settings = context->input(7);
    const bool is_late = context->input(5).scalar<int64_t>()() > 0;
    const Entry<T> entry(StrengthOf(settings, correct_, context->input(6).scalar<float>()()));
    const int64_t number = indices.NumElements(), width = number > 0 ? values.NumElements() / number : 0;
    OP_REQUIRES(context, values.NumElements() == number * width && now.shape() == values.shape() && then.shape() == now.shape(),
                errors::InvalidArgument("Gradient, rows and their snapshot differ in shape"));
    MeanSquare<W> s;
    OP_REQUIRES_OK(context, s.Open(context));
    OP_REQUIRES(context, s.data() == nullptr || s.size() % std::max<int64_t>(width, 1) == 0,
                errors::InvalidArgument("The mean of squares has other rows"));
    Groups groups;
    const int64_t any = std::numeric_limits<int64_t>::max();
    OP_REQUIRES_OK(context, groups.Find(indices, order, s.data() != nullptr && width > 0 ? s.size() / width : any));
    Tensor* squares;
    OP_REQUIRES_OK(context, context->allocate_output(1, tensorflow::TensorShape({2}), &squares));
    squares->vec<float>().setZero();
    Of of{groups, entry, width, values.flat<T>().data(), s.data(), nullptr, nullptr, nullptr};
    if (!is_late) {
      context->set_output(0, values);
      if (s.data() != nullptr) of.All([&](int64_t group, W* sum, W*) { of.Note(group, sum); });
      return;
    }
    Tensor compensated;
    OP_REQUIRES_OK(context, spare_.Take(context, tensorflow::DataTypeToEnum<T>::value, values.shape(), &compensated));
    context->set_output(0, compensated);
    of.now = now.flat<T>().data(), of.then = then.flat<T>().data(), of.out = compensated.flat<T>().data();
    const Sums sums = s.data() != nullptr ? Compensated<true>(of, settings) : Compensated<false>(of, settings);
    squares->vec<float>()(0) = sums.correction;
    squares->vec<float>()(1) = sums.gradient;
    spare_.Leave(compensated);
  }

 private:
  struct Of {
    const Groups& groups;
    const Entry<T>& entry;
    const int64_t width;
    const T* values;
    W* s;
    const T *now, *then;
    T* out;

    // Calls `work` with every group, the sum of its row's values, and a buffer of the same size.
    template <typename Work>
    void All(const Work& work) const {
      InParallel(groups.size(), 2 * kCostPerEntry * width, [&](int64_t begin, int64_t end) {
        std::vector<W> sum(width), room(width);
        for (int64_t group = begin; group < end; ++group) {
          std::fill(sum.begin(), sum.end(), W(0));
          for (int64_t k = 0; k < groups.length(group); ++k) {
            const T* __restrict value = values + groups.place(group, k) * width;
            for (int64_t i = 0; i < width; ++i) sum[i] += W(value[i]);
          }
          work(group, sum.data(), room.data());
        }
      });
    }

    void Note(int64_t group, const W* __restrict g) const {
      W* __restrict s_of = s + groups.rows()[group] * width;
      for (int64_t i = 0; i < width; ++i) s_of[i] = entry.Mean(s_of[i], g[i]);
    }

    // Writes c / g of a row.
    template <bool kAdaptive>
    void Factors(int64_t group, const W* __restrict g, W* __restrict factors) const {
      // All of a row's values have the same.
      const int64_t place = groups.place(group, 0) * width;
      const T *__restrict now_of = now + place, *__restrict then_of = then + place;
      const W* __restrict s_of = s + groups.rows()[group] * width;
      for (int64_t i = 0; i < width; ++i) {
        factors[i] = entry.template Factor<kAdaptive>(g[i], kAdaptive ? s_of[i] : W(0), W(now_of[i]) - W(then_of[i]));
      }
    }

    // Multiplies each of a row's values by 1 + scale * c / g.
    void Apply(int64_t group, const W* __restrict factors, W scale) const {
      for (int64_t k = 0; k < groups.length(group); ++k) {
        const T* __restrict value = values + groups.place(group, k) * width;
        T* __restrict written = out + groups.place(group, k) * width;
        for (int64_t i = 0; i < width; ++i) written[i] = T(W(value[i]) + scale * (factors[i] * W(value[i])));
      }
    }

    Sums Squares(const W* __restrict g, const W* __restrict factors) const {
      W corrections[kLanes] = {}, gradients[kLanes] = {};
      const auto one = [&](int64_t i, int64_t lane) {
        const W c = factors[i] * g[i];
        corrections[lane] += c * c;
        gradients[lane] += g[i] * g[i];
      };
      int64_t i = 0;
      for (; i + kLanes <= width; i += kLanes) {
        for (int64_t lane = 0; lane < kLanes; ++lane) one(i + lane, lane);
      }
      for (; i < width; ++i) one(i, 0);
      Sums sums;
      for (int64_t lane = 0; lane < kLanes; ++lane) sums.Add({corrections[lane], gradients[lane]});
      return sums;
    }
  };

  template <bool kAdaptive>
  static Sums Compensated(const Of& of, const Tensor& settings) {
    std::vector<Sums> parts(of.groups.size());
    of.All([&](int64_t group, W* sum, W* factors) {
      if (kAdaptive) of.Note(group, sum);
      of.template Factors<kAdaptive>(group, sum, factors);
      parts[group] = of.Squares(sum, factors);
      of.Apply(group, factors, W(1));
    });
    Sums sums;
    for (const Sums& part : parts) sums.Add(part);
    const double scale = sums.Scale(settings.vec<double>()(3));
    if (scale != 1) {
      of.All([&](int64_t group, W* sum, W* factors) {
        of.template Factors<kAdaptive>(group, sum, factors);
        of.Apply(group, factors, W(scale));
      });
    }
    return {scale > 0 ? scale * scale * sums.correction : 0, sums.gradient};
  }

  bool correct_;
  Spare spare_;
};

REGISTER_OP("FdtCompensate")
    .Input("gradient: M * T")
    .Input("now: T")
    .Input("then: T")
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
      // As long as the parameters.
      std::vector<tensorflow::shape_inference::ShapeHandle> like;
      TF_RETURN_IF_ERROR(context->input("now", &like));
      context->set_output(0, like[0]);
      context->set_output(1, context->Vector(2));
      return absl::OkStatus();
    });

REGISTER_OP("FdtCompensateRows")
    .Input("values: T")
    .Input("indices: Index")
    .Input("order: int64")
    .Input("now: T")
    .Input("then: T")
    .Input("delay: int64")
    .Input("count: float")
    .Input("settings: double")
    .Input("mean_square: N * resource")
    .Output("compensated: T")
    .Output("squares: float")
    .Attr("correct: bool")
    .Attr("N: int >= 0")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Index: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->input(0));
      context->set_output(1, context->Vector(2));
      return absl::OkStatus();
    });

#define FDT_COMPENSATE(T)                                                                                                    \
  REGISTER_KERNEL_BUILDER(Name("FdtCompensate").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), CompensateOp<T>);    \
  REGISTER_KERNEL_BUILDER(Name("FdtCompensateRows").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), CompensateRowsOp<T>);
FDT_COMPENSATE(Eigen::half)
FDT_COMPENSATE(tensorflow::bfloat16)
FDT_COMPENSATE(float)
FDT_COMPENSATE(double)
#undef FDT_COMPENSATE

}  // namespace
}  // namespace fdt
