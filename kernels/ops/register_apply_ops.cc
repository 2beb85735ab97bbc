// The packed dense updates and what is in front of them.
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

using tensorflow::PartialTensorShape;
using tensorflow::Status;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;

// One program of elementwise operations, run for many members; see
// kernels/core/program.h.
//
//   vars:      variables of T that the members read and write. Those that a
//              member writes have one shape, and so has all that it computes
//              with; other operands broadcast to it.
//   counts:    int64 variables with one element.
//   tensors:   gradients, hyperparameters and constants.
//   integers:  int64 scalars.
//   program:   lines such as "mul %0 t1"; vi, ci, ti and ni are the member's
//              i-th entry in var_index, count_index, tensor_index,
//              integer_index.
//
// Variables that are written are locked exclusively, those that are only read
// are locked shared. A variable whose value somebody else still holds is copied
// first, as TensorFlow's dense updates do. No gradient: the updates that this
// stands for have none either.
REGISTER_OP("PicassoPackedApply")
    .Input("vars: N * resource")
    .Input("counts: C * resource")
    .Input("tensors: G * T")
    .Input("integers: I * int64")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("N: int >= 1")
    .Attr("C: int >= 0 = 0")
    .Attr("G: int >= 0 = 0")
    .Attr("I: int >= 0 = 0")
    .Attr("members: int >= 1")
    .Attr("program: list(string) >= 1")
    .Attr("var_index: list(int)")
    .Attr("count_index: list(int) = []")
    .Attr("tensor_index: list(int) = []")
    .Attr("integer_index: list(int) = []")
    .Attr("member_name: list(string)")
    .Attr("pack: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

// Many UnsortedSegmentSums. Output i has shape member_shape[i], the first
// dimension of which is the number of segments; its ids are described as those
// of PicassoPackedLookup, and its rows are the sum, from the left, of the next
// member_parts[i] tensors that data_index names, read flat as [ids, row]. With
// bag_* (see PicassoPackedLookup), its one tensor is the gradient of bags,
// which goes to each of their ids as by SparseSegment*Grad, and is summed per
// id first.
//
// As in TensorFlow, a negative id drops its row, and one that is too large is
// InvalidArgument. No gradient: it stands for what gradients are made of.
REGISTER_OP("PicassoPackedSegmentSum")
    .Input("data: D * T")
    .Input("ids: Tids")
    .Input("sparse: Tsparse")
    .Output("outputs: M * T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr("D: int >= 1")
    .Attr("M: int >= 1")
    .Attr("member_shape: list(shape)")
    .Attr("member_parts: list(int)")
    .Attr("data_index: list(int)")
    .Attr("ids_source: list(int)")
    .Attr("ids_begin: list(int)")
    .Attr("ids_width: list(int)")
    .Attr("ids_narrow: list(bool)")
    .Attr("ids_mode: list(int) = []")
    .Attr(
        "Tsparse: list({int32, int64, half, bfloat16, float, double}) >= 0 = "
        "[]")
    .Attr("bag_combiner: list(string) = []")
    .Attr("bag_rows: list(int) = []")
    .Attr("bag_shape: list(int) = []")
    .Attr("bag_weights: list(int) = []")
    .Attr("bag_prune: list(bool) = []")
    .Attr("bag_prune_weights: list(bool) = []")
    .Attr("bag_default_id: list(int) = []")
    .Attr("bag_zero_filled: list(bool) = []")
    .Attr("bag_full_shape: list(bool) = []")
    .Attr("pack: string")
    .SetShapeFn([](InferenceContext* c) -> Status {
      std::vector<PartialTensorShape> shapes;
      TF_RETURN_IF_ERROR(c->GetAttr("member_shape", &shapes));
      for (int i = 0; i < c->num_outputs(); ++i) {
        ShapeHandle shape = c->UnknownShape();
        if (i < static_cast<int>(shapes.size())) {
          TF_RETURN_IF_ERROR(
              c->MakeShapeFromPartialTensorShape(shapes[i], &shape));
        }
        c->set_output(i, shape);
      }
      return tensorflow::OkStatus();
    });

// Many L2Losses: output i is half the sum of the squares of tensor i, times
// scales[scale_index[i]] unless that index is -1. Total k is the sum of
// total_lengths[k] losses, in the order in which total_members lists them, as
// AddN gives it. No gradient: it runs behind tf.gradients.
REGISTER_OP("PicassoPackedL2Loss")
    .Input("tensors: M * T")
    .Input("scales: S * T")
    .Output("losses: M * T")
    .Output("totals: K * T")
    .Attr("T: {half, float, double}")
    .Attr("M: int >= 1")
    .Attr("S: int >= 0 = 0")
    .Attr("K: int >= 0 = 0")
    .Attr("scale_index: list(int)")
    .Attr("total_lengths: list(int) = []")
    .Attr("total_members: list(int) = []")
    .Attr("pack: string")
    .SetShapeFn([](InferenceContext* c) -> Status {
      for (int i = 0; i < c->num_outputs(); ++i) c->set_output(i, c->Scalar());
      return tensorflow::OkStatus();
    });

}  // namespace picasso
