// A rank's connections to all others. Python opens and authenticates them; this class owns them.

#ifndef FDT_HFDT_CONNECTIONS_H_
#define FDT_HFDT_CONNECTIONS_H_

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdint>
#include <string_view>
#include <vector>

#include "message.h"

namespace fdt {

class Connections {
 public:
  Connections(int rank, int num_ranks, const int* descriptors, int limit_ms) : rank_(rank), limit_ms_(limit_ms) {
    for (int other = 0, i = 0; other < num_ranks; ++other) {
      if (other != rank) peers_.push_back(Peer{other, descriptors[i++]});
    }
  }

  ~Connections() {
    for (const Peer& peer : peers_) close(peer.descriptor);
  }

  // Sends each rank its message, or all of them the only one, and calls `consume` once with what all have sent to this rank.
  absl::Status Exchange(uint32_t number, const std::vector<Message>& messages, const Consume& consume) {
    number_ = number;
    written_.resize(messages.size());
    for (size_t i = 0; i < messages.size(); ++i) TF_RETURN_IF_ERROR(Write(messages[i], &written_[i]));
    const auto to = [&](int rank) -> const Bytes& { return written_[written_.size() == 1 ? 0 : rank]; };
    for (Peer& peer : peers_) {
      peer.message = &to(peer.rank);
      peer.sent = peer.received = 0;
      TF_RETURN_IF_ERROR(Send(&peer));
    }
    TF_RETURN_IF_ERROR(Finish());
    Parts parts(peers_.size() + 1);
    for (const Peer& peer : peers_) parts[peer.rank] = {peer.part.data(), peer.part.size()};
    parts[rank_] = std::string_view(to(rank_).data(), to(rank_).size()).substr(sizeof(Header));
    std::vector<size_t> sizes;
    for (const auto& part : parts) sizes.push_back(part.size());
    return consume(0, parts, sizes);
  }

  // Whether a rank has closed its connection, on which nothing is said between exchanges.
  absl::Status Check() const {
    for (const Peer& peer : peers_) {
      char byte;
      const ssize_t count = recv(peer.descriptor, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
      if (count == 0) return Lost(peer.rank, "the other end was closed");
      if (count < 0 && errno != EAGAIN && errno != EWOULDBLOCK && errno != EINTR) return Lost(peer.rank, strerror(errno));
    }
    return absl::OkStatus();
  }

 private:
  struct Header {
    uint32_t number;  // The exchange's sequence number.
    uint32_t num_bytes;
  };

  using Bytes = std::vector<char>;

  // The state of an exchange with one other rank: bytes sent, bytes received.
  struct Peer {
    int rank;
    int descriptor;
    const Bytes* message = nullptr;  // What it gets, after a header.
    size_t sent = 0;
    size_t received = 0;
    Header header;
    Bytes part;

    bool has_all() const { return received >= sizeof(Header) && received == sizeof(Header) + header.num_bytes; }
  };

  absl::Status Write(const Message& message, Bytes* written) const {
    const size_t size = message.size();
    if (size > kMostBytes) return errors::ResourceExhausted("A message to a rank has ", size, " bytes.");
    const Header header{number_, static_cast<uint32_t>(size)};
    written->resize(sizeof(Header) + size);
    char* into = written->data();
    memcpy(into, &header, sizeof(Header));
    into += sizeof(Header);
    for (const auto& piece : message.pieces) {
      if (!piece.empty()) memcpy(into, piece.data(), piece.size());
      into += piece.size();
    }
    return absl::OkStatus();
  }

  // Waits until everything is sent and received.
  absl::Status Finish() {
    while (true) {
      std::vector<pollfd> waiting;
      std::vector<Peer*> which;
      for (Peer& peer : peers_) {
        TF_RETURN_IF_ERROR(Receive(&peer));
        const bool sends = peer.sent < peer.message->size();
        if (!sends && peer.has_all()) continue;
        waiting.push_back({peer.descriptor, static_cast<short>((peer.has_all() ? 0 : POLLIN) | (sends ? POLLOUT : 0)), 0});
        which.push_back(&peer);
      }
      if (waiting.empty()) return absl::OkStatus();
      const int ready = poll(waiting.data(), waiting.size(), limit_ms_);
      if (ready == 0) return Lost(which[0]->rank, "it did not answer in time");
      if (ready < 0 && errno != EINTR) return Lost(which[0]->rank, strerror(errno));
      for (size_t i = 0; i < waiting.size(); ++i) {
        if (waiting[i].revents & POLLOUT) TF_RETURN_IF_ERROR(Send(which[i]));
      }
    }
  }

  absl::Status Send(Peer* peer) {
    while (peer->sent < peer->message->size()) {
      const ssize_t count = send(peer->descriptor, peer->message->data() + peer->sent, peer->message->size() - peer->sent,
                                 MSG_NOSIGNAL | MSG_DONTWAIT);
      if (count >= 0) {
        peer->sent += count;
      } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
        return absl::OkStatus();
      } else if (errno != EINTR) {
        return Lost(peer->rank, strerror(errno));
      }
    }
    return absl::OkStatus();
  }

  // Reads the available bytes of this exchange, and none of the next one.
  absl::Status Receive(Peer* peer) {
    while (!peer->has_all()) {
      const bool in_header = peer->received < sizeof(Header);
      char* into = in_header ? reinterpret_cast<char*>(&peer->header) + peer->received
                             : peer->part.data() + (peer->received - sizeof(Header));
      const size_t wanted = (in_header ? sizeof(Header) : sizeof(Header) + peer->header.num_bytes) - peer->received;
      const ssize_t count = recv(peer->descriptor, into, wanted, MSG_DONTWAIT);
      if (count == 0) return Lost(peer->rank, "the other end was closed");
      if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
        if (errno == EINTR) continue;
        return Lost(peer->rank, strerror(errno));
      }
      peer->received += count;
      if (peer->received == sizeof(Header)) {
        if (peer->header.number != number_ || peer->header.num_bytes > kMostBytes) {
          return Elsewhere(peer->rank, peer->header.number, rank_, number_);
        }
        peer->part.resize(peer->header.num_bytes);
      }
    }
    return absl::OkStatus();
  }

  const int rank_;
  const int limit_ms_;
  uint32_t number_ = 0;
  std::vector<Bytes> written_;
  std::vector<Peer> peers_;
};

}  // namespace fdt

#endif  // FDT_HFDT_CONNECTIONS_H_
