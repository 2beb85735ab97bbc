// PackedUpdate's loops; included by one .cc file per element type so that the
// types compile in parallel.
#ifndef PICASSO_TF_KERNELS_CORE_UPDATE_IMPL_H_
#define PICASSO_TF_KERNELS_CORE_UPDATE_IMPL_H_

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

#include "kernels/core/bag_sums.h"
#include "kernels/core/rules.h"
#include "kernels/core/update.h"
#include "kernels/core/update_rows.h"

namespace picasso {
namespace update_internal {

// A table's update is cut into tasks of about this many gradient elements, so
// that one large table keeps several threads busy.
constexpr int64_t kElementsPerTask = 64 * 1024;
constexpr int64_t kMaxTasks = 64;  // each task scans all ids of its table

template <typename T>
struct TypeTag {
  using type = T;
};

template <typename T>
struct Scratch {
  SumsById<T> sums;
  std::vector<T> row;                // one scaled gradient row
  std::vector<BagSums<T>> bags;      // [parts], for members with plans
  std::vector<UpdatePart<T>> parts;  // what is left of these: plain parts
};

// Sums the parts with a plan per unique id, which leaves a plain member.
template <typename T>
UpdateMember<T> WithoutBags(const UpdateMember<T>& m, int64_t task,
                            Scratch<T>* scratch) {
  UpdateMember<T> plain = m;
  if (static_cast<int64_t>(scratch->bags.size()) < m.part_count) {
    scratch->bags.resize(m.part_count);
  }
  scratch->parts.assign(m.parts, m.parts + m.part_count);
  for (int64_t p = 0; p < m.part_count; ++p) {
    UpdatePart<T>& part = scratch->parts[p];
    if (part.plan == nullptr) continue;
    const BagSums<T>& sums = scratch->bags[p];
    scratch->bags[p].Build(m, part, task);
    part = UpdatePart<T>();
    part.ids.data = sums.ids().data();
    part.ids.is_int64 = true;
    part.ids.size = sums.ids().size();
    part.grad = sums.rows();
    part.inner = std::max<int64_t>(part.ids.size, 1);
    // Ids that are unique already need no second sum. (Of half types the sum of
    // one row and zero may differ from the row: -0.)
    if (m.part_count == 1 && sizeof(T) >= 4) plain.sum_duplicates = false;
  }
  plain.parts = scratch->parts.data();
  return plain;
}

template <typename T>
bool HasBags(const UpdateMember<T>& m) {
  return std::any_of(m.parts, m.parts + m.part_count,
                     [](const auto& part) { return part.plan != nullptr; });
}

template <typename T, typename RuleT>
void RunTask(const UpdateMember<T>& m, const RuleFlags& flags, int64_t task,
             Scratch<T>* scratch) {
  if (HasBags(m)) {
    RunTask<T, RuleT>(WithoutBags(m, task, scratch), flags, task, scratch);
    return;
  }
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
  SumsById<T>& sums = scratch->sums;
  sums.Reset(m.ids, m.rows, m.dim);
  ForEachRow(m, task, [&](int64_t id, const T* grad) {
    // A task's rows fit the second-level cache (kElementsPerTask): asked for
    // here, they come while gradients are summed.
    AddTo(sums.SumOf(id, [&](int64_t row) { PrefetchRows(m, row); }), grad,
          m.dim);
  });
  const auto& ids = sums.ids();
  for (size_t u = 0; u < ids.size(); ++u)
    apply(ids[u], sums.sums() + u * m.dim);
}

// How many gradient rows to expect.
template <typename T>
int64_t Rows(const UpdateMember<T>& m) {
  return (m.ids + m.sharers - 1) / m.sharers;
}

template <typename T, typename RuleT>
void RunAll(const RuleFlags& flags, UpdateMember<T>* members, int64_t count,
            bool ordered, const ParallelFor& parallel_for) {
  int64_t tasks = 0, elements = 0;
  for (int64_t k = 0; k < count; ++k) {
    UpdateMember<T>& m = members[k];
    m.tasks = 1;
    while (!ordered && m.tasks < kMaxTasks &&
           m.tasks * kElementsPerTask < Rows(m) * m.dim) {
      m.tasks *= 2;
    }
    m.first_task = tasks;
    tasks += m.tasks;
    elements += Rows(m) * m.dim;
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
    int64_t id = ids[i];
    if (part.filter != nullptr && !part.filter->Keep(id, &id)) continue;
    if (!InRange(id, rows)) {
      *value = id;
      return i;
    }
  }
  return -1;
}

template <typename T>
int64_t FirstBadOf(const UpdatePart<T>& part, int64_t rows, int64_t* value) {
  for (int64_t i = 0; i < part.plan->size(); ++i) {
    *value = part.plan->ids()[i];
    if (part.filter != nullptr && !part.filter->Keep(*value, value)) continue;
    if (!InRange(*value, rows)) return i;
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
          part.plan != nullptr ? FirstBadOf(part, members[k].rows, &value)
          : part.ids.is_int64
              ? FirstBadIn<T, int64_t>(part, members[k].rows, &value)
              : FirstBadIn<T, int32_t>(part, members[k].rows, &value);
      if (at >= 0) return {k, before + at, value};
      before += part.size();
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
