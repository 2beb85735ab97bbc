#include "kernels/core/program_impl.h"

namespace picasso {

template void RunProgram<float>(const Program&, const ProgramMember<float>*,
                                int64_t, bool, const ParallelFor&);

}  // namespace picasso
