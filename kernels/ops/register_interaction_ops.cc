// Interactions of fields, and their shape functions.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

using tensorflow::Status;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

// The sizes of attributes that have defaults are read as GetOptional does: see
// register_ops.cc.
bool Flag(InferenceContext* c, const char* name) {
  bool value = false;
  return c->GetAttr(name, &value).ok() && value;
}

Status DotShape(InferenceContext* c) {
  int64_t fields = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("fields", &fields));
  ShapeHandle first;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(0), 1, &first));
  const int64_t size = Flag(c, "full") ? fields * fields
                       : Flag(c, "self_interaction")
                           ? fields * (fields + 1) / 2
                           : fields * (fields - 1) / 2;
  c->set_output(0, c->Matrix(c->Dim(first, 0), size));
  return tensorflow::OkStatus();
}

Status DotGradShape(InferenceContext* c) {
  int64_t fields = 0, dim = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("fields", &fields));
  TF_RETURN_IF_ERROR(c->GetAttr("dim", &dim));
  ShapeHandle first;
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(c->input(1), 1, &first));
  const auto batch = c->Dim(first, 0);
  c->set_output(0, Flag(c, "flat") ? c->Matrix(batch, fields * dim)
                                   : c->MakeShape({batch, c->MakeDim(fields),
                                                   c->MakeDim(dim)}));
  return tensorflow::OkStatus();
}

}  // namespace

// Products of all pairs of fields, the lower triangle of X X^T of each example.
//
//   inputs: each [batch, n * dim], [batch, n, dim] or the like; their fields
//           follow each other, `fields` in all.
//   output: [batch, pairs] by rows of the triangle, with the products of fields
//           with themselves if `self_interaction`; with `full`,
//           [batch, fields * fields] with zeros where there is no pair.
//
// See kernels/core/dot_interaction.h for the order of the sums.
REGISTER_OP("PicassoDotInteraction")
    .Input("inputs: N * T")
    .Output("output: T")
    .Attr("T: {float, double}")
    .Attr("N: int >= 1")
    .Attr("fields: int >= 1")
    .Attr("dim: int >= 1")
    .Attr("self_interaction: bool = false")
    .Attr("full: bool = false")
    .Attr("pack: string")
    .SetShapeFn(DotShape);

// The gradient of PicassoDotInteraction's inputs, as one tensor.
//
//   grad:   of its output, in its shape or flat.
//   output: [batch, fields, dim]; with `flat`, [batch, fields * dim].
REGISTER_OP("PicassoDotInteractionGrad")
    .Input("grad: T")
    .Input("inputs: N * T")
    .Output("output: T")
    .Attr("T: {float, double}")
    .Attr("N: int >= 1")
    .Attr("fields: int >= 1")
    .Attr("dim: int >= 1")
    .Attr("self_interaction: bool = false")
    .Attr("full: bool = false")
    .Attr("flat: bool = false")
    .Attr("pack: string")
    .SetShapeFn(DotGradShape);

// The sum of tensors of one shape, which are zero but for one slice each: the
// gradient of a tensor that was cut up.
//
//   shape:  of the result.
//   slices: slice i is of [outer, length[i], inner], in any shape, and lies at
//           begin[i] along the axis; of length -1: all of the axis. `axis` -1:
//           of the flat tensor.
//
// Summed as AddN does, see kernels/core/slice_sum.h. No gradient: it stands for
// what gradients are made of.
REGISTER_OP("PicassoPackedSliceSum")
    .Input("shape: Tshape")
    .Input("slices: N * T")
    .Output("sum: T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tshape: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("axis: int")
    .Attr("begin: list(int)")
    .Attr("length: list(int)")
    .Attr("pack: string")
    .SetShapeFn([](InferenceContext* c) {
      ShapeHandle shape;
      TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(0, &shape));
      c->set_output(0, shape);
      return tensorflow::OkStatus();
    });

}  // namespace picasso
