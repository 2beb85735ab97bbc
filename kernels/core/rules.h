// One functor per update rule: a gradient row applied to one row of a table.
//
// TensorFlow evaluates an Eigen tensor expression per row: whole packets first,
// the rest of the row as scalars. The rules repeat that, operation by operation
// in the same order, so that the bits agree (Eigen's packet rsqrt, for one, is
// not the scalar one). TensorFlow takes other paths for rows of one element in
// some rules; these take them too.
//
// Most are element rules, written once for packets and scalars and run in one
// loop over the row: three times as fast as the expressions, which cost more to
// set up than a row of 16 values takes. Row rules keep the expressions.
#ifndef PICASSO_TF_KERNELS_CORE_RULES_H_
#define PICASSO_TF_KERNELS_CORE_RULES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <type_traits>

#include "kernels/core/update.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace picasso {

template <typename T>
using Row = Eigen::TensorMap<Eigen::Tensor<T, 1, Eigen::RowMajor>>;
template <typename T>
using ConstRow = Eigen::TensorMap<Eigen::Tensor<const T, 1, Eigen::RowMajor>>;

template <typename T>
inline T Sign(T x) {
  return x == T(0) ? T(0) : (x < T(0) ? T(-1) : T(1));
}

// What an element rule is given: a packet of T, or T itself.
namespace packet = Eigen::internal;

// TensorFlow's rsqrt. For float packets it is an estimate and one Newton step,
// h = (x * y) * y - 1, y' = (y * -0.5) * h + y, and the estimate itself where
// that is no number (zero and infinity). Written out here since GCC 12 turns
// the blend at the end of Eigen's into eight scalar ones where there is no
// AVX2, which doubles the time of an Adagrad row.
template <typename T, typename P>
inline P Rsqrt(const P& x) {
  using namespace packet;
  if constexpr (std::is_same_v<T, P>) {
    return Eigen::numext::rsqrt(x);
#if defined(EIGEN_VECTORIZE_AVX) && !defined(EIGEN_VECTORIZE_FMA) && \
    EIGEN_FAST_MATH
  } else if constexpr (std::is_same_v<P, Packet8f>) {
    const P estimate = _mm256_rsqrt_ps(x);
    const P h = padd(pmul(pmul(x, estimate), estimate), pset1<P>(-1.0f));
    const P refined = padd(pmul(pmul(estimate, pset1<P>(-0.5f)), h), estimate);
    const P no_number = _mm256_cmp_ps(refined, refined, _CMP_UNORD_Q);
    return por(pand(no_number, estimate), pandnot(refined, no_number));
#endif
  } else {
    return prsqrt(x);
  }
}

template <typename T>
struct RuleBase {
  RuleBase(const UpdateMember<T>& m, const RuleFlags& flags)
      : var(m.var), dim(m.dim), step(m.step), flags(flags) {
    std::copy_n(m.slots, kMaxSlots, slots);
    std::copy_n(m.hyper, kMaxHyper, hyper);
  }
  template <typename P>
  P all(T value) const {
    return packet::pset1<P>(value);
  }
  // For row rules.
  Row<T> var_row(int64_t row) const { return {var + row * dim, dim}; }
  Row<T> slot_row(int k, int64_t row) const {
    return {slots[k] + row * dim, dim};
  }
  ConstRow<T> grad_row(const T* g) const { return {g, dim}; }

  T* var;
  T* slots[kMaxSlots];
  T hyper[kMaxHyper];
  int64_t dim;
  int64_t step;
  RuleFlags flags;
};

// Runs an element rule over rows: row ids[i] takes the gradient at grads + i *
// dim. The rule has kSlots, Element(g, v, slots) and, if kOwnScalar, Scalar(g,
// v, slots) for rows of one element.
template <typename T, template <typename> class ElementRule>
struct ByElement : ElementRule<T> {
  using ElementRule<T>::ElementRule;

  void operator()(const int64_t* ids, int64_t count, const T* grads) const {
    // A copy that nothing points to: its fields stay in registers, where stores
    // to the row would have *this read again for every element.
    const ElementRule<T> rule = *this;
    for (int64_t i = 0; i < count; ++i) {
      Apply(rule, ids[i], grads + i * rule.dim);
    }
  }

 private:
  static void Apply(const ElementRule<T>& rule, int64_t row, const T* grad) {
    constexpr int kSlots = ElementRule<T>::kSlots;
    using P = typename packet::packet_traits<T>::type;
    constexpr int64_t kSize = packet::packet_traits<T>::Vectorizable
                                  ? packet::packet_traits<T>::size
                                  : 1;
    const int64_t dim = rule.dim;
    T* const var = rule.var + row * dim;
    T* slot[kMaxSlots] = {};
    for (int k = 0; k < kSlots; ++k) slot[k] = rule.slots[k] + row * dim;
    const bool writes_slots = kSlots > 0 && rule.flags.update_slots;
    int64_t i = 0;
    if constexpr (kSize > 1) {
      for (; i + kSize <= dim; i += kSize) {
        P v = packet::ploadu<P>(var + i);
        P s[kMaxSlots];
        for (int k = 0; k < kSlots; ++k) s[k] = packet::ploadu<P>(slot[k] + i);
        rule.Element(packet::ploadu<P>(grad + i), v, s);
        packet::pstoreu(var + i, v);
        if (!writes_slots) continue;
        for (int k = 0; k < kSlots; ++k) packet::pstoreu(slot[k] + i, s[k]);
      }
    }
    for (; i < dim; ++i) {
      T s[kMaxSlots] = {};
      for (int k = 0; k < kSlots; ++k) s[k] = slot[k][i];
      if constexpr (ElementRule<T>::kOwnScalar) {
        if (dim == 1) {
          rule.Scalar(grad[0], var[0], s);
        } else {
          rule.Element(grad[i], var[i], s);
        }
      } else {
        rule.Element(grad[i], var[i], s);
      }
      if (!writes_slots) continue;
      for (int k = 0; k < kSlots; ++k) slot[k][i] = s[k];
    }
  }
};

// Runs a row rule over rows.
template <typename RowRule>
struct ByRow : RowRule {
  using RowRule::RowRule;

  template <typename T>
  void operator()(const int64_t* ids, int64_t count, const T* grads) const {
    for (int64_t i = 0; i < count; ++i) {
      this->Apply(ids[i], grads + i * this->dim);
    }
  }
};

template <typename T>
struct ScatterAddRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 0;
  static constexpr bool kOwnScalar = false;

  template <typename P>
  void Element(const P& g, P& v, P*) const {
    v = packet::padd(v, g);
  }
};

template <typename T>
struct ScatterSubRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 0;
  static constexpr bool kOwnScalar = false;

  template <typename P>
  void Element(const P& g, P& v, P*) const {
    v = packet::psub(v, g);
  }
};

template <typename T>
struct AdagradRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 1;
  static constexpr bool kOwnScalar = true;

  template <typename P>
  void Element(const P& g, P& v, P* slot) const {
    using namespace packet;
    const P lr = this->template all<P>(this->hyper[0]);
    if (this->flags.update_slots) slot[0] = padd(slot[0], pmul(g, g));
    v = psub(v, pmul(pmul(lr, g), Rsqrt<T>(slot[0])));
  }

  void Scalar(T g, T& v, T* slot) const {
    if (this->flags.update_slots) slot[0] += g * g;
    v -= this->hyper[0] * g / Eigen::numext::sqrt(slot[0]);
  }
};

template <typename T>
struct AdagradV2Rule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 1;
  static constexpr bool kOwnScalar = false;

  template <typename P>
  void Element(const P& g, P& v, P* slot) const {
    using namespace packet;
    const P lr = this->template all<P>(this->hyper[0]);
    const P epsilon = this->template all<P>(this->hyper[1]);
    if (this->flags.update_slots) slot[0] = padd(slot[0], pmul(g, g));
    v = psub(v, pdiv(pmul(lr, g), padd(psqrt(slot[0]), epsilon)));
  }
};

template <typename T>
struct MomentumRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 1;
  static constexpr bool kOwnScalar = false;

  template <typename P>
  void Element(const P& g, P& v, P* slot) const {
    using namespace packet;
    const P lr = this->template all<P>(this->hyper[0]);
    const P momentum = this->template all<P>(this->hyper[1]);
    slot[0] = padd(pmul(slot[0], momentum), g);
    const P step = this->flags.use_nesterov
                       ? padd(pmul(lr, g), pmul(pmul(lr, momentum), slot[0]))
                       : pmul(lr, slot[0]);
    v = psub(v, step);
  }
};

template <typename T>
struct KerasMomentumRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 1;
  static constexpr bool kOwnScalar = false;

  template <typename P>
  void Element(const P& g, P& v, P* slot) const {
    using namespace packet;
    const P lr = this->template all<P>(this->hyper[0]);
    const P momentum = this->template all<P>(this->hyper[1]);
    slot[0] = psub(pmul(slot[0], momentum), pmul(g, lr));
    const P step = this->flags.use_nesterov
                       ? psub(pmul(slot[0], momentum), pmul(g, lr))
                       : slot[0];
    v = padd(v, step);
  }
};

template <typename T>
struct RMSPropRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 2;  // mean square, momentum
  static constexpr bool kOwnScalar = false;

  template <typename P>
  void Element(const P& g, P& v, P* slot) const {
    using namespace packet;
    const P lr = this->template all<P>(this->hyper[0]);
    const P rho = this->template all<P>(this->hyper[1]);
    const P rest = this->template all<P>(T(1) - this->hyper[1]);
    const P momentum = this->template all<P>(this->hyper[2]);
    const P epsilon = this->template all<P>(this->hyper[3]);
    slot[0] = padd(pmul(slot[0], rho), pmul(pmul(g, g), rest));
    const P scale = pmul(Rsqrt<T>(padd(slot[0], epsilon)), lr);
    slot[1] = padd(pmul(slot[1], momentum), pmul(scale, g));
    v = psub(v, slot[1]);
  }
};

template <typename T>
struct AdadeltaRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  static constexpr int kSlots = 2;  // squared gradients, squared updates
  static constexpr bool kOwnScalar = false;

  template <typename P>
  void Element(const P& g, P& v, P* slot) const {
    using namespace packet;
    const P lr = this->template all<P>(this->hyper[0]);
    const P rho = this->template all<P>(this->hyper[1]);
    const P rest = this->template all<P>(T(1) - this->hyper[1]);
    const P epsilon = this->template all<P>(this->hyper[2]);
    slot[0] = padd(pmul(slot[0], rho), pmul(pmul(g, g), rest));
    const P update = pmul(
        pmul(psqrt(padd(slot[1], epsilon)), Rsqrt<T>(padd(slot[0], epsilon))),
        g);
    v = psub(v, pmul(update, lr));
    slot[1] = padd(pmul(slot[1], rho), pmul(pmul(update, update), rest));
  }
};

// Ftrl and FtrlV2: the latter adds the shrinkage term to the gradient.
template <typename T, bool kShrinkage>
struct FtrlRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;

  void Apply(int64_t row, const T* grad) const {
    if (this->dim == 1) {
      ApplyScalar(row, grad[0]);
      return;
    }
    auto v = this->var_row(row);
    auto g = this->grad_row(grad);
    if constexpr (kShrinkage) {
      const T shrinkage = this->hyper[3];
      ApplyVector(row, g, g + static_cast<T>(2) * shrinkage * v);
    } else {
      ApplyVector(row, g, g);
    }
  }

 private:
  T power() const { return this->hyper[kShrinkage ? 4 : 3]; }

  template <typename Grad, typename Shrunk>
  void ApplyVector(int64_t row, const Grad& g, const Shrunk& shrunk) const {
    auto v = this->var_row(row);
    auto a = this->slot_row(0, row);
    auto linear = this->slot_row(1, row);
    const T lr = this->hyper[0], l1 = this->hyper[1], l2 = this->hyper[2];
    const T power = this->power();
    const bool by_lr = this->flags.multiply_linear_by_lr;
    const bool square_root = power == static_cast<T>(-0.5);
    auto new_a = a + g.square();
    if (by_lr) {
      if (square_root) {
        linear += shrunk * lr - (new_a.sqrt() - a.sqrt()) * v;
      } else {
        linear += shrunk * lr - (new_a.pow(-power) - a.pow(-power)) * v;
      }
    } else {
      if (square_root) {
        linear += shrunk - (new_a.sqrt() - a.sqrt()) / lr * v;
      } else {
        linear += shrunk - (new_a.pow(-power) - a.pow(-power)) / lr * v;
      }
    }
    const T bound = by_lr ? l1 * lr : l1;
    const T below = by_lr ? -l1 * lr : -l1;
    auto x = linear.cwiseMin(bound).cwiseMax(below) - linear;
    if (by_lr) {
      auto pull = linear.constant(static_cast<T>(2) * l2 * lr);
      if (square_root) {
        v = x / (new_a.sqrt() + pull);
      } else {
        v = x / (new_a.pow(-power) + pull);
      }
    } else {
      auto pull = linear.constant(static_cast<T>(2) * l2);
      if (square_root) {
        v = x / (new_a.sqrt() / new_a.constant(lr) + pull);
      } else {
        v = x / (new_a.pow(-power) / new_a.constant(lr) + pull);
      }
    }
    a += g.square();
  }

  void ApplyScalar(int64_t row, T grad) const {
    T& v = this->var[row];
    T& a = this->slots[0][row];
    T& linear = this->slots[1][row];
    const T lr = this->hyper[0], l1 = this->hyper[1], l2 = this->hyper[2];
    const T power = this->power();
    const bool by_lr = this->flags.multiply_linear_by_lr;
    using Eigen::numext::pow;
    T g = grad;
    if constexpr (kShrinkage) {
      g = grad + (static_cast<T>(2) * this->hyper[3] * v);
    }
    const T new_a = a + grad * grad;
    T sigma = pow(new_a, -power) - pow(a, -power);
    if (!by_lr) sigma /= lr;
    const T new_linear =
        by_lr ? linear + g * lr - sigma * v : linear + g - sigma * v;
    const bool square_root = power == static_cast<T>(-0.5);
    const T root =
        square_root ? Eigen::numext::sqrt(new_a) : pow(new_a, -power);
    const T quadratic = by_lr ? root + static_cast<T>(2) * l2 * lr
                              : root / lr + static_cast<T>(2) * l2;
    const T bound = by_lr ? l1 * lr : l1;
    const T below = by_lr ? -l1 * lr : -l1;
    const T clipped = std::max(std::min(new_linear, bound), below);
    v = (clipped - new_linear) / quadratic;
    a = new_a;
    linear = new_linear;
  }
};

template <typename T>
struct ProximalAdagradRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void Apply(int64_t row, const T* grad) const {
    auto v = this->var_row(row);
    auto a = this->slot_row(0, row);
    auto g = this->grad_row(grad);
    const T lr = this->hyper[0], l1 = this->hyper[1], l2 = this->hyper[2];
    if (this->dim == 1) {
      a(0) += g(0) * g(0);
      const T rate = lr / std::sqrt(a(0));
      T prox = v(0);
      prox -= rate * g(0);
      if (l1 > T(0)) {
        v(0) = Sign(prox) *
               std::max(std::abs(prox) - rate * l1, static_cast<T>(0.0)) /
               (1.0 + l2 * rate);
      } else {
        v(0) = prox / (1.0 + l2 * rate);
      }
      return;
    }
    a += g.square();
    auto rate = a.constant(lr) * a.rsqrt();
    v -= g * rate;
    if (l1 > T(0)) {
      v = v.sign() *
          (v.abs() - rate * v.constant(l1)).cwiseMax(static_cast<T>(0.0)) /
          (v.constant(1.0) + v.constant(l2) * rate);
    } else {
      v = v / (v.constant(1.0) + v.constant(l2) * rate);
    }
  }
};

template <typename T>
struct AdagradDARule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void Apply(int64_t row, const T* grad) const {
    auto v = this->var_row(row);
    auto ga = this->slot_row(0, row);
    auto da = this->slot_row(1, row);
    if (this->dim == 1) {
      ApplyScalar(row, grad[0]);
      return;
    }
    auto g = this->grad_row(grad);
    const T lr = this->hyper[0], l1 = this->hyper[1], l2 = this->hyper[2];
    const T step = static_cast<T>(this->step);
    const double step_lr = step * lr;
    ga += g;
    da += g.square();
    if (l1 > T(0)) {
      v = ga.constant(-1.0) * ga.sign() *
          ((ga.abs() / ga.constant(step)) - ga.constant(l1))
              .cwiseMax(static_cast<T>(0.0)) /
          (v.constant(l2) + da.sqrt() / v.constant(step_lr));
    } else {
      v = ga.constant(-1.0) * (ga / ga.constant(step)) /
          (v.constant(l2) + da.sqrt() / v.constant(step_lr));
    }
  }

 private:
  void ApplyScalar(int64_t row, T grad) const {
    T& v = this->var[row];
    T& ga = this->slots[0][row];
    T& da = this->slots[1][row];
    const double lr = this->hyper[0], l1 = this->hyper[1], l2 = this->hyper[2];
    const double step_l1 = this->step * l1;
    const double step_l2_lr = this->step * l2 * lr;
    const double g = grad;
    ga += g;
    da += g * g;
    if (l1 > 0) {
      v = Sign(-ga) * lr * std::max((std::abs(ga) - step_l1), 0.0) /
          (step_l2_lr + std::sqrt(da));
    } else {
      v = (-ga * lr) / (step_l2_lr + std::sqrt(da));
    }
  }
};

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_RULES_H_
