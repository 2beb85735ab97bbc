#include "kernels/core/bags.h"

#include <algorithm>

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

// With `fill`, one bag per row; else they end with that of the last id.
template <typename Id, typename Row>
int64_t BagCount(const SparseIds& s, const IdsReader<Id>& ids,
                 const Row* rows) {
  if (!s.fill) {
    int64_t last = s.ids.size - 1;
    while (last >= 0 && !IsKept(s, ids[last], last)) --last;
    return last < 0 ? 0 : std::max<int64_t>(BagOf(s, rows, last) + 1, 0);
  }
  int64_t bags = 1;
  const int64_t leading = s.columns > 1 ? s.columns - 1 : 1;
  for (int64_t d = 0; d < leading; ++d) bags *= s.shape[d];
  return bags;
}

}  // namespace

void BagPlan::Allocate(const SparseIds& s, int64_t bags, int64_t entries) {
  bags_ = bags;
  size_ = 0;
  // Without initialising them: all that is read is written.
  offsets_.reset(new int64_t[bags + 1]);
  ids_.reset(new int64_t[entries]);
  bag_of_.reset(new int64_t[entries]);
  positions_.resize(s.weighted ? entries : 0);
  any_filled_ = false;
}

void BagPlan::MarkFilled(int64_t bag) {
  if (!any_filled_) {
    filled_.assign(bags_, 0);
    any_filled_ = true;
  }
  filled_[bag] = 1;
}

template <typename Id, typename Row>
bool BagPlan::BuildOrdered(const SparseIds& s) {
  const IdsReader<Id> ids(s.ids);
  const Row* rows = static_cast<const Row*>(s.rows);
  const int64_t count = s.ids.size;
  const int64_t bags = BagCount(s, ids, rows);
  Allocate(s, bags, count + (s.fill ? bags : 0));
  const bool all_kept = !s.prune && s.above_zero == nullptr;
  int64_t at = 0, open = 0;  // the bag that the next id may go to
  offsets_[0] = 0;
  const auto close_until = [&](int64_t bag) {
    for (; open < bag; ++open) {
      if (s.fill && offsets_[open] == at) {
        MarkFilled(open);
        Put(at++, open, s.default_id, -1);
      }
      offsets_[open + 1] = at;
    }
  };
  for (int64_t i = 0; i < count; ++i) {
    const int64_t id = ids[i];
    if (!all_kept && !IsKept(s, id, i)) continue;
    const int64_t bag = BagOf(s, rows, i);
    if (bag < open || bag >= bags || !HasWeight(s, i)) return false;
    close_until(bag);
    Put(at++, bag, id, i);
  }
  close_until(bags);
  size_ = at;
  if (s.weighted) positions_.resize(at);
  return true;
}

template <typename Id, typename Row>
BagError BagPlan::BuildAny(const SparseIds& s) {
  const IdsReader<Id> ids(s.ids);
  const Row* rows = static_cast<const Row*>(s.rows);
  const int64_t count = s.ids.size;
  const int64_t bags = BagCount(s, ids, rows);
  // Which bag each kept id is in.
  std::vector<int64_t> row_of(count, -1);
  int64_t last = 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!IsKept(s, ids[i], i)) continue;
    if (!HasWeight(s, i)) return {BagError::kNoWeight, i, s.weights_size};
    const int64_t bag = BagOf(s, rows, i);
    if (!s.fill) {
      if (bag < 0) return {BagError::kNegative, i, bag};
      if (bag < last) return {BagError::kNotIncreasing, i, bag};
    } else if (!InRange(bag, bags)) {
      if (bags == 0) return {BagError::kNoRows, i, count};
      return {BagError::kOutOfRange, i, bag};
    }
    row_of[i] = last = bag;
  }
  std::vector<int64_t> next(bags + 1, 0);
  for (int64_t i = 0; i < count; ++i) {
    if (row_of[i] >= 0) ++next[row_of[i] + 1];
  }
  Allocate(s, bags, count + (s.fill ? bags : 0));
  for (int64_t b = 0; s.fill && b < bags; ++b) {
    if (next[b + 1] > 0) continue;
    MarkFilled(b);
    next[b + 1] = 1;
  }
  for (int64_t b = 0; b < bags; ++b) next[b + 1] += next[b];
  std::copy(next.begin(), next.end(), offsets_.get());
  size_ = next[bags];
  if (s.weighted) positions_.resize(size_);
  for (int64_t b = 0; b < bags; ++b) {
    if (filled(b)) Put(next[b], b, s.default_id, -1);
  }
  // Entries of a bag keep their order, as in SparseFillEmptyRows.
  for (int64_t i = 0; i < count; ++i) {
    if (row_of[i] >= 0) Put(next[row_of[i]]++, row_of[i], ids[i], i);
  }
  return {};
}

template <typename Id, typename Row>
BagError BagPlan::BuildFrom(const SparseIds& s) {
  if (BuildOrdered<Id, Row>(s)) return {};
  return BuildAny<Id, Row>(s);
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
