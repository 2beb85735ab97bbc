// Pooling of bags from a table in parts.
#ifndef PICASSO_TF_KERNELS_CORE_POOL_PARTS_H_
#define PICASSO_TF_KERNELS_CORE_POOL_PARTS_H_

#include <numeric>
#include <vector>

#include "kernels/core/pool.h"

namespace picasso {

// As PoolRows: each bag's rows are brought together, then pooled.
template <typename T>
int64_t PoolRowsOfParts(const LookupMember& m, int64_t begin, int64_t end) {
  const BagPlan& plan = *m.plan;
  const int64_t dim = m.row_bytes / sizeof(T);
  if (dim == 0) return -1;
  const int64_t inner = m.chunk_bytes / m.row_bytes;
  const int64_t* offsets = plan.offsets();
  const auto* weights = static_cast<const BagWeights<Sum<T>>*>(m.weights);
  std::vector<T> rows;
  std::vector<int64_t> numbers;  // 0, 1, ...
  std::vector<Sum<T>> products;
  for (int64_t o = begin; o < end; ++o) {
    T* to = reinterpret_cast<T*>(m.output + o * m.output_stride);
    for (int64_t b = o * inner; b < (o + 1) * inner; ++b, to += dim) {
      const int64_t from = offsets[b], count = offsets[b + 1] - from;
      if (static_cast<int64_t>(numbers.size()) < count) {
        numbers.resize(count);
        std::iota(numbers.begin(), numbers.end(), int64_t{0});
        rows.resize(count * dim);
      }
      for (int64_t i = 0; i < count; ++i) {
        const char* row = m.parts->Row(plan.ids()[from + i], m.row_bytes);
        if (row == nullptr) return from + i;
        std::memcpy(static_cast<void*>(rows.data() + i * dim), row,
                    m.row_bytes);
      }
      if (m.zero_filled && plan.filled(b)) {
        std::memset(static_cast<void*>(to), 0, dim * sizeof(T));
        continue;
      }
      const pool_internal::Bag<T> bag = {rows.data(), numbers.data(), count,
                                         dim};
      if (weights == nullptr) {
        pool_internal::PoolOne<T>(bag, m.combiner, to);
      } else {
        const Sum<T>* divisors = weights->divisors();
        pool_internal::PoolWeighted<T>(
            bag, weights->weights() + from,
            divisors == nullptr ? nullptr : divisors + b, &products, to);
      }
    }
  }
  return -1;
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_POOL_PARTS_H_
