#include "kernels/core/program_impl.h"

namespace picasso {

template void RunProgram<double>(const Program&, const ProgramMember<double>*,
                                 int64_t, bool, const ParallelFor&);

}  // namespace picasso
