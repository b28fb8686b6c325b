// SPDX-License-Identifier: Apache-2.0
//
// How a worker joins: three exchanges among all workers of the group. Each sends a statement of its name, its choices
// and its problem, if it has one; a problem fails the joining of all.
//   1. names and backends  2. options and limits  3. the transports have started
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "error.hpp"
#include "group/group.hpp"
#include "registry/registry.hpp"
#include "rpc/transport.hpp"

namespace backplane::core::rpc {

struct WorkerConfig {
  std::string name;
  std::shared_ptr<Group> group;  // of all workers; only this worker uses it, and destroys it
  Registry* registry = nullptr;
  std::string backend;  // with options; empty: agreed on
  std::shared_ptr<const BackendOptions>
      options;                         // instead of those in `backend`, which is empty or names their backend
  int64_t timeout_ns = 0;              // of joining
  int64_t rpc_timeout_ns = 0;          // of calls without a timeout of their own
  std::string init_method = "env://";  // for options that are made here, like rpc_timeout_ns
  std::optional<Error> problem = {};   // set: the worker joins only to report it
};

class Joining {
 public:
  // Exchanges 1 and 2. `config` must outlive this. Throws core::Error.
  explicit Joining(const WorkerConfig& config);

  const std::vector<std::string>& names() const { return names_; }
  const std::string& backend() const { return backend_; }
  const std::vector<uint64_t>& max_message_bytes() const { return max_message_bytes_; }
  size_t threads() const { return threads_; }  // of the executor

  // Exchange 3: reports the exception of `start`, if it throws one, and throws the problem of another worker.
  void complete(const std::function<void()>& start) const;
  // Inside `start`. Blocks until the transport has started or another worker's has failed.
  std::unique_ptr<Transport> start_transport(Transport::Sink* sink) const;

 private:
  void agree_on_backend();
  void choose_backend();
  void prepare();

  const WorkerConfig& config_;
  const Member* member_ = nullptr;
  std::shared_ptr<const BackendOptions> options_;
  std::vector<std::string> names_;
  std::string backend_;
  std::vector<uint64_t> max_message_bytes_;
  size_t threads_ = 0;
};

}  // namespace backplane::core::rpc
