// SPDX-License-Identifier: Apache-2.0
#include "address_exchange.hpp"

#include <algorithm>
#include <cstring>

namespace backplane::gloo {
namespace {

constexpr int kMostRead = 16;  // ranks of a group in which each reads the endpoints one by one

constexpr const char* kPublished = "gloo/published";  // the number of ranks that have published
constexpr const char* kAll = "gloo/all";              // the endpoints of all ranks of a large group

std::string key_of(int rank) { return "gloo/" + std::to_string(rank); }

}  // namespace

bool AddressExchange::is_large() const { return world_size_ > kMostRead; }

// Like Host::store_get, which asks twice for a value of more than a few bytes. Returns "" if the size differs.
std::string AddressExchange::read(const std::string& key, size_t size, int64_t timeout_ns) const {
  const bp_host& table = *host_.get();
  std::string value(size, '\0');
  bp_error err;
  bp_error_init(&err);
  uint64_t held = 0;
  const int32_t status = table.store_get(table.ctx, key.c_str(), value.data(), size, &held, timeout_ns, &err);
  if (status != BP_OK && (status != BP_RESOURCE || held <= size)) {
    throw sdk::Failure(status, err.text, err.peer_rank, err.native_code);
  }
  value.resize(std::min<size_t>(held, size));
  return held == size ? value : "";
}

Endpoint AddressExchange::read_endpoint(int peer, int64_t timeout_ns) const {
  const std::string bytes = read(key_of(peer), sizeof(Endpoint), timeout_ns);
  Endpoint endpoint;
  if (!bytes.empty()) std::memcpy(&endpoint, bytes.data(), sizeof(endpoint));
  if (!bytes.empty() && endpoint.world_size == world_size_) return endpoint;
  throw sdk::Failure(BP_INVALID,
                     "rank " + std::to_string(peer) + " uses another world size or another version of the plugin gloo",
                     peer);
}

void AddressExchange::publish(const Endpoint& own, const base::Deadline& deadline) const {
  host_.store_set(key_of(rank_), std::string(reinterpret_cast<const char*>(&own), sizeof(own)));
  if (is_large() && host_.store_add(kPublished, 1) == world_size_) write_all(deadline);
}

void AddressExchange::write_all(const base::Deadline& deadline) const {
  std::string all;
  for (int rank = 0; rank < world_size_; ++rank) {
    const Endpoint endpoint = read_endpoint(rank, deadline.left_ns());
    all.append(reinterpret_cast<const char*>(&endpoint), sizeof(endpoint));
  }
  host_.store_set(kAll, all);
}

std::vector<Endpoint> AddressExchange::await_all(const base::Deadline& deadline) const {
  if (is_large()) return await_large(deadline);
  std::vector<Endpoint> endpoints(static_cast<size_t>(world_size_));
  for (int peer = 0; peer < world_size_; ++peer) {
    if (peer != rank_) endpoints[static_cast<size_t>(peer)] = await(peer, deadline);
  }
  return endpoints;
}

Endpoint AddressExchange::await(int peer, const base::Deadline& deadline) const {
  try {
    return read_endpoint(peer, deadline.left_ns());
  } catch (const sdk::Failure& e) {
    if (e.status() == BP_TIMEOUT) throw sdk::not_joined(peer, e.what());
    throw;
  }
}

std::vector<Endpoint> AddressExchange::await_large(const base::Deadline& deadline) const {
  std::vector<Endpoint> endpoints(static_cast<size_t>(world_size_));
  const size_t size = endpoints.size() * sizeof(Endpoint);
  std::string all;
  try {
    all = read(kAll, size, deadline.left_ns());
  } catch (const sdk::Failure& e) {
    if (e.status() == BP_TIMEOUT) throw_missing(e);
    throw;
  }
  if (all.empty()) {
    throw sdk::Failure(BP_INVALID, "gloo: the ranks of this group use different versions of the plugin gloo");
  }
  std::memcpy(endpoints.data(), all.data(), size);
  return endpoints;
}

// Names a rank that has not published.
void AddressExchange::throw_missing(const sdk::Failure& timeout) const {
  for (int peer = 0; peer < world_size_; ++peer) {
    try {
      read(key_of(peer), sizeof(Endpoint), 0);
    } catch (const sdk::Failure& missing) {
      if (missing.status() == BP_TIMEOUT) throw sdk::not_joined(peer, timeout.what());
      throw;
    }
  }
  throw timeout;
}

}  // namespace backplane::gloo
