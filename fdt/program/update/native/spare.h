// Reuses an operation's memory: the kernel hands out some megabytes of fresh memory page by page, which takes longer than
// writing them.

#pragma once

#include <cstddef>
#include <cstring>
#include <deque>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace fdt {

// Copies a variable's tensor if others hold a reference to it: a reader keeps the value that it has read.
inline absl::Status Own(tensorflow::OpKernelContext* context, tensorflow::Tensor* kept) {
  if (kept->RefCountIsOne()) return absl::OkStatus();
  tensorflow::Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(kept->dtype(), kept->shape(), &copy));
  std::memcpy(copy.data(), kept->data(), kept->TotalBytes());
  *kept = copy;
  return absl::OkStatus();
}

// Tensors that an operation has given away; each is reused once no one else holds a reference to it.
class Spare {
 public:
  // Returns a tensor with arbitrary content.
  absl::Status Take(tensorflow::OpKernelContext* context, tensorflow::DataType dtype, const tensorflow::TensorShape& shape,
                    tensorflow::Tensor* taken) {
    {
      tensorflow::mutex_lock lock(mutex_);
      for (auto each = left_.begin(); each != left_.end(); ++each) {
        if (each->dtype() == dtype && each->shape() == shape && each->RefCountIsOne()) {
          *taken = *each;
          left_.erase(each);
          return absl::OkStatus();
        }
      }
    }
    return context->allocate_temp(dtype, shape, taken);
  }

  // Keeps a tensor that others still reference, for later reuse.
  void Leave(const tensorflow::Tensor& given) {
    tensorflow::mutex_lock lock(mutex_);
    left_.push_back(given);
    if (left_.size() > kMost) left_.pop_front();
  }

 private:
  // Enough for parameters: workers compute with older versions while the next one is being written.
  static constexpr size_t kMost = 4;
  tensorflow::mutex mutex_;
  std::deque<tensorflow::Tensor> left_;
};

}  // namespace fdt
