// SPDX-License-Identifier: Apache-2.0
//
// A check that all ranks pass the same list, made before the operations that would otherwise time out.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "backplane/process_group.hpp"

namespace backplane::detail {

// The words of the error text: "rank 1 has X as <noun> 4 of <whole>, where rank 0 has Y; <advice>".
struct AgreementWords {
  std::string noun;
  std::string whole;
  std::string advice;
  size_t first = 0;  // the number of the list's first entry
};

inline uint64_t digest_of(const std::vector<std::string>& entries) {
  uint64_t hash = UINT64_C(0xcbf29ce484222325);  // FNV-1a
  for (const std::string& text : entries) {
    for (const char byte : std::string_view(text.c_str(), text.size() + 1)) {
      hash = (hash ^ static_cast<unsigned char>(byte)) * UINT64_C(0x100000001b3);
    }
  }
  return hash;
}

// The list of one rank from its bytes: texts, each followed by a NUL.
inline std::vector<std::string> split_entries(std::string_view bytes) {
  std::vector<std::string> entries;
  while (!bytes.empty()) {
    const size_t size = bytes.find('\0');
    entries.emplace_back(bytes.substr(0, size));
    bytes.remove_prefix(size == std::string_view::npos ? bytes.size() : size + 1);
  }
  return entries;
}

inline std::string entry_at(const std::vector<std::string>& entries, size_t index) {
  return index < entries.size() ? entries[index] : "nothing";
}

// The lowest rank whose entry at `index` is the most frequent one.
inline size_t usual_rank(const std::vector<std::vector<std::string>>& all, size_t index) {
  size_t usual = 0;
  size_t most = 0;
  for (size_t rank = 0; rank < all.size(); ++rank) {
    size_t alike = 0;
    for (const auto& other : all) alike += entry_at(other, index) == entry_at(all[rank], index) ? 1 : 0;
    if (alike > most) {
      most = alike;
      usual = rank;
    }
  }
  return usual;
}

[[noreturn]] inline void tell_difference(const std::vector<std::vector<std::string>>& all,
                                         const AgreementWords& words) {
  size_t longest = 0;
  for (const auto& entries : all) longest = std::max(longest, entries.size());
  for (size_t index = 0; index < longest; ++index) {
    const size_t usual = usual_rank(all, index);
    const std::string expected = entry_at(all[usual], index);
    for (size_t rank = 0; rank < all.size(); ++rank) {
      const std::string entry = entry_at(all[rank], index);
      if (entry == expected) continue;
      fail(Status::kInvalid,
           "rank " + std::to_string(rank) + " has " + entry + " as " + words.noun + " " +
               std::to_string(words.first + index) + " of " + words.whole + ", where rank " + std::to_string(usual) +
               " has " + expected + "; " + words.advice,
           static_cast<int>(rank));
    }
  }
  fail(Status::kInvalid, "the ranks differ in " + words.whole + "; " + words.advice);
}

// Compares a list of texts over all ranks. All ranks must call it. Blocks. If the lists differ, all ranks throw the
// same Status::kInvalid, which names the first difference and the rank in the minority (Error::peer_rank; the higher of
// two). The group stays usable. Takes one all_gather of 8 bytes if the lists are equal.
inline void require_agreement(ProcessGroup& group, const std::vector<std::string>& entries,
                              const AgreementWords& words) {
  const uint64_t mine = digest_of(entries);
  std::vector<uint64_t> digests(static_cast<size_t>(group.world_size()));
  group.all_gather(as_buffer(mine), digests);
  bool same = true;
  for (const uint64_t digest : digests) same = same && digest == mine;
  if (same) return;  // on all ranks alike
  std::string bytes;
  for (const std::string& text : entries) bytes.append(text).push_back('\0');
  std::vector<std::vector<std::string>> all;
  for (const std::string& object : group.all_gather_object(bytes)) all.push_back(split_entries(object));
  tell_difference(all, words);
}

}  // namespace backplane::detail
