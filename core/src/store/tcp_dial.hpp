// SPDX-License-Identifier: Apache-2.0
//
// Connects a client to the server, with retries, and sends its Hello.
#pragma once

#include <boost/asio/io_context.hpp>
#include <memory>
#include <optional>

#include "security/handshake.hpp"
#include "store/store.hpp"
#include "store/tcp_address.hpp"
#include "store/wire.hpp"

namespace backplane::core {

struct Link {
  boost::asio::io_context io{1};
  Tcp::socket socket{io};
  Welcome welcome;
  // If the job has a secret: for all later frames.
  std::optional<Sealer> sealer = {};
  std::optional<Opener> opener = {};
};

// Blocks the caller until the deadline. BP_TIMEOUT with the last reason; BP_INVALID if the server refuses this client
// or is not a Backplane store.
std::unique_ptr<Link> dial(const TcpStoreOptions& options, const Deadline& deadline);

}  // namespace backplane::core
