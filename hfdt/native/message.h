// What ranks say to each other in an exchange, whatever carries it.

#ifndef FDT_HFDT_MESSAGE_H_
#define FDT_HFDT_MESSAGE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <numeric>
#include <string_view>
#include <vector>

#include "tensorflow/core/framework/op_kernel.h"

namespace fdt {

namespace errors = tensorflow::errors;

// Bytes of a message that lie one after the other, as pieces of other memory.
struct Message {
  std::vector<std::string_view> pieces;

  size_t size() const {
    size_t size = 0;
    for (const auto& piece : pieces) size += piece.size();
    return size;
  }
};

constexpr size_t kMostBytes = size_t{1} << 31;  // Of a message; a rank that sends more is not one of ours.

// Of each rank the same range of bytes of its message; of a message that has ended, fewer or none.
using Parts = std::vector<std::string_view>;

// Gets the ranks' messages, a range of their bytes after the other.
//
// Args:
//   start: Where the range begins in each message.
//   sizes: How long each rank's whole message is.
using Consume = std::function<absl::Status(size_t start, const Parts& parts, const std::vector<size_t>& sizes)>;

inline absl::Status Lost(int rank, const char* why) {
  return errors::Unavailable("The connection to rank ", rank, " of this job is lost: ", why);
}

inline absl::Status Elsewhere(int other, uint32_t at, int rank, uint32_t expected) {
  return errors::Internal("Rank ", other, " is at exchange ", at, " and rank ", rank, " at ", expected,
                          ": their steps differ. This is a fault of the pool, not of the script: please report it with the "
                          "script.");
}

}  // namespace fdt

#endif  // FDT_HFDT_MESSAGE_H_
