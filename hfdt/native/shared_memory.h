// Exchanges between ranks of one machine by memory that they share: nothing passes the kernel but the wake-up of who waits.
//
// Each rank writes into its own slot and reads the others'. A message goes in chunks, so that what was written is still in the
// processor's caches when it is read. A slot has room for two: a rank that has read everybody's chunk k may write its chunk
// k + 2, since by then everybody has read its chunk k, before they published theirs with the number k + 1.

#ifndef FDT_HFDT_SHARED_MEMORY_H_
#define FDT_HFDT_SHARED_MEMORY_H_

#include <linux/futex.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <string_view>
#include <vector>

#include "connections.h"
#include "message.h"

namespace fdt {

class SharedMemory {
 public:
  // Maps the memory. Slots are zero before the first exchange.
  SharedMemory(int rank, int num_ranks, int descriptor, int limit_ms)
      : rank_(rank), num_ranks_(num_ranks), limit_ms_(limit_ms), received_(num_ranks) {
    void* mapped = mmap(nullptr, Size(num_ranks), PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    memory_ = mapped == MAP_FAILED ? nullptr : static_cast<char*>(mapped);
  }

  ~SharedMemory() {
    if (memory_ != nullptr) munmap(memory_, Size(num_ranks_));
  }

  static size_t Size(int num_ranks) { return kPage + num_ranks * kSlot; }

  bool is_mapped() const { return memory_ != nullptr; }

  // As `Connections::Exchange`; these tell which rank has ended. The only message is consumed as it comes.
  absl::Status Exchange(uint32_t number, const std::vector<Message>& messages, const Connections& connections,
                        const Consume& consume) {
    if (messages.size() == 1) return Broadcast(number, messages[0], connections, consume);
    // All that a rank sends goes through its slot: the sizes of its messages, and these.
    std::vector<uint64_t> sizes;
    Message all;
    all.pieces.emplace_back();
    for (const Message& message : messages) {
      sizes.push_back(message.size());
      all.pieces.insert(all.pieces.end(), message.pieces.begin(), message.pieces.end());
    }
    all.pieces[0] = {reinterpret_cast<const char*>(sizes.data()), sizes.size() * sizeof(uint64_t)};
    std::vector<uint64_t> first(num_ranks_), last(num_ranks_);
    TF_RETURN_IF_ERROR(Broadcast(number, all, connections, [&](size_t start, const Parts& parts, const std::vector<size_t>&) {
      for (int rank = 0; rank < num_ranks_; ++rank) {
        if (start == 0) TF_RETURN_IF_ERROR(FindOwn(rank, parts[rank], &first[rank], &last[rank]));
        const uint64_t from = std::max<uint64_t>(start, first[rank]);
        const uint64_t to = std::min<uint64_t>(start + parts[rank].size(), last[rank]);
        if (from < to) memcpy(received_[rank].data() + (from - first[rank]), parts[rank].data() + (from - start), to - from);
      }
      return absl::OkStatus();
    }));
    Parts parts;
    std::vector<size_t> lengths;
    for (const auto& part : received_) {
      parts.emplace_back(part.data(), part.size());
      lengths.push_back(part.size());
    }
    return consume(0, parts, lengths);
  }

 private:
  // What a chunk begins with.
  struct Header {
    uint32_t number;  // The exchange's.
    uint32_t reserved;
    uint64_t size;  // Of the whole message.
  };

  static constexpr size_t kPage = 4096;
  static constexpr size_t kMostChunk = size_t{1} << 20;
  static constexpr size_t kHeader = 64;  // The header's, rounded up to a line of the cache.
  static constexpr size_t kSlot = kPage + 2 * (kHeader + kMostChunk);
  static constexpr int64_t kLookNs = 100'000'000;  // How often a waiting rank looks whether another has ended.
  static constexpr std::chrono::microseconds kSpin{30};

  char* Slot(int rank) const { return memory_ + kPage + rank * kSlot; }

  // How many chunks a rank has published; a futex.
  std::atomic<uint32_t>* Published(int rank) const { return reinterpret_cast<std::atomic<uint32_t>*>(Slot(rank)); }

  char* Chunk(int rank) const { return Slot(rank) + kPage + (count_ % 2) * (kHeader + kMostChunk); }

  absl::Status Broadcast(uint32_t number, const Message& message, const Connections& connections, const Consume& consume) {
    const size_t size = message.size();
    if (size > kMostBytes) return errors::ResourceExhausted("A message to a rank has ", size, " bytes.");
    std::vector<size_t> sizes(num_ranks_);
    Parts parts(num_ranks_);
    size_t piece = 0, within = 0, largest = 0, start = 0;
    do {
      const Header header{number, 0, size};
      memcpy(Chunk(rank_), &header, sizeof(header));
      char* into = Chunk(rank_) + kHeader;
      for (size_t room = chunk_; room > 0 && piece < message.pieces.size();) {
        const std::string_view rest = message.pieces[piece].substr(within, room);
        if (!rest.empty()) memcpy(into, rest.data(), rest.size());
        into += rest.size();
        room -= rest.size();
        within += rest.size();
        if (within == message.pieces[piece].size()) ++piece, within = 0;
      }
      Publish();
      for (int rank = 0; rank < num_ranks_; ++rank) {
        TF_RETURN_IF_ERROR(WaitFor(rank, connections));
        Header other;
        memcpy(&other, Chunk(rank), sizeof(other));
        if (other.number != number || other.size > kMostBytes || (start > 0 && other.size != sizes[rank])) {
          return Elsewhere(rank, other.number, rank_, number);
        }
        sizes[rank] = other.size;
        largest = std::max(largest, sizes[rank]);
        parts[rank] = {Chunk(rank) + kHeader, start < sizes[rank] ? std::min(chunk_, sizes[rank] - start) : 0};
      }
      TF_RETURN_IF_ERROR(consume(start, parts, sizes));
      start += chunk_;
      ++count_;
    } while (start < largest);
    return absl::OkStatus();
  }

  // Finds where a rank's message begins and ends that is for this one, and makes room for it.
  absl::Status FindOwn(int rank, std::string_view begin, uint64_t* first, uint64_t* last) {
    std::vector<uint64_t> sizes(num_ranks_);
    if (begin.size() < num_ranks_ * sizeof(uint64_t)) return errors::Internal("Rank ", rank, " sends no sizes.");
    memcpy(sizes.data(), begin.data(), num_ranks_ * sizeof(uint64_t));
    *first = num_ranks_ * sizeof(uint64_t);
    for (int other = 0; other < rank_; ++other) *first += sizes[other];
    if (sizes[rank_] > kMostBytes) return errors::Internal("Rank ", rank, " sends ", sizes[rank_], " bytes.");
    *last = *first + sizes[rank_];
    received_[rank].resize(sizes[rank_]);
    return absl::OkStatus();
  }

  void Publish() {
    Published(rank_)->store(count_ + 1, std::memory_order_release);
    syscall(SYS_futex, Published(rank_), FUTEX_WAKE, num_ranks_, nullptr, nullptr, 0);
  }

  bool Has(int rank, uint32_t* published) const {
    *published = Published(rank)->load(std::memory_order_acquire);
    return static_cast<int32_t>(*published - (count_ + 1)) >= 0;
  }

  absl::Status WaitFor(int rank, const Connections& connections) const {
    uint32_t published;
    if (Has(rank, &published)) return absl::OkStatus();
    const auto begin = std::chrono::steady_clock::now();
    // The other is often as far as this rank, on another core; a wake-up takes longer.
    while (spins_ && std::chrono::steady_clock::now() - begin < kSpin) {
      if (Has(rank, &published)) return absl::OkStatus();
    }
    while (!Has(rank, &published)) {
      const timespec look{0, kLookNs};
      syscall(SYS_futex, Published(rank), FUTEX_WAIT, published, &look, nullptr, 0);
      if (std::chrono::steady_clock::now() - begin < std::chrono::nanoseconds(kLookNs)) continue;
      if (Has(rank, &published)) break;
      TF_RETURN_IF_ERROR(connections.Check());
      if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(limit_ms_)) {
        return Lost(rank, "it did not answer in time");
      }
    }
    return absl::OkStatus();
  }

  const int rank_;
  const int num_ranks_;
  const int limit_ms_;
  // Whether each rank may have a core to itself; the same on all ranks.
  const bool spins_ = num_ranks_ <= sysconf(_SC_NPROCESSORS_ONLN);
  // Where ranks wait for a core, fewer chunks take less time.
  const size_t chunk_ = spins_ ? kMostChunk / 4 : kMostChunk;
  char* memory_;
  uint32_t count_ = 0;  // Chunks published so far.
  std::vector<std::vector<char>> received_;
};

}  // namespace fdt

#endif  // FDT_HFDT_SHARED_MEMORY_H_
