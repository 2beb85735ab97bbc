// Weights of bags, as TensorFlow's weighted embedding_lookup_sparse uses them.
#ifndef PICASSO_TF_KERNELS_CORE_BAG_WEIGHTS_H_
#define PICASSO_TF_KERNELS_CORE_BAG_WEIGHTS_H_

#include <cmath>
#include <type_traits>
#include <vector>

#include "kernels/core/bags.h"
#include "unsupported/Eigen/CXX11/Tensor"

namespace picasso {

// Half types are pooled in float.
template <typename T>
using Sum = std::conditional_t<std::is_same_v<T, Eigen::half> ||
                                   std::is_same_v<T, Eigen::bfloat16>,
                               float, T>;

// The sum of `count` rows of `dim` values as SegmentSum computes it: the very
// expression, since Eigen decides the order. (It takes another one where it
// does not know the axis when compiled.)
template <typename S>
void SegmentSum(const S* rows, int64_t count, int64_t dim, S* to) {
  using Matrix = Eigen::TensorMap<Eigen::Tensor<const S, 2, Eigen::RowMajor>>;
  using Vector = Eigen::TensorMap<Eigen::Tensor<S, 1, Eigen::RowMajor>>;
  Vector out(to, dim);
  if (count == 1) {
    for (int64_t j = 0; j < dim; ++j) to[j] = rows[j];
    return;
  }
  const Matrix in(rows, count, dim);
  const Eigen::IndexList<Eigen::type2index<0>> axis;
  out = in.reduce(axis, Eigen::internal::SumReducer<S>());
}

template <typename S>
inline S DivNoNan(S x, S y) {
  return y == S(0) ? S(0) : x / y;
}

// One weight per entry of a plan, and what each bag is divided by.
template <typename S>
class BagWeights {
 public:
  // get(i): weight number i of the source. A default id has weight 1.
  template <typename Get>
  void Build(const BagPlan& plan, Combiner combiner, const Get& get) {
    weights_.resize(plan.size());
    for (int64_t e = 0; e < plan.size(); ++e) {
      const int64_t position = plan.positions()[e];
      weights_[e] = position < 0 ? S(1) : get(position);
    }
    if (combiner == Combiner::kSum) return;
    divisors_.assign(plan.bags(), S(0));
    std::vector<S> squares;
    for (int64_t b = 0; b < plan.bags(); ++b) {
      const int64_t from = plan.offsets()[b],
                    count = plan.offsets()[b + 1] - from;
      if (count == 0) continue;
      const S* weights = weights_.data() + from;
      if (combiner == Combiner::kMean) {
        SegmentSum(weights, count, 1, &divisors_[b]);
        continue;
      }
      squares.resize(count);
      for (int64_t i = 0; i < count; ++i) squares[i] = weights[i] * weights[i];
      SegmentSum(squares.data(), count, 1, &divisors_[b]);
      divisors_[b] = std::sqrt(divisors_[b]);
    }
  }

  const S* weights() const { return weights_.data(); }  // [plan.size()]
  // [plan.bags()]; null for sums.
  const S* divisors() const {
    return divisors_.empty() ? nullptr : divisors_.data();
  }

 private:
  std::vector<S> weights_;
  std::vector<S> divisors_;
};

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_BAG_WEIGHTS_H_
