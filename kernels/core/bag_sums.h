// The gradients of bags, summed per unique id.
#ifndef PICASSO_TF_KERNELS_CORE_BAG_SUMS_H_
#define PICASSO_TF_KERNELS_CORE_BAG_SUMS_H_

#include <type_traits>
#include <vector>

#include "kernels/core/update_rows.h"

namespace picasso {
namespace update_internal {

// sum += row * scale in S's arithmetic.
template <typename T, typename S>
inline void AddScaled(S* sum, const T* row, S scale, int64_t dim) {
  int64_t i = 0;
  if constexpr (std::is_same_v<T, S>) {
    using namespace Eigen::internal;
    using P = typename packet_traits<T>::type;
    constexpr int64_t kSize =
        packet_traits<T>::Vectorizable ? packet_traits<T>::size : 1;
    for (; kSize > 1 && i + kSize <= dim; i += kSize) {
      const P product = pmul(ploadu<P>(row + i), pset1<P>(scale));
      pstoreu(sum + i, padd(ploadu<P>(sum + i), product));
    }
  }
  for (; i < dim; ++i) sum[i] = sum[i] + static_cast<S>(row[i]) * scale;
}

// The same of a weighted bag: row * weight or (row / divisor) * weight. Half
// types are multiplied in float, but summed in their own type.
template <typename T>
inline void AddWeighted(T* sum, const T* row, Sum<T> weight, int64_t dim) {
  if constexpr (std::is_same_v<T, Sum<T>>) {
    AddScaled<T, T>(sum, row, weight, dim);
  } else {
    for (int64_t i = 0; i < dim; ++i) {
      const auto product = static_cast<Sum<T>>(row[i]) * weight;
      sum[i] = sum[i] + static_cast<T>(product);
    }
  }
}

template <typename T>
inline void AddDivided(T* sum, const T* row, Sum<T> divisor, Sum<T> weight,
                       int64_t dim) {
  for (int64_t i = 0; i < dim; ++i) {
    const auto quotient = DivNoNan(static_cast<Sum<T>>(row[i]), divisor);
    sum[i] = sum[i] + static_cast<T>(quotient * weight);
  }
}

template <typename T>
class BagSums {
 public:
  // Those ids of a part with a plan that belong to `task`.
  void Build(const UpdateMember<T>& m, const UpdatePart<T>& part,
             int64_t task) {
    widened_ = false;
    if (part.weights != nullptr) {
      SumUpWeighted(m, part, task);
    } else if (std::is_same_v<T, Sum<T>> || part.sums_in_type) {
      SumUp(m, part, task, &sums_);
    } else {
      SumUp(m, part, task, &wide_);
      widened_ = true;
      const int64_t size = wide_.ids().size() * m.dim;
      narrowed_.resize(size);
      for (int64_t i = 0; i < size; ++i) {
        narrowed_[i] = static_cast<T>(wide_.sums()[i]);
      }
    }
  }

  const std::vector<int64_t>& ids() const {
    return widened_ ? wide_.ids() : sums_.ids();
  }
  // [ids, dim]
  const T* rows() const { return widened_ ? narrowed_.data() : sums_.sums(); }

 private:
  // Calls add(bag, entry of the plan, gradient, sum of its id) for all entries
  // of the task whose gradient is not zero: zero more changes nothing.
  template <typename S, typename Add>
  static void ForEach(const UpdateMember<T>& m, const UpdatePart<T>& part,
                      int64_t task, SumsById<S>* sums, const Add& add) {
    const BagPlan& plan = *part.plan;
    const int64_t bags = plan.bags();
    const int64_t* const offsets = plan.offsets();
    const int64_t* const ids = plan.ids();
    sums->Reset(plan.size(), m.rows, m.dim);
    GradRows<T> rows(part, m.dim, 0);
    GradRows<T> ahead(part, m.dim, std::min(kPrefetchDistance, bags));
    for (int64_t b = 0; b < bags; ++b, rows.Next()) {
      if (b + kPrefetchDistance < bags) {
        const int64_t e = offsets[b + kPrefetchDistance];
        if (m.tasks == 1 ||
            (e < plan.size() && TaskOf(ids[e], m.tasks) == task)) {
          PrefetchRow(ahead.row(), 0, m.dim);
        }
        ahead.Next();
      }
      const bool zero = part.zero_filled && plan.filled(b);
      for (int64_t e = offsets[b]; e < offsets[b + 1]; ++e) {
        int64_t id = ids[e];
        if (part.filter != nullptr && !part.filter->Keep(id, &id)) continue;
        if (m.tasks != 1 && TaskOf(id, m.tasks) != task) continue;
        S* sum = sums->SumOf(id, [&](int64_t row) { PrefetchRows(m, row); });
        if (!zero) add(b, e, rows.row(), sum);
      }
    }
  }

  template <typename S>
  static void SumUp(const UpdateMember<T>& m, const UpdatePart<T>& part,
                    int64_t task, SumsById<S>* sums) {
    const int64_t* offsets = part.plan->offsets();
    int64_t known = -1;
    S scale(1);
    ForEach(m, part, task, sums,
            [&](int64_t bag, int64_t, const T* grad, S* sum) {
              const int64_t count = offsets[bag + 1] - offsets[bag];
              if (count != known) {
                known = count;
                scale = static_cast<S>(GradScale(part.combiner, count));
              }
              AddScaled<T, S>(sum, grad, scale, m.dim);
            });
  }

  void SumUpWeighted(const UpdateMember<T>& m, const UpdatePart<T>& part,
                     int64_t task) {
    const Sum<T>* weights = part.weights->weights();
    const Sum<T>* divisors = part.weights->divisors();
    ForEach(m, part, task, &sums_,
            [&](int64_t bag, int64_t entry, const T* grad, T* sum) {
              const Sum<T> weight = weights[entry];
              if (divisors == nullptr) {
                AddWeighted<T>(sum, grad, weight, m.dim);
              } else {
                AddDivided<T>(sum, grad, divisors[bag], weight, m.dim);
              }
            });
  }

  SumsById<T> sums_;
  SumsById<Sum<T>> wide_;  // of half types
  std::vector<T> narrowed_;
  bool widened_ = false;
};

}  // namespace update_internal
}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_BAG_SUMS_H_
