#include <immintrin.h>

#include "kernels/core/dot_interaction.h"

// For the functions that follow; which runs is decided in dot_interaction.cc.
#pragma GCC target("avx512f,avx512vl,fma")

namespace picasso {
namespace dot_avx512 {

struct Float16 {
  typedef float T;
  static constexpr int kLanes = 16;
  typedef float V __attribute__((vector_size(64)));
  typedef int32_t Mask __attribute__((vector_size(64)));
  static inline V Set(T x) { return _mm512_set1_ps(x); }
  static inline V Fma(V a, V b, V c) { return _mm512_fmadd_ps(a, b, c); }
  static inline V Low(V a, V b) {
    return __builtin_shuffle(
        a, b, Mask{0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23});
  }
  static inline V High(V a, V b) {
    return __builtin_shuffle(
        a, b,
        Mask{8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31});
  }
};

struct Double8 {
  typedef double T;
  static constexpr int kLanes = 8;
  typedef double V __attribute__((vector_size(64)));
  typedef int64_t Mask __attribute__((vector_size(64)));
  static inline V Set(T x) { return _mm512_set1_pd(x); }
  static inline V Fma(V a, V b, V c) { return _mm512_fmadd_pd(a, b, c); }
  static inline V Low(V a, V b) {
    return __builtin_shuffle(a, b, Mask{0, 8, 1, 9, 2, 10, 3, 11});
  }
  static inline V High(V a, V b) {
    return __builtin_shuffle(a, b, Mask{4, 12, 5, 13, 6, 14, 7, 15});
  }
};

#include "kernels/core/dot_impl.h"

template <typename Wide, typename Narrow>
void Forward(const DotForward<typename Wide::T>& job, int64_t begin,
             int64_t end, typename Wide::T* scratch,
             const typename Wide::T** rows) {
  if (job.dim % Wide::kLanes == 0 || job.layout.fields > Narrow::kLanes) {
    ForwardLoop<Wide>(job, begin, end, scratch, rows);
  } else {
    ForwardLoop<Narrow>(job, begin, end, scratch, rows);
  }
}

template <typename Wide, typename Narrow>
void Backward(const DotBackward<typename Wide::T>& job, int64_t begin,
              int64_t end, typename Wide::T* scratch,
              const typename Wide::T** rows) {
  // The fewer vectors, with what they are padded by.
  if (job.dim % Wide::kLanes == 0 || job.dim % Wide::kLanes > Narrow::kLanes) {
    BackwardLoop<Wide>(job, begin, end, scratch, rows);
  } else {
    BackwardLoop<Narrow>(job, begin, end, scratch, rows);
  }
}

extern const DotKernels kKernels = {
    "avx512", Forward<Float16, Float8>, Forward<Double8, Double4>,
    Backward<Float16, Float8>, Backward<Double8, Double4>};

}  // namespace dot_avx512
}  // namespace picasso
