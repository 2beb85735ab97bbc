#include "kernels/core/bags.h"

namespace picasso {
namespace {

// Bag of entry i: its row, or its index among the rows of a matrix into which
// TensorFlow would reshape. (Of a matrix, SparseReshape leaves indices as they
// are, whatever their last column holds.)
template <typename Row>
int64_t BagOf(const SparseIds& s, const Row* rows, int64_t i) {
  const Row* row = rows + i * s.columns;
  if (s.columns <= 2 || s.shape == nullptr) return row[0];
  int64_t flat = 0;
  for (int64_t d = 0; d < s.columns; ++d) flat = flat * s.shape[d] + row[d];
  const int64_t last = s.shape[s.columns - 1];
  return last > 0 ? flat / last : 0;
}

bool HasWeight(const SparseIds& s, int64_t i) {
  return s.weights_size < 0 || i < s.weights_size;
}

bool IsKept(const SparseIds& s, int64_t id, int64_t i) {
  return (!s.prune || id >= 0) &&
         (s.above_zero == nullptr || !HasWeight(s, i) ||
          s.above_zero(s.weights, i));
}

}  // namespace

template <typename Id, typename Row>
BagError BagPlan::BuildFrom(const SparseIds& s) {
  const IdsReader<Id> ids(s.ids);
  const Row* rows = static_cast<const Row*>(s.rows);
  const int64_t count = s.ids.size;
  const bool with_positions = s.weighted;

  int64_t bags = 0;
  if (s.fill) {
    bags = 1;
    const int64_t leading = s.columns > 1 ? s.columns - 1 : 1;
    for (int64_t d = 0; d < leading; ++d) bags *= s.shape[d];
  } else if (count > 0) {
    bags = BagOf(s, rows, count - 1) + 1;
  }
  // Which bag each kept id is in; are they in order?
  row_of_.resize(count);
  bool ordered = true;
  int64_t last = 0, kept = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!IsKept(s, ids[i], i)) {
      row_of_[i] = -1;
      continue;
    }
    if (!HasWeight(s, i)) return {BagError::kNoWeight, i, s.weights_size};
    const int64_t bag = BagOf(s, rows, i);
    if (!s.fill) {
      if (bag < 0) return {BagError::kNegative, i, bag};
      if (kept > 0 && bag < last) return {BagError::kNotIncreasing, i, bag};
    } else if (!InRange(bag, bags)) {
      if (bags == 0) return {BagError::kNoRows, i, count};
      return {BagError::kOutOfRange, i, bag};
    }
    ordered = ordered && bag >= last;
    row_of_[i] = last = bag;
    ++kept;
  }
  offsets_.assign(bags + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (row_of_[i] >= 0) ++offsets_[row_of_[i] + 1];
  }
  any_filled_ = false;
  if (s.fill) {
    for (int64_t b = 1; b <= bags; ++b) {
      if (offsets_[b] > 0) continue;
      if (!any_filled_) {
        filled_.assign(bags, 0);
        any_filled_ = true;
      }
      filled_[b - 1] = 1;
      offsets_[b] = 1;
    }
  }
  for (int64_t b = 0; b < bags; ++b) offsets_[b + 1] += offsets_[b];

  const int64_t size = offsets_[bags];
  ids_.resize(size);
  positions_.resize(with_positions ? size : 0);
  const auto put = [&](int64_t at, int64_t id, int64_t position) {
    ids_[at] = id;
    if (with_positions) positions_[at] = position;
  };
  if (any_filled_) {
    for (int64_t b = 0; b < bags; ++b) {
      if (filled_[b]) put(offsets_[b], s.default_id, -1);
    }
  }
  if (ordered) {
    int64_t at = 0, bag = 0;
    for (int64_t i = 0; i < count; ++i) {
      if (row_of_[i] < 0) continue;
      if (row_of_[i] != bag) {
        bag = row_of_[i];
        at = offsets_[bag];
      }
      put(at++, ids[i], i);
    }
    return {};
  }
  // Entries of a bag keep their order, as in SparseFillEmptyRows.
  std::vector<int64_t> next(offsets_.begin(), offsets_.end() - 1);
  for (int64_t i = 0; i < count; ++i) {
    if (row_of_[i] >= 0) put(next[row_of_[i]]++, ids[i], i);
  }
  return {};
}

BagError BagPlan::Build(const SparseIds& s) {
  if (s.ids.is_int64) {
    return s.rows_int64 ? BuildFrom<int64_t, int64_t>(s)
                        : BuildFrom<int64_t, int32_t>(s);
  }
  return s.rows_int64 ? BuildFrom<int32_t, int64_t>(s)
                      : BuildFrom<int32_t, int32_t>(s);
}

}  // namespace picasso
