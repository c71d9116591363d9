// The operations that apply an optimizer's update to vectors and to tables, entry by entry, in one pass over memory.
//
// The formula for an entry is in fdt/program/update/native/formulas.h.
//
// A delayed gradient of vectors is compensated in the same pass, block by block. The clip depends on a whole tensor, but has no
// effect while no parameter has moved far: with ŝ >= (1 - m) g² a correction λ0 g² Δ / √ŝ is no longer than the clip κ |g|
// while |Δ| <= κ √(1 - m) / λ0. The longest step of each update is remembered; the sum of these bounds |Δ|.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "compensation.h"
#include "entries.h"
#include "rows.h"
#include "table_rows.h"
#include "spare.h"

namespace fdt {
namespace {

// The longest step of the parameters in each of the last updates.
class Moved {
 public:
  Moved(float* history, int64_t size, int64_t version) : history_(history), size_(size), version_(version) {}

  // Returns how far a parameter can have moved in the last `delay` updates.
  double Since(int64_t delay) const {
    if (delay > size_) return std::numeric_limits<double>::infinity();
    double sum = 0;
    for (int64_t k = 1; k <= delay; ++k) sum += history_[(version_ - k) % size_];
    return sum;
  }

  void Note(float longest) { history_[version_ % size_] = longest; }

 private:
  float* const history_;
  const int64_t size_, version_;
};

// The tensors with which a delayed gradient is compensated, locked.
template <typename T>
class Late {
 public:
  using W = typename Wide<T>::type;

  absl::Status Open(OpKernelContext* context, bool correct, int64_t size) {
    OpInputList then, remembered;
    const Tensor *delay, *version, *settings;
    TF_RETURN_IF_ERROR(context->input_list("then", &then));
    TF_RETURN_IF_ERROR(context->input_list("remembered", &remembered));
    TF_RETURN_IF_ERROR(context->input("delay", &delay));
    TF_RETURN_IF_ERROR(context->input("version", &version));
    TF_RETURN_IF_ERROR(context->input("settings", &settings));
    if (then.size() != 1 || remembered.size() == 0 || settings->NumElements() != 4) {
      return errors::InvalidArgument("A compensation has one snapshot, what was moved, and four settings");
    }
    if (delay->NumElements() != 1 || version->NumElements() != 1) {
      return errors::InvalidArgument("A delay and a version are a number each");
    }
    if (then[0].NumElements() != size) {
      return errors::InvalidArgument("The snapshot has ", then[0].NumElements(), " entries, the parameters ", size);
    }
    then_ = then[0].flat<T>().data();
    delay_ = delay->flat<int64_t>()(0);
    clip_ = settings->vec<double>()(3);
    const auto set = settings->vec<double>();
    strength_ = {set(0), set(1), set(2), 1.0};
    const int64_t number = version->flat<int64_t>()(0);
    // So that each update that `Moved` is asked for has a number of 0 or more: % keeps the sign.
    if (number < 0 || delay_ > number) {
      return errors::InvalidArgument("There are no ", delay_, " versions before version ", number);
    }
    if (correct) strength_.correction = 1 - std::pow(strength_.decay, double(number));
    locks_.reserve(remembered.size());
    kept_.resize(remembered.size());
    for (int k = 0; k < remembered.size(); ++k) {
      const auto& handle = remembered[k].flat<tensorflow::ResourceHandle>()(0);
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handle, &kept_[k]));
      locks_.emplace_back(*kept_[k]->mu());
      TF_RETURN_IF_ERROR(Own(context, kept_[k]->tensor()));
    }
    Tensor* history = kept_[0]->tensor();
    if (history->NumElements() == 0) return errors::InvalidArgument("Of no update it is remembered how far it went");
    moved_.emplace(history->flat<float>().data(), history->NumElements(), number);
    if (kept_.size() > 1) {
      if (kept_[1]->tensor()->NumElements() != size) return errors::InvalidArgument("The mean of squares has another size");
      mean_square_ = kept_[1]->tensor()->template flat<W>().data();
    }
    return absl::OkStatus();
  }

  Compensation<T> Of(const std::vector<const T*>& gradients, const T* now) const {
    return Compensation<T>(gradients, delay_ > 0 ? now : nullptr, then_, mean_square_, strength_);
  }

  double clip() const { return clip_; }
  Moved& moved() { return *moved_; }

  // Whether no tensor's correction can be longer than the clip allows.
  bool IsNear() const {
    if (delay_ <= 0 || std::isinf(clip_)) return true;
    return mean_square_ != nullptr && strength_.lambda0 * moved_->Since(delay_) <= clip_ * std::sqrt(1 - strength_.decay);
  }

 private:
  std::vector<tensorflow::core::RefCountPtr<Var>> kept_;
  std::vector<tensorflow::mutex_lock> locks_;
  std::optional<Moved> moved_;
  const T* then_ = nullptr;
  W* mean_square_ = nullptr;
  int64_t delay_ = 0;
  double clip_ = 0;
  Strength strength_{};
};

// For vectors: a gradient is several tensors, which take the vector's places in order.
template <typename T>
class UpdateOp : public tensorflow::OpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    int number = 0;
    OP_REQUIRES_OK(context, context->GetAttr("L", &number));
    OP_REQUIRES_OK(context, context->GetAttr("correct", &correct_));
    OP_REQUIRES_OK(context, context->GetAttr("places", &places_));
    OP_REQUIRES_OK(context, FormulaOf(context, &formula_));
    compensates_ = number > 0;
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    Tensor* squares;
    OP_REQUIRES_OK(context, context->allocate_output(0, tensorflow::TensorShape({2}), &squares));
    Held<T> held;
    OP_REQUIRES_OK(context, held.Open(context, &spare_));
    std::vector<Run> runs;
    OP_REQUIRES_OK(context, Divide(gradients, held, &runs));
    std::vector<const T*> tensors;
    for (int k = 0; k < gradients.size(); ++k) tensors.push_back(gradients[k].template flat<T>().data());
    Sums sums;
    if (compensates_) {
      Late<T> late;
      OP_REQUIRES_OK(context, late.Open(context, correct_, held.shape().num_elements()));
      OP_REQUIRES_OK(context, Compensate(context, tensors, runs, held, &late, &sums));
    } else {
      InParallel(runs.size(), kCostPerEntry * kRun, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) Update(held, runs[k], tensors[runs[k].tensor] + runs[k].from);
      });
    }
    squares->vec<float>()(0) = sums.correction;
    squares->vec<float>()(1) = sums.gradient;
    held.Keep();
  }

 private:
  absl::Status Compensate(OpKernelContext* context, const std::vector<const T*>& tensors, const std::vector<Run>& runs,
                          const Held<T>& held, Late<T>* late, Sums* sums) {
    const Compensation<T> compensation = late->Of(tensors, held.From(0).in[0]);
    std::vector<float> longest(runs.size());
    if (late->IsNear()) {
      std::vector<Sums> parts(runs.size());
      InParallel(runs.size(), 2 * kCostPerEntry * kRun, [&](int64_t begin, int64_t end) {
        // Short enough to stay in a cache until it is read again.
        std::vector<T> compensated(kRun);
        for (int64_t k = begin; k < end; ++k) {
          parts[k] = compensation.First(runs[k], compensated.data());
          longest[k] = Update(held, runs[k], compensated.data());
        }
      });
      for (const Sums& part : parts) sums->Add(part);
    } else {
      Tensor compensated;
      TF_RETURN_IF_ERROR(spare_.Take(context, tensorflow::DataTypeToEnum<T>::value, held.shape(), &compensated));
      T* all = compensated.flat<T>().data();
      *sums = CompensateAll(compensation, runs, tensors.size(), late->clip(), all);
      InParallel(runs.size(), kCostPerEntry * kRun, [&](int64_t begin, int64_t end) {
        for (int64_t k = begin; k < end; ++k) longest[k] = Update(held, runs[k], all + runs[k].given);
      });
      spare_.Leave(compensated);
    }
    late->moved().Note(longest.empty() ? 0 : *std::max_element(longest.begin(), longest.end()));
    return absl::OkStatus();
  }

  // Updates the entries of a run; returns the longest step of a parameter.
  float Update(const Held<T>& held, const Run& run, const T* gradient) const {
    Entries<T> entries = held.From(run.kept);
    entries.gradients[0] = entries.gradients[1] = gradient;
    entries.length = run.length;
    Apply(formula_, entries);
    return compensates_ ? Longest(entries.in[0], entries.out[0], run.length) : 0;
  }

  static float Longest(const T* before, const T* after, int64_t length) {
    // After a write in place the old values are gone, so the step's length is unknown.
    if (before == after) return std::numeric_limits<float>::infinity();
    T longest = 0;
#pragma omp simd reduction(max : longest)
    for (int64_t i = 0; i < length; ++i) {
      const T step = std::abs(after[i] - before[i]);
      longest = step > longest ? step : longest;
    }
    return longest;
  }

  // Divides the entries of all gradients into runs; the padding between them is zero.
  absl::Status Divide(const OpInputList& gradients, const Held<T>& held, std::vector<Run>* runs) const {
    const int64_t size = held.shape().num_elements();
    int64_t place = 0;
    for (int k = 0; k < gradients.size(); ++k) {
      const int64_t length = gradients[k].NumElements(), padded = k < int64_t(places_.size()) ? places_[k] : -1;
      if (padded < length || place + padded > size) {
        return errors::InvalidArgument("Gradient ", k, " has ", length, " entries, its place ", padded);
      }
      for (int64_t done = 0; done < length; done += kRun) {
        runs->push_back({k, done, place + done, place + done, std::min(kRun, length - done)});
      }
      held.Clear(place + length, padded - length);
      place += padded;
    }
    if (place != size) return errors::InvalidArgument("Gradients take ", place, " of ", size, " places");
    return absl::OkStatus();
  }

  Formula formula_;
  Spare spare_;
  bool compensates_, correct_;
  // How many entries of a variable each gradient takes, padding included.
  std::vector<int64_t> places_;
};

// For a table, all of whose rows are updated: gradients have values for some rows, perhaps several for one row.
template <typename T>
class UpdateTableOp : public tensorflow::OpKernel {
 public:
  explicit UpdateTableOp(OpKernelConstruction* context) : OpKernel(context), none_(kRun, T(0)) {
    OP_REQUIRES_OK(context, FormulaOf(context, &formula_));
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    const Tensor& indices = context->input(gradients.size());
    OP_REQUIRES(context, gradients.size() <= kMostGradients,
                errors::InvalidArgument("A formula has ", kMostGradients, " gradients at most"));
    Held<T> held;
    OP_REQUIRES_OK(context, held.Open(context, &spare_));
    const int64_t number = indices.NumElements(), rows = held.shape().dims() > 0 ? held.shape().dim_size(0) : 0;
    const int64_t width = rows > 0 ? held.shape().num_elements() / rows : 0;
    for (int k = 0; k < gradients.size(); ++k) {
      OP_REQUIRES(context, gradients[k].NumElements() == number * width,
                  errors::InvalidArgument("Gradient ", k, " has ", gradients[k].NumElements(), " entries for ", number,
                                          " rows of ", width));
    }
    Groups groups;
    OP_REQUIRES_OK(context, groups.Find(indices, context->input(gradients.size() + 1), rows));
    std::vector<const T*> values;
    for (int k = 0; k < gradients.size(); ++k) values.push_back(gradients[k].template flat<T>().data());
    InParallel(rows, kCostPerEntry * width, [&](int64_t begin, int64_t end) {
      UpdateRows(formula_, held, values, groups, width, begin, end, none_.data());
    });
    held.Keep();
  }

 private:
  Formula formula_;
  Spare spare_;
  const std::vector<T> none_;
};

REGISTER_OP("FdtUpdate")
    .Input("gradients: N * T")
    .Input("scalars: K * T")
    .Input("variables: V * resource")
    .Input("then: L * T")
    .Input("remembered: M * resource")
    .Input("delay: int64")
    .Input("version: int64")
    .Input("settings: double")
    .Output("squares: float")
    .Attr("formula: string")
    .Attr("places: list(int)")
    .Attr("correct: bool")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("L: int >= 0")
    .Attr("M: int >= 0")
    .Attr("T: {float, double}")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Vector(2));
      return absl::OkStatus();
    });

REGISTER_OP("FdtUpdateTable")
    .Input("gradients: N * T")
    .Input("indices: Index")
    .Input("order: int64")
    .Input("scalars: K * T")
    .Input("variables: V * resource")
    .Attr("formula: string")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("T: {float, double}")
    .Attr("Index: {int32, int64}")
    .SetIsStateful();

#define FDT_REGISTER(T)                                                                                                     \
  REGISTER_KERNEL_BUILDER(Name("FdtUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), UpdateOp<T>);            \
  REGISTER_KERNEL_BUILDER(Name("FdtUpdateTable").Device(tensorflow::DEVICE_CPU).TypeConstraint<T>("T"), UpdateTableOp<T>);

FDT_REGISTER(float)
FDT_REGISTER(double)

}  // namespace
}  // namespace fdt
