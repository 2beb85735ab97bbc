#include <string>
#include <vector>

#include "kernels/core/slice_sum.h"
#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/tensor_shape.h"

namespace picasso {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// See register_interaction_ops.cc for the op's contract.
template <typename T>
class PackedSliceSumOp : public OpKernel {
 public:
  explicit PackedSliceSumOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int count = 0;
    std::string pack;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("axis", &axis_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "begin", count, &begin_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "length", count, &length_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList slices;
    OP_REQUIRES_OK(ctx, ctx->input_list("slices", &slices));
    const Tensor& sizes = ctx->input(0);
    OP_REQUIRES(ctx, sizes.dims() == 1,
                errors::InvalidArgument("The shape is no vector: ",
                                        sizes.shape().DebugString()));
    TensorShape shape;
    OP_REQUIRES_OK(ctx, sizes.dtype() == tensorflow::DT_INT32
                            ? tensorflow::TensorShapeUtils::MakeShape(
                                  sizes.vec<int32_t>(), &shape)
                            : tensorflow::TensorShapeUtils::MakeShape(
                                  sizes.vec<int64_t>(), &shape));
    int64_t outer = 1, axis = 1, inner = 1;
    OP_REQUIRES(ctx, axis_ < shape.dims(),
                errors::InvalidArgument("There is no axis ", axis_, " in ",
                                        shape.DebugString(), "."));
    if (axis_ < 0) {
      axis = shape.num_elements();
    } else {
      for (int d = 0; d < axis_; ++d) outer *= shape.dim_size(d);
      axis = shape.dim_size(axis_);
      for (int d = axis_ + 1; d < shape.dims(); ++d) inner *= shape.dim_size(d);
    }
    std::vector<SlicePart<T>> parts(slices.size());
    for (int p = 0; p < slices.size(); ++p) {
      const int64_t length = length_[p] < 0 ? axis : length_[p];
      OP_REQUIRES(ctx,
                  begin_[p] >= 0 && begin_[p] + length <= axis &&
                      slices[p].NumElements() == outer * length * inner,
                  errors::InvalidArgument(
                      "A slice of ", length, " at ", begin_[p], " in ",
                      shape.DebugString(), " has the shape ",
                      slices[p].shape().DebugString(), "."));
      parts[p] = {slices[p].flat<T>().data(), begin_[p], length};
    }
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &out));
    SliceSum<T>(parts, outer, axis, inner, out->flat<T>().data(), PoolOf(ctx));
    ++counters_->executed;
  }

 private:
  int axis_ = 0;
  std::vector<int64_t> begin_;
  std::vector<int64_t> length_;
  PackCounters* counters_ = nullptr;
};

PICASSO_REGISTER_FLOATS("PicassoPackedSliceSum", "T", PackedSliceSumOp);

}  // namespace picasso
