#include <immintrin.h>

#include "kernels/core/dot_interaction.h"

namespace picasso {
namespace dot_avx {

#include "kernels/core/dot_impl.h"

extern const DotKernels kKernels = {"avx", ForwardLoop<Float8>,
                                    ForwardLoop<Double4>, BackwardLoop<Float8>,
                                    BackwardLoop<Double4>};

}  // namespace dot_avx
}  // namespace picasso
