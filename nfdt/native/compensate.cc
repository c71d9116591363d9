// The operation that compensates a gradient for the distance the parameters have moved (formulas: nfdt/rules.py).
//
// One pass reads g, w, w_bak and s, writes s where it is and the compensated gradient; a second pass follows for those tensors
// only whose correction is longer than the clip allows. Sums go block by block in a fixed order, however many threads there are.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
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

#include "spare.h"
#include "threads.h"

namespace fdt {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
namespace errors = tensorflow::errors;

// Entries that one thread takes at a time, and partial sums that it keeps beside each other.
constexpr int64_t kBlock = 1 << 14;
constexpr int64_t kLanes = 16;
// Nanoseconds an entry takes, by which TensorFlow decides how many threads share the work.
constexpr int64_t kCostPerEntry = 1;

// Half precision is computed in 32 bits: squares of small 16-bit numbers are zero, of large ones infinite.
template <typename T>
struct Wide {
  using type = float;
};
template <>
struct Wide<double> {
  using type = double;
};

struct Strength {
  double lambda0, decay, epsilon, correction;
};

// Entries that are compensated together and lie one after the other: in which of the gradient's tensors and where in it, where in
// the result, and where in what the shard keeps.
struct Run {
  int64_t group, tensor, from, given, kept, length;
};

struct Sums {
  double correction = 0, gradient = 0;
};

template <typename T>
class Compensation {
 public:
  using W = typename Wide<T>::type;

  // `s` is null for a constant strength; `now` and `then` are null for a gradient that met no delay.
  Compensation(const std::vector<const T*>& g, const T* now, const T* then, W* s, T* out, const Strength& strength)
      : g_(g), now_(now), then_(then), s_(s), out_(out), strength_(strength) {}

  Sums First(const Run& run) const {
    if (now_ == nullptr) return Note(run);
    return s_ != nullptr ? Pass<true, true>(run, W(1)) : Pass<false, true>(run, W(1));
  }

  // Computes the same correction again, and adds so much of it.
  void Second(const Run& run, double scale) const {
    s_ != nullptr ? Pass<true, false>(run, W(scale)) : Pass<false, false>(run, W(scale));
  }

 private:
  // What overflowed is forgotten: whoever scales a loss leaves such a step out and goes on.
  static W Mean(W before, W square, W decay, W rest) {
    const W after = decay * before + rest * square;
    return after <= std::numeric_limits<W>::max() ? after : before;
  }

  template <bool kAdaptive, bool kFirst>
  Sums Pass(const Run& run, W scale) const {
    const W lambda0 = strength_.lambda0, decay = strength_.decay, rest = 1 - strength_.decay;
    const W epsilon = strength_.epsilon, inverse = 1 / strength_.correction;
    // That they do not overlap is what lets the compiler compute several entries at once.
    const T *__restrict g_of = g_[run.tensor] + run.from, *__restrict now = now_ + run.kept, *__restrict then = then_ + run.kept;
    W* __restrict s_of = s_ + run.kept;
    T* __restrict out = out_ + run.given;
    W corrections[kLanes] = {}, gradients[kLanes] = {};
    const auto one = [&](int64_t i, int64_t lane) {
      const W g = W(g_of[i]), square = g * g;
      W factor = lambda0 * square;
      if (kAdaptive) {
        if (kFirst) s_of[i] = Mean(s_of[i], square, decay, rest);
        factor /= std::sqrt(s_of[i] * inverse + epsilon);
      }
      const W c = factor * (W(now[i]) - W(then[i]));
      if (kFirst) {
        corrections[lane] += c * c;
        gradients[lane] += square;
        out[i] = T(g + c);
      } else {
        // What overflowed is no correction, and zero times infinity is no number.
        out[i] = T(scale == W(0) ? g : g + scale * c);
      }
    };
    int64_t i = 0;
    for (; i + kLanes <= run.length; i += kLanes) {
      for (int64_t lane = 0; lane < kLanes; ++lane) one(i + lane, lane);
    }
    for (; i < run.length; ++i) one(i, 0);
    Sums sums;
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      sums.correction += corrections[lane];
      sums.gradient += gradients[lane];
    }
    return sums;
  }

  // Only s takes note of it.
  Sums Note(const Run& run) const {
    const W decay = strength_.decay, rest = 1 - strength_.decay;
    for (int64_t i = 0; i < run.length; ++i) {
      const T given = g_[run.tensor][run.from + i];
      const W g = W(given);
      if (s_ != nullptr) s_[run.kept + i] = Mean(s_[run.kept + i], g * g, decay, rest);
      out_[run.given + i] = given;
    }
    return Sums();
  }

  const std::vector<const T*> g_;
  const T *const now_, *const then_;
  W* const s_;
  T* const out_;
  const Strength strength_;
};

// Puts the gradient's entries in runs of one block at most. `lengths`: what the tensors take of a vector, each a group; rows are
// one group.
absl::Status Divide(const OpInputList& gradient, const Tensor& now, const Tensor& then, const Tensor& indices,
                    const std::vector<int64_t>& lengths, std::vector<Run>* runs) {
  const auto add = [runs](int64_t tensor, int64_t from, int64_t given, int64_t kept, int64_t length) {
    for (int64_t done = 0; done < length; done += kBlock) {
      runs->push_back({tensor, tensor, from + done, given + done, kept + done, std::min(kBlock, length - done)});
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
      OP_REQUIRES_OK(context, Own(context, kept->tensor(), then.NumElements()));
    }
    std::vector<const T*> tensors;
    for (int k = 0; k < gradient.size(); ++k) tensors.push_back(gradient[k].flat<T>().data());
    Clear(gradient, compensated.flat<T>().data());
    const Compensation<T> compensation(tensors, is_late ? now.flat<T>().data() : nullptr,
                                       then.flat<T>().data(), kept ? kept->tensor()->template flat<W>().data() : nullptr,
                                       compensated.flat<T>().data(), strength);
    const Sums sums = Apply(compensation, runs, settings(3));
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

  // Somebody who has read it keeps what was read.
  static absl::Status Own(OpKernelContext* context, Tensor* kept, int64_t size) {
    if (kept->NumElements() != size) return errors::InvalidArgument("The mean of squares has another size");
    if (kept->RefCountIsOne()) return absl::OkStatus();
    Tensor copy;
    TF_RETURN_IF_ERROR(context->allocate_temp(kept->dtype(), kept->shape(), &copy));
    copy.flat<W>() = kept->flat<W>();
    *kept = copy;
    return absl::OkStatus();
  }

  Sums Apply(const Compensation<T>& compensation, const std::vector<Run>& runs, double clip) const {
    if (runs.empty()) return Sums();
    int64_t entries = 0;
    for (const Run& run : runs) entries += run.length;
    const int64_t cost_each = kCostPerEntry * entries / int64_t(runs.size());
    const auto each = [&](const std::function<void(int64_t)>& work) {
      InParallel(runs.size(), cost_each, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) work(i);
      });
    };
    std::vector<Sums> parts(runs.size());
    each([&](int64_t i) { parts[i] = compensation.First(runs[i]); });
    std::vector<Sums> groups(std::max<size_t>(1, lengths_.size()));
    for (size_t i = 0; i < runs.size(); ++i) {
      groups[runs[i].group].correction += parts[i].correction;
      groups[runs[i].group].gradient += parts[i].gradient;
    }
    std::vector<double> scales;
    Sums total;
    for (const Sums& group : groups) {
      scales.push_back(Scale(group, clip));
      if (scales.back() > 0) total.correction += scales.back() * scales.back() * group.correction;
      total.gradient += group.gradient;
    }
    if (std::any_of(scales.begin(), scales.end(), [](double scale) { return scale != 1; })) {
      each([&](int64_t i) {
        if (scales[runs[i].group] != 1) compensation.Second(runs[i], scales[runs[i].group]);
      });
    }
    return total;
  }

  // Makes a correction as long as the clip times the gradient, if it is longer.
  static double Scale(const Sums& sums, double clip) {
    if (!std::isfinite(sums.correction)) return 0;
    if (std::isinf(clip) || sums.correction <= clip * clip * sums.gradient) return 1;
    return clip * std::sqrt(sums.gradient / sums.correction);
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
