// The gradients of bags, summed per distinct id.
#ifndef PICASSO_TF_KERNELS_CORE_BAG_SUMS_H_
#define PICASSO_TF_KERNELS_CORE_BAG_SUMS_H_

#include <type_traits>

#include "kernels/core/grad_sums.h"

namespace picasso {
namespace update_internal {

template <typename T>
class BagSums {
 public:
  // Of those ids of a part with a plan that belong to `task`. For `numbered`,
  // see GradSums.
  template <typename Numbered>
  void Build(const UpdateMember<T>& m, const UpdatePart<T>& part, int64_t task,
             const Numbered& numbered) {
    widened_ = false;
    if (std::is_same_v<T, Sum<T>> || part.weights != nullptr ||
        part.sums_in_type) {
      SumUp(m, part, task, numbered, &sums_);
      return;
    }
    SumUp(m, part, task, numbered, &wide_);
    widened_ = true;
    const int64_t size = wide_.count() * m.dim;
    T* const narrow = narrow_.Reserve(size);
    for (int64_t i = 0; i < size; ++i) {
      narrow[i] = static_cast<T>(wide_.sums()[i]);
    }
  }

  int64_t count() const { return widened_ ? wide_.count() : sums_.count(); }
  const int64_t* ids() const { return widened_ ? wide_.ids() : sums_.ids(); }
  T* rows() { return widened_ ? narrow_.data() : sums_.sums(); }  // [ids, dim]

 private:
  static constexpr int64_t kScales = 16;

  template <typename S, typename Numbered>
  void SumUp(const UpdateMember<T>& m, const UpdatePart<T>& part, int64_t task,
             const Numbered& numbered, GradSums<T, S>* sums) {
    const BagPlan& plan = *part.plan;
    const int64_t* const offsets = plan.offsets();
    const int64_t* const ids = plan.ids();
    const int64_t* const bag_of = plan.bag_of();
    const Sum<T>* const weights =
        part.weights == nullptr ? nullptr : part.weights->weights();
    const Sum<T>* const divisors =
        part.weights == nullptr ? nullptr : part.weights->divisors();
    sums->Reset(divisors != nullptr               ? RowScale::kDivided
                : weights != nullptr              ? RowScale::kWeight
                : part.combiner == Combiner::kSum ? RowScale::kNone
                                                  : RowScale::kFactor,
                plan.size());
    // A gradient that is zero: one more changes no sum.
    T* const zero = zero_.Reserve(m.dim);
    std::fill_n(zero, m.dim, T(0));
    const bool zeros = part.zero_filled && plan.any_filled();
    Sum<T> scales[kScales];
    for (int64_t n = 0; n < kScales; ++n) {
      scales[n] = static_cast<S>(GradScale(part.combiner, n));
    }
    const auto scale = [&](int64_t b) {
      const int64_t n = offsets[b + 1] - offsets[b];
      return n < kScales ? scales[n]
                         : static_cast<Sum<T>>(
                               static_cast<S>(GradScale(part.combiner, n)));
    };
    // Entry by entry, since how many a bag has nobody could foretell.
    if (part.filter == nullptr && m.tasks == 1 && weights == nullptr) {
      const T** const grads = sums->grads();
      for (int64_t e = 0; e < plan.size(); ++e) {
        const T* const either[] = {part.row(bag_of[e], m.dim), zero};
        grads[e] = either[zeros && plan.filled(bag_of[e])];
      }
      if (part.combiner != Combiner::kSum) {
        Sum<T>* const factors = sums->factors();
        for (int64_t e = 0; e < plan.size(); ++e) {
          factors[e] = scale(bag_of[e]);
        }
      }
      sums->Build(ids, plan.size(), m.rows, m.dim, {grads, nullptr, 0},
                  numbered);
      return;
    }
    for (int64_t e = 0; e < plan.size(); ++e) {
      int64_t id = ids[e];
      if (part.filter != nullptr && !part.filter->Keep(id, &id)) continue;
      if (m.tasks != 1 && TaskOf(id, m.tasks) != task) continue;
      const int64_t b = bag_of[e];
      const T* const grad = zeros && plan.filled(b) ? zero : part.row(b, m.dim);
      if (weights != nullptr) {
        sums->Add(id, grad, weights[e],
                  divisors == nullptr ? Sum<T>(1) : divisors[b]);
        continue;
      }
      sums->Add(id, grad, scale(b));
    }
    sums->Build(m.rows, m.dim, numbered);
  }

  GradSums<T, T> sums_;
  GradSums<T, Sum<T>> wide_;  // of half types
  Buffer<T> narrow_;
  Buffer<T> zero_;
  bool widened_ = false;
};

}  // namespace update_internal
}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_BAG_SUMS_H_
