// SPDX-License-Identifier: Apache-2.0
#include "context.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <sstream>

#include "address.hpp"
#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/worker.hpp"
#include "card.hpp"

namespace backplane::tensorpipe {
namespace {

struct Transport {
  const char* name;
  int64_t priority;
  std::function<std::shared_ptr<::tensorpipe::transport::Context>()> make;
  std::function<std::string(const std::string& address)> listen;
};
// Basic always: two workers that have no other channel in common end their processes over the first large buffer.
enum class Use { kAlways, kUnlessOthersAreNamed, kIfNamed };
struct Channel {
  const char* name;
  int64_t priority;
  Use use;
  std::function<std::shared_ptr<::tensorpipe::channel::Context>(const std::string& address)> make;
};

// Several uv connections beside each other.
std::shared_ptr<::tensorpipe::channel::Context> make_mpt(const std::string& address) {
  constexpr int kLanes = 4;
  std::vector<std::shared_ptr<::tensorpipe::transport::Context>> contexts;
  std::vector<std::shared_ptr<::tensorpipe::transport::Listener>> listeners;
  for (int i = 0; i < kLanes; ++i) {
    contexts.push_back(::tensorpipe::transport::uv::create());
    if (!contexts.back()->isViable()) return nullptr;
    listeners.push_back(contexts.back()->listen(address + ":0"));
  }
  return ::tensorpipe::channel::mpt::create(std::move(contexts), std::move(listeners));
}

const std::vector<Transport>& all_transports() {
  static const auto* const all = new std::vector<Transport> {
    {"uv", 0, [] { return ::tensorpipe::transport::uv::create(); },
     [](const std::string& address) { return "uv://" + address + ":0"; }},
#if TENSORPIPE_HAS_SHM_TRANSPORT
        {"shm", 200, [] { return ::tensorpipe::transport::shm::create(); },
         [](const std::string&) { return "shm://" + unique_name(); }},
#endif
  };
  return *all;
}

const std::vector<Channel>& all_channels() {
  static const auto* const all = new std::vector<Channel> {
    {"basic", 1000, Use::kAlways, [](const std::string&) { return ::tensorpipe::channel::basic::create(); }},
        {"mpt", 1100, Use::kIfNamed, make_mpt},
#if TENSORPIPE_HAS_CMA_CHANNEL
        {"cma", 1200, Use::kUnlessOthersAreNamed,
         [](const std::string&) { return ::tensorpipe::channel::cma::create(); }},
#endif
  };
  return *all;
}

std::vector<std::string> split(const std::string& text) {
  std::string commas = text;
  std::replace(commas.begin(), commas.end(), '+', ',');
  std::vector<std::string> names;
  std::istringstream in(commas);
  for (std::string name; std::getline(in, name, ',');) names.push_back(name);
  return names;
}

template <typename Kind>
void check_names(const char* option, const std::vector<std::string>& names, const std::vector<Kind>& all) {
  for (const std::string& name : names) {
    const auto known = [&name](const Kind& each) { return each.name == name; };
    if (std::any_of(all.begin(), all.end(), known)) continue;
    std::string list;
    for (const Kind& each : all) list.append(list.empty() ? "" : ", ").append(each.name);
    throw sdk::Failure(BP_INVALID, std::string(option) + " does not know '" + name + "'; there are " + list);
  }
}

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// False: it is not viable, and nobody has named it.
bool usable(bool viable, bool named, const char* what, const char* name, const sdk::Host& host) {
  if (viable) return true;
  const std::string text = std::string("TensorPipe's ") + what + " " + name + " is not viable on this machine";
  if (named) throw sdk::Failure(BP_UNSUPPORTED, text);
  host.log(BP_LOG_INFO, text);
  return false;
}

rlim_t descriptors_for(const sdk::Context& context, int64_t each) {
  constexpr int64_t kOthers = 128;
  return static_cast<rlim_t>(each * (context.world_size - 1) + kOthers);
}

rlim_t most_descriptors() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// Too few descriptors are an assertion of TensorPipe's, on a thread of its own.
bool has_descriptors(const sdk::Context& context, bool named) {
  const rlim_t needed = descriptors_for(context, kShmDescriptorsPerPeer);
  const rlim_t most = most_descriptors();
  if (most >= needed) return true;
  const std::string text = "shared memory among " + std::to_string(context.world_size) + " workers takes " +
                           std::to_string(needed) + " descriptors, and this process may have " + std::to_string(most) +
                           "; raise its limit (ulimit -n)";
  if (named) throw sdk::Failure(BP_RESOURCE, text);
  context.host.log(BP_LOG_INFO, text);
  return false;
}

bool has_descriptors_for_express(const sdk::Context& context) {
  return most_descriptors() >= descriptors_for(context, kShmDescriptorsPerPeer + kExpressDescriptorsPerPeer);
}

bool add_transport(const sdk::Context& context, const std::string& name, bool named, const std::string& address,
                   Endpoint* endpoint) {
  for (const Transport& each : all_transports()) {
    if (each.name != name) continue;
    const sdk::SignalsBlocked blocked;
    auto made = each.make();
    if (!usable(made && made->isViable(), named, "transport", each.name, context.host)) return false;
    if (name == "shm" && has_descriptors_for_express(context)) endpoint->express = made;
    endpoint->context->registerTransport(each.priority, each.name, std::move(made));
    endpoint->transports.push_back(each.name);
    endpoint->urls.emplace_back([&each, address] { return each.listen(address); });
    return true;
  }
  return false;  // this build of TensorPipe has it not
}

// Does every worker have shared memory where this one has?
bool all_share_memory(const sdk::Context& context, const std::string& place) {
  for (int32_t rank = 0; rank < context.world_size; ++rank) {
    if (context.host.store_get(place_key(rank), context.timeout_ns) != place) return false;
  }
  return true;
}

void add_transports(const sdk::Context& context, const std::string& address, Endpoint* endpoint) {
  const std::vector<std::string> wanted = split(context.options.text("transports"));
  check_names("transports", wanted, all_transports());
  const bool open = wanted.empty();
  const bool shm = (open || contains(wanted, "shm")) && has_descriptors(context, !open) &&
                   add_transport(context, "shm", !open, "", endpoint);
  const std::string place = shm ? host_identity() : "none";
  context.host.store_set(place_key(context.rank), place);
  const bool suffices = shm && context.options.text("address").empty() && all_share_memory(context, place);
  if (open ? !suffices : contains(wanted, "uv")) add_transport(context, "uv", !open, address, endpoint);
  if (endpoint->transports.empty()) throw sdk::Failure(BP_UNSUPPORTED, "no transport of TensorPipe is viable here");
}

void add_channels(const sdk::Context& context, const std::string& address, Endpoint* endpoint) {
  const std::vector<std::string> wanted = split(context.options.text("channels"));
  check_names("channels", wanted, all_channels());
  const sdk::SignalsBlocked blocked;
  for (const Channel& each : all_channels()) {
    const bool named = contains(wanted, each.name);
    const bool usual = each.use == Use::kAlways || (each.use != Use::kIfNamed && wanted.empty());
    if (!named && !usual) continue;
    auto made = each.make(address);
    if (!usable(made && made->isViable(), named, "channel", each.name, context.host)) continue;
    endpoint->context->registerChannel(each.priority, each.name, std::move(made));
  }
}

}  // namespace

std::string unique_name() {
  static std::atomic<uint64_t> last = 0;
  std::random_device random;
  return "backplane-" + std::to_string(getpid()) + "-" + std::to_string(++last) + "-" + std::to_string(random());
}

Endpoint make_endpoint(const sdk::Context& context) {
  const std::string& named = context.options.text("address");
  const std::string address = named.empty() ? "127.0.0.1" : checked_address(named);
  Endpoint endpoint;
  endpoint.context = std::make_shared<::tensorpipe::Context>(::tensorpipe::ContextOptions().name(context.name));
  add_transports(context, address, &endpoint);
  add_channels(context, address, &endpoint);
  return endpoint;
}

}  // namespace backplane::tensorpipe
