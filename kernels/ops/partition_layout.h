// Tables in parts in the packed kernels.
#ifndef PICASSO_TF_KERNELS_OPS_PARTITION_LAYOUT_H_
#define PICASSO_TF_KERNELS_OPS_PARTITION_LAYOUT_H_

#include <string>
#include <vector>

#include "kernels/core/partition.h"
#include "kernels/ops/pack_common.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

// The partition_* attributes of the packed ops, each list with one entry per
// member (or part of an update), or none at all if no variable is in parts; see
// register_ops.cc.
class PartitionLayout {
 public:
  tensorflow::Status Init(tensorflow::OpKernelConstruction* ctx, int count);

  bool any() const { return !parts_.empty(); }
  // Which part holds an id of member i; null: its table is whole.
  const Partition* of(int i) const {
    return parts_.empty() || parts_[i] == 0 ? nullptr : &partitions_[i];
  }

 private:
  std::vector<int> parts_;
  std::vector<Partition> partitions_;  // unused where parts_ is 0
};

// InvalidArgument for the ids of one lookup, of which at least one is bad, with
// the words of DynamicPartition or of the part's gather.
tensorflow::Status BadPartitionedIdError(const std::vector<int64_t>& ids,
                                         const TableParts& table,
                                         const std::string& field);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_OPS_PARTITION_LAYOUT_H_
