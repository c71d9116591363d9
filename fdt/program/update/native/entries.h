// A formula for the entries of variables, and the variables that an update works on.
//
// Parameters that are referenced elsewhere, as snapshots are, stay as they are: the new values go to other memory, so nothing is
// copied first. A tensor without other references is written in place.

#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

#include "spare.h"

namespace fdt {
// Each source that includes this has formulas of its own, compiled where they are used.
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
namespace errors = tensorflow::errors;

constexpr int kMostVariables = 4, kMostScalars = 10, kMostGradients = 2;

// Entries that lie one after the other, in the gradient and in all variables.
template <typename T>
struct Entries {
  // The update of a table may use two sums over a row's values: of the values, and of terms computed from each of them.
  const T* gradients[kMostGradients];
  const T* in[kMostVariables];
  T* out[kMostVariables];
  T scalars[kMostScalars];
  int64_t length;
};

struct Formula {
  void (*of_float)(const Entries<float>&);
  void (*of_double)(const Entries<double>&);
};

std::map<std::string, Formula>& Formulas() {
  static auto* formulas = new std::map<std::string, Formula>;
  return *formulas;
}

template <typename T>
void Apply(const Formula& formula, const Entries<T>& entries);
template <>
void Apply<float>(const Formula& formula, const Entries<float>& entries) { formula.of_float(entries); }
template <>
void Apply<double>(const Formula& formula, const Entries<double>& entries) { formula.of_double(entries); }

// A variable may be written in place: an entry never depends on another one.
#define FDT_FORMULA(name, ...)                                                                                               \
  template <typename T>                                                                                                      \
  void name(const Entries<T>& of) {                                                                                          \
    [[maybe_unused]] const T *const g0 = of.gradients[0], *const g1 = of.gradients[1];                                       \
    [[maybe_unused]] const T *const i0 = of.in[0], *const i1 = of.in[1], *const i2 = of.in[2], *const i3 = of.in[3];         \
    [[maybe_unused]] T *const o0 = of.out[0], *const o1 = of.out[1], *const o2 = of.out[2], *const o3 = of.out[3];           \
    const auto& s = of.scalars;                                                                                              \
    [[maybe_unused]] const T s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3], s4 = s[4], s5 = s[5], s6 = s[6], s7 = s[7],         \
                             s8 = s[8], s9 = s[9];                                                                           \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < of.length; ++i) {                                                           \
      [[maybe_unused]] const T g = g0[i], h = g1[i];                                                                         \
      __VA_ARGS__                                                                                                            \
    }                                                                                                                        \
  }                                                                                                                          \
  [[maybe_unused]] const bool name##_is_known = Formulas().insert({#name, {name<float>, name<double>}}).second;

#include "formulas.h"

// The variables that an update works on, locked.
template <typename T>
class Held {
 public:
  // `spare`: where to take memory from, and to leave the replaced tensors.
  absl::Status Open(OpKernelContext* context, Spare* spare) {
    spare_ = spare;
    OpInputList scalars, handles;
    TF_RETURN_IF_ERROR(context->input_list("scalars", &scalars));
    TF_RETURN_IF_ERROR(context->input_list("variables", &handles));
    if (scalars.size() > kMostScalars || handles.size() > kMostVariables) {
      return errors::InvalidArgument("A formula has ", kMostScalars, " scalars and ", kMostVariables, " variables at most");
    }
    variables_.resize(handles.size());
    fresh_.resize(handles.size());
    locks_.reserve(handles.size());
    for (int k = 0; k < scalars.size(); ++k) all_.scalars[k] = scalars[k].scalar<T>()();
    for (int k = 0; k < handles.size(); ++k) {
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, handles[k].flat<tensorflow::ResourceHandle>()(0), &variables_[k]));
      locks_.emplace_back(*variables_[k]->mu());
      const Tensor& held = *variables_[k]->tensor();
      if (held.shape() != variables_[0]->tensor()->shape()) {
        return errors::InvalidArgument("Variables of one formula differ in size");
      }
      if (held.RefCountIsOne()) {
        fresh_[k] = held;
      } else {
        TF_RETURN_IF_ERROR(spare->Take(context, held.dtype(), held.shape(), &fresh_[k]));
      }
      all_.in[k] = held.flat<T>().data();
      all_.out[k] = fresh_[k].flat<T>().data();
    }
    return absl::OkStatus();
  }

  const tensorflow::TensorShape& shape() const { return fresh_[0].shape(); }

  // Returns the entries from a place on; the caller sets the gradient.
  Entries<T> From(int64_t place) const {
    Entries<T> entries = all_;
    for (size_t v = 0; v < fresh_.size(); ++v) entries.in[v] += place, entries.out[v] += place;
    return entries;
  }

  void Clear(int64_t place, int64_t length) const {
    for (size_t v = 0; v < fresh_.size(); ++v) std::fill_n(all_.out[v] + place, length, T(0));
  }

  // Assigns the written tensors to the variables.
  void Keep() {
    for (size_t k = 0; k < fresh_.size(); ++k) {
      Tensor& held = *variables_[k]->tensor();
      if (!held.SharesBufferWith(fresh_[k])) spare_->Leave(held);
      held = fresh_[k];
    }
  }

 private:
  std::vector<tensorflow::core::RefCountPtr<Var>> variables_;
  std::vector<tensorflow::mutex_lock> locks_;
  std::vector<Tensor> fresh_;
  Spare* spare_ = nullptr;
  Entries<T> all_{};
};

absl::Status FormulaOf(OpKernelConstruction* context, Formula* formula) {
  std::string name;
  TF_RETURN_IF_ERROR(context->GetAttr("formula", &name));
  const auto found = Formulas().find(name);
  if (found == Formulas().end()) return errors::InvalidArgument("There is no formula ", name);
  *formula = found->second;
  return absl::OkStatus();
}

}  // namespace
}  // namespace fdt
