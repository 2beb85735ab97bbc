// Packs of small kernels with one input and one output of its shape.
#include <algorithm>
#include <vector>

#include "kernels/core/ids.h"
#include "kernels/ops/fingerprint.h"
#include "kernels/ops/packed_kernel.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
namespace errors = tensorflow::errors;

// See register_kernel_ops.cc for the ops' contracts.
template <typename T>
class PackedHashOp : public PackedKernel {
 public:
  explicit PackedHashOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetList(ctx, "num_buckets", members(), &buckets_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("strong", &strong_));
    for (int64_t buckets : buckets_) {
      OP_REQUIRES(ctx, buckets > 0,
                  errors::InvalidArgument("num_buckets is ", buckets, "."));
    }
    std::vector<int64_t> key;
    OP_REQUIRES_OK(ctx, GetList(ctx, "key", strong_ ? 2 * members() : 0, &key));
    key_.assign(key.begin(), key.end());
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    return MapElements<T, int64_t>(
        ctx, members(), kCycles,
        [this](int m, const T* in, int64_t* out, int64_t begin, int64_t end) {
          const uint64_t buckets = buckets_[m];
          if (strong_) {
            const uint64_t* key = key_.data() + 2 * m;
            for (int64_t i = begin; i < end; ++i) {
              out[i] = KeyedFingerprint(key, in[i]) % buckets;
            }
            return;
          }
          for (int64_t i = begin; i < end; ++i) {
            out[i] = Fingerprint(in[i]) % buckets;
          }
        });
  }

 private:
  static constexpr int64_t kCycles = 80;

  std::vector<int64_t> buckets_;
  bool strong_ = false;
  std::vector<uint64_t> key_;
};

template <typename T>
class PackedBucketizeOp : public PackedKernel {
 public:
  explicit PackedBucketizeOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    std::vector<int> lengths;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("boundaries", &boundaries_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "lengths", members(), &lengths));
    size_t end = 0;
    for (int length : lengths) {
      begin_.push_back(end);
      end += std::max(length, 0);
    }
    begin_.push_back(end);
    OP_REQUIRES(ctx, end == boundaries_.size(),
                errors::InvalidArgument("'lengths' add up to ", end, ", not ",
                                        boundaries_.size(), "."));
    for (int m = 0; m < members(); ++m) {
      OP_REQUIRES(ctx,
                  std::is_sorted(boundaries_.begin() + begin_[m],
                                 boundaries_.begin() + begin_[m + 1]),
                  errors::InvalidArgument("Expected sorted boundaries"));
    }
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    return MapElements<T, int32_t>(
        ctx, members(), kCycles,
        [this](int m, const T* in, int32_t* out, int64_t begin, int64_t end) {
          const float* first = boundaries_.data() + begin_[m];
          const float* last = boundaries_.data() + begin_[m + 1];
          for (int64_t i = begin; i < end; ++i) {
            out[i] = Bucket(in[i], first, last);
          }
        });
  }

 private:
  static constexpr int64_t kCycles = 40;

  std::vector<float> boundaries_;  // of all members
  std::vector<size_t> begin_;      // where each member's begin, and the end
};

template <typename In, typename Out>
class PackedRangeCheckOp : public PackedKernel {
 public:
  explicit PackedRangeCheckOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    OP_REQUIRES_OK(ctx, GetList(ctx, "low", members(), &low_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "high", members(), &high_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "otherwise", members(), &otherwise_));
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    return MapElements<In, Out>(
        ctx, members(), kCycles,
        [this](int m, const In* in, Out* out, int64_t begin, int64_t end) {
          const Out low = low_[m], high = high_[m], otherwise = otherwise_[m];
          for (int64_t i = begin; i < end; ++i) {
            out[i] = InRangeOr<Out>(in[i], low, high, otherwise);
          }
        });
  }

 private:
  static constexpr int64_t kCycles = 4;

  std::vector<int64_t> low_, high_, otherwise_;
};

#define REGISTER_HASH(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedHashBucket")     \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          PackedHashOp<T>)
REGISTER_HASH(tensorflow::tstring);
REGISTER_HASH(int32_t);
REGISTER_HASH(int64_t);
#undef REGISTER_HASH

#define REGISTER_BUCKETIZE(T)                                 \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedBucketize")      \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          PackedBucketizeOp<T>)
REGISTER_BUCKETIZE(int32_t);
REGISTER_BUCKETIZE(int64_t);
REGISTER_BUCKETIZE(float);
REGISTER_BUCKETIZE(double);
#undef REGISTER_BUCKETIZE

#define REGISTER_RANGE_CHECK(In, Out)                         \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedRangeCheck")     \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<In>("Tin")      \
                              .TypeConstraint<Out>("Tout"),   \
                          PackedRangeCheckOp<In, Out>)
REGISTER_RANGE_CHECK(int32_t, int32_t);
REGISTER_RANGE_CHECK(int32_t, int64_t);
REGISTER_RANGE_CHECK(int64_t, int64_t);
#undef REGISTER_RANGE_CHECK

}  // namespace picasso
