// SPDX-License-Identifier: Apache-2.0
#include "run/pmi_service.hpp"

#include <fmt/format.h>

#include <exception>
#include <sstream>

#include "common/failure.hpp"
#include "run/job_store.hpp"

namespace backplane::tool {
namespace {

constexpr int64_t kSliceNs = 100'000'000;  // between looks whether the job is ending
constexpr int64_t kStoreNs = 10'000'000'000;

// "key value" per line: neither contains spaces.
std::string to_text(const base::PmiServer::Values& values) {
  std::string text;
  for (const auto& [key, value] : values) text += key + " " + value + "\n";
  return text;
}

void add_text(const std::string& text, base::PmiServer::Values* values) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t space = line.find(' ');
    if (space != std::string::npos) (*values)[line.substr(0, space)] = line.substr(space + 1);
  }
}

std::string key_of(uint64_t round, const std::string& part) {
  return fmt::format("backplane-run/pmi/{}/{}", round, part);
}

void set(bp_store* store, const std::string& key, const std::string& value) {
  bp_error err;
  bp_error_init(&err);
  if (bp_store_set(store, key.c_str(), value.data(), value.size(), kStoreNs, &err) != BP_OK) {
    throw Failure(kFailed, err.text);
  }
}

}  // namespace

PmiService::PmiService(const Job& job)
    : job_(job),
      server_("kvs_" + job.job_id, job.nodes, job.ranks_per_node, [this](const Values& own) { exchange(own); }) {}

PmiService::~PmiService() {
  ending_ = true;
  exchanges_.stop();
}

void PmiService::serve() {
  server_.serve();
  exchanged_.clear();
  std::optional<Values> received;
  bool failed = false;
  {
    const std::lock_guard lock(mutex_);
    std::swap(received, received_);
    failed = failed_;
  }
  if (received) server_.received(*received);
  if (failed) server_.end_barriers();
}

void PmiService::exchange(const Values& own) {
  exchanges_.add([this, own] {
    try {
      Values all = exchange_through_store(own);
      const std::lock_guard lock(mutex_);
      received_ = std::move(all);
      exchanged_.raise();
    } catch (const std::exception& e) {
      if (ending_) return;
      fmt::print(stderr,
                 "backplane: MPI cannot start on node {}: the nodes cannot exchange addresses: {}; look at the output "
                 "of their launchers\n",
                 job_.node_rank, e.what());
      const std::lock_guard lock(mutex_);
      failed_ = true;
      exchanged_.raise();
    }
  });
}

// Node 0 collects the values of all nodes and publishes them, so that the store serves O(nodes) requests.
PmiService::Values PmiService::exchange_through_store(const Values& own) {
  StorePointer store;
  while (store == nullptr) {
    if (ending_) throw Failure(kFailed, "the job is ending");
    store = connect_to_store(job_);
  }
  const uint64_t round = round_++;
  const std::string all_key = key_of(round, "all");
  if (job_.node_rank > 0) {
    set(store.get(), key_of(round, std::to_string(job_.node_rank)), to_text(own));
    return wait_for(store.get(), all_key, 0);
  }
  Values all = own;
  for (int node = 1; node < job_.nodes; ++node) {
    all.merge(wait_for(store.get(), key_of(round, std::to_string(node)), node));
  }
  set(store.get(), all_key, to_text(all));
  return all;
}

PmiService::Values PmiService::wait_for(bp_store* store, const std::string& key, int node) const {
  const std::string ended = ended_key(node);
  const char* const ended_name = ended.c_str();
  for (;;) {
    bp_error err;
    bp_error_init(&err);
    char* value = nullptr;
    uint64_t size = 0;
    const int32_t status = bp_store_get(store, key.c_str(), &value, &size, kSliceNs, &err);
    if (status == BP_OK) {
      Values values;
      add_text({value, static_cast<size_t>(size)}, &values);
      bp_free(value);
      return values;
    }
    if (status != BP_TIMEOUT) throw Failure(kFailed, err.text);
    if (ending_) throw Failure(kFailed, "the job is ending");
    int32_t has_ended = 0;
    if (bp_store_check(store, &ended_name, 1, &has_ended, kStoreNs, &err) != BP_OK) throw Failure(kFailed, err.text);
    if (has_ended != 0) throw Failure(kFailed, fmt::format("the ranks of node {} have ended", node));
  }
}

}  // namespace backplane::tool
