// Packs of what safe lookups do to sparse ids: leaving some out, filling empty
// rows, finding the distinct ones. Errors are worded as those of the ops that
// they replace.
#include <algorithm>
#include <cstring>
#include <limits>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/core/unique.h"
#include "kernels/ops/packed_kernel.h"
#include "tensorflow/core/framework/op.h"
#include "tensorflow/core/framework/op_kernel.h"
#include "tensorflow/core/framework/shape_inference.h"
#include "tensorflow/core/framework/types.h"

namespace picasso {

using tensorflow::OpKernelConstruction;
using tensorflow::OpKernelContext;
using tensorflow::Status;
using tensorflow::Tensor;
using tensorflow::TensorShape;
using tensorflow::TensorShapeUtils;
using tensorflow::tstring;
using tensorflow::shape_inference::DimensionHandle;
using tensorflow::shape_inference::InferenceContext;
using tensorflow::shape_inference::ShapeHandle;
namespace errors = tensorflow::errors;

namespace {

Status KeptShapes(InferenceContext* c) {
  int count = 0, bounds = 0;
  TF_RETURN_IF_ERROR(c->GetAttr("N", &count));
  TF_RETURN_IF_ERROR(c->GetAttr("B", &bounds));
  for (int m = 0; m < count; ++m) {
    // What is taken from one member is of one length.
    const DimensionHandle kept = c->UnknownDim();
    for (int k = m; k < c->num_outputs(); k += count) {
      ShapeHandle shape = c->input(count + bounds + k);
      TF_RETURN_IF_ERROR(c->WithRankAtLeast(shape, 1, &shape));
      if (c->RankKnown(shape)) {
        TF_RETURN_IF_ERROR(c->ReplaceDim(shape, 0, kept, &shape));
      }
      c->set_output(k, shape);
    }
  }
  return tensorflow::OkStatus();
}

Status FilledShapes(InferenceContext* c) {
  const int count = c->num_outputs() / 4;
  for (int m = 0; m < count; ++m) {
    ShapeHandle indices, values, shape;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(m), 2, &indices));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(count + m), 1, &values));
    TF_RETURN_IF_ERROR(c->WithRank(c->input(2 * count + m), 1, &shape));
    DimensionHandle n, rank;
    TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 0), c->Dim(values, 0), &n));
    TF_RETURN_IF_ERROR(c->Merge(c->Dim(indices, 1), c->Dim(shape, 0), &rank));
    ShapeHandle sizes;
    TF_RETURN_IF_ERROR(c->MakeShapeFromShapeTensor(2 * count + m, &sizes));
    DimensionHandle rows = c->UnknownDim();
    if (c->RankKnown(sizes) && c->Rank(sizes) > 0) rows = c->Dim(sizes, 0);
    const DimensionHandle full = c->UnknownDim();
    c->set_output(m, c->Matrix(full, rank));
    c->set_output(count + m, c->Vector(full));
    c->set_output(2 * count + m, c->Vector(rows));
    c->set_output(3 * count + m, c->Vector(n));
  }
  return tensorflow::OkStatus();
}

Status UniqueShapes(InferenceContext* c) {
  const int count = c->num_outputs() / 2;
  for (int m = 0; m < count; ++m) {
    ShapeHandle values;
    TF_RETURN_IF_ERROR(c->WithRank(c->input(m), 1, &values));
    c->set_output(m, c->Vector(c->UnknownDim()));
    c->set_output(count + m, values);
  }
  return tensorflow::OkStatus();
}

}  // namespace

// Those elements of tensors at whose place a test holds: GatherV2 of what Where
// finds. Tensors come column by column: the first of all members, the second
// ones, and so on; so do the results.
//
//   tested:  [n]; bool, if there is no comparison. (Of more dimensions, all
//            indices count, end to end.)
//   bounds:  [], what it is compared with; none, if there is no comparison.
//   tensors: [at least the last place + 1, ...].
//   kept:    [places, ...].
//   comparison: "", ">" or ">=".
//
// A tensor that is too short is an error, as it is for GatherV2.
REGISTER_OP("PicassoPackedKeep")
    .Input("tested: N * Ttested")
    .Input("bounds: B * Ttested")
    .Input("tensors: T")
    .Output("kept: T")
    .Attr("Ttested: {bool, int32, int64, half, bfloat16, float, double}")
    .Attr("T: list({int32, int64, half, bfloat16, float, double}) >= 1")
    .Attr("N: int >= 1")
    .Attr("B: int >= 0")
    .Attr("comparison: string")
    .Attr("pack: string")
    .SetShapeFn(KeptShapes);

// SparseFillEmptyRows of N sparse tensors.
//
//   indices: [n, rank]; values: [n]; shapes: [rank]; defaults: [].
//   filled_indices: [full, rank]; filled_values: [full]; empty: [rows], which
//   rows had none; places: [n], where among the filled ones each index is.
//
// Errors are stock's.
REGISTER_OP("PicassoPackedFillEmptyRows")
    .Input("indices: N * int64")
    .Input("values: N * T")
    .Input("shapes: N * int64")
    .Input("defaults: N * T")
    .Output("filled_indices: N * int64")
    .Output("filled_values: N * T")
    .Output("empty: N * bool")
    .Output("places: N * int64")
    .Attr("T: {string, int32, int64, half, bfloat16, float, double}")
    .Attr("N: int >= 1")
    .Attr("pack: string")
    .SetShapeFn(FilledShapes);

// Unique of N vectors.
//
//   values: [n]; unique: [distinct], in the order in which they first come;
//   index: [n], where there each value is.
REGISTER_OP("PicassoPackedUnique")
    .Input("values: N * T")
    .Output("unique: N * T")
    .Output("index: N * out_idx")
    .Attr("T: {int32, int64}")
    .Attr("out_idx: {int32, int64}")
    .Attr("N: int >= 1")
    .Attr("pack: string")
    .SetShapeFn(UniqueShapes);

// -- leaving some out ---------------------------------------------------------

template <typename T>
class PackedKeepOp : public PackedKernel {
 public:
  explicit PackedKeepOp(OpKernelConstruction* ctx) : PackedKernel(ctx) {
    std::string comparison;
    OP_REQUIRES_OK(ctx, ctx->GetAttr("comparison", &comparison));
    OP_REQUIRES_OK(ctx, ctx->GetAttr("B", &bounds_));
    compares_ = !comparison.empty();
    or_equal_ = comparison == ">=";
    columns_ = ctx->num_outputs() / members();
    const bool known = !compares_ || or_equal_ || comparison == ">";
    OP_REQUIRES(ctx,
                known && bounds_ == (compares_ ? members() : 0) &&
                    compares_ != (std::is_same_v<T, bool>) &&
                    ctx->num_outputs() == columns_ * members(),
                errors::InvalidArgument("No comparison '", comparison, "' of ",
                                        members(), " members with ", bounds_,
                                        " bounds."));
  }

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<std::vector<int64_t>> places(count);
    const int64_t cost = 64 + 4 * MeanElements(ctx, 0, count);
    TF_RETURN_IF_ERROR(ForMembers(
        ctx, count, cost, [&](int m) { return Find(ctx, m, &places[m]); }));
    std::vector<Copy> copies;
    int64_t bytes = 0;
    for (int k = 0; k < ctx->num_outputs(); ++k) {
      const Tensor& tensor = ctx->input(count + bounds_ + k);
      const std::vector<int64_t>& kept = places[k % count];
      TF_RETURN_IF_ERROR(Check(tensor, kept));
      const int64_t size = kept.size();
      if (ctx->input(k % count).dims() == 1 && size == tensor.dim_size(0)) {
        // All of it.
        ctx->set_output(k, tensor);
        continue;
      }
      TensorShape shape = tensor.shape();
      TF_RETURN_IF_ERROR(shape.SetDimWithStatus(0, size));
      Tensor* out = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(k, shape, &out));
      if (out->NumElements() == 0) continue;
      copies.push_back({static_cast<const char*>(tensor.data()),
                        static_cast<char*>(out->data()),
                        static_cast<int64_t>(out->TotalBytes() / size), &kept});
      bytes += out->TotalBytes();
    }
    if (copies.empty()) return tensorflow::OkStatus();
    PoolOf(ctx)(copies.size(), 64 + bytes / copies.size(),
                [&](int64_t begin, int64_t end) {
                  for (int64_t c = begin; c < end; ++c) Run(copies[c]);
                });
    return tensorflow::OkStatus();
  }

 private:
  struct Copy {
    const char* from;
    char* to;
    int64_t row_bytes;
    const std::vector<int64_t>* rows;
  };

  static void Run(const Copy& copy) {
    char* to = copy.to;
    for (const int64_t row : *copy.rows) {
      std::memcpy(to, copy.from + row * copy.row_bytes, copy.row_bytes);
      to += copy.row_bytes;
    }
  }

  Status Find(OpKernelContext* ctx, int m, std::vector<int64_t>* places) const {
    const Tensor& tested = ctx->input(m);
    if (tested.dims() == 0) {
      return errors::InvalidArgument("WhereOp : Unhandled input dimensions: 0");
    }
    const T* const values = tested.flat<T>().data();
    const int64_t size = tested.NumElements();
    T bound(0);
    if (compares_) {
      const Tensor& given = ctx->input(members() + m);
      if (given.NumElements() != 1) {
        return errors::InvalidArgument("A bound should be a scalar, not ",
                                       given.shape().DebugString());
      }
      bound = given.flat<T>()(0);
    }
    places->reserve(size);
    for (int64_t i = 0; i < size; ++i) {
      if (!Holds(values[i], bound)) continue;
      if (tested.dims() == 1) {
        places->push_back(i);
      } else {
        PushPlace(tested.shape(), i, places);
      }
    }
    return tensorflow::OkStatus();
  }

  // What Where finds, end to end: an index of each dimension.
  static void PushPlace(const TensorShape& shape, int64_t at,
                        std::vector<int64_t>* places) {
    places->resize(places->size() + shape.dims());
    for (int d = shape.dims() - 1, back = 1; d >= 0; --d, ++back) {
      (*places)[places->size() - back] = at % shape.dim_size(d);
      at /= shape.dim_size(d);
    }
  }

  bool Holds(T value, T bound) const {
    if constexpr (std::is_same_v<T, bool>) return value;
    return or_equal_ ? value >= bound : value > bound;
  }

  static Status Check(const Tensor& tensor, const std::vector<int64_t>& rows) {
    if (tensor.dims() < 1) {
      return errors::InvalidArgument("params must be at least 1 dimensional");
    }
    const int64_t size = tensor.dim_size(0);
    const auto bad = std::find_if(rows.begin(), rows.end(),
                                  [size](int64_t row) { return row >= size; });
    if (bad == rows.end()) return tensorflow::OkStatus();
    return errors::InvalidArgument("indices[", bad - rows.begin(), "] = ", *bad,
                                   " is not in [0, ", size, ")");
  }

  bool compares_ = false;
  bool or_equal_ = false;
  int bounds_ = 0;
  int columns_ = 0;
};

// -- filling empty rows -------------------------------------------------------

template <typename T>
class PackedFillEmptyRowsOp : public PackedKernel {
 public:
  using PackedKernel::PackedKernel;

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<Member> all(count);
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Describe(ctx, m, &all[m]));
    }
    const int64_t cost = 64 + 8 * MeanElements(ctx, 0, count);
    TF_RETURN_IF_ERROR(
        ForMembers(ctx, count, cost, [&](int m) { return Count(&all[m]); }));
    for (int m = 0; m < count; ++m) {
      TF_RETURN_IF_ERROR(Allocate(ctx, m, &all[m]));
    }
    return ForMembers(ctx, count, cost, [&](int m) {
      Write(&all[m]);
      return tensorflow::OkStatus();
    });
  }

 private:
  struct Member {
    const int64_t* indices = nullptr;  // [size, rank]
    const T* values = nullptr;         // [size]
    const T* otherwise = nullptr;
    int64_t size = 0;
    int64_t rank = 0;
    int64_t rows = 0;
    // Of each row, first how many there are, then where its next one goes.
    std::vector<int64_t> next;
    int64_t full = 0;
    bool same = false;  // nothing is to be filled, or moved
    int64_t* filled_indices = nullptr;
    T* filled_values = nullptr;
    bool* empty = nullptr;
    int64_t* places = nullptr;  // nullptr: nobody wants them
  };

  Status Describe(OpKernelContext* ctx, int m, Member* member) const {
    const int count = members();
    const Tensor& indices = ctx->input(m);
    const Tensor& values = ctx->input(count + m);
    const Tensor& shape = ctx->input(2 * count + m);
    const Tensor& otherwise = ctx->input(3 * count + m);
    if (!TensorShapeUtils::IsVector(shape.shape())) {
      return errors::InvalidArgument("dense_shape must be a vector, saw: ",
                                     shape.shape().DebugString());
    }
    if (!TensorShapeUtils::IsMatrix(indices.shape())) {
      return errors::InvalidArgument("indices must be a matrix, saw: ",
                                     indices.shape().DebugString());
    }
    if (!TensorShapeUtils::IsVector(values.shape())) {
      return errors::InvalidArgument("values must be a vector, saw: ",
                                     values.shape().DebugString());
    }
    if (indices.dim_size(0) != values.dim_size(0)) {
      return errors::InvalidArgument(
          "The length of `values` (", values.dim_size(0),
          ") must match the first dimension of `indices` (",
          indices.dim_size(0), ").");
    }
    if (indices.dim_size(1) != shape.dim_size(0)) {
      return errors::InvalidArgument(
          "The length of `dense_shape` (", shape.dim_size(0),
          ") must match the second dimension of `indices` (",
          indices.dim_size(1), ").");
    }
    if (!TensorShapeUtils::IsScalar(otherwise.shape())) {
      return errors::InvalidArgument("default_value must be a scalar, saw: ",
                                     otherwise.shape().DebugString());
    }
    if (shape.NumElements() == 0) {
      return errors::InvalidArgument("Dense shape cannot be empty.");
    }
    member->indices = indices.flat<int64_t>().data();
    member->values = values.flat<T>().data();
    member->otherwise = otherwise.flat<T>().data();
    member->size = indices.dim_size(0);
    member->rank = indices.dim_size(1);
    member->rows = shape.flat<int64_t>()(0);
    TensorShape rows;
    TF_RETURN_IF_ERROR(rows.AddDimWithStatus(member->rows));
    if (member->rows == 0 && member->size > 0) {
      return errors::InvalidArgument(
          "Received SparseTensor with dense_shape[0] = 0 but "
          "indices.shape[0] = ",
          member->size);
    }
    Tensor* empty = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(2 * count + m, rows, &empty));
    member->empty = empty->flat<bool>().data();
    if (ctx->output_required(3 * count + m)) {
      Tensor* places = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(
          3 * count + m, TensorShape({member->size}), &places));
      member->places = places->flat<int64_t>().data();
    }
    return tensorflow::OkStatus();
  }

  static Status Count(Member* member) {
    const int64_t rows = member->rows;
    member->next.assign(rows, 0);
    bool ordered = true;
    int64_t last = 0;
    for (int64_t i = 0; i < member->size; ++i) {
      const int64_t row = member->indices[i * member->rank];
      if (!InRange(row, rows)) {
        return errors::InvalidArgument("indices(", i, ", 0) is invalid: ", row,
                                       " >= ", rows);
      }
      ++member->next[row];
      ordered = ordered && row >= last;
      last = row;
    }
    bool any_empty = false;
    for (int64_t r = 0; r < rows; ++r) {
      const int64_t here = member->next[r];
      member->empty[r] = here == 0;
      any_empty = any_empty || here == 0;
      member->next[r] = member->full;
      member->full += here == 0 ? 1 : here;
    }
    member->same = ordered && !any_empty;
    return tensorflow::OkStatus();
  }

  Status Allocate(OpKernelContext* ctx, int m, Member* member) const {
    const int count = members();
    if (member->same) {
      ctx->set_output(m, ctx->input(m));
      ctx->set_output(count + m, ctx->input(count + m));
      return tensorflow::OkStatus();
    }
    Tensor *indices = nullptr, *values = nullptr;
    TF_RETURN_IF_ERROR(ctx->allocate_output(
        m, TensorShape({member->full, member->rank}), &indices));
    TF_RETURN_IF_ERROR(
        ctx->allocate_output(count + m, TensorShape({member->full}), &values));
    member->filled_indices = indices->flat<int64_t>().data();
    member->filled_values = values->flat<T>().data();
    return tensorflow::OkStatus();
  }

  static void Write(Member* member) {
    if (member->same) {
      if (member->places != nullptr) {
        std::iota(member->places, member->places + member->size, int64_t{0});
      }
      return;
    }
    const int64_t rank = member->rank;
    for (int64_t r = 0; r < member->rows; ++r) {
      if (!member->empty[r]) continue;
      const int64_t at = member->next[r];
      std::fill_n(member->filled_indices + at * rank, rank, int64_t{0});
      member->filled_indices[at * rank] = r;
      member->filled_values[at] = *member->otherwise;
    }
    const int64_t* index = member->indices;
    for (int64_t i = 0; i < member->size; ++i, index += rank) {
      const int64_t at = member->next[*index]++;
      std::copy_n(index, rank, member->filled_indices + at * rank);
      member->filled_values[at] = member->values[i];
      if (member->places != nullptr) member->places[i] = at;
    }
  }
};

// -- the distinct ones --------------------------------------------------------

template <typename T, typename Index>
class PackedUniqueOp : public PackedKernel {
 public:
  using PackedKernel::PackedKernel;

 protected:
  Status Run(OpKernelContext* ctx) const override {
    const int count = members();
    std::vector<Index*> index(count);
    for (int m = 0; m < count; ++m) {
      const Tensor& values = ctx->input(m);
      if (!TensorShapeUtils::IsVector(values.shape())) {
        return errors::InvalidArgument("unique expects a 1D vector.");
      }
      if (values.NumElements() > std::numeric_limits<int32_t>::max()) {
        return errors::InvalidArgument(
            "unique does not support input tensors larger than ",
            std::numeric_limits<int32_t>::max(), " elements");
      }
      Tensor* out = nullptr;
      TF_RETURN_IF_ERROR(ctx->allocate_output(count + m, values.shape(), &out));
      index[m] = out->flat<Index>().data();
    }
    std::vector<std::vector<T>> unique(count);
    const int64_t cost = 100 + 16 * MeanElements(ctx, 0, count);
    TF_RETURN_IF_ERROR(ForMembers(ctx, count, cost, [&](int m) {
      const auto values = ctx->input(m).flat<T>();
      FindUnique<T, Index>(values.data(), values.size(), &unique[m], index[m]);
      return tensorflow::OkStatus();
    }));
    for (int m = 0; m < count; ++m) {
      Tensor* out = nullptr;
      const int64_t size = unique[m].size();
      TF_RETURN_IF_ERROR(ctx->allocate_output(m, TensorShape({size}), &out));
      std::copy_n(unique[m].data(), size, out->flat<T>().data());
    }
    return tensorflow::OkStatus();
  }
};

#define REGISTER_KEEP(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedKeep")           \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("Ttested"),  \
                          PackedKeepOp<T>)
#define REGISTER_FILL(T)                                      \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedFillEmptyRows")  \
                              .Device(tensorflow::DEVICE_CPU) \
                              .TypeConstraint<T>("T"),        \
                          PackedFillEmptyRowsOp<T>)
#define REGISTER_BOTH(T) REGISTER_KEEP(T) REGISTER_FILL(T)
REGISTER_KEEP(bool);
REGISTER_BOTH(int32_t);
REGISTER_BOTH(int64_t);
REGISTER_BOTH(float);
REGISTER_BOTH(double);
REGISTER_BOTH(Eigen::half);
REGISTER_BOTH(Eigen::bfloat16);
REGISTER_FILL(tstring);
#undef REGISTER_BOTH
#undef REGISTER_FILL
#undef REGISTER_KEEP

#define REGISTER(T, Index)                                       \
  REGISTER_KERNEL_BUILDER(Name("PicassoPackedUnique")            \
                              .Device(tensorflow::DEVICE_CPU)    \
                              .TypeConstraint<T>("T")            \
                              .TypeConstraint<Index>("out_idx"), \
                          PackedUniqueOp<T, Index>)
REGISTER(int32_t, int32_t);
REGISTER(int32_t, int64_t);
REGISTER(int64_t, int32_t);
REGISTER(int64_t, int64_t);
#undef REGISTER

}  // namespace picasso
