// The packs of small kernels that prepare ids, and their shape functions.
#include <vector>

#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

using tensorflow::Status;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
namespace errors = tensorflow::errors;

namespace {

Status SameShapes(InferenceContext* c) {
  for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->input(i));
  return tensorflow::OkStatus();
}

Status SparseShapes(InferenceContext* c) {
  const int count = c->num_inputs();
  std::vector<bool> expanded;
  TF_RETURN_IF_ERROR(c->GetAttr("expanded", &expanded));
  if (static_cast<int>(expanded.size()) != count) {
    return errors::InvalidArgument("'expanded' has no entry per member.");
  }
  for (int m = 0; m < count; ++m) {
    const ShapeHandle input = c->input(m);
    auto rank = c->UnknownDim();
    if (c->RankKnown(input)) rank = c->MakeDim(c->Rank(input) + expanded[m]);
    c->set_output(m, c->Matrix(c->UnknownDim(), rank));
    c->set_output(count + m, c->Vector(c->UnknownDim()));
    c->set_output(2 * count + m, c->Vector(rank));
  }
  return tensorflow::OkStatus();
}

// The keys' shape with the table's key shape at its end exchanged for the value
// shape, where the handle tells both.
Status FoundShapes(InferenceContext* c) {
  const int count = c->num_outputs();
  for (int m = 0; m < count; ++m) {
    ShapeHandle keys = c->input(count + m), unused, found = c->UnknownShape();
    TF_RETURN_IF_ERROR(c->WithRank(c->input(m), 0, &unused));
    TF_RETURN_IF_ERROR(c->WithRankAtMost(c->input(2 * count + m), 1, &unused));
    const auto* handle = c->input_handle_shapes_and_types(m);
    if (handle != nullptr && handle->size() == 2 && c->RankKnown(keys) &&
        c->RankKnown((*handle)[0].shape)) {
      const int suffix = c->Rank((*handle)[0].shape);
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(keys, suffix, &keys));
      TF_RETURN_IF_ERROR(c->Subshape(keys, 0, c->Rank(keys) - suffix, &found));
      TF_RETURN_IF_ERROR(c->Concatenate(found, (*handle)[1].shape, &found));
    }
    c->set_output(m, found);
  }
  return tensorflow::OkStatus();
}

}  // namespace

// N dense tensors as sparse ones, without the elements that equal the member's
// entry of `ignore` ([N] of T).
//
//   expand:  with `expanded`, where a dimension of size 1 is put into the input
//            first, as ExpandDims does.
//   indices: [kept, rank]; values: [kept]; shapes: [rank], of the input with
//            that dimension.
//
// Ranks 1 to 7; others are errors, as Where and GatherNd give them.
REGISTER_OP("PicassoPackedDenseToSparse")
    .Input("dense: N * T")
    .Output("indices: N * int64")
    .Output("values: N * T")
    .Output("shapes: N * int64")
    .Attr("T: {string, int32, int64, float, double}")
    .Attr("N: int >= 1")
    .Attr("ignore: tensor")
    .Attr("expand: list(int)")
    .Attr("expanded: list(bool)")
    .Attr("pack: string")
    .SetShapeFn(SparseShapes);

// Fingerprints of N tensors, each modulo its own num_buckets. Integers are
// hashed as their decimal text. `key`: with `strong`, two words per member.
REGISTER_OP("PicassoPackedHashBucket")
    .Input("inputs: N * T")
    .Output("buckets: N * int64")
    .Attr("T: {string, int32, int64}")
    .Attr("N: int >= 1")
    .Attr("num_buckets: list(int)")
    .Attr("strong: bool = false")
    .Attr("key: list(int) = []")
    .Attr("pack: string")
    .SetShapeFn(SameShapes);

// Bucketize of N tensors; `lengths` tells how many of the boundaries are each
// member's.
REGISTER_OP("PicassoPackedBucketize")
    .Input("inputs: N * T")
    .Output("buckets: N * int32")
    .Attr("T: {int32, int64, float, double}")
    .Attr("N: int >= 1")
    .Attr("boundaries: list(float)")
    .Attr("lengths: list(int)")
    .Attr("pack: string")
    .SetShapeFn(SameShapes);

// N tensors of ids, those outside the member's [low, high) exchanged for
// `otherwise`. Tout: to what the ids are cast first; not narrower than Tin.
REGISTER_OP("PicassoPackedRangeCheck")
    .Input("ids: N * Tin")
    .Output("checked: N * Tout")
    .Attr("Tin: {int32, int64}")
    .Attr("Tout: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("low: list(int)")
    .Attr("high: list(int)")
    .Attr("otherwise: list(int)")
    .Attr("pack: string")
    .SetShapeFn(SameShapes);

// What N lookup tables hold for their keys; `missing` for keys that they lack,
// or, with oov_buckets, the key's fingerprint modulo that, plus the table's
// size.
REGISTER_OP("PicassoPackedTableFind")
    .Input("tables: N * resource")
    .Input("keys: N * Tin")
    .Input("missing: N * Tout")
    .Output("found: N * Tout")
    .Attr("Tin: type")
    .Attr("Tout: type")
    .Attr("N: int >= 1")
    .Attr("oov_buckets: list(int)")
    .Attr("pack: string")
    .SetIsStateful()
    .SetShapeFn(FoundShapes);

}  // namespace picasso
