#include "kernels/core/segment_sum.h"

#include <algorithm>
#include <vector>

#include "Eigen/Core"
#include "kernels/core/bag_sums.h"

namespace picasso {
namespace {

// Elements of output per task. Each task looks at all ids of its member.
constexpr int64_t kTask = 32 * 1024;
constexpr int64_t kMaxTasks = 16;  // per member

template <typename Id>
int64_t FirstBad(const IdsView& view, int64_t rows) {
  const IdsReader<Id> ids(view);
  for (int64_t i = 0; i < view.size; ++i) {
    if (ids[i] >= rows) return i;
  }
  return -1;
}

// The sum of `count` > 1 parts at one element as AddN has it: n mod 8 of them
// (8 for 0, 9 for 1), then the sum of eight more at a time.
template <typename T>
T SumOfParts(const T* const* parts, int64_t count, int64_t at) {
  const auto sum_of = [&](int64_t from, int64_t to) {
    T sum = parts[from][at];
    for (int64_t p = from + 1; p < to; ++p) sum += parts[p][at];
    return sum;
  };
  const int64_t rest = count & 7;
  int64_t done = rest < 2 ? rest + 8 : rest;
  T sum = sum_of(0, done);
  for (; done < count; done += 8) sum += sum_of(done, done + 8);
  return sum;
}

// Rows [begin, end) of the output.
template <typename T, typename Id>
void SumRows(const SegmentSumMember<T>& m, int64_t begin, int64_t end) {
  const IdsReader<Id> ids(m.ids);
  const int64_t dim = m.dim;
  std::fill_n(m.out + begin * dim, (end - begin) * dim, T(0));
  for (int64_t i = 0; i < m.ids.size; ++i) {
    const int64_t row = ids[i];
    if (row < begin || row >= end) continue;
    T* const out = m.out + row * dim;
    if (m.part_count == 1) {
      const T* const in = m.parts[0] + i * dim;
      for (int64_t k = 0; k < dim; ++k) out[k] += in[k];
      continue;
    }
    for (int64_t k = 0; k < dim; ++k) {
      out[k] += SumOfParts(m.parts, m.part_count, i * dim + k);
    }
  }
}

// All rows of the output of a member with bags.
template <typename T>
void SumBags(const SegmentSumMember<T>& m, update_internal::BagSums<T>* sums) {
  UpdateMember<T> member;
  member.var = m.out;  // what is to be in the cache
  member.dim = m.dim;
  member.tasks = 1;
  sums->Build(member, *m.bags, 0, [](const int64_t*, int64_t) {});
  SegmentSumMember<T> plain = m;
  plain.ids = IdsView();
  plain.ids.data = sums->ids();
  plain.ids.is_int64 = true;
  plain.ids.size = sums->count();
  const T* const rows = sums->rows();
  plain.parts = &rows;
  plain.part_count = 1;
  SumRows<T, int64_t>(plain, 0, m.rows);
}

// The first id that is not below `rows`; -1: none.
template <typename T>
int64_t FirstBadOf(const SegmentSumMember<T>& m, int64_t* value) {
  if (m.bags != nullptr) {
    const BagPlan& plan = *m.bags->plan;
    for (int64_t i = 0; i < plan.size(); ++i) {
      *value = plan.ids()[i];
      if (*value >= m.rows) return i;
    }
    return -1;
  }
  const int64_t at = m.ids.is_int64 ? FirstBad<int64_t>(m.ids, m.rows)
                                    : FirstBad<int32_t>(m.ids, m.rows);
  if (at >= 0) {
    *value = m.ids.is_int64 ? IdsReader<int64_t>(m.ids)[at]
                            : IdsReader<int32_t>(m.ids)[at];
  }
  return at;
}

}  // namespace

template <typename T>
BadId PackedSegmentSum(const SegmentSumMember<T>* members, int64_t count,
                       const ParallelFor& parallel_for) {
  struct Task {
    int64_t member, begin, end;
  };
  std::vector<Task> tasks;
  int64_t work = 0;
  BadId bad;
  for (int64_t m = 0; m < count; ++m) {
    const SegmentSumMember<T>& member = members[m];
    int64_t value = 0;
    const int64_t at = FirstBadOf(member, &value);
    if (at >= 0) {
      bad.member = m;
      bad.position = at;
      bad.value = value;
      return bad;
    }
    if (member.rows == 0) continue;
    const int64_t elements = member.rows * member.dim;
    if (member.bags != nullptr) {
      tasks.push_back({m, 0, member.rows});
      work += elements / 4 + member.bags->plan->size() * (member.dim + 8);
      continue;
    }
    const int64_t cuts = std::clamp<int64_t>(elements / kTask, 1,
                                             std::min(kMaxTasks, member.rows));
    for (int64_t c = 0; c < cuts; ++c) {
      tasks.push_back(
          {m, member.rows * c / cuts, member.rows * (c + 1) / cuts});
    }
    work += elements / 4 +
            member.ids.size * (member.dim * member.part_count + cuts);
  }
  if (tasks.empty()) return bad;
  parallel_for(tasks.size(), work / tasks.size() + 1,
               [&](int64_t begin, int64_t end) {
                 update_internal::BagSums<T> sums;
                 for (int64_t t = begin; t < end; ++t) {
                   const Task& task = tasks[t];
                   const SegmentSumMember<T>& m = members[task.member];
                   if (m.bags != nullptr) {
                     SumBags(m, &sums);
                   } else if (m.ids.is_int64) {
                     SumRows<T, int64_t>(m, task.begin, task.end);
                   } else {
                     SumRows<T, int32_t>(m, task.begin, task.end);
                   }
                 }
               });
  return bad;
}

#define INSTANTIATE(T)                                                    \
  template BadId PackedSegmentSum<T>(const SegmentSumMember<T>*, int64_t, \
                                     const ParallelFor&)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(Eigen::half);
INSTANTIATE(Eigen::bfloat16);
#undef INSTANTIATE

}  // namespace picasso
