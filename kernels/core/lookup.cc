#include "kernels/core/lookup.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "Eigen/Core"

namespace picasso {
namespace {

// Rows ahead of the copy that are asked for. A row of a large table comes from
// memory, about 100 ns away; a copy of 64 bytes takes a few.
constexpr int64_t kPrefetchDistance = 16;

inline void PrefetchRow(const char* row, int64_t row_bytes) {
  // Two lines cover the usual rows; the hardware follows longer ones.
  __builtin_prefetch(row);
  if (row_bytes > 64) __builtin_prefetch(row + 64);
}

// Copies a row of a size known to the compiler, which then needs no call.
template <int64_t kRowBytes>
struct FixedCopy {
  explicit FixedCopy(int64_t) {}
  void operator()(char* to, const char* from) const {
    std::memcpy(to, from, kRowBytes);
  }
};

// A float32 row as Cast writes it.
template <typename T>
struct CastCopy {
  explicit CastCopy(int64_t row_bytes) : dim(row_bytes / sizeof(float)) {}
  void operator()(char* to, const char* from) const {
    using Eigen::Array;
    using Eigen::Dynamic;
    using Eigen::Map;
    Map<Array<T, Dynamic, 1>>(reinterpret_cast<T*>(to), dim) =
        Map<const Array<float, Dynamic, 1>>(
            reinterpret_cast<const float*>(from), dim)
            .template cast<T>();
  }
  int64_t dim;
};

struct AnyCopy {
  explicit AnyCopy(int64_t row_bytes) : row_bytes(row_bytes) {}
  void operator()(char* to, const char* from) const {
    std::memcpy(to, from, row_bytes);
  }
  int64_t row_bytes;
};

// Rows of outer indices [begin, end). Returns the position of the first bad
// id, or -1.
template <typename Id, typename Copy>
int64_t CopyRows(const LookupMember& m, int64_t begin, int64_t end) {
  const IdsReader<Id> ids(m.ids);
  const Copy copy(m.row_bytes);
  const int64_t written = m.written_bytes();
  const int64_t inner = m.chunk_bytes / written;
  const int64_t last = end * inner;
  int64_t bad = -1;
  int64_t i = begin * inner;
  for (int64_t o = begin; o < end; ++o) {
    char* to = m.output + o * m.output_stride;
    for (int64_t j = 0; j < inner; ++j, ++i, to += written) {
      if (i + kPrefetchDistance < last) {
        const int64_t ahead = ids[i + kPrefetchDistance];
        // An unchecked address may be prefetched, but is not worth forming.
        if (InRange(ahead, m.rows)) {
          PrefetchRow(m.table + ahead * m.row_bytes, m.row_bytes);
        }
      }
      const int64_t id = ids[i];
      if (!InRange(id, m.rows)) {
        if (bad < 0) bad = i;
        continue;
      }
      copy(to, m.table + id * m.row_bytes);
    }
  }
  return bad;
}

template <typename Id>
int64_t CopyRowsOfAnySize(const LookupMember& m, int64_t begin, int64_t end) {
  if (m.cast == RowCast::kFloatToHalf) {
    return CopyRows<Id, CastCopy<Eigen::half>>(m, begin, end);
  }
  if (m.cast == RowCast::kFloatToBfloat16) {
    return CopyRows<Id, CastCopy<Eigen::bfloat16>>(m, begin, end);
  }
  switch (m.row_bytes) {
    case 4:
      return CopyRows<Id, FixedCopy<4>>(m, begin, end);
    case 16:
      return CopyRows<Id, FixedCopy<16>>(m, begin, end);
    case 32:
      return CopyRows<Id, FixedCopy<32>>(m, begin, end);
    case 64:
      return CopyRows<Id, FixedCopy<64>>(m, begin, end);
    case 128:
      return CopyRows<Id, FixedCopy<128>>(m, begin, end);
    case 256:
      return CopyRows<Id, FixedCopy<256>>(m, begin, end);
    default:
      return CopyRows<Id, AnyCopy>(m, begin, end);
  }
}

void CopyDense(const LookupMember& m, int64_t begin, int64_t end) {
  for (int64_t o = begin; o < end; ++o) {
    std::memcpy(m.output + o * m.output_stride, m.dense + o * m.chunk_bytes,
                m.chunk_bytes);
  }
}

}  // namespace

BadId PackedLookup(const LookupMember* members, int64_t count,
                   const ParallelFor& parallel_for) {
  BadId first_bad;
  if (count == 0) return first_bad;
  const LookupMember& last = members[count - 1];
  const int64_t units = last.first_unit + last.outer;
  if (units == 0) return first_bad;

  int64_t bytes = 0;
  for (int64_t k = 0; k < count; ++k) {
    const LookupMember& m = members[k];
    bytes += m.pool == nullptr ? m.outer * m.chunk_bytes
                               : m.plan->size() * m.row_bytes;
  }
  std::mutex bad_mutex;
  const auto body = [&](int64_t begin, int64_t end) {
    // The member that holds unit `begin`: the last whose first unit is not
    // behind it. Members without units share a first unit with their
    // successor and are passed over by the loop.
    int64_t k = std::upper_bound(members, members + count, begin,
                                 [](int64_t unit, const LookupMember& m) {
                                   return unit < m.first_unit;
                                 }) -
                members - 1;
    for (; k < count && members[k].first_unit < end; ++k) {
      const LookupMember& m = members[k];
      const int64_t from = std::max<int64_t>(begin - m.first_unit, 0);
      const int64_t to = std::min(end - m.first_unit, m.outer);
      if (from >= to || m.chunk_bytes == 0) continue;
      if (m.dense != nullptr) {
        CopyDense(m, from, to);
        continue;
      }
      const int64_t bad = m.pool != nullptr ? m.pool(m, from, to)
                          : m.ids.is_int64
                              ? CopyRowsOfAnySize<int64_t>(m, from, to)
                              : CopyRowsOfAnySize<int32_t>(m, from, to);
      if (bad >= 0) {
        const int64_t value = m.pool != nullptr ? m.plan->ids()[bad]
                              : m.ids.is_int64 ? IdsReader<int64_t>(m.ids)[bad]
                                               : IdsReader<int32_t>(m.ids)[bad];
        std::lock_guard<std::mutex> lock(bad_mutex);
        if (!first_bad.found() || !first_bad.before(k, bad)) {
          first_bad = {k, bad, value};
        }
      }
    }
  };
  // A cache miss is about 200 cycles, and a byte moved costs about a quarter.
  parallel_for(units, 200 + bytes / units / 4, body);
  return first_bad;
}

}  // namespace picasso
