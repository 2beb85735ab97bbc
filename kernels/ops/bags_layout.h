// Bags in the packed kernels: which inputs make up the SparseTensors of the
// members that pool.
#ifndef PICASSO_TF_KERNELS_OPS_BAGS_LAYOUT_H_
#define PICASSO_TF_KERNELS_OPS_BAGS_LAYOUT_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "kernels/core/bag_weights.h"
#include "kernels/core/bags.h"
#include "kernels/ops/pack_common.h"
#include "kernels/ops/shared_plans.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/public/version.h"

namespace picasso {

// How SparseSegment*Grad sums half types: seen to be in float in
// TensorFlow 2.21, and in the type itself in 2.15. The headers of 2.21 do not
// say which version they are of; 1645 is the last of 2.15's development.
inline constexpr bool kSparseSegmentGradInType = TF_GRAPH_DEF_VERSION <= 1645;

// The ids of one member's bags, of one step.
template <typename T>
struct Bags {
  std::shared_ptr<const BagPlan> plan;
  BagWeights<Sum<T>> weights;
  bool weighted = false;
};

// Whether a kernel is the first of a step to need its bags, or the gradient's.
enum class BagsUse { kForward, kBackward };

// The bag_* attributes of the packed ops, each list with one entry per member
// (or part), or none at all if no member pools; see register_ops.cc.
class BagsLayout {
 public:
  // `ids`: where those of the members lie. What kForward makes is there for a
  // kBackward in the same step.
  tensorflow::Status Init(tensorflow::OpKernelConstruction* ctx, int count,
                          const IdsLayout& ids, BagsUse use);

  bool any() const { return !rows_.empty(); }
  bool is_bag(int i) const { return any() && rows_[i] >= 0; }
  Combiner combiner(int i) const { return combiner_[i]; }
  bool zero_filled(int i) const { return zero_filled_[i]; }
  bool full_shape(int i) const { return full_shape_[i]; }

  // The first member that has the very bags of member i.
  int same_as(int i) const { return same_as_[i]; }

  // Makes the bags of all members that pool, on TensorFlow's threads, from
  // their ids, ids_of(i), and the "sparse" inputs, which begin at `first`;
  // those of member i are bags[same_as(i)]. field_of(i): its name in messages.
  template <typename T>
  tensorflow::Status Make(
      tensorflow::OpKernelContext* ctx, int first,
      const std::function<const IdsView&(int)>& ids_of,
      const std::function<const std::string&(int)>& field_of,
      std::vector<Bags<T>>* bags) const;

  // Shape of the bags of member i: all but the last dimension of its
  // SparseTensor, or one dimension.
  tensorflow::Status Shape(tensorflow::OpKernelContext* ctx, int first, int i,
                           const BagPlan& plan,
                           tensorflow::TensorShape* shape) const;

 private:
  template <typename T>
  tensorflow::Status MakeOne(tensorflow::OpKernelContext* ctx, int first, int i,
                             const IdsView& ids, const std::string& field,
                             const std::vector<MadePlansPtr>& shared,
                             SparseIds* source, Bags<T>* bags) const;
  tensorflow::Status Fill(tensorflow::OpKernelContext* ctx, int first, int i,
                          const IdsView& ids, SparseIds* source) const;

  BagsUse use_ = BagsUse::kForward;
  int sources_ = 0;
  std::vector<int> same_as_;
  std::vector<int> distinct_;  // members that pool, one for each of same_as_
  std::vector<Combiner> combiner_;
  std::vector<int> rows_;     // input with the indices or segment ids; -1: none
  std::vector<int> shape_;    // input with the dense shape; -1: none
  std::vector<int> weights_;  // input with the weights; -1: none
  std::vector<bool> prune_;
  std::vector<bool> prune_weights_;
  std::vector<int64_t> default_id_;
  std::vector<bool> zero_filled_;
  std::vector<bool> full_shape_;
};

// InvalidArgument for a bad id of a plan; its position is that among the unique
// ids, which TensorFlow looks up.
tensorflow::Status BadBagIdError(const BadId& bad, const BagPlan& plan,
                                 int64_t rows, const std::string& field);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_OPS_BAGS_LAYOUT_H_
