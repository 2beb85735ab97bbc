// The packed ops and their shape functions.
#include <algorithm>
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

// An attribute with a default, which nodes that are new to a graph do not have
// while TensorFlow's optimizers look at them.
template <typename Value>
void GetOptional(InferenceContext* c, const char* name, Value* value) {
  if (!c->GetAttr(name, value).ok()) *value = Value();
}

// Elements behind the first dimension; -1: not known.
int64_t ElementsBehind(InferenceContext* c, ShapeHandle shape) {
  int64_t elements = 1;
  for (int d = 1; d < c->Rank(shape); ++d) {
    const int64_t size = c->Value(c->Dim(shape, d));
    if (size < 0) return -1;
    elements *= size;
  }
  return elements;
}

// What TensorFlow's optimizers can tell of a graph's shapes decides what they
// simplify and how they associate factors. So that results keep their bits, no
// less must be known of a packed op's outputs than of the ops in its place, and
// that includes which unknown dimensions are one and the same.

// Shape of a lookup as its consumers see it; unknown where it must be.
Status LookupShape(InferenceContext* c, int table, int ids_input, int width,
                   const PartialTensorShape& declared, ShapeHandle* shape) {
  const ShapeHandle ids = c->input(ids_input);
  const auto* handle = c->input_handle_shapes_and_types(table);
  const bool known_row =
      handle != nullptr && !handle->empty() && c->RankKnown((*handle)[0].shape);
  if (declared.unknown_rank()) {
    *shape = c->UnknownShape();
    if (width >= 0 || !known_row || !c->RankKnown(ids)) {
      return tensorflow::OkStatus();
    }
    ShapeHandle row;
    TF_RETURN_IF_ERROR(c->Subshape((*handle)[0].shape, 1, &row));
    return c->Concatenate(ids, row, shape);
  }
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(declared, shape));
  // Where ids are fed, nothing is known of their shape while a session's graph
  // is optimized, nor then of columns that are cut out of them.
  if (width >= 0 && known_row && !c->RankKnown(ids)) {
    const int behind = c->Rank(*shape) - c->Rank((*handle)[0].shape);
    if ((behind == 0 && width == 1) || behind == 1) *shape = c->UnknownShape();
    return tensorflow::OkStatus();
  }
  if (!known_row || !c->RankKnown(ids) || c->Rank(ids) < 1 ||
      c->Rank(*shape) < 1 || c->ValueKnown(c->Dim(*shape, 0))) {
    return tensorflow::OkStatus();
  }
  // Where the rest has as many elements as an id's rows, the first dimensions
  // of ids and result are one.
  const int64_t of_ids = width >= 0 ? width : ElementsBehind(c, ids);
  const int64_t of_row = ElementsBehind(c, (*handle)[0].shape);
  const int64_t of_result = ElementsBehind(c, *shape);
  if (of_ids < 0 || of_row < 0 || of_ids * of_row != of_result) {
    return tensorflow::OkStatus();
  }
  return c->ReplaceDim(*shape, 0, c->Dim(ids, 0), shape);
}

// Shape of pooled rows. dense_shape: the input with the shape of the
// SparseTensor, -1 if there is none. `ones`: the input by which TensorFlow
// learns that weights are a column, -1 if nobody waits for that: what it cannot
// tell yet may not be known here either, or its optimizers take other ways.
Status BagShape(InferenceContext* c, int dense_shape, int weights, int ones,
                bool full, const PartialTensorShape& declared, int table,
                ShapeHandle* shape) {
  if (ones >= 0 && (c->input_tensor(ones) == nullptr ||
                    (dense_shape < 0 && !c->RankKnown(c->input(weights))))) {
    *shape = c->UnknownShape();
    return tensorflow::OkStatus();
  }
  TF_RETURN_IF_ERROR(c->MakeShapeFromPartialTensorShape(declared, shape));
  if (dense_shape < 0) return tensorflow::OkStatus();
  ShapeHandle sparse, leading, row;
  TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(dense_shape, &sparse));
  const auto* handle = c->input_handle_shapes_and_types(table);
  if (!c->RankKnown(sparse) || c->Rank(sparse) < 2 || handle == nullptr ||
      handle->empty() || !c->RankKnown((*handle)[0].shape)) {
    return tensorflow::OkStatus();
  }
  if (!full && c->Rank(sparse) != 2) return tensorflow::OkStatus();
  TF_RETURN_IF_ERROR(c->Subshape(sparse, 0, -1, &leading));
  TF_RETURN_IF_ERROR(c->Subshape((*handle)[0].shape, 1, &row));
  TF_RETURN_IF_ERROR(c->Concatenate(leading, row, &leading));
  if (!c->RankKnown(*shape) || c->Rank(*shape) == c->Rank(leading)) {
    return c->Merge(leading, *shape, shape);
  }
  // Behind a Reshape or ExpandDims; where each bag's row is one of the first
  // dimension, that is still the number of bags.
  if (c->Rank(*shape) > 0 && c->Rank(sparse) == 2 &&
      !c->ValueKnown(c->Dim(*shape, 0)) && ElementsBehind(c, *shape) >= 0 &&
      ElementsBehind(c, *shape) == ElementsBehind(c, leading)) {
    return c->ReplaceDim(*shape, 0, c->Dim(leading, 0), shape);
  }
  return tensorflow::OkStatus();
}

Status JoinShapes(InferenceContext* c, std::vector<ShapeHandle> members,
                  int chunk_dims, bool stack, ShapeHandle* joined) {
  *joined = members[0];
  if (members.size() == 1 && !stack) return tensorflow::OkStatus();
  // As tf.concat does: all have the rank that is known of one.
  for (const ShapeHandle& known : members) {
    if (!c->RankKnown(known)) continue;
    for (ShapeHandle& shape : members) {
      if (!c->RankKnown(shape)) shape = c->UnknownShapeOfRank(c->Rank(known));
    }
    break;
  }
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
  // And what is known of one of them is known of all.
  ShapeHandle before, after;
  const int behind = stack ? axis : axis + 1;
  TF_RETURN_IF_ERROR(c->Subshape(members[0], 0, axis, &before));
  TF_RETURN_IF_ERROR(c->Subshape(members[0], behind, &after));
  for (size_t i = 1; i < members.size(); ++i) {
    ShapeHandle part;
    TF_RETURN_IF_ERROR(c->Subshape(members[i], 0, axis, &part));
    TF_RETURN_IF_ERROR(c->Merge(before, part, &before));
    TF_RETURN_IF_ERROR(c->Subshape(members[i], behind, &part));
    TF_RETURN_IF_ERROR(c->Merge(after, part, &after));
  }
  TF_RETURN_IF_ERROR(c->Concatenate(before, c->Vector(size), &before));
  return c->Concatenate(before, after, joined);
}

Status LookupShapes(InferenceContext* c) {
  int tables = 0, outputs = 0;
  std::vector<tensorflow::DataType> id_types;
  std::vector<int> member_table, ids_source, ids_width, output_members;
  std::vector<int> chunk_dims, shape_members;
  std::vector<int> bag_rows, bag_shape, bag_weights, bag_ones;
  std::vector<bool> bag_full_shape;
  std::vector<tensorflow::DataType> sparse_types;
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
  GetOptional(c, "shape_members", &shape_members);
  GetOptional(c, "bag_rows", &bag_rows);
  GetOptional(c, "bag_shape", &bag_shape);
  GetOptional(c, "bag_weights", &bag_weights);
  GetOptional(c, "bag_ones", &bag_ones);
  GetOptional(c, "bag_full_shape", &bag_full_shape);
  GetOptional(c, "Tsparse", &sparse_types);
  GetOptional(c, "shape_as", &shape_as);
  const size_t count = member_table.size();
  if (member_shape.size() != count || ids_source.size() != count ||
      ids_width.size() != count ||
      (!bag_rows.empty() &&
       (bag_rows.size() != count || bag_shape.size() != count ||
        bag_weights.size() != count || bag_full_shape.size() != count)) ||
      (!bag_ones.empty() && bag_ones.size() != bag_rows.size()) ||
      static_cast<int>(output_members.size()) != outputs ||
      static_cast<int>(chunk_dims.size()) != outputs ||
      static_cast<int>(stack.size()) != outputs) {
    return errors::InvalidArgument(
        "The member_*, ids_* and output_* attributes differ in length.");
  }
  const int first_dense = tables + id_types.size() + sparse_types.size();
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
      if (bag_rows.empty() || bag_rows[i] < 0) {
        TF_RETURN_IF_ERROR(LookupShape(c, t, tables + ids_source[i],
                                       ids_width[i], member_shape[i],
                                       &shapes[i]));
        continue;
      }
      const int first_sparse = tables + id_types.size();
      const auto sparse = [&](int at) {
        return at < 0 ? -1 : first_sparse + at;
      };
      const int sizes = sparse(bag_shape[i]), weights = sparse(bag_weights[i]);
      const int ones = bag_ones.empty() ? -1 : sparse(bag_ones[i]);
      if (std::max({sizes, weights, ones}) >= first_dense ||
          (ones >= 0 && weights < 0)) {
        return errors::InvalidArgument("Member ", i, " has no input.");
      }
      TF_RETURN_IF_ERROR(BagShape(c, sizes, weights, ones, bag_full_shape[i],
                                  member_shape[i], t, &shapes[i]));
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
    const bool bags = !bag_rows.empty() && bag_rows[m] >= 0;
    const bool declared = shape_as.size() == shape_members.size();
    if (declared && bags) {
      if (!shape_as[s].unknown_rank()) {
        TF_RETURN_IF_ERROR(
            c->MakeShapeFromPartialTensorShape(shape_as[s], &shape));
      }
    } else if (declared) {
      TF_RETURN_IF_ERROR(LookupShape(c, member_table[m], tables + ids_source[m],
                                     ids_width[m], shape_as[s], &shape));
    }
    c->set_output(outputs + s, c->RankKnown(shape) ? c->Vector(c->Rank(shape))
                                                   : c->UnknownShapeOfRank(1));
  }
  return tensorflow::OkStatus();
}

// There are no outputs, but the optimizers learn from the stock ops that as
// many gradient rows as ids are there: see LookupShape.
Status UpdateShapes(InferenceContext* c) {
  int vars = 0, slots = 0, hyper = 0, steps = 0, grads = 0;
  std::vector<tensorflow::DataType> id_types;
  std::vector<int> ids_source, ids_width, grad_source, chunk_dims, bag_rows;
  std::vector<int> partition_parts;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &vars));
  TF_RETURN_IF_ERROR(c->GetAttr("S", &slots));
  TF_RETURN_IF_ERROR(c->GetAttr("H", &hyper));
  TF_RETURN_IF_ERROR(c->GetAttr("Z", &steps));
  TF_RETURN_IF_ERROR(c->GetAttr("G", &grads));
  TF_RETURN_IF_ERROR(c->GetAttr("Tids", &id_types));
  TF_RETURN_IF_ERROR(c->GetAttr("ids_source", &ids_source));
  TF_RETURN_IF_ERROR(c->GetAttr("ids_width", &ids_width));
  TF_RETURN_IF_ERROR(c->GetAttr("grad_source", &grad_source));
  TF_RETURN_IF_ERROR(c->GetAttr("grad_chunk_dims", &chunk_dims));
  GetOptional(c, "bag_rows", &bag_rows);
  GetOptional(c, "partition_parts", &partition_parts);
  const size_t parts = ids_source.size();
  const int first_grad = vars + slots + hyper + steps;
  if (ids_width.size() != parts || grad_source.size() != parts ||
      chunk_dims.size() != parts ||
      (!bag_rows.empty() && bag_rows.size() != parts)) {
    return errors::InvalidArgument(
        "The ids_*, grad_* and bag_* attributes differ in length.");
  }
  for (size_t p = 0; p < parts; ++p) {
    if (ids_source[p] < 0 ||
        ids_source[p] >= static_cast<int>(id_types.size()) ||
        grad_source[p] < 0 || grad_source[p] >= grads) {
      return errors::InvalidArgument("Part ", p, " has no input.");
    }
    if (ids_width[p] >= 0 || chunk_dims[p] >= 0 ||
        (!bag_rows.empty() && bag_rows[p] >= 0) ||
        (partition_parts.size() == parts && partition_parts[p] > 0)) {
      continue;
    }
    const ShapeHandle grad = c->input(first_grad + grad_source[p]);
    const ShapeHandle ids = c->input(first_grad + grads + ids_source[p]);
    if (!c->RankKnown(grad) || !c->RankKnown(ids) || c->Rank(ids) != 1 ||
        c->Rank(grad) < 2) {
      continue;
    }
    DimensionHandle rows;
    TF_RETURN_IF_ERROR(c->Merge(c->Dim(grad, 0), c->Dim(ids, 0), &rows));
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
//   sparse, bag_*: of members that pool bags of ids: "sparse" inputs (-1: none)
//              with the indices [ids, rank] or segment ids [ids] (bag_rows),
//              the dense shape [rank] (bag_shape) and the weights [ids]. With a
//              shape, each of its rows is a bag, and one without ids gets
//              bag_default_id (bag_zero_filled: then becomes zero); else bags
//              end with the last id. bag_prune(_weights): ids below zero
//              (weights not above zero) do not count. bag_full_shape: the
//              result has the shape's leading dimensions, else the bags are one
//              dimension. bag_ones is looked at by the shape function alone.
//
//   partition_*: of members whose table is in parts, by the rules of
//              tf.nn.embedding_lookup: strategy "mod" or "div" ("": one table),
//              their number and, for "div", rows of all of them. Member by
//              member, partition_tables names each part's resource.
//
// Ids are checked against their own table: a bad one is InvalidArgument.
// Works with no ids. Gradient: picasso_tf/ops.py.
REGISTER_OP("PicassoPackedLookup")
    .Input("resources: N * resource")
    .Input("ids: Tids")
    .Input("sparse: Tsparse")
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
    .Attr("bag_ones: list(int) = []")
    .Attr("partition_strategy: list(string) = []")
    .Attr("partition_parts: list(int) = []")
    .Attr("partition_rows: list(int) = []")
    .Attr("partition_tables: list(int) = []")
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
//              from their end. grad_checked: it is not known that there is a
//              row for each id; the tensor is a scalar, which all ids get, or
//              compared with the ids' shape, as ResourceScatter* do.
//   ids, sparse, bag_*: as for PicassoPackedLookup, per part. The gradient of
//              bags has one row per bag.
//   partition_*: of a variable that is one part of several, per part of the
//              update: as for PicassoPackedLookup, and which part it is
//              (partition_index). Only its ids count.
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
    .Input("sparse: Tsparse")
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
    .Attr("grad_checked: list(bool) = []")
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
    .Attr("partition_strategy: list(string) = []")
    .Attr("partition_parts: list(int) = []")
    .Attr("partition_rows: list(int) = []")
    .Attr("partition_index: list(int) = []")
    .Attr("pack: string")
    .SetIsStateful()
    .SetShapeFn(UpdateShapes);

}  // namespace picasso
