// Vectors of 32 bytes for dot_impl.h; included into a namespace by one .cc file
// per instruction set, as that is.

struct Float8 {
  typedef float T;
  static constexpr int kLanes = 8;
  typedef float V __attribute__((vector_size(32)));
  typedef int32_t Mask __attribute__((vector_size(32)));
  static inline V Set(T x) { return _mm256_set1_ps(x); }
#ifdef __FMA__
  static inline V Fma(V a, V b, V c) { return _mm256_fmadd_ps(a, b, c); }
#else
  static inline V Fma(V a, V b, V c) { return a * b + c; }
#endif
  static inline V Low(V a, V b) {
    return __builtin_shuffle(a, b, Mask{0, 8, 1, 9, 2, 10, 3, 11});
  }
  static inline V High(V a, V b) {
    return __builtin_shuffle(a, b, Mask{4, 12, 5, 13, 6, 14, 7, 15});
  }
};

struct Double4 {
  typedef double T;
  static constexpr int kLanes = 4;
  typedef double V __attribute__((vector_size(32)));
  typedef int64_t Mask __attribute__((vector_size(32)));
  static inline V Set(T x) { return _mm256_set1_pd(x); }
#ifdef __FMA__
  static inline V Fma(V a, V b, V c) { return _mm256_fmadd_pd(a, b, c); }
#else
  static inline V Fma(V a, V b, V c) { return a * b + c; }
#endif
  static inline V Low(V a, V b) {
    return __builtin_shuffle(a, b, Mask{0, 4, 1, 5});
  }
  static inline V High(V a, V b) {
    return __builtin_shuffle(a, b, Mask{2, 6, 3, 7});
  }
};
