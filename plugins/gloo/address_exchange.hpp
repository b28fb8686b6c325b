// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a group learn where the others listen. A rank listens on one address per peer, so the addresses of
// all ranks are a matrix: a rank publishes its row in the store, and needs its column. In small groups each rank reads
// all rows. In larger ones the rank that publishes last reads them and writes the columns, so that the others read one
// value each instead of one per rank.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "backplane/sdk/sdk.hpp"
#include "handshake.hpp"

namespace backplane::gloo {

class AddressExchange {
 public:
  // Where one rank listens for this one.
  struct Entry {
    Token token = {};     // what to send first
    std::string address;  // gloo's bytes
  };

  // All addresses have the same size.
  AddressExchange(const sdk::Host& host, int rank, int world_size, size_t address_size)
      : host_(host), rank_(rank), world_size_(world_size), address_size_(address_size) {}

  // Publishes this rank's row: its token, then its addresses for the ranks below and above it. Call once. The rank that
  // calls it last in a large group waits for the store, up to the deadline.
  void publish(const std::string& row, const base::Deadline& deadline);
  // Waits for the addresses of `peer`. Fails with BP_TIMEOUT, which names a rank that has not published, or with
  // BP_INVALID if the ranks have different world sizes.
  Entry await(int peer, const base::Deadline& deadline);

 private:
  bool is_large() const;
  size_t row_size() const { return sizeof(Token) + address_size_ * static_cast<size_t>(world_size_ - 1); }
  size_t entry_size() const { return sizeof(Token) + address_size_; }
  std::string read(const std::string& key, size_t size, int64_t timeout_ns) const;
  std::string read_row(int peer, int64_t timeout_ns) const;
  std::string entry_in(std::string_view row, int from, int to) const;
  void write_columns(const base::Deadline& deadline) const;
  void read_column(const base::Deadline& deadline);

  const sdk::Host& host_;
  const int rank_;
  const int world_size_;
  const size_t address_size_;
  std::string column_;  // the entries of the other ranks, once read
};

}  // namespace backplane::gloo
