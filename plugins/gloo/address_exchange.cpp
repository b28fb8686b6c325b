// SPDX-License-Identifier: Apache-2.0
#include "address_exchange.hpp"

#include <algorithm>
#include <vector>

namespace backplane::gloo {
namespace {

constexpr int kMostRowsRead = 16;  // ranks of a group in which each reads the rows of all

constexpr const char* kPublished = "gloo/published";  // the number of ranks that have published

std::string row_key(int rank) { return "gloo/" + std::to_string(rank); }
std::string column_key(int rank) { return "gloo/for/" + std::to_string(rank); }

// The place of a rank among the others of `rank`.
size_t place_of(int other, int rank) { return static_cast<size_t>(other > rank ? other - 1 : other); }

}  // namespace

bool AddressExchange::is_large() const { return world_size_ > kMostRowsRead; }

// Like Host::store_get, which asks twice for a value of more than a few bytes.
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

// The row of a rank, if it is as long as this rank's.
std::string AddressExchange::read_row(int peer, int64_t timeout_ns) const {
  std::string row = read(row_key(peer), row_size(), timeout_ns);
  if (!row.empty()) return row;
  throw sdk::Failure(BP_INVALID, "rank " + std::to_string(peer) + " uses another world size or another version of gloo",
                     peer);
}

std::string AddressExchange::entry_in(std::string_view row, int from, int to) const {
  std::string entry(row.substr(0, sizeof(Token)));
  return entry.append(row.substr(sizeof(Token) + address_size_ * place_of(to, from), address_size_));
}

void AddressExchange::publish(const std::string& row, const base::Deadline& deadline) {
  host_.store_set(row_key(rank_), row);
  if (is_large() && host_.store_add(kPublished, 1) == world_size_) write_columns(deadline);
}

void AddressExchange::write_columns(const base::Deadline& deadline) const {
  std::vector<std::string> columns(static_cast<size_t>(world_size_));
  for (int from = 0; from < world_size_; ++from) {
    const std::string row = read_row(from, deadline.left_ns());
    for (int to = 0; to < world_size_; ++to) {
      if (to != from) columns[static_cast<size_t>(to)] += entry_in(row, from, to);
    }
  }
  for (int to = 0; to < world_size_; ++to) host_.store_set(column_key(to), columns[static_cast<size_t>(to)]);
}

void AddressExchange::read_column(const base::Deadline& deadline) {
  const size_t size = entry_size() * static_cast<size_t>(world_size_ - 1);
  try {
    column_ = read(column_key(rank_), size, deadline.left_ns());
  } catch (const sdk::Failure& e) {
    if (e.status() != BP_TIMEOUT) throw;
    for (int peer = 0; peer < world_size_; ++peer) {
      try {
        read(row_key(peer), row_size(), 0);
      } catch (const sdk::Failure& missing) {
        if (missing.status() == BP_TIMEOUT) throw sdk::not_joined(peer, e.what());
        throw;
      }
    }
    throw;
  }
  if (column_.empty()) {
    throw sdk::Failure(BP_INVALID, "gloo: the ranks of this group use different versions of the plugin gloo");
  }
}

AddressExchange::Entry AddressExchange::await(int peer, const base::Deadline& deadline) {
  std::string entry;
  if (is_large()) {
    if (column_.empty()) read_column(deadline);
    entry = column_.substr(entry_size() * place_of(peer, rank_), entry_size());
  } else {
    try {
      entry = entry_in(read_row(peer, deadline.left_ns()), peer, rank_);
    } catch (const sdk::Failure& e) {
      if (e.status() == BP_TIMEOUT) throw sdk::not_joined(peer, e.what());
      throw;
    }
  }
  Entry result;
  std::copy_n(entry.begin(), result.token.size(), result.token.begin());
  result.address = entry.substr(sizeof(Token));
  return result;
}

}  // namespace backplane::gloo
