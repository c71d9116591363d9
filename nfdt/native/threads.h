// Threads for an update, for which the worker that pushed waits.

#pragma once

#include <cstdint>
#include <functional>

namespace fdt {

// Calls `work` with parts of [0, number), on as many threads as the job has cores on this host. TensorFlow's own pool has only
// as many threads as a worker has cores, so that workers do not compete; but updates run one at a time.
void InParallel(int64_t number, int64_t nanoseconds_each, const std::function<void(int64_t, int64_t)>& work);

}  // namespace fdt
