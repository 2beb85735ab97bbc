// The loops of dot_interaction.h; included into a namespace by one .cc file per
// instruction set. Vectors are types with T, V, kLanes, Set, Fma, Low and High:
// those of 32 bytes, and what the file defines besides. Nothing of the standard
// library may be used here: a function of it compiled for one instruction set
// could be linked for all.

#include "kernels/core/dot_vectors.h"

constexpr int kRows = 8;  // of the output, computed at once

// Vectors need not be aligned.
template <typename K>
inline typename K::V Load(const typename K::T* from) {
  typename K::V value;
  __builtin_memcpy(&value, from, sizeof(value));
  return value;
}

template <typename K>
inline void Store(typename K::T* to, typename K::V value) {
  __builtin_memcpy(to, &value, sizeof(value));
}

// Field rows of example b, with `dim` padded to vectors (with zeros) if it has
// to be: then they lie in `pad`.
template <typename K>
int64_t Rows(const FieldRows<typename K::T>& in, int64_t fields, int64_t dim,
             int64_t b, typename K::T* pad, const typename K::T** rows) {
  const int64_t padded = (dim + K::kLanes - 1) / K::kLanes * K::kLanes;
  for (int64_t f = 0; f < fields; ++f) {
    rows[f] = in.begin[f] + b * in.stride[f];
    if (padded == dim) continue;
    typename K::T* const to = pad + f * padded;
    for (int64_t k = 0; k < dim; ++k) to[k] = rows[f][k];
    for (int64_t k = dim; k < padded; ++k) to[k] = 0;
    rows[f] = to;
  }
  return padded;
}

// Asks for fields [i, i + kRows) of example b: they lie too far apart for
// hardware to follow.
template <typename T>
inline void Prefetch(const FieldRows<T>& in, int64_t fields, int64_t dim,
                     int64_t b, int64_t i) {
  constexpr int64_t kLine = 64 / sizeof(T);
  for (int64_t f = i; f < i + kRows && f < fields; ++f) {
    const T* const row = in.begin[f] + b * in.stride[f];
    for (int64_t k = 0; k < dim; k += kLine) __builtin_prefetch(row + k);
  }
}

// kLanes rows by kLanes columns: to[k * stride + r] = rows[r][k]. Each turn
// shuffles the two halves of the vectors into each other.
template <typename K>
inline void Transpose(const typename K::T* const* rows, typename K::T* to,
                      int64_t stride) {
  constexpr int n = K::kLanes;
  typename K::V a[n], b[n];
#pragma GCC unroll 16
  for (int r = 0; r < n; ++r) a[r] = Load<K>(rows[r]);
#pragma GCC unroll 4
  for (int turn = 1; turn < n; turn *= 2) {
#pragma GCC unroll 8
    for (int r = 0; r < n / 2; ++r) {
      b[2 * r] = K::Low(a[r], a[r + n / 2]);
      b[2 * r + 1] = K::High(a[r], a[r + n / 2]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < n; ++r) a[r] = b[r];
  }
#pragma GCC unroll 16
  for (int k = 0; k < n; ++k) Store<K>(to + k * stride, a[k]);
}

// Products of fields [i, i + R) with all kept partners, into `out` of this
// example, which ends at `end`.
template <typename K, int R>
void ForwardRows(const PairLayout& layout, int64_t dim,
                 const typename K::T* const* rows, int64_t i,
                 const typename K::T* columns, int64_t stride,
                 typename K::T* out, typename K::T* end) {
  constexpr int n = K::kLanes;
  const typename K::T* from[R];
  for (int r = 0; r < R; ++r) from[r] = rows[i + r];
  const int64_t last =
      i + R - 1 + (layout.self ? 1 : 0);  // partners of the last
  // The last partners first: a store may go beyond its row, into what is
  // written later.
  for (int64_t j = last > 0 ? (last - 1) / n * n : -1; j >= 0; j -= n) {
    typename K::V sums[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = typename K::V{};
    const typename K::T* column = columns + j;
    for (int64_t k = 0; k < dim; ++k, column += stride) {
      const typename K::V partners = Load<K>(column);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sums[r] = K::Fma(K::Set(from[r][k]), partners, sums[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) {
      const int64_t count = i + r + (layout.self ? 1 : 0) - j;
      if (count <= 0) continue;
      typename K::T* const to = out + layout.row(i + r) + j;
      if (end - to >= n) {
        Store<K>(to, sums[r]);
        continue;
      }
      typename K::T some[n];
      Store<K>(some, sums[r]);
      for (int64_t c = 0; c < count; ++c) to[c] = some[c];
    }
  }
  if (!layout.full) return;
  for (int64_t r = i; r < i + R; ++r) {
    for (int64_t j = r + (layout.self ? 1 : 0); j < layout.fields; ++j) {
      out[r * layout.fields + j] = 0;
    }
  }
}

template <typename K>
void ForwardLoop(const DotForward<typename K::T>& job, int64_t begin,
                 int64_t end, typename K::T* scratch,
                 const typename K::T** rows) {
  typedef typename K::T T;
  constexpr int n = K::kLanes;
  const PairLayout layout = job.layout;
  const int64_t fields = layout.fields, size = layout.size();
  const int64_t stride = (fields + n - 1) / n * n;
  const int64_t padded = (job.dim + n - 1) / n * n;
  T* const pad = scratch;
  T* const columns = pad + padded * fields;
  T* const zeros = columns + padded * stride;
  for (int64_t k = 0; k < padded; ++k) zeros[k] = 0;
  for (int64_t b = begin; b < end; ++b) {
    Rows<K>(job.in, fields, job.dim, b, pad, rows);
    for (int64_t f = 0; f < fields; f += n) {
      const T* some[n];
      for (int r = 0; r < n; ++r)
        some[r] = f + r < fields ? rows[f + r] : zeros;
      for (int64_t k = 0; k < padded; k += n) {
        Transpose<K>(some, columns + k * stride + f, stride);
        for (int r = 0; r < n; ++r) some[r] += n;
      }
    }
    T* const out = job.out + b * size;
    const int64_t next = b + 1 < end ? b + 1 : b;
    for (int64_t i = 0; i < fields; i += kRows) {
      Prefetch(job.in, fields, job.dim, next, i);
      const auto run = [&](auto* rows_of) {
        rows_of(layout, job.dim, rows, i, columns, stride, out, out + size);
      };
      switch (fields - i < kRows ? fields - i : kRows) {
        case 1:
          run(ForwardRows<K, 1>);
          break;
        case 2:
          run(ForwardRows<K, 2>);
          break;
        case 3:
          run(ForwardRows<K, 3>);
          break;
        case 4:
          run(ForwardRows<K, 4>);
          break;
        case 5:
          run(ForwardRows<K, 5>);
          break;
        case 6:
          run(ForwardRows<K, 6>);
          break;
        case 7:
          run(ForwardRows<K, 7>);
          break;
        default:
          run(ForwardRows<K, 8>);
          break;
      }
    }
  }
}

// The gradient of fields [i, i + R).
template <typename K, int R>
void BackwardRows(const PairLayout& layout, int64_t dim,
                  const typename K::T* const* rows, int64_t i,
                  const typename K::T* grad, typename K::T* out) {
  typedef typename K::T T;
  typedef typename K::V V;
  const int64_t fields = layout.fields;
  const T* mine[R];  // gradients of a field's own pairs
  for (int r = 0; r < R; ++r) mine[r] = grad + layout.row(i + r);
  for (int64_t d = 0; d < dim; d += K::kLanes) {
    V sums[R];
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) sums[r] = V{};
    for (int64_t j = 0; j < i; ++j) {
      const V other = Load<K>(rows[j] + d);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sums[r] = K::Fma(K::Set(mine[r][j]), other, sums[r]);
      }
    }
#pragma GCC unroll 8
    for (int q = 0; q < R; ++q) {
      const V other = Load<K>(rows[i + q] + d);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        if (q == r) {
          if (!layout.self) continue;
          const T g = mine[r][i + r];
          sums[r] = K::Fma(K::Set(g + g), other, sums[r]);
        } else {
          const T g = q < r ? mine[r][i + q] : mine[q][i + r];
          sums[r] = K::Fma(K::Set(g), other, sums[r]);
        }
      }
    }
    for (int64_t j = i + R; j < fields; ++j) {
      const V other = Load<K>(rows[j] + d);
      const T* const theirs = grad + layout.row(j) + i;
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        sums[r] = K::Fma(K::Set(theirs[r]), other, sums[r]);
      }
    }
#pragma GCC unroll 8
    for (int r = 0; r < R; ++r) Store<K>(out + r * dim + d, sums[r]);
  }
}

template <typename K>
void BackwardLoop(const DotBackward<typename K::T>& job, int64_t begin,
                  int64_t end, typename K::T* scratch,
                  const typename K::T** rows) {
  typedef typename K::T T;
  const PairLayout layout = job.layout;
  const int64_t fields = layout.fields, size = layout.size();
  for (int64_t b = begin; b < end; ++b) {
    const int64_t padded = Rows<K>(job.in, fields, job.dim, b, scratch, rows);
    T* const result = job.out + b * fields * job.dim;
    T* const out = padded == job.dim ? result : scratch + padded * fields;
    const T* const grad = job.grad + b * size;
    const int64_t next = b + 1 < end ? b + 1 : b;
    for (int64_t i = 0; i < fields; i += kRows) {
      Prefetch(job.in, fields, job.dim, next, i);
      const auto run = [&](auto* rows_of) {
        rows_of(layout, padded, rows, i, grad, out + i * padded);
      };
      switch (fields - i < kRows ? fields - i : kRows) {
        case 1:
          run(BackwardRows<K, 1>);
          break;
        case 2:
          run(BackwardRows<K, 2>);
          break;
        case 3:
          run(BackwardRows<K, 3>);
          break;
        case 4:
          run(BackwardRows<K, 4>);
          break;
        case 5:
          run(BackwardRows<K, 5>);
          break;
        case 6:
          run(BackwardRows<K, 6>);
          break;
        case 7:
          run(BackwardRows<K, 7>);
          break;
        default:
          run(BackwardRows<K, 8>);
          break;
      }
    }
    if (out == result) continue;
    for (int64_t f = 0; f < fields; ++f) {
      for (int64_t k = 0; k < job.dim; ++k) {
        result[f * job.dim + k] = out[f * padded + k];
      }
    }
  }
}
