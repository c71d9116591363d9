// A rank's mesh, and the operations that exchange small values over it (see hfdt/mesh.py).
//
// In an exchange each rank sends a message to each other: its part, which all combine in the order of the ranks, so that all get
// the same result bit for bit; or rows of its own.

#include <algorithm>
#include <complex>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/register_types.h"

#include "connections.h"
#include "message.h"
#include "meter.h"
#include "shapes.h"
#include "shared_memory.h"

namespace fdt {
namespace {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;

// Tensors that are reduced begin at multiples of this in a message, so that no element is in two ranges of its bytes.
constexpr size_t kAlignment = 16;

class Mesh {
 public:
  Mesh(int rank, int num_ranks, const int* descriptors, int limit_ms)
      : rank_(rank), num_ranks_(num_ranks), limit_ms_(limit_ms), connections_(rank, num_ranks, descriptors, limit_ms) {}

  int num_ranks() const { return num_ranks_; }

  // Has further exchanges go through memory that all ranks share.
  bool Share(int descriptor) {
    memory_ = std::make_unique<SharedMemory>(rank_, num_ranks_, descriptor, limit_ms_);
    return memory_->is_mapped();
  }

  // Sends each rank its message, or all of them the only one.
  absl::Status Exchange(const std::vector<Message>& messages, const Consume& consume) {
    ++number_;
    if (memory_ != nullptr) return memory_->Exchange(number_, messages, connections_, consume);
    return connections_.Exchange(number_, messages, consume);
  }

  std::mutex mutex;  // One exchange at a time.

 private:
  const int rank_;
  const int num_ranks_;
  const int limit_ms_;
  uint32_t number_ = 0;
  Connections connections_;
  std::unique_ptr<SharedMemory> memory_;
};

// The meshes of this process, by the numbers that graphs refer to.
std::mutex registry_mutex;
std::map<int64_t, std::shared_ptr<Mesh>> registry;

std::shared_ptr<Mesh> Find(int64_t number) {
  std::lock_guard<std::mutex> lock(registry_mutex);
  const auto found = registry.find(number);
  return found == registry.end() ? nullptr : found->second;
}

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
void Fold(const Parts& parts, int64_t count, char* into) {
  // A part may be unaligned.
  for (int64_t i = 0; i < count; ++i) {
    T value, other;
    memcpy(&value, parts[0].data() + i * sizeof(T), sizeof(T));
    memcpy(&other, parts[1].data() + i * sizeof(T), sizeof(T));
    value = Combine::Of(value, other);
    memcpy(into + i * sizeof(T), &value, sizeof(T));
  }
  for (size_t rank = 2; rank < parts.size(); ++rank) {
    for (int64_t i = 0; i < count; ++i) {
      T value, other;
      memcpy(&value, into + i * sizeof(T), sizeof(T));
      memcpy(&other, parts[rank].data() + i * sizeof(T), sizeof(T));
      value = Combine::Of(value, other);
      memcpy(into + i * sizeof(T), &value, sizeof(T));
    }
  }
}

template <typename T>
void Reduce(const std::string& combine, const Parts& parts, char* into) {
  const int64_t count = parts[0].size() / sizeof(T);
  if (combine == "SUM") {
    Fold<T, Sum>(parts, count, into);
  } else if (combine == "MAX") {
    Fold<T, Max>(parts, count, into);
  } else {
    Fold<T, Min>(parts, count, into);
  }
}

// Combines elements of a type; `parts` has as many bytes of each rank.
bool Reduce(const std::string& combine, DataType dtype, const Parts& parts, char* into) {
  switch (dtype) {
#define FDT_REDUCE(T)                       \
  case tensorflow::DataTypeToEnum<T>::value: \
    Reduce<T>(combine, parts, into);        \
    return true;
    TF_CALL_REAL_NUMBER_TYPES(FDT_REDUCE)
    TF_CALL_bool(FDT_REDUCE)
#undef FDT_REDUCE
    case tensorflow::DT_COMPLEX64:
      if (combine != "SUM") return false;
      Fold<tensorflow::complex64, Sum>(parts, parts[0].size() / sizeof(tensorflow::complex64), into);
      return true;
    case tensorflow::DT_COMPLEX128:
      if (combine != "SUM") return false;
      Fold<tensorflow::complex128, Sum>(parts, parts[0].size() / sizeof(tensorflow::complex128), into);
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
  // Exchanges the messages that `write` makes of the first inputs; see `Mesh::Exchange`.
  template <typename Write>
  void Meet(OpKernelContext* context, int num_inputs, Write write, const Consume& consume) {
    const std::shared_ptr<Mesh> mesh = Find(number_);
    OP_REQUIRES(context, mesh != nullptr, errors::FailedPrecondition("The connections of this job are closed."));
    std::lock_guard<std::mutex> lock(mesh->mutex);
    std::vector<Message> messages;
    OP_REQUIRES_OK(context, write(mesh->num_ranks(), &messages));
    uint64_t num_bytes = 0;
    for (int i = 0; i < num_inputs; ++i) num_bytes += context->input(i).TotalBytes();
    if (metered_) meter().Begin(num_bytes);
    const absl::Status exchanged = mesh->Exchange(messages, consume);
    if (metered_) meter().End();
    OP_REQUIRES_OK(context, exchanged);
  }

 private:
  tensorflow::int64 number_;
  bool metered_;  // Whether it is a step's.
};

class ReduceOp : public ExchangeOp {
 public:
  explicit ReduceOp(OpKernelConstruction* context) : ExchangeOp(context) {
    OP_REQUIRES_OK(context, context->GetAttr("combine", &combine_));
  }

  void Compute(OpKernelContext* context) override {
    static constexpr char kPadding[kAlignment] = {};
    std::vector<Tensor*> outputs(context->num_inputs());
    // Where tensors begin in a message.
    std::vector<size_t> starts;
    size_t size = 0;
    const auto write = [&](int, std::vector<Message>* messages) -> absl::Status {
      messages->resize(1);
      for (int i = 0; i < context->num_inputs(); ++i) {
        TF_RETURN_IF_ERROR(context->allocate_output(i, context->input(i).shape(), &outputs[i]));
        const std::string_view bytes = context->input(i).tensor_data();
        const size_t padding = (kAlignment - bytes.size() % kAlignment) % kAlignment;
        messages->front().pieces.push_back(bytes);
        messages->front().pieces.emplace_back(kPadding, padding);
        starts.push_back(size);
        size += bytes.size() + padding;
      }
      return absl::OkStatus();
    };
    int first = 0;  // The first tensor that is not complete.
    const auto reduce = [&](size_t start, const Parts& parts, const std::vector<size_t>& sizes) -> absl::Status {
      for (const size_t other : sizes) {
        if (other != size) return errors::Internal("Ranks reduce tensors of different sizes.");
      }
      const size_t end = start + parts[0].size();
      for (int i = first; i < context->num_inputs() && starts[i] < end; ++i) {
        const size_t total = context->input(i).TotalBytes();
        const size_t from = std::max(start, starts[i]), to = std::min(end, starts[i] + total);
        if (from < to) {
          Parts own;
          for (const auto& part : parts) own.push_back(part.substr(from - start, to - from));
          char* into = const_cast<char*>(outputs[i]->tensor_data().data()) + (from - starts[i]);
          if (!Reduce(combine_, outputs[i]->dtype(), own, into)) {
            return errors::InvalidArgument("Ranks cannot reduce ", DataTypeString(outputs[i]->dtype()), " by ", combine_, ".");
          }
        }
        if (starts[i] + total <= end) first = i + 1;
      }
      return absl::OkStatus();
    };
    Meet(context, context->num_inputs(), write, reduce);
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
    const auto write = [&](int, std::vector<Message>* messages) {
      messages->push_back(Message{{context->input(0).tensor_data()}});
      return absl::OkStatus();
    };
    Tensor* out = nullptr;
    Meet(context, 1, write, [&](size_t start, const Parts& parts, const std::vector<size_t>& sizes) -> absl::Status {
      if (out == nullptr) {
        TensorShape shape = context->input(0).shape();
        shape.set_dim(0, num_rows_);
        TF_RETURN_IF_ERROR(context->allocate_output(0, shape, &out));
        const size_t num_bytes = std::accumulate(sizes.begin(), sizes.end(), size_t{0});
        if (num_bytes != out->TotalBytes()) return errors::Internal("Ranks gather other rows than were expected.");
      }
      char* into = const_cast<char*>(out->tensor_data().data());
      for (size_t rank = 0; rank < parts.size(); ++rank) {
        if (!parts[rank].empty()) memcpy(into + start, parts[rank].data(), parts[rank].size());
        into += sizes[rank];
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
    std::vector<size_t> row_bytes;
    for (const Tensor& value : values) {
      OP_REQUIRES(context, value.dims() > 0 && value.dim_size(0) == values[0].dim_size(0),
                  errors::InvalidArgument("Values that are swapped together have different numbers of rows."));
      TensorShape row = value.shape();
      row.RemoveDim(0);
      row_bytes.push_back(row.num_elements() * DataTypeSize(value.dtype()));
    }
    std::vector<int64_t> counts;
    const auto write = [&](int num_ranks, std::vector<Message>* messages) -> absl::Status {
      const auto given = context->input(values.size()).flat<int32_t>();
      counts.assign(given.data(), given.data() + given.size());
      const bool fits = std::all_of(counts.begin(), counts.end(), [](int64_t count) { return count >= 0; });
      const int64_t total = std::accumulate(counts.begin(), counts.end(), int64_t{0});
      if (!fits || given.size() != num_ranks || total != values[0].dim_size(0)) {
        return errors::InvalidArgument("The counts of rows for each rank do not fit their number.");
      }
      messages->resize(num_ranks);
      size_t first = 0;
      for (int rank = 0; rank < num_ranks; ++rank) {
        auto& pieces = (*messages)[rank].pieces;
        pieces.emplace_back(reinterpret_cast<const char*>(&counts[rank]), sizeof(counts[rank]));
        for (int i = 0; i < values.size(); ++i) {
          const std::string_view bytes = values[i].tensor_data();
          pieces.push_back(bytes.substr(first * row_bytes[i], counts[rank] * row_bytes[i]));
        }
        first += counts[rank];
      }
      return absl::OkStatus();
    };
    Meet(context, values.size(), write, [&](size_t, const Parts& parts, const std::vector<size_t>&) {
      return Received(context, values, row_bytes, parts);
    });
  }

 private:
  static absl::Status Received(OpKernelContext* context, const tensorflow::OpInputList& values,
                               const std::vector<size_t>& row_bytes, const Parts& parts) {
    Tensor* received = nullptr;
    const TensorShape shape_of_numbers({static_cast<int64_t>(parts.size())});
    TF_RETURN_IF_ERROR(context->allocate_output(values.size(), shape_of_numbers, &received));
    const size_t size = std::accumulate(row_bytes.begin(), row_bytes.end(), size_t{0});
    std::vector<int64_t> numbers;
    for (const auto& part : parts) {
      int64_t count = -1;
      if (part.size() >= sizeof(count)) memcpy(&count, part.data(), sizeof(count));
      if (count < 0 || part.size() != sizeof(count) + count * size) return errors::Internal("Ranks swap other rows.");
      received->flat<int32_t>()(numbers.size()) = count;
      numbers.push_back(count);
    }
    const int64_t total = std::accumulate(numbers.begin(), numbers.end(), int64_t{0});
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
  }
};

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

// The size of the memory that so many ranks share.
int64_t fdt_mesh_memory_bytes(int num_ranks) { return fdt::SharedMemory::Size(num_ranks); }

// Has exchanges go through memory that all ranks share; returns whether it could be mapped.
bool fdt_mesh_share(int64_t number, int descriptor) {
  const std::shared_ptr<fdt::Mesh> mesh = fdt::Find(number);
  return mesh != nullptr && mesh->Share(descriptor);
}

// Closes the connections.
void fdt_mesh_close(int64_t number) {
  std::lock_guard<std::mutex> lock(fdt::registry_mutex);
  fdt::registry.erase(number);
}

}  // extern "C"
