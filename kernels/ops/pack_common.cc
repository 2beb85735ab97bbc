#include "kernels/ops/pack_common.h"

#include <map>
#include <memory>
#include <mutex>

#include "kernels/core/rows.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
namespace errors = tensorflow::errors;

PackCounters* CountersOf(const std::string& pack) {
  static auto* mutex = new std::mutex;
  static auto* counters =
      new std::map<std::string, std::unique_ptr<PackCounters>>;
  std::lock_guard<std::mutex> lock(*mutex);
  auto& entry = (*counters)[pack];
  if (entry == nullptr) entry = std::make_unique<PackCounters>();
  return entry.get();
}

Status IdsLayout::Init(OpKernelConstruction* ctx, int count, int sources) {
  TF_RETURN_IF_ERROR(GetList(ctx, "ids_source", count, &source_));
  TF_RETURN_IF_ERROR(GetList(ctx, "ids_begin", count, &begin_));
  TF_RETURN_IF_ERROR(GetList(ctx, "ids_width", count, &width_));
  TF_RETURN_IF_ERROR(GetList(ctx, "ids_narrow", count, &narrow_));
  std::vector<int> modes;
  TF_RETURN_IF_ERROR(ctx->GetAttr("ids_mode", &modes));
  if (modes.empty()) {
    mode_.assign(count, static_cast<int>(IdsMode::kPlain));
  } else {
    TF_RETURN_IF_ERROR(GetList(ctx, "ids_mode", count, &mode_));
  }
  for (int i = 0; i < count; ++i) {
    if (source_[i] < -1 || source_[i] >= sources || begin_[i] < 0 ||
        width_[i] == 0 || mode_[i] < 0 || mode_[i] >= kIdsModes) {
      return errors::InvalidArgument("Ids of member ", i, " are described by (",
                                     source_[i], ", ", begin_[i], ", ",
                                     width_[i], ") in mode ", mode_[i],
                                     ", with ", sources, " tensors of ids.");
    }
  }
  return tensorflow::OkStatus();
}

Status IdsLayout::View(OpKernelContext* ctx, int first, int i, int64_t rows,
                       IdsView* view) const {
  const Tensor& ids = ctx->input(first + source_[i]);
  view->is_int64 = ids.dtype() == tensorflow::DT_INT64;
  view->narrow = narrow_[i];
  view->mode = static_cast<IdsMode>(mode_[i]);
  view->rows = rows;
  view->data = ids.data();
  if (whole(i)) {
    view->size = ids.NumElements();
    return tensorflow::OkStatus();
  }
  if (!TensorShapeUtils::IsMatrix(ids.shape()) ||
      ids.dim_size(1) < begin_[i] + width_[i]) {
    return errors::InvalidArgument(
        "Ids tensor ", source_[i], " of shape ", ids.shape().DebugString(),
        " has no columns [", begin_[i], ", ", begin_[i] + width_[i], ").");
  }
  view->data = static_cast<const char*>(ids.data()) +
               begin_[i] * tensorflow::DataTypeSize(ids.dtype());
  view->width = width_[i];
  view->stride = ids.dim_size(1);
  view->size = ids.dim_size(0) * width_[i];
  return tensorflow::OkStatus();
}

ParallelFor PoolOf(OpKernelContext* ctx) {
  auto* pool = ctx->device()->tensorflow_cpu_worker_threads()->workers;
  return [pool](int64_t total, int64_t cost,
                const std::function<void(int64_t, int64_t)>& body) {
    pool->ParallelFor(total, cost, body);
  };
}

Status BadIdError(const BadId& bad, const TensorShape& ids_shape, int64_t rows,
                  const std::string& field) {
  // "[2,0]": the position as TensorFlow writes it, from the flat one.
  std::vector<int64_t> at(ids_shape.dims());
  int64_t rest = bad.position;
  for (int d = ids_shape.dims() - 1; d >= 0; --d) {
    at[d] = rest % ids_shape.dim_size(d);
    rest /= ids_shape.dim_size(d);
  }
  std::string position;
  for (size_t d = 0; d < at.size(); ++d) {
    position += (d == 0 ? "[" : ",") + std::to_string(at[d]);
  }
  if (!position.empty()) position += "]";
  return errors::InvalidArgument("indices", position, " = ", bad.value,
                                 " is not in [0, ", rows, ") (field '", field,
                                 "')");
}

}  // namespace picasso

extern "C" {

// For Python: how many kernels of `pack` were made, and how often they ran.
__attribute__((visibility("default"))) void PicassoPackCounts(
    const char* pack, int64_t* created, int64_t* executed) {
  const picasso::PackCounters* counters = picasso::CountersOf(pack);
  *created = counters->created.load();
  *executed = counters->executed.load();
}

// For tests: has packed ops use the loops of this instruction set; 0: there are
// none, or not for this CPU.
__attribute__((visibility("default"))) int PicassoUseRowKernels(
    const char* name) {
  return picasso::UseRowKernels(name);
}

}  // extern "C"
