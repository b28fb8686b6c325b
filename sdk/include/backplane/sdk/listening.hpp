// SPDX-License-Identifier: Apache-2.0
//
// For backends that listen on a port: on which address, and whether the other ranks can reach it.
//
// The network of a job is that of its store: a rank listens on the address from which it reaches the store. If that is
// a loopback address, or the store is not reached over TCP, it listens on loopback. An option that names an address
// comes first.
#pragma once

#include <string>
#include <string_view>

#include "backplane/base/host.hpp"
#include "process_group.hpp"

#if __has_include("backplane/abi/ext/network.h")  // missing from the C headers of 1.0
#include "backplane/abi/ext/network.h"
#endif

namespace backplane::sdk {

// Why a rank listens on its store_address(), for logs.
inline constexpr const char* kReachesStore = "this rank reaches the job's store from it";

namespace detail {

// As bp_network_api::store_address. Empty if the host or the C headers lack it.
inline std::string reported_store_address([[maybe_unused]] const bp_host* host) {
#ifdef BP_EXT_NETWORK
  const auto* network = static_cast<const bp_network_api*>(host->extension(host->ctx, BP_EXT_NETWORK));
  if (network != nullptr) return network->store_address;
#endif
  return "";
}

}  // namespace detail

// The local address of this rank's connection to the store, numeric; an IPv4 address in IPv6 form as IPv4. Empty if no
// other host can reach it: loopback, link-local (valid on one link only), or the store is not reached over TCP.
inline std::string store_address(const Host& host) {
  constexpr std::string_view kMapped = "::ffff:";
  std::string address = detail::reported_store_address(host.get());
  if (address.starts_with(kMapped) && address.find('.') != std::string::npos) address.erase(0, kMapped.size());
  return base::is_loopback(address) || address.starts_with("fe80:") ? "" : address;
}

struct ListeningAddress {
  std::string address;  // numeric
  const char* why;
};

// The address on which this rank listens: `named`, the value of an option, if not empty, else by the rule above.
inline ListeningAddress choose_address(const Context& context, const std::string& named) {
  if (!named.empty()) return {named, "an option selects it"};
  if (const std::string address = store_address(context.host); !address.empty()) return {address, kReachesStore};
  return {"127.0.0.1", "this rank does not reach the job's store over a network"};
}

inline void log_choice(const Context& context, const ListeningAddress& chosen) {
  const uint32_t level = base::is_loopback(chosen.address) ? BP_LOG_DEBUG : BP_LOG_INFO;
  context.host.log(level, "listens on " + chosen.address + ": " + chosen.why);
}

// choose_address() and log_choice().
inline std::string listening_address(const Context& context, const std::string& named) {
  const ListeningAddress chosen = choose_address(context, named);
  log_choice(context, chosen);
  return chosen.address;
}

// The address in "tcp://10.0.0.1:1234" or "uv://[fd00::1]:1234"; empty if there is none.
inline std::string address_in(const std::string& url) {
  constexpr std::string_view kScheme = "://";
  const size_t scheme = url.find(kScheme);
  const size_t colon = url.rfind(':');
  if (scheme == std::string::npos || colon < scheme + kScheme.size()) return "";
  const size_t begin = scheme + kScheme.size();
  const bool is_bracketed = url[begin] == '[' && colon > begin + 2;
  return is_bracketed ? url.substr(begin + 1, colon - begin - 2) : url.substr(begin, colon - begin);
}

// A rank and the address on which it listens.
struct Listener {
  std::string name;     // "rank 0"
  std::string host;     // base::host_identity(); empty: unknown
  std::string address;  // numeric
};

// Throws BP_INVALID if two ranks are on different hosts and one of them listens on loopback. `peer`: the rank of
// `other`.
inline void refuse_loopback_between_hosts(const Listener& mine, const Listener& other, int32_t peer) {
  if (mine.host == other.host || mine.host.empty() || other.host.empty()) return;
  if (!base::is_loopback(mine.address) && !base::is_loopback(other.address)) return;
  throw Failure(BP_INVALID,
                other.name + " listens on " + other.address + " and " + mine.name + " on " + mine.address +
                    ", but they are on different hosts, which do not reach each other's loopback addresses; let all "
                    "ranks reach the job's store by an address of the network (MASTER_ADDR), or give every rank the "
                    "backend's option address",
                peer);
}

}  // namespace backplane::sdk
