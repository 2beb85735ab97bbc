// Packed sparse updates: the gradient rows of many tables, summed per unique
// id where the graph does so, applied in place by the optimizer's rule.
#ifndef PICASSO_TF_KERNELS_CORE_UPDATE_H_
#define PICASSO_TF_KERNELS_CORE_UPDATE_H_

#include <cstdint>

#include "kernels/core/bag_weights.h"
#include "kernels/core/bags.h"
#include "kernels/core/common.h"
#include "kernels/core/partition.h"

namespace picasso {

// Named after the TensorFlow ops whose arithmetic they repeat bit by bit.
enum class Rule {
  kScatterAdd,
  kScatterSub,
  kAdagrad,
  kAdagradV2,
  kMomentum,
  kKerasMomentum,
  kFtrl,
  kFtrlV2,
  kRMSProp,
  kAdadelta,
  kProximalAdagrad,
  kAdagradDA,
};

constexpr int kMaxSlots = 2;
constexpr int kMaxHyper = 5;

// What a rule needs besides the variable and the gradient.
struct RuleInfo {
  const char* name;  // value of the op's `rule` attribute
  int slots;         // slot variables, each of the variable's shape
  int hyper;         // scalars, in the order of the TensorFlow op
  bool needs_step;   // one int64 scalar, the global step
  bool float_only;   // TensorFlow has it for float32 and float64 alone
};

// Indexed by Rule.
extern const RuleInfo kRules[];
extern const int kRuleCount;

// Switches of a rule, attributes of the TensorFlow op.
struct RuleFlags {
  bool update_slots = true;            // Adagrad, AdagradV2
  bool use_nesterov = false;           // Momentum, KerasMomentum
  bool multiply_linear_by_lr = false;  // Ftrl, FtrlV2
};

// Gradient rows for some ids of one table. Row i lies in chunk i / inner, at
// grad + (i / inner) * stride + (i % inner) * dim, in elements of T. With a
// plan, row i is the gradient of bag i, which goes to each of the bag's ids as
// TensorFlow's SparseSegment{Sum,Mean,SqrtN}Grad distributes it.
template <typename T>
struct UpdatePart {
  IdsView ids;
  // If the variable is one part of several: which ids count. Each such member
  // looks at all of them, which is cheap for a few parts.
  const PartFilter* filter = nullptr;
  const BagPlan* plan = nullptr;  // instead of `ids`
  Combiner combiner = Combiner::kSum;
  const BagWeights<Sum<T>>* weights = nullptr;  // null: none
  bool zero_filled = false;   // filled bags have the gradient zero
  bool sums_in_type = false;  // half types are not widened, unless weighted

  int64_t size() const { return plan == nullptr ? ids.size : plan->size(); }

  const T* grad = nullptr;
  int64_t inner = 1;
  int64_t stride = 0;

  const T* row(int64_t i, int64_t dim) const {
    if (inner == 1) return grad + i * stride;
    return grad + i / inner * stride + i % inner * dim;
  }
};

template <typename T>
struct UpdateMember {
  const UpdatePart<T>* parts = nullptr;  // [part_count], in graph order
  int64_t part_count = 0;
  int64_t ids = 0;           // sum over the parts
  int64_t sharers = 1;       // of how many variables these are the ids
  T* var = nullptr;          // [rows, dim]
  T* slots[kMaxSlots] = {};  // each [rows, dim]
  int64_t rows = 0;
  int64_t dim = 0;
  T hyper[kMaxHyper] = {};
  int64_t step = 0;            // AdagradDA's global step
  bool sum_duplicates = true;  // sum the rows of an id, then apply once
  bool negate = false;         // the gradient row g becomes -g, ...
  bool scaled = false;         // ... then g * scale (SGD: (-g) * lr)
  T scale = T(0);
  int64_t first_task = 0;  // filled in by PackedUpdate
  int64_t tasks = 0;
};

// Applies `rule` to all members. All ids are checked before anything is
// written: with a bad id, nothing changes and the first bad id is returned.
//
// The gradients of a part with a plan are first summed per unique id (half
// types in float). Rows are summed in the order of the ids (as
// UnsortedSegmentSum does) and, in T's own arithmetic, starting from zero. With
// `sum_duplicates` unset, rows are applied one by one in the order of the ids.
// The result does not depend on the number of threads. Members that share
// memory must be passed with `ordered`, which runs all members one after the
// other.
template <typename T>
BadId PackedUpdate(Rule rule, const RuleFlags& flags, UpdateMember<T>* members,
                   int64_t count, bool ordered,
                   const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_UPDATE_H_
