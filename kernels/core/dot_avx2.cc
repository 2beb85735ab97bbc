#include <immintrin.h>

#include "kernels/core/dot_interaction.h"

// For the functions that follow; which runs is decided in dot_interaction.cc.
#pragma GCC target("avx2,fma")

namespace picasso {
namespace dot_avx2 {

#include "kernels/core/dot_impl.h"

extern const DotKernels kKernels = {"avx2", ForwardLoop<Float8>,
                                    ForwardLoop<Double4>, BackwardLoop<Float8>,
                                    BackwardLoop<Double4>};

}  // namespace dot_avx2
}  // namespace picasso
