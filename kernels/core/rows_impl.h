// The loops of rows.h, for vectors of kVectorBytes; included into a namespace
// by one .cc file per instruction set. Nothing of the standard library may be
// used here: a function of it compiled for one instruction set could be linked
// for all. (So this has its own of what common.h has.)

typedef float Wide __attribute__((vector_size(kVectorBytes)));
typedef float Narrow __attribute__((vector_size(32)));

// Rows are not aligned.
template <typename V>
inline V Load(const void* from) {
  V value;
  __builtin_memcpy(&value, from, sizeof(V));
  return value;
}

template <typename V>
inline void Store(void* to, V value) {
  __builtin_memcpy(to, &value, sizeof(V));
}

inline void Prefetch(const char* row, int64_t row_bytes) {
  // Two lines cover the usual rows; the hardware follows longer ones.
  __builtin_prefetch(row);
  if (row_bytes > 64) __builtin_prefetch(row + 64);
}

inline bool IsRow(int64_t id, int64_t rows) {
  return static_cast<uint64_t>(id) < static_cast<uint64_t>(rows);
}

template <int64_t kRowBytes>
bool CopyRows(const RowCopies& copies) {
  const RowCopies c = copies;  // that no row written here could be part of
  bool good = true;
  for (int64_t o = c.begin; o < c.end; ++o) {
    char* to = c.output + o * c.output_stride;
    const int64_t next = o + c.ahead < c.end ? o + c.ahead : c.end - 1;
    for (int64_t k = 0; k < c.count; ++k, to += kRowBytes) {
      // An unchecked address may be prefetched, but is not worth forming.
      const int64_t asked =
          IsRow(c.ids[k][next], c.rows[k]) ? c.ids[k][next] : 0;
      Prefetch(c.tables[k] + asked * kRowBytes, kRowBytes);
      const int64_t id = c.ids[k][o];
      if (!IsRow(id, c.rows[k])) {
        good = false;
        continue;
      }
      const char* const from = c.tables[k] + id * kRowBytes;
      if constexpr (kRowBytes >= kVectorBytes) {
        for (int64_t b = 0; b < kRowBytes; b += kVectorBytes) {
          Store(to + b, Load<Wide>(from + b));
        }
      } else {
        __builtin_memcpy(to, from, kRowBytes);
      }
    }
  }
  return good;
}

bool Copy(const RowCopies& c) {
  switch (c.row_bytes) {
    case 4:
      return CopyRows<4>(c);
    case 8:
      return CopyRows<8>(c);
    case 16:
      return CopyRows<16>(c);
    case 32:
      return CopyRows<32>(c);
    case 64:
      return CopyRows<64>(c);
    case 128:
      return CopyRows<128>(c);
    case 256:
      return CopyRows<256>(c);
    default:
      return CopyRows<512>(c);
  }
}

template <typename V, bool kScaled>
inline void AddVector(float* to, const float* from, float factor) {
  V value = Load<V>(from);
  if constexpr (kScaled) value = value * factor;
  Store(to, Load<V>(to) + value);
}

// kDim 0: any.
template <bool kScaled, int64_t kDim>
void AddRows(const RowAdditions& additions) {
  const RowAdditions a = additions;
  constexpr int64_t kWide = kVectorBytes / 4, kNarrow = 8, kAhead = 16;
  const int64_t dim = kDim > 0 ? kDim : a.dim;
  for (int64_t i = 0; i < a.size; ++i) {
    // Rows of a concatenated gradient lie pages apart: hardware won't follow.
    const int64_t next = i + kAhead < a.size ? i + kAhead : a.size - 1;
    Prefetch(reinterpret_cast<const char*>(a.row(next)), dim * 4);
    const float* const from = a.row(i);
    float* const to = a.sums + a.numbers[i] * dim;
    const float factor = kScaled ? a.factors[i] : 1.0f;
    int64_t j = 0;
    for (; j + kWide <= dim; j += kWide) {
      AddVector<Wide, kScaled>(to + j, from + j, factor);
    }
    for (; j + kNarrow <= dim; j += kNarrow) {
      AddVector<Narrow, kScaled>(to + j, from + j, factor);
    }
    for (; j < dim; ++j) {
      to[j] = to[j] + (kScaled ? from[j] * factor : from[j]);
    }
  }
}

template <bool kScaled>
void AddRowsOfAnyDim(const RowAdditions& a) {
  switch (a.dim) {
    case 8:
      return AddRows<kScaled, 8>(a);
    case 16:
      return AddRows<kScaled, 16>(a);
    case 32:
      return AddRows<kScaled, 32>(a);
    case 64:
      return AddRows<kScaled, 64>(a);
    default:
      return AddRows<kScaled, 0>(a);
  }
}

void Add(const RowAdditions& a) {
  if (a.factors != nullptr) {
    AddRowsOfAnyDim<true>(a);
  } else {
    AddRowsOfAnyDim<false>(a);
  }
}
