// Spreads the elements of many small members over a thread pool.
#ifndef PICASSO_TF_KERNELS_CORE_SPREAD_H_
#define PICASSO_TF_KERNELS_CORE_SPREAD_H_

#include <algorithm>
#include <vector>

#include "kernels/core/common.h"

namespace picasso {

// Calls body(member, begin, end) for ranges that cover [0, sizes[member]) of
// every member exactly once, perhaps on several threads: a long member is cut,
// short ones share a thread. cost: CPU cycles of one element.
template <typename Body>
void Spread(const std::vector<int64_t>& sizes, int64_t cost,
            const ParallelFor& pool, const Body& body) {
  std::vector<int64_t> ends(sizes.size());
  int64_t total = 0;
  for (size_t m = 0; m < sizes.size(); ++m) ends[m] = total += sizes[m];
  if (total == 0) return;
  pool(total, cost, [&](int64_t begin, int64_t end) {
    // The first member that ends behind `begin`; empty ones are passed over.
    size_t m = std::upper_bound(ends.begin(), ends.end(), begin) - ends.begin();
    while (begin < end) {
      const int64_t first = ends[m] - sizes[m];
      const int64_t stop = std::min(end, ends[m]);
      if (begin < stop) body(m, begin - first, stop - first);
      begin = stop;
      ++m;
    }
  });
}

}  // namespace picasso

#endif  // PICASSO_TF_KERNELS_CORE_SPREAD_H_
