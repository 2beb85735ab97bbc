#include "kernels/ops/bags_layout.h"

#include <algorithm>
#include <map>
#include <unordered_set>

namespace picasso {

using tensorflow::DataType;
using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
namespace errors = tensorflow::errors;

namespace {

template <typename W>
bool AboveZero(const void* weights, int64_t i) {
  return static_cast<const W*>(weights)[i] > W(0);
}

Status RowsError(const BagError& error, const std::string& field) {
  switch (error.kind) {
    case BagError::kNone:
      return tensorflow::OkStatus();
    case BagError::kOutOfRange:
      return errors::InvalidArgument("indices(", error.position,
                                     ", 0) is invalid: row ", error.value,
                                     " is not in the SparseTensor's dense_shape"
                                     " (field '",
                                     field, "')");
    case BagError::kNotIncreasing:
      return errors::InvalidArgument("segment ids are not increasing (field '",
                                     field, "', id number ", error.position,
                                     ")");
    case BagError::kNegative:
      return errors::InvalidArgument("segment ids must be >= 0 (field '", field,
                                     "', id number ", error.position, ")");
    case BagError::kNoRows:
      return errors::InvalidArgument(
          "Received SparseTensor with dense_shape[0] = 0 but "
          "indices.shape[0] = ",
          error.value, " (field '", field, "')");
    case BagError::kNoWeight:
      return errors::InvalidArgument("Id number ", error.position,
                                     " has no weight (field '", field, "')");
  }
  return tensorflow::OkStatus();
}

template <typename T, typename W>
void BuildWeights(const Tensor& tensor, bool one_for_all, Combiner combiner,
                  Bags<T>* bags) {
  const W* values = tensor.flat<W>().data();
  bags->weights.Build(*bags->plan, combiner, [=](int64_t i) {
    return static_cast<Sum<T>>(values[one_for_all ? 0 : i]);
  });
}

// What TensorFlow makes of another number of weights than of ids: products and
// filters broadcast, other ops fail.
Status FitWeights(int64_t weights, Combiner combiner, SparseIds* source,
                  bool* one_for_all) {
  const int64_t ids = source->ids.size;
  *one_for_all =
      weights == 1 && ids != 1 && !source->fill && combiner == Combiner::kSum;
  if (weights == ids || *one_for_all) return tensorflow::OkStatus();
  if (source->prune && weights == 1) {
    source->weights_size = 1;
    return tensorflow::OkStatus();
  }
  if (source->prune && ids == 1) {
    source->weights_size = 0;
    if (weights == 0) source->ids.size = 0;
    return tensorflow::OkStatus();
  }
  return errors::InvalidArgument("There are ", ids, " ids and ", weights,
                                 " weights.");
}

// The plan of `source`: one that was made before, or a new one.
Status PlanOf(const SparseIds& source, const std::string& field,
              const std::vector<MadePlansPtr>& shared,
              std::shared_ptr<const BagPlan>* plan) {
  for (const MadePlansPtr& plans : shared) {
    *plan = plans->Find(source);
    if (*plan != nullptr) return tensorflow::OkStatus();
  }
  auto made = std::make_shared<BagPlan>();
  TF_RETURN_IF_ERROR(RowsError(made->Build(source), field));
  *plan = std::move(made);
  return tensorflow::OkStatus();
}

}  // namespace

Status BagsLayout::Init(OpKernelConstruction* ctx, int count,
                        const IdsLayout& ids, BagsUse use) {
  use_ = use;
  std::vector<int> rows;
  TF_RETURN_IF_ERROR(ctx->GetAttr("bag_rows", &rows));
  if (rows.empty()) return tensorflow::OkStatus();
  if (use == BagsUse::kBackward) WantPlans();
  std::vector<DataType> types;
  std::vector<std::string> combiner;
  TF_RETURN_IF_ERROR(ctx->GetAttr("Tsparse", &types));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_rows", count, &rows_));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_combiner", count, &combiner));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_shape", count, &shape_));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_weights", count, &weights_));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_prune", count, &prune_));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_prune_weights", count, &prune_weights_));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_default_id", count, &default_id_));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_zero_filled", count, &zero_filled_));
  TF_RETURN_IF_ERROR(GetList(ctx, "bag_full_shape", count, &full_shape_));
  sources_ = types.size();
  for (int i = 0; i < count; ++i) {
    for (int source : {rows_[i], shape_[i], weights_[i]}) {
      if (source < -1 || source >= sources_) {
        return errors::InvalidArgument("Member ", i, " has no 'sparse' input ",
                                       source, ".");
      }
    }
    const bool mean = combiner[i] == "mean", sqrtn = combiner[i] == "sqrtn";
    if (rows_[i] >= 0 && combiner[i] != "sum" && !mean && !sqrtn) {
      return errors::InvalidArgument("Unknown combiner '", combiner[i], "'.");
    }
    if (full_shape_[i] && shape_[i] < 0) {
      return errors::InvalidArgument("Member ", i, " has no dense shape.");
    }
    combiner_.push_back(mean    ? Combiner::kMean
                        : sqrtn ? Combiner::kSqrtN
                                : Combiner::kSum);
  }
  // The columns of a wide and of a deep model, say, are of the same features.
  std::map<std::vector<int64_t>, int> first;
  for (int i = 0; i < count; ++i) {
    std::vector<int64_t> key = ids.Key(i);
    key.insert(key.end(), {rows_[i], shape_[i], weights_[i], prune_[i],
                           prune_weights_[i], default_id_[i]});
    if (weights_[i] >= 0) key.push_back(static_cast<int64_t>(combiner_[i]));
    // What a mode does to ids depends on the table.
    if (!ids.plain(i)) key.push_back(i);
    same_as_.push_back(first.try_emplace(key, i).first->second);
    if (rows_[i] >= 0 && same_as_[i] == i) distinct_.push_back(i);
  }
  return tensorflow::OkStatus();
}

Status BagsLayout::Fill(OpKernelContext* ctx, int first, int i,
                        const IdsView& ids, SparseIds* source) const {
  const Tensor& rows = ctx->input(first + rows_[i]);
  if (rows.dims() < 1 || rows.dims() > 2 || rows.dim_size(0) != ids.size) {
    return errors::InvalidArgument(
        "segment_ids and indices should have same size: there are ", ids.size,
        " ids, and the indices have shape ", rows.shape().DebugString(), ".");
  }
  source->ids = ids;
  source->rows = rows.data();
  source->rows_int64 = rows.dtype() == tensorflow::DT_INT64;
  source->columns = rows.dims() == 2 ? rows.dim_size(1) : 1;
  source->prune = prune_[i];
  source->weighted = weights_[i] >= 0;
  if (shape_[i] >= 0) {
    const Tensor& shape = ctx->input(first + shape_[i]);
    if (shape.dtype() != tensorflow::DT_INT64 ||
        !TensorShapeUtils::IsVector(shape.shape()) ||
        shape.dim_size(0) != source->columns || source->columns < 2) {
      return errors::InvalidArgument("A SparseTensor's dense_shape of shape ",
                                     shape.shape().DebugString(),
                                     " does not go with its indices of shape ",
                                     rows.shape().DebugString(), ".");
    }
    source->fill = true;
    source->shape = shape.flat<int64_t>().data();
    source->default_id = default_id_[i];
  }
  return tensorflow::OkStatus();
}

template <typename T>
Status BagsLayout::Make(OpKernelContext* ctx, int first,
                        const std::function<const IdsView&(int)>& ids_of,
                        const std::function<const std::string&(int)>& field_of,
                        std::vector<Bags<T>>* bags) const {
  if (!any()) return tensorflow::OkStatus();
  bags->resize(same_as_.size());
  const int64_t count = distinct_.size();
  int64_t ids = 0;
  for (int i : distinct_) ids += ids_of(i).size;
  std::vector<MadePlansPtr> shared;
  if (use_ == BagsUse::kBackward) shared = PlansOfStep(ctx);
  std::vector<SparseIds> made_of(count);
  std::vector<Status> made(count);
  // A few cycles an id.
  PoolOf(ctx)(count, 100 + 8 * ids / std::max<int64_t>(count, 1),
              [&](int64_t begin, int64_t end) {
                for (int64_t k = begin; k < end; ++k) {
                  const int i = distinct_[k];
                  made[k] = MakeOne(ctx, first, i, ids_of(i), field_of(i),
                                    shared, &made_of[k], &(*bags)[i]);
                }
              });
  for (const Status& status : made) TF_RETURN_IF_ERROR(status);
  if (use_ == BagsUse::kBackward || !PlansAreWanted()) {
    return tensorflow::OkStatus();
  }
  std::vector<Tensor> inputs;
  // Ids and what makes them bags: no plan points into what comes behind, which
  // others may want to write in place.
  for (int k = 0; k < first + sources_; ++k) {
    // Of the variables' handles nothing is read here.
    if (ctx->input_dtype(k) == tensorflow::DT_RESOURCE) continue;
    inputs.push_back(ctx->input(k));
  }
  auto plans = std::make_shared<MadePlans>(std::move(inputs));
  for (int64_t k = 0; k < count; ++k) {
    plans->Add(made_of[k], (*bags)[distinct_[k]].plan);
  }
  plans->Sort();
  SharePlans(ctx, ctx->op_kernel().name(), std::move(plans));
  return tensorflow::OkStatus();
}

template <typename T>
Status BagsLayout::MakeOne(OpKernelContext* ctx, int first, int i,
                           const IdsView& ids, const std::string& field,
                           const std::vector<MadePlansPtr>& shared,
                           SparseIds* source, Bags<T>* bags) const {
  TF_RETURN_IF_ERROR(Fill(ctx, first, i, ids, source));
  bags->weighted = source->weighted;
  if (!source->weighted) return PlanOf(*source, field, shared, &bags->plan);

  const Tensor& weights = ctx->input(first + weights_[i]);
  bool one_for_all = false;
  TF_RETURN_IF_ERROR(
      FitWeights(weights.NumElements(), combiner_[i], source, &one_for_all));
  source->weights = weights.data();
  const auto build = [&](auto zero) {
    using W = decltype(zero);
    if (prune_weights_[i]) source->above_zero = &AboveZero<W>;
    TF_RETURN_IF_ERROR(PlanOf(*source, field, shared, &bags->plan));
    BuildWeights<T, W>(weights, one_for_all, combiner_[i], bags);
    return tensorflow::OkStatus();
  };
  switch (weights.dtype()) {
    case tensorflow::DT_HALF:
      return build(Eigen::half(0));
    case tensorflow::DT_BFLOAT16:
      return build(Eigen::bfloat16(0));
    case tensorflow::DT_FLOAT:
      return build(float{0});
    case tensorflow::DT_DOUBLE:
      return build(double{0});
    default:
      return errors::InvalidArgument(
          "Weights of type ", tensorflow::DataTypeString(weights.dtype()));
  }
}

Status BagsLayout::Shape(OpKernelContext* ctx, int first, int i,
                         const BagPlan& plan, TensorShape* shape) const {
  *shape = TensorShape();
  if (!full_shape_[i]) return shape->AddDimWithStatus(plan.bags());
  const auto sizes = ctx->input(first + shape_[i]).flat<int64_t>();
  for (int64_t d = 0; d + 1 < sizes.size(); ++d) {
    TF_RETURN_IF_ERROR(shape->AddDimWithStatus(sizes(d)));
  }
  return tensorflow::OkStatus();
}

Status BadBagIdError(const BadId& bad, const BagPlan& plan, int64_t rows,
                     const std::string& field) {
  const std::unordered_set<int64_t> before(plan.ids(),
                                           plan.ids() + bad.position);
  const int64_t unique = before.size();
  return BadIdError({bad.member, unique, bad.value}, TensorShape({unique + 1}),
                    rows, field);
}

#define INSTANTIATE(T)                                                      \
  template Status BagsLayout::Make<T>(                                      \
      OpKernelContext*, int, const std::function<const IdsView&(int)>&,     \
      const std::function<const std::string&(int)>&, std::vector<Bags<T>>*) \
      const
INSTANTIATE(float);
INSTANTIATE(double);
INSTANTIATE(Eigen::half);
INSTANTIATE(Eigen::bfloat16);
#undef INSTANTIATE

}  // namespace picasso
