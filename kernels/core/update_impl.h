// PackedUpdate's loops; included by one .cc file per element type so that the
// types compile in parallel.
#ifndef PICASSO_TF_KERNELS_CORE_UPDATE_IMPL_H_
#define PICASSO_TF_KERNELS_CORE_UPDATE_IMPL_H_

#include <algorithm>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "kernels/core/rules.h"
#include "kernels/core/update.h"

namespace picasso {
namespace update_internal {

// A table's update is cut into tasks of about this many gradient elements, so
// that one large table keeps several threads busy.
constexpr int64_t kElementsPerTask = 64 * 1024;
constexpr int64_t kMaxTasks = 64;  // each task scans all ids of its table
constexpr int64_t kPrefetchDistance = 16;

template <typename T>
struct TypeTag {
  using type = T;
};

inline uint64_t Hash(int64_t id) {
  return static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull;
}

// Which of `tasks` (a power of two) handles this id.
inline int64_t TaskOf(int64_t id, int64_t tasks) {
  return (Hash(id) >> 20) & (tasks - 1);
}

// Calls visit(id, grad row) for the ids of the member that belong to `task`,
// in graph order.
template <typename T, typename Id, typename Visit>
void ForEachRowOf(const UpdatePart<T>& part, int64_t dim, int64_t task,
                  int64_t tasks, const Visit& visit) {
  const IdsReader<Id> ids(part.ids);
  const T* chunk = part.grad;
  int64_t j = 0;
  for (int64_t i = 0; i < part.ids.size; ++i) {
    const int64_t id = ids[i];
    if (tasks == 1 || TaskOf(id, tasks) == task) visit(id, chunk + j * dim);
    if (++j == part.inner) {
      j = 0;
      chunk += part.stride;
    }
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

// The ids of one task, and which of its gradient rows belong to which. The
// memory is kept from task to task of one range.
template <typename T>
class RowsById {
 public:
  struct GradRow {
    const T* grad;
    int32_t unique;  // index into ids()
  };

  void Build(const UpdateMember<T>& m, int64_t task) {
    ids_.clear();
    rows_.clear();
    int bits = 4;
    while ((int64_t{1} << bits) < 2 * m.ids) ++bits;
    const int shift = 64 - bits;
    const uint64_t mask = (uint64_t{1} << bits) - 1;
    map_.assign(int64_t{1} << bits, -1);
    ForEachRow(m, task, [&](int64_t id, const T* grad) {
      uint64_t at = Hash(id) >> shift;
      int32_t unique;
      while ((unique = map_[at]) >= 0 && ids_[unique] != id) {
        at = (at + 1) & mask;
      }
      if (unique < 0) {
        unique = map_[at] = static_cast<int32_t>(ids_.size());
        ids_.push_back(id);
        // A task's rows fit the second-level cache (kElementsPerTask): asked
        // for here, they come while the map is built and gradients are summed.
        PrefetchRows(m, id);
      }
      rows_.push_back({grad, unique});
    });
  }

  const std::vector<int64_t>& ids() const { return ids_; }
  const std::vector<GradRow>& rows() const { return rows_; }

 private:
  std::vector<int32_t> map_;
  std::vector<int64_t> ids_;
  std::vector<GradRow> rows_;  // in graph order
};

template <typename T>
struct Scratch {
  RowsById<T> rows;
  std::vector<T> sums;  // [unique ids, dim]
  std::vector<T> row;   // one scaled gradient row
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

template <typename T, typename RuleT>
void RunTask(const UpdateMember<T>& m, const RuleFlags& flags, int64_t task,
             Scratch<T>* scratch) {
  const RuleT rule(m, flags);
  if (static_cast<int64_t>(scratch->row.size()) < m.dim) {
    scratch->row.resize(m.dim);
  }
  Row<T> sum(scratch->row.data(), m.dim);
  const auto apply = [&](int64_t id, const T* grad) {
    if (m.negate || m.scaled) {
      // In two steps, as the graph's Neg and Mul: each rounds once.
      ConstRow<T> g(grad, m.dim);
      if (m.negate) {
        sum = -g;
        if (m.scaled) sum = sum * sum.constant(m.scale);
      } else {
        sum = g * g.constant(m.scale);
      }
      grad = sum.data();
    }
    rule(id, grad);
  };
  if (!m.sum_duplicates) {
    ForEachRow(m, task, apply);
    return;
  }
  scratch->rows.Build(m, task);
  const auto& ids = scratch->rows.ids();
  const auto& rows = scratch->rows.rows();
  const int64_t count = rows.size();
  scratch->sums.assign(ids.size() * m.dim, T(0));
  T* const sums = scratch->sums.data();
  for (int64_t i = 0; i < count; ++i) {
    // Rows of a concatenated gradient lie pages apart; hardware won't follow.
    if (i + kPrefetchDistance < count) {
      PrefetchRow(rows[i + kPrefetchDistance].grad, 0, m.dim);
    }
    AddTo(sums + rows[i].unique * m.dim, rows[i].grad, m.dim);
  }
  for (size_t u = 0; u < ids.size(); ++u) apply(ids[u], sums + u * m.dim);
}

template <typename T, typename RuleT>
void RunAll(const RuleFlags& flags, UpdateMember<T>* members, int64_t count,
            bool ordered, const ParallelFor& parallel_for) {
  int64_t tasks = 0, elements = 0;
  for (int64_t k = 0; k < count; ++k) {
    UpdateMember<T>& m = members[k];
    m.tasks = 1;
    while (!ordered && m.tasks < kMaxTasks &&
           m.tasks * kElementsPerTask < m.ids * m.dim) {
      m.tasks *= 2;
    }
    m.first_task = tasks;
    tasks += m.tasks;
    elements += m.ids * m.dim;
  }
  if (tasks == 0 || elements == 0) return;
  const auto body = [&](int64_t begin, int64_t end) {
    Scratch<T> scratch;
    int64_t k = std::upper_bound(members, members + count, begin,
                                 [](int64_t task, const UpdateMember<T>& m) {
                                   return task < m.first_task;
                                 }) -
                members - 1;
    for (int64_t task = begin; task < end; ++task) {
      while (task - members[k].first_task >= members[k].tasks) ++k;
      if (members[k].ids > 0) {
        RunTask<T, RuleT>(members[k], flags, task - members[k].first_task,
                          &scratch);
      }
    }
  };
  if (ordered) {
    body(0, tasks);
  } else {
    // About eight cycles per gradient element: read, sum, apply, write.
    parallel_for(tasks, std::max<int64_t>(1, 8 * elements / tasks), body);
  }
}

template <typename T, typename Id>
int64_t FirstBadIn(const UpdatePart<T>& part, int64_t rows, int64_t* value) {
  const IdsReader<Id> ids(part.ids);
  for (int64_t i = 0; i < part.ids.size; ++i) {
    if (!InRange(ids[i], rows)) {
      *value = ids[i];
      return i;
    }
  }
  return -1;
}

template <typename T>
BadId FindBadId(const UpdateMember<T>* members, int64_t count) {
  for (int64_t k = 0; k < count; ++k) {
    int64_t before = 0;
    for (int64_t p = 0; p < members[k].part_count; ++p) {
      const UpdatePart<T>& part = members[k].parts[p];
      int64_t value = 0;
      const int64_t at =
          part.ids.is_int64
              ? FirstBadIn<T, int64_t>(part, members[k].rows, &value)
              : FirstBadIn<T, int32_t>(part, members[k].rows, &value);
      if (at >= 0) return {k, before + at, value};
      before += part.ids.size;
    }
  }
  return {};
}

}  // namespace update_internal

template <typename T>
BadId PackedUpdate(Rule rule, const RuleFlags& flags, UpdateMember<T>* members,
                   int64_t count, bool ordered,
                   const ParallelFor& parallel_for) {
  const BadId bad = update_internal::FindBadId(members, count);
  if (bad.found()) return bad;
  const auto run = [&](auto tag) {
    using RuleT = typename decltype(tag)::type;
    update_internal::RunAll<T, RuleT>(flags, members, count, ordered,
                                      parallel_for);
  };
#define PICASSO_RULE(RULE, ...)                   \
  case Rule::RULE:                                \
    run(update_internal::TypeTag<__VA_ARGS__>()); \
    break
  switch (rule) {
    PICASSO_RULE(kScatterAdd, ByElement<T, ScatterAddRule>);
    PICASSO_RULE(kScatterSub, ByElement<T, ScatterSubRule>);
    PICASSO_RULE(kAdagrad, ByElement<T, AdagradRule>);
    PICASSO_RULE(kAdagradV2, ByElement<T, AdagradV2Rule>);
    PICASSO_RULE(kMomentum, ByElement<T, MomentumRule>);
    PICASSO_RULE(kKerasMomentum, ByElement<T, KerasMomentumRule>);
    PICASSO_RULE(kFtrl, FtrlRule<T, false>);
    PICASSO_RULE(kFtrlV2, FtrlRule<T, true>);
    PICASSO_RULE(kRMSProp, ByElement<T, RMSPropRule>);
    PICASSO_RULE(kAdadelta, ByElement<T, AdadeltaRule>);
    default:
      // The rest exists for float and double alone (RuleInfo::float_only).
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        switch (rule) {
          PICASSO_RULE(kProximalAdagrad, ProximalAdagradRule<T>);
          PICASSO_RULE(kAdagradDA, AdagradDARule<T>);
          default:
            break;
        }
      }
  }
#undef PICASSO_RULE
  return {};
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_UPDATE_IMPL_H_
