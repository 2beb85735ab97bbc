// Walking over the gradient rows of an update.
#ifndef PICASSO_TF_KERNELS_CORE_UPDATE_ROWS_H_
#define PICASSO_TF_KERNELS_CORE_UPDATE_ROWS_H_

#include <algorithm>
#include <cstdint>

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
        row_(part.row(first, dim)),
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

}  // namespace update_internal
}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_UPDATE_ROWS_H_
