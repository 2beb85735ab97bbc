#include <numeric>
#include <string>
#include <vector>

#include "kernels/core/segment_sum.h"
#include "kernels/ops/bags_layout.h"
#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// See register_apply_ops.cc for the op's contract.
template <typename T>
class PackedSegmentSumOp : public OpKernel {
 public:
  explicit PackedSegmentSumOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string pack;
    int data = 0;
    std::vector<tensorflow::DataType> id_types;
    std::vector<PartialTensorShape> shapes;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("M", &members_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("D", &data));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tids", &id_types));
    OP_REQUIRES_OK(ctx, GetList(ctx, "member_shape", members_, &shapes));
    OP_REQUIRES_OK(ctx, GetList(ctx, "member_parts", members_, &member_parts_));
    OP_REQUIRES_OK(ctx, layout_.Init(ctx, members_, id_types.size()));
    OP_REQUIRES_OK(
        ctx, bags_layout_.Init(ctx, members_, layout_, BagsUse::kBackward));
    ids_sources_ = id_types.size();
    parts_ = std::accumulate(member_parts_.begin(), member_parts_.end(), 0);
    OP_REQUIRES_OK(ctx, GetList(ctx, "data_index", parts_, &data_index_));
    for (int m = 0; m < members_; ++m) {
      TensorShape shape;
      OP_REQUIRES(ctx, shapes[m].AsTensorShape(&shape) && shape.dims() > 0,
                  errors::InvalidArgument("Member ", m, " has the shape ",
                                          shapes[m].DebugString(), "."));
      shapes_.push_back(shape);
      OP_REQUIRES(ctx, member_parts_[m] > 0 && layout_.source(m) >= 0,
                  errors::InvalidArgument("Member ", m, " has no input."));
      OP_REQUIRES(ctx, member_parts_[m] == 1 || !bags_layout_.is_bag(m),
                  errors::InvalidArgument("Member ", m, " of bags has ",
                                          member_parts_[m], " parts."));
    }
    for (int index : data_index_) {
      OP_REQUIRES(ctx, index >= 0 && index < data,
                  errors::InvalidArgument("No data tensor ", index, "."));
    }
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList data;
    OP_REQUIRES_OK(ctx, ctx->input_list("data", &data));
    std::vector<SegmentSumMember<T>> members(members_);
    std::vector<const T*> parts(parts_);
    std::vector<Bags<T>> bags;
    std::vector<UpdatePart<T>> grads(bags_layout_.any() ? members_ : 0);
    for (int m = 0; m < members_; ++m) {
      OP_REQUIRES_OK(
          ctx, layout_.View(ctx, data.size(), m, /*rows=*/0, &members[m].ids));
    }
    OP_REQUIRES_OK(
        ctx, bags_layout_.Make<T>(
                 ctx, data.size() + ids_sources_,
                 [&](int m) -> const IdsView& { return members[m].ids; },
                 [&](int) -> const std::string& { return name(); }, &bags));
    for (int m = 0, p = 0; m < members_; ++m) {
      SegmentSumMember<T>& member = members[m];
      member.rows = shapes_[m].dim_size(0);
      member.dim = 1;
      for (int d = 1; d < shapes_[m].dims(); ++d) {
        member.dim *= shapes_[m].dim_size(d);
      }
      int64_t rows = member.ids.size;
      if (bags_layout_.is_bag(m)) {
        const Bags<T>& made = bags[bags_layout_.same_as(m)];
        grads[m].plan = made.plan.get();
        grads[m].combiner = bags_layout_.combiner(m);
        grads[m].zero_filled = bags_layout_.zero_filled(m);
        grads[m].sums_in_type = kSparseSegmentGradInType;
        if (made.weighted) grads[m].weights = &made.weights;
        rows = made.plan->bags();
        grads[m].inner = std::max<int64_t>(rows, 1);
        member.bags = &grads[m];
      }
      member.parts = parts.data() + p;
      member.part_count = member_parts_[m];
      for (int q = 0; q < member_parts_[m]; ++q, ++p) {
        const Tensor& part = data[data_index_[p]];
        OP_REQUIRES(
            ctx, part.NumElements() == rows * member.dim,
            errors::InvalidArgument("data.shape = ", part.shape().DebugString(),
                                    " does not hold ", rows, " rows of ",
                                    member.dim, " values"));
        parts[p] = part.flat<T>().data();
        if (member.bags != nullptr) grads[m].grad = parts[p];
      }
      Tensor* out = nullptr;
      OP_REQUIRES_OK(ctx, ctx->allocate_output(m, shapes_[m], &out));
      member.out = out->flat<T>().data();
    }
    const BadId bad =
        PackedSegmentSum<T>(members.data(), members_, PoolOf(ctx));
    OP_REQUIRES(ctx, !bad.found(),
                errors::InvalidArgument(
                    "segment_ids[", bad.position, "] = ", bad.value,
                    " is out of range [0, ",
                    members[std::max<int64_t>(bad.member, 0)].rows, ")"));
    ++counters_->executed;
  }

 private:
  int members_ = 0;
  int parts_ = 0;
  int ids_sources_ = 0;
  std::vector<TensorShape> shapes_;
  std::vector<int> member_parts_;
  std::vector<int> data_index_;
  IdsLayout layout_;
  BagsLayout bags_layout_;
  PackCounters* counters_ = nullptr;
};

PICASSO_REGISTER_FLOATS("PicassoPackedSegmentSum", "T", PackedSegmentSumOp);

}  // namespace picasso
