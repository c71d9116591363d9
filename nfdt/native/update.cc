// The operation that applies an optimizer's update to vectors, entry by entry, in one pass over memory.
//
// What is done to an entry stands in formulas.h. Parameters that somebody has read, as every snapshot is, stay as they are: the
// new ones go to memory of their own, so nothing is copied first. What nobody else has is written where it is.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"

namespace fdt {
namespace {

using tensorflow::OpInputList;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
namespace errors = tensorflow::errors;

// Entries that one thread takes at a time.
constexpr int64_t kBlock = 1 << 14;
// Nanoseconds an entry takes, by which TensorFlow decides how many threads share the work.
constexpr int64_t kCostPerEntry = 1;
constexpr int kMostVariables = 4, kMostScalars = 10;

// Entries that lie one after the other, in the gradient and in all variables.
template <typename T>
struct Entries {
  const T* gradient;
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

// A variable may be written where it is read, but an entry never depends on another one.
#define FDT_FORMULA(name, ...)                                                                                               \
  template <typename T>                                                                                                      \
  void name(const Entries<T>& of) {                                                                                          \
    [[maybe_unused]] const T *const i0 = of.in[0], *const i1 = of.in[1], *const i2 = of.in[2], *const i3 = of.in[3];         \
    [[maybe_unused]] T *const o0 = of.out[0], *const o1 = of.out[1], *const o2 = of.out[2], *const o3 = of.out[3];           \
    const auto& s = of.scalars;                                                                                              \
    [[maybe_unused]] const T s0 = s[0], s1 = s[1], s2 = s[2], s3 = s[3], s4 = s[4], s5 = s[5], s6 = s[6], s7 = s[7],         \
                             s8 = s[8], s9 = s[9];                                                                           \
    _Pragma("GCC ivdep") for (int64_t i = 0; i < of.length; ++i) {                                                           \
      const T g = of.gradient[i];                                                                                            \
      __VA_ARGS__                                                                                                            \
    }                                                                                                                        \
  }                                                                                                                          \
  [[maybe_unused]] const bool name##_is_known = Formulas().insert({#name, {name<float>, name<double>}}).second;

#include "formulas.h"

template <typename T>
class UpdateOp : public tensorflow::OpKernel {
 public:
  explicit UpdateOp(OpKernelConstruction* context) : OpKernel(context) {
    std::string name;
    OP_REQUIRES_OK(context, context->GetAttr("formula", &name));
    OP_REQUIRES_OK(context, context->GetAttr("places", &places_));
    const auto found = Formulas().find(name);
    OP_REQUIRES(context, found != Formulas().end(), errors::InvalidArgument("There is no formula ", name));
    formula_ = found->second;
  }

  void Compute(OpKernelContext* context) override {
    OpInputList gradients, scalars, handles;
    OP_REQUIRES_OK(context, context->input_list("gradients", &gradients));
    OP_REQUIRES_OK(context, context->input_list("scalars", &scalars));
    OP_REQUIRES_OK(context, context->input_list("variables", &handles));
    OP_REQUIRES(context, scalars.size() <= kMostScalars && handles.size() <= kMostVariables,
                errors::InvalidArgument("A formula has ", kMostScalars, " scalars and ", kMostVariables, " variables at most"));
    std::vector<tensorflow::core::RefCountPtr<Var>> variables(handles.size());
    std::vector<tensorflow::mutex_lock> locks;
    locks.reserve(handles.size());
    std::vector<Tensor> fresh(handles.size());
    Entries<T> all{};
    for (int k = 0; k < scalars.size(); ++k) all.scalars[k] = scalars[k].scalar<T>()();
    for (int k = 0; k < handles.size(); ++k) {
      OP_REQUIRES_OK(context, tensorflow::LookupResource(context, handles[k].flat<tensorflow::ResourceHandle>()(0), &variables[k]));
      locks.emplace_back(*variables[k]->mu());
      const Tensor& held = *variables[k]->tensor();
      OP_REQUIRES(context, held.NumElements() == variables[0]->tensor()->NumElements(),
                  errors::InvalidArgument("Variables of one formula differ in size"));
      if (held.RefCountIsOne()) {
        fresh[k] = held;
      } else {
        OP_REQUIRES_OK(context, context->allocate_temp(held.dtype(), held.shape(), &fresh[k]));
      }
      all.in[k] = held.flat<T>().data();
      all.out[k] = fresh[k].flat<T>().data();
    }
    std::vector<Entries<T>> blocks;
    OP_REQUIRES_OK(context, Divide(gradients, all, variables[0]->tensor()->NumElements(), &blocks));
    const auto& threads = *context->device()->tensorflow_cpu_worker_threads();
    threads.workers->ParallelFor(blocks.size(), kCostPerEntry * kBlock, [&](int64_t begin, int64_t end) {
      for (int64_t k = begin; k < end; ++k) Apply(formula_, blocks[k]);
    });
    for (int k = 0; k < handles.size(); ++k) *variables[k]->tensor() = fresh[k];
  }

 private:
  // Puts the entries of all gradients in blocks; what lies between them is zero.
  absl::Status Divide(const OpInputList& gradients, const Entries<T>& all, int64_t size, std::vector<Entries<T>>* blocks) const {
    int64_t place = 0;
    for (int k = 0; k < gradients.size(); ++k) {
      const int64_t length = gradients[k].NumElements(), padded = k < int64_t(places_.size()) ? places_[k] : -1;
      if (padded < length || place + padded > size) {
        return errors::InvalidArgument("Gradient ", k, " has ", length, " entries, its place ", padded);
      }
      for (int64_t done = 0; done < length; done += kBlock) {
        blocks->push_back(all);
        Entries<T>& block = blocks->back();
        block.gradient = gradients[k].template flat<T>().data() + done;
        block.length = std::min(kBlock, length - done);
        for (int v = 0; v < kMostVariables; ++v) {
          if (all.in[v] != nullptr) block.in[v] = all.in[v] + place + done, block.out[v] = all.out[v] + place + done;
        }
      }
      for (int v = 0; v < kMostVariables; ++v) {
        if (all.out[v] != nullptr) std::fill(all.out[v] + place + length, all.out[v] + place + padded, T(0));
      }
      place += padded;
    }
    if (place != size) return errors::InvalidArgument("Gradients take ", place, " of ", size, " places");
    return absl::OkStatus();
  }

  Formula formula_;
  // Entries that each gradient takes of a variable, with those that lie between it and the next.
  std::vector<int64_t> places_;
};

REGISTER_OP("FdtUpdate")
    .Input("gradients: N * T")
    .Input("scalars: K * T")
    .Input("variables: V * resource")
    .Attr("formula: string")
    .Attr("places: list(int)")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("V: int >= 1")
    .Attr("T: {float, double}")
    .SetIsStateful();

REGISTER_KERNEL_BUILDER(Name("FdtUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<float>("T"), UpdateOp<float>);
REGISTER_KERNEL_BUILDER(Name("FdtUpdate").Device(tensorflow::DEVICE_CPU).TypeConstraint<double>("T"), UpdateOp<double>);

}  // namespace
}  // namespace fdt
