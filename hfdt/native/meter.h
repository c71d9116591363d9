// Measures how long this process's steps waited for exchanges, and how many bytes these were given.
//
// Exchanges overlap. The meter counts the time in which at least one runs, so that exchange time and computing time add up to
// the steps' time. While other gradients are computed, an exchange of gradients only adds its bytes.

#ifndef FDT_HFDT_METER_H_
#define FDT_HFDT_METER_H_

#include <chrono>
#include <cstdint>
#include <mutex>

namespace fdt {

class Meter {
 public:
  void Begin(uint64_t num_bytes, bool behind = false) {
    std::lock_guard<std::mutex> lock(mutex_);
    num_bytes_ += num_bytes;
    if (!behind && under_way_++ == 0) since_ = std::chrono::steady_clock::now();
  }

  void End(bool behind = false) {
    if (behind) return;
    std::lock_guard<std::mutex> lock(mutex_);
    // No exchange runs if the meter was reset in between.
    if (under_way_ > 0 && --under_way_ == 0) seconds_ += Elapsed();
  }

  // Called when a job begins; exchanges that failed before it never ended.
  void Reset() {
    std::lock_guard<std::mutex> lock(mutex_);
    under_way_ = 0;
    seconds_ = 0;
    num_bytes_ = 0;
  }

  double seconds() {
    std::lock_guard<std::mutex> lock(mutex_);
    return seconds_ + (under_way_ ? Elapsed() : 0);
  }

  uint64_t num_bytes() {
    std::lock_guard<std::mutex> lock(mutex_);
    return num_bytes_;
  }

 private:
  double Elapsed() const { return std::chrono::duration<double>(std::chrono::steady_clock::now() - since_).count(); }

  std::mutex mutex_;
  int under_way_ = 0;
  std::chrono::steady_clock::time_point since_;
  double seconds_ = 0;
  uint64_t num_bytes_ = 0;
};

// Returns this process's meter.
Meter& meter();

}  // namespace fdt

#endif  // FDT_HFDT_METER_H_
