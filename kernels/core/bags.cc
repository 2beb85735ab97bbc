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

// Step by step over all ids, since how many a bag has, and which are kept,
// nobody could foretell: each branch on it would cost more than all the rest.
template <typename Id, typename Row>
bool BagPlan::BuildOrdered(const SparseIds& s) {
  if (s.above_zero != nullptr || s.weights_size >= 0) return false;
  const IdsReader<Id> ids(s.ids);
  const Row* const rows = static_cast<const Row*>(s.rows);
  const int64_t count = s.ids.size, columns = s.columns;
  const int64_t bags = BagCount(s, ids, rows);
  if (bags == 0 || (columns > 2 && s.shape != nullptr)) return false;
  const auto bag = [=](int64_t i) { return int64_t{rows[i * columns]}; };
  bool ordered = count == 0 || (bag(0) >= 0 && bag(count - 1) < bags);
  for (int64_t i = 1; i < count; ++i) ordered &= bag(i - 1) <= bag(i);
  if (!ordered) return false;

  Allocate(s, bags, count + 1 + (s.fill ? bags : 0));
  int64_t* const offsets = offsets_.get();
  std::fill_n(offsets, bags + 1, 0);
  const int64_t all = s.prune ? 0 : 1;
  const auto keeps = [=](int64_t id) { return int64_t{id >= 0} | all; };
  for (int64_t i = 0; i < count; ++i) offsets[bag(i) + 1] += keeps(ids[i]);

  const int64_t fill = s.fill;
  filled_.resize(s.fill ? bags : 0);
  const std::unique_ptr<int64_t[]> before(new int64_t[bags]);  // filled ones
  int64_t fills = 0, at = 0;
  for (int64_t b = 0; b < bags; ++b) {
    const int64_t size = offsets[b + 1];
    const int64_t fills_this = fill & int64_t{size == 0};
    before[b] = fills;
    fills += fills_this;
    at += size + fills_this;
    offsets[b + 1] = at;
    if (fill) filled_[b] = static_cast<char>(fills_this);
  }
  any_filled_ = fills > 0;
  size_ = at;

  int64_t put = 0;
  for (int64_t i = 0; i < count; ++i) {
    // An id that is not kept is overwritten by what has its place.
    const int64_t id = ids[i], of = bag(i);
    Put(put + before[of], of, id, i);
    put += keeps(id);
  }
  for (int64_t b = 0; any_filled_ && b < bags; ++b) {
    const int64_t mask = -static_cast<int64_t>(filled_[b]), to = offsets[b];
    const int64_t position = positions_.empty() ? 0 : positions_[to];
    Put(to, (bag_of_[to] & ~mask) | (b & mask),
        (ids_[to] & ~mask) | (s.default_id & mask), position | mask);
  }
  if (s.weighted) positions_.resize(size_);
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
