// Packed UnsortedSegmentSum: rows of many sources, each summed by segment.
#ifndef PICASSO_TF_KERNELS_CORE_SEGMENT_SUM_H_
#define PICASSO_TF_KERNELS_CORE_SEGMENT_SUM_H_

#include <cstdint>

#include "kernels/core/common.h"
#include "kernels/core/update.h"

namespace picasso {

template <typename T>
struct SegmentSumMember {
  IdsView ids;                      // a negative id drops its row
  const T* const* parts = nullptr;  // [part_count] of [ids, dim]; their sum,
                                    // from the left, is summed by segment
  int64_t part_count = 1;
  // Instead of ids and parts: gradients of bags, first summed per unique id.
  const UpdatePart<T>* bags = nullptr;
  T* out = nullptr;  // [rows, dim]
  int64_t rows = 0;
  int64_t dim = 0;
};

// Sums in the order of the ids, starting from zero, in T's own arithmetic: the
// result does not depend on the number of threads. All ids are checked first:
// with one that is not below `rows`, nothing is written and the first one is
// returned.
template <typename T>
BadId PackedSegmentSum(const SegmentSumMember<T>* members, int64_t count,
                       const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_SEGMENT_SUM_H_
