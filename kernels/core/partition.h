// Tables in parts: which part holds an id, and in which row, as
// tf.nn.embedding_lookup computes it.
#ifndef PICASSO_TF_KERNELS_CORE_PARTITION_H_
#define PICASSO_TF_KERNELS_CORE_PARTITION_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/core/common.h"

namespace picasso {

// n / divisor and n % divisor for n >= 0. A product in place of the division
// where both fit 32 bits (Lemire, Kaser, Kurz: Faster remainder by direct
// computation).
class Divisor {
 public:
  explicit Divisor(int64_t divisor)
      : divisor_(divisor),
        reciprocal_(divisor > 1 && divisor < (int64_t{1} << 32)
                        ? ~uint64_t{0} / static_cast<uint64_t>(divisor) + 1
                        : 0) {}

  int64_t Quotient(int64_t n) const {
    const uint64_t number = static_cast<uint64_t>(n);
    if (reciprocal_ == 0 || (number >> 32) != 0) return n / divisor_;
    return static_cast<int64_t>(
        (static_cast<unsigned __int128>(reciprocal_) * number) >> 64);
  }

  int64_t divisor() const { return divisor_; }

 private:
  int64_t divisor_;
  uint64_t reciprocal_;
};

enum class PartitionStrategy { kMod, kDiv };

class Partition {
 public:
  struct Place {
    int64_t part;  // a bad id may be in none of the parts, ...
    int64_t row;   // ... or in none of its rows
  };

  // `rows`: of all parts together, at least `parts`; for kDiv alone.
  Partition(PartitionStrategy strategy, int64_t parts, int64_t rows)
      : strategy_(strategy),
        parts_(parts),
        rows_(rows),
        extras_(rows % parts),
        in_larger_(extras_ * (rows / parts + 1)),
        by_parts_(parts),
        by_size_(std::max<int64_t>(rows / parts, 1)),
        by_larger_(rows / parts + 1) {}

  int64_t parts() const { return parts_; }

  Place Find(int64_t id) const {
    if (strategy_ == PartitionStrategy::kMod) {
      if (id < 0) return {FloorMod(id, parts_), FloorDiv(id, parts_)};
      const int64_t row = by_parts_.Quotient(id);
      return {id - row * parts_, row};
    }
    if (!InRange(id, rows_)) return FindOutside(id);
    if (id < in_larger_) {
      const int64_t part = by_larger_.Quotient(id);
      return {part, id - part * by_larger_.divisor()};
    }
    const int64_t rest = id - in_larger_;
    const int64_t part = by_size_.Quotient(rest);
    return {part + extras_, rest - part * by_size_.divisor()};
  }

 private:
  static int64_t FloorDiv(int64_t a, int64_t b) {
    return a / b - (a % b < 0 ? 1 : 0);
  }
  static int64_t FloorMod(int64_t a, int64_t b) {
    return a % b < 0 ? a % b + b : a % b;
  }

  // kDiv's arithmetic as the graph has it, with the cast to int32.
  Place FindOutside(int64_t id) const {
    const int64_t size = by_size_.divisor(), larger = by_larger_.divisor();
    const int64_t rest =
        static_cast<int64_t>(static_cast<uint64_t>(id) - extras_);
    const int64_t part = std::max(FloorDiv(id, larger), FloorDiv(rest, size));
    const int64_t row =
        part < extras_ ? FloorMod(id, larger) : FloorMod(rest, size);
    return {static_cast<int32_t>(part), row};
  }

  PartitionStrategy strategy_;
  int64_t parts_;
  int64_t rows_;
  int64_t extras_;     // parts with one row more than the others
  int64_t in_larger_;  // rows of these
  Divisor by_parts_;
  Divisor by_size_;    // of the other parts
  Divisor by_larger_;  // of these
};

// The memory of a table in parts.
struct TableParts {
  struct Part {
    const char* table = nullptr;  // [rows, row_bytes]; may be null if empty
    int64_t rows = 0;
  };

  const Partition* partition = nullptr;
  std::vector<Part> parts;  // [partition->parts()]

  // The row of an id; null if there is none.
  const char* Row(int64_t id, int64_t row_bytes) const {
    const Partition::Place place = partition->Find(id);
    if (!InRange(place.part, parts.size())) return nullptr;
    const Part& part = parts[place.part];
    if (!InRange(place.row, part.rows)) return nullptr;
    return part.table + place.row * row_bytes;
  }
};

// Which ids of an update belong to a variable that is one part of several.
struct PartFilter {
  const Partition* partition = nullptr;
  int64_t part = 0;

  // Whether an id is in the part, and in which row.
  bool Keep(int64_t id, int64_t* row) const {
    const Partition::Place place = partition->Find(id);
    *row = place.row;
    return place.part == part;
  }
};

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_PARTITION_H_
