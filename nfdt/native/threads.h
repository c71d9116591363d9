// Threads for what one worker does while the others wait for it.

#pragma once

#include <cstdint>
#include <functional>

namespace fdt {

// Calls `work` with parts of [0, number), on as many threads as the job has cores on this host. TensorFlow's own threads are as
// few as a worker has cores, so that workers do not get into each other's way; but one update is made at a time.
void InParallel(int64_t number, int64_t nanoseconds_each, const std::function<void(int64_t, int64_t)>& work);

}  // namespace fdt
