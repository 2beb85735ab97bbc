#include <algorithm>
#include <vector>

#include "kernels/ops/packed_kernel.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// See register_kernel_ops.cc for the op's contract.
template <typename In, typename T>
class PackedOneHotOp : public PackedKernel {
 public:
  explicit PackedOneHotOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetList(ctx, "depth", members(), &depth_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "summed", members(), &summed_));
    for (int64_t depth : depth_) {
      OP_REQUIRES(
          ctx, depth >= 0,
          errors::InvalidArgument("depth must be non-negative, got: ", depth));
    }
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<int64_t> rows(count), widths(count);
    std::vector<const In*> in(count);
    std::vector<T*> out(count);
    int64_t written = 0;
    for (int m = 0; m < count; ++m) {
      const Tensor& ids = ctx->input(m);
      TensorShape shape = ids.shape();
      widths[m] = 1;
      if (summed_[m]) {
        if (shape.dims() == 0) {
          return errors::InvalidArgument(
              "Invalid reduction dimension (-2 for input with 1 dimension(s)");
        }
        widths[m] = shape.dim_size(shape.dims() - 1);
        shape.RemoveLastDims(1);
      }
      rows[m] = shape.num_elements();
      TF_RETURN_IF_ERROR(shape.AddDimWithStatus(depth_[m]));
      Tensor* output = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(m, shape, &output));
      in[m] = ids.flat<In>().data();
      out[m] = output->flat<T>().data();
      written += shape.num_elements();
    }
    int64_t total = 0;
    for (int64_t size : rows) total += size;
    if (total == 0) return tensorflow::OkStatus();
    Spread(rows, 4 + written / total, PoolOf(ctx),
           [&](int m, int64_t begin, int64_t end) {
             const int64_t depth = depth_[m], width = widths[m];
             T* const first = out[m] + begin * depth;
             std::fill(first, out[m] + end * depth, T(0));
             for (int64_t i = begin * width; i < end * width; ++i) {
               const int64_t id = in[m][i];
               if (id >= 0 && id < depth) {
                 out[m][(i / width) * depth + id] += T(1);
               }
             }
           });
    return tensorflow::OkStatus();
  }

 private:
  std::vector<int64_t> depth_;
  std::vector<bool> summed_;
};

#define REGISTER(In, T)                                       \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedOneHot")         \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<In>("Tids")     \
                              .TypeConstraint<T>("T"),        \
                          PackedOneHotOp<In, T>)
REGISTER(int32_t, float);
REGISTER(int32_t, double);
REGISTER(int64_t, float);
REGISTER(int64_t, double);
#undef REGISTER

}  // namespace picasso
