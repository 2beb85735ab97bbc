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
    const BagPlan& plan = *part.plan;
    entries_.clear();
    unique_.Reset(plan.size());
    const T* chunk = part.grad;
    int64_t j = 0;
    for (int64_t b = 0; b < plan.bags(); ++b) {
      const bool zero = part.zero_filled && plan.filled(b);
      const T* grad = zero ? nullptr : chunk + j * m.dim;
      for (int64_t e = plan.offsets()[b]; e < plan.offsets()[b + 1]; ++e) {
        int64_t id = plan.ids()[e];
        if (part.filter != nullptr && !part.filter->Keep(id, &id)) continue;
        if (m.tasks != 1 && TaskOf(id, m.tasks) != task) continue;
        const int32_t unique =
            unique_.Position(id, [&](int64_t row) { PrefetchRows(m, row); });
        entries_.push_back({grad, unique, b, e});
      }
      if (++j == part.inner) {
        j = 0;
        chunk += part.stride;
      }
    }
    if (part.weights != nullptr) {
      SumUpWeighted(part, m.dim);
    } else if (std::is_same_v<T, Sum<T>> || part.sums_in_type) {
      SumUp(part, m.dim, &rows_);
    } else {
      SumUp(part, m.dim, &wide_);
      rows_.resize(wide_.size());
      for (size_t i = 0; i < wide_.size(); ++i) {
        rows_[i] = static_cast<T>(wide_[i]);
      }
    }
  }

  const std::vector<int64_t>& ids() const { return unique_.ids(); }
  const T* rows() const { return rows_.data(); }  // [ids, dim]

 private:
  struct Entry {
    const T* grad;  // null: zero
    int32_t unique;
    int64_t bag;
    int64_t position;  // in the plan
  };

  // Calls add(entry, sum of its id) for all entries whose gradient is not zero:
  // zero more changes nothing.
  template <typename S, typename Add>
  void ForEach(int64_t dim, std::vector<S>* sums, const Add& add) {
    sums->assign(unique_.ids().size() * dim, S(0));
    const int64_t count = entries_.size();
    for (int64_t e = 0; e < count; ++e) {
      if (e + kPrefetchDistance < count) {
        PrefetchRow(entries_[e + kPrefetchDistance].grad, 0, dim);
      }
      const Entry& entry = entries_[e];
      if (entry.grad != nullptr) add(entry, sums->data() + entry.unique * dim);
    }
  }

  template <typename S>
  void SumUp(const UpdatePart<T>& part, int64_t dim, std::vector<S>* sums) {
    const int64_t* offsets = part.plan->offsets();
    ForEach(dim, sums, [&](const Entry& entry, S* sum) {
      const int64_t count = offsets[entry.bag + 1] - offsets[entry.bag];
      const S scale = static_cast<S>(GradScale(part.combiner, count));
      AddScaled<T, S>(sum, entry.grad, scale, dim);
    });
  }

  void SumUpWeighted(const UpdatePart<T>& part, int64_t dim) {
    const Sum<T>* weights = part.weights->weights();
    const Sum<T>* divisors = part.weights->divisors();
    ForEach(dim, &rows_, [&](const Entry& entry, T* sum) {
      const Sum<T> weight = weights[entry.position];
      if (divisors == nullptr) {
        AddWeighted<T>(sum, entry.grad, weight, dim);
      } else {
        AddDivided<T>(sum, entry.grad, divisors[entry.bag], weight, dim);
      }
    });
  }

  UniqueIds unique_;
  std::vector<Entry> entries_;
  std::vector<T> rows_;
  std::vector<Sum<T>> wide_;
};

}  // namespace update_internal
}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_BAG_SUMS_H_
