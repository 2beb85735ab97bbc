// Pooling of bags, bit by bit as TensorFlow's CPU kernels do it.
#ifndef PICASSO_TF_KERNELS_CORE_POOL_H_
#define PICASSO_TF_KERNELS_CORE_POOL_H_

#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>
#include <vector>

#include "kernels/core/bag_weights.h"
#include "kernels/core/lookup.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace picasso {
namespace pool_internal {

template <typename T>
struct Bag {
  const T* table;
  const int64_t* ids;
  int64_t count;
  int64_t dim;

  const T* row(int64_t i) const { return table + ids[i] * dim; }
};

// The sum of rows [from, from + count) of a bag at column j, in their order.
template <typename P, typename T>
inline P SumOf(const Bag<T>& bag, int64_t from, int64_t count, int64_t j) {
  using Eigen::internal::padd;
  using Eigen::internal::ploadu;
  if constexpr (std::is_same_v<P, Sum<T>>) {
    P sum = static_cast<P>(bag.row(from)[j]);
    for (int64_t i = 1; i < count; ++i) {
      sum = sum + static_cast<P>(bag.row(from + i)[j]);
    }
    return sum;
  } else {
    P sum = ploadu<P>(bag.row(from) + j);
    for (int64_t i = 1; i < count; ++i) {
      sum = padd(sum, ploadu<P>(bag.row(from + i) + j));
    }
    return sum;
  }
}

// One column (or packet of columns) of SparseSegment{Sum,Mean,SqrtN}: first
// n mod 8 rows (8 for 0, 9 for 1), then chunks of 8. Small bags are multiplied
// by the reciprocal of their divisor, others divided by it.
template <typename P, typename T>
inline P Pooled(const Bag<T>& bag, Sum<T> factor, Sum<T> divisor, int64_t j) {
  using Eigen::internal::pset1;
  const int64_t rest = bag.count & 7;
  int64_t done = rest < 2 ? rest + 8 : rest;
  P sum = SumOf<P, T>(bag, 0, done, j);
  sum = Eigen::internal::pmul(sum, pset1<P>(factor));
  for (; done < bag.count; done += 8) {
    sum = Eigen::internal::padd(sum, SumOf<P, T>(bag, done, 8, j));
  }
  if (divisor != Sum<T>(1)) sum = Eigen::internal::pdiv(sum, pset1<P>(divisor));
  return sum;
}

template <typename T>
void PoolOne(const Bag<T>& bag, Combiner combiner, T* to) {
  if (bag.count == 0) {
    std::memset(static_cast<void*>(to), 0, bag.dim * sizeof(T));
    return;
  }
  if (bag.count == 1) {
    std::memcpy(static_cast<void*>(to), bag.row(0), bag.dim * sizeof(T));
    return;
  }
  Sum<T> divisor(1);
  if (combiner == Combiner::kMean) divisor = Sum<T>(bag.count);
  if (combiner == Combiner::kSqrtN) divisor = Sum<T>(std::sqrt(bag.count));
  Sum<T> factor(1);
  if (bag.count < 10) {
    factor = Sum<T>(1) / divisor;
    divisor = Sum<T>(1);
  }
  int64_t j = 0;
  if constexpr (std::is_same_v<T, Sum<T>>) {
    using P = typename Eigen::internal::packet_traits<T>::type;
    constexpr int64_t kSize = Eigen::internal::packet_traits<T>::size;
    for (; j + kSize <= bag.dim; j += kSize) {
      Eigen::internal::pstoreu(to + j, Pooled<P, T>(bag, factor, divisor, j));
    }
  }
  for (; j < bag.dim; ++j) {
    to[j] = static_cast<T>(Pooled<Sum<T>, T>(bag, factor, divisor, j));
  }
}

// A bag with weights; `products` is scratch.
template <typename T>
void PoolWeighted(const Bag<T>& bag, const Sum<T>* weights,
                  const Sum<T>* divisor, std::vector<Sum<T>>* products, T* to) {
  using S = Sum<T>;
  if (bag.count == 0) {
    std::memset(static_cast<void*>(to), 0, bag.dim * sizeof(T));
    return;
  }
  products->resize((bag.count + 1) * bag.dim);
  S* const sum = products->data();
  S* product = sum + bag.dim;
  for (int64_t i = 0; i < bag.count; ++i) {
    const T* row = bag.row(i);
    for (int64_t j = 0; j < bag.dim; ++j) {
      *product++ = static_cast<S>(row[j]) * weights[i];
    }
  }
  SegmentSum(sum + bag.dim, bag.count, bag.dim, sum);
  for (int64_t j = 0; j < bag.dim; ++j) {
    to[j] = static_cast<T>(divisor == nullptr ? sum[j]
                                              : DivNoNan(sum[j], *divisor));
  }
}

// What stands for rows that a bag has not.
template <typename T>
struct NoRows {
  explicit NoRows(int64_t dim) : zero(dim, T(0)), negative(dim, T(-0.0f)) {}
  std::vector<T> zero;
  std::vector<T> negative;
};

// Pools bag by bag, of bags before `end`.
template <typename T>
class Pooler {
 public:
  Pooler(const LookupMember& m, int64_t end, const NoRows<T>& no_rows)
      : plan_(*m.plan),
        offsets_(plan_.offsets()),
        last_(offsets_[end]),
        table_(reinterpret_cast<const T*>(m.table)),
        dim_(m.row_bytes / sizeof(T)),
        combiner_(m.combiner),
        zeros_(m.zero_filled && plan_.any_filled()),
        weights_(static_cast<const BagWeights<Sum<T>>*>(m.weights)),
        factors_{Sum<T>(1), Sum<T>(1),
                 m.combiner == Combiner::kSum ? Sum<T>(1)
                 : m.combiner == Combiner::kMean
                     ? Sum<T>(1) / Sum<T>(2)
                     : Sum<T>(1) / Sum<T>(std::sqrt(2))},
        zero_(no_rows.zero.data()),
        negative_zero_(no_rows.negative.data()) {}

  // Asks for the first rows of bag b: two, of which the second may be of the
  // next one, so that the usual bags need no branch.
  void AskForRowsOf(int64_t b) const {
    const int64_t first = std::min(offsets_[b], last_ - 1);
    if (first < 0) return;
    Ask(first);
    Ask(std::min(first + 1, last_ - 1));
  }

  // Asks for as many rows as bag b has, but for at least two, some rows ahead.
  void AskForRowsBehind(int64_t b) const {
    constexpr int64_t kAhead = 16;
    const int64_t from = offsets_[b] + kAhead;
    const int64_t size = std::max<int64_t>(offsets_[b + 1] - offsets_[b], 2);
    const int64_t stop = std::min(from + size, last_);
    for (int64_t e = from; e < stop; ++e) Ask(e);
  }

  void Pool(int64_t b, T* to) {
    const int64_t from = offsets_[b], count = offsets_[b + 1] - from;
    bool zero = count == 0;
    if (zeros_) zero |= plan_.filled(b);
    if (weights_ != nullptr) {
      if (zero) return Clear(to);
      const Sum<T>* divisors = weights_->divisors();
      PoolWeighted<T>(bag(from, count), weights_->weights() + from,
                      divisors == nullptr ? nullptr : divisors + b, &products_,
                      to);
      return;
    }
    if constexpr (std::is_same_v<T, Sum<T>>) {
      if (count <= 2) return PoolFew(from, count, zero, to);
    }
    if (zero) return Clear(to);
    PoolOne<T>(bag(from, count), combiner_, to);
  }

 private:
  Bag<T> bag(int64_t from, int64_t count) const {
    return {table_, plan_.ids() + from, count, dim_};
  }
  void Ask(int64_t entry) const {
    PrefetchRow(
        reinterpret_cast<const char*>(table_ + plan_.ids()[entry] * dim_),
        dim_ * sizeof(T));
  }
  void Clear(T* to) const {
    std::memset(static_cast<void*>(to), 0, dim_ * sizeof(T));
  }

  // Without a branch on how many, which nobody could foretell.
  void PoolFew(int64_t from, int64_t count, bool zero, T* to) const {
    const int64_t* const ids = plan_.ids() + from;
    const T* const first = zero ? zero_ : table_ + ids[0] * dim_;
    const T* const second =
        count == 2 ? table_ + ids[1] * dim_ : negative_zero_;
    const T factor = factors_[count];
    using namespace Eigen::internal;
    using P = typename packet_traits<T>::type;
    constexpr int64_t kSize = packet_traits<T>::size;
    int64_t j = 0;
    // One row is copied: where denormals count as zero, a sum would lose them.
    const bool two = count == 2;
    const P of_two = pcmp_eq(pset1<P>(T(two)), pset1<P>(T(1)));
    for (; j + kSize <= dim_; j += kSize) {
      const P row = ploadu<P>(first + j);
      const P sum = padd(row, ploadu<P>(second + j));
      pstoreu(to + j, pselect(of_two, pmul(sum, pset1<P>(factor)), row));
    }
    for (; j < dim_; ++j) {
      to[j] = two ? (first[j] + second[j]) * factor : first[j];
    }
  }

  const BagPlan& plan_;
  const int64_t* const offsets_;
  const int64_t last_;  // entries before
  const T* const table_;
  const int64_t dim_;
  const Combiner combiner_;
  const bool zeros_;
  const BagWeights<Sum<T>>* const weights_;
  const Sum<T> factors_[3];       // of bags of so many rows
  const T* const zero_;           // [dim]
  const T* const negative_zero_;  // [dim]
  std::vector<Sum<T>> products_;
};

}  // namespace pool_internal

// See PoolFunction.
template <typename T>
BadId PoolRows(const LookupMember* members, int64_t count, int64_t begin,
               int64_t end) {
  const int64_t row_bytes = members[0].row_bytes, dim = row_bytes / sizeof(T);
  if (dim == 0 || begin == end) return {};
  const int64_t inner = members[0].chunk_bytes / row_bytes;
  const int64_t from = begin * inner, to = end * inner;
  const pool_internal::NoRows<T> no_rows(dim);
  std::vector<pool_internal::Pooler<T>> poolers;
  poolers.reserve(count);
  for (int64_t k = 0; k < count; ++k) {
    const LookupMember& m = members[k];
    const int64_t* const ids = m.plan->ids();
    const int64_t first = m.plan->offsets()[from];
    const int64_t last = m.plan->offsets()[to];
    if (!AllInRange(ids + first, last - first, m.rows)) {
      int64_t bad = first;
      while (InRange(ids[bad], m.rows)) ++bad;
      return {k, bad, ids[bad]};
    }
    poolers.emplace_back(m, to, no_rows);
  }
  T* const output = reinterpret_cast<T*>(members[0].output);
  const int64_t stride = members[0].output_stride / sizeof(T);
  if (count == 1) {
    for (int64_t b = from; b < to; ++b) {
      poolers[0].AskForRowsBehind(b);
      poolers[0].Pool(b, output + b / inner * stride + b % inner * dim);
    }
    return {};
  }
  // Bags ahead of the pooling whose first rows are asked for.
  const int64_t ahead = std::max<int64_t>(16 / count, 2);
  for (int64_t b = begin; b < end; ++b) {
    T* out = output + b * stride;
    for (int64_t k = 0; k < count; ++k, out += dim) {
      poolers[k].AskForRowsOf(std::min(b + ahead, end - 1));
      poolers[k].Pool(b, out);
    }
  }
  return {};
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_POOL_H_
