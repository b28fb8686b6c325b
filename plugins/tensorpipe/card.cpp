// SPDX-License-Identifier: Apache-2.0
#include "card.hpp"

#include <cstdlib>
#include <sstream>

#include "address.hpp"
#include "backplane/sdk/failure.hpp"

namespace backplane::tensorpipe {
namespace {

std::string transports_of(const Card& card) {
  std::string names(card.uv.empty() ? "" : "uv");
  if (!card.shm.empty()) names.append(names.empty() ? "" : "+").append("shm");
  return names;
}

}  // namespace

std::string place_key(int32_t rank) { return "place/" + std::to_string(rank); }
std::string card_key(int32_t rank) { return "worker/" + std::to_string(rank); }

// Lines, and the token behind them; then, since version 2, which does not keep older workers from reading the rest, one
// more line, and since version 3 another one.
std::string format_card(const Card& card) {
  std::string text;
  for (const std::string* line : {&card.host, &card.uv, &card.shm, &card.devices.name}) {
    text.append(*line).append("\n");
  }
  text.append(std::to_string(card.devices.count)).append("\n");
  text.append(format_device_maps(card.devices.maps)).append("\n");
  text.append(card.token.data(), card.token.size());
  if (card.wire >= 2) text.append(std::to_string(card.wire)).append("\n");
  if (card.wire >= 3) text.append(card.express).append("\n");
  return text;
}

Card parse_card(const std::string& text, int32_t rank) {
  Card card;
  std::istringstream lines(text);
  std::string count;
  std::string maps;
  for (std::string* line : {&card.host, &card.uv, &card.shm, &card.devices.name, &count, &maps}) {
    if (!std::getline(lines, *line)) throw sdk::Failure(BP_INVALID, "a worker has left a broken card", rank);
  }
  if (!lines.read(card.token.data(), static_cast<std::streamsize>(card.token.size()))) {
    throw sdk::Failure(BP_INVALID, "a worker has left a broken card", rank);
  }
  card.wire = 1;
  std::string wire;
  if (std::getline(lines, wire)) card.wire = std::atoi(wire.c_str());
  if (card.wire >= 3) std::getline(lines, card.express);
  if (!wire.empty() && lines.eof()) throw sdk::Failure(BP_INVALID, "a worker has left a broken card", rank);
  card.devices.count = std::atoi(count.c_str());
  card.devices.maps = parse_device_maps(maps);
  return card;
}

void require_same_wire(const Card& mine, const Card& other, int32_t rank) {
  if (mine.wire == other.wire) return;
  throw sdk::Failure(BP_UNSUPPORTED,
                     "worker " + other.devices.name + " speaks version " + std::to_string(other.wire) +
                         " of tensorpipe's messages, and worker " + mine.devices.name + " version " +
                         std::to_string(mine.wire) + "; let all workers run the same version of Backplane",
                     rank);
}

const std::string& way_to(const Card& mine, const Card& other, int32_t rank) {
  const bool together = mine.host == other.host;
  if (together && !mine.shm.empty() && !other.shm.empty()) return other.shm;
  const std::string both = "workers " + mine.devices.name + " and " + other.devices.name;
  if (mine.uv.empty() || other.uv.empty()) {
    throw sdk::Failure(BP_INVALID,
                       both + " have no transport in common" + (together ? "" : ", being on different hosts") + ": " +
                           transports_of(mine) + " here, " + transports_of(other) +
                           " there; give all workers the same option transports, or none",
                       rank);
  }
  if (!together && (is_loopback(mine.uv) || is_loopback(other.uv))) {
    const std::string& who = is_loopback(mine.uv) ? mine.devices.name : other.devices.name;
    throw sdk::Failure(BP_INVALID,
                       both + " are on different hosts, but " + who +
                           " listens on a loopback address; give every worker the option address (as in " +
                           "tensorpipe?address=10.0.0.1), or take process_group",
                       rank);
  }
  return other.uv;
}

}  // namespace backplane::tensorpipe
