// Dot interaction: the products of all pairs of a batch's fields, of which the
// lower triangle is kept, and the gradient of that.
#ifndef PICASSO_TF_KERNELS_CORE_DOT_INTERACTION_H_
#define PICASSO_TF_KERNELS_CORE_DOT_INTERACTION_H_

#include <cstdint>

#include "kernels/core/common.h"

namespace picasso {

// Which pairs (i, j) of fields an example's output holds, by rows.
struct PairLayout {
  int64_t fields;  // F
  bool self;       // j <= i; else j < i
  bool full;  // rows of F elements, zero where there is no pair; else the pairs
              // alone

  int64_t size() const { return full ? fields * fields : row(fields); }
  // Where the pairs of field i begin.
  int64_t row(int64_t i) const {
    if (full) return i * fields;
    return self ? i * (i + 1) / 2 : i * (i - 1) / 2;
  }
};

// Fields of `dim` elements, each read in place: field f of example b begins at
// begin[f] + b * stride[f].
template <typename T>
struct FieldRows {
  const T* const* begin;  // [fields]
  const int64_t* stride;  // [fields]
};

// Examples [begin, end). out: [batch, layout.size()]. Each product is summed in
// the order of the elements, in T, from zero; where the CPU has FMA, products
// are not rounded before they are added. So bits depend on the CPU's vectors,
// as those of TensorFlow's matrix products do, but on nothing else.
template <typename T>
struct DotForward {
  PairLayout layout;
  int64_t dim;
  FieldRows<T> in;
  T* out;
};

// grad: [batch, layout.size()], of what DotForward gives; what is no pair in it
// counts as zero. out: [batch, fields, dim], of the fields. Each element is
// summed in the order of the fields; a field's product with itself has twice
// its gradient.
template <typename T>
struct DotBackward {
  PairLayout layout;
  int64_t dim;
  FieldRows<T> in;
  const T* grad;
  T* out;
};

// A row in memory that the loops below write and read: elements of one example.
int64_t DotScratchSize(int64_t fields, int64_t dim);

struct DotKernels {
  const char* name;
  // `scratch`: DotScratchSize elements; rows: [fields] pointers.
  void (*forward_float)(const DotForward<float>&, int64_t begin, int64_t end,
                        float* scratch, const float** rows);
  void (*forward_double)(const DotForward<double>&, int64_t begin, int64_t end,
                         double* scratch, const double** rows);
  void (*backward_float)(const DotBackward<float>&, int64_t begin, int64_t end,
                         float* scratch, const float** rows);
  void (*backward_double)(const DotBackward<double>&, int64_t begin,
                          int64_t end, double* scratch, const double** rows);
};

// For tests: the kernels "avx", "avx2" or "avx512" are used from now on; false:
// there are none, or not for this CPU. Not while kernels run.
bool UseDotKernels(const char* name);

template <typename T>
void DotInteraction(const DotForward<T>& job, int64_t batch,
                    const ParallelFor& parallel_for);

template <typename T>
void DotInteractionGrad(const DotBackward<T>& job, int64_t batch,
                        const ParallelFor& parallel_for);

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_DOT_INTERACTION_H_
