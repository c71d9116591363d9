// Bounds how far a worker may be ahead of the slowest; in a graph a worker waits without a thread (nfdt/staleness_bound.py).

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <future>
#include <limits>
#include <map>
#include <memory>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/platform/mutex.h"

namespace fdt {
namespace {

using tensorflow::OpKernelContext;
namespace errors = tensorflow::errors;
using Clock = std::chrono::steady_clock;

class Gate {
 public:
  // Called with the seconds that a worker was held.
  using Go = std::function<void(double)>;

  // `most`: steps that a worker may be ahead of the slowest; negative for no limit.
  Gate(int64_t num_workers, int64_t most) : most_(most), done_(num_workers), is_idle_(num_workers, true) {}

  bool Knows(int64_t worker) const { return worker >= 0 && worker < int64_t(done_.size()); }

  // Whether a worker may begin a step.
  bool IsOpenTo(int64_t worker) {
    tensorflow::mutex_lock lock(mutex_);
    return IsOpen(worker);
  }

  // Calls `go`, now or as soon as the worker is no longer too far ahead.
  void Enter(int64_t worker, Go go) {
    {
      tensorflow::mutex_lock lock(mutex_);
      if (!IsOpen(worker)) {
        held_.push_back({worker, std::move(go), Clock::now()});
        return;
      }
    }
    go(0);
  }

  // Counts a step that a worker has made.
  void Leave(int64_t worker) {
    Change([&] { ++done_[worker]; });
  }

  // No worker waits for an idle one. When a worker gets work again, its count is raised to that of the slowest.
  void SetIdle(int64_t worker, bool is_idle) {
    Change([&] {
      if (!is_idle && is_idle_[worker]) {
        const int64_t slowest = Slowest();
        if (slowest == kNobody) std::fill(done_.begin(), done_.end(), 0);
        else done_[worker] = std::max(done_[worker], slowest);
      }
      is_idle_[worker] = is_idle;
    });
  }

  // Removes the limit: no worker is held from now on.
  void Open() {
    Change([&] { most_ = -1; });
  }

 private:
  struct Held {
    int64_t worker;
    Go go;
    Clock::time_point since;
  };
  static constexpr int64_t kNobody = std::numeric_limits<int64_t>::max();

  int64_t Slowest() const {
    int64_t slowest = kNobody;
    for (size_t k = 0; k < done_.size(); ++k) {
      if (!is_idle_[k]) slowest = std::min(slowest, done_[k]);
    }
    return slowest;
  }

  bool IsOpen(int64_t worker) const {
    const int64_t slowest = Slowest();
    return most_ < 0 || slowest == kNobody || done_[worker] - slowest <= most_;
  }

  template <typename Work>
  void Change(const Work& work) {
    std::vector<Held> free;
    {
      tensorflow::mutex_lock lock(mutex_);
      work();
      std::vector<Held> held;
      for (Held& each : held_) (IsOpen(each.worker) ? free : held).push_back(std::move(each));
      held_.swap(held);
    }
    for (const Held& each : free) each.go(std::chrono::duration<double>(Clock::now() - each.since).count());
  }

  tensorflow::mutex mutex_;
  int64_t most_;
  std::vector<int64_t> done_;
  std::vector<bool> is_idle_;
  std::vector<Held> held_;
};

// The gates of this process, by their numbers.
class Gates {
 public:
  int64_t Add(std::shared_ptr<Gate> gate) {
    tensorflow::mutex_lock lock(mutex_);
    gates_[++last_] = std::move(gate);
    return last_;
  }

  void Remove(int64_t number) {
    tensorflow::mutex_lock lock(mutex_);
    gates_.erase(number);
  }

  std::shared_ptr<Gate> Find(int64_t number) {
    tensorflow::mutex_lock lock(mutex_);
    const auto found = gates_.find(number);
    return found == gates_.end() ? nullptr : found->second;
  }

 private:
  tensorflow::mutex mutex_;
  int64_t last_ = 0;
  std::map<int64_t, std::shared_ptr<Gate>> gates_;
};

Gates& All() {
  static auto* gates = new Gates;
  return *gates;
}

absl::Status Find(OpKernelContext* context, std::shared_ptr<Gate>* gate, int64_t* worker) {
  *gate = All().Find(context->input(0).scalar<int64_t>()());
  *worker = context->input(1).scalar<int64_t>()();
  if (*gate == nullptr || !(*gate)->Knows(*worker)) return errors::InvalidArgument("There is no gate for worker ", *worker);
  return absl::OkStatus();
}

class EnterOp : public tensorflow::AsyncOpKernel {
 public:
  using AsyncOpKernel::AsyncOpKernel;

  void ComputeAsync(OpKernelContext* context, DoneCallback done) override {
    std::shared_ptr<Gate> gate;
    int64_t worker;
    OP_REQUIRES_OK_ASYNC(context, Find(context, &gate, &worker), done);
    gate->Enter(worker, [context, done](double seconds) {
      tensorflow::Tensor* held;
      OP_REQUIRES_OK_ASYNC(context, context->allocate_output(0, {}, &held), done);
      held->scalar<double>()() = seconds;
      done();
    });
  }
};

class LeaveOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Gate> gate;
    int64_t worker;
    OP_REQUIRES_OK(context, Find(context, &gate, &worker));
    gate->Leave(worker);
  }
};

REGISTER_OP("FdtEnter")
    .Input("gate: int64")
    .Input("worker: int64")
    .Output("held_s: double")
    .SetIsStateful()
    .SetShapeFn([](tensorflow::shape_inference::InferenceContext* context) {
      context->set_output(0, context->Scalar());
      return absl::OkStatus();
    });
REGISTER_OP("FdtLeave").Input("gate: int64").Input("worker: int64").SetIsStateful();
REGISTER_KERNEL_BUILDER(Name("FdtEnter").Device(tensorflow::DEVICE_CPU), EnterOp);
REGISTER_KERNEL_BUILDER(Name("FdtLeave").Device(tensorflow::DEVICE_CPU), LeaveOp);

}  // namespace
}  // namespace fdt

// The same functions for Python, which has checked the arguments.
extern "C" int64_t fdt_gate_make(int64_t num_workers, int64_t most) {
  return fdt::All().Add(std::make_shared<fdt::Gate>(num_workers, most));
}
extern "C" void fdt_gate_delete(int64_t gate) {
  // Otherwise a held worker would wait forever.
  fdt::All().Find(gate)->Open();
  fdt::All().Remove(gate);
}
extern "C" int fdt_gate_is_open(int64_t gate, int64_t worker) { return fdt::All().Find(gate)->IsOpenTo(worker); }
extern "C" void fdt_gate_leave(int64_t gate, int64_t worker) { fdt::All().Find(gate)->Leave(worker); }
extern "C" void fdt_gate_set_idle(int64_t gate, int64_t worker, int is_idle) { fdt::All().Find(gate)->SetIdle(worker, is_idle); }
extern "C" void fdt_gate_open(int64_t gate) { fdt::All().Find(gate)->Open(); }
extern "C" double fdt_gate_enter(int64_t gate, int64_t worker) {
  // Kept by who opens, too, who may still be in `set_value` when this thread has its result.
  auto opened = std::make_shared<std::promise<double>>();
  fdt::All().Find(gate)->Enter(worker, [opened](double seconds) { opened->set_value(seconds); });
  return opened->get_future().get();
}
