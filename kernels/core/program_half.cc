#include "kernels/core/program_impl.h"

namespace picasso {

template void RunProgram<Eigen::half>(const Program&,
                                      const ProgramMember<Eigen::half>*,
                                      int64_t, bool, const ParallelFor&);
template void RunProgram<Eigen::bfloat16>(const Program&,
                                          const ProgramMember<Eigen::bfloat16>*,
                                          int64_t, bool, const ParallelFor&);

}  // namespace picasso
