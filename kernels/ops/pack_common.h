// What the packed kernels share: reading ids in place, the thread pool, counts
// of executions, and messages about bad ids.
#ifndef PICASSO_TF_KERNELS_OPS_PACK_COMMON_H_
#define PICASSO_TF_KERNELS_OPS_PACK_COMMON_H_

#include <atomic>
#include <string>
#include <vector>

#include "kernels/core/common.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

// Instances and executions of the kernels of one pack, by the pack's id. They
// outlive the kernels: Python reads them for the report.
struct PackCounters {
  std::atomic<int64_t> created{0};
  std::atomic<int64_t> executed{0};
};

// The counters of `pack`, made on first use; never freed. Thread safe.
PackCounters* CountersOf(const std::string& pack);

// Where the ids of each member (or part) lie; attributes of the packed ops,
// each list with one entry per member.
class IdsLayout {
 public:
  tensorflow::Status Init(tensorflow::OpKernelConstruction* ctx, int count,
                          int sources);
  // The ids of member i, read from its source among the inputs at `first`, for
  // a table with `rows` rows.
  tensorflow::Status View(tensorflow::OpKernelContext* ctx, int first, int i,
                          int64_t rows, IdsView* view) const;
  // Index of member i's tensor among the ids inputs; -1 for a dense member.
  int source(int i) const { return source_[i]; }
  bool whole(int i) const { return width_[i] < 0; }
  bool plain(int i) const {
    return mode_[i] == static_cast<int>(IdsMode::kPlain);
  }
  // All that describes the ids of member i.
  std::vector<int64_t> Key(int i) const {
    return {source_[i], begin_[i], width_[i], narrow_[i], mode_[i]};
  }

 private:
  std::vector<int> source_;
  std::vector<int> begin_;  // first column
  std::vector<int> width_;  // columns; -1: the whole tensor
  std::vector<bool> narrow_;
  std::vector<int> mode_;  // IdsMode
};

// TensorFlow's intra-op pool.
ParallelFor PoolOf(tensorflow::OpKernelContext* ctx);

// InvalidArgument with TensorFlow's words for a bad id: "indices[2,0] = 7 is
// not in [0, 5)", and the field's name.
tensorflow::Status BadIdError(const BadId& bad,
                              const tensorflow::TensorShape& ids_shape,
                              int64_t rows, const std::string& field);

// Reads a list attribute and checks its length.
template <typename Value>
tensorflow::Status GetList(tensorflow::OpKernelConstruction* ctx,
                           const char* name, size_t length,
                           std::vector<Value>* values) {
  TF_RETURN_IF_ERROR(ctx->GetAttr(name, values));
  if (values->size() != length) {
    return tensorflow::errors::InvalidArgument(
        "Attribute '", name, "' has ", values->size(), " entries, expected ",
        length, ".");
  }
  return tensorflow::OkStatus();
}

}  // namespace picasso

// Registers an OpKernel template for a CPU and a type of attribute ATTR.
#define PICASSO_REGISTER(NAME, ATTR, KERNEL, T)                          \
  REGISTER_KERNEL_BUILDER(                                               \
      Name(NAME).Device(tensorflow::DEVICE_CPU).TypeConstraint<T>(ATTR), \
      KERNEL<T>)

// For all float types.
#define PICASSO_REGISTER_FLOATS(NAME, ATTR, KERNEL)  \
  PICASSO_REGISTER(NAME, ATTR, KERNEL, float);       \
  PICASSO_REGISTER(NAME, ATTR, KERNEL, double);      \
  PICASSO_REGISTER(NAME, ATTR, KERNEL, Eigen::half); \
  PICASSO_REGISTER(NAME, ATTR, KERNEL, Eigen::bfloat16)

#endif  // PICASSO_TF_KERNELS_OPS_PACK_COMMON_H_
