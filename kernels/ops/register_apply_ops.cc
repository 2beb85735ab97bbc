// The packed dense updates and what is in front of them.
#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

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

}  // namespace picasso
