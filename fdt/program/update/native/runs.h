// How an update is divided over threads.

#pragma once

#include <cstdint>

namespace fdt {

// Entries that are updated, or compensated, at a time: they stay in a cache. Blocks are summed in a fixed order, whatever the
// number of threads.
constexpr int64_t kRun = 1 << 14;
// Nanoseconds an entry takes, by which TensorFlow decides how many threads share the work.
constexpr int64_t kCostPerEntry = 1;

}  // namespace fdt
