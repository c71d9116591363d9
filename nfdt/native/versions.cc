// Versions of a table whose updates write some of its rows.
//
// A version keeps what the rows that were written after it held before; all others are still in the variable. So a snapshot of a
// table costs memory and time only for the rows that are written while someone holds it.
//
// Versions form a list, from old to new. A row of a version is in the first version of the list, from this one on, that kept it,
// otherwise in the variable. A version that only its predecessor refers to hands its rows to the predecessor, which then has each
// row once: no version keeps more rows than the table has.

#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/resource_handle.h"
#include "tensorflow/core/framework/resource_mgr.h"
#include "tensorflow/core/framework/resource_var.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/variant.h"
#include "tensorflow/core/framework/variant_tensor_data.h"
#include "tensorflow/core/platform/errors.h"
#include "tensorflow/core/platform/mutex.h"

#include "rows.h"

namespace fdt {
namespace {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::Var;
namespace errors = tensorflow::errors;

// Rows that were overwritten, by their numbers.
class Rows {
 public:
  const char* Find(int64_t row, int64_t row_bytes) const {
    const auto found = places_.find(row);
    return found == places_.end() ? nullptr : kept_.data() + found->second * row_bytes;
  }

  // Does nothing if there is one already: it is older.
  void Keep(int64_t row, const char* held, int64_t row_bytes) {
    if (places_.try_emplace(row, places_.size()).second) kept_.insert(kept_.end(), held, held + row_bytes);
  }

  int64_t size() const { return places_.size(); }

  void KeepAll(const Rows& newer, int64_t row_bytes) {
    for (const auto& [row, place] : newer.places_) Keep(row, newer.kept_.data() + place * row_bytes, row_bytes);
  }

 private:
  std::unordered_map<int64_t, int64_t> places_;
  std::vector<char> kept_;
};

struct Version;

// All versions of a table that are held, the oldest first. The lock is held while rows are read or kept, so what a reader does
// not find among kept rows no one has begun to write.
struct Versions {
  tensorflow::mutex mutex;
  std::vector<std::weak_ptr<Version>> held TF_GUARDED_BY(mutex);
  int64_t row_bytes = 0;

  // Merges versions to which only their predecessor refers.
  void Merge() TF_EXCLUSIVE_LOCKS_REQUIRED(mutex);
};

struct Version {
  explicit Version(std::shared_ptr<Versions> all) : all(std::move(all)) {}

  const std::shared_ptr<Versions> all;
  Rows rows;
  std::shared_ptr<Version> next;
  // Whether the variable was set as a whole, so that what this version did not keep is lost.
  bool is_lost = false;
};

void Versions::Merge() {
  std::vector<std::weak_ptr<Version>> left;
  std::shared_ptr<Version> before;
  for (const auto& each : held) {
    std::shared_ptr<Version> version = each.lock();
    if (!version) continue;
    // Two references: the predecessor's and the one above.
    if (before && before->next == version && version.use_count() == 2) {
      before->rows.KeepAll(version->rows, row_bytes);
      before->is_lost = version->is_lost;
      before->next = version->next;
    } else {
      left.push_back(each);
      before = std::move(version);
    }
  }
  held.swap(left);
}

// A version in a tensor.
struct VersionInTensor {
  std::shared_ptr<Version> version;

  static std::string TypeName() { return "fdt::TableVersion"; }
  std::string DebugString() const {
    if (!version) return TypeName();
    tensorflow::mutex_lock lock(version->all->mutex);
    return "version of a table, " + std::to_string(version->rows.size()) + " rows kept";
  }
  void Encode(tensorflow::VariantTensorData* data) const { data->set_type_name(TypeName()); }
  bool Decode(const tensorflow::VariantTensorData&) { return false; }
};

absl::Status VersionOf(const Tensor& tensor, std::shared_ptr<Version>* version) {
  const VersionInTensor* held = tensor.scalar<tensorflow::Variant>()().get<VersionInTensor>();
  if (held == nullptr || !held->version) return errors::InvalidArgument("The tensor is no version of a table");
  *version = held->version;
  return absl::OkStatus();
}

absl::Status Return(OpKernelContext* context, std::shared_ptr<Version> version) {
  Tensor* output;
  TF_RETURN_IF_ERROR(context->allocate_output(0, {}, &output));
  output->scalar<tensorflow::Variant>()() = VersionInTensor{std::move(version)};
  return absl::OkStatus();
}

// A table's variable, locked so that no one replaces its memory.
class Table {
 public:
  absl::Status Open(OpKernelContext* context) {
    TF_RETURN_IF_ERROR(tensorflow::LookupResource(context, tensorflow::HandleFromInput(context, 0), &variable_));
    lock_.emplace(*variable_->mu());
    const Tensor& tensor = *variable_->tensor();
    if (tensor.dims() < 1) return errors::InvalidArgument("A table has rows");
    num_rows_ = tensor.dim_size(0), row_bytes_ = num_rows_ ? tensor.TotalBytes() / num_rows_ : 0;
    return absl::OkStatus();
  }

  bool has(int64_t row) const { return row >= 0 && row < num_rows_; }
  int64_t num_rows() const { return num_rows_; }
  int64_t row_bytes() const { return row_bytes_; }
  const char* row(int64_t row) const { return static_cast<const char*>(variable_->tensor()->data()) + row * row_bytes_; }
  tensorflow::TensorShape shape(int64_t rows) const {
    tensorflow::TensorShape shape = variable_->tensor()->shape();
    shape.set_dim(0, rows);
    return shape;
  }

 private:
  tensorflow::core::RefCountPtr<Var> variable_;
  std::optional<tensorflow::tf_shared_lock> lock_;
  int64_t num_rows_ = 0, row_bytes_ = 0;
};

class FirstVersionOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    auto first = std::make_shared<Version>(std::make_shared<Versions>());
    tensorflow::mutex_lock lock(first->all->mutex);
    first->all->held.push_back(first);
    OP_REQUIRES_OK(context, Return(context, first));
  }
};

// Keeps rows in the newest version, before they are written, and begins the next one.
class NextVersionOp : public tensorflow::OpKernel {
 public:
  explicit NextVersionOp(OpKernelConstruction* context) : OpKernel(context) {
    OP_REQUIRES_OK(context, context->GetAttr("all", &all_));
  }

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Version> newest;
    OP_REQUIRES_OK(context, VersionOf(context->input(1), &newest));
    Table table;
    OP_REQUIRES_OK(context, table.Open(context));
    const RowNumbers rows(context->input(2));
    Versions& versions = *newest->all;
    auto next = std::make_shared<Version>(newest->all);
    {
      tensorflow::mutex_lock lock(versions.mutex);
      OP_REQUIRES(context, !newest->next, errors::FailedPrecondition("There is a newer version of the table"));
      versions.row_bytes = table.row_bytes();
      for (int64_t i = 0; i < rows.size(); ++i) {
        // A number out of range is the update's error.
        if (table.has(rows(i))) newest->rows.Keep(rows(i), table.row(rows(i)), table.row_bytes());
      }
      newest->is_lost = all_;
      newest->next = next;
      versions.held.push_back(next);
      versions.Merge();
    }
    OP_REQUIRES_OK(context, Return(context, next));
  }

 private:
  bool all_;
};

class RowsOfVersionOp : public tensorflow::OpKernel {
 public:
  using OpKernel::OpKernel;

  void Compute(OpKernelContext* context) override {
    std::shared_ptr<Version> version;
    OP_REQUIRES_OK(context, VersionOf(context->input(1), &version));
    const Tensor& numbers = context->input(2);
    const RowNumbers rows(numbers);
    Table table;
    OP_REQUIRES_OK(context, table.Open(context));
    Tensor* output;
    OP_REQUIRES_OK(context, context->allocate_output(0, table.shape(rows.size()), &output));
    char* out = static_cast<char*>(output->data());
    tensorflow::mutex_lock lock(version->all->mutex);
    for (int64_t i = 0; i < rows.size(); ++i, out += table.row_bytes()) {
      OP_REQUIRES(context, table.has(rows(i)),
                  errors::InvalidArgument("There is no row ", rows(i), " in a table of ", table.num_rows()));
      const char* row = Find(*version, table, rows(i));
      OP_REQUIRES(context, row != nullptr, errors::FailedPrecondition("The table was set after this version"));
      std::memcpy(out, row, table.row_bytes());
    }
  }

 private:
  static const char* Find(const Version& version, const Table& table, int64_t row) {
    for (const Version* each = &version; each != nullptr; each = each->next.get()) {
      if (const char* kept = each->rows.Find(row, table.row_bytes())) return kept;
      if (each->is_lost) return nullptr;
    }
    return table.row(row);
  }
};

absl::Status IsScalar(tensorflow::shape_inference::InferenceContext* context) {
  context->set_output(0, context->Scalar());
  return absl::OkStatus();
}

REGISTER_OP("FdtFirstVersion").Output("version: variant").SetIsStateful().SetShapeFn(IsScalar);

REGISTER_OP("FdtNextVersion")
    .Input("table: resource")
    .Input("newest: variant")
    .Input("rows: Index")
    .Output("next: variant")
    .Attr("all: bool = false")
    .Attr("Index: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(IsScalar);

REGISTER_OP("FdtRowsOfVersion")
    .Input("table: resource")
    .Input("version: variant")
    .Input("rows: Index")
    .Output("held: T")
    .Attr("T: type")
    .Attr("Index: {int32, int64}")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::UnknownShape);

REGISTER_KERNEL_BUILDER(Name("FdtFirstVersion").Device(tensorflow::DEVICE_CPU), FirstVersionOp);
REGISTER_KERNEL_BUILDER(Name("FdtNextVersion").Device(tensorflow::DEVICE_CPU), NextVersionOp);
REGISTER_KERNEL_BUILDER(Name("FdtRowsOfVersion").Device(tensorflow::DEVICE_CPU), RowsOfVersionOp);

}  // namespace
}  // namespace fdt
