// A rank's connections to all others, and the operations that exchange small values over them (see hfdt/mesh.py).
//
// Python opens and authenticates the connections; then this file owns them. In an exchange each rank sends a message to each
// other: its part, which all combine in the order of the ranks, so that all get the same result bit for bit; or rows of its own.

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <complex>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"
#include "tensorflow/core/framework/shape_inference.h"

#include "meter.h"

namespace fdt {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

struct Header {
  uint32_t number;  // The exchange's sequence number.
  uint32_t num_bytes;
};

using Bytes = std::vector<char>;

constexpr size_t kMostBytes = size_t{1} << 31;  // Of a message; a rank that sends more is not one of ours.

// The state of an exchange with one other rank: bytes sent, bytes received.
struct Peer {
  int rank;
  int descriptor;
  const Bytes* message = nullptr;  // What it gets, after room for a header.
  size_t sent = 0;
  size_t received = 0;
  Header header;
  Bytes part;

  bool has_all() const { return received >= sizeof(Header) && received == sizeof(Header) + header.num_bytes; }
};

class Mesh {
 public:
  Mesh(int rank, int num_ranks, const int* descriptors, int limit_ms) : rank_(rank), limit_ms_(limit_ms) {
    for (int other = 0, i = 0; other < num_ranks; ++other) {
      if (other != rank) peers_.push_back(Peer{other, descriptors[i++]});
    }
  }

  ~Mesh() {
    for (const Peer& peer : peers_) close(peer.descriptor);
  }

  int num_ranks() const { return static_cast<int>(peers_.size()) + 1; }

  // Exchanges messages, which begin with room for a header.
  //
  // Args:
  //   messages: One for each rank, in their order, or one for all. This rank's own is not sent.
  //   parts: Gets the bytes from every rank, in their order; valid until the next exchange.
  absl::Status Exchange(std::vector<Bytes>* messages, std::vector<std::string_view>* parts) {
    ++number_;
    for (Bytes& message : *messages) {
      if (message.size() > kMostBytes) return errors::ResourceExhausted("A message to a rank has ", message.size(), " bytes.");
      const Header header{number_, static_cast<uint32_t>(message.size() - sizeof(Header))};
      memcpy(message.data(), &header, sizeof(Header));
    }
    const auto to = [&](int rank) -> const Bytes& { return (*messages)[messages->size() == 1 ? 0 : rank]; };
    for (Peer& peer : peers_) {
      peer.message = &to(peer.rank);
      peer.sent = peer.received = 0;
      TF_RETURN_IF_ERROR(Send(&peer));
    }
    TF_RETURN_IF_ERROR(Finish());
    parts->assign(num_ranks(), {});
    for (const Peer& peer : peers_) (*parts)[peer.rank] = {peer.part.data(), peer.part.size()};
    const Bytes& own = to(rank_);
    (*parts)[rank_] = {own.data() + sizeof(Header), own.size() - sizeof(Header)};
    return absl::OkStatus();
  }

  std::mutex mutex;  // One exchange at a time.

 private:
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
      if (ready == 0) return Lost(*which[0], "it did not answer in time");
      if (ready < 0 && errno != EINTR) return Lost(*which[0], strerror(errno));
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
        return Lost(*peer, strerror(errno));
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
      if (count == 0) return Lost(*peer, "the other end was closed");
      if (count < 0) {
        if (errno == EAGAIN || errno == EWOULDBLOCK) return absl::OkStatus();
        if (errno == EINTR) continue;
        return Lost(*peer, strerror(errno));
      }
      peer->received += count;
      if (peer->received == sizeof(Header)) {
        if (peer->header.number != number_ || peer->header.num_bytes > kMostBytes) return Elsewhere(*peer);
        peer->part.resize(peer->header.num_bytes);
      }
    }
    return absl::OkStatus();
  }

  absl::Status Lost(const Peer& peer, const std::string& why) const {
    return errors::Unavailable("The connection to rank ", peer.rank, " of this job is lost: ", why);
  }

  absl::Status Elsewhere(const Peer& peer) const {
    return errors::Internal("Rank ", peer.rank, " is at exchange ", peer.header.number, " and rank ", rank_, " at ", number_,
                            ": their steps differ. This is a fault of the pool, not of the script: please report it with "
                            "the script.");
  }

  const int rank_;
  const int limit_ms_;
  uint32_t number_ = 0;
  std::vector<Peer> peers_;
};

// The meshes of this process, by the numbers that graphs refer to.
std::mutex registry_mutex;
std::map<int64_t, std::shared_ptr<Mesh>> registry;

std::shared_ptr<Mesh> Find(int64_t number) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  const auto found = registry.find(number);
  return found == registry.end() ? nullptr : found->second;
}

using Parts = std::vector<std::string_view>;

struct Sum {
  template <typename T>
  static T Of(T a, T b) {
    return static_cast<T>(a + b);
  }
  static bool Of(bool a, bool b) { return a || b; }
};

// The result is NaN if any rank has NaN.
struct Max {
  template <typename T>
  static T Of(T a, T b) {
    return a > b || a != a ? a : b;
  }
};

struct Min {
  template <typename T>
  static T Of(T a, T b) {
    return a < b || a != a ? a : b;
  }
};

template <typename T, typename Combine>
void Fold(const Parts& parts, size_t start, int64_t count, T* out) {
  // A part begins where the tensor before it ended, so it may be unaligned.
  memcpy(out, parts[0].data() + start, count * sizeof(T));
  for (size_t rank = 1; rank < parts.size(); ++rank) {
    const char* part = parts[rank].data() + start;
    for (int64_t i = 0; i < count; ++i) {
      T other;
      memcpy(&other, part + i * sizeof(T), sizeof(T));
      out[i] = Combine::Of(out[i], other);
    }
  }
}

template <typename T>
void Reduce(const std::string& combine, const Parts& parts, size_t start, Tensor* out) {
  T* elements = out->flat<T>().data();
  if (combine == "SUM") {
    Fold<T, Sum>(parts, start, out->NumElements(), elements);
  } else if (combine == "MAX") {
    Fold<T, Max>(parts, start, out->NumElements(), elements);
  } else {
    Fold<T, Min>(parts, start, out->NumElements(), elements);
  }
}

bool Reduce(const std::string& combine, const Parts& parts, size_t start, Tensor* out) {
  switch (out->dtype()) {
#define FDT_REDUCE(T)                       \
  case tensorflow::DataTypeToEnum<T>::value: \
    Reduce<T>(combine, parts, start, out);  \
    return true;
    TF_CALL_REAL_NUMBER_TYPES(FDT_REDUCE)
    TF_CALL_bool(FDT_REDUCE)
#undef FDT_REDUCE
    case tensorflow::DT_COMPLEX64:
      if (combine != "SUM") return false;
      Fold<tensorflow::complex64, Sum>(parts, start, out->NumElements(), out->flat<tensorflow::complex64>().data());
      return true;
    case tensorflow::DT_COMPLEX128:
      if (combine != "SUM") return false;
      Fold<tensorflow::complex128, Sum>(parts, start, out->NumElements(), out->flat<tensorflow::complex128>().data());
      return true;
    default:
      return false;
  }
}

class ExchangeOp : public tensorflow::OpKernel {
 public:
  explicit ExchangeOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("mesh", &number_));
    OP_REQUIRES_OK(context, context->GetAttr("metered", &metered_));
  }

 protected:
  // Exchanges the messages that `write` makes, and calls `assemble` to make the outputs from what every rank has sent.
  template <typename Write, typename Assemble>
  void Meet(OpKernelContext* context, Write write, Assemble assemble) {
    const std::shared_ptr<Mesh> mesh = Find(number_);
    OP_REQUIRES(context, mesh != nullptr, errors::FailedPrecondition("The connections of this job are closed."));
    std::lock_guard<std::mutex> lock(mesh->mutex);
    OP_REQUIRES_OK(context, write(*mesh, &messages_));
    uint64_t num_bytes = 0;
    for (const Bytes& message : messages_) num_bytes += message.size() - sizeof(Header);
    std::vector<std::string_view> parts;
    if (metered_) meter().Begin(num_bytes);
    const absl::Status exchanged = mesh->Exchange(&messages_, &parts);
    if (metered_) meter().End();
    OP_REQUIRES_OK(context, exchanged);
    OP_REQUIRES_OK(context, assemble(parts));
  }

  // Sends all inputs to all ranks, one after the other.
  template <typename Assemble>
  void Meet(OpKernelContext* context, Assemble assemble) {
    const auto write = [&](const Mesh&, std::vector<Bytes>* messages) {
      messages->resize(1);
      Bytes& message = messages->front();
      message.resize(sizeof(Header));
      for (int i = 0; i < context->num_inputs(); ++i) Append(context->input(i).tensor_data(), &message);
      return absl::OkStatus();
    };
    Meet(context, write, assemble);
  }

  static void Append(std::string_view bytes, Bytes* message) { message->insert(message->end(), bytes.begin(), bytes.end()); }

 private:
  tensorflow::int64 number_;
  bool metered_;  // Whether it is a step's.
  std::vector<Bytes> messages_;
};

class ReduceOp : public ExchangeOp {
 public:
  explicit ReduceOp(OpKernelConstruction* context) : ExchangeOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("combine", &combine_));
  }

  void Compute(OpKernelContext* context) override {
    Meet(context, [&](const Parts& parts) -> absl::Status {
      size_t start = 0;
      for (int i = 0; i < context->num_inputs(); ++i) {
        Tensor* out = nullptr;
        TF_RETURN_IF_ERROR(context->allocate_output(i, context->input(i).shape(), &out));
        for (const auto& part : parts) {
          if (part.size() < start + out->TotalBytes()) return errors::Internal("Ranks reduce tensors of different sizes.");
        }
        if (!Reduce(combine_, parts, start, out)) {
          return errors::InvalidArgument("Ranks cannot reduce ", DataTypeString(out->dtype()), " by ", combine_, ".");
        }
        start += out->TotalBytes();
      }
      return absl::OkStatus();
    });
  }

 private:
  std::string combine_;
};

class GatherOp : public ExchangeOp {
 public:
  explicit GatherOp(OpKernelConstruction* context) : ExchangeOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("num_rows", &num_rows_));
  }

  void Compute(OpKernelContext* context) override {
    Meet(context, [&](const Parts& parts) -> absl::Status {
      TensorShape shape = context->input(0).shape();
      shape.set_dim(0, num_rows_);
      Tensor* out = nullptr;
      TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &out));
      size_t num_bytes = 0;
      for (const auto& part : parts) num_bytes += part.size();
      if (num_bytes != out->TotalBytes()) return errors::Internal("Ranks gather other rows than were expected.");
      char* into = const_cast<char*>(out->tensor_data().data());
      for (const auto& part : parts) {
        if (!part.empty()) memcpy(into, part.data(), part.size());
        into += part.size();
      }
      return absl::OkStatus();
    });
  }

 private:
  tensorflow::int64 num_rows_;
};

// Each rank gets rows from each: of every value as many, so that one message carries them all, after their count.
class SwapOp : public ExchangeOp {
 public:
  explicit SwapOp(OpKernelConstruction* context) : ExchangeOp(context) {}

  void Compute(OpKernelContext* context) override {
    tensorflow::OpInputList values;
    OP_REQUIRES_OK(context, context->input_list("values", &values));
    const Tensor& counts = context->input(values.size());
    std::vector<size_t> row_bytes;
    for (const Tensor& value : values) {
      OP_REQUIRES(context, value.dims() > 0 && value.dim_size(0) == values[0].dim_size(0),
                  errors::InvalidArgument("Values that are swapped together have different numbers of rows."));
      TensorShape row = value.shape();
      row.RemoveDim(0);
      row_bytes.push_back(row.num_elements() * DataTypeSize(value.dtype()));
    }
    const auto write = [&](const Mesh& mesh, std::vector<Bytes>* messages) {
      const auto numbers = counts.flat<int32_t>();
      int64_t total = 0;
      bool fits = numbers.size() == mesh.num_ranks();
      for (int rank = 0; rank < numbers.size(); ++rank) {
        fits = fits && numbers(rank) >= 0;
        total += numbers(rank);
      }
      if (!fits || total != values[0].dim_size(0)) {
        return absl::Status(errors::InvalidArgument("The counts of rows for each rank do not fit their number."));
      }
      messages->resize(mesh.num_ranks());
      int64_t first = 0;
      for (int rank = 0; rank < mesh.num_ranks(); ++rank) {
        const int64_t count = numbers(rank);
        Bytes& message = (*messages)[rank];
        message.resize(sizeof(Header));
        Append({reinterpret_cast<const char*>(&count), sizeof(count)}, &message);
        for (int i = 0; i < values.size(); ++i) {
          Append(std::string_view(values[i].tensor_data()).substr(first * row_bytes[i], count * row_bytes[i]), &message);
        }
        first += count;
      }
      return absl::OkStatus();
    };
    Meet(context, write, [&](const Parts& parts) -> absl::Status {
      Tensor* received = nullptr;
      TF_RETURN_IF_ERROR(
          context->allocate_output(values.size(), TensorShape({static_cast<int64_t>(parts.size())}), &received));
      size_t size = 0;
      for (const size_t bytes : row_bytes) size += bytes;
      std::vector<int64_t> numbers;
      int64_t total = 0;
      for (const auto& part : parts) {
        int64_t count = -1;
        if (part.size() >= sizeof(count)) memcpy(&count, part.data(), sizeof(count));
        if (count < 0 || part.size() != sizeof(count) + count * size) return errors::Internal("Ranks swap other rows.");
        received->flat<int32_t>()(numbers.size()) = count;
        numbers.push_back(count);
        total += count;
      }
      std::vector<size_t> starts(parts.size(), sizeof(int64_t));
      for (int i = 0; i < values.size(); ++i) {
        TensorShape shape = values[i].shape();
        shape.set_dim(0, total);
        Tensor* out = nullptr;
        TF_RETURN_IF_ERROR(context->allocate_output(i, shape, &out));
        char* into = const_cast<char*>(out->tensor_data().data());
        for (size_t rank = 0; rank < parts.size(); ++rank) {
          const size_t num_bytes = numbers[rank] * row_bytes[i];
          if (num_bytes > 0) memcpy(into, parts[rank].data() + starts[rank], num_bytes);
          into += num_bytes;
          starts[rank] += num_bytes;
        }
      }
      return absl::OkStatus();
    });
  }
};

absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

absl::Status AllRows(tensorflow::shape_inference::InferenceContext* context) {
  tensorflow::shape_inference::ShapeHandle shape;
  tensorflow::int64 num_rows;
  TF_RETURN_IF_ERROR(context->GetAttr("num_rows", &num_rows));
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &shape));
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->MakeDim(num_rows), &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

REGISTER_OP("FdtMeshReduce")
    .Input("values: T")
    .Output("reduced: T")
    .Attr("T: list(type) >= 1")
    .Attr("mesh: int")
    .Attr("metered: bool = true")
    .Attr("combine: {'SUM', 'MAX', 'MIN'}")
    .SetIsStateful()
    .SetShapeFn(SameShapes);

REGISTER_OP("FdtMeshGather")
    .Input("rows: T")
    .Output("gathered: T")
    .Attr("T: type")
    .Attr("mesh: int")
    .Attr("metered: bool = true")
    .Attr("num_rows: int >= 0")
    .SetIsStateful()
    .SetShapeFn(AllRows);

absl::Status SomeRows(tensorflow::shape_inference::InferenceContext* context) {
  const int last = context->num_inputs() - 1;
  for (int i = 0; i < last; ++i) {
    tensorflow::shape_inference::ShapeHandle shape;
    TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(i), 1, &shape));
    TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->UnknownDim(), &shape));
    context->set_output(i, shape);
  }
  context->set_output(last, context->input(last));
  return absl::OkStatus();
}

REGISTER_OP("FdtMeshSwap")
    .Input("values: T")
    .Input("counts: int32")
    .Output("received: T")
    .Output("numbers: int32")
    .Attr("T: list(type) >= 1")
    .Attr("mesh: int")
    .Attr("metered: bool = true")
    .SetIsStateful()
    .SetShapeFn(SomeRows);

REGISTER_KERNEL_BUILDER(Name("FdtMeshReduce").Device(tensorflow::DEVICE_CPU), ReduceOp);
REGISTER_KERNEL_BUILDER(Name("FdtMeshGather").Device(tensorflow::DEVICE_CPU), GatherOp);
REGISTER_KERNEL_BUILDER(Name("FdtMeshSwap").Device(tensorflow::DEVICE_CPU), SwapOp);

}  // namespace
}  // namespace fdt

extern "C" {

// Takes over connected sockets, one for each other rank, in the order of ranks; returns the number of the mesh.
int64_t fdt_mesh_open(int rank, int num_ranks, const int* descriptors, int limit_ms) {
  static int64_t next = 0;
  auto mesh = std::make_shared<fdt::Mesh>(rank, num_ranks, descriptors, limit_ms);
  std::lock_guard<std::mutex> lock(fdt::registry_mutex);
  fdt::registry[++next] = mesh;
  return next;
}

// Closes the connections.
void fdt_mesh_close(int64_t number) {
  std::lock_guard<std::mutex> lock(fdt::registry_mutex);
  fdt::registry.erase(number);
}

}  // extern "C"
