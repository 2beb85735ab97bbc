// Bags: which rows of a table are pooled into which row of the output. A plan
// is made from a SparseTensor where it lies, once per step and member.
#ifndef PICASSO_TF_KERNELS_CORE_BAGS_H_
#define PICASSO_TF_KERNELS_CORE_BAGS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/core/common.h"

namespace picasso {

enum class Combiner { kSum, kMean, kSqrtN };

// The ids of bags, in place. Id number i is in the bag of row i of `rows`: with
// one column its value, with more the index of its leading columns in a tensor
// of `shape`, as SparseReshape to a matrix gives it.
struct SparseIds {
  IdsView ids;                     // [nnz]
  const void* rows = nullptr;      // [nnz, columns]
  bool rows_int64 = true;          // element type of `rows`, else int32_t
  int64_t columns = 1;             // columns of `rows`
  const int64_t* shape = nullptr;  // [columns]; null unless `fill`
  bool weighted = false;           // have the plan keep positions
  bool prune = false;              // leave out ids below zero, ...
  // ... and, unless null, those whose weight is not above zero.
  bool (*above_zero)(const void* weights, int64_t i) = nullptr;
  const void* weights = nullptr;  // for above_zero
  int64_t weights_size = -1;      // an id that counts and has none is an error;
                                  // -1: each id has one
  bool fill = false;              // one bag for each row of `shape`; those
                                  // without ids hold default_id, weight 1
  int64_t default_id = 0;

  // Whether both give the same plan, as long as what they point to stays.
  bool operator==(const SparseIds& o) const {
    return ids == o.ids && rows == o.rows && rows_int64 == o.rows_int64 &&
           columns == o.columns && shape == o.shape && weighted == o.weighted &&
           prune == o.prune && above_zero == o.above_zero &&
           weights == o.weights && weights_size == o.weights_size &&
           fill == o.fill && default_id == o.default_id;
  }
};

// What may be wrong with the rows, and where.
struct BagError {
  enum Kind {
    kNone,
    kOutOfRange,
    kNotIncreasing,
    kNegative,
    kNoRows,
    kNoWeight
  };
  Kind kind = kNone;
  int64_t position = 0;
  int64_t value = 0;
};

// The ids of each bag, in the order in which TensorFlow pools them.
class BagPlan {
 public:
  // Without `fill` the bags end with the last id, and rows must not decrease.
  BagError Build(const SparseIds& source);

  int64_t bags() const { return bags_; }
  int64_t size() const { return size_; }
  // [bags + 1]: bag b has entries [offsets[b], offsets[b + 1]).
  const int64_t* offsets() const { return offsets_.get(); }
  const int64_t* ids() const { return ids_.get(); }        // [size]
  const int64_t* bag_of() const { return bag_of_.get(); }  // [size]
  // Position of each entry in the source; -1 for a default id. Empty unless the
  // source has weights.
  const std::vector<int64_t>& positions() const { return positions_; }
  // Whether bag b had no id and was filled.
  bool filled(int64_t b) const { return any_filled_ && filled_[b] != 0; }
  bool any_filled() const { return any_filled_; }

 private:
  template <typename Id, typename Row>
  BagError BuildFrom(const SparseIds& source);
  // In one pass, if the ids come in the order of their bags. False: they do
  // not, or something is wrong with them.
  template <typename Id, typename Row>
  bool BuildOrdered(const SparseIds& source);
  template <typename Id, typename Row>
  BagError BuildAny(const SparseIds& source);

  void Allocate(const SparseIds& source, int64_t bags, int64_t entries);
  void Put(int64_t at, int64_t bag, int64_t id, int64_t position) {
    ids_[at] = id;
    bag_of_[at] = bag;
    if (!positions_.empty()) positions_[at] = position;
  }
  void MarkFilled(int64_t bag);

  int64_t bags_ = 0;
  int64_t size_ = 0;
  std::unique_ptr<int64_t[]> offsets_;
  std::unique_ptr<int64_t[]> ids_;
  std::unique_ptr<int64_t[]> bag_of_;
  std::vector<int64_t> positions_;
  std::vector<char> filled_;
  bool any_filled_ = false;
};

// The factor of TensorFlow's gradient for a bag of n ids.
inline double GradScale(Combiner combiner, int64_t n) {
  const double count = n > 0 ? static_cast<double>(n) : 1.0;
  if (combiner == Combiner::kMean) return 1.0 / count;
  if (combiner == Combiner::kSqrtN) return 1.0 / __builtin_sqrt(count);
  return 1.0;
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_BAGS_H_
