#include <string>
#include <utility>
#include <vector>

#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace picasso {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

namespace {

// Runs what it is given at once. Eigen cuts a sum by the number of threads, so
// the bits depend on that number, but not on who adds up which part.
class InlinePool : public Eigen::ThreadPoolInterface {
 public:
  explicit InlinePool(int threads) : threads_(threads) {}
  void Schedule(std::function<void()> run) override { run(); }
  int NumThreads() const override { return threads_; }
  int CurrentThreadId() const override { return -1; }

 private:
  int threads_;
};

// From this size on a tensor is summed by all threads.
constexpr int64_t kLarge = 1 << 20;

}  // namespace

// See register_apply_ops.cc for the op's contract.
template <typename T>
class PackedL2LossOp : public OpKernel {
 public:
  explicit PackedL2LossOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string pack;
    int scales = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("M", &members_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("S", &scales));
    OP_REQUIRES_OK(ctx, GetList(ctx, "scale_index", members_, &scale_index_));
    for (int index : scale_index_) {
      OP_REQUIRES(ctx, index >= -1 && index < scales,
                  errors::InvalidArgument("No scale ", index, "."));
    }
    OP_REQUIRES_OK(ctx, ReadTotals(ctx));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(OpKernelContext* ctx) override {
    OpInputList tensors, scales;
    OP_REQUIRES_OK(ctx, ctx->input_list("tensors", &tensors));
    OP_REQUIRES_OK(ctx, ctx->input_list("scales", &scales));
    std::vector<Tensor*> out(members_);
    std::vector<T> scale(members_, T(1));
    int64_t elements = 0;
    for (int m = 0; m < members_; ++m) {
      OP_REQUIRES_OK(ctx, ctx->allocate_output(m, TensorShape({}), &out[m]));
      elements += tensors[m].NumElements();
      if (scale_index_[m] < 0) continue;
      const Tensor& value = scales[scale_index_[m]];
      OP_REQUIRES(ctx, value.dims() == 0,
                  errors::InvalidArgument("A scale is not a scalar: ",
                                          value.shape().DebugString()));
      scale[m] = value.scalar<T>()();
    }
    const Eigen::ThreadPoolDevice& device = ctx->eigen_cpu_device();
    const auto sum = [&](int m, const Eigen::ThreadPoolDevice& on) {
      auto loss = out[m]->scalar<T>();
      loss.device(on) =
          (tensors[m].flat<T>().square() * static_cast<T>(0.5)).sum();
      if (scale_index_[m] >= 0) loss() = loss() * scale[m];
    };
    InlinePool pool(device.numThreads());
    const Eigen::ThreadPoolDevice here(&pool, device.numThreads());
    PoolOf(ctx)(members_, elements / members_ + 64,
                [&](int64_t begin, int64_t end) {
                  for (int64_t m = begin; m < end; ++m) {
                    if (tensors[m].NumElements() < kLarge) sum(m, here);
                  }
                });
    for (int m = 0; m < members_; ++m) {
      if (tensors[m].NumElements() >= kLarge) sum(m, device);
    }
    int next = 0;
    for (size_t k = 0; k < total_lengths_.size(); ++k) {
      Tensor* total = nullptr;
      OP_REQUIRES_OK(
          ctx, ctx->allocate_output(members_ + k, TensorShape({}), &total));
      const auto next_loss = [&]() -> T {
        return out[total_members_[next++]]->template scalar<T>()();
      };
      // As AddN: first what eights leave, two at least, then by eights.
      const int length = total_lengths_[k];
      const int rest = length < 2 ? length : (length - 2) % 8 + 2;
      T sum = next_loss();
      for (int i = 1; i < rest; ++i) sum = sum + next_loss();
      for (int i = rest; i < length; i += 8) {
        T eight = next_loss();
        for (int e = 1; e < 8; ++e) eight = eight + next_loss();
        sum = sum + eight;
      }
      total->scalar<T>()() = sum;
    }
    ++counters_->executed;
  }

 private:
  tensorflow::Status ReadTotals(OpKernelConstruction* ctx) {
    int totals = 0;
    TF_RETURN_IF_ERROR(ctx->GetAttr("K", &totals));
    TF_RETURN_IF_ERROR(GetList(ctx, "total_lengths", totals, &total_lengths_));
    size_t sum = 0;
    for (int length : total_lengths_) {
      if (length < 1) {
        return errors::InvalidArgument("A total of ", length, " losses.");
      }
      sum += length;
    }
    TF_RETURN_IF_ERROR(GetList(ctx, "total_members", sum, &total_members_));
    for (int member : total_members_) {
      if (member < 0 || member >= members_) {
        return errors::InvalidArgument("No loss ", member, ".");
      }
    }
    return tensorflow::OkStatus();
  }

  int members_ = 0;
  std::vector<int> scale_index_;
  std::vector<int> total_lengths_;
  std::vector<int> total_members_;
  PackCounters* counters_ = nullptr;
};

#define REGISTER(T)                                           \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedL2Loss")         \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          PackedL2LossOp<T>)
REGISTER(float);
REGISTER(double);
REGISTER(Eigen::half);
#undef REGISTER

}  // namespace picasso
