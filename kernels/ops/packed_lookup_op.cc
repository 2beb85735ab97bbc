#include <numeric>
#include <string>
#include <unordered_set>
#include <vector>

#include "kernels/core/lookup.h"
#include "kernels/core/pool.h"
#include "kernels/core/pool_parts.h"
#include "kernels/ops/bags_layout.h"
#include "kernels/ops/pack_common.h"
#include "kernels/ops/packed_kernel.h"
#include "kernels/ops/partition_layout.h"
#include "kernels/ops/variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::PartialTensorShape;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
namespace errors = tensorflow::errors;

// See register_ops.cc for the op's contract.
template <typename T>
class PackedLookupOp : public OpKernel {
 public:
  explicit PackedLookupOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    int sources = 0;
    std::string pack;
    std::vector<tensorflow::DataType> id_types;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &tables_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tids", &id_types));
    sources = id_types.size();
    OP_REQUIRES_OK(ctx, ctx->GetAttr("D", &dense_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("K", &outputs_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("member_table", &member_table_));
    const size_t members = member_table_.size();
    OP_REQUIRES_OK(ctx, layout_.Init(ctx, members, sources));
    OP_REQUIRES_OK(ctx,
                   bags_layout_.Init(ctx, members, layout_, BagsUse::kForward));
    OP_REQUIRES_OK(ctx, partition_layout_.Init(ctx, members));
    OP_REQUIRES_OK(ctx, InitPartTables(ctx));
    first_sparse_ = tables_ + sources;
    OP_REQUIRES_OK(ctx, GetList(ctx, "member_shape", members, &member_shape_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "ids_shape", members, &ids_shape_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "member_name", members, &member_name_));
    OP_REQUIRES_OK(ctx,
                   GetList(ctx, "output_members", outputs_, &output_members_));
    OP_REQUIRES_OK(ctx,
                   GetList(ctx, "output_chunk_dims", outputs_, &chunk_dims_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "output_stack", outputs_, &stack_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape_members", &shape_members_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("cast_rows", &cast_rows_));
    OP_REQUIRES(ctx, !cast_rows_ || kCast != RowCast::kNone,
                errors::InvalidArgument("Rows are cast to half and bfloat16 "
                                        "alone."));
    for (size_t i = 0; i < members; ++i) {
      const int t = member_table_[i];
      OP_REQUIRES(
          ctx, t >= 0 ? t < tables_ && layout_.source(i) >= 0 : -1 - t < dense_,
          errors::InvalidArgument("Member ", i, " reads table ", t, " of ",
                                  tables_, "."));
    }
    OP_REQUIRES(ctx,
                std::accumulate(output_members_.begin(), output_members_.end(),
                                size_t{0}) == members,
                errors::InvalidArgument(
                    "The outputs must hold every member exactly once."));
    for (int m : shape_members_) {
      OP_REQUIRES(
          ctx, 0 <= m && m < static_cast<int>(members) && member_table_[m] >= 0,
          errors::InvalidArgument("No lookup is member ", m, "."));
    }
    std::vector<PartialTensorShape> shape_as;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("shape_as", &shape_as));
    if (!shape_as.empty()) {
      OP_REQUIRES_OK(
          ctx, GetList(ctx, "shape_as", shape_members_.size(), &shape_as_));
    }
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(OpKernelContext* ctx) override {
    LockedVariables<T> tables;
    OP_REQUIRES_OK(ctx, tables.Add(ctx, 0, tables_));
    OP_REQUIRES_OK(ctx, tables.Lock(ctx, Access::kRead));

    const int count = member_table_.size();
    std::vector<LookupMember> members(count);
    std::vector<TensorShape> shapes(count);
    std::vector<Bags<T>> bags;
    std::vector<TableParts> parts(part_tables_.size());
    OP_REQUIRES_OK(
        ctx, ForMembers(ctx, count, kFillCycles, [&](int i) {
          TF_RETURN_IF_ERROR(Fill(ctx, tables, i, &members[i], &shapes[i]));
          if (partition_layout_.of(i) == nullptr) return tensorflow::OkStatus();
          return FillParts(tables, i, &parts[i], &members[i]);
        }));
    OP_REQUIRES_OK(
        ctx, bags_layout_.Make<T>(
                 ctx, first_sparse_,
                 [&](int i) -> const IdsView& { return members[i].ids; },
                 [&](int i) -> const std::string& { return member_name_[i]; },
                 &bags));
    for (int i = 0; i < count; ++i) {
      if (!bags_layout_.is_bag(i)) continue;
      OP_REQUIRES_OK(ctx, FillBags(ctx, *tables.value(member_table_[i]), i,
                                   bags[bags_layout_.same_as(i)], &members[i],
                                   &shapes[i]));
    }
    int first = 0;
    for (int k = 0; k < outputs_; first += output_members_[k], ++k) {
      OP_REQUIRES_OK(ctx, Place(ctx, k, first, shapes.data() + first,
                                members.data() + first));
    }
    const BadId bad = PackedLookup(members.data(), count, PoolOf(ctx));
    if (bad.found()) {
      ctx->SetStatus(IdError(ctx, bad, members[bad.member]));
      return;
    }
    OP_REQUIRES_OK(ctx, WriteShapes(ctx, tables, shapes));
    ++counters_->executed;
  }

 private:
  // Of a member, but for its bags: it waits for memory.
  static constexpr int64_t kFillCycles = 500;
  static constexpr RowCast kCast =
      std::is_same_v<T, Eigen::half>       ? RowCast::kFloatToHalf
      : std::is_same_v<T, Eigen::bfloat16> ? RowCast::kFloatToBfloat16
                                           : RowCast::kNone;

  // The member's source and its logical shape, as its consumers see it.
  Status Fill(OpKernelContext* ctx, const LockedVariables<T>& tables, int i,
              LookupMember* member, TensorShape* shape) const {
    const int t = member_table_[i];
    if (t < 0) {
      const Tensor& dense = ctx->input(first_dense(ctx) - 1 - t);
      member->dense = static_cast<const char*>(dense.data());
      *shape = dense.shape();
      return tensorflow::OkStatus();
    }
    const Tensor& table = *tables.value(t);
    if (table.dims() < 1) {
      return errors::InvalidArgument("params must be at least 1 dimensional");
    }
    const tensorflow::DataType type =
        cast_rows_ ? tensorflow::DT_FLOAT
                   : tensorflow::DataTypeToEnum<T>::value;
    if (table.dtype() != type) {
      return errors::InvalidArgument(
          "Field '", member_name_[i], "' reads a variable of type ",
          tensorflow::DataTypeString(table.dtype()), ", expected ",
          tensorflow::DataTypeString(type), ".");
    }
    member->table = static_cast<const char*>(table.data());
    member->rows = table.dim_size(0);
    TF_RETURN_IF_ERROR(
        layout_.View(ctx, tables_, i, member->rows, &member->ids));
    int64_t row_elements = 1;
    for (int d = 1; d < table.dims(); ++d) row_elements *= table.dim_size(d);
    member->row_bytes = row_elements * tensorflow::DataTypeSize(type);
    if (cast_rows_) member->cast = kCast;
    if (bags_layout_.is_bag(i)) return tensorflow::OkStatus();
    return ShapeAs(ctx, table, member_shape_[i],
                   member->ids.size * row_elements, i, shape);
  }

  // The shape of member i's rows: as declared, else the ids' and a row's.
  Status ShapeAs(OpKernelContext* ctx, const Tensor& table,
                 const PartialTensorShape& declared, int64_t elements, int i,
                 TensorShape* shape) const {
    if (!declared.unknown_rank()) {
      return Resolve(declared, elements, i, shape);
    }
    *shape = ctx->input(tables_ + layout_.source(i)).shape();
    for (int d = 1; d < table.dims(); ++d) {
      TF_RETURN_IF_ERROR(shape->AddDimWithStatus(table.dim_size(d)));
    }
    return tensorflow::OkStatus();
  }

  Status InitPartTables(OpKernelConstruction* ctx) {
    std::vector<int> flat;
    TF_RETURN_IF_ERROR(ctx->GetAttr("partition_tables", &flat));
    const int count = member_table_.size();
    size_t next = 0;
    for (int i = 0; i < count; ++i) {
      const Partition* partition = partition_layout_.of(i);
      if (partition == nullptr) continue;
      part_tables_.resize(count);
      for (int64_t p = 0; p < partition->parts(); ++p, ++next) {
        const int table = next < flat.size() ? flat[next] : -1;
        if (table < 0 || table >= tables_ || member_table_[i] < 0) {
          return errors::InvalidArgument("Part ", p, " of member ", i,
                                         " reads table ", table, " of ",
                                         tables_, ".");
        }
        part_tables_[i].push_back(table);
      }
    }
    return tensorflow::OkStatus();
  }

  // The parts of a member whose table is one of several.
  Status FillParts(const LockedVariables<T>& tables, int i, TableParts* parts,
                   LookupMember* member) const {
    parts->partition = partition_layout_.of(i);
    for (const int t : part_tables_[i]) {
      const Tensor& table = *tables.value(t);
      int64_t row_elements = 1;
      for (int d = 1; d < table.dims(); ++d) row_elements *= table.dim_size(d);
      if (table.dims() < 1 ||
          table.dtype() != tensorflow::DataTypeToEnum<T>::value ||
          row_elements * static_cast<int64_t>(sizeof(T)) != member->row_bytes) {
        return errors::InvalidArgument(
            "The parts of field '", member_name_[i],
            "' differ in the type or shape of their rows: ",
            table.DebugString(0));
      }
      parts->parts.push_back(
          {static_cast<const char*>(table.data()), table.dim_size(0)});
    }
    member->parts = parts;
    return tensorflow::OkStatus();
  }

  // What Fill leaves open for a member that pools.
  Status FillBags(OpKernelContext* ctx, const Tensor& table, int i,
                  const Bags<T>& bags, LookupMember* member,
                  TensorShape* shape) const {
    member->pool = member->parts != nullptr ? &PoolRowsOfParts<T>
                   : cast_rows_             ? &PoolCastRows<T>
                                            : &PoolRows<T>;
    member->plan = bags.plan.get();
    member->combiner = bags_layout_.combiner(i);
    member->zero_filled = bags_layout_.zero_filled(i);
    if (bags.weighted) member->weights = &bags.weights;
    if (!member_shape_[i].unknown_rank()) {
      const int64_t row = member->written_bytes() / sizeof(T);
      return Resolve(member_shape_[i], bags.plan->bags() * row, i, shape);
    }
    TF_RETURN_IF_ERROR(
        bags_layout_.Shape(ctx, first_sparse_, i, *bags.plan, shape));
    for (int d = 1; d < table.dims(); ++d) {
      TF_RETURN_IF_ERROR(shape->AddDimWithStatus(table.dim_size(d)));
    }
    return tensorflow::OkStatus();
  }

  // Fills in the one unknown dimension of `partial`, as Reshape does.
  Status Resolve(const PartialTensorShape& partial, int64_t elements, int i,
                 TensorShape* shape) const {
    int64_t known = 1;
    int unknown = 0;
    for (int d = 0; d < partial.dims(); ++d) {
      const int64_t size = partial.dim_size(d);
      if (size < 0) {
        ++unknown;
      } else {
        known *= size;
      }
    }
    const bool fits = unknown == 0   ? known == elements
                      : unknown == 1 ? known > 0 && elements % known == 0
                                     : false;
    if (!fits) {
      return errors::InvalidArgument(
          "Field '", member_name_[i], "' has ", elements,
          " values, which do not fill shape ", partial.DebugString(), ".");
    }
    for (int d = 0; d < partial.dims(); ++d) {
      const int64_t size = partial.dim_size(d);
      TF_RETURN_IF_ERROR(
          shape->AddDimWithStatus(size < 0 ? elements / known : size));
    }
    return tensorflow::OkStatus();
  }

  // Allocates output k and gives its members their places in it.
  Status Place(OpKernelContext* ctx, int k, int first,
               const TensorShape* shapes, LookupMember* members) const {
    const int count = output_members_[k];
    const int rank = shapes[0].dims();
    const int axis = rank - chunk_dims_[k];
    if (axis < 0) {
      return errors::InvalidArgument("Field '", member_name_[first],
                                     "' has shape ", shapes[0].DebugString(),
                                     ", too few dimensions to concatenate.");
    }
    int64_t joined = 0;  // the concatenated dimension
    for (int j = 0; j < count; ++j) {
      bool same = shapes[j].dims() == rank;
      for (int d = 0; same && d < rank; ++d) {
        same = (d == axis && !stack_[k]) ||
               shapes[j].dim_size(d) == shapes[0].dim_size(d);
      }
      if (!same) {
        return errors::InvalidArgument(
            "Dimensions of inputs should match: field '", member_name_[first],
            "' has shape ", shapes[0].DebugString(), " and field '",
            member_name_[first + j], "' has shape ", shapes[j].DebugString());
      }
      if (!stack_[k] && axis < rank) joined += shapes[j].dim_size(axis);
    }
    TensorShape shape = shapes[0];
    if (stack_[k]) {
      TF_RETURN_IF_ERROR(shape.InsertDimWithStatus(axis, count));
    } else if (axis < rank) {
      TF_RETURN_IF_ERROR(shape.SetDimWithStatus(axis, joined));
    }
    Tensor* output = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(k, shape, &output));

    if (count == 1 && !stack_[k] && members[0].dense == nullptr) {
      // A lookup by itself: the axis does not matter, rows stay whole.
      members[0].outer = members[0].plan == nullptr ? members[0].ids.size
                                                    : members[0].plan->bags();
      members[0].chunk_bytes = members[0].written_bytes();
      members[0].output = static_cast<char*>(output->data());
      members[0].output_stride = members[0].chunk_bytes;
      return tensorflow::OkStatus();
    }
    int64_t outer = 1;
    for (int d = 0; d < axis; ++d) outer *= shapes[0].dim_size(d);
    char* to = static_cast<char*>(output->data());
    const int64_t stride =
        outer == 0 ? 0 : output->NumElements() / outer * sizeof(T);
    for (int j = 0; j < count; ++j) {
      LookupMember& m = members[j];
      m.outer = outer;
      m.chunk_bytes =
          outer == 0 ? 0 : shapes[j].num_elements() / outer * sizeof(T);
      m.output = to;
      m.output_stride = stride;
      to += m.chunk_bytes;
      if (m.dense == nullptr && m.row_bytes > 0 &&
          m.chunk_bytes % m.written_bytes() != 0) {
        return errors::InvalidArgument("Field '", member_name_[first + j],
                                       "' of shape ", shapes[j].DebugString(),
                                       " would have its rows cut.");
      }
    }
    return tensorflow::OkStatus();
  }

  Status WriteShapes(OpKernelContext* ctx, const LockedVariables<T>& tables,
                     const std::vector<TensorShape>& shapes) const {
    for (size_t s = 0; s < shape_members_.size(); ++s) {
      const int m = shape_members_[s];
      TensorShape shape = shapes[m];
      // Of bags, the shape that is not declared is not that of the ids.
      if (!shape_as_.empty() &&
          !(bags_layout_.is_bag(m) && shape_as_[s].unknown_rank())) {
        TensorShape as;
        TF_RETURN_IF_ERROR(ShapeAs(ctx, *tables.value(member_table_[m]),
                                   shape_as_[s], shape.num_elements(), m, &as));
        shape = as;
      }
      Tensor* output = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(
          outputs_ + s, TensorShape({shape.dims()}), &output));
      for (int d = 0; d < shape.dims(); ++d) {
        if (output->dtype() == tensorflow::DT_INT32) {
          output->vec<int32_t>()(d) = shape.dim_size(d);
        } else {
          output->vec<int64_t>()(d) = shape.dim_size(d);
        }
      }
    }
    return tensorflow::OkStatus();
  }

  // The position is given in the ids as the lookup saw them.
  Status IdError(OpKernelContext* ctx, const BadId& bad,
                 const LookupMember& member) const {
    const int i = bad.member;
    if (member.parts != nullptr) {
      return BadPartitionedIdError(IdsOf(member), *member.parts,
                                   member_name_[i]);
    }
    if (member.plan != nullptr) {
      return BadBagIdError(bad, *member.plan, member.rows, member_name_[i]);
    }
    TensorShape shape;
    if (ids_shape_[i].unknown_rank()) {
      shape = ctx->input(tables_ + layout_.source(i)).shape();
    } else {
      TF_RETURN_IF_ERROR(Resolve(ids_shape_[i], member.ids.size, i, &shape));
    }
    return BadIdError(bad, shape, member.rows, member_name_[i]);
  }

  // The ids that TensorFlow looks up: those of bags once each.
  static std::vector<int64_t> IdsOf(const LookupMember& member) {
    std::vector<int64_t> ids;
    if (member.plan != nullptr) {
      std::unordered_set<int64_t> seen;
      for (int64_t i = 0; i < member.plan->size(); ++i) {
        const int64_t id = member.plan->ids()[i];
        if (seen.insert(id).second) ids.push_back(id);
      }
      return ids;
    }
    for (int64_t i = 0; i < member.ids.size; ++i) {
      ids.push_back(member.ids.is_int64 ? IdsReader<int64_t>(member.ids)[i]
                                        : IdsReader<int32_t>(member.ids)[i]);
    }
    return ids;
  }

  int first_dense(OpKernelContext* ctx) const {
    return ctx->num_inputs() - dense_;
  }

  int tables_ = 0;
  int dense_ = 0;
  int outputs_ = 0;
  int first_sparse_ = 0;
  int placed_ =
      0;  // members that outputs hold; others are asked for their shape
  IdsLayout layout_;
  BagsLayout bags_layout_;
  PartitionLayout partition_layout_;
  std::vector<std::vector<int>> part_tables_;  // of members in parts
  std::vector<int> member_table_;
  std::vector<PartialTensorShape> member_shape_;
  std::vector<PartialTensorShape> ids_shape_;
  std::vector<std::string> member_name_;
  std::vector<int> output_members_;
  std::vector<int> chunk_dims_;
  std::vector<bool> stack_;
  std::vector<int> shape_members_;
  std::vector<PartialTensorShape> shape_as_;
  bool cast_rows_ = false;
  PackCounters* counters_ = nullptr;
};

PICASSO_REGISTER_FLOATS("PicassoPackedLookup", "dtype", PackedLookupOp);

}  // namespace picasso
