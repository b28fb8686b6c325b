// SPDX-License-Identifier: Apache-2.0
#include "group/agreement.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "error.hpp"
#include "text.hpp"

namespace backplane::core {
namespace {

// A line for each of the first kCompared different requests: the first rank that made it, and it. Each rank compares
// its own with these, so that most contradictions end at once, and no rank reads the requests of all.
constexpr const char* kAsked = "asked";
constexpr size_t kCompared = 8;
constexpr const char* kMore = "more";    // the number of other requests: more/1, more/2, ..., which the last rank reads
constexpr const char* kOther = "other";  // other/HASH: one of these is noted
constexpr const char* kCalled = "called";  // ranks that have called, plus kMember for each that is in its own request
constexpr int64_t kMember = INT64_C(1) << 32;
constexpr size_t kNamedRanks = 16;

struct Entry {
  int32_t asker = -1;
  GroupRequest request;
};

std::string more_key(int64_t number) { return fmt::format("{}/{}", kMore, number); }

std::string encode_request(const GroupRequest& request) {
  return nlohmann::json{{"split", request.is_split},
                        {"name", request.name},
                        {"backend", request.backend},
                        {"ranks", request.ranks},
                        {"problem", request.problem}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

GroupRequest decode_request(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    return {json.at("split").get<bool>(), json.at("name").get<std::string>(), json.at("backend").get<std::string>(),
            json.at("ranks").get<std::vector<int32_t>>(), json.value("problem", "")};
  } catch (const nlohmann::json::exception&) {
    fail(BP_INTERNAL, "the store holds a malformed request for a group");
  }
}

// A line of kAsked or more/N: the asker, and its request.
std::pair<int32_t, std::string> split_line(const std::string& line) {
  const size_t space = std::min(line.find(' '), line.size());
  return {static_cast<int32_t>(std::atoi(line.c_str())), line.substr(std::min(space + 1, line.size()))};
}

// The requests of some lines that differ from the request `mine`, and whether that one is among them.
std::pair<std::vector<Entry>, bool> others_in(const std::string& lines, const std::string& mine) {
  std::vector<Entry> entries;
  bool has_mine = false;
  for (const std::string& line : split(lines, '\n')) {
    const auto [asker, text] = split_line(line);
    if (text == mine) {
      has_mine = true;
    } else {
      entries.push_back({asker, decode_request(text)});
    }
  }
  return {std::move(entries), has_mine};
}

bool contains(const GroupRequest& request, int32_t rank) {
  return std::find(request.ranks.begin(), request.ranks.end(), rank) != request.ranks.end();
}

bool contradict(const Entry& a, const Entry& b) {
  if (a.request.is_split || b.request.is_split) return true;
  const std::set<int32_t> members(a.request.ranks.begin(), a.request.ranks.end());
  if (members.contains(b.asker) || contains(b.request, a.asker)) return true;
  return std::any_of(b.request.ranks.begin(), b.request.ranks.end(),
                     [&members](int32_t rank) { return members.contains(rank); });
}

std::string describe_request(const GroupRequest& request) {
  if (request.is_split) return "a split";
  const size_t named = std::min(request.ranks.size(), kNamedRanks);
  const std::vector<int32_t> first(request.ranks.begin(), request.ranks.begin() + static_cast<std::ptrdiff_t>(named));
  const std::string list =
      fmt::format("{}{}", fmt::join(first, ", "),
                  named < request.ranks.size() ? fmt::format(" and {} more", request.ranks.size() - named) : "");
  if (!request.problem.empty()) return fmt::format("a group of ranks {} ({})", list, request.problem);
  return fmt::format("group '{}' of ranks {} over {}", request.name, list,
                     request.backend.empty() ? "a backend of its own" : request.backend);
}

std::string sentence(const std::string& parent, const std::string& what) {
  return fmt::format(
      "the ranks of group '{}' make different groups: {}; call new_group and split in the same order, "
      "with the same arguments, on all ranks",
      parent, what);
}

std::string sentence(const std::string& parent, const Entry& a, const Entry& b) {
  return sentence(parent, fmt::format("rank {} asked for {}, rank {} for {}", a.asker, describe_request(a.request),
                                      b.asker, describe_request(b.request)));
}

std::string other_key(const std::string& text) {
  return fmt::format("{}/{:016x}", kOther, std::hash<std::string>()(text));
}

// Once for all ranks with this request, so that the last rank reads no more than there are different ones.
void note_for_the_last(Store& notes, const std::string& line, Deadline deadline) {
  const auto [asker, text] = split_line(line);
  if (notes.compare_set(other_key(text), "", line, deadline) != line) return;
  notes.set(more_key(notes.add(kMore, 1, deadline)), line, deadline);
}

// Notes the request `mine` unless it is there. Returns the requests that contradict it, as far as they are compared.
std::vector<Entry> note(Store& notes, const Entry& mine, Deadline deadline) {
  const std::string text = encode_request(mine.request);
  const std::string line = fmt::format("{} {}", mine.asker, text);
  std::string asked = notes.compare_set(kAsked, "", line, deadline);
  for (;;) {
    auto [others, has_mine] = others_in(asked, text);
    const bool is_full = others.size() >= kCompared;
    std::erase_if(others, [&mine](const Entry& other) { return !contradict(mine, other); });
    if (has_mine) return others;
    if (is_full || !others.empty()) {
      note_for_the_last(notes, line, deadline);
      return others;
    }
    const std::string longer = asked + '\n' + line;
    const std::string now = notes.compare_set(kAsked, asked, longer, deadline);
    if (now == longer) return {};
    asked = now;
  }
}

// All different requests, each with a rank that made it.
std::vector<Entry> all_in(Store& notes, Deadline deadline) {
  std::set<std::string> seen;
  std::vector<Entry> all;
  const auto add = [&seen, &all](const std::string& line) {
    const auto [asker, text] = split_line(line);
    if (seen.insert(text).second) all.push_back({asker, decode_request(text)});
  };
  for (const std::string& line : split(notes.get(kAsked, deadline), '\n')) add(line);
  const int64_t more = notes.add(kMore, 0, deadline);
  for (int64_t number = 1; number <= more; ++number) add(notes.get(more_key(number), deadline));
  return all;
}

// Pairs of requests that contradict each other; of the requests with a common member, each with the first.
std::vector<std::pair<const Entry*, const Entry*>> contradictions(const std::vector<Entry>& all) {
  std::vector<std::pair<const Entry*, const Entry*>> pairs;
  std::map<int32_t, const Entry*> first_with;  // of each member
  for (const Entry& each : all) {
    std::set<const Entry*> found;
    for (const int32_t rank : each.request.ranks) {
      const Entry* const other = first_with.emplace(rank, &each).first->second;
      if (other != &each) found.insert(other);
    }
    for (const Entry* const other : found) pairs.emplace_back(other, &each);
  }
  for (const Entry& each : all) {
    const auto other = first_with.find(each.asker);
    if (other != first_with.end() && other->second != &each) pairs.emplace_back(other->second, &each);
  }
  return pairs;
}

// Once all ranks have called. A rank that is in a request but made another one, with other ranks that are not in its
// own, contradicts none: it is missing among the members. Returns the sentence if `mine` is one of those that fail.
std::string check_all(Store& notes, const ParentView& parent, const GroupRequest& mine, int64_t members,
                      const Refuse& refuse, Deadline deadline) {
  const std::vector<Entry> all = all_in(notes, deadline);
  std::string own;
  const auto end = [&refuse, &mine, &own](const GroupRequest& request, const std::string& why) {
    if (request == mine) own = why;
    if (request.problem.empty()) refuse(request, why);
  };
  const auto pairs = contradictions(all);
  for (const auto& [one, other] : pairs) {
    const std::string why = sentence(parent.name, *one, *other);
    end(one->request, why);
    end(other->request, why);
  }
  int64_t wanted = 0;
  for (const Entry& each : all) {
    if (each.request.problem.empty()) wanted += static_cast<int64_t>(each.request.ranks.size());
  }
  if (!pairs.empty() || wanted == members || all.front().request.is_split) return own;
  const auto is_valid = [](const Entry& each) { return each.request.problem.empty(); };
  const auto first = std::find_if(all.begin(), all.end(), is_valid);
  if (first == all.end()) return own;
  const std::string why = sentence(parent.name, fmt::format("rank {} asked for {}, but not all of these ranks did",
                                                            first->asker, describe_request(first->request)));
  for (const Entry& each : all) end(each.request, why);
  return own;
}

void remove_notes(Store& notes, Deadline deadline) {
  if (notes.removes_prefixes()) return notes.remove_prefix("", deadline);
  const int64_t more = notes.add(kMore, 0, deadline);
  for (int64_t number = 1; number <= more; ++number) {
    notes.remove(other_key(split_line(notes.get(more_key(number), deadline)).second), deadline);
    notes.remove(more_key(number), deadline);
  }
  for (const char* const key : {kAsked, kMore, kCalled}) notes.remove(key, deadline);
}

}  // namespace

void agree_on_group(Store& notes, const ParentView& parent, const GroupRequest& mine, const Refuse& refuse,
                    Deadline deadline) {
  const Entry own = {parent.rank, mine};
  const std::vector<Entry> others = note(notes, own, deadline);
  std::string why;
  if (!others.empty()) {
    why = sentence(parent.name, others.front(), own);
    for (const Entry& other : others) {
      if (other.request.problem.empty()) refuse(other.request, why);
    }
    if (mine.problem.empty()) refuse(mine, why);
  }
  const bool is_member = mine.problem.empty() && contains(mine, parent.rank);
  const int64_t called = notes.add(kCalled, is_member ? kMember + 1 : 1, deadline);
  if (called % kMember == parent.world_size) {
    const std::string found = check_all(notes, parent, mine, called / kMember, refuse, deadline);
    remove_notes(notes, deadline);
    if (why.empty()) why = found;
  }
  if (!mine.problem.empty()) throw Error(BP_INVALID, mine.problem);
  if (!why.empty()) throw Error(BP_INVALID, why, others.empty() ? -1 : others.front().asker);
}

}  // namespace backplane::core
