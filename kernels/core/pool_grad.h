// The gradient of pooled rows, handed to the rows as TensorFlow's
// SparseSegment{Sum,Mean,SqrtN}Grad does it on the CPU.
#ifndef PICASSO_TF_KERNELS_CORE_POOL_GRAD_H_
#define PICASSO_TF_KERNELS_CORE_POOL_GRAD_H_

#include <cstdint>

#include "kernels/core/bag_weights.h"
#include "kernels/core/bags.h"
#include "kernels/core/common.h"

namespace picasso {

template <typename T>
struct PoolGradMember {
  const T* grad = nullptr;  // [bags, dim]
  int64_t bags = 0;
  IdsView positions;  // the row of each entry
  IdsView segments;   // and its bag; as many, and not below one another
  Combiner combiner = Combiner::kSum;
  // Half types are summed in their own type, and the first summand of a row is
  // taken as it is (a negative zero stays one): TensorFlow 2.15.
  bool sums_in_type = false;
  T* out = nullptr;  // [rows, dim]; what no entry names becomes zero
  int64_t rows = 0;
  int64_t dim = 0;
};

// What may be wrong with an entry.
struct PoolGradError {
  enum Kind { kNone, kTooFewBags, kSegment, kPosition };
  Kind kind = kNone;
  int64_t value = 0;
};

// Fills `out`; the first error.
template <typename T>
PoolGradError PoolGradient(const PoolGradMember<T>& member);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_POOL_GRAD_H_
