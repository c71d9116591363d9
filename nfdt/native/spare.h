// Memory that an operation has used before: fresh memory of some megabytes is given out by the kernel page by page, which takes
// longer than to write it.

#pragma once

#include <cstddef>
#include <cstring>
#include <deque>

#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/platform/mutex.h"

namespace fdt {

// Makes a variable's tensor one that nobody else has: who has read it keeps what was read.
inline absl::Status Own(tensorflow::OpKernelContext* context, tensorflow::Tensor* kept) {
  if (kept->RefCountIsOne()) return absl::OkStatus();
  tensorflow::Tensor copy;
  TF_RETURN_IF_ERROR(context->allocate_temp(kept->dtype(), kept->shape(), &copy));
  std::memcpy(copy.data(), kept->data(), kept->TotalBytes());
  *kept = copy;
  return absl::OkStatus();
}

// Tensors that an operation has given away, until nobody else has them any more.
class Spare {
 public:
  // Returns a tensor of any content.
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

  // Takes note of a tensor that is somebody else's for now.
  void Leave(const tensorflow::Tensor& given) {
    tensorflow::mutex_lock lock(mutex_);
    left_.push_back(given);
    if (left_.size() > kMost) left_.pop_front();
  }

 private:
  // Of parameters, a worker computes with what another one has pushed over, and the next ones are what is being written.
  static constexpr size_t kMost = 4;
  tensorflow::mutex mutex_;
  std::deque<tensorflow::Tensor> left_;
};

}  // namespace fdt
