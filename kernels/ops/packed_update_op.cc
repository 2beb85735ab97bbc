#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/core/update.h"
#include "kernels/ops/bags_layout.h"
#include "kernels/ops/pack_common.h"
#include "kernels/ops/packed_kernel.h"
#include "kernels/ops/partition_layout.h"
#include "kernels/ops/variables.h"
#include "tensorflow/core/framework/op_kernel.h"

namespace picasso {

using tensorflow::OpInputList;
using tensorflow::OpKernel;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
namespace errors = tensorflow::errors;

// See register_ops.cc for the op's contract.
template <typename T>
class PackedUpdateOp : public OpKernel {
 public:
  explicit PackedUpdateOp(OpKernelConstruction* ctx) : OpKernel(ctx) {
    std::string rule, pack;
    std::vector<tensorflow::DataType> id_types;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("rule", &rule));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("N", &count_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Tids", &id_types));
    for (int r = 0; r < kRuleCount; ++r) {
      if (rule == kRules[r].name) rule_ = r;
    }
    OP_REQUIRES(ctx, rule_ >= 0,
                errors::InvalidArgument("Unknown update rule '", rule, "'."));
    const RuleInfo& info = kRules[rule_];
    OP_REQUIRES(ctx, !info.float_only || kFloatOrDouble,
                errors::Unimplemented("Rule '", rule,
                                      "' has no kernel for this type, as in "
                                      "TensorFlow."));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("update_slots", &flags_.update_slots));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_nesterov", &flags_.use_nesterov));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("multiply_linear_by_lr",
                                     &flags_.multiply_linear_by_lr));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("use_locking", &use_locking_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("sum_duplicates", &sum_duplicates_));
    int slots = 0, steps = 0;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("S", &slots));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("Z", &steps));
    OP_REQUIRES(ctx, slots == count_ * info.slots,
                errors::InvalidArgument("Rule '", rule, "' takes ", info.slots,
                                        " slots per variable, got ", slots,
                                        " for ", count_, " variables."));
    OP_REQUIRES(ctx, steps == (info.needs_step ? 1 : 0),
                errors::InvalidArgument("Rule '", rule, "' got ", steps,
                                        " step inputs."));
    OP_REQUIRES_OK(
        ctx, GetList(ctx, "hyper_index", count_ * info.hyper, &hyper_index_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "member_name", count_, &member_name_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "member_parts", count_, &member_parts_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "negate", count_, &negate_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "scale_index", count_, &scale_index_));
    parts_ = std::accumulate(member_parts_.begin(), member_parts_.end(), 0);
    for (int i = 0; i < count_; ++i) {
      first_part_.push_back(member_of_.size());
      member_of_.insert(member_of_.end(), member_parts_[i], i);
    }
    OP_REQUIRES_OK(ctx, layout_.Init(ctx, parts_, id_types.size()));
    OP_REQUIRES_OK(ctx,
                   bags_layout_.Init(ctx, parts_, layout_, BagsUse::kBackward));
    OP_REQUIRES_OK(ctx, partition_layout_.Init(ctx, parts_));
    OP_REQUIRES_OK(ctx, InitFilters(ctx));
    ids_sources_ = id_types.size();
    OP_REQUIRES_OK(ctx, GetList(ctx, "grad_source", parts_, &grad_source_));
    OP_REQUIRES_OK(ctx,
                   GetList(ctx, "grad_chunk_dims", parts_, &grad_chunk_dims_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "grad_begin", parts_, &grad_begin_));
    OP_REQUIRES_OK(ctx, GetList(ctx, "grad_size", parts_, &grad_size_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("grad_checked", &grad_checked_));
    OP_REQUIRES(ctx,
                grad_checked_.empty() ||
                    static_cast<int>(grad_checked_.size()) == parts_,
                errors::InvalidArgument("Attribute 'grad_checked' has ",
                                        grad_checked_.size(),
                                        " entries, expected 0 or ", parts_));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("pack", &pack));
    counters_ = CountersOf(pack);
    ++counters_->created;
  }

  void Compute(OpKernelContext* ctx) override {
    const RuleInfo& info = kRules[rule_];
    LockedVariables<T> vars;
    OP_REQUIRES_OK(ctx, vars.Add(ctx, 0, count_ * (1 + info.slots)));
    OP_REQUIRES_OK(ctx, vars.Lock(ctx, use_locking_ ? Access::kExclusiveWrite
                                                    : Access::kSparseWrite));

    OpInputList hyper, steps, grads;
    OP_REQUIRES_OK(ctx, ctx->input_list("hyper", &hyper));
    OP_REQUIRES_OK(ctx, ctx->input_list("steps", &steps));
    OP_REQUIRES_OK(ctx, ctx->input_list("grads", &grads));
    for (const Tensor& scalar : hyper) {
      OP_REQUIRES(ctx, TensorShapeUtils::IsScalar(scalar.shape()),
                  errors::InvalidArgument("A hyperparameter is not a scalar: ",
                                          scalar.shape().DebugString()));
    }
    const int first_ids =
        count_ * (1 + info.slots) + hyper.size() + steps.size() + grads.size();

    std::vector<UpdateMember<T>> members(count_);
    std::vector<UpdatePart<T>> parts(parts_);
    std::vector<Bags<T>> bags;
    std::vector<Tensor> spread(grad_checked_.empty() ? 0 : parts_);
    OP_REQUIRES_OK(
        ctx, ForMembers(ctx, count_, kFillCycles, [&](int i) {
          UpdateMember<T>& m = members[i];
          TF_RETURN_IF_ERROR(FillVariables(vars, i, &m));
          for (int h = 0; h < info.hyper; ++h) {
            m.hyper[h] =
                hyper[hyper_index_[i * info.hyper + h]].template scalar<T>()();
          }
          TF_RETURN_IF_ERROR(CheckHyper(m, member_name_[i]));
          if (info.needs_step) m.step = steps[0].template scalar<int64_t>()();
          m.sum_duplicates = sum_duplicates_;
          m.negate = negate_[i];
          m.scaled = scale_index_[i] >= 0;
          if (m.scaled) m.scale = hyper[scale_index_[i]].template scalar<T>()();
          m.parts = parts.data() + first_part_[i];
          m.part_count = member_parts_[i];
          for (int q = 0; q < member_parts_[i]; ++q) {
            const int p = first_part_[i] + q;
            TF_RETURN_IF_ERROR(
                layout_.View(ctx, first_ids, p, m.rows, &parts[p].ids));
            if (partition_layout_.of(p) != nullptr) {
              parts[p].filter = &filters_[p];
              m.sharers = filters_[p].partition->parts();
            }
          }
          return tensorflow::OkStatus();
        }));
    OP_REQUIRES_OK(ctx,
                   bags_layout_.Make<T>(
                       ctx, first_ids + ids_sources_,
                       [&](int p) -> const IdsView& { return parts[p].ids; },
                       [&](int p) -> const std::string& {
                         return member_name_[member_of_[p]];
                       },
                       &bags));
    for (int i = 0, p = 0; i < count_; ++i) {
      UpdateMember<T>& m = members[i];
      for (int q = 0; q < member_parts_[i]; ++q, ++p) {
        int64_t rows = parts[p].ids.size;
        if (bags_layout_.is_bag(p)) {
          const Bags<T>& made = bags[bags_layout_.same_as(p)];
          parts[p].plan = made.plan.get();
          parts[p].combiner = bags_layout_.combiner(p);
          parts[p].zero_filled = bags_layout_.zero_filled(p);
          parts[p].sums_in_type = kSparseSegmentGradInType;
          if (made.weighted) parts[p].weights = &made.weights;
          rows = made.plan->bags();
        }
        const Tensor* grad = &grads[grad_source_[p]];
        if (is_checked(p)) {
          OP_REQUIRES_OK(
              ctx, CheckGrad(ctx, ctx->input(first_ids + layout_.source(p)),
                             vars.value(i)->shape(), &grad, &spread[p]));
        }
        OP_REQUIRES_OK(
            ctx, FillGrad(*grad, p, rows, m.dim, member_name_[i], &parts[p]));
        m.ids += parts[p].size();
      }
      OP_REQUIRES(ctx, m.ids < (int64_t{1} << 30),
                  errors::InvalidArgument("Variable '", member_name_[i],
                                          "' gets ", m.ids,
                                          " gradient rows in one step, more "
                                          "than 2^30."));
    }
    const BadId bad =
        PackedUpdate<T>(static_cast<Rule>(rule_), flags_, members.data(),
                        count_, /*ordered=*/vars.aliased(), PoolOf(ctx));
    if (bad.found()) {
      const UpdateMember<T>& m = members[bad.member];
      const std::string& name = member_name_[bad.member];
      const int first = m.parts - parts.data();
      const TensorShape ids =
          is_checked(first)
              ? ctx->input(first_ids + layout_.source(first)).shape()
              : TensorShape({m.ids});
      ctx->SetStatus(m.part_count == 1 && m.parts[0].plan != nullptr
                         ? BadBagIdError(bad, *m.parts[0].plan, m.rows, name)
                         : BadIdError(bad, ids, m.rows, name));
      return;
    }
    ++counters_->executed;
  }

 private:
  // Of a member, but for its bags and gradients: it waits for memory.
  static constexpr int64_t kFillCycles = 500;
  static constexpr bool kFloatOrDouble =
      std::is_same_v<T, float> || std::is_same_v<T, double>;

  Status InitFilters(OpKernelConstruction* ctx) {
    if (!partition_layout_.any()) return tensorflow::OkStatus();
    std::vector<int> index;
    TF_RETURN_IF_ERROR(GetList(ctx, "partition_index", parts_, &index));
    filters_.resize(parts_);
    for (int p = 0; p < parts_; ++p) {
      const Partition* partition = partition_layout_.of(p);
      if (partition == nullptr) continue;
      if (index[p] < 0 || index[p] >= partition->parts()) {
        return errors::InvalidArgument("There is no part ", index[p], " of ",
                                       partition->parts(), ".");
      }
      filters_[p] = {partition, index[p]};
    }
    return tensorflow::OkStatus();
  }

  Status FillVariables(const LockedVariables<T>& vars, int i,
                       UpdateMember<T>* m) const {
    const int slots = kRules[rule_].slots;
    const Tensor& var = *vars.value(i);
    TF_RETURN_IF_ERROR(CheckVariable(var, var, i, "variable"));
    if (var.dims() < 1) {
      return errors::InvalidArgument("var must be at least 1 dimensional");
    }
    m->var = const_cast<T*>(var.flat<T>().data());
    m->rows = var.dim_size(0);
    m->dim = 1;
    for (int d = 1; d < var.dims(); ++d) m->dim *= var.dim_size(d);
    for (int k = 0; k < slots; ++k) {
      const Tensor& slot = *vars.value(count_ + i * slots + k);
      TF_RETURN_IF_ERROR(CheckVariable(slot, var, i, "slot"));
      m->slots[k] = const_cast<T*>(slot.flat<T>().data());
    }
    return tensorflow::OkStatus();
  }

  // The ranges that TensorFlow's kernels insist on.
  Status CheckHyper(const UpdateMember<T>& m, const std::string& name) const {
    const Rule rule = static_cast<Rule>(rule_);
    const bool ftrl = rule == Rule::kFtrl || rule == Rule::kFtrlV2;
    if (!ftrl && rule != Rule::kProximalAdagrad) return tensorflow::OkStatus();
    const T zero(0);
    const char* wrong = nullptr;
    if (!(m.hyper[0] > zero)) wrong = "lr is not a positive scalar";
    if (!(m.hyper[1] >= zero)) {
      wrong = "l1 regularization strength is not a non-negative scalar";
    }
    if (!(m.hyper[2] >= zero)) {
      wrong = "l2 regularization strength is not a non-negative scalar";
    }
    if (rule == Rule::kFtrlV2 && !(m.hyper[3] >= zero)) {
      wrong =
          "l2 shrinkage regularization strength is not a non-negative scalar";
    }
    if (ftrl && !(m.hyper[rule == Rule::kFtrlV2 ? 4 : 3] <= zero)) {
      wrong = "lr_power is not a non-positive scalar";
    }
    if (wrong == nullptr) return tensorflow::OkStatus();
    return errors::InvalidArgument(wrong, " (variable '", name, "')");
  }

  Status CheckVariable(const Tensor& value, const Tensor& var, int i,
                       const char* what) const {
    if (!value.IsInitialized()) {
      return errors::FailedPrecondition(
          "Attempting to use uninitialized variables: ", what, " of '",
          member_name_[i], "'");
    }
    if (value.dtype() != tensorflow::DataTypeToEnum<T>::value ||
        value.shape() != var.shape()) {
      return errors::InvalidArgument(
          "var and accum do not have the same shape and type: ", what, " of '",
          member_name_[i], "' is ", value.DebugString(0), ", the variable is ",
          var.DebugString(0));
    }
    return tensorflow::OkStatus();
  }

  bool is_checked(int p) const {
    return !grad_checked_.empty() && grad_checked_[p];
  }

  // What ResourceScatter* ask of the shapes of gradient and ids. A scalar is
  // spread to a row for each id, and without ids any gradient is none.
  static Status CheckGrad(OpKernelContext* ctx, const Tensor& ids,
                          const TensorShape& var, const Tensor** grad,
                          Tensor* spread) {
    const TensorShape& shape = (*grad)->shape();
    const bool scalar = TensorShapeUtils::IsScalar(shape);
    if (!scalar && shape.dims() != ids.dims() + var.dims() - 1) {
      return errors::InvalidArgument(
          "Must have updates.shape = indices.shape + params.shape[1:] or "
          "updates.shape = [], got updates.shape ",
          shape.DebugString(), ", indices.shape ", ids.shape().DebugString(),
          ", params.shape ", var.DebugString());
    }
    const bool none = ids.NumElements() == 0;
    if (!scalar && !none && !TensorShapeUtils::StartsWith(shape, ids.shape())) {
      return errors::InvalidArgument("The shape of indices (",
                                     ids.shape().DebugString(),
                                     ") must be a prefix of the shape of "
                                     "updates (",
                                     shape.DebugString(), ")");
    }
    if (!scalar && !none) return tensorflow::OkStatus();
    TensorShape rows = ids.shape();
    for (int d = 1; d < var.dims(); ++d) rows.AddDim(var.dim_size(d));
    TF_RETURN_IF_ERROR(
        ctx->allocate_temp(tensorflow::DataTypeToEnum<T>::value, rows, spread));
    if (!none) spread->flat<T>().setConstant((*grad)->template scalar<T>()());
    *grad = spread;
    return tensorflow::OkStatus();
  }

  // Where part p's gradient rows lie in `grad`.
  Status FillGrad(const Tensor& grad, int p, int64_t rows, int64_t dim,
                  const std::string& name, UpdatePart<T>* part) const {
    const T* data = grad.flat<T>().data();
    if (grad_chunk_dims_[p] < 0) {  // the whole tensor
      if (grad.NumElements() != rows * dim)
        return GradError(grad, p, rows, dim, name);
      part->grad = data;
      part->inner = std::max<int64_t>(rows, 1);
      return tensorflow::OkStatus();
    }
    const int axis = grad.dims() - grad_chunk_dims_[p];
    if (axis < 0) return GradError(grad, p, rows, dim, name);
    int64_t outer = 1;
    for (int d = 0; d < axis; ++d) outer *= grad.dim_size(d);
    if (outer == 0 || rows == 0) {
      if (rows != 0) return GradError(grad, p, rows, dim, name);
      return tensorflow::OkStatus();
    }
    const int64_t stride = grad.NumElements() / outer;
    // A place that follows parts of unknown size is counted from the end.
    const int64_t begin =
        grad_begin_[p] >= 0 ? grad_begin_[p] : stride + grad_begin_[p];
    if (begin < 0 || begin + grad_size_[p] > stride ||
        outer * grad_size_[p] != rows * dim || dim == 0 ||
        grad_size_[p] % dim != 0) {
      return GradError(grad, p, rows, dim, name);
    }
    part->grad = data + begin;
    part->inner = grad_size_[p] / dim;
    part->stride = stride;
    return tensorflow::OkStatus();
  }

  Status GradError(const Tensor& grad, int p, int64_t rows, int64_t dim,
                   const std::string& name) const {
    return errors::InvalidArgument(
        "The gradient of '", name, "' of shape ", grad.shape().DebugString(),
        " (elements [", grad_begin_[p], ", +", grad_size_[p], ") of its last ",
        grad_chunk_dims_[p], " dimensions) does not hold ", rows, " rows of ",
        dim, " values.");
  }

  int rule_ = -1;
  int count_ = 0;
  int parts_ = 0;
  int ids_sources_ = 0;
  BagsLayout bags_layout_;
  PartitionLayout partition_layout_;
  std::vector<PartFilter> filters_;  // [parts], of variables in parts
  RuleFlags flags_;
  bool use_locking_ = false;
  bool sum_duplicates_ = true;
  IdsLayout layout_;
  std::vector<int> hyper_index_;
  std::vector<int> scale_index_;
  std::vector<bool> negate_;
  std::vector<std::string> member_name_;
  std::vector<int> member_parts_;
  std::vector<int> first_part_;  // [count]
  std::vector<int> member_of_;   // [parts]
  std::vector<int> grad_source_;
  std::vector<int> grad_chunk_dims_;
  std::vector<int64_t> grad_begin_;
  std::vector<int64_t> grad_size_;
  std::vector<bool> grad_checked_;  // [parts], or none at all
  PackCounters* counters_ = nullptr;
};

PICASSO_REGISTER_FLOATS("PicassoPackedUpdate", "T", PackedUpdateOp);

}  // namespace picasso
