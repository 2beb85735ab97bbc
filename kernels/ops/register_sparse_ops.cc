// The packs of ops on sparse tensors, and their shape functions, which tell
// what those of the ops in their place tell.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

using tensorflow::Status;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

namespace {

Status ReshapedShapes(InferenceContext* c) {
  const int count = c->num_outputs() / 2;
  for (int m = 0; m < count; ++m) {
    ShapeHandle indices, shape, target;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(m), 2, &indices));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(count + m), 1, &shape));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * count + m), 1, &target));
    c->set_output(m, c->Matrix(c->Dim(indices, 0), c->Dim(target, 0)));
    c->set_output(count + m, target);
  }
  return tensorflow::OkStatus();
}

Status DenseShapes(InferenceContext* c) {
  const int count = c->num_outputs();
  for (int m = 0; m < count; ++m) {
    ShapeHandle dense;
    TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(count + m, &dense));
    c->set_output(m, dense);
  }
  return tensorflow::OkStatus();
}

Status CrossedShapes(InferenceContext* c) {
  const int count = c->num_outputs() / 3;
  for (int m = 0; m < count; ++m) {
    c->set_output(m, c->Matrix(c->UnknownDim(), 2));
    c->set_output(count + m, c->Vector(c->UnknownDim()));
    c->set_output(2 * count + m, c->Vector(2));
  }
  return tensorflow::OkStatus();
}

Status OneHotShapes(InferenceContext* c) {
  const int count = c->num_outputs();
  std::vector<int64_t> depth;
  std::vector<bool> summed;
  TF_RETURN_IF_ERROR(c->GetAttr("depth", &depth));
  TF_RETURN_IF_ERROR(c->GetAttr("summed", &summed));
  if (static_cast<int>(depth.size()) != count ||
      static_cast<int>(summed.size()) != count) {
    return tensorflow::errors::InvalidArgument(
        "'depth' and 'summed' have no entry per member.");
  }
  for (int m = 0; m < count; ++m) {
    ShapeHandle shape = c->input(m);
    if (summed[m]) {
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(shape, 1, &shape));
      if (c->RankKnown(shape)) {
        TF_RETURN_IF_ERROR(c->Subshape(shape, 0, -1, &shape));
      }
    }
    if (c->RankKnown(shape)) {
      TF_RETURN_IF_ERROR(c->Concatenate(shape, c->Vector(depth[m]), &shape));
    }
    c->set_output(m, shape);
  }
  return tensorflow::OkStatus();
}

}  // namespace

// SparseReshape of N sparse tensors.
//
//   indices: [n, rank]; shapes: [rank]; new_shapes: [new rank], one entry of
//            which may be -1.
//   reshaped_indices: [n, new rank]; reshaped_shapes: [new rank].
//
// Errors are stock's. Indices outside of the shape are not noticed.
REGISTER_OP("PicassoPackedSparseReshape")
    .Input("indices: N * int64")
    .Input("shapes: N * int64")
    .Input("new_shapes: N * int64")
    .Output("reshaped_indices: N * int64")
    .Output("reshaped_shapes: N * int64")
    .Attr("N: int >= 1")
    .Attr("pack: string")
    .SetShapeFn(ReshapedShapes);

// SparseToDense of N sparse tensors.
//
//   indices: [n, rank], or [n] for vectors; shapes: [rank]; values: [n] or [];
//   missing: [], for what no index names.
//
// Indices that are not in the shape are errors, and with validate_indices those
// that are out of order or repeated.
REGISTER_OP("PicassoPackedSparseToDense")
    .Input("indices: N * int64")
    .Input("shapes: N * int64")
    .Input("values: N * T")
    .Input("missing: N * T")
    .Output("dense: N * T")
    .Attr("T: {string, int32, int64, float, double}")
    .Attr("N: int >= 1")
    .Attr("validate_indices: bool = true")
    .Attr("pack: string")
    .SetShapeFn(DenseShapes);

// The hashed SparseCross of the columns of N members, each of sparse_columns
// and dense_columns. Inputs come column by column: the first columns of all
// members, the second ones, and so on; Tvalues and Tdense so repeat each type N
// times.
//
//   indices: [n, 2]; values: [n], strings or int64; shapes: [2];
//   dense:   [batch, features], strings or int64.
//   crossed_indices: [crosses, 2]; crossed_values: [crosses];
//   crossed_shapes: [2].
//
// A num_buckets of 0: the hash is only made no negative number. Errors are
// stock's.
REGISTER_OP("PicassoPackedSparseCross")
    .Input("indices: K * int64")
    .Input("values: Tvalues")
    .Input("shapes: K * int64")
    .Input("dense: Tdense")
    .Output("crossed_indices: N * int64")
    .Output("crossed_values: N * int64")
    .Output("crossed_shapes: N * int64")
    .Attr("N: int >= 1")
    .Attr("K: int >= 0")
    .Attr("Tvalues: list({string, int64}) >= 0")
    .Attr("Tdense: list({string, int64}) >= 0")
    .Attr("sparse_columns: int >= 0")
    .Attr("dense_columns: int >= 0")
    .Attr("num_buckets: list(int)")
    .Attr("hash_key: list(int)")
    .Attr("pack: string")
    .SetShapeFn(CrossedShapes);

// N tensors of ids as rows with 1 where the id is and 0 elsewhere, each member
// with its own depth; ids not in [0, depth) give zeros. With `summed`, the rows
// of the last dimension's ids are added up: counts, as an indicator column has.
//
//   ids: any shape [..., width]; one_hot: [..., width, depth], and with
//   `summed` [..., depth].
REGISTER_OP("PicassoPackedOneHot")
    .Input("ids: N * Tids")
    .Output("one_hot: N * T")
    .Attr("Tids: {int32, int64}")
    .Attr("T: {float, double}")
    .Attr("N: int >= 1")
    .Attr("depth: list(int)")
    .Attr("summed: list(bool)")
    .Attr("pack: string")
    .SetShapeFn(OneHotShapes);

}  // namespace picasso
