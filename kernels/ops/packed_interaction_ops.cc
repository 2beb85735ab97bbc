#include <string>
#include <vector>

#include "kernels/core/dot_interaction.h"
#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

namespace {

// What both ops know of the fields.
class DotLayout {
 public:
  tensorflow::Status Init(OpKernelConstruction* ctx) {
    TF_RETURN_IF_ERROR(ctx->GetAttr("fields", &pairs.fields));
    TF_RETURN_IF_ERROR(ctx->GetAttr("dim", &dim));
    TF_RETURN_IF_ERROR(ctx->GetAttr("self_interaction", &pairs.self));
    TF_RETURN_IF_ERROR(ctx->GetAttr("full", &pairs.full));
    std::string pack;
    TF_RETURN_IF_ERROR(ctx->GetAttr("pack", &pack));
    counters = CountersOf(pack);
    ++counters->created;
    return tensorflow::OkStatus();
  }

  PairLayout pairs = {};
  int64_t dim = 0;
  PackCounters* counters = nullptr;
};

// Where the fields lie in the inputs.
template <typename T>
struct Fields {
  std::vector<const T*> begin;
  std::vector<int64_t> stride;
  int64_t batch = 0;

  tensorflow::Status Read(const OpInputList& inputs, const DotLayout& layout) {
    for (const Tensor& input : inputs) {
      if (input.dims() < 1 || (!begin.empty() && input.dim_size(0) != batch)) {
        return errors::InvalidArgument(
            "Fields of unequal batches: ", input.shape().DebugString(),
            " behind ", batch, " examples.");
      }
      batch = input.dim_size(0);
      int64_t width = 1;
      for (int d = 1; d < input.dims(); ++d) width *= input.dim_size(d);
      if (width % layout.dim != 0) {
        return errors::InvalidArgument("Fields of ", layout.dim,
                                       " elements in a tensor of shape ",
                                       input.shape().DebugString(), ".");
      }
      for (int64_t at = 0; at < width; at += layout.dim) {
        begin.push_back(input.flat<T>().data() + at);
        stride.push_back(width);
      }
    }
    if (static_cast<int64_t>(begin.size()) != layout.pairs.fields) {
      return errors::InvalidArgument("There are ", begin.size(),
                                     " fields, expected ", layout.pairs.fields,
                                     ".");
    }
    return tensorflow::OkStatus();
  }
};

}  // namespace

// See register_interaction_ops.cc for the ops' contracts.
template <typename T>
class DotInteractionOp : public OpKernel {
 public:
  explicit DotInteractionOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, layout_.Init(ctx));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList inputs;
    OP_REQUIRES_OK(ctx, ctx->input_list("inputs", &inputs));
    Fields<T> fields;
    OP_REQUIRES_OK(ctx, fields.Read(inputs, layout_));
    Tensor* out = nullptr;
    OP_REQUIRES_OK(
        ctx, ctx->allocate_output(
                 0, TensorShape({fields.batch, layout_.pairs.size()}), &out));
    DotInteraction<T>({layout_.pairs,
                       layout_.dim,
                       {fields.begin.data(), fields.stride.data()},
                       out->flat<T>().data()},
                      fields.batch, PoolOf(ctx));
    ++layout_.counters->executed;
  }

 private:
  DotLayout layout_;
};

template <typename T>
class DotInteractionGradOp : public OpKernel {
 public:
  explicit DotInteractionGradOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    OP_REQUIRES_OK(ctx, layout_.Init(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("flat", &flat_));
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList inputs;
    OP_REQUIRES_OK(ctx, ctx->input_list("inputs", &inputs));
    Fields<T> fields;
    OP_REQUIRES_OK(ctx, fields.Read(inputs, layout_));
    const Tensor& grad = ctx->input(0);
    OP_REQUIRES(ctx, grad.NumElements() == fields.batch * layout_.pairs.size(),
                errors::InvalidArgument("The gradient of ", fields.batch,
                                        " examples of ", layout_.pairs.size(),
                                        " pairs has the shape ",
                                        grad.shape().DebugString(), "."));
    const int64_t count = layout_.pairs.fields, dim = layout_.dim;
    const TensorShape shape = flat_ ? TensorShape({fields.batch, count * dim})
                                    : TensorShape({fields.batch, count, dim});
    Tensor* out = nullptr;
    OP_REQUIRES_OK(ctx, ctx->allocate_output(0, shape, &out));
    DotInteractionGrad<T>({layout_.pairs,
                           dim,
                           {fields.begin.data(), fields.stride.data()},
                           grad.flat<T>().data(),
                           out->flat<T>().data()},
                          fields.batch, PoolOf(ctx));
    ++layout_.counters->executed;
  }

 private:
  DotLayout layout_;
  bool flat_ = false;
};

PICASSO_REGISTER("PicassoDotInteraction", "T", DotInteractionOp, float);
PICASSO_REGISTER("PicassoDotInteraction", "T", DotInteractionOp, double);
PICASSO_REGISTER("PicassoDotInteractionGrad", "T", DotInteractionGradOp, float);
PICASSO_REGISTER("PicassoDotInteractionGrad", "T", DotInteractionGradOp,
                 double);

}  // namespace picasso

extern "C" {

// For tests: see UseDotKernels.
__attribute__((visibility("default"))) int PicassoUseDotKernels(
    const char* name) {
  return picasso::UseDotKernels(name);
}

}  // extern "C"
