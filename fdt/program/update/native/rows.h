// Groups a sparse gradient's values by row of the table.

#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

#include "tensorflow/core/framework/tensor.h"
#include "tensorflow/core/platform/errors.h"

namespace fdt {

// A tensor's numbers of rows, of 32 or 64 bits.
class RowNumbers {
 public:
  explicit RowNumbers(const tensorflow::Tensor& indices) : size_(indices.NumElements()) {
    if (indices.dtype() == tensorflow::DT_INT32) {
      narrow_ = indices.flat<int32_t>().data();
    } else {
      wide_ = indices.flat<int64_t>().data();
    }
  }

  int64_t size() const { return size_; }
  int64_t operator()(int64_t i) const { return narrow_ != nullptr ? narrow_[i] : wide_[i]; }

 private:
  const int64_t size_;
  const int32_t* narrow_ = nullptr;
  const int64_t* wide_ = nullptr;
};

// Returns the order that sorts values by row; values of the same row keep their order.
inline void ByRow(const tensorflow::Tensor& indices, tensorflow::Tensor* order) {
  const RowNumbers row(indices);
  int64_t* begin = order->flat<int64_t>().data();
  std::iota(begin, begin + row.size(), 0);
  std::sort(begin, begin + row.size(), [&](int64_t a, int64_t b) { return row(a) != row(b) ? row(a) < row(b) : a < b; });
}

// The values of one row of a table are one group, in the order in which they came.
class Groups {
 public:
  // `order`: the result of `ByRow`, which must live as long. `rows`: how many rows the table has.
  absl::Status Find(const tensorflow::Tensor& indices, const tensorflow::Tensor& order, int64_t rows) {
    const RowNumbers row_of(indices);
    const auto place = order.flat<int64_t>();
    const int64_t number = row_of.size();
    if (order.NumElements() != number) return tensorflow::errors::InvalidArgument("The order is of another number of rows");
    order_ = place.data();
    for (int64_t k = 0; k < number; ++k) {
      if (place(k) < 0 || place(k) >= number) return tensorflow::errors::InvalidArgument("The order is none");
      const int64_t row = row_of(place(k));
      if (row < 0 || row >= rows) {
        return tensorflow::errors::InvalidArgument("There is no row ", row, " in a table of ", rows);
      }
      if (!rows_.empty() && row < rows_.back()) return tensorflow::errors::InvalidArgument("The order is not by row");
      if (rows_.empty() || row > rows_.back()) {
        rows_.push_back(row);
        begins_.push_back(k);
      }
    }
    begins_.push_back(number);
    return absl::OkStatus();
  }

  int64_t size() const { return rows_.size(); }
  // The table's rows, ascending.
  const std::vector<int64_t>& rows() const { return rows_; }
  // How many values a group has, and the index of the k-th of them among all values.
  int64_t length(int64_t group) const { return begins_[group + 1] - begins_[group]; }
  int64_t place(int64_t group, int64_t k) const { return order_[begins_[group] + k]; }

 private:
  const int64_t* order_ = nullptr;
  std::vector<int64_t> rows_, begins_;
};

}  // namespace fdt
