#include "kernels/ops/partition_layout.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::Status;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

Status PartitionLayout::Init(OpKernelConstruction* ctx, int count) {
  std::vector<std::string> any, strategy;
  std::vector<int> parts;
  std::vector<int64_t> rows;
  TF_RETURN_IF_ERROR(ctx->GetAttr("partition_strategy", &any));
  if (any.empty()) return tensorflow::OkStatus();
  TF_RETURN_IF_ERROR(GetList(ctx, "partition_strategy", count, &strategy));
  TF_RETURN_IF_ERROR(GetList(ctx, "partition_parts", count, &parts));
  TF_RETURN_IF_ERROR(GetList(ctx, "partition_rows", count, &rows));
  for (int i = 0; i < count; ++i) {
    const bool div = strategy[i] == "div";
    if (parts[i] < 0 || (parts[i] > 0 && !div && strategy[i] != "mod") ||
        (div && rows[i] < parts[i])) {
      return errors::InvalidArgument("Member ", i, " has ", parts[i],
                                     " parts with ", rows[i], " rows, by '",
                                     strategy[i], "'.");
    }
    partitions_.emplace_back(
        div ? PartitionStrategy::kDiv : PartitionStrategy::kMod,
        std::max(parts[i], 1), rows[i]);
  }
  parts_ = parts;
  return tensorflow::OkStatus();
}

Status BadPartitionedIdError(const std::vector<int64_t>& ids,
                             const TableParts& table,
                             const std::string& field) {
  const int64_t count = table.parts.size();
  for (size_t i = 0; i < ids.size(); ++i) {
    const int64_t part = table.partition->Find(ids[i]).part;
    if (InRange(part, count)) continue;
    return errors::InvalidArgument("partitions[", i, "] = ", part,
                                   " is not in [0, ", count, ") (id ", ids[i],
                                   ", field '", field, "')");
  }
  for (int64_t p = 0; p < count; ++p) {
    int64_t before = 0;  // ids of this part
    for (const int64_t id : ids) {
      const Partition::Place place = table.partition->Find(id);
      if (place.part != p) continue;
      if (!InRange(place.row, table.parts[p].rows)) {
        return BadIdError({0, before, place.row}, TensorShape({before + 1}),
                          table.parts[p].rows, field);
      }
      ++before;
    }
  }
  return errors::Internal("No id of field '", field, "' is bad.");
}

}  // namespace picasso
