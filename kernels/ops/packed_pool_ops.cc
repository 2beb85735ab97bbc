// Packs of the ops that pool rows, and of their gradients. Errors are worded as
// those of the ops that they replace.
#include <algorithm>
#include <string>
#include <vector>

#include "kernels/core/pool.h"
#include "kernels/core/pool_grad.h"
#include "kernels/core/segment_sum.h"
#include "kernels/ops/bags_layout.h"
#include "kernels/ops/packed_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
namespace errors = tensorflow::errors;

namespace {

// [first, the other dimensions of rows].
Status WithFirst(InferenceContext* c, ShapeHandle rows, DimensionHandle first,
                 ShapeHandle* out) {
  TF_RETURN_IF_ERROR(c->WithRankAtLeast(rows, 1, &rows));
  if (!c->RankKnown(rows)) {
    *out = c->UnknownShape();
    return tensorflow::OkStatus();
  }
  return c->ReplaceDim(rows, 0, first, out);
}

Status PooledShapes(InferenceContext* c) {
  for (int m = 0; m < c->num_outputs(); ++m) {
    ShapeHandle pooled;
    TF_RETURN_IF_ERROR(WithFirst(c, c->input(m), c->UnknownDim(), &pooled));
    c->set_output(m, pooled);
  }
  return tensorflow::OkStatus();
}

Status PooledGradShapes(InferenceContext* c) {
  const int count = c->num_outputs();
  bool by_shape = false;
  TF_RETURN_IF_ERROR(c->GetAttr("by_shape", &by_shape));
  for (int m = 0; m < count; ++m) {
    const ShapeHandle rows = c->input(3 * count + m);
    DimensionHandle first = c->UnknownDim();
    if (!by_shape) {
      const Tensor* value = c->input_tensor(3 * count + m);
      if (value != nullptr && value->NumElements() == 1) {
        first = c->MakeDim(value->flat<int32_t>()(0));
      }
    } else if (c->RankKnown(rows) && c->Rank(rows) > 0) {
      first = c->Dim(rows, 0);
    }
    ShapeHandle grad;
    TF_RETURN_IF_ERROR(WithFirst(c, c->input(m), first, &grad));
    c->set_output(m, grad);
  }
  return tensorflow::OkStatus();
}

}  // namespace

// SparseSegment{Sum,Mean,SqrtN} of N members, or the like with weights.
//
//   rows:      [rows, ...]; positions: [n], rows of it; segments: [n], the bag
//              of each, or [n, columns], whose first column is meant.
//   weights:   [n], of the entries; none: they have none. As
//              embedding_lookup_sparse computes with them.
//   combiner:  of each member; sum, mean or sqrtn.
//   pooled:    [last bag + 1, ...]; bags without rows are zero.
//
// Errors are stock's. No gradient: it is made behind the gradients.
REGISTER_OP("PicassoPackedPool")
    .Input("rows: N * T")
    .Input("positions: N * Tidx")
    .Input("segments: N * Tsegmentids")
    .Input("weights: W * Tweights")
    .Output("pooled: N * T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tidx: {int32, int64}")
    .Attr("Tsegmentids: {int32, int64}")
    .Attr("Tweights: {half, bfloat16, float, double} = DT_FLOAT")
    .Attr("N: int >= 1")
    .Attr("W: int >= 0")
    .Attr("combiner: list(string)")
    .Attr("pack: string")
    .SetShapeFn(PooledShapes);

// SparseSegment{Sum,Mean,SqrtN}Grad of N members.
//
//   grads:     [bags, ...], of what was pooled; positions, segments, combiner:
//              as above.
//   counts:    [], how many rows there are; with by_shape tensors that have as
//              many.
//   row_grads: [rows, ...]; rows that no bag has are zero.
REGISTER_OP("PicassoPackedPoolGrad")
    .Input("grads: N * T")
    .Input("positions: N * Tidx")
    .Input("segments: N * Tsegmentids")
    .Input("counts: N * Tcounts")
    .Input("weights: W * Tweights")
    .Output("row_grads: N * T")
    .Attr("T: {half, bfloat16, float, double}")
    .Attr("Tidx: {int32, int64}")
    .Attr("Tsegmentids: {int32, int64}")
    .Attr("Tcounts: type")
    .Attr("Tweights: {half, bfloat16, float, double} = DT_FLOAT")
    .Attr("N: int >= 1")
    .Attr("W: int >= 0")
    .Attr("by_shape: bool")
    .Attr("combiner: list(string)")
    .Attr("pack: string")
    .SetShapeFn(PooledGradShapes);

namespace {

Status Combiners(OpKernelConstruction* ctx, int count,
                 std::vector<Combiner>* combiners) {
  std::vector<std::string> names;
  TF_RETURN_IF_ERROR(GetList(ctx, "combiner", count, &names));
  for (const std::string& name : names) {
    if (name == "sum") {
      combiners->push_back(Combiner::kSum);
    } else if (name == "mean") {
      combiners->push_back(Combiner::kMean);
    } else if (name == "sqrtn") {
      combiners->push_back(Combiner::kSqrtN);
    } else {
      return errors::InvalidArgument("No combiner '", name, "'.");
    }
  }
  return tensorflow::OkStatus();
}

// A vector, or the first column of a matrix.
IdsView ViewOf(const Tensor& tensor) {
  IdsView view;
  view.data = tensor.data();
  view.is_int64 = tensor.dtype() == tensorflow::DT_INT64;
  view.size = tensor.dim_size(0);
  view.stride = tensor.dims() == 2 ? tensor.dim_size(1) : 1;
  return view;
}

// The entries of member m, and what stock says of their shapes.
Status Entries(OpKernelContext* ctx, int m, int count, IdsView* positions,
               IdsView* segments) {
  const Tensor& at = ctx->input(count + m);
  const Tensor& bags = ctx->input(2 * count + m);
  if (!TensorShapeUtils::IsVector(at.shape())) {
    return errors::InvalidArgument("indices should be a vector.");
  }
  if (bags.dims() < 1 || bags.dims() > 2 ||
      (bags.dims() == 2 && bags.dim_size(1) == 0)) {
    return errors::InvalidArgument("segment_ids should be a vector.");
  }
  *positions = ViewOf(at);
  *segments = ViewOf(bags);
  if (positions->size != segments->size) {
    return errors::InvalidArgument(
        "segment_ids and indices should have same size.");
  }
  return tensorflow::OkStatus();
}

int64_t SizeOfRow(const TensorShape& shape) {
  int64_t size = 1;
  for (int d = 1; d < shape.dims(); ++d) size *= shape.dim_size(d);
  return size;
}

int64_t LastOf(const IdsView& view) {
  return view.is_int64 ? IdsReader<int64_t>(view)[view.size - 1]
                       : IdsReader<int32_t>(view)[view.size - 1];
}

Status PoolError(const BagError& error, const IdsView& segments) {
  switch (error.kind) {
    case BagError::kNone:
      return tensorflow::OkStatus();
    case BagError::kNotIncreasing:
      return errors::InvalidArgument("segment ids are not increasing");
    default:
      break;
  }
  const int64_t last = LastOf(segments);
  if (last < 0) return errors::InvalidArgument("segment ids must be >= 0");
  return errors::InvalidArgument(
      "Segment id ", error.value, " out of range [0, ", last + 1,
      "), possibly because 'segment_ids' input is not sorted.");
}

template <typename T, typename W>
void BuildWeightsFrom(const Tensor& tensor, Combiner combiner, Bags<T>* bags) {
  const W* const values = tensor.flat<W>().data();
  // One for all broadcasts.
  const int64_t step = tensor.NumElements() == 1 ? 0 : 1;
  bags->weights.Build(*bags->plan, combiner, [=](int64_t i) {
    return static_cast<Sum<T>>(values[i * step]);
  });
}

// The bags of member m, with weights if `weights` is an input, and not -1.
template <typename T>
Status MakeBags(OpKernelContext* ctx, int m, int count, int weights,
                Combiner combiner, Bags<T>* bags) {
  SparseIds source;
  IdsView segments;
  TF_RETURN_IF_ERROR(Entries(ctx, m, count, &source.ids, &segments));
  source.rows = segments.data;
  source.rows_int64 = segments.is_int64;
  source.columns = segments.stride;
  source.weighted = bags->weighted = weights >= 0;
  auto plan = std::make_shared<BagPlan>();
  TF_RETURN_IF_ERROR(PoolError(plan->Build(source), segments));
  bags->plan = std::move(plan);
  if (!bags->weighted) return tensorflow::OkStatus();
  const Tensor& given = ctx->input(weights);
  const int64_t size = given.NumElements(), ids = source.ids.size;
  if (size != ids && (size != 1 || combiner != Combiner::kSum)) {
    return errors::InvalidArgument("There are ", ids, " ids and ", size,
                                   " weights.");
  }
  switch (given.dtype()) {
    case tensorflow::DT_HALF:
      BuildWeightsFrom<T, Eigen::half>(given, combiner, bags);
      break;
    case tensorflow::DT_BFLOAT16:
      BuildWeightsFrom<T, Eigen::bfloat16>(given, combiner, bags);
      break;
    case tensorflow::DT_FLOAT:
      BuildWeightsFrom<T, float>(given, combiner, bags);
      break;
    default:
      BuildWeightsFrom<T, double>(given, combiner, bags);
  }
  return tensorflow::OkStatus();
}

}  // namespace

// Reads W, for which there is one input per member, or none.
template <typename T>
class PoolKernel : public PackedKernel {
 public:
  explicit PoolKernel(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    int weights = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("W", &weights));
    OP_REQUIRES(ctx, weights == 0 || weights == members(),
                errors::InvalidArgument(weights, " weights for ", members(),
                                        " members."));
    OP_REQUIRES_OK(ctx, Combiners(ctx, members(), &combiners_));
    first_weights_ = weights == 0 ? -1 : ctx->num_inputs() - weights;
  }

 protected:
  bool weighted() const { return first_weights_ >= 0; }
  Combiner combiner(int m) const { return combiners_[m]; }

  Status MakeAll(OpKernelContext* ctx, std::vector<Bags<T>>* bags) const {
    const int count = members();
    bags->resize(count);
    const int64_t cost = 100 + 8 * MeanElements(ctx, count, count);
    return ForMembers(ctx, count, cost, [&](int m) {
      const int weights = weighted() ? first_weights_ + m : -1;
      return MakeBags<T>(ctx, m, count, weights, combiners_[m], &(*bags)[m]);
    });
  }

 private:
  std::vector<Combiner> combiners_;
  int first_weights_ = -1;
};

template <typename T>
class PackedPoolOp : public PoolKernel<T> {
 public:
  using PoolKernel<T>::PoolKernel;

 protected:
  using PoolKernel<T>::members;

  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<Bags<T>> bags;
    TF_RETURN_IF_ERROR(this->MakeAll(ctx, &bags));
    std::vector<LookupMember> all(count);
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Describe(ctx, m, bags[m], &all[m]));
    }
    const BadId bad = PackedLookup(all.data(), count, PoolOf(ctx));
    if (bad.found()) {
      return errors::InvalidArgument(
          this->weighted() ? "indices[" : "Bad: indices[", bad.position,
          this->weighted() ? "] = " : "] == ", bad.value,
          this->weighted() ? " is not in [0, " : " out of range [0, ",
          all[bad.member].rows, ")");
    }
    return tensorflow::OkStatus();
  }

 private:
  Status Describe(OpKernelContext* ctx, int m, const Bags<T>& bags,
                  LookupMember* member) const {
    const Tensor& rows = ctx->input(m);
    if (rows.dims() < 1 || (bags.weighted && rows.dims() != 2)) {
      return errors::InvalidArgument("Rows of the shape ",
                                     rows.shape().DebugString());
    }
    TensorShape shape = rows.shape();
    TF_RETURN_IF_ERROR(shape.SetDimWithStatus(0, bags.plan->bags()));
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(m, shape, &out));
    member->table = static_cast<const char*>(rows.data());
    member->rows = rows.dim_size(0);
    member->row_bytes = SizeOfRow(rows.shape()) * sizeof(T);
    member->pool = &PoolRows<T>;
    member->plan = bags.plan.get();
    member->weights = bags.weighted ? &bags.weights : nullptr;
    member->combiner = this->combiner(m);
    member->output = static_cast<char*>(out->data());
    member->chunk_bytes = member->output_stride = member->row_bytes;
    member->outer = bags.plan->bags();
    return tensorflow::OkStatus();
  }
};

template <typename T>
class PackedPoolGradOp : public PoolKernel<T> {
 public:
  explicit PackedPoolGradOp(OpKernelConstruction* ctx) : PoolKernel<T>(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("by_shape", &by_shape_));
  }

 protected:
  using PoolKernel<T>::members;

  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<PoolGradMember<T>> all(count);
    int64_t elements = 0;
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Describe(ctx, m, &all[m]));
      elements += all[m].dim * (all[m].positions.size + all[m].rows);
    }
    if (this->weighted()) return RunWeighted(ctx, all);
    return ForMembers(ctx, count, 100 + elements / count, [&](int m) {
      return ErrorOf(PoolGradient<T>(all[m]), all[m]);
    });
  }

 private:
  Status Describe(OpKernelContext* ctx, int m,
                  PoolGradMember<T>* member) const {
    const int count = members();
    TF_RETURN_IF_ERROR(
        Entries(ctx, m, count, &member->positions, &member->segments));
    const Tensor& grad = ctx->input(m);
    const Tensor& rows = ctx->input(3 * count + m);
    if (grad.dims() < 1) {
      return errors::InvalidArgument("Shape must be at least rank 1");
    }
    if (by_shape_ ? rows.dims() < 1 : rows.dims() > 0) {
      return errors::InvalidArgument("output_dim0 should be a scalar.");
    }
    member->rows =
        by_shape_ ? rows.dim_size(0) : int64_t{rows.scalar<int32_t>()()};
    TensorShape shape = grad.shape();
    TF_RETURN_IF_ERROR(shape.SetDimWithStatus(0, member->rows));
    Tensor* out = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(m, shape, &out));
    member->grad = grad.flat<T>().data();
    member->bags = grad.dim_size(0);
    member->combiner = this->combiner(m);
    member->sums_in_type = kSparseSegmentGradInType;
    member->out = out->flat<T>().data();
    member->dim = SizeOfRow(shape);
    return tensorflow::OkStatus();
  }

  // GatherV2 of the gradient by bag, times weights, and UnsortedSegmentSum.
  Status RunWeighted(OpKernelContext* ctx,
                     const std::vector<PoolGradMember<T>>& all) const {
    const int count = members();
    std::vector<Bags<T>> bags;
    TF_RETURN_IF_ERROR(this->MakeAll(ctx, &bags));
    std::vector<UpdatePart<T>> parts(count);
    std::vector<SegmentSumMember<T>> sums(count);
    for (int m = 0; m < count; ++m) {
      if (bags[m].plan->bags() > all[m].bags) {
        return errors::InvalidArgument("There are ", all[m].bags,
                                       " gradients of ", bags[m].plan->bags(),
                                       " bags.");
      }
      UpdatePart<T>& part = parts[m];
      part.plan = bags[m].plan.get();
      part.combiner = all[m].combiner;
      part.weights = &bags[m].weights;
      part.grad = all[m].grad;
      part.inner = std::max<int64_t>(all[m].bags, 1);
      sums[m].bags = &part;
      sums[m].out = all[m].out;
      sums[m].rows = all[m].rows;
      sums[m].dim = all[m].dim;
    }
    const BadId bad = PackedSegmentSum<T>(sums.data(), count, PoolOf(ctx));
    if (!bad.found()) return tensorflow::OkStatus();
    return errors::InvalidArgument("segment_ids[", bad.position,
                                   "] = ", bad.value, " is out of range [0, ",
                                   all[bad.member].rows, ")");
  }

  static Status ErrorOf(const PoolGradError& error,
                        const PoolGradMember<T>& member) {
    switch (error.kind) {
      case PoolGradError::kNone:
        break;
      case PoolGradError::kTooFewBags:
        return errors::InvalidArgument("Invalid number of segments");
      case PoolGradError::kSegment:
        return errors::InvalidArgument("Segment id ", error.value,
                                       " out of range [0, ", member.bags, ").");
      case PoolGradError::kPosition:
        return errors::InvalidArgument("Index ", error.value,
                                       " out of range [0, ", member.rows, ").");
    }
    return tensorflow::OkStatus();
  }

  bool by_shape_ = false;
};

PICASSO_REGISTER_FLOATS("PicassoPackedPool", "T", PackedPoolOp);
PICASSO_REGISTER_FLOATS("PicassoPackedPoolGrad", "T", PackedPoolGradOp);

}  // namespace picasso
