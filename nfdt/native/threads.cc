#include "threads.h"

#include <atomic>

#include "tensorflow/core/platform/env.h"
#include "tensorflow/core/platform/threadpool.h"

namespace fdt {
namespace {

std::atomic<int> num_cores{1};

tensorflow::thread::ThreadPool& Threads() {
  // Idle threads do not spin. The pool lives as long as the process.
  static auto* threads = new tensorflow::thread::ThreadPool(tensorflow::Env::Default(), tensorflow::ThreadOptions(), "fdt_update",
                                                            num_cores, /*low_latency_hint=*/false);
  return *threads;
}

}  // namespace

void InParallel(int64_t number, int64_t nanoseconds_each, const std::function<void(int64_t, int64_t)>& work) {
  if (num_cores == 1) {
    work(0, number);
  } else {
    Threads().ParallelFor(number, nanoseconds_each, work);
  }
}

}  // namespace fdt

// Sets how many cores the job has on this host, before anything is updated.
extern "C" void fdt_set_cores(int number) { fdt::num_cores = number; }
