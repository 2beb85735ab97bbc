// One program over rows, run for many matrices; see kernels/core/row_program.h.
#include <string>
#include <vector>

#include "kernels/core/row_program.h"
#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
namespace errors = tensorflow::errors;

namespace {

Status RowShapes(InferenceContext* c) {
  int members = 0;
  std::vector<int> index, results;
  std::vector<std::string> lines;
  TF_RETURN_IF_ERROR(c->GetAttr("members", &members));
  TF_RETURN_IF_ERROR(c->GetAttr("tensor_index", &index));
  TF_RETURN_IF_ERROR(c->GetAttr("results", &results));
  TF_RETURN_IF_ERROR(c->GetAttr("program", &lines));
  RowProgram program;
  const std::string wrong = program.Parse(lines);
  if (!wrong.empty()) return errors::InvalidArgument(wrong);
  const int count = results.size();
  if (static_cast<int>(index.size()) != members * program.tensors ||
      c->num_outputs() != members * count) {
    return errors::InvalidArgument("A member lacks tensors or results.");
  }
  for (int m = 0; m < members; ++m) {
    const int base = index[m * program.tensors];
    if (base < 0 || base >= c->num_inputs()) {
      return errors::InvalidArgument("No tensor ", base, ".");
    }
    const ShapeHandle rows = c->input(base);
    ShapeHandle column = c->UnknownShape();
    if (c->RankKnown(rows) && c->Rank(rows) > 0) {
      TF_RETURN_IF_ERROR(
          c->ReplaceDim(rows, c->Rank(rows) - 1, c->MakeDim(1), &column));
    }
    for (int k = 0; k < count; ++k) {
      const int line = results[k];
      if (line < 0 || line >= static_cast<int>(program.code.size())) {
        return errors::InvalidArgument("No line ", line, ".");
      }
      c->set_output(m * count + k, program.code[line].matrix ? rows : column);
    }
  }
  return tensorflow::OkStatus();
}

}  // namespace

// Elementwise operations and sums over the last dimension, for `members`
// tensors [..., dim] of rows with all that is computed from them.
//
//   program:      see kernels/core/row_program.h; ti is the member's i-th entry
//                 in tensor_index. t0 has the shape of the rows; other operands
//                 broadcast to it.
//   results:      lines whose values are wanted; of each member, in this order,
//                 with the shape of its rows or with 1 as last dimension.
//
// No gradient: it stands for what TensorFlow's optimizers made, gradients
// included.
REGISTER_OP("PicassoPackedRows")
    .Input("tensors: G * T")
    .Output("values: K * T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("G: int >= 1")
    .Attr("K: int >= 1")
    .Attr("members: int >= 1")
    .Attr("program: list(string) >= 1")
    .Attr("results: list(int) >= 1")
    .Attr("tensor_index: list(int)")
    .Attr("pack: string")
    .SetShapeFn(RowShapes);

template <typename T>
class PackedRowsOp : public OpKernel {
 public:
  explicit PackedRowsOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string pack;
    std::vector<std::string> lines;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("members", &members_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("program", &lines));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("results", &results_));
    const std::string wrong = program_.Parse(lines);
    OP_REQUIRES(ctx, wrong.empty(), errors::InvalidArgument(wrong));
    OP_REQUIRES_OK(ctx, GetList(ctx, "tensor_index",
                                members_ * program_.tensors, &index_));
    for (int line : results_) {
      OP_REQUIRES(ctx,
                  0 <= line && line < static_cast<int>(program_.code.size()),
                  errors::InvalidArgument("No line ", line, "."));
    }
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(OpKernelContext* ctx) override {
    std::vector<RowProgramMember<T>> members(members_);
    for (int m = 0; m < members_; ++m) {
      OP_REQUIRES_OK(ctx, Fill(ctx, m, &members[m]));
    }
    RunRowProgram<T>(program_, results_, members, PoolOf(ctx));
    ++counters_->executed;
  }

 private:
  Status Fill(OpKernelContext* ctx, int m, RowProgramMember<T>* member) const {
    const int* index = index_.data() + m * program_.tensors;
    const TensorShape& rows = ctx->input(index[0]).shape();
    const int last = rows.dims() - 1;
    if (last < 0 || rows.dim_size(last) == 0) {
      return errors::InvalidArgument("No rows: ", rows.DebugString());
    }
    member->dim = rows.dim_size(last);
    member->rows = rows.num_elements() / member->dim;
    for (int t = 0; t < program_.tensors; ++t) {
      const Tensor& tensor = ctx->input(index[t]);
      const int64_t size = tensor.NumElements();
      const int64_t width =
          tensor.dims() == 0 ? 1 : tensor.dim_size(tensor.dims() - 1);
      RowOperand<T> operand = {tensor.flat<T>().data(), 0, 0};
      if (size == member->rows * member->dim && width == member->dim) {
        operand.row_step = member->dim;
        operand.column_step = 1;
      } else if (size == member->rows && width == 1) {
        operand.row_step = 1;
      } else if (size == member->dim && width == member->dim) {
        operand.column_step = 1;
      } else if (size != 1) {
        return errors::InvalidArgument(
            "Incompatible shapes: ", rows.DebugString(), " vs. ",
            tensor.shape().DebugString());
      }
      member->tensors.push_back(operand);
    }
    TensorShape column = rows;
    column.set_dim(last, 1);
    const int count = results_.size();
    for (int k = 0; k < count; ++k) {
      Tensor* out = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(
          m * count + k, program_.code[results_[k]].matrix ? rows : column,
          &out));
      member->results.push_back(out->flat<T>().data());
    }
    return tensorflow::OkStatus();
  }

  int members_ = 0;
  RowProgram program_;
  std::vector<int> results_;
  std::vector<int> index_;
  PackCounters* counters_ = nullptr;
};

PICASSO_REGISTER_FLOATS("PicassoPackedRows", "T", PackedRowsOp);

}  // namespace picasso
