// SPDX-License-Identifier: Apache-2.0
#include "checksum.hpp"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace backplane::validate {
namespace {

// Four independent lanes let the multiplications overlap. Each step is a bijection of its lane, so a change of one word
// always changes the lane.
uint64_t sum_of(const std::byte* bytes, size_t left) {
  constexpr uint64_t kOdd = UINT64_C(0x9E3779B97F4A7C15);
  uint64_t lanes[4] = {1, 2, 3, 4};
  const auto step = [](uint64_t lane, uint64_t word) { return std::rotl((lane ^ word) * kOdd, 29); };
  for (; left >= 32; left -= 32, bytes += 32) {
    uint64_t words[4];
    std::memcpy(words, bytes, sizeof words);
    for (size_t i = 0; i < 4; ++i) lanes[i] = step(lanes[i], words[i]);
  }
  uint64_t rest[4] = {};
  std::memcpy(rest, bytes, left);
  for (size_t i = 0; i < 4; ++i) lanes[i] = step(lanes[i], rest[i]);
  return step(step(step(lanes[0], lanes[1]), lanes[2]), lanes[3]);
}

}  // namespace

Fingerprint::Fingerprint(std::vector<Region> regions) : regions_(std::move(regions)) {
  for (const Region& region : regions_) {
    read_chunks(region, false, [this](const std::byte* bytes, const Region& chunk) {
      sums_.emplace(std::pair(chunk.begin, chunk.end), sum_of(bytes, chunk.end - chunk.begin));
      return true;
    });
  }
}

std::optional<Region> Fingerprint::changed(bool may_be_freed) const {
  std::optional<Region> found;
  for (const Region& region : regions_) {
    read_chunks(region, may_be_freed, [this, &found](const std::byte* bytes, const Region& chunk) {
      if (sum_of(bytes, chunk.end - chunk.begin) != sums_.at({chunk.begin, chunk.end})) found = chunk;
      return !found;
    });
    if (found) break;
  }
  return found;
}

}  // namespace backplane::validate
