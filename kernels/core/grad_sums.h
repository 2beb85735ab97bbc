// Gradient rows, summed per distinct id.
#ifndef PICASSO_TF_KERNELS_CORE_GRAD_SUMS_H_
#define PICASSO_TF_KERNELS_CORE_GRAD_SUMS_H_

#include <algorithm>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "kernels/core/bag_weights.h"
#include "kernels/core/rows.h"
#include "kernels/core/update_rows.h"

namespace picasso {
namespace update_internal {

// An array whose memory is kept from use to use; its values are not.
template <typename V>
class Buffer {
 public:
  V* Reserve(int64_t size) {
    if (size > size_) {
      data_.reset(new V[size]);
      size_ = size;
    }
    return data_.get();
  }
  V* data() const { return data_.get(); }

 private:
  std::unique_ptr<V[]> data_;
  int64_t size_ = 0;
};

// Numbers ids in the order in which they come.
class Numbering {
 public:
  // Of ids in [0, rows); rows 0: of any value.
  void Build(const int64_t* ids, int64_t size, int64_t rows) {
    // With a branch per id on what nobody could foretell, whether it is new,
    // either would take twice as long.
    if (rows > 0 && rows <= std::max(kRowsPerId * size, kFewRows)) {
      BuildByRow(ids, size, rows);
    } else {
      BuildByHash(ids, size);
    }
  }

  int64_t count() const { return count_; }
  const int64_t* ids() const { return unique_.data(); }       // [count]
  const int32_t* numbers() const { return numbers_.data(); }  // [size]

 private:
  // What one place per row costs is that they do not stay in a cache.
  static constexpr int64_t kRowsPerId = 4;
  static constexpr int64_t kFewRows = 64 * 1024;

  // Each row has a place, which first learns where its id comes first. Nothing
  // is read then, so places need not be cleared, and ids that come again and
  // again do not wait for each other.
  void BuildByRow(const int64_t* ids, int64_t size, int64_t rows) {
    int32_t* const first = map_.Reserve(rows);
    int32_t* const numbers = numbers_.Reserve(size);
    int64_t* const unique = unique_.Reserve(size);
    for (int64_t i = size - 1; i >= 0; --i) {
      first[ids[i]] = static_cast<int32_t>(i);
    }
    int32_t count = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t id = ids[i];
      const int32_t at = first[id];
      const bool is_new = at == i;
      unique[count] = id;
      numbers[i] = count;  // if it is new
      numbers[i] = numbers[at];
      count += is_new;
    }
    count_ = count;
  }

  void BuildByHash(const int64_t* ids, int64_t size) {
    int32_t* const numbers = numbers_.Reserve(size);
    int64_t* const unique = unique_.Reserve(size);
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * size) ++bits;
    const int64_t places = int64_t{1} << bits;
    int32_t* const map = map_.Reserve(places);
    std::fill_n(map, places, -1);
    const int shift = 64 - bits;
    const uint64_t mask = places - 1;
    int32_t count = 0;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t id = ids[i];
      uint64_t at = Hash(id) >> shift;
      while (map[at] >= 0 && unique[map[at]] != id) at = (at + 1) & mask;
      const int32_t known = map[at];
      const int32_t number = known < 0 ? count : known;
      map[at] = number;
      unique[number] = id;
      numbers[i] = number;
      count += known < 0;
    }
    count_ = count;
  }

  int64_t count_ = 0;
  Buffer<int32_t> numbers_;
  Buffer<int64_t> unique_;
  Buffer<int32_t> map_;  // by id, or by its hash; -1: none
};

// What becomes of a row on its way to the sum of its id, each step rounded as
// TensorFlow's ops round it.
enum class RowScale {
  kNone,
  kFactor,   // row * factor
  kWeight,   // T(row * factor): weights of half types multiply in float
  kDivided,  // T(row / divisor * factor), 0 where the divisor is 0
};

// Sums of rows of T in S, in the order of the rows, from zero on.
template <typename T, typename S>
class GradSums {
  using Factor = Sum<T>;

 public:
  // For at most `count` rows.
  void Reset(RowScale scale, int64_t count) {
    scale_ = scale;
    size_ = 0;
    ids_.Reserve(count);
    grads_.Reserve(count);
    if (scale != RowScale::kNone) factors_.Reserve(count);
    if (scale == RowScale::kDivided) divisors_.Reserve(count);
  }

  // One more row.
  void Add(int64_t id, const T* grad, Factor factor = Factor(1),
           Factor divisor = Factor(1)) {
    ids_.data()[size_] = id;
    grads_.data()[size_] = grad;
    if (scale_ != RowScale::kNone) factors_.data()[size_] = factor;
    if (scale_ == RowScale::kDivided) divisors_.data()[size_] = divisor;
    ++size_;
  }

  // Where to write `count` rows at once, instead of Add: their gradients, and
  // factors if Reset asked for some. Then comes Build
  // with their ids.
  const T** grads() { return grads_.data(); }
  Factor* factors() { return factors_.data(); }

  // Sums the rows that were added, of `dim` values. numbered(ids, count) is
  // called when the distinct ids are known, and nothing is summed yet.
  template <typename Numbered>
  void Build(int64_t rows, int64_t dim, const Numbered& numbered) {
    Build(ids_.data(), size_, rows, dim, {grads_.data(), nullptr, 0}, numbered);
  }

  // Row i is each[i]; if `each` is null, first + i * stride.
  struct Grads {
    const T* const* each;
    const T* first;
    int64_t stride;

    const T* operator()(int64_t i) const {
      return each != nullptr ? each[i] : first + i * stride;
    }
  };

  // Sums row i of `grads` for each ids[i], which is in [0, rows).
  template <typename Numbered>
  void Build(const int64_t* ids, int64_t size, int64_t rows, int64_t dim,
             const Grads& grads, const Numbered& numbered) {
    numbering_.Build(ids, size, rows);
    numbered(numbering_.ids(), numbering_.count());
    const int64_t values = numbering_.count() * dim;
    std::fill_n(sums_.Reserve(values), values, S(0));
    const bool product =
        scale_ == RowScale::kFactor ||
        (scale_ == RowScale::kWeight && std::is_same_v<T, Factor>);
    if (!std::is_same_v<T, S> || !(scale_ == RowScale::kNone || product)) {
      AddScaledRows(size, dim, grads);
    } else if constexpr (std::is_same_v<T, float>) {
      BestRowKernels().add({grads.each, grads.first, grads.stride,
                            product ? factors_.data() : nullptr,
                            numbering_.numbers(), size, dim, sums_.data()});
    } else if constexpr (std::is_same_v<T, S>) {
      if (product) {
        AddRows<true>(size, dim, grads);
      } else {
        AddRows<false>(size, dim, grads);
      }
    }
  }

  int64_t count() const { return numbering_.count(); }
  const int64_t* ids() const { return numbering_.ids(); }
  S* sums() { return sums_.data(); }  // [count, dim]

 private:
  template <bool kScaled>
  void AddRows(int64_t size, int64_t dim, const Grads& row) {
    using namespace Eigen::internal;
    using P = typename packet_traits<T>::type;
    constexpr int64_t kSize =
        packet_traits<T>::Vectorizable ? packet_traits<T>::size : 1;
    const int32_t* const numbers = numbering_.numbers();
    for (int64_t i = 0; i < size; ++i) {
      PrefetchRow(row(std::min(i + kRowsAhead, size - 1)), 0, dim);
      const T* const from = row(i);
      T* const to = sums_.data() + numbers[i] * dim;
      const T factor = kScaled ? static_cast<T>(factors_.data()[i]) : T(1);
      int64_t j = 0;
      if constexpr (kSize > 1) {
        for (; j + kSize <= dim; j += kSize) {
          const P value = ploadu<P>(from + j);
          pstoreu(to + j,
                  padd(ploadu<P>(to + j),
                       kScaled ? pmul(value, pset1<P>(factor)) : value));
        }
      }
      for (; j < dim; ++j) {
        to[j] = to[j] + (kScaled ? from[j] * factor : from[j]);
      }
    }
  }

  void AddScaledRows(int64_t size, int64_t dim, const Grads& row) {
    const int32_t* const numbers = numbering_.numbers();
    for (int64_t i = 0; i < size; ++i) {
      const T* const from = row(i);
      S* const to = sums_.data() + numbers[i] * dim;
      const Factor factor =
          scale_ == RowScale::kNone ? Factor(1) : factors_.data()[i];
      for (int64_t j = 0; j < dim; ++j) {
        Factor value = static_cast<Factor>(from[j]);
        if (scale_ == RowScale::kDivided) {
          value = DivNoNan(value, divisors_.data()[i]);
        }
        if (scale_ != RowScale::kNone) value = value * factor;
        to[j] = to[j] + static_cast<S>(value);
      }
    }
  }

  static constexpr int64_t kRowsAhead = 16;

  RowScale scale_ = RowScale::kNone;
  int64_t size_ = 0;
  Numbering numbering_;
  Buffer<int64_t> ids_;     // of the rows that were added
  Buffer<const T*> grads_;  // they
  Buffer<Factor> factors_;  // as `scale_` needs them
  Buffer<Factor> divisors_;
  Buffer<S> sums_;
};

}  // namespace update_internal
}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_GRAD_SUMS_H_
