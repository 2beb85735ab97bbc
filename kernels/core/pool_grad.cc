#include "kernels/core/pool_grad.h"

#include <algorithm>
#include <type_traits>
#include <vector>

namespace picasso {
namespace {

template <typename T, typename S>
void SetScaled(S* to, const T* row, S scale, int64_t dim) {
  for (int64_t k = 0; k < dim; ++k) to[k] = static_cast<S>(row[k]) * scale;
}

template <typename T, typename S>
void AddScaled(S* to, const T* row, S scale, int64_t dim) {
  for (int64_t k = 0; k < dim; ++k) {
    to[k] = to[k] + static_cast<S>(row[k]) * scale;
  }
}

// Sums in S at `out`.
template <typename T, typename S, typename Position, typename Segment>
PoolGradError Scatter(const PoolGradMember<T>& m, S* out) {
  const IdsReader<Position> positions(m.positions);
  const IdsReader<Segment> segments(m.segments);
  const int64_t count = m.positions.size;
  if (segments[count - 1] >= m.bags) return {PoolGradError::kTooFewBags, 0};
  std::vector<int64_t> sizes;  // of the bags
  if (m.combiner != Combiner::kSum) {
    sizes.assign(m.bags, 0);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t bag = segments[i];
      if (!InRange(bag, m.bags)) return {PoolGradError::kSegment, bag};
      ++sizes[bag];
    }
  }
  std::fill_n(out, m.rows * m.dim, S(0));
  std::vector<char> written(m.sums_in_type ? m.rows : 0);
  S scale(1);
  int64_t known = -1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t row = positions[i], bag = segments[i];
    if (!InRange(row, m.rows)) return {PoolGradError::kPosition, row};
    if (!InRange(bag, m.bags)) return {PoolGradError::kSegment, bag};
    if (!sizes.empty() && sizes[bag] != known) {
      known = sizes[bag];
      scale = static_cast<S>(GradScale(m.combiner, known));
    }
    const T* const grad = m.grad + bag * m.dim;
    if (m.sums_in_type && !written[row]) {
      written[row] = 1;
      SetScaled<T, S>(out + row * m.dim, grad, scale, m.dim);
    } else {
      AddScaled<T, S>(out + row * m.dim, grad, scale, m.dim);
    }
  }
  return {};
}

template <typename T, typename S>
PoolGradError ScatterAny(const PoolGradMember<T>& m, S* out) {
  if (m.positions.is_int64) {
    return m.segments.is_int64 ? Scatter<T, S, int64_t, int64_t>(m, out)
                               : Scatter<T, S, int64_t, int32_t>(m, out);
  }
  return m.segments.is_int64 ? Scatter<T, S, int32_t, int64_t>(m, out)
                             : Scatter<T, S, int32_t, int32_t>(m, out);
}

}  // namespace

template <typename T>
PoolGradError PoolGradient(const PoolGradMember<T>& m) {
  if (m.rows == 0) return {};
  if (m.positions.size == 0) {
    std::fill_n(m.out, m.rows * m.dim, T(0));
    return {};
  }
  if constexpr (!std::is_same_v<T, Sum<T>>) {
    if (!m.sums_in_type) {
      std::vector<Sum<T>> sums(m.rows * m.dim);
      const PoolGradError error = ScatterAny<T, Sum<T>>(m, sums.data());
      for (size_t k = 0; k < sums.size(); ++k) {
        m.out[k] = static_cast<T>(sums[k]);
      }
      return error;
    }
  }
  return ScatterAny<T, T>(m, m.out);
}

#define INSTANTIATE(T) \
  template PoolGradError PoolGradient<T>(const PoolGradMember<T>&)
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(Eigen::half);
INSTANTIATE(Eigen::bfloat16);
#undef INSTANTIATE

}  // namespace picasso
