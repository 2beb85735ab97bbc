// One functor per update rule: a gradient row applied to one row of a table.
//
// Each evaluates the Eigen tensor expression that the TensorFlow kernel of the
// same name evaluates, in the same order, so that packets and tails see the
// same instructions and the bits agree (Eigen's packet rsqrt, for one, is not
// the scalar one). TensorFlow takes scalar paths for rows of one element in
// some rules; these take them too.
#ifndef PICASSO_TF_KERNELS_CORE_RULES_H_
#define PICASSO_TF_KERNELS_CORE_RULES_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

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

template <typename T>
struct RuleBase {
  RuleBase(const UpdateMember<T>& m, const RuleFlags& flags)
      : m(m), flags(flags) {}
  Row<T> var(int64_t row) const { return {m.var + row * m.dim, m.dim}; }
  Row<T> slot(int k, int64_t row) const {
    return {m.slots[k] + row * m.dim, m.dim};
  }
  ConstRow<T> grad(const T* g) const { return {g, m.dim}; }
  T hyper(int k) const { return m.hyper[k]; }

  const UpdateMember<T>& m;
  const RuleFlags& flags;
};

template <typename T>
struct ScatterAddRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    this->var(row) += this->grad(grad);
  }
};

template <typename T>
struct ScatterSubRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    this->var(row) -= this->grad(grad);
  }
};

template <typename T>
struct AdagradRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto a = this->slot(0, row);
    auto g = this->grad(grad);
    const T lr = this->hyper(0);
    if (this->m.dim == 1) {
      if (this->flags.update_slots) a(0) += g(0) * g(0);
      v(0) -= lr * g(0) / Eigen::numext::sqrt(a(0));
      return;
    }
    if (this->flags.update_slots) a += g.square();
    v -= g.constant(lr) * g * a.rsqrt();
  }
};

template <typename T>
struct AdagradV2Rule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto a = this->slot(0, row);
    auto g = this->grad(grad);
    const T lr = this->hyper(0);
    const T epsilon = this->hyper(1);
    if (this->m.dim == 1) {
      if (this->flags.update_slots) a(0) += g(0) * g(0);
      v(0) -= lr * g(0) / (Eigen::numext::sqrt(a(0)) + epsilon);
      return;
    }
    if (this->flags.update_slots) a += g.square();
    v -= g.constant(lr) * g / (a.sqrt() + a.constant(epsilon));
  }
};

template <typename T>
struct MomentumRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto a = this->slot(0, row);
    auto g = this->grad(grad);
    const T lr = this->hyper(0);
    const T momentum = this->hyper(1);
    a = a * a.constant(momentum) + g;
    if (this->flags.use_nesterov) {
      v -= g.constant(lr) * g + a.constant(lr) * a.constant(momentum) * a;
    } else {
      v -= a.constant(lr) * a;
    }
  }
};

template <typename T>
struct KerasMomentumRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto a = this->slot(0, row);
    auto g = this->grad(grad);
    const T lr = this->hyper(0);
    const T momentum = this->hyper(1);
    a = a * a.constant(momentum) - g * g.constant(lr);
    if (this->flags.use_nesterov) {
      v += a * a.constant(momentum) - g * g.constant(lr);
    } else {
      v += a;
    }
  }
};

// Ftrl and FtrlV2: the latter adds the shrinkage term to the gradient.
template <typename T, bool kShrinkage>
struct FtrlRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;

  void operator()(int64_t row, const T* grad) const {
    if (this->m.dim == 1) {
      ApplyScalar(row, grad[0]);
      return;
    }
    auto v = this->var(row);
    auto g = this->grad(grad);
    if constexpr (kShrinkage) {
      const T shrinkage = this->hyper(3);
      Apply(row, g, g + static_cast<T>(2) * shrinkage * v);
    } else {
      Apply(row, g, g);
    }
  }

 private:
  T power() const { return this->hyper(kShrinkage ? 4 : 3); }

  template <typename Grad, typename Shrunk>
  void Apply(int64_t row, const Grad& g, const Shrunk& shrunk) const {
    auto v = this->var(row);
    auto a = this->slot(0, row);
    auto linear = this->slot(1, row);
    const T lr = this->hyper(0), l1 = this->hyper(1), l2 = this->hyper(2);
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
    T& v = this->m.var[row];
    T& a = this->m.slots[0][row];
    T& linear = this->m.slots[1][row];
    const T lr = this->hyper(0), l1 = this->hyper(1), l2 = this->hyper(2);
    const T power = this->power();
    const bool by_lr = this->flags.multiply_linear_by_lr;
    using Eigen::numext::pow;
    T g = grad;
    if constexpr (kShrinkage) {
      g = grad + (static_cast<T>(2) * this->hyper(3) * v);
    }
    const T new_a = a + grad * grad;
    T sigma = pow(new_a, -power) - pow(a, -power);
    if (!by_lr) sigma /= lr;
    const T new_linear = by_lr ? linear + g * lr - sigma * v
                               : linear + g - sigma * v;
    const bool square_root = power == static_cast<T>(-0.5);
    const T root = square_root ? Eigen::numext::sqrt(new_a)
                               : pow(new_a, -power);
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
struct RMSPropRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto ms = this->slot(0, row);
    auto mom = this->slot(1, row);
    auto g = this->grad(grad);
    const T lr = this->hyper(0), rho = this->hyper(1);
    const T momentum = this->hyper(2), epsilon = this->hyper(3);
    ms = ms * ms.constant(rho) + g.square() * g.constant(T(1) - rho);
    mom = mom * mom.constant(momentum) +
          (ms + ms.constant(epsilon)).rsqrt() * ms.constant(lr) * g;
    v -= mom;
  }
};

template <typename T>
struct AdadeltaRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto a = this->slot(0, row);
    auto a_update = this->slot(1, row);
    auto g = this->grad(grad);
    const T lr = this->hyper(0), rho = this->hyper(1);
    const T epsilon = this->hyper(2);
    a = a * a.constant(rho) + g.square() * g.constant(T(1) - rho);
    const auto update = (a_update + a_update.constant(epsilon)).sqrt() *
                        (a + a.constant(epsilon)).rsqrt() * g;
    v -= update * update.constant(lr);
    a_update = a_update * a_update.constant(rho) +
               update.square() * update.constant(T(1) - rho);
  }
};

template <typename T>
struct ProximalAdagradRule : RuleBase<T> {
  using RuleBase<T>::RuleBase;
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto a = this->slot(0, row);
    auto g = this->grad(grad);
    const T lr = this->hyper(0), l1 = this->hyper(1), l2 = this->hyper(2);
    if (this->m.dim == 1) {
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
  void operator()(int64_t row, const T* grad) const {
    auto v = this->var(row);
    auto ga = this->slot(0, row);
    auto da = this->slot(1, row);
    if (this->m.dim == 1) {
      ApplyScalar(row, grad[0]);
      return;
    }
    auto g = this->grad(grad);
    const T lr = this->hyper(0), l1 = this->hyper(1), l2 = this->hyper(2);
    const T step = static_cast<T>(this->m.step);
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
    T& v = this->m.var[row];
    T& ga = this->m.slots[0][row];
    T& da = this->m.slots[1][row];
    const double lr = this->hyper(0), l1 = this->hyper(1), l2 = this->hyper(2);
    const double step_l1 = this->m.step * l1;
    const double step_l2_lr = this->m.step * l2 * lr;
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
