// SPDX-License-Identifier: Apache-2.0
#include "address.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "backplane/base/host.hpp"
#include "backplane/sdk/listening.hpp"

namespace backplane::gloo {
namespace {

struct Candidate {
  std::string iface;
  std::string address;  // as text
  sockaddr_storage bytes = {};
  socklen_t size = 0;
  bool loopback = false;

  std::string text() const { return address + " (" + iface + ")"; }
};

std::string text_of(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* bits = address->sa_family == AF_INET
                         ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                         : static_cast<const void*>(&reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr);
  inet_ntop(address->sa_family, bits, text, sizeof text);
  return text;
}

bool is_usable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  // Link-local addresses are valid only on their own link.
  return entry.ifa_addr->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr)->sin6_addr);
}

// Returns the addresses of all interfaces that are up: IPv4 first, otherwise in the kernel's order.
std::vector<Candidate> local_addresses() {
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) {
    throw sdk::Failure(BP_RESOURCE, std::string("cannot list the network interfaces: ") + std::strerror(errno), -1,
                       errno);
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(list, freeifaddrs);
  std::vector<Candidate> result;
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (!is_usable(*entry)) continue;
    Candidate candidate;
    candidate.iface = entry->ifa_name;
    candidate.address = text_of(entry->ifa_addr);
    candidate.size = entry->ifa_addr->sa_family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    std::memcpy(&candidate.bytes, entry->ifa_addr, candidate.size);
    candidate.loopback = (entry->ifa_flags & IFF_LOOPBACK) != 0;
    result.push_back(candidate);
  }
  std::stable_partition(result.begin(), result.end(),
                        [](const Candidate& candidate) { return candidate.bytes.ss_family == AF_INET; });
  return result;
}

std::string listed(const std::vector<Candidate>& candidates) {
  std::string text;
  for (const Candidate& candidate : candidates) text += (text.empty() ? "" : ", ") + candidate.text();
  return text.empty() ? "none" : text;
}

Candidate by_interface(const std::vector<Candidate>& candidates, const std::string& name, const std::string& from) {
  for (const Candidate& candidate : candidates) {
    if (candidate.iface == name) return candidate;
  }
  throw sdk::Failure(BP_INVALID,
                     from + " names the network interface '" + name +
                         "', which does not exist on this host or has no address; available: " + listed(candidates));
}

// Resolves a host name or the text of an address.
std::vector<std::string> resolved(const std::string& name) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  if (getaddrinfo(name.c_str(), nullptr, &hints, &list) != 0) return {};
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(list, freeaddrinfo);
  std::vector<std::string> result;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    result.push_back(text_of(entry->ai_addr));
  }
  return result;
}

const Candidate* match(const std::vector<Candidate>& candidates, const std::vector<std::string>& addresses) {
  for (const std::string& address : addresses) {
    for (const Candidate& candidate : candidates) {
      if (candidate.address == address) return &candidate;
    }
  }
  return nullptr;
}

Candidate by_address(const std::vector<Candidate>& candidates, const std::string& name) {
  const std::vector<std::string> addresses = resolved(name);
  if (const Candidate* found = match(candidates, addresses)) return *found;
  const std::string is =
      addresses.empty() ? "cannot be resolved" : "is " + addresses[0] + ", which is not an address of this host";
  throw sdk::Failure(BP_INVALID, "the option address=" + name + " " + is + "; available: " + listed(candidates));
}

std::string vote_key(int32_t rank) { return "gloo/voted/" + std::to_string(rank); }

bool has_voted(const sdk::Context& context, int32_t rank) {
  try {
    context.host.store_get(vote_key(rank), 0);
    return true;
  } catch (const sdk::Failure& e) {
    return e.status() != BP_TIMEOUT;  // a store that fails leaves this open
  }
}

// Like store_get, but a timeout names the first rank that has not joined.
std::string get_or_name_absent_rank(const sdk::Context& context, const std::string& key,
                                    const base::Deadline& deadline) {
  try {
    return context.host.store_get(key, deadline.left_ns());
  } catch (const sdk::Failure& e) {
    if (e.status() != BP_TIMEOUT) throw;
    int32_t missing = 0;
    while (missing < context.world_size && has_voted(context, missing)) ++missing;
    if (missing == context.world_size) throw;
    throw sdk::not_joined(missing, e.what());
  }
}

// Finds out whether all ranks are on one host, in four store operations per rank. Rank 0 publishes its host identity.
// Each rank adds its match or mismatch to a counter, and the last rank publishes the result. A key per rank records
// that it has joined, so that a timeout can name the missing rank.
bool all_on_one_host(const sdk::Context& context, const base::Deadline& deadline) {
  constexpr int64_t kElsewhere = INT64_C(1) << 32;
  const std::string here = base::host_identity();
  context.host.store_set(vote_key(context.rank), "1");
  if (context.rank == 0) context.host.store_set("gloo/host", here);
  const std::string there = context.rank == 0 ? here : get_or_name_absent_rank(context, "gloo/host", deadline);
  const int64_t votes = context.host.store_add("gloo/votes", there == here ? 1 : kElsewhere);
  if (votes / kElsewhere + votes % kElsewhere == context.world_size) {
    context.host.store_set("gloo/one_host", votes < kElsewhere ? "yes" : "no");
  }
  return get_or_name_absent_rank(context, "gloo/one_host", deadline) == "yes";
}

struct Selection {
  Candidate candidate;
  std::string why;
  uint32_t level = BP_LOG_INFO;
};

// Prefers addresses that lead to other hosts: the bridge of a container engine (docker0) has the same address on all.
Selection among_hosts(std::vector<Candidate> candidates) {
  const std::string host_name = base::host_name();
  std::erase_if(candidates, [](const Candidate& candidate) { return candidate.loopback; });
  if (const Candidate* found = match(candidates, resolved(host_name))) {
    return {*found, "the host name " + host_name + " resolves to it"};
  }
  if (candidates.empty()) {
    throw sdk::Failure(BP_RESOURCE,
                       "the ranks are on several hosts, and this one has no network interface but loopback; add one, "
                       "or set the option address");
  }
  if (candidates.size() == 1) return {candidates[0], "it is the only address that is not loopback"};
  if (const Candidate* found = match(candidates, {base::default_route_address()})) {
    return {*found, "the default route leaves from it"};
  }
  return {candidates[0],
          "it is the first of several (" + listed(candidates) + "); set the option iface or address to choose",
          BP_LOG_WARN};
}

// The address that the options or the environment select.
std::optional<Selection> selected_by_option(const sdk::Context& context, const std::vector<Candidate>& candidates) {
  const std::string& iface = context.options.text("iface");
  const std::string& address = context.options.text("address");
  if (!iface.empty() && !address.empty()) {
    throw sdk::Failure(BP_INVALID, "the options iface and address exclude each other; give one of them");
  }
  if (!iface.empty())
    return Selection{by_interface(candidates, iface, "the option iface"), "the option iface selects it"};
  if (!address.empty()) return Selection{by_address(candidates, address), "the option address selects it"};
  if (const char* variable = std::getenv("GLOO_SOCKET_IFNAME"); variable != nullptr && *variable != '\0') {
    const std::string name(variable, std::strcspn(variable, ","));
    return Selection{by_interface(candidates, name, "GLOO_SOCKET_IFNAME"), "GLOO_SOCKET_IFNAME selects it"};
  }
  return std::nullopt;
}

Selection selected_by_rule(const sdk::Context& context, const std::vector<Candidate>& candidates, bool one_host) {
  if (const Candidate* found = match(candidates, {sdk::store_address(context.host)})) {
    return {*found, sdk::kReachesStore};
  }
  const auto loopback = std::find_if(candidates.begin(), candidates.end(), std::mem_fn(&Candidate::loopback));
  if (one_host && loopback != candidates.end()) {
    return {*loopback, "all " + std::to_string(context.world_size) + " ranks are on this host"};
  }
  return among_hosts(candidates);
}

}  // namespace

Address choose_address(const sdk::Context& context, const base::Deadline& deadline) {
  const std::vector<Candidate> candidates = local_addresses();
  const std::optional<Selection> requested = selected_by_option(context, candidates);
  const bool one_host = all_on_one_host(context, deadline);
  const Selection selection = requested ? *requested : selected_by_rule(context, candidates, one_host);
  context.host.log(selection.level, "gloo: rank " + std::to_string(context.rank) + " listens on " +
                                        selection.candidate.text() + ": " + selection.why);
  Address result;
  result.attr.ai_family = selection.candidate.bytes.ss_family;
  result.attr.ai_socktype = SOCK_STREAM;
  result.attr.ai_protocol = 0;
  result.attr.ai_addr = selection.candidate.bytes;
  result.attr.ai_addrlen = static_cast<int>(selection.candidate.size);
  result.text = selection.candidate.text();
  return result;
}

}  // namespace backplane::gloo
