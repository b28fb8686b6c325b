// SPDX-License-Identifier: Apache-2.0
#include "copy_tuner.hpp"

#include <bit>
#include <cstdio>
#include <utility>

namespace backplane::shm {
namespace {

std::string size_text(uint64_t size) {
  return size < UINT64_C(1) << 20 ? std::to_string(size >> 10) + " KiB" : std::to_string(size >> 20) + " MiB";
}

}  // namespace

size_t CopyTuner::index(uint64_t size) { return static_cast<size_t>(std::bit_width(size >> 1)); }

CopyTuner::Try CopyTuner::next_try(uint64_t size) const {
  const uint32_t number = at(size).tries;
  const uint32_t first = 2 * per_turn(size);
  if (number < first || !is_long(size)) return {number / per_turn(size) % 2 == 0, true};
  return {(number - first) / kTries == 0, (number - first) % kTries >= kTries / 2};
}

bool CopyTuner::reads(uint64_t size) const {
  const Class& found = at(size);
  if (use_ != Cma::kAuto) return use_ == Cma::kOn;
  return is_open(size) ? next_try(size).reads : found.best[1] < found.best[0];
}

bool CopyTuner::record(uint64_t size, bool were_read, int64_t ns) {
  Class& found = classes_[index(size)];
  if (!is_open(size) || were_read != next_try(size).reads) return false;  // so that both ways are tried equally often
  double each = static_cast<double>(ns) / static_cast<double>(size);
  double& best = found.best[were_read ? 1 : 0];
  if (found.needs_full_trial && is_long(size)) {
    auto& shortest = found.shortest[were_read ? 1 : 0];
    for (double& known : shortest) {
      if (next_try(size).counts && (known == 0 || each < known)) std::swap(known, each);
    }
    best = shortest.back();
  } else if (ns > 0 && (best == 0 || each < best)) {
    best = each;
  }
  ++found.tries;
  return !is_open(size);
}

bool CopyTuner::decide(uint64_t size, const Best& best) {
  Class& found = classes_[index(size)];
  found.best = best;
  const bool is_far_behind = best[0] > 0 && best[1] > 0 && best[0] > kFarBehind * best[1];
  if (!found.needs_full_trial && !is_far_behind) {
    found.needs_full_trial = true;
    if (is_long(size)) found.best = {}, found.shortest = {};
    return false;
  }
  found.is_decided = true;
  const bool decision = reads(size);
  return std::exchange(found.decision, decision) != decision;
}

void CopyTuner::count_use(uint64_t size) {
  Class& found = classes_[index(size)];
  if (use_ != Cma::kAuto || ++found.uses < kUsesUntilRetry) return;
  found.uses = found.tries = 0;
  found.needs_full_trial = found.is_decided = false;
  found.best = {};
}

std::string CopyTuner::text(uint64_t size) const {
  const uint64_t least = UINT64_C(1) << index(size);
  const auto us = [this, size, least](size_t way) { return at(size).best[way] * static_cast<double>(least) / 1000; };
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "%s: %s, %.1f us by process_vm_readv, %.1f us staged",
                size_text(least).c_str(), reads(size) ? "read in place" : "staged", us(1), us(0));
  return text.data();
}

}  // namespace backplane::shm
