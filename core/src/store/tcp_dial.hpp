// SPDX-License-Identifier: Apache-2.0
//
// How a client gets a connection to the server: it tries until somebody answers, and introduces itself.
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
  // If the job has a secret: for all frames from now on.
  std::optional<Sealer> sealer = {};
  std::optional<Opener> opener = {};
};

// Blocks in the calling thread. BP_TIMEOUT with the last reason; BP_INVALID if the server refuses this client or is
// none of ours.
std::unique_ptr<Link> dial(const TcpStoreOptions& options, const Deadline& deadline);

}  // namespace backplane::core
