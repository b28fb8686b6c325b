// SPDX-License-Identifier: Apache-2.0
//
// How the ranks of a group learn where the others listen: each publishes its endpoint in the store. In small groups
// each rank reads those of all. In larger ones the rank that publishes last reads them and writes all into one value,
// so that the others read one value instead of one per rank.
#pragma once

#include <string>
#include <vector>

#include "backplane/sdk/sdk.hpp"
#include "handshake.hpp"

namespace backplane::gloo {

class AddressExchange {
 public:
  AddressExchange(const sdk::Host& host, int rank, int world_size)
      : host_(host), rank_(rank), world_size_(world_size) {}

  // Publishes this rank's endpoint. Call once. The rank that calls it last in a large group waits for the store, up to
  // the deadline.
  void publish(const Endpoint& own, const base::Deadline& deadline) const;
  // Waits for the endpoints of all ranks, in order; that of this rank may be empty. Fails with BP_TIMEOUT, which names
  // a rank that has not published, or with BP_INVALID if the ranks have different world sizes.
  std::vector<Endpoint> await_all(const base::Deadline& deadline) const;

 private:
  bool is_large() const;
  std::string read(const std::string& key, size_t size, int64_t timeout_ns) const;
  Endpoint read_endpoint(int peer, int64_t timeout_ns) const;
  Endpoint await(int peer, const base::Deadline& deadline) const;
  void write_all(const base::Deadline& deadline) const;
  std::vector<Endpoint> await_large(const base::Deadline& deadline) const;
  [[noreturn]] void throw_missing(const sdk::Failure& timeout) const;

  const sdk::Host& host_;
  const int rank_;
  const int world_size_;
};

}  // namespace backplane::gloo
