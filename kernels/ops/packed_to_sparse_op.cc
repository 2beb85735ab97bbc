#include <limits>
#include <vector>

#include "kernels/core/ids.h"
#include "kernels/ops/packed_kernel.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// See register_kernel_ops.cc for the op's contract.
template <typename T>
class PackedDenseToSparseOp : public PackedKernel {
 public:
  explicit PackedDenseToSparseOp(OpKernelConstruction* ctx)
      : PackedKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("ignore", &ignore_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "expand", members(), &expand_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "expanded", members(), &expanded_));
    OP_REQUIRES(ctx,
                ignore_.dtype() == tensorflow::DataTypeToEnum<T>::value &&
                    ignore_.NumElements() == members(),
                errors::InvalidArgument(
                    "'ignore' holds one value of T per member, got ",
                    ignore_.DebugString()));
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    const auto pool = PoolOf(ctx);
    std::vector<Member> all(count);
    std::vector<int64_t> sizes(count);
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Describe(ctx, m, &all[m]));
      sizes[m] = all[m].size;
    }
    // Members are counted and written whole: their output's length is not known
    // before. The cost is that of a member of average size.
    int64_t total = 0;
    for (int64_t size : sizes) total += size;
    const int64_t cost = 1 + total * kCyclesPerElement / count;
    pool(count, cost, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        all[m].kept = CountKept(all[m].data, all[m].size, ignore(m));
      }
    });
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Allocate(ctx, m, &all[m]));
    }
    pool(count, cost, [&](int64_t begin, int64_t end) {
      for (int64_t m = begin; m < end; ++m) {
        WriteKept(all[m].data, all[m].dims, ignore(m), all[m].indices,
                  all[m].values);
      }
    });
    return tensorflow::OkStatus();
  }

 private:
  static constexpr int64_t kCyclesPerElement = 10;

  struct Member {
    const T* data;
    int64_t size;
    std::vector<int64_t> dims;
    int64_t kept;
    int64_t* indices;
    T* values;
  };

  const T& ignore(int m) const { return ignore_.flat<T>()(m); }

  // Reads the input, with the dimension that the graph puts in.
  Status Describe(OpKernelContext* ctx, int m, Member* member) const {
    const Tensor& input = ctx->input(m);
    member->data = input.flat<T>().data();
    member->size = input.NumElements();
    for (int d = 0; d < input.dims(); ++d) {
      member->dims.push_back(input.dim_size(d));
    }
    if (expanded_[m]) {
      const int rank = input.dims();
      if (expand_[m] < -1 - rank || expand_[m] > rank) {
        return errors::InvalidArgument("Tried to expand dim index ", expand_[m],
                                       " for tensor with ", rank,
                                       " dimensions.");
      }
      const int at = expand_[m] < 0 ? expand_[m] + rank + 1 : expand_[m];
      member->dims.insert(member->dims.begin() + at, 1);
    }
    if (member->dims.empty() || member->dims.size() > 8) {
      return errors::InvalidArgument("WhereOp : Unhandled input dimensions: ",
                                     member->dims.size());
    }
    if (member->dims.size() > 7) {
      return errors::InvalidArgument(
          "Only indices.shape[-1] values between 1 and 7 are currently "
          "supported.  Requested rank: ",
          member->dims.size());
    }
    return tensorflow::OkStatus();
  }

  Status Allocate(OpKernelContext* ctx, int m, Member* member) const {
    const int count = members();
    const int64_t rank = member->dims.size();
    Tensor *indices = nullptr, *shape = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(m, TensorShape({member->kept, rank}), &indices));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(2 * count + m, TensorShape({rank}), &shape));
    member->indices = indices->flat<int64_t>().data();
    std::copy(member->dims.begin(), member->dims.end(),
              shape->flat<int64_t>().data());
    if (member->kept == member->size) {
      // Nothing is left out: the input itself holds the values.
      Tensor values;
      if (!values.CopyFrom(ctx->input(m), TensorShape({member->size}))) {
        return errors::Internal("No vector of the values of member ", m, ".");
      }
      ctx->set_output(count + m, values);
      member->values = nullptr;
      return tensorflow::OkStatus();
    }
    Tensor* values = nullptr;
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(count + m, TensorShape({member->kept}), &values));
    member->values = values->flat<T>().data();
    return tensorflow::OkStatus();
  }

  Tensor ignore_;
  std::vector<int> expand_;
  std::vector<bool> expanded_;
};

#define REGISTER(T)                                           \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedDenseToSparse")  \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          PackedDenseToSparseOp<T>)
REGISTER(tensorflow::tstring);
REGISTER(int32_t);
REGISTER(int64_t);
REGISTER(float);
REGISTER(double);
#undef REGISTER

}  // namespace picasso
