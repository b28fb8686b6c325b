// SPDX-License-Identifier: Apache-2.0
#include "transport.hpp"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <random>
#include <sstream>

#include "address.hpp"
#include "backplane/sdk/failure.hpp"
#include "backplane/sdk/listening.hpp"
#include "backplane/sdk/worker.hpp"
#include "endpoint.hpp"

namespace backplane::tensorpipe {
namespace {

struct Transport {
  const char* name;
  int64_t priority;
  std::function<std::shared_ptr<::tensorpipe::transport::Context>()> make;
  std::function<std::string(const std::string& address)> listen;
};
// `basic` is always used: two workers without a common channel would exit at the first large buffer.
enum class Use { kAlways, kUnlessOthersAreNamed, kIfNamed };
struct Channel {
  const char* name;
  int64_t priority;
  Use use;
  std::function<std::shared_ptr<::tensorpipe::channel::Context>(const std::string& address)> make;
};

// Several parallel uv connections.
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
    throw sdk::Failure(BP_INVALID, std::string(option) + " does not know '" + name + "'; available: " + list);
  }
}

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

// Returns false if it is not viable and was not requested by name.
bool check_viable(bool viable, bool named, const char* what, const char* name, const sdk::Host& host) {
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

rlim_t max_descriptors() {
  rlimit limit = {};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

// Exhausted descriptors fail an assertion on one of TensorPipe's threads.
bool has_descriptors(const sdk::Context& context, bool named) {
  const rlim_t needed = descriptors_for(context, kShmDescriptorsPerPeer);
  const rlim_t limit_of_process = max_descriptors();
  if (limit_of_process >= needed) return true;
  const std::string text = "shared memory among " + std::to_string(context.world_size) + " workers takes " +
                           std::to_string(needed) + " descriptors, and this process may have " +
                           std::to_string(limit_of_process) + "; raise its limit (ulimit -n)";
  if (named) throw sdk::Failure(BP_RESOURCE, text);
  context.host.log(BP_LOG_INFO, text);
  return false;
}

bool has_descriptors_for_express(const sdk::Context& context) {
  return max_descriptors() >= descriptors_for(context, kShmDescriptorsPerPeer + kExpressDescriptorsPerPeer);
}

bool add_transport(const sdk::Context& context, const std::string& name, bool named, const std::string& address,
                   Transports* transports) {
  for (const Transport& each : all_transports()) {
    if (each.name != name) continue;
    const sdk::SignalsBlocked blocked;
    auto made = each.make();
    if (!check_viable(made && made->isViable(), named, "transport", each.name, context.host)) return false;
    if (name == "shm" && has_descriptors_for_express(context)) transports->express = made;
    transports->context->registerTransport(each.priority, each.name, std::move(made));
    transports->names.push_back(each.name);
    transports->urls.emplace_back([&each, address] { return each.listen(address); });
    return true;
  }
  return false;  // this build of TensorPipe lacks it
}

// Whether every worker has shared memory on this host.
bool all_share_memory(const sdk::Context& context, const std::string& host) {
  for (int32_t rank = 0; rank < context.world_size; ++rank) {
    if (context.host.store_get(host_key(rank), context.timeout_ns) != host) return false;
  }
  return true;
}

void add_transports(const sdk::Context& context, const std::string& address, Transports* transports) {
  const std::vector<std::string> requested = split(context.options.text("transports"));
  check_names("transports", requested, all_transports());
  const bool unspecified = requested.empty();
  const bool shm = (unspecified || contains(requested, "shm")) && has_descriptors(context, !unspecified) &&
                   add_transport(context, "shm", !unspecified, "", transports);
  const std::string host = shm ? host_identity() : "none";
  context.host.store_set(host_key(context.rank), host);
  const bool shm_suffices = shm && context.options.text("address").empty() && all_share_memory(context, host);
  if (unspecified ? !shm_suffices : contains(requested, "uv"))
    add_transport(context, "uv", !unspecified, address, transports);
  if (transports->names.empty())
    throw sdk::Failure(BP_UNSUPPORTED, "no transport of TensorPipe is viable on this host");
}

void add_channels(const sdk::Context& context, const std::string& address, Transports* transports) {
  const std::vector<std::string> requested = split(context.options.text("channels"));
  check_names("channels", requested, all_channels());
  const sdk::SignalsBlocked blocked;
  for (const Channel& each : all_channels()) {
    const bool named = contains(requested, each.name);
    const bool usual = each.use == Use::kAlways || (each.use != Use::kIfNamed && requested.empty());
    if (!named && !usual) continue;
    auto made = each.make(address);
    if (!check_viable(made && made->isViable(), named, "channel", each.name, context.host)) continue;
    transports->context->registerChannel(each.priority, each.name, std::move(made));
  }
}

}  // namespace

std::string unique_name() {
  static std::atomic<uint64_t> last = 0;
  std::random_device random;
  return "backplane-" + std::to_string(getpid()) + "-" + std::to_string(++last) + "-" + std::to_string(random());
}

Transports make_transports(const sdk::Context& context) {
  const sdk::ListeningAddress chosen = sdk::choose_address(context, context.options.text("address"));
  const std::string address = checked_address(chosen.address);
  Transports transports;
  transports.context = std::make_shared<::tensorpipe::Context>(::tensorpipe::ContextOptions().name(context.name));
  add_transports(context, address, &transports);
  add_channels(context, address, &transports);
  if (contains(transports.names, "uv")) sdk::log_choice(context, chosen);
  return transports;
}

}  // namespace backplane::tensorpipe
