// The packed ops and their shape functions.
#include <string>
#include <vector>

#include "tensorflow/core/framework/common_shape_fns.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

using tensorflow::PartialTensorShape;
using tensorflow::Status;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
namespace errors = tensorflow::errors;

namespace {

// Shape of one member as its consumers see it; unknown where it must be.
Status MemberShape(InferenceContext* c, int table, int ids_input, bool whole,
                   const PartialTensorShape& declared, ShapeHandle* shape) {
  if (!declared.unknown_rank()) {
    return c->MakeShapeFromPartialTensorShape(declared, shape);
  }
  *shape = c->UnknownShape();
  const auto* handle = c->input_handle_shapes_and_types(table);
  if (!whole || handle == nullptr || handle->empty() ||
      !c->RankKnown((*handle)[0].shape) || !c->RankKnown(c->input(ids_input))) {
    return tensorflow::OkStatus();
  }
  ShapeHandle row;
  TF_RETURN_IF_ERROR(c->Subshape((*handle)[0].shape, 1, &row));
  return c->Concatenate(c->input(ids_input), row, shape);
}

Status JoinShapes(InferenceContext* c, const std::vector<ShapeHandle>& members,
                  int chunk_dims, bool stack, ShapeHandle* joined) {
  *joined = members[0];
  if (members.size() == 1 && !stack) return tensorflow::OkStatus();
  for (const ShapeHandle& shape : members) {
    if (!c->RankKnown(shape) || c->Rank(shape) < chunk_dims) {
      *joined = c->UnknownShape();
      return tensorflow::OkStatus();
    }
  }
  const int axis = c->Rank(members[0]) - chunk_dims;
  DimensionHandle size =
      c->MakeDim(stack ? static_cast<int64_t>(members.size()) : int64_t{0});
  if (!stack) {
    for (const ShapeHandle& shape : members) {
      TF_RETURN_IF_ERROR(c->Add(size, c->Dim(shape, axis), &size));
    }
  }
  ShapeHandle before, after;
  TF_RETURN_IF_ERROR(c->Subshape(members[0], 0, axis, &before));
  TF_RETURN_IF_ERROR(c->Subshape(members[0], stack ? axis : axis + 1, &after));
  TF_RETURN_IF_ERROR(c->Concatenate(before, c->Vector(size), &before));
  return c->Concatenate(before, after, joined);
}

Status LookupShapes(InferenceContext* c) {
  int tables = 0, outputs = 0;
  std::vector<tensorflow::DataType> id_types;
  std::vector<int> member_table, ids_source, ids_width, output_members;
  std::vector<int> chunk_dims, shape_members;
  std::vector<bool> stack;
  std::vector<PartialTensorShape> member_shape, shape_as;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &tables));
  TF_RETURN_IF_ERROR(c->GetAttr("K", &outputs));
  TF_RETURN_IF_ERROR(c->GetAttr("Tids", &id_types));
  TF_RETURN_IF_ERROR(c->GetAttr("member_table", &member_table));
  TF_RETURN_IF_ERROR(c->GetAttr("member_shape", &member_shape));
  TF_RETURN_IF_ERROR(c->GetAttr("ids_source", &ids_source));
  TF_RETURN_IF_ERROR(c->GetAttr("ids_width", &ids_width));
  TF_RETURN_IF_ERROR(c->GetAttr("output_members", &output_members));
  TF_RETURN_IF_ERROR(c->GetAttr("output_chunk_dims", &chunk_dims));
  TF_RETURN_IF_ERROR(c->GetAttr("output_stack", &stack));
  TF_RETURN_IF_ERROR(c->GetAttr("shape_members", &shape_members));
  TF_RETURN_IF_ERROR(c->GetAttr("shape_as", &shape_as));
  const size_t count = member_table.size();
  if (member_shape.size() != count || ids_source.size() != count ||
      ids_width.size() != count ||
      static_cast<int>(output_members.size()) != outputs ||
      static_cast<int>(chunk_dims.size()) != outputs ||
      static_cast<int>(stack.size()) != outputs) {
    return errors::InvalidArgument(
        "The member_*, ids_* and output_* attributes differ in length.");
  }
  const int first_dense = tables + id_types.size();
  std::vector<ShapeHandle> shapes(count);
  for (size_t i = 0; i < count; ++i) {
    const int t = member_table[i];
    if (t < 0) {
      const int input = first_dense - 1 - t;
      if (input >= c->num_inputs()) {
        return errors::InvalidArgument("Member ", i, " has no input.");
      }
      shapes[i] = c->input(input);
    } else {
      if (t >= tables || ids_source[i] < 0 ||
          ids_source[i] >= static_cast<int>(id_types.size())) {
        return errors::InvalidArgument("Member ", i, " has no input.");
      }
      TF_RETURN_IF_ERROR(MemberShape(c, t, tables + ids_source[i],
                                     ids_width[i] < 0, member_shape[i],
                                     &shapes[i]));
    }
  }
  size_t next = 0;
  for (int k = 0; k < outputs; ++k) {
    if (output_members[k] < 1 || next + output_members[k] > count) {
      return errors::InvalidArgument("Output ", k, " has ", output_members[k],
                                     " members.");
    }
    const std::vector<ShapeHandle> members(
        shapes.begin() + next, shapes.begin() + next + output_members[k]);
    ShapeHandle joined;
    TF_RETURN_IF_ERROR(
        JoinShapes(c, members, chunk_dims[k], stack[k], &joined));
    c->set_output(k, joined);
    next += output_members[k];
  }
  for (size_t s = 0; s < shape_members.size(); ++s) {
    const int m = shape_members[s];
    if (m < 0 || m >= static_cast<int>(count) || member_table[m] < 0) {
      return errors::InvalidArgument("No member ", m, ".");
    }
    ShapeHandle shape = shapes[m];
    if (shape_as.size() == shape_members.size()) {
      TF_RETURN_IF_ERROR(MemberShape(c, member_table[m], tables + ids_source[m],
                                     ids_width[m] < 0, shape_as[s], &shape));
    }
    c->set_output(outputs + s, c->RankKnown(shape) ? c->Vector(c->Rank(shape))
                                                   : c->UnknownShapeOfRank(1));
  }
  return tensorflow::OkStatus();
}

}  // namespace

// Many lookups in one op. A member is one lookup or one dense tensor; outputs
// take the members in order, output k the next output_members[k] of them.
//
//   resources: [N] tables, variables of `dtype`, shape [rows, ...]; with
//              cast_rows of float, and their rows are cast to `dtype`.
//   ids:       tensors of ids; member i reads tensor ids_source[i] whole
//              (ids_width -1) or its columns [ids_begin, +ids_width) (rank 2).
//              ids_narrow: int64 ids that the graph cast to int32.
//              ids_mode, behind that: 1 adds the table's rows to negative ids,
//              2 clips ids to the table; none given: 0 for all.
//              ids_shape: their shape in the graph, with at most one unknown
//              dimension; of unknown rank: that of the whole tensor.
//   dense:     [D] tensors of `dtype`, copied into their place.
//   member_table: index into resources; -1 - d for dense tensor d.
//   member_shape: shape of the lookup's result, with at most one unknown
//              dimension; of unknown rank: the ids' shape and the row's.
//   output_chunk_dims: the members of output k are joined along the axis that
//              has this many dimensions at and behind it. With output_stack,
//              along a new axis in front of that many dimensions (tf.stack).
//   shapes:    the shapes of shape_members, as tf.shape gives them; as if
//              their member_shape were shape_as, if that is given.
//
// Ids are checked against their own table: a bad one is InvalidArgument.
// Works with no ids. Gradient: picasso_tf/ops.py.
REGISTER_OP("PicassoPackedLookup")
    .Input("resources: N * resource")
    .Input("ids: Tids")
    .Input("dense: D * dtype")
    .Output("outputs: K * dtype")
    .Output("shapes: S * shape_type")
    .Attr("dtype: {half, bfloat16, float, double}")
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr("N: int >= 1")
    .Attr("D: int >= 0 = 0")
    .Attr("K: int >= 1")
    .Attr("S: int >= 0 = 0")
    .Attr("shape_type: {int32, int64} = DT_INT32")
    .Attr("member_table: list(int)")
    .Attr("member_shape: list(shape)")
    .Attr("member_name: list(string)")
    .Attr("ids_source: list(int)")
    .Attr("ids_begin: list(int)")
    .Attr("ids_width: list(int)")
    .Attr("ids_narrow: list(bool)")
    .Attr("ids_mode: list(int) = []")
    .Attr("ids_shape: list(shape)")
    .Attr("output_members: list(int)")
    .Attr("output_chunk_dims: list(int)")
    .Attr("output_stack: list(bool)")
    .Attr("shape_members: list(int) = []")
    .Attr("shape_as: list(shape) = []")
    .Attr("cast_rows: bool = false")
    .Attr("pack: string")
    .SetIsStateful()
    .SetShapeFn(LookupShapes);

// Many sparse updates of one rule in one op; see kernels/core/update.h for the
// arithmetic. Member i updates variable i from member_parts[i] parts, which
// follow each other.
//
//   vars, slots: variables of T; slots member by member.
//   hyper:     scalars; hyper_index names those of each member, in the order of
//              the stock op. scale_index (-1: none) and negate: the gradient
//              row g becomes g or -g, times the scale.
//   steps:     the global step, for the rule adagrad_da alone.
//   grads:     gradient rows; part p reads tensor grad_source[p] whole
//              (grad_chunk_dims -1) or, of the last grad_chunk_dims dimensions,
//              the elements [grad_begin, +grad_size); a negative begin counts
//              from their end.
//   ids:       as for PicassoPackedLookup, per part.
//   sum_duplicates: sum the rows of one id before the rule is applied once.
//
// A bad id is InvalidArgument, and nothing is changed. No gradient: the stock
// updates have none either.
REGISTER_OP("PicassoPackedUpdate")
    .Input("vars: N * resource")
    .Input("slots: S * resource")
    .Input("hyper: H * T")
    .Input("steps: Z * int64")
    .Input("grads: G * T")
    .Input("ids: Tids")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tids: list({int32, int64}) >= 1")
    .Attr("N: int >= 1")
    .Attr("S: int >= 0")
    .Attr("H: int >= 0")
    .Attr("Z: int >= 0")
    .Attr("G: int >= 1")
    .Attr("rule: string")
    .Attr("update_slots: bool = true")
    .Attr("use_nesterov: bool = false")
    .Attr("multiply_linear_by_lr: bool = false")
    .Attr("use_locking: bool = false")
    .Attr("sum_duplicates: bool")
    .Attr("hyper_index: list(int)")
    .Attr("scale_index: list(int)")
    .Attr("negate: list(bool)")
    .Attr("member_name: list(string)")
    .Attr("member_parts: list(int)")
    .Attr("ids_source: list(int)")
    .Attr("ids_begin: list(int)")
    .Attr("ids_width: list(int)")
    .Attr("ids_narrow: list(bool)")
    .Attr("ids_mode: list(int) = []")
    .Attr("grad_source: list(int)")
    .Attr("grad_chunk_dims: list(int)")
    .Attr("grad_begin: list(int)")
    .Attr("grad_size: list(int)")
    .Attr("pack: string")
    .SetIsStateful()
    .SetShapeFn(tensorflow::shape_inference::NoOutputs);

}  // namespace picasso
