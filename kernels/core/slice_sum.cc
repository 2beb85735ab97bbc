#include "kernels/core/slice_sum.h"

#include <algorithm>

#include "Eigen/Core"

namespace picasso {
namespace {

// A summand that is not zero in one row of the axis.
template <typename T>
struct Term {
  const T* data;   // of the first outer index
  int64_t stride;  // from one outer index to the next
};

// Summands that are added up before they are added to the total.
template <typename T>
struct Group {
  std::vector<Term<T>> terms;
  bool zeros;  // some summand of the group is zero here
};

// The groups of AddN with a term in row `a`. A group of nothing but zeros turns
// a total of -0 into 0; that is done once, by `zeros` of a neighbour: no later
// sum can be -0 again, and no earlier one is left.
template <typename T>
std::vector<Group<T>> GroupsOf(const std::vector<SlicePart<T>>& parts,
                               int64_t a, int64_t inner) {
  const int64_t count = parts.size();
  const int64_t rest = count % 8;
  const int64_t first = std::min(count, rest < 2 ? rest + 8 : rest);
  std::vector<Group<T>> groups;
  bool empty = false;
  for (int64_t begin = 0, end = first; begin < count;
       begin = end, end = std::min(count, end + 8)) {
    Group<T> group = {{}, false};
    for (int64_t p = begin; p < end; ++p) {
      const SlicePart<T>& part = parts[p];
      if (a < part.begin || a >= part.begin + part.length) {
        group.zeros = true;
      } else {
        group.terms.push_back(
            {part.data + (a - part.begin) * inner, part.length * inner});
      }
    }
    if (group.terms.empty()) {
      empty = true;
    } else {
      groups.push_back(std::move(group));
    }
  }
  if (empty && !groups.empty()) groups.front().zeros = true;
  return groups;
}

template <typename T>
void SumRow(const std::vector<Group<T>>& groups, int64_t o, int64_t inner,
            T* out) {
  constexpr int64_t kBlock = 64;
  for (int64_t begin = 0; begin < inner; begin += kBlock) {
    const int64_t size = std::min(kBlock, inner - begin);
    T total[kBlock], sum[kBlock];
    if (groups.empty()) std::fill_n(total, size, T(0));
    for (size_t g = 0; g < groups.size(); ++g) {
      const Group<T>& group = groups[g];
      T* const to = g == 0 ? total : sum;
      for (size_t t = 0; t < group.terms.size(); ++t) {
        const Term<T>& term = group.terms[t];
        const T* const from = term.data + o * term.stride + begin;
        if (t == 0 && group.zeros) {
          for (int64_t k = 0; k < size; ++k) to[k] = T(0) + from[k];
        } else if (t == 0) {
          for (int64_t k = 0; k < size; ++k) to[k] = from[k];
        } else {
          for (int64_t k = 0; k < size; ++k) to[k] = to[k] + from[k];
        }
      }
      if (g == 0) continue;
      for (int64_t k = 0; k < size; ++k) total[k] = total[k] + sum[k];
    }
    std::copy_n(total, size, out + begin);
  }
}

}  // namespace

template <typename T>
void SliceSum(const std::vector<SlicePart<T>>& parts, int64_t outer,
              int64_t axis, int64_t inner, T* out,
              const ParallelFor& parallel_for) {
  if (outer * axis * inner == 0) return;
  std::vector<std::vector<Group<T>>> rows(axis);
  int64_t terms = 0;
  for (int64_t a = 0; a < axis; ++a) rows[a] = GroupsOf(parts, a, inner);
  for (const SlicePart<T>& part : parts) terms += part.length;
  parallel_for(outer, terms * (inner + 16) + 64,
               [&](int64_t begin, int64_t end) {
                 for (int64_t o = begin; o < end; ++o) {
                   for (int64_t a = 0; a < axis; ++a) {
                     SumRow(rows[a], o, inner, out + (o * axis + a) * inner);
                   }
                 }
               });
}

#define INSTANTIATE(T)                                                 \
  template void SliceSum<T>(const std::vector<SlicePart<T>>&, int64_t, \
                            int64_t, int64_t, T*, const ParallelFor&)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(Eigen::half);
INSTANTIATE(Eigen::bfloat16);
#undef INSTANTIATE

}  // namespace picasso
