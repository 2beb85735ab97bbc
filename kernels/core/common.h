// Types shared by the kernels. Nothing here knows TensorFlow: memory, threads
// and names are handed in by the caller.
#ifndef PICASSO_TF_KERNELS_CORE_COMMON_H_
#define PICASSO_TF_KERNELS_CORE_COMMON_H_

#include <cstdint>
#include <functional>

// Marks what the CUDA kernels share with the CPU's.
#ifdef __CUDACC__
#define PICASSO_HOST_DEVICE __host__ __device__
#else
#define PICASSO_HOST_DEVICE
#endif

namespace picasso {

// Runs body(begin, end) over disjoint ranges that cover [0, total), perhaps on
// several threads, and returns when all of them are done. cost_per_unit is in
// CPU cycles. The pool belongs to the caller; kernels never create a thread.
using ParallelFor =
    std::function<void(int64_t total, int64_t cost_per_unit,
                       const std::function<void(int64_t, int64_t)>& body)>;

// What the graph did with ids outside of the table before it looked them up.
enum class IdsMode : int32_t {
  kPlain = 0,  // nothing
  kWrap = 1,   // added the table's rows to negative ones (Keras 3.3 and later)
  kClip = 2,   // moved them to the first or last row (Keras 3.0 to 3.2)
};
constexpr int kIdsModes = 3;

// The ids of one field, read in place from the tensor that holds them. Id
// number i is element (i / width) * stride + i % width of `data`, so a column
// (or a few neighbouring columns) of a [batch, fields] matrix needs no slice.
struct IdsView {
  const void* data = nullptr;  // first id of the field
  bool is_int64 = false;       // element type of `data`: int64_t, else int32_t
  bool narrow = false;  // the graph cast int64 to int32: do as that cast does
  IdsMode mode = IdsMode::kPlain;  // applied behind `narrow`
  int64_t size = 0;                // ids in this field
  int64_t width = 1;               // ids that lie next to each other
  int64_t stride = 1;  // elements from one run of `width` ids to the next
  int64_t rows = 0;    // of the table; used by `mode` alone

  // Whether `data` is just the ids, as int64_t.
  bool is_plain_int64() const {
    return is_int64 && !narrow && mode == IdsMode::kPlain && width == stride;
  }

  // Whether both read the same ids in the same way.
  bool operator==(const IdsView& o) const {
    return data == o.data && is_int64 == o.is_int64 && narrow == o.narrow &&
           mode == o.mode && size == o.size && width == o.width &&
           stride == o.stride && (mode == IdsMode::kPlain || rows == o.rows);
  }
};

// Reads ids of one element type. A separate type so that loops are compiled
// once per element type and the contiguous case costs no division.
template <typename Id>
class IdsReader {
 public:
  PICASSO_HOST_DEVICE explicit IdsReader(const IdsView& view)
      : data_(static_cast<const Id*>(view.data)),
        width_(view.width),
        stride_(view.stride),
        wrap_(view.mode == IdsMode::kWrap ? view.rows : 0),
        last_(view.mode == IdsMode::kClip ? view.rows - 1 : INT64_MAX),
        first_(view.mode == IdsMode::kClip ? 0 : INT64_MIN),
        contiguous_(view.width == view.stride),
        narrow_(view.narrow) {}

  PICASSO_HOST_DEVICE int64_t operator[](int64_t i) const {
    int64_t at = i;
    if (!contiguous_) {
      at = width_ == 1 ? i * stride_ : (i / width_) * stride_ + i % width_;
    }
    int64_t id = data_[at];
    if (narrow_) id = static_cast<int32_t>(id);
    // Without a branch, since most ids need none of this.
    id += (id >> 63) & wrap_;
    id = id < last_ ? id : last_;
    return id > first_ ? id : first_;
  }

 private:
  const Id* data_;
  int64_t width_;
  int64_t stride_;
  int64_t wrap_;
  int64_t last_;
  int64_t first_;
  bool contiguous_;
  bool narrow_;
};

// The first id, by (member, position), that lies outside its own table.
struct BadId {
  int64_t member = -1;  // -1: every id was good
  int64_t position = 0;
  int64_t value = 0;

  bool found() const { return member >= 0; }
  bool before(int64_t other_member, int64_t other_position) const {
    return member < other_member ||
           (member == other_member && position < other_position);
  }
};

// Whether `id` is a row of a table with `rows` rows; one comparison.
PICASSO_HOST_DEVICE inline bool InRange(int64_t id, int64_t rows) {
  return static_cast<uint64_t>(id) < static_cast<uint64_t>(rows);
}

// Whether all are. Without a branch, several at a time.
inline bool AllInRange(const int64_t* ids, int64_t count, int64_t rows) {
  bool bad = false;
  for (int64_t i = 0; i < count; ++i) bad |= !InRange(ids[i], rows);
  return !bad;
}

// Asks for a row that will be read.
inline void PrefetchRow(const char* row, int64_t row_bytes) {
  // Two lines cover the usual rows; the hardware follows longer ones.
  __builtin_prefetch(row);
  if (row_bytes > 64) __builtin_prefetch(row + 64);
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_COMMON_H_
