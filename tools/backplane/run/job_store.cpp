// SPDX-License-Identifier: Apache-2.0
#include "run/job_store.hpp"

#include <fmt/format.h>

#include <chrono>

#include "common/failure.hpp"

namespace backplane::tool {
namespace {

constexpr int64_t kSecond = 1'000'000'000;
constexpr int64_t kReport = 2 * kSecond;     // for a report to node 0, which may have ended
constexpr int64_t kSlice = kSecond / 10;     // between checks for signals
constexpr std::chrono::seconds kLinger{30};  // limit of node 0's wait for the other nodes

}  // namespace

std::string ended_key(int node) { return fmt::format("backplane-run/ended/{}", node); }

StorePointer connect_to_store(const Job& job) {
  bp_store* store = nullptr;
  bp_store_connect(job.master_addr.c_str(), job.master_port, job.job_id.c_str(), kReport, &store, nullptr);
  return StorePointer(store);
}

JobStore::JobStore(Job& job) : job_(&job) {
  if (job.node_rank != 0) return;
  bp_error err;
  bp_error_init(&err);
  bp_store_server* server = nullptr;
  if (bp_store_server_start(job.master_addr.c_str(), job.master_port, job.job_id.c_str(), &server, &err) != BP_OK) {
    throw Failure(kFailed, fmt::format("cannot serve the job's store: {}", err.text));
  }
  server_.reset(server);
  job.master_port = bp_store_server_port(server);
}

std::string JobStore::close(const std::function<bool()>& interrupted) {
  reports_.stop(base::Deadline::after(kReport));
  if (job_->nodes == 1) return {};
  report_node_end();
  return server_ == nullptr ? "" : wait_for_nodes(interrupted);
}

void JobStore::report_rank_end(int rank, const std::string& identity, const std::string& reason) {
  reports_.add([job = *job_, rank, identity, reason] {  // which close may leave behind
    const StorePointer store = connect_to_store(job);
    if (store == nullptr) return;  // node 0 has ended
    bp_error err;
    bp_error_init(&err);
    if (bp_store_report_end(store.get(), rank, identity.c_str(), reason.c_str(), kReport, &err) != BP_OK) {
      fmt::print(stderr, "backplane: the end of rank {} cannot be reported to the others: {}\n", rank, err.text);
    }
  });
}

void JobStore::report_node_end() const {
  const StorePointer store = connect_to_store(*job_);
  if (store != nullptr) bp_store_set(store.get(), ended_key(job_->node_rank).c_str(), "1", 1, kReport, nullptr);
}

std::string JobStore::wait_for_nodes(const std::function<bool()>& interrupted) const {
  const StorePointer store = connect_to_store(*job_);
  if (store == nullptr) return {};
  const auto end = std::chrono::steady_clock::now() + kLinger;
  for (int node = 1; node < job_->nodes; ++node) {
    const std::string key = ended_key(node);
    const char* const name = key.c_str();
    while (bp_store_wait(store.get(), &name, 1, kSlice, nullptr) != BP_OK) {
      if (interrupted()) return {};
      if (std::chrono::steady_clock::now() < end) continue;
      return fmt::format("node {} did not end within {} s after node 0; closing the job's store", node,
                         kLinger.count());
    }
  }
  return {};
}

}  // namespace backplane::tool
