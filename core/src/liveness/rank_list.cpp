// SPDX-License-Identifier: Apache-2.0
#include "liveness/rank_list.hpp"

#include <algorithm>
#include <charconv>

#include "error.hpp"

namespace backplane::core {

void append_rank(KeyValueSpace& store, const std::string& key, int32_t rank, const Deadline& deadline) {
  const std::string name = fmt::format("{} ", rank);
  std::string held;
  while ((" " + held).find(" " + name) == std::string::npos) {
    held = store.compare_set(key, held, held + name, deadline);
  }
}

std::vector<int32_t> read_ranks(KeyValueSpace& store, const std::string& key, const Deadline& deadline) {
  std::vector<int32_t> ranks;
  if (!store.check({key}, deadline)) return ranks;
  const std::string text = store.get(key, deadline);
  const char* at = text.data();
  for (int32_t rank = -1; std::from_chars(at, text.data() + text.size(), rank).ec == std::errc();) {
    ranks.push_back(rank);
    at = text.data() + std::min(text.find(' ', static_cast<size_t>(at - text.data())), text.size() - 1) + 1;
  }
  return ranks;
}

}  // namespace backplane::core
