// SPDX-License-Identifier: Apache-2.0
#include "context.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <sstream>

#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/worker.hpp"

namespace backplane::tensorpipe_plugin {
namespace {

struct Transport {
  const char* name;
  int64_t priority;
  std::function<std::shared_ptr<tensorpipe::transport::Context>()> make;
  std::function<std::string(const std::string& address)> listen;
};
// Basic always: two workers that have no other channel in common end their processes over the first large buffer.
enum class Use { kAlways, kUnlessOthersAreNamed, kIfNamed };
struct Channel {
  const char* name;
  int64_t priority;
  Use use;
  std::function<std::shared_ptr<tensorpipe::channel::Context>(const std::string& address)> make;
};

// shm meets in the abstract namespace of sockets, in which names are nobody's.
std::string unique_name() {
  static std::atomic<uint64_t> last = 0;
  std::random_device random;
  return "backplane-" + std::to_string(getpid()) + "-" + std::to_string(++last) + "-" + std::to_string(random());
}

// Several uv connections beside each other.
std::shared_ptr<tensorpipe::channel::Context> make_mpt(const std::string& address) {
  constexpr int kLanes = 4;
  std::vector<std::shared_ptr<tensorpipe::transport::Context>> contexts;
  std::vector<std::shared_ptr<tensorpipe::transport::Listener>> listeners;
  for (int i = 0; i < kLanes; ++i) {
    contexts.push_back(tensorpipe::transport::uv::create());
    if (!contexts.back()->isViable()) return nullptr;
    listeners.push_back(contexts.back()->listen(address + ":0"));
  }
  return tensorpipe::channel::mpt::create(std::move(contexts), std::move(listeners));
}

const std::vector<Transport>& all_transports() {
  static const auto* const all = new std::vector<Transport> {
    {"uv", 0, [] { return tensorpipe::transport::uv::create(); },
     [](const std::string& address) { return "uv://" + address + ":0"; }},
#if TENSORPIPE_HAS_SHM_TRANSPORT
        {"shm", 200, [] { return tensorpipe::transport::shm::create(); },
         [](const std::string&) { return "shm://" + unique_name(); }},
#endif
  };
  return *all;
}

const std::vector<Channel>& all_channels() {
  static const auto* const all = new std::vector<Channel> {
    {"basic", 1000, Use::kAlways, [](const std::string&) { return tensorpipe::channel::basic::create(); }},
        {"mpt", 1100, Use::kIfNamed, make_mpt},
#if TENSORPIPE_HAS_CMA_CHANNEL
        {"cma", 1200, Use::kUnlessOthersAreNamed,
         [](const std::string&) { return tensorpipe::channel::cma::create(); }},
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

}  // namespace

Endpoint make_endpoint(const std::string& name, const std::string& address, const std::string& transports,
                       const std::string& channels, const sdk::Host& host) {
  const std::vector<std::string> wanted = split(transports);
  const std::vector<std::string> wanted_channels = split(channels);
  check_names("transports", wanted, all_transports());
  check_names("channels", wanted_channels, all_channels());
  const sdk::SignalsBlocked blocked;
  Endpoint endpoint;
  std::vector<std::function<std::string()>> listeners;
  endpoint.context = std::make_shared<tensorpipe::Context>(tensorpipe::ContextOptions().name(name));
  for (const Transport& each : all_transports()) {
    if (!wanted.empty() && !contains(wanted, each.name)) continue;
    auto made = each.make();
    if (!usable(made && made->isViable(), !wanted.empty(), "transport", each.name, host)) continue;
    endpoint.context->registerTransport(each.priority, each.name, std::move(made));
    listeners.push_back([&each, address] { return each.listen(address); });
    if (endpoint.first.empty()) endpoint.first = each.name;
  }
  endpoint.addresses = [listeners] {
    std::vector<std::string> urls;
    for (const auto& make : listeners) urls.push_back(make());
    return urls;
  };
  if (listeners.empty()) throw sdk::Failure(BP_UNSUPPORTED, "no transport of TensorPipe is viable here");
  for (const Channel& each : all_channels()) {
    const bool named = contains(wanted_channels, each.name);
    const bool usual = each.use == Use::kAlways || (each.use != Use::kIfNamed && wanted_channels.empty());
    if (!named && !usual) continue;
    auto made = each.make(address);
    if (!usable(made && made->isViable(), named, "channel", each.name, host)) continue;
    endpoint.context->registerChannel(each.priority, each.name, std::move(made));
  }
  return endpoint;
}

}  // namespace backplane::tensorpipe_plugin
