// Pooling of bags whose rows are brought together first: from a table in parts,
// or cast to a half type.
#ifndef PICASSO_TF_KERNELS_CORE_POOL_PARTS_H_
#define PICASSO_TF_KERNELS_CORE_POOL_PARTS_H_

#include <numeric>
#include <vector>

#include "kernels/core/pool.h"

namespace picasso {

namespace pool_internal {

// As PoolRows. fetch(id, dim, to) writes a row; false: there is none.
template <typename T, typename Fetch>
BadId PoolFetched(const LookupMember& m, int64_t begin, int64_t end,
                  const Fetch& fetch) {
  const BagPlan& plan = *m.plan;
  const int64_t dim = m.written_bytes() / sizeof(T);
  if (dim == 0) return {};
  const int64_t inner = m.chunk_bytes / m.written_bytes();
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
        const int64_t id = plan.ids()[from + i];
        if (!fetch(id, dim, rows.data() + i * dim)) return {0, from + i, id};
      }
      if (m.zero_filled && plan.filled(b)) {
        std::memset(static_cast<void*>(to), 0, dim * sizeof(T));
        continue;
      }
      const Bag<T> bag = {rows.data(), numbers.data(), count, dim};
      if (weights == nullptr) {
        PoolOne<T>(bag, m.combiner, to);
      } else {
        const Sum<T>* divisors = weights->divisors();
        PoolWeighted<T>(bag, weights->weights() + from,
                        divisors == nullptr ? nullptr : divisors + b, &products,
                        to);
      }
    }
  }
  return {};
}

// The first bad id of several members, one of which is filled at a time.
template <typename PoolOne>
BadId PoolEach(int64_t count, const PoolOne& pool_one) {
  for (int64_t k = 0; k < count; ++k) {
    const BadId bad = pool_one(k);
    if (bad.found()) return {k, bad.position, bad.value};
  }
  return {};
}

}  // namespace pool_internal

// Of a table in parts.
template <typename T>
BadId PoolRowsOfParts(const LookupMember* members, int64_t count, int64_t begin,
                      int64_t end) {
  return pool_internal::PoolEach(count, [&](int64_t k) {
    const LookupMember& m = members[k];
    return pool_internal::PoolFetched<T>(
        m, begin, end, [&](int64_t id, int64_t, T* to) {
          const char* row = m.parts->Row(id, m.row_bytes);
          if (row == nullptr) return false;
          std::memcpy(static_cast<void*>(to), row, m.row_bytes);
          return true;
        });
  });
}

// Of a table of float, whose rows are cast to T.
template <typename T>
BadId PoolCastRows(const LookupMember* members, int64_t count, int64_t begin,
                   int64_t end) {
  using Eigen::Array;
  using Eigen::Dynamic;
  using Eigen::Map;
  return pool_internal::PoolEach(count, [&](int64_t k) {
    const LookupMember& m = members[k];
    const auto* table = reinterpret_cast<const float*>(m.table);
    return pool_internal::PoolFetched<T>(
        m, begin, end, [&](int64_t id, int64_t dim, T* to) {
          if (!InRange(id, m.rows)) return false;
          Map<Array<T, Dynamic, 1>>(to, dim) =
              Map<const Array<float, Dynamic, 1>>(table + id * dim, dim)
                  .template cast<T>();
          return true;
        });
  });
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_POOL_PARTS_H_
