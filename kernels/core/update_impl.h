// PackedUpdate's loops; included by one .cc file per element type so that the
// types compile in parallel.
#ifndef PICASSO_TF_KERNELS_CORE_UPDATE_IMPL_H_
#define PICASSO_TF_KERNELS_CORE_UPDATE_IMPL_H_

#include <algorithm>
#include <mutex>
#include <type_traits>
#include <vector>

#include "kernels/core/bag_sums.h"
#include "kernels/core/grad_sums.h"
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
  GradSums<T, T> sums;
  Buffer<T> changed;                 // negated or scaled gradient rows
  std::vector<BagSums<T>> bags;      // [parts], for members with plans
  std::vector<UpdatePart<T>> parts;  // what is left of these: plain parts

  BagSums<T>& bags_of(int64_t part) {
    if (static_cast<int64_t>(bags.size()) <= part) bags.resize(part + 1);
    return bags[part];
  }
};

// Rows of a table on their way while others are written.
constexpr int64_t kFirst = 32;

// Asks for the first rows that ApplyInBlocks will write: long before, so that
// they come while gradients are summed.
template <typename T>
void AskForFirst(const UpdateMember<T>& m, const int64_t* ids, int64_t count) {
  for (int64_t i = 0; i < std::min(kFirst, count); ++i) PrefetchRows(m, ids[i]);
}

// Sums the parts with a plan per distinct id, which leaves a plain member.
template <typename T>
UpdateMember<T> WithoutBags(const UpdateMember<T>& m, int64_t task,
                            Scratch<T>* scratch) {
  UpdateMember<T> plain = m;
  scratch->bags_of(m.part_count - 1);
  scratch->parts.assign(m.parts, m.parts + m.part_count);
  for (int64_t p = 0; p < m.part_count; ++p) {
    UpdatePart<T>& part = scratch->parts[p];
    if (part.plan == nullptr) continue;
    BagSums<T>& sums = scratch->bags_of(p);
    sums.Build(m, part, task, [&](const int64_t* ids, int64_t count) {
      AskForFirst(m, ids, count);
    });
    part = UpdatePart<T>();
    part.ids.data = sums.ids();
    part.ids.is_int64 = true;
    part.ids.size = sums.count();
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

// Calls apply(ids, count, grads) for some rows at a time, while the table's
// rows for the next come from memory; the first have been asked for by
// AskForFirst.
template <typename T, typename Apply>
void ApplyInBlocks(const UpdateMember<T>& m, const int64_t* ids, int64_t count,
                   const T* grads, const Apply& apply) {
  constexpr int64_t kBlock = 16;
  for (int64_t i = 0; i < count; i += kBlock) {
    const int64_t end = std::min(i + kFirst + kBlock, count);
    for (int64_t k = i + kFirst; k < end; ++k) PrefetchRows(m, ids[k]);
    apply(ids + i, std::min(kBlock, count - i), grads + i * m.dim);
  }
}

template <typename T, typename RuleT>
void RunTask(const UpdateMember<T>& m, const RuleFlags& flags, int64_t task,
             Scratch<T>* scratch, bool of_bags = false) {
  if (HasBags(m)) {
    RunTask<T, RuleT>(WithoutBags(m, task, scratch), flags, task, scratch,
                      /*of_bags=*/true);
    return;
  }
  const RuleT rule(m, flags);
  const auto apply = [&](const int64_t* ids, int64_t count, const T* grads) {
    if (m.negate || m.scaled) {
      // In two steps, as the graph's Neg and Mul: each rounds once.
      const int64_t size = count * m.dim;
      ConstRow<T> g(grads, size);
      Row<T> changed(scratch->changed.Reserve(size), size);
      if (m.negate) {
        changed = -g;
        if (m.scaled) changed = changed * changed.constant(m.scale);
      } else {
        changed = g * g.constant(m.scale);
      }
      grads = changed.data();
    }
    rule(ids, count, grads);
  };
  const UpdatePart<T>& first = m.parts[0];
  const bool simple = m.part_count == 1 && m.tasks == 1 &&
                      first.filter == nullptr && first.ids.is_plain_int64();
  if (!m.sum_duplicates) {
    if (simple && first.inner >= first.ids.size) {
      const int64_t* const ids = static_cast<const int64_t*>(first.ids.data);
      if (!of_bags) AskForFirst(m, ids, first.ids.size);
      ApplyInBlocks(m, ids, first.ids.size, first.grad, apply);
    } else {
      ForEachRow(m, task,
                 [&](int64_t id, const T* grad) { apply(&id, 1, grad); });
    }
    return;
  }
  GradSums<T, T>& sums = scratch->sums;
  const auto ask = [&](const int64_t* ids, int64_t count) {
    AskForFirst(m, ids, count);
  };
  if (simple && first.inner == 1) {
    sums.Reset(RowScale::kNone, 0);
    sums.Build(static_cast<const int64_t*>(first.ids.data), first.ids.size,
               m.rows, m.dim, {nullptr, first.grad, first.stride}, ask);
  } else {
    sums.Reset(RowScale::kNone, m.ids);
    ForEachRow(m, task, [&](int64_t id, const T* grad) { sums.Add(id, grad); });
    sums.Build(m.rows, m.dim, ask);
  }
  ApplyInBlocks(m, sums.ids(), sums.count(), sums.sums(), apply);
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
  if (part.ids.is_plain_int64() && part.filter == nullptr &&
      AllInRange(static_cast<const int64_t*>(part.ids.data), part.ids.size,
                 rows)) {
    return -1;
  }
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
  if (part.filter == nullptr &&
      AllInRange(part.plan->ids(), part.plan->size(), rows)) {
    return -1;
  }
  for (int64_t i = 0; i < part.plan->size(); ++i) {
    *value = part.plan->ids()[i];
    if (part.filter != nullptr && !part.filter->Keep(*value, value)) continue;
    if (!InRange(*value, rows)) return i;
  }
  return -1;
}

// The first bad id of a member, by its position in all of the member's ids.
template <typename T>
int64_t FirstBadOf(const UpdateMember<T>& m, int64_t* value) {
  int64_t before = 0;
  for (int64_t p = 0; p < m.part_count; ++p) {
    const UpdatePart<T>& part = m.parts[p];
    const int64_t at = part.plan != nullptr ? FirstBadOf(part, m.rows, value)
                       : part.ids.is_int64
                           ? FirstBadIn<T, int64_t>(part, m.rows, value)
                           : FirstBadIn<T, int32_t>(part, m.rows, value);
    if (at >= 0) return before + at;
    before += part.size();
  }
  return -1;
}

template <typename T>
BadId FindBadId(const UpdateMember<T>* members, int64_t count,
                const ParallelFor& parallel_for) {
  int64_t ids = 0;
  for (int64_t k = 0; k < count; ++k) ids += members[k].ids;
  std::mutex mutex;
  BadId first;
  // A cycle or two an id.
  parallel_for(count, 20 + 2 * ids / std::max<int64_t>(count, 1),
               [&](int64_t begin, int64_t end) {
                 for (int64_t k = begin; k < end; ++k) {
                   int64_t value = 0;
                   const int64_t at = FirstBadOf(members[k], &value);
                   if (at < 0) continue;
                   std::lock_guard<std::mutex> lock(mutex);
                   if (!first.found() || k < first.member) {
                     first = {k, at, value};
                   }
                   return;
                 }
               });
  return first;
}

}  // namespace update_internal

template <typename T>
BadId PackedUpdate(Rule rule, const RuleFlags& flags, UpdateMember<T>* members,
                   int64_t count, bool ordered,
                   const ParallelFor& parallel_for) {
  const BadId bad = update_internal::FindBadId(members, count, parallel_for);
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
    PICASSO_RULE(kFtrl, ByRow<FtrlRule<T, false>>);
    PICASSO_RULE(kFtrlV2, ByRow<FtrlRule<T, true>>);
    PICASSO_RULE(kRMSProp, ByElement<T, RMSPropRule>);
    PICASSO_RULE(kAdadelta, ByElement<T, AdadeltaRule>);
    default:
      // The rest exists for float and double alone (RuleInfo::float_only).
      if constexpr (std::is_same_v<T, float> || std::is_same_v<T, double>) {
        switch (rule) {
          PICASSO_RULE(kProximalAdagrad, ByRow<ProximalAdagradRule<T>>);
          PICASSO_RULE(kAdagradDA, ByRow<AdagradDARule<T>>);
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
