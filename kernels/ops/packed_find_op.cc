#include <algorithm>
#include <mutex>
#include <vector>

#include "kernels/ops/fingerprint.h"
#include "kernels/ops/packed_kernel.h"
#include "tensorflow/core/framework/lookup_interface.h"
#include "tensorflow/core/framework/resource_mgr.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::lookup::LookupInterface;
namespace errors = tensorflow::errors;

// See register_kernel_ops.cc for the op's contract.
class PackedTableFindOp : public PackedKernel {
 public:
  explicit PackedTableFindOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tin", &key_type_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tout", &value_type_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "oov_buckets", members(), &oov_buckets_));
    for (int64_t buckets : oov_buckets_) {
      OP_REQUIRES(
          ctx,
          buckets == 0 || (buckets > 0 && value_type_ == tensorflow::DT_INT64 &&
                           (key_type_ == tensorflow::DT_STRING ||
                            key_type_ == tensorflow::DT_INT64)),
          errors::InvalidArgument("oov_buckets of ", buckets,
                                  " for keys of type ",
                                  tensorflow::DataTypeString(key_type_), "."));
    }
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<tensorflow::core::RefCountPtr<LookupInterface>> tables(count);
    std::vector<Tensor*> found(count);
    int64_t total = 0;
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(tensorflow::LookupResource(
          ctx, tensorflow::HandleFromInput(ctx, m), &tables[m]));
      TF_RETURN_IF_ERROR(Allocate(ctx, m, *tables[m], &found[m]));
      total += keys(ctx, m).NumElements();
    }
    std::mutex mutex;
    int failed = count;  // the first member that did
    Status status;
    PoolOf(ctx)(count, 1 + total * kCyclesPerKey / count,
                [&](int64_t begin, int64_t end) {
                  for (int64_t m = begin; m < end; ++m) {
                    const Status result =
                        Find(ctx, m, tables[m].get(), found[m]);
                    if (result.ok()) continue;
                    std::lock_guard<std::mutex> lock(mutex);
                    if (m < failed) {
                      failed = m;
                      status = result;
                    }
                  }
                });
    return status;
  }

 private:
  static constexpr int64_t kCyclesPerKey = 150;

  const Tensor& keys(OpKernelContext* ctx, int m) const {
    return ctx->input(members() + m);
  }
  const Tensor& missing(OpKernelContext* ctx, int m) const {
    return ctx->input(2 * members() + m);
  }

  Status Allocate(OpKernelContext* ctx, int m, LookupInterface& table,
                  Tensor** found) const {
    if (table.key_dtype() != key_type_ || table.value_dtype() != value_type_) {
      return errors::InvalidArgument(
          "Table ", m, " maps ", tensorflow::DataTypeString(table.key_dtype()),
          " to ", tensorflow::DataTypeString(table.value_dtype()),
          ", expected ", tensorflow::DataTypeString(key_type_), " to ",
          tensorflow::DataTypeString(value_type_), ".");
    }
    TF_RETURN_IF_ERROR(table.CheckFindArguments(keys(ctx, m), missing(ctx, m)));
    TensorShape shape = keys(ctx, m).shape();
    TF_RETURN_IF_ERROR(
        shape.RemoveLastDimsWithStatus(table.key_shape().dims()));
    TF_RETURN_IF_ERROR(shape.AppendShapeWithStatus(table.value_shape()));
    return ctx->allocate_output(m, shape, found);
  }

  Status Find(OpKernelContext* ctx, int m, LookupInterface* table,
              Tensor* found) const {
    const Tensor& wanted = keys(ctx, m);
    TF_RETURN_IF_ERROR(table->Find(ctx, wanted, found, missing(ctx, m)));
    if (oov_buckets_[m] == 0) return tensorflow::OkStatus();
    if (found->shape() != wanted.shape() ||
        missing(ctx, m).NumElements() != 1) {
      return errors::InvalidArgument(
          "Buckets for missing keys need one value per key.");
    }
    if (key_type_ == tensorflow::DT_STRING) {
      Hash<tensorflow::tstring>(ctx, m, table->size(), found);
    } else {
      Hash<int64_t>(ctx, m, table->size(), found);
    }
    return tensorflow::OkStatus();
  }

  // Gives keys that were not found a bucket behind the table's values.
  template <typename Key>
  void Hash(OpKernelContext* ctx, int m, int64_t size, Tensor* found) const {
    const int64_t none = missing(ctx, m).flat<int64_t>()(0);
    const uint64_t buckets = oov_buckets_[m];
    auto values = found->flat<int64_t>();
    const auto wanted = keys(ctx, m).flat<Key>();
    for (int64_t i = 0; i < values.size(); ++i) {
      if (values(i) != none) continue;
      values(i) = static_cast<int64_t>(Fingerprint(wanted(i)) % buckets) + size;
    }
  }

  tensorflow::DataType key_type_, value_type_;
  std::vector<int64_t> oov_buckets_;
};

REGISTER_KERNEL_BUILDER(
    Name("PicassoPackedTableFind").Device(tensorflow::DEVICE_CPU),
    PackedTableFindOp);

}  // namespace picasso
