#include "kernels/core/lookup.h"

#include <algorithm>
#include <cstring>
#include <mutex>
#include <vector>

#include "Eigen/Core"
#include "kernels/core/rows.h"

namespace picasso {
namespace {

// Rows ahead of the copy that are asked for. A row of a large table comes from
// memory, about 100 ns away; a copy of 64 bytes takes a few.
constexpr int64_t kPrefetchDistance = 16;

// Members that are filled side by side: one row of each, then the next row of
// each. Their columns of a concatenated output are then written as one run;
// alone, each row would begin on another page, which costs twice the time.
constexpr int64_t kGroup = 16;

// Work is cut by what is moved, not by tables or rows: in units of about a
// line.
constexpr int64_t kUnitBytes = 64;

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

// The same from a table in parts.
template <typename Id>
int64_t CopyRowsOfParts(const LookupMember& m, int64_t begin, int64_t end) {
  const IdsReader<Id> ids(m.ids);
  const TableParts& parts = *m.parts;
  const int64_t inner = m.chunk_bytes / m.row_bytes;
  const int64_t last = end * inner;
  int64_t bad = -1;
  int64_t i = begin * inner;
  for (int64_t o = begin; o < end; ++o) {
    char* to = m.output + o * m.output_stride;
    for (int64_t j = 0; j < inner; ++j, ++i, to += m.row_bytes) {
      if (i + kPrefetchDistance < last) {
        const char* ahead = parts.Row(ids[i + kPrefetchDistance], m.row_bytes);
        if (ahead != nullptr) PrefetchRow(ahead, m.row_bytes);
      }
      const char* row = parts.Row(ids[i], m.row_bytes);
      if (row != nullptr) {
        std::memcpy(to, row, m.row_bytes);
      } else if (bad < 0) {
        bad = i;
      }
    }
  }
  return bad;
}

template <typename Id>
int64_t CopyRowsOfAnySize(const LookupMember& m, int64_t begin, int64_t end) {
  if (m.parts != nullptr) return CopyRowsOfParts<Id>(m, begin, end);
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

// Outer indices [begin, end) of members that Alike() put together, a row each.
BadId CopyRowsOfGroup(const LookupMember* members, int64_t count, int64_t begin,
                      int64_t end) {
  const char* tables[kGroup];
  const int64_t* ids[kGroup];
  int64_t rows[kGroup];
  for (int64_t k = 0; k < count; ++k) {
    tables[k] = members[k].table;
    ids[k] = static_cast<const int64_t*>(members[k].ids.data);
    rows[k] = members[k].rows;
  }
  RowCopies copies = {};
  copies.tables = tables;
  copies.ids = ids;
  copies.rows = rows;
  copies.count = count;
  copies.row_bytes = members[0].row_bytes;
  copies.begin = begin;
  copies.end = end;
  copies.ahead = 4 * kGroup / count;
  copies.output = members[0].output;
  copies.output_stride = members[0].output_stride;
  if (BestRowKernels().copy(copies)) return {};
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t o = begin; o < end; ++o) {
      if (!InRange(ids[k][o], rows[k])) return {k, o, ids[k][o]};
    }
  }
  return {};
}

void CopyDense(const LookupMember& m, int64_t begin, int64_t end) {
  for (int64_t o = begin; o < end; ++o) {
    std::memcpy(m.output + o * m.output_stride, m.dense + o * m.chunk_bytes,
                m.chunk_bytes);
  }
}

// Whether a member may be part of a group. Of large bags, what is written is
// little beside what is read.
bool Groups(const LookupMember& m) {
  if (m.outer == 0 || m.dense != nullptr) return false;
  if (m.pool != nullptr) {
    return m.chunk_bytes == m.written_bytes() &&
           m.plan->size() <= 2 * m.plan->bags();
  }
  return m.parts == nullptr && m.cast == RowCast::kNone &&
         m.ids.is_plain_int64() && m.rows > 0 && m.chunk_bytes == m.row_bytes &&
         CanCopyRows(m.row_bytes);
}

// Whether `next` lies beside `m`, and is filled by the same function.
bool Alike(const LookupMember& m, const LookupMember& next) {
  return Groups(next) && m.pool == next.pool && m.row_bytes == next.row_bytes &&
         m.outer == next.outer && m.output_stride == next.output_stride &&
         m.output + m.chunk_bytes == next.output;
}

// Members [first, first + count), with one outer index in common.
struct Group {
  int64_t first;
  int64_t count;
  int64_t weight;      // units of work of an outer index
  int64_t first_unit;  // units of the groups before
};

std::vector<Group> GroupsOf(const LookupMember* members, int64_t count,
                            int64_t* units) {
  std::vector<Group> groups;
  *units = 0;
  for (int64_t k = 0; k < count;) {
    const LookupMember& m = members[k];
    Group group = {k, 1, 0, *units};
    if (Groups(m)) {
      while (group.count < kGroup && k + group.count < count &&
             Alike(members[k + group.count - 1], members[k + group.count])) {
        ++group.count;
      }
    }
    k += group.count;
    if (m.outer == 0 || m.chunk_bytes == 0) continue;
    int64_t bytes = group.count * m.chunk_bytes;
    for (int64_t j = k - group.count; j < k && m.pool != nullptr; ++j) {
      bytes += members[j].plan->size() * m.row_bytes / m.outer;
    }
    group.weight = 1 + bytes / kUnitBytes;
    *units += group.weight * m.outer;
    groups.push_back(group);
  }
  return groups;
}

// Outer indices [begin, end) of a group.
BadId Fill(const LookupMember* members, const Group& group, int64_t begin,
           int64_t end) {
  const LookupMember& m = members[group.first];
  if (m.dense != nullptr) {
    CopyDense(m, begin, end);
    return {};
  }
  if (m.pool != nullptr) {
    return m.pool(&m, group.count, begin, end);
  }
  if (group.count > 1) {
    return CopyRowsOfGroup(&m, group.count, begin, end);
  }
  const int64_t bad = m.ids.is_int64
                          ? CopyRowsOfAnySize<int64_t>(m, begin, end)
                          : CopyRowsOfAnySize<int32_t>(m, begin, end);
  if (bad < 0) return {};
  return {0, bad,
          m.ids.is_int64 ? IdsReader<int64_t>(m.ids)[bad]
                         : IdsReader<int32_t>(m.ids)[bad]};
}

}  // namespace

BadId PackedLookup(const LookupMember* members, int64_t count,
                   const ParallelFor& parallel_for) {
  BadId first_bad;
  int64_t units = 0;
  const std::vector<Group> groups = GroupsOf(members, count, &units);
  if (units == 0) return first_bad;
  std::mutex bad_mutex;
  const auto body = [&](int64_t begin, int64_t end) {
    // The group of unit `begin`: the last whose first unit is not behind it.
    auto group = std::upper_bound(groups.begin(), groups.end(), begin,
                                  [](int64_t unit, const Group& g) {
                                    return unit < g.first_unit;
                                  }) -
                 1;
    for (; group != groups.end() && group->first_unit < end; ++group) {
      // An outer index belongs to where its first unit is.
      const auto index_of = [&](int64_t unit) {
        const int64_t within = std::max<int64_t>(unit - group->first_unit, 0);
        return std::min((within + group->weight - 1) / group->weight,
                        members[group->first].outer);
      };
      const int64_t from = index_of(begin), to = index_of(end);
      if (from >= to) continue;
      BadId bad = Fill(members, *group, from, to);
      if (!bad.found()) continue;
      bad.member += group->first;
      std::lock_guard<std::mutex> lock(bad_mutex);
      if (!first_bad.found() ||
          bad.before(first_bad.member, first_bad.position)) {
        first_bad = bad;
      }
    }
  };
  // A byte moved costs about a quarter of a cycle; a row that is not in a
  // cache, much more.
  parallel_for(units, kUnitBytes, body);
  return first_bad;
}

}  // namespace picasso
