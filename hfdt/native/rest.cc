// Decides how long Horovod's thread sleeps between two polls for work (see hfdt/background_thread.py).

#include <time.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>

namespace fdt {
namespace {

// The longest idle sleep: an exchange that another rank begins outside of an instruction waits at most this long for it.
constexpr auto kRest = std::chrono::milliseconds(100);

std::mutex mutex;
std::condition_variable changed;
int64_t at_work = 0;
int64_t naps = 0;
int64_t rests = 0;

}  // namespace
}  // namespace fdt

extern "C" {

// Replaces `nanosleep`: sleeps for the wanted time while the rank works; otherwise until it works, at most kRest.
int fdt_rest_sleep(const struct timespec* wanted, struct timespec* left) {
  {
    std::unique_lock<std::mutex> lock(fdt::mutex);
    if (fdt::at_work == 0) {
      ++fdt::rests;
      fdt::changed.notify_all();
      fdt::changed.wait_for(lock, fdt::kRest, [] { return fdt::at_work > 0; });
      return 0;
    }
    ++fdt::naps;
  }
  return nanosleep(wanted, left);
}

void fdt_rest_begin_work() {
  std::lock_guard<std::mutex> lock(fdt::mutex);
  ++fdt::at_work;
  fdt::changed.notify_all();
}

void fdt_rest_end_work() {
  std::lock_guard<std::mutex> lock(fdt::mutex);
  --fdt::at_work;
}

// Returns how often the thread has slept for the wanted time.
int64_t fdt_rest_naps() {
  std::lock_guard<std::mutex> lock(fdt::mutex);
  return fdt::naps;
}

// Waits until the thread has begun `more` more idle sleeps; returns whether it has within the limit.
int fdt_rest_wait(int64_t more, int limit_ms) {
  std::unique_lock<std::mutex> lock(fdt::mutex);
  const int64_t enough = fdt::rests + more;
  return fdt::changed.wait_for(lock, std::chrono::milliseconds(limit_ms), [&] { return fdt::rests >= enough; });
}

}  // extern "C"
