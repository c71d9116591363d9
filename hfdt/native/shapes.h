// The shapes of what the operations return, told when a graph is built.

#ifndef FDT_HFDT_SHAPES_H_
#define FDT_HFDT_SHAPES_H_

#include "tensorflow/core/framework/shape_inference.h"

namespace fdt {

inline absl::Status SameShapes(tensorflow::shape_inference::InferenceContext* context) {
  for (int i = 0; i < context->num_inputs(); ++i) context->set_output(i, context->input(i));
  return absl::OkStatus();
}

inline absl::Status AllRows(tensorflow::shape_inference::InferenceContext* context) {
  tensorflow::shape_inference::ShapeHandle shape;
  tensorflow::int64 num_rows;
  TF_RETURN_IF_ERROR(context->GetAttr("num_rows", &num_rows));
  TF_RETURN_IF_ERROR(context->WithRankAtLeast(context->input(0), 1, &shape));
  TF_RETURN_IF_ERROR(context->ReplaceDim(shape, 0, context->MakeDim(num_rows), &shape));
  context->set_output(0, shape);
  return absl::OkStatus();
}

inline absl::Status SomeRows(tensorflow::shape_inference::InferenceContext* context) {
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

}  // namespace fdt

#endif  // FDT_HFDT_SHAPES_H_
