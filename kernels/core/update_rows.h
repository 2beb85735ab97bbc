// Walking over the gradient rows of an update, and numbering unique ids.
#ifndef PICASSO_TF_KERNELS_CORE_UPDATE_ROWS_H_
#define PICASSO_TF_KERNELS_CORE_UPDATE_ROWS_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/core/update.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace picasso {
namespace update_internal {

constexpr int64_t kPrefetchDistance = 16;

inline uint64_t Hash(int64_t id) {
  return static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull;
}

// Which of `tasks` (a power of two) handles this id.
inline int64_t TaskOf(int64_t id, int64_t tasks) {
  return (Hash(id) >> 20) & (tasks - 1);
}

template <typename T>
inline void PrefetchRow(const T* table, int64_t row, int64_t dim) {
  const T* p = table + row * dim;
  __builtin_prefetch(p, 1);
  if (dim * sizeof(T) > 64) {
    __builtin_prefetch(reinterpret_cast<const char*>(p) + 64, 1);
  }
}

template <typename T>
void PrefetchRows(const UpdateMember<T>& m, int64_t row) {
  PrefetchRow(m.var, row, m.dim);
  for (int k = 0; k < kMaxSlots && m.slots[k] != nullptr; ++k) {
    PrefetchRow(m.slots[k], row, m.dim);
  }
}

// Walks over the rows of a gradient; see UpdatePart.
template <typename T>
class GradRows {
 public:
  GradRows(const UpdatePart<T>& part, int64_t dim, int64_t first)
      : inner_(part.inner),
        step_(part.stride - (part.inner - 1) * dim),
        dim_(dim),
        row_(part.grad + first / part.inner * part.stride +
             first % part.inner * dim),
        left_(part.inner - first % part.inner) {}

  const T* row() const { return row_; }
  void Next() {
    if (--left_ > 0) {
      row_ += dim_;
    } else {
      row_ += step_;
      left_ = inner_;
    }
  }

 private:
  int64_t inner_;
  int64_t step_;  // from the last row of a chunk to the next chunk
  int64_t dim_;
  const T* row_;
  int64_t left_;  // rows of this chunk, this one included
};

// Calls visit(id, grad row) for the ids of the member that belong to `task`,
// in graph order.
template <typename T, typename Id, typename Visit>
void ForEachRowOf(const UpdatePart<T>& part, int64_t dim, int64_t task,
                  int64_t tasks, const Visit& visit) {
  const IdsReader<Id> ids(part.ids);
  const int64_t count = part.ids.size;
  GradRows<T> rows(part, dim, 0);
  // Rows of a concatenated gradient lie pages apart: hardware won't follow.
  GradRows<T> ahead(part, dim, std::min(kPrefetchDistance, count));
  for (int64_t i = 0; i < count; ++i) {
    if (i + kPrefetchDistance < count) {
      if (tasks == 1 || TaskOf(ids[i + kPrefetchDistance], tasks) == task) {
        PrefetchRow(ahead.row(), 0, dim);
      }
      ahead.Next();
    }
    int64_t id = ids[i];
    const bool kept = part.filter == nullptr || part.filter->Keep(id, &id);
    if (kept && (tasks == 1 || TaskOf(id, tasks) == task)) {
      visit(id, rows.row());
    }
    rows.Next();
  }
}

template <typename T, typename Visit>
void ForEachRow(const UpdateMember<T>& m, int64_t task, const Visit& visit) {
  for (int64_t p = 0; p < m.part_count; ++p) {
    const UpdatePart<T>& part = m.parts[p];
    if (part.ids.is_int64) {
      ForEachRowOf<T, int64_t>(part, m.dim, task, m.tasks, visit);
    } else {
      ForEachRowOf<T, int32_t>(part, m.dim, task, m.tasks, visit);
    }
  }
}

// Sums rows per distinct id; ids are numbered in the order in which they come.
// The memory is kept from use to use.
template <typename S>
class SumsById {
 public:
  // For at most `count` ids, all in [0, rows); rows 0: of any value.
  void Reset(int64_t count, int64_t rows, int64_t dim) {
    dim_ = dim;
    ids_.clear();
    sums_.clear();
    // Where a row may have a place of its own, nothing has to be searched.
    direct_ = rows > 0 && rows <= kRowsPerId * count;
    if (direct_) {
      map_.assign(rows, -1);
      return;
    }
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * count) ++bits;
    shift_ = 64 - bits;
    mask_ = (uint64_t{1} << bits) - 1;
    map_.assign(int64_t{1} << bits, -1);
  }

  // The sum of `id`; calls on_new(id) when it is seen for the first time, and
  // then the sum is zero. Valid until the next call.
  template <typename OnNew>
  S* SumOf(int64_t id, const OnNew& on_new) {
    uint64_t at = id;
    if (!direct_) {
      at = Hash(id) >> shift_;
      while (map_[at] >= 0 && ids_[map_[at]] != id) at = (at + 1) & mask_;
    }
    int32_t unique = map_[at];
    if (unique < 0) {
      unique = map_[at] = static_cast<int32_t>(ids_.size());
      ids_.push_back(id);
      sums_.resize(sums_.size() + dim_, S(0));
      on_new(id);
    }
    return sums_.data() + unique * dim_;
  }

  const std::vector<int64_t>& ids() const { return ids_; }
  const S* sums() const { return sums_.data(); }  // [ids, dim]

 private:
  static constexpr int64_t kRowsPerId = 4;

  int64_t dim_ = 0;
  bool direct_ = false;
  int shift_ = 60;
  uint64_t mask_ = 15;
  std::vector<int32_t> map_;
  std::vector<int64_t> ids_;
  std::vector<S> sums_;
};

// sum += row, each element rounded to T.
template <typename T>
inline void AddTo(T* sum, const T* row, int64_t dim) {
  using P = typename Eigen::internal::packet_traits<T>::type;
  constexpr int64_t kSize = Eigen::internal::packet_traits<T>::size;
  int64_t i = 0;
  for (; i + kSize <= dim; i += kSize) {
    const P a = Eigen::internal::ploadu<P>(sum + i);
    const P b = Eigen::internal::ploadu<P>(row + i);
    Eigen::internal::pstoreu(sum + i, Eigen::internal::padd(a, b));
  }
  for (; i < dim; ++i) sum[i] = sum[i] + row[i];
}

}  // namespace update_internal
}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_UPDATE_ROWS_H_
