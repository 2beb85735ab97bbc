// The fingerprints of TensorFlow's string hashes.
#ifndef PICASSO_TF_KERNELS_OPS_FINGERPRINT_H_
#define PICASSO_TF_KERNELS_OPS_FINGERPRINT_H_

#include <cstdint>
#include <cstdio>
#include <string>

#include "tensorflow/core/platform/tstring.h"
// What tensorflow/core/platform/fingerprint.h calls; the wheels keep the header
// where that one does not look.
#if __has_include(<farmhash.h>)
#include <farmhash.h>
#else
#include "external/farmhash_archive/src/farmhash.h"
#endif

// SipHash-2-4, from highwayhash, which TensorFlow's library exports and whose
// header the wheels lack.
extern "C" uint64_t SipHashC(const uint64_t* key, const char* bytes,
                             const uint64_t size);

namespace picasso {

inline uint64_t Fingerprint(const tensorflow::tstring& text) {
  return ::util::Fingerprint64(text.data(), text.size());
}

// Of the decimal text, as AsString writes it.
inline uint64_t Fingerprint(int64_t value) {
  char text[24];
  const int size =
      std::snprintf(text, sizeof(text), "%lld", static_cast<long long>(value));
  return ::util::Fingerprint64(text, size);
}

// With a key of two words.
inline uint64_t KeyedFingerprint(const uint64_t* key,
                                 const tensorflow::tstring& text) {
  return SipHashC(key, text.data(), text.size());
}

inline uint64_t KeyedFingerprint(const uint64_t* key, int64_t value) {
  const std::string text = std::to_string(value);
  return SipHashC(key, text.data(), text.size());
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_OPS_FINGERPRINT_H_
