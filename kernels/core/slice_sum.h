// The sum of tensors most of which are zero but for a slice, from the slices:
// the gradient of a tensor that was cut up.
#ifndef PICASSO_TF_KERNELS_CORE_SLICE_SUM_H_
#define PICASSO_TF_KERNELS_CORE_SLICE_SUM_H_

#include <cstdint>
#include <vector>

#include "kernels/core/common.h"

namespace picasso {

// A summand: zeros of [outer, axis, inner], but for `data` at the rows from
// `begin` to `begin + length` of the axis. data: [outer, length, inner].
template <typename T>
struct SlicePart {
  const T* data;
  int64_t begin;
  int64_t length;
};

// out: [outer, axis, inner]. To the bit what AddN makes of the summands, zeros
// included: n mod 8 of them from the left (8 for 0, 9 for 1), then the sums of
// eight more at a time; in T's own arithmetic.
template <typename T>
void SliceSum(const std::vector<SlicePart<T>>& parts, int64_t outer,
              int64_t axis, int64_t inner, T* out,
              const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_SLICE_SUM_H_
