// What the packs of small kernels share: counting, and one loop over elements.
#ifndef PICASSO_TF_KERNELS_OPS_PACKED_KERNEL_H_
#define PICASSO_TF_KERNELS_OPS_PACKED_KERNEL_H_

#include <string>
#include <vector>

#include "kernels/core/spread.h"
#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

// Reads N and `pack`, and counts. Subclasses keep no state per step.
class PackedKernel : public tensorflow::OpKernel {
 public:
  explicit PackedKernel(tensorflow::OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string pack;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &members_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(tensorflow::OpKernelContext* ctx) final {
    OP_REQUIRES_OK(ctx, Run(ctx));
    ++counters_->executed;
  }

 protected:
  virtual tensorflow::Status Run(tensorflow::OpKernelContext* ctx) const = 0;

  int members() const { return members_; }

 private:
  int members_ = 0;
  PackCounters* counters_ = nullptr;
};

// Runs body(m) for each member, and tells the first error.
template <typename Body>
tensorflow::Status ForMembers(tensorflow::OpKernelContext* ctx, int count,
                              int64_t cost, const Body& body) {
  std::vector<tensorflow::Status> results(count);
  PoolOf(ctx)(count, cost, [&](int64_t begin, int64_t end) {
    for (int64_t m = begin; m < end; ++m) results[m] = body(m);
  });
  for (const tensorflow::Status& result : results) TF_RETURN_IF_ERROR(result);
  return tensorflow::OkStatus();
}

// Of `count` inputs.
inline int64_t MeanElements(tensorflow::OpKernelContext* ctx, int first,
                            int count) {
  int64_t total = 0;
  for (int m = 0; m < count; ++m) total += ctx->input(first + m).NumElements();
  return total / count;
}

// For packs of one input and one output of the same shape per member:
// body(member, in, out, begin, end) over all elements.
template <typename In, typename Out, typename Body>
tensorflow::Status MapElements(tensorflow::OpKernelContext* ctx, int members,
                               int64_t cost, const Body& body) {
  std::vector<int64_t> sizes(members);
  std::vector<const In*> in(members);
  std::vector<Out*> out(members);
  for (int m = 0; m < members; ++m) {
    const tensorflow::Tensor& input = ctx->input(m);
    tensorflow::Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(m, input.shape(), &output));
    sizes[m] = input.NumElements();
    in[m] = input.flat<In>().data();
    out[m] = output->flat<Out>().data();
  }
  Spread(sizes, cost, PoolOf(ctx), [&](int m, int64_t begin, int64_t end) {
    body(m, in[m], out[m], begin, end);
  });
  return tensorflow::OkStatus();
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_OPS_PACKED_KERNEL_H_
