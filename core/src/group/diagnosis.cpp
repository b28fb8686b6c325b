// SPDX-License-Identifier: Apache-2.0
#include "group/diagnosis.hpp"

#include <fmt/format.h>

#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "group/operation.hpp"
#include "reduce/combine.hpp"

namespace backplane::core {
namespace {

Position::Step step(const Recorder::Entry& entry, int64_t since_ns, int64_t now_ns) {
  return {signature(entry), entry.seq, collective(entry.kind), static_cast<double>(now_ns - since_ns) * 1e-9};
}

std::string numbered(const Position::Step& step) { return fmt::format("{} #{}", step.signature, step.seq); }

std::string name_of(int32_t rank, const Position& position) {
  return fmt::format("rank {} ({})", rank, position.identity);
}

std::string activity(const Position& position) {
  if (position.in_flight) {
    return fmt::format("; it is in {} since {:.1f} s", numbered(*position.in_flight), position.in_flight->seconds);
  }
  if (position.last) {
    return fmt::format("; it last finished {}, {:.1f} s ago", numbered(*position.last), position.last->seconds);
  }
  return "; it has not performed any operation";
}

nlohmann::json to_json(const std::optional<Position::Step>& step) {
  if (!step) return nullptr;
  return {
      {"signature", step->signature}, {"seq", step->seq}, {"collective", step->collective}, {"seconds", step->seconds}};
}

std::optional<Position::Step> step_from(const nlohmann::json& json) {
  if (!json.is_object()) return std::nullopt;
  return Position::Step{json.at("signature").get<std::string>(), json.at("seq").get<uint64_t>(),
                        json.at("collective").get<bool>(), json.at("seconds").get<double>()};
}

// The first few sentences of many.
std::string join_few(const std::vector<std::string>& sentences) {
  constexpr size_t kNamed = 3;
  std::string text;
  for (size_t i = 0; i < sentences.size() && i < kNamed; ++i) text += (i == 0 ? "" : "; ") + sentences[i];
  if (sentences.size() > kNamed) text += fmt::format("; and {} more ranks", sentences.size() - kNamed);
  return text;
}

}  // namespace

std::string signature(const Recorder::Entry& entry) {
  std::string text = op_name(entry.kind);
  if (reduces(entry.kind)) text += fmt::format(" {}", reduce_op_name(entry.reduce_op));
  if (entry.kind != BP_BARRIER) {
    const bool varies = (kVariants & BP_BIT(entry.kind)) != 0;
    text += varies ? fmt::format(" ({})", dtype_name(entry.dtype))
                   : fmt::format(" ({} x {})", dtype_name(entry.dtype), entry.count);
  }
  if (entry.kind == BP_SEND) return text + fmt::format(" to rank {}", entry.rank);
  if (entry.kind == BP_RECV)
    return text + (entry.rank < 0 ? " from any rank" : fmt::format(" from rank {}", entry.rank));
  return entry.rank < 0 ? text : text + fmt::format(" with root {}", entry.rank);
}

std::string signature(const Operation& operation) {
  Recorder::Entry entry;
  entry.count = operation.count;
  entry.kind = operation.op.kind;
  entry.dtype = operation.op.dtype;
  entry.reduce_op = operation.op.reduce_op;
  entry.rank = operation.root_or_peer;
  return signature(entry);
}

Position position(const Recorder& recorder, uint64_t seq, const std::string& identity) {
  Position result;
  result.identity = identity;
  const int64_t now = monotonic_ns();
  int64_t last_end = 0;
  for (const Recorder::Entry& entry : recorder.entries()) {
    const bool done = entry.end_ns != 0;
    if (!done && !result.in_flight) result.in_flight = step(entry, entry.begin_ns, now);
    if (done && entry.end_ns >= last_end) {
      last_end = entry.end_ns;
      result.last = step(entry, entry.end_ns, now);
    }
    if (collective(entry.kind) && entry.seq == seq) {
      result.entered = signature(entry);
      result.finished = done && entry.status == BP_OK;
    }
  }
  return result;
}

std::string encode(const Position& position) {
  return nlohmann::json{{"identity", position.identity},
                        {"entered", position.entered},
                        {"finished", position.finished},
                        {"in_flight", to_json(position.in_flight)},
                        {"last", to_json(position.last)}}
      .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::optional<Position> decode_position(const std::string& text) {
  try {
    const nlohmann::json json = nlohmann::json::parse(text);
    return Position{json.at("identity").get<std::string>(), json.at("entered").get<std::string>(),
                    json.at("finished").get<bool>(), step_from(json.at("in_flight")), step_from(json.at("last"))};
  } catch (const nlohmann::json::exception&) {
    return std::nullopt;
  }
}

std::optional<Diagnosis> find_mismatch(uint64_t seq, const std::map<int32_t, Position>& positions) {
  std::map<std::string, int> votes;
  for (const auto& [rank, position] : positions) ++votes[position.entered];
  votes.erase("");  // has not entered it
  if (votes.size() < 2) return std::nullopt;
  const std::pair<const int32_t, Position>* majority = nullptr;  // the first of them
  for (const auto& entry : positions) {
    const std::string& entered = entry.second.entered;
    if (!entered.empty() && (majority == nullptr || votes[entered] > votes[majority->second.entered]))
      majority = &entry;
  }
  std::vector<std::string> differing;
  int32_t first = -1;
  for (const auto& [rank, position] : positions) {
    if (position.entered.empty() || position.entered == majority->second.entered) continue;
    if (differing.empty()) first = rank;
    differing.push_back(fmt::format("{} entered {} as #{} where rank {} entered {}", name_of(rank, position),
                                    position.entered, seq, majority->first, majority->second.entered));
  }
  return Diagnosis{join_few(differing), first};
}

Diagnosis diagnose(uint64_t seq, const std::string& signature, int32_t world_size,
                   const std::map<int32_t, Position>& positions) {
  if (const auto mismatch = find_mismatch(seq, positions)) return *mismatch;
  std::vector<std::string> silent;
  std::vector<std::string> absent;
  int32_t first_silent = -1;
  int32_t first_absent = -1;
  const auto add = [](std::vector<std::string>& list, int32_t& first, int32_t rank, std::string sentence) {
    if (list.empty()) first = rank;
    list.push_back(std::move(sentence));
  };
  for (int32_t rank = 0; rank < world_size; ++rank) {
    const auto found = positions.find(rank);
    if (found == positions.end()) {
      add(silent, first_silent, rank, fmt::format("rank {} does not answer", rank));
    } else if (found->second.entered.empty()) {
      add(absent, first_absent, rank,
          fmt::format("{} never entered {} #{}{}", name_of(rank, found->second), signature, seq,
                      activity(found->second)));
    }
  }
  if (!absent.empty()) return {join_few(absent), first_absent};
  if (!silent.empty()) return {join_few(silent), first_silent};
  return {fmt::format("all ranks are in {} #{}, and their backend does not progress", signature, seq), -1};
}

}  // namespace backplane::core
